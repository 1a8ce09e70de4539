//! The reference store: the machine under one lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    marker::PhantomData,
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use idem_conformance::{Harness, Place};
use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Key, Lapsed, ManualClock, Owner, Record, Resolve,
    Response, Retention, Scope, Snapshot, State, Store, StoreError, Timestamp,
};
use tokio::{sync::Notify, task::yield_now};

use super::{
    Marks, Rules,
    rules::{Gap, Slot},
};

type Id = (Scope, Key);

/// What all handles share. It stays as long as the place, which makes the store durable as far as a test can tell.
pub(crate) struct Kept<R> {
    pub(super) shelf: Mutex<Shelf<R>>,
    changed: Notify,
    clock: ManualClock,
    start: Timestamp,
    handles: AtomicUsize,
    marks: Mutex<BTreeSet<Id>>,
}

/// A handle.
pub(crate) struct Reference<R: Rules> {
    pub(super) kept: Arc<Kept<R>>,
    pub(super) rules: R,
    /// What it has read, where it keeps that.
    cache: Mutex<BTreeMap<Id, Record>>,
}

impl<R: Rules> Reference<R> {
    pub(crate) fn open(place: &Place) -> Self {
        let kept = place.shared(|| {
            Arc::new(Kept::<R> {
                shelf: Mutex::default(),
                changed: Notify::new(),
                clock: place.clock(),
                start: place.clock().now(),
                handles: AtomicUsize::new(0),
                marks: Mutex::default(),
            })
        });
        kept.handles.fetch_add(1, Ordering::SeqCst);
        Self { kept: Arc::clone(&kept), rules: R::default(), cache: Mutex::default() }
    }

    pub(crate) fn harness() -> Harness {
        Harness::new(async |place: Place| Ok::<_, String>(Self::open(&place))).durable()
    }

    pub(super) fn now(&self) -> Timestamp {
        if !R::RUNS {
            return self.rules.now(&self.kept.clock);
        }
        let host = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let host = Timestamp::from_millis(i64::try_from(host.as_millis()).unwrap());
        host.after(self.kept.clock.now().since(self.kept.start))
    }

    /// The store's clock at a place.
    pub(crate) fn clock_at(place: &Place) -> Timestamp {
        Self::open(place).now()
    }

    /// Finds, decides and writes, in one step unless the rules say otherwise.
    async fn with<T>(
        &self,
        operation: &str,
        scope: &Scope,
        key: &Key,
        decide: impl FnOnce(&R, &mut Slot, Timestamp) -> T,
    ) -> T {
        let id = self.rules.id(scope, key);
        pause(R::YIELDS).await;
        self.cache.lock().unwrap().remove(&id);
        let found = self.kept.shelf.lock().unwrap().get(&id);
        let gap = match R::GAP {
            Gap::None | Gap::Torn => false,
            Gap::Always | Gap::Short => true,
            Gap::OnLapse => found.as_ref().is_some_and(|found| found.is_lapsed(self.now())),
            Gap::OnRepeat => {
                let goes_on = |found: &Record| found.state == State::InProgress && !found.is_lapsed(self.now());
                operation == "claim" && found.as_ref().is_some_and(goes_on)
            }
            Gap::In(name) => operation == name,
        };
        let answer = if gap {
            let mut slot = found.clone();
            match R::GAP {
                Gap::Short => std::thread::yield_now(),
                _ => yield_now().await,
            }
            let answer = decide(&self.rules, &mut slot, self.now());
            if slot != found {
                self.kept.shelf.lock().unwrap().put(id, slot);
            }
            answer
        } else if R::GAP == Gap::Torn {
            let mut slot = found.clone();
            let answer = decide(&self.rules, &mut slot, self.now());
            if slot != found {
                self.put_in_pieces(id, slot).await;
            }
            answer
        } else {
            let mut shelf = self.kept.shelf.lock().unwrap();
            let mut slot = shelf.get(&id);
            let answer = decide(&self.rules, &mut slot, self.now());
            shelf.put(id, slot);
            answer
        };
        self.kept.changed.notify_waiters();
        pause(R::YIELDS).await;
        answer
    }

    /// Writes who owns the record, and then how far it is.
    async fn put_in_pieces(&self, id: Id, slot: Slot) {
        let of_both = |owner: &Record, state: &Record| Record {
            state: state.state.clone(),
            settled: state.settled,
            checkpoints: state.checkpoints.clone(),
            ..owner.clone()
        };
        let Some(record) = slot else { return self.kept.shelf.lock().unwrap().put(id, None) };
        {
            let mut shelf = self.kept.shelf.lock().unwrap();
            let before = shelf.get(&id).unwrap_or_else(|| record.clone());
            shelf.put(id.clone(), Some(of_both(&record, &before)));
        }
        yield_now().await;
        let mut shelf = self.kept.shelf.lock().unwrap();
        let owner = shelf.get(&id).unwrap_or_else(|| record.clone());
        shelf.put(id, Some(of_both(&owner, &record)));
    }

