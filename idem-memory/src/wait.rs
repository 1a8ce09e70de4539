//! Waiting for an attempt to be over.

use std::{pin::pin, time::Duration};

use idem_core::{AttemptId, Snapshot, State, StoreError};
use tokio::time::{Instant, timeout_at};

use crate::records::Records;

/// The least time between two looks for a record that is about to expire.
const LEAST_PAUSE: Duration = Duration::from_millis(10);

/// Waits until `seen` is no longer in progress, for `at_most`; then reads the record. Whoever ends an attempt wakes
/// those who wait in its shard: there is nothing per waiter, so nothing stays when one is dropped.
pub(crate) async fn wait(
    records: &Records,
    name: &str,
    seen: AttemptId,
    at_most: Duration,
) -> Result<Option<Snapshot>, StoreError> {
    let deadline = Instant::now().checked_add(at_most);
    loop {
        // Listening begins before the look, so that nothing is missed between the two.
        let mut changed = pin!(records.changed(name).notified());
        changed.as_mut().enable();
        let (found, now) = records.read("wait", name)?;
        let Some(record) = found else {
            return Ok(None);
        };
        let is_over = record.state != State::InProgress || record.attempt() != seen;
        let looked = Instant::now();
        if is_over || deadline.is_some_and(|deadline| looked >= deadline) {
            return Ok(Some(Snapshot { record, now }));
        }
        // Nobody says when a record expires.
        let expires = looked.checked_add(record.expiry.since(now).max(LEAST_PAUSE));
        match [deadline, expires].into_iter().flatten().min() {
            Some(until) => drop(timeout_at(until, changed).await),
            None => changed.await,
        }
    }
}
