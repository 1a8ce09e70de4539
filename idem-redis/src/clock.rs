//! The store's clock.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use idem_core::{ManualClock, Timestamp};

/// The server's clock, or in tests one that is moved by hand.
///
/// What is judged is always a difference of the server's own clock. Where the client has to put an instant into words
/// without asking the server (the first claim is a single native command), it says what the server's clock shows as near
/// as it can tell: from then on that record's instants count from there.
#[derive(Debug)]
pub(crate) enum Clock {
    Server {
        /// How much later the server's clock is than the host's, in milliseconds.
        ahead: AtomicI64,
    },
    Manual(ManualClock),
}

impl Clock {
    pub(crate) fn server() -> Self {
        Self::Server { ahead: AtomicI64::new(0) }
    }

    /// Learns what the server's clock shows.
    pub(crate) fn learn(&self, server: Timestamp) {
        if let Self::Server { ahead } = self {
            ahead.store(server.as_millis().saturating_sub(host_millis()), Ordering::Relaxed);
        }
    }

    /// What it shows, as near as can be told without asking.
    pub(crate) fn shows(&self) -> Timestamp {
        match self {
            Self::Server { ahead } => {
                Timestamp::from_millis(host_millis().saturating_add(ahead.load(Ordering::Relaxed)))
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

fn host_millis() -> i64 {
    let millis = |since: Duration| i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => millis(since),
        Err(before) => millis(before.duration()).saturating_neg(),
    }
}