    /// Marks a record for as long as the value lives; none if another operation has marked it.
    fn mark(&self, id: Id) -> Option<Mark<'_, R>> {
        let is_new = self.kept.marks.lock().unwrap().insert(id.clone());
        is_new.then_some(Mark { kept: &self.kept, id, is_done: false })
    }

    /// The same as [`Reference::with`], on a record that is marked meanwhile.
    async fn marked<T>(
        &self,
        operation: &str,
        scope: &Scope,
        key: &Key,
        decide: impl FnOnce(&R, &mut Slot, Timestamp) -> T,
    ) -> T {
        if R::MARKS == Marks::None {
            return self.with(operation, scope, key, decide).await;
        }
        let mut mark = loop {
            match self.mark((scope.clone(), key.clone())) {
                Some(mark) => break mark,
                None => yield_now().await,
            }
        };
        yield_now().await;
        let answer = self.with(operation, scope, key, decide).await;
        mark.is_done = true;
        answer
    }
}

impl<R: Rules> Drop for Reference<R> {
    fn drop(&mut self) {
        if self.kept.handles.fetch_sub(1, Ordering::SeqCst) == 1 && R::LAZY {
            self.kept.shelf.lock().unwrap().undo();
        }
    }
}

async fn pause(times: usize) {
    for _ in 0..times {
        yield_now().await;
    }
}

struct Mark<'a, R: Rules> {
    kept: &'a Kept<R>,
    id: Id,
    is_done: bool,
}

impl<R: Rules> Drop for Mark<'_, R> {
    fn drop(&mut self) {
        if self.is_done || R::MARKS == Marks::Guarded {
            self.kept.marks.lock().unwrap().remove(&self.id);
        }
    }
}

/// Where records are kept: one map, or two with a piece of each record's bytes in each.
pub(super) struct Shelf<R> {
    records: BTreeMap<Id, Record>,
    heads: BTreeMap<Id, Vec<u8>>,
    tails: BTreeMap<Id, Vec<u8>>,
    /// What the last write replaced.
    replaced: Option<(Id, Slot)>,
    pub(super) rows: Vec<String>,
    rules: PhantomData<R>,
}

impl<R> Default for Shelf<R> {
    fn default() -> Self {
        Self {
            records: BTreeMap::new(),
            heads: BTreeMap::new(),
            tails: BTreeMap::new(),
            replaced: None,
            rows: Vec::new(),
            rules: PhantomData,
        }
    }
}

impl<R: Rules> Shelf<R> {
    pub(super) fn get(&self, id: &Id) -> Slot {
        if !R::PIECES {
            return self.records.get(id).cloned();
        }
        let bytes = [self.heads.get(id)?.as_slice(), self.tails.get(id)?.as_slice()].concat();
        Some(Record::decode(bytes).unwrap())
    }

    pub(super) fn put(&mut self, id: Id, slot: Slot) {
        let before = self.get(&id);
        if before != slot {
            self.replaced = Some((id.clone(), before));
        }
        match slot {
            Some(record) if R::PIECES => {
                let mut head = record.encode();
                let tail = head.split_off(head.len() / 2);
                self.heads.insert(id.clone(), head);
                self.tails.insert(id, tail);
            }
            Some(record) => drop(self.records.insert(id, record)),
            None => {
                self.records.remove(&id);
                self.heads.remove(&id);
                self.tails.remove(&id);
            }
        }
    }

    fn undo(&mut self) {
        if let Some((id, slot)) = self.replaced.take() {
            self.put(id, slot);
        }
    }

    /// Every record, in the order of scope and key.
    fn all(&self) -> Vec<(Id, Record)> {
        let ids = self.records.keys().chain(self.heads.keys());
        ids.filter_map(|id| Some((id.clone(), self.get(id)?))).collect()
    }
}

