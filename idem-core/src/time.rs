//! Instants of the store's clock, and how durations are counted on it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

/// An instant of the *store's* clock, in whole milliseconds since the Unix epoch.
///
/// Two timestamps are comparable only when they come from the same store: no other clock judges a lease or a
/// retention. All arithmetic saturates at the ends of the range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The earliest instant.
    pub const MIN: Self = Self(i64::MIN);

    /// The instant `millis` milliseconds after the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// The instant `duration` later; the duration is rounded up to a whole millisecond, so that an interval is never
    /// shorter than what was asked for.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }

    /// The time from `earlier` to this instant; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        let millis = self.0.saturating_sub(earlier.0);
        Duration::from_millis(u64::try_from(millis).unwrap_or(0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

/// A duration in milliseconds, rounded up.
fn millis(duration: Duration) -> i64 {
    let nanos_left = !duration.subsec_nanos().is_multiple_of(1_000_000);
    i64::try_from(duration.as_millis() + u128::from(nanos_left)).unwrap_or(i64::MAX)
}

/// A clock that moves only when it is told to, for tests that put a store exactly on a boundary.
///
/// A store that is built with one judges everything by it. Clones share the same hands, so every handle of one store
/// can follow one clock.
///
/// ```
/// use std::time::Duration;
/// use idem_core::{ManualClock, Timestamp};
///
/// let clock = ManualClock::starting_at(Timestamp::from_millis(1_000));
/// let same = clock.clone();
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(same.now(), Timestamp::from_millis(2_000));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that stands at `start`.
    pub fn starting_at(start: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(start.0)))
    }

    /// Where the clock stands.
    pub fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }

    /// Moves the clock forward by `by`, rounded up to a whole millisecond.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(millis(by), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_up_to_whole_milliseconds() {
        let start = Timestamp::from_millis(0);
        for (nanos, expected) in [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)] {
            assert_eq!(start.after(Duration::from_nanos(nanos)).as_millis(), expected, "{nanos} ns");
        }
    }

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        let late = Timestamp::from_millis(i64::MAX - 1);
        assert_eq!(late.after(Duration::MAX), Timestamp::from_millis(i64::MAX));
        assert_eq!(Timestamp::MIN.since(late), Duration::ZERO);
        assert_eq!(late.since(Timestamp::MIN), Duration::from_millis(i64::MAX as u64));
    }
}
