//! The records, in shards of one lock each.

use std::{
    collections::{BTreeSet, HashMap},
    hash::{BuildHasher, RandomState},
    num::NonZeroUsize,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use idem_core::{Key, Record, Scope, State, StoreError, StoreErrorKind, Timestamp, machine::Decision};
use tokio::sync::Notify;

use crate::{clock::Clock, store::BACKEND};

/// Enough that two of a few dozen threads rarely meet at one lock.
const SHARDS: usize = 64;

/// How many expired records a claim of a new key takes along: more than one, so that they leave faster than new ones
/// come.
const TAKEN_ALONG: usize = 2;

/// Maps smaller than this are not worth shrinking.
const SMALL_MAP: usize = 64;

pub(crate) struct Records {
    shards: Box<[Shard]>,
    hasher: RandomState,
    clock: Clock,
    /// How many records the shards hold together. Raised before a record is put in, so that it never exceeds the limit.
    count: AtomicUsize,
    limit: NonZeroUsize,
}

/// Stands between scope and key. Neither may hold a control character, so two names never become one; and it sorts before
/// all that they may hold, so that names have the order of scope, then key.
const BETWEEN: char = '\0';

/// Where a record lives: a function of scope and key. One string, since a record has one and most records are small.
pub(crate) fn name(scope: &Scope, key: &Key) -> String {
    let (scope, key) = (scope.as_str(), key.as_str());
    let mut name = String::with_capacity(scope.len() + BETWEEN.len_utf8() + key.len());
    name.push_str(scope);
    name.push(BETWEEN);
    name.push_str(key);
    name
}

/// The scope and the key of a name.
pub(crate) fn parts(name: &str) -> (&str, &str) {
    name.split_once(BETWEEN).unwrap_or((name, ""))
}

/// What an operation came to.
pub(crate) struct Outcome<A> {
    pub(crate) answer: A,
    /// The record that it found. It may have expired.
    pub(crate) found: Option<Record>,
    /// The record that it wrote.
    pub(crate) written: Option<Record>,
    /// When it was decided.
    pub(crate) now: Timestamp,
}

impl Records {
    pub(crate) fn new(limit: NonZeroUsize, clock: Clock) -> Self {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Self { shards, hasher: RandomState::new(), clock, count: AtomicUsize::new(0), limit }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> NonZeroUsize {
        self.limit
    }

    /// Finds the record, decides by `rule` and writes, in one step.
    pub(crate) fn decide<A>(
        &self,
        operation: &'static str,
        name: &str,
        rule: impl Fn(Option<&Record>, Timestamp) -> Result<Decision<A>, StoreError>,
    ) -> Result<Outcome<A>, StoreError> {
        loop {
            if let Some(outcome) = self.try_decide(operation, name, &rule)? {
                return Ok(outcome);
            }
            if self.sweep(usize::MAX) == 0 && self.count() >= self.limit.get() {
                let message = format!(
                    "the store is full: it holds {} live records; raise max_records, or let retention be shorter",
                    self.limit
                );
                return Err(StoreError::new(StoreErrorKind::Unavailable, BACKEND, operation, message));
            }
        }
    }

    /// As [`decide`](Self::decide); nothing if the record to write is a new one and the store is full.
    fn try_decide<A>(
        &self,
        operation: &'static str,
        name: &str,
        rule: impl Fn(Option<&Record>, Timestamp) -> Result<Decision<A>, StoreError>,
    ) -> Result<Option<Outcome<A>>, StoreError> {
        let shard = self.shard(name);
        let mut entries = shard.lock();
        // Under the lock, so that no record was written at an instant later than this.
        let now = self.clock.now();
        let found = entries.find(name).map_err(|error| StoreError::undecodable(BACKEND, operation, error))?;
        let Decision { answer, write } = rule(found.as_ref(), now)?;
        let Some(record) = write else {
            return Ok(Some(Outcome { answer, found, written: None, now }));
        };
        if found.is_none() {
            if !self.take_place() {
                return Ok(None);
            }
            self.give_places(entries.reclaim(now, TAKEN_ALONG));
        }
        entries.put(name, &record);
        drop(entries);
        let goes_on = record.state == State::InProgress
            && found
                .as_ref()
                .is_some_and(|found| found.state == State::InProgress && found.attempt() == record.attempt());
        if !goes_on {
            shard.changed.notify_waiters();
        }
        Ok(Some(Outcome { answer, found, written: Some(record), now }))
    }

    /// The live record, and when it was judged.
    pub(crate) fn read(&self, operation: &'static str, name: &str) -> Result<(Option<Record>, Timestamp), StoreError> {
        let entries = self.shard(name).lock();
        let now = self.clock.now();
        let found = entries.find(name);
        drop(entries);
        let found = found.map_err(|error| StoreError::undecodable(BACKEND, operation, error))?;
        Ok((found.filter(|record| record.is_live(now)), now))
    }

    /// Told whenever an attempt on a record beside or under this name is over.
    pub(crate) fn changed(&self, name: &str) -> &Notify {
        &self.shard(name).changed
    }

    /// Removes up to `limit` expired records and says how many.
    pub(crate) fn sweep(&self, limit: usize) -> usize {
        let mut left = limit;
        for shard in &self.shards {
            let mut entries = shard.lock();
            let removed = entries.reclaim(self.clock.now(), left);
            drop(entries);
            self.removed(shard, removed);
            left -= removed;
            if left == 0 {
                break;
            }
        }
        limit - left
    }

    /// Removes up to `limit` live records of the scope and says how many. Expired ones that it meets leave uncounted,
    /// since they are absent already.
    pub(crate) fn purge(&self, scope: &Scope, limit: usize) -> usize {
        let mut left = limit;
        for shard in &self.shards {
            let (live, all) = shard.lock().purge(scope, self.clock.now(), left);
            self.removed(shard, all);
            left -= live;
            if left == 0 {
                break;
            }
        }
        limit - left
    }

    /// Every live record that `wanted` takes, with its name.
    pub(crate) fn select(
        &self,
        operation: &'static str,
        mut wanted: impl FnMut(&str, &Record, Timestamp) -> bool,
    ) -> Result<Vec<(Arc<str>, Record)>, StoreError> {
        let mut selected = Vec::new();
        for shard in &self.shards {
            let entries = shard.lock();
            let now = self.clock.now();
            for (name, entry) in &entries.by_name {
                let record = Record::decode(entry.bytes.clone())
                    .map_err(|error| StoreError::undecodable(BACKEND, operation, error))?;
                if record.is_live(now) && wanted(name, &record, now) {
                    selected.push((name.clone(), record));
                }
            }
        }
        Ok(selected)
    }

    fn shard(&self, name: &str) -> &Shard {
        // The number of shards is far below 2^32: nothing is lost.
        &self.shards[self.hasher.hash_one(name) as usize % SHARDS]
    }

    /// Takes a place for one record, if there is one.
    fn take_place(&self) -> bool {
        let one_more = |count| (count < self.limit.get()).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    fn give_places(&self, places: usize) {
        self.count.fetch_sub(places, Ordering::Relaxed);
    }

    fn removed(&self, shard: &Shard, records: usize) {
        if records > 0 {
            self.give_places(records);
            shard.changed.notify_waiters();
        }
    }
}

#[derive(Default)]
struct Shard {
    entries: Mutex<Entries>,
    changed: Notify,
}

impl Shard {
    /// A panic under the lock spreads no further: each write is the last thing that happens under it.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct Entries {
    by_name: HashMap<Arc<str>, Entry>,
    /// One entry for each record, at its expiry or before it: records that expire later are filed again only when
    /// their turn comes, since most never expire at the instant that they were first filed under.
    by_expiry: BTreeSet<(Timestamp, Arc<str>)>,
}

/// A record. It is kept encoded: that takes half the room, and holds on to no buffer that its parts were cut from.
struct Entry {
    bytes: Bytes,
    expiry: Timestamp,
    /// Where it is in `by_expiry`: never later than its expiry.
    filed: Timestamp,
}

impl Entries {
    fn find(&self, name: &str) -> Result<Option<Record>, idem_core::DecodeError> {
        self.by_name.get(name).map(|entry| Record::decode(entry.bytes.clone())).transpose()
    }

    fn put(&mut self, name: &str, record: &Record) {
        let bytes = Bytes::from(record.encode().into_boxed_slice());
        let expiry = record.expiry;
        match self.by_name.get_mut(name) {
            Some(entry) => {
                entry.bytes = bytes;
                entry.expiry = expiry;
                if expiry < entry.filed
                    && let Some((_, name)) = self.by_expiry.take(&(entry.filed, name.into()))
                {
                    self.by_expiry.insert((expiry, name));
                    entry.filed = expiry;
                }
            }
            None => {
                let name = Arc::<str>::from(name);
                self.by_expiry.insert((expiry, name.clone()));
                self.by_name.insert(name, Entry { bytes, expiry, filed: expiry });
            }
        }
    }

    /// Removes up to `limit` records that expired, the longest expired first, and says how many.
    fn reclaim(&mut self, now: Timestamp, limit: usize) -> usize {
        let mut removed = 0;
        while removed < limit
            && let Some((filed, _)) = self.by_expiry.first()
            && *filed <= now
            && let Some((_, name)) = self.by_expiry.pop_first()
        {
            match self.by_name.get_mut(&name) {
                Some(entry) if now < entry.expiry => {
                    entry.filed = entry.expiry;
                    self.by_expiry.insert((entry.expiry, name));
                }
                _ => {
                    self.by_name.remove(&name);
                    removed += 1;
                }
            }
        }
        self.shrink();
        removed
    }

    /// Removes records of the scope until `limit` live ones have left. Says how many live ones did, and how many in all.
    fn purge(&mut self, scope: &Scope, now: Timestamp, limit: usize) -> (usize, usize) {
        let mut live = 0;
        let mut doomed = Vec::new();
        for (name, entry) in self.by_name.iter().filter(|(name, _)| parts(name).0 == scope.as_str()) {
            if live == limit {
                break;
            }
            live += usize::from(now < entry.expiry);
            doomed.push((entry.filed, name.clone()));
        }
        for filed in &doomed {
            self.by_expiry.remove(filed);
            self.by_name.remove(&filed.1);
        }
        self.shrink();
        (live, doomed.len())
    }

    /// Gives room back that a wave of records has left.
    fn shrink(&mut self) {
        if self.by_name.capacity() > SMALL_MAP.max(self.by_name.len() * 4) {
            self.by_name.shrink_to(self.by_name.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests;
