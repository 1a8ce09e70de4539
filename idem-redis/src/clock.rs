//! The store's clock.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use idem_core::{ManualClock, Timestamp};

/// A sample this old gives way to any other: clocks drift, and hosts fall asleep.
const OLD: Duration = Duration::from_secs(10 * 60);

/// The server's clock, or in tests one that is moved by hand.
///
/// What is judged is always a difference of the server's own clock. Where the client has to put an instant into words
/// without asking the server (the first claim is a single native command), it says what the server's clock shows as near
/// as it can tell: from then on that record's instants count from there.
#[derive(Debug)]
pub(crate) enum Clock {
    Server {
        /// The best look at it so far. Told from a clock of the host's that nobody sets.
        seen: Mutex<Sample>,
    },
    Manual(ManualClock),
}

/// What the server's clock showed, give or take half a round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    showed: Timestamp,
    at: Instant,
    /// None where it is the host's clock, and no look at the server's.
    round_trip: Option<Duration>,
}

impl Clock {
    pub(crate) fn server() -> Self {
        Self::Server { seen: Mutex::new(Sample { showed: host_shows(), at: Instant::now(), round_trip: None }) }
    }

    /// Learns what the server's clock showed at some instant between `asked` and now. The look with the shortest round
    /// trip tells it best.
    pub(crate) fn learn(&self, showed: Timestamp, asked: Instant) {
        self.learn_within(showed, asked, asked.elapsed());
    }

    fn learn_within(&self, showed: Timestamp, asked: Instant, round_trip: Duration) {
        let Self::Server { seen } = self else { return };
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_better = seen.round_trip.is_none_or(|best| round_trip <= best || seen.at.elapsed() > OLD);
        if is_better {
            *seen = Sample { showed, at: asked + round_trip / 2, round_trip: Some(round_trip) };
        }
    }

    /// Whether there is nothing to learn any more.
    pub(crate) fn is_known(&self) -> bool {
        match self {
            Self::Server { seen } => seen.lock().unwrap_or_else(PoisonError::into_inner).round_trip.is_some(),
            Self::Manual(_) => true,
        }
    }

    /// What it shows, as near as can be told without asking.
    pub(crate) fn shows(&self) -> Timestamp {
        match self {
            Self::Server { seen } => {
                let seen = *seen.lock().unwrap_or_else(PoisonError::into_inner);
                let since = i64::try_from(seen.at.elapsed().as_millis()).unwrap_or(i64::MAX);
                Timestamp::from_millis(seen.showed.as_millis().saturating_add(since))
            }
            Self::Manual(clock) => clock.now(),
        }
    }

    /// What every script takes instead of the server's clock: nothing, unless it is moved by hand.
    pub(crate) fn set_to(&self) -> Option<Timestamp> {
        match self {
            Self::Server { .. } => None,
            Self::Manual(clock) => Some(clock.now()),
        }
    }
}

fn host_shows() -> Timestamp {
    let millis = |since: Duration| i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => millis(since),
        Err(before) => millis(before.duration()).saturating_neg(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn off_by(clock: &Clock, from: i64) -> i64 {
        clock.shows().as_millis() - from
    }

    #[test]
    fn the_shortest_round_trip_tells_the_servers_clock_best_and_its_middle_is_the_instant() {
        let clock = Clock::server();
        assert!(!clock.is_known());
        let asked = Instant::now();
        clock.learn_within(Timestamp::from_millis(1_000_000), asked, Duration::from_millis(100));
        assert!(clock.is_known());
        // At the middle of the round trip it showed a million, which is 50 ms from now.
        assert!((-50..5_000).contains(&off_by(&clock, 1_000_000)));
        clock.learn_within(Timestamp::from_millis(9_000_000), asked, Duration::from_millis(101));
        assert!((-50..5_000).contains(&off_by(&clock, 1_000_000)), "a worse look counts for nothing");
        clock.learn_within(Timestamp::from_millis(2_000_000), asked, Duration::from_millis(10));
        assert!((-5..5_000).contains(&off_by(&clock, 2_000_000)), "a better one counts");
    }

    #[test]
    fn a_clock_that_is_moved_by_hand_learns_nothing() {
        let manual = ManualClock::starting_at(Timestamp::from_millis(7));
        let clock = Clock::Manual(manual);
        clock.learn(Timestamp::from_millis(1_000_000), Instant::now());
        assert_eq!(clock.shows(), Timestamp::from_millis(7));
        assert!(clock.is_known());
    }
}
