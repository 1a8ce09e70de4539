//! The store's clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use idem_core::{ManualClock, Timestamp};

/// The host's clock, or in tests one that is moved by hand. The wall clock and not a monotonic one: leases and retentions
/// go on over a restart.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    Host,
    Manual(ManualClock),
}

impl Clock {
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::Host => host_now(),
            Self::Manual(clock) => clock.now(),
        }
    }
}

fn host_now() -> Timestamp {
    let millis = |since: Duration| i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => millis(since),
        Err(before) => millis(before.duration()).saturating_neg(),
    })
}
