//! The store's clock.

use idem_core::{ManualClock, Timestamp};

/// The server's clock, or in tests one that is moved by hand.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    Server,
    Manual(ManualClock),
}

impl Clock {
    /// What every statement takes instead of the server's clock: nothing, unless it is moved by hand.
    pub(crate) fn set_to(&self) -> Option<Timestamp> {
        match self {
            Self::Server => None,
            Self::Manual(clock) => Some(clock.now()),
        }
    }
}
