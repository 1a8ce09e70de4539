//! Looking again at something that is about to change.

use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};
use tokio::time::{Instant, sleep};

use crate::error::store_error;

/// Pauses between looks at something that is about to change: none, then longer and longer ones, up to 50 ms.
pub(crate) struct Pauses {
    end: Instant,
    next: Duration,
}

impl Pauses {
    pub(crate) fn until(end: Instant) -> Self {
        Self { end, next: Duration::ZERO }
    }

    /// Waits a little. False if the time is over.
    pub(crate) async fn pause(&mut self) -> bool {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        if !self.next.is_zero() {
            sleep(self.next.min(left)).await;
        }
        self.next = (2 * self.next).clamp(Duration::from_millis(1), Duration::from_millis(50));
        true
    }
}

pub(crate) fn changing(operation: &'static str) -> StoreError {
    let message = "the record kept changing, or stayed locked by something else, until the time limit";
    store_error(StoreErrorKind::Unavailable, operation, message)
}
