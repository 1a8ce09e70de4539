//! How long records must stay.

use std::time::Duration;

use idem_core::Retention;

/// No retention is shorter than this.
const LEAST: Duration = Duration::from_secs(24 * 60 * 60);

/// What the last retry may take from being sent to being claimed.
const UNDER_WAY: Duration = Duration::from_secs(60);

/// The retention that outlasts every retry.
///
/// A record must still be there when the last retry of its request arrives; if it is not, that retry runs the operation
/// again. The result is the larger of 24 hours and
///
/// > `retry_window` + `redelivery` + 2 × `clock_skew` + 1 minute
///
/// - `retry_window`: the longest time from a client's first request to the last retry that it sends on its own. For a
///   person who may press the button again, or a job that is run again by hand, that is days rather than minutes.
/// - `clock_skew`: the most by which two clocks that take part may differ. It counts twice: a client may begin and end
///   its window by different clocks, and so may a store that fails over.
/// - `redelivery`: the longest time for which a queue, proxy or webhook sender between client and service may keep a
///   message and deliver it again; zero where there is none. For a queue that is its message retention, or its
///   visibility timeout times the number of deliveries that it makes.
/// - The minute is for a last retry that is under way.
///
/// Retention is counted anew from each claim and from the completion, so how long the operation runs takes nothing from
/// it. A sum that is too large for a [`Duration`] is [`Duration::MAX`]: for ever. Records whose outcome waits for someone
/// stay 30 days, or as long as this if it is longer; see [`Retention::with_held`].
///
/// ```
/// use std::time::Duration;
///
/// const HOUR: Duration = Duration::from_secs(60 * 60);
/// const MINUTE: Duration = Duration::from_secs(60);
///
/// // Clients retry for three days, and a queue delivers again for up to twelve hours.
/// let retention = idem::retention_for(72 * HOUR, MINUTE, 12 * HOUR);
/// assert_eq!(retention.standard(), 84 * HOUR + 3 * MINUTE);
/// ```
pub fn retention_for(retry_window: Duration, clock_skew: Duration, redelivery: Duration) -> Retention {
    let skew = clock_skew.saturating_mul(2);
    let longest = retry_window.saturating_add(redelivery).saturating_add(skew).saturating_add(UNDER_WAY);
    Retention::new(longest.max(LEAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    #[test]
    fn retention_is_never_below_a_day() {
        assert_eq!(retention_for(Duration::ZERO, Duration::ZERO, Duration::ZERO).standard(), 24 * HOUR);
        assert_eq!(retention_for(23 * HOUR, Duration::ZERO, Duration::ZERO).standard(), 24 * HOUR);
    }

    #[test]
    fn every_part_counts_and_the_sum_is_exceeded() {
        let base = retention_for(48 * HOUR, Duration::ZERO, Duration::ZERO).standard();
        assert!(base > 48 * HOUR);
        assert_eq!(retention_for(49 * HOUR, Duration::ZERO, Duration::ZERO).standard(), base + HOUR);
        assert_eq!(retention_for(48 * HOUR, HOUR, Duration::ZERO).standard(), base + 2 * HOUR);
        assert_eq!(retention_for(48 * HOUR, Duration::ZERO, HOUR).standard(), base + HOUR);
    }

    #[test]
    fn what_is_too_long_to_count_is_for_ever() {
        assert_eq!(retention_for(Duration::MAX, Duration::MAX, Duration::MAX).standard(), Duration::MAX);
    }
}
