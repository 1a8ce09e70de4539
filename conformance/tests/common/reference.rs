//! The reference store: the machine under one lock.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use idem_conformance::{Harness, Place};
use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Key, Lapsed, ManualClock, Owner, Record, Resolve,
    Response, Retention, Scope, Snapshot, State, Store, StoreError, Timestamp,
};
use tokio::sync::Notify;

use super::{Rules, rules::Slot};

type Records = BTreeMap<(Scope, Key), Record>;

/// What all handles share. It stays as long as the place, which makes the store durable as far as a test can tell.
pub(crate) struct Kept {
    records: Mutex<Records>,
    changed: Notify,
    clock: ManualClock,
}

/// A handle.
pub(crate) struct Reference<R> {
    kept: Arc<Kept>,
    rules: R,
}

impl<R: Rules> Reference<R> {
    pub(crate) fn open(place: &Place) -> Self {
        let kept =
            place.shared(|| Arc::new(Kept { records: Mutex::default(), changed: Notify::new(), clock: place.clock() }));
        Self { kept: Arc::clone(&kept), rules: R::default() }
    }

    pub(crate) fn harness() -> Harness {
        let harness = Harness::new(async |place: Place| Ok::<_, String>(Self::open(&place)));
        if R::KEEPS { harness.durable() } else { harness }
    }

    fn now(&self) -> Timestamp {
        self.rules.now(&self.kept.clock)
    }

    /// Finds, decides and writes, in one step unless the rules say otherwise.
    async fn with<T>(&self, scope: &Scope, key: &Key, decide: impl FnOnce(&R, &mut Slot, Timestamp) -> T) -> T {
        let id = self.rules.id(scope, key);
        let answer = if R::GAP {
            let mut slot = self.kept.records.lock().unwrap().get(&id).cloned();
            tokio::task::yield_now().await;
            let answer = decide(&self.rules, &mut slot, self.now());
            put(&mut self.kept.records.lock().unwrap(), id, slot);
            answer
        } else {
            let mut records = self.kept.records.lock().unwrap();
            let mut slot = records.get(&id).cloned();
            let answer = decide(&self.rules, &mut slot, self.now());
            put(&mut records, id, slot);
            answer
        };
        self.kept.changed.notify_waiters();
        answer
    }
}

fn put(records: &mut Records, id: (Scope, Key), slot: Slot) {
    match slot {
        Some(record) => records.insert(id, record),
        None => records.remove(&id),
    };
}

#[async_trait]
impl<R: Rules> Store for Reference<R> {
    fn backend(&self) -> &'static str {
        "reference"
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        self.with(claim.scope(), claim.key(), |rules, slot, now| rules.claim(slot, claim, now)).await
    }

    async fn complete(
        &self,
        owner: &Owner,
        response: &Response,
        retention: Retention,
    ) -> Result<Fenced<Response>, StoreError> {
        let decide = |rules: &R, slot: &mut Slot, now| rules.complete(slot, owner, response, retention, now);
        Ok(self.with(owner.scope(), owner.key(), decide).await)
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        Ok(self.with(owner.scope(), owner.key(), |rules, slot, now| rules.release(slot, owner, now)).await)
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        Ok(self.with(owner.scope(), owner.key(), |rules, slot, now| rules.forget(slot, owner, now)).await)
    }

    async fn hold(&self, owner: &Owner, retention: Retention) -> Result<Fenced<()>, StoreError> {
        Ok(self.with(owner.scope(), owner.key(), |rules, slot, now| rules.hold(slot, owner, retention, now)).await)
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        Ok(self.with(owner.scope(), owner.key(), |rules, slot, now| rules.renew(slot, owner, lease, now)).await)
    }

    async fn checkpoint(&self, owner: &Owner, checkpoint: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        let decide = |rules: &R, slot: &mut Slot, now| rules.checkpoint(slot, owner, checkpoint, now);
        Ok(self.with(owner.scope(), owner.key(), decide).await)
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        Ok(self.with(resolve.scope(), resolve.key(), |rules, slot, now| rules.resolve(slot, resolve, now)).await)
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        let records = self.kept.records.lock().unwrap();
        let now = self.now();
        let record = records.get(&self.rules.id(scope, key)).filter(|record| record.is_live(now)).cloned();
        Ok(record.map(|record| Snapshot { record, now }))
    }

    async fn wait(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
    ) -> Result<Option<Snapshot>, StoreError> {
        let changed = async {
            loop {
                let notified = self.kept.changed.notified();
                let mut notified = std::pin::pin!(notified);
                notified.as_mut().enable();
                match self.read(scope, key).await? {
                    Some(Snapshot { record, .. }) if record.attempt() == seen && record.state == State::InProgress => {}
                    other => return Ok(other),
                }
                notified.await;
            }
        };
        match tokio::time::timeout(at_most, changed).await {
            Ok(found) => found,
            Err(_) => self.read(scope, key).await,
        }
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        let mut records = self.kept.records.lock().unwrap();
        let now = self.now();
        let expired = records.iter().filter(|(_, record)| self.rules.is_swept(record, now));
        let expired: Vec<_> = expired.map(|(id, _)| id.clone()).take(limit.get()).collect();
        records.retain(|id, _| !expired.contains(id));
        Ok(expired.len())
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        let records = self.kept.records.lock().unwrap();
        let now = self.now();
        let behind = records.iter().filter(|((scope, key), _)| after.is_none_or(|after| (scope, key) > after));
        let waits = |record: &Record| record.is_live(now) && (record.state == State::Held || record.is_lapsed(now));
        let waiting = behind.filter(|(_, record)| waits(record)).take(limit.get());
        let lapsed = waiting.map(|((scope, key), record)| Lapsed {
            scope: scope.clone(),
            key: key.clone(),
            record: record.clone(),
        });
        Ok(lapsed.collect())
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        let mut records = self.kept.records.lock().unwrap();
        let purged = records.keys().filter(|id| self.rules.is_purged(&id.0, scope));
        let purged: Vec<_> = purged.cloned().take(limit.get()).collect();
        records.retain(|id, _| !purged.contains(id));
        drop(records);
        self.kept.changed.notify_waiters();
        Ok(purged.len())
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