#[async_trait]
impl<R: Rules> Store for Reference<R> {
    fn backend(&self) -> &'static str {
        "reference"
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        let decide = |rules: &R, slot: &mut Slot, now| rules.claim(slot, claim, now);
        if R::MARKS == Marks::None {
            return self.with("claim", claim.scope(), claim.key(), decide).await;
        }
        let Some(mut mark) = self.mark((claim.scope().clone(), claim.key().clone())) else {
            return Ok(ClaimRow::Busy { seen: None });
        };
        yield_now().await;
        let row = self.with("claim", claim.scope(), claim.key(), decide).await;
        mark.is_done = true;
        row
    }

    async fn complete(
        &self,
        owner: &Owner,
        response: &Response,
        retention: Retention,
    ) -> Result<Fenced<Response>, StoreError> {
        let decide = |rules: &R, slot: &mut Slot, now| rules.complete(slot, owner, response, retention, now);
        Ok(self.marked("complete", owner.scope(), owner.key(), decide).await)
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        Ok(self.marked("release", owner.scope(), owner.key(), |rules, slot, now| rules.release(slot, owner, now)).await)
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        Ok(self.marked("forget", owner.scope(), owner.key(), |rules, slot, now| rules.forget(slot, owner, now)).await)
    }

    async fn hold(&self, owner: &Owner, retention: Retention) -> Result<Fenced<()>, StoreError> {
        Ok(self
            .marked("hold", owner.scope(), owner.key(), |rules, slot, now| rules.hold(slot, owner, retention, now))
            .await)
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        Ok(self
            .marked("renew", owner.scope(), owner.key(), |rules, slot, now| rules.renew(slot, owner, lease, now))
            .await)
    }

    async fn checkpoint(&self, owner: &Owner, checkpoint: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        let decide = |rules: &R, slot: &mut Slot, now| rules.checkpoint(slot, owner, checkpoint, now);
        Ok(self.marked("checkpoint", owner.scope(), owner.key(), decide).await)
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        Ok(self
            .marked("resolve", resolve.scope(), resolve.key(), |rules, slot, now| rules.resolve(slot, resolve, now))
            .await)
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        pause(R::YIELDS).await;
        let shelf = self.kept.shelf.lock().unwrap();
        let (now, id) = (self.now(), self.rules.id(scope, key));
        let mut cache = self.cache.lock().unwrap();
        let cached = cache.get(&id).filter(|_| R::CACHES).cloned();
        let record = cached.or_else(|| shelf.get(&id)).filter(|record| record.is_live(now));
        if let Some(record) = &record {
            cache.insert(id, record.clone());
        }
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
                    Some(Snapshot { record, now })
                        if record.attempt() == seen
                            && record.state == State::InProgress
                            && self.rules.is_waited_for(&record, now) => {}
                    other => return Ok(other),
                }
                if R::MISSES_WAKE_UPS {
                    tokio::time::sleep(Duration::from_millis(1)).await; // on the way to where it is woken from
                    self.kept.changed.notified().await;
                } else {
                    notified.await;
                }
            }
        };
        match tokio::time::timeout(at_most, changed).await {
            Ok(found) => found,
            Err(_) => self.read(scope, key).await,
        }
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        let find = |shelf: &Shelf<R>| -> Vec<_> {
            let now = self.now();
            let swept = shelf.all().into_iter().filter(|(_, record)| self.rules.is_swept(record, now));
            swept.take(limit.get()).collect()
        };
        let found = find(&self.kept.shelf.lock().unwrap());
        pause(if R::SWEEPS_LATE { 3 } else { 0 }).await;
        let mut shelf = self.kept.shelf.lock().unwrap();
        let swept = if R::SWEEPS_LATE { found } else { find(&shelf) };
        for (id, _) in &swept {
            shelf.put(id.clone(), None);
        }
        Ok(swept.len())
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        let shelf = self.kept.shelf.lock().unwrap();
        let now = self.now();
        let mut all = shelf.all();
        all.sort_by_key(|(id, _)| self.rules.rank(id));
        let after = after.map(|(scope, key)| self.rules.rank(&(scope.clone(), key.clone())));
        let behind = all.into_iter().filter(|(id, _)| after.as_ref().is_none_or(|after| self.rules.rank(id) > *after));
        let waits = |record: &Record| record.is_live(now) && (record.state == State::Held || record.is_lapsed(now));
        let waiting = behind.filter(|(_, record)| waits(record)).take(limit.get());
        Ok(waiting.map(|((scope, key), record)| Lapsed { scope, key, record }).collect())
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        let find = |shelf: &Shelf<R>| -> Vec<_> {
            let purged = shelf.all().into_iter().filter(|(id, _)| self.rules.is_purged(&id.0, scope));
            purged.take(limit.get()).collect()
        };
        let seen = find(&self.kept.shelf.lock().unwrap());
        pause(if R::PURGES_WHAT_IT_SAW { 1 } else { 0 }).await;
        let mut shelf = self.kept.shelf.lock().unwrap();
        let purged = match R::PURGES_WHAT_IT_SAW {
            true => seen.into_iter().filter(|(id, record)| shelf.get(id).as_ref() == Some(record)).collect(),
            false => find(&shelf),
        };
        for (id, _) in &purged {
            shelf.put(id.clone(), None);
        }
        drop(shelf);
        self.kept.changed.notify_waiters();
        Ok(purged.len())
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
