//! Waiting until an attempt is no longer in progress.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use idem_core::{AttemptId, Key, Scope, Snapshot, State, StoreError};
use tokio::{
    sync::{Notify, futures::Notified},
    time::{Instant, timeout},
};

/// How often a wait looks by itself. Writes ring; what nobody rings for is a record that expires.
const POLL: Duration = Duration::from_millis(100);

/// More than there will be busy records at a time. Records that share a bell wake each other's waits, which then look and
/// go on waiting.
const BELLS: usize = 512;

/// Rung after each commit for the records that it changed. A fixed number of them, so that a wait that is dropped leaves
/// nothing behind.
#[derive(Debug)]
pub(crate) struct Bells {
    bells: Box<[Notify]>,
    hasher: RandomState,
}

/// Which bell is a record's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bell(usize);

impl Bells {
    pub(crate) fn new() -> Self {
        Self { bells: (0..BELLS).map(|_| Notify::new()).collect(), hasher: RandomState::new() }
    }

    pub(crate) fn of(&self, scope: &str, key: &str) -> Bell {
        Bell((self.hasher.hash_one((scope, key)) % BELLS as u64) as usize) // below 512: nothing is lost
    }

    pub(crate) fn ring(&self, bell: Bell) {
        self.bells[bell.0].notify_waiters();
    }

    fn listen(&self, scope: &Scope, key: &Key) -> Notified<'_> {
        self.bells[self.of(scope.as_str(), key.as_str()).0].notified()
    }

    /// Waits until the `seen` attempt is not in progress on the record, for `at_most`; `read` reads it.
    pub(crate) async fn wait<R>(
        &self,
        (scope, key): (&Scope, &Key),
        seen: AttemptId,
        at_most: Duration,
        read: impl Fn() -> R,
    ) -> Result<Option<Snapshot>, StoreError>
    where
        R: Future<Output = Result<Option<Snapshot>, StoreError>>,
    {
        let end = Instant::now().checked_add(at_most);
        loop {
            // Listens first (from here on, awaited or not) and looks then, or what happens in between would be missed.
            let rung = self.listen(scope, key);
            let found = read().await?;
            let left = end.map_or(POLL, |end| end.saturating_duration_since(Instant::now()));
            if !is_in_progress(found.as_ref(), seen) || left.is_zero() {
                return Ok(found);
            }
            // Either way the next step is to look.
            let _ = timeout(left.min(POLL), rung).await;
        }
    }
}

fn is_in_progress(found: Option<&Snapshot>, seen: AttemptId) -> bool {
    found.is_some_and(|found| found.record.state == State::InProgress && found.record.attempt() == seen)
}
