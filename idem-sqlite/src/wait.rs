//! Waiting until an attempt is no longer in progress.

use std::{
    hash::{BuildHasher, RandomState},
    pin::pin,
    time::Duration,
};

use idem_core::{AttemptId, Key, Scope, Snapshot, State, StoreError};
use tokio::{
    sync::{Notify, futures::Notified},
    time::{Instant, timeout},
};

/// How often a wait looks by itself, for what other handles, other processes and callers' transactions wrote.
const POLL: Duration = Duration::from_millis(50);

/// Bells, more than there will be busy records at a time. Records that share one wake each other's waits, which then
/// look and go on waiting.
const BELLS: usize = 1024;

/// Who waits for the writes of one handle. A fixed number of bells, so a wait that is dropped leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Waiters {
    bells: Box<[Notify]>,
    hasher: RandomState,
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Self { bells: (0..BELLS).map(|_| Notify::new()).collect(), hasher: RandomState::new() }
    }

    pub(crate) fn wake(&self, scope: &Scope, key: &Key) {
        self.bell(scope, key).notify_waiters();
    }

    pub(crate) fn wake_everybody(&self) {
        self.bells.iter().for_each(Notify::notify_waiters);
    }

    fn bell(&self, scope: &Scope, key: &Key) -> &Notify {
        let hash = self.hasher.hash_one((scope, key));
        &self.bells[(hash % BELLS as u64) as usize]
    }

    /// Waits until the `seen` attempt is not in progress on the record, for `at_most`; `read` reads it.
    pub(crate) async fn wait<R>(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
        read: impl Fn() -> R,
    ) -> Result<Option<Snapshot>, StoreError>
    where
        R: Future<Output = Result<Option<Snapshot>, StoreError>>,
    {
        let end = Instant::now().checked_add(at_most);
        loop {
            // Listens first and looks then, or what happens in between would be missed.
            let mut woken = pin!(self.bell(scope, key).notified());
            Notified::enable(woken.as_mut());
            let snapshot = read().await?;
            let left = end.map_or(POLL, |end| end.saturating_duration_since(Instant::now()));
            if !is_in_progress(snapshot.as_ref(), seen) || left.is_zero() {
                return Ok(snapshot);
            }
            // Either way the next step is to look.
            let _ = timeout(left.min(POLL), woken).await;
        }
    }
}

fn is_in_progress(snapshot: Option<&Snapshot>, seen: AttemptId) -> bool {
    snapshot.is_some_and(|found| found.record.state == State::InProgress && found.record.attempt() == seen)
}
