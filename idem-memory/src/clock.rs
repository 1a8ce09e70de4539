//! The store's clock.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use idem_core::{ManualClock, Timestamp};

/// What judges leases and retentions.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The host's monotonic clock, counted from what the wall clock showed when the store was made. The wall clock is
    /// read once only, so that setting it ends no lease.
    Host {
        /// The wall clock at `since`.
        start: Timestamp,
        since: Instant,
    },
    /// A clock that a test moves.
    Manual(ManualClock),
}

impl Clock {
    pub(crate) fn host() -> Self {
        // A wall clock before 1970 shows the epoch: only differences count, and the start is the same for all of them.
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::Host { start: Timestamp::from_millis(0).after(start), since: Instant::now() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        match self {
            // Whole milliseconds that have passed: rounding up would show an instant that has not come.
            Self::Host { start, since } => {
                let passed = i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX);
                Timestamp::from_millis(start.as_millis().saturating_add(passed))
            }
            Self::Manual(clock) => clock.now(),
        }
    }
}
