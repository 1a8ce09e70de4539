//! A store in a file, which processes share: read, decided and written whole under a lock of the system's.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    marker::PhantomData,
    num::NonZeroUsize,
    path::PathBuf,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use idem_conformance::{End, Harness, Place, Transactions};
use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Completion, Fenced, Key, Lapsed, ManualClock, Owner, Record,
    Resolve, Response, Retention, Scope, Snapshot, State, Store, StoreError, Timestamp, TokenReused,
    machine::{self, Decision},
};

/// What can be wrong with it.
pub(crate) trait Ways: Send + Sync + 'static {
    /// Whether others wait while one reads, decides and writes.
    const LOCKS: bool = true;
    /// Whether a record is written in one step.
    const AT_ONCE: bool = true;
    /// Whether the business row is written together with the record.
    const TOGETHER: bool = true;
}

pub(crate) struct RightWays;
impl Ways for RightWays {}

/// How long what is done in two steps takes from the one to the other.
const SLOW: Duration = Duration::from_millis(3);

pub(crate) struct FileStore<W> {
    dir: PathBuf,
    clock: ManualClock,
    ways: PhantomData<W>,
}

/// All that the file has.
#[derive(Default)]
struct Content {
    records: BTreeMap<(Scope, Key), Record>,
    rows: Vec<String>,
}

impl<W: Ways> FileStore<W> {
    fn open(place: &Place) -> Self {
        Self { dir: place.dir().to_owned(), clock: place.clock(), ways: PhantomData }
    }

    pub(crate) fn harness() -> Harness {
        Harness::new(async |place: Place| Ok::<_, String>(Self::open(&place)))
            .durable()
            .shared_between_processes::<&str, &str>([])
            .transactions(RowsBeside::<W>(PhantomData))
    }

    /// Whether others have the lock until this is dropped, or nobody.
    fn lock(&self) -> Option<File> {
        if !W::LOCKS {
            return None;
        }
        let file = File::options().create(true).truncate(false).write(true).open(self.dir.join("lock")).unwrap();
        file.lock().unwrap();
        Some(file)
    }

    fn load(&self) -> Content {
        let Ok(bytes) = fs::read(self.dir.join("records")) else { return Content::default() };
        let mut content = Content::default();
        let mut parts = parts(&bytes).into_iter();
        while let (Some(kind), Some(name), Some(key), Some(value)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        {
            let [name, key] = [name, key].map(|text| String::from_utf8(text).unwrap());
            match &kind[..] {
                b"row" => content.rows.push(name),
                _ => {
                    let id = (Scope::from_stored(&name).unwrap(), Key::new(key).unwrap());
                    content.records.insert(id, Record::decode(value).unwrap());
                }
            }
        }
        content
    }

    fn save(&self, content: &Content) {
        let mut bytes = Vec::new();
        let mut put = |part: &[u8]| {
            bytes.extend(u32::try_from(part.len()).unwrap().to_le_bytes());
            bytes.extend(part);
        };
        for row in &content.rows {
            [b"row", row.as_bytes(), b"", b""].into_iter().for_each(&mut put);
        }
        for ((scope, key), record) in &content.records {
            put(b"record");
            put(scope.as_str().as_bytes());
            put(key.as_str().as_bytes());
            put(&record.encode());
        }
        let new = self.dir.join(format!("new-{}", std::process::id()));
        fs::write(&new, bytes).unwrap();
        fs::rename(new, self.dir.join("records")).unwrap();
    }

    fn step<A>(
        &self,
        (scope, key): (&Scope, &Key),
        decide: impl FnOnce(Option<&Record>, Timestamp) -> Result<Decision<A>, StoreError>,
    ) -> Result<(Option<Record>, Decision<A>), StoreError> {
        let _lock = self.lock();
        let mut content = self.load();
        let id = (scope.clone(), key.clone());
        let found = content.records.get(&id).cloned();
        let decision = decide(found.as_ref(), self.clock.now())?;
        if let Some(record) = &decision.write {
            if let (State::Done(response), false) = (&record.state, W::AT_ONCE) {
                let without_body = State::Done(response.clone().with_body(""));
                content.records.insert(id.clone(), Record { state: without_body, ..record.clone() });
                self.save(&content);
                std::thread::sleep(SLOW);
            }
            content.records.insert(id, record.clone());
            self.save(&content);
        }
        Ok((found, decision))
    }

    /// Removes the first `limit` of the records that are doomed.
    fn remove(&self, limit: NonZeroUsize, is_doomed: impl Fn(&Scope, &Record) -> bool) -> usize {
        let _lock = self.lock();
        let mut content = self.load();
        let doomed = content.records.iter().filter(|((scope, _), record)| is_doomed(scope, record));
        let doomed: Vec<_> = doomed.map(|(id, _)| id.clone()).take(limit.get()).collect();
        for id in &doomed {
            content.records.remove(id);
        }
        self.save(&content);
        doomed.len()
    }
}

/// What was written part by part; all of it that is there.
fn parts(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let Some((part, rest)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize) else { break };
        parts.push(part.to_vec());
        bytes = rest;
    }
    parts
}

fn of(owner: &Owner) -> (&Scope, &Key) {
    (owner.scope(), owner.key())
}

#[async_trait]
impl<W: Ways> Store for FileStore<W> {
    fn backend(&self) -> &'static str {
        "file"
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        let mut judged = Timestamp::MIN;
        let (found, decision) = self.step((claim.scope(), claim.key()), |found, now| {
            judged = now;
            machine::claim(found, claim, now).map_err(|TokenReused| StoreError::token_reused("file"))
        })?;
        Ok(ClaimRow::decided(found, decision, judged))
    }

    async fn complete(&self, owner: &Owner, with: &Response, keep: Retention) -> Result<Fenced<Response>, StoreError> {
        Ok(self.step(of(owner), |found, now| Ok(machine::complete(found, owner, with, keep, now)))?.1.answer)
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        Ok(self.step(of(owner), |found, now| Ok(machine::release(found, owner, now)))?.1.answer)
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        Ok(self.step(of(owner), |found, now| Ok(machine::forget(found, owner, now)))?.1.answer)
    }

    async fn hold(&self, owner: &Owner, keep: Retention) -> Result<Fenced<()>, StoreError> {
        Ok(self.step(of(owner), |found, now| Ok(machine::hold(found, owner, keep, now)))?.1.answer)
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        Ok(self.step(of(owner), |found, now| Ok(machine::renew(found, owner, lease, now)))?.1.answer)
    }

    async fn checkpoint(&self, owner: &Owner, note: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        Ok(self.step(of(owner), |found, now| Ok(machine::checkpoint(found, owner, note, now)))?.1.answer)
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        let id = (resolve.scope(), resolve.key());
        let (_, decision) = self.step(id, |found, now| Ok(machine::resolve(found, resolve, now)))?;
        Ok(decision.write.map_or(Fenced::Superseded, Fenced::Written))
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        let (found, Decision { answer: now, .. }) =
            self.step((scope, key), |_, now| Ok(Decision { answer: now, write: None }))?;
        Ok(found.filter(|record| record.is_live(now)).map(|record| Snapshot { record, now }))
    }

    async fn wait(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
    ) -> Result<Option<Snapshot>, StoreError> {
        let begun = Instant::now();
        loop {
            let found = self.read(scope, key).await?;
            let goes_on = |s: &Snapshot| s.record.attempt() == seen && s.record.state == State::InProgress;
            if !found.as_ref().is_some_and(goes_on) || begun.elapsed() >= at_most {
                return Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        Ok(self.remove(limit, |_, record| !record.is_live(self.clock.now())))
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        let now = self.clock.now();
        let lock = self.lock();
        let records = self.load().records;
        drop(lock);
        let behind = records.into_iter().filter(|((scope, key), _)| after.is_none_or(|after| (scope, key) > after));
        let waits = |record: &Record| record.is_live(now) && (record.state == State::Held || record.is_lapsed(now));
        let waiting = behind.filter(|(_, record)| waits(record)).take(limit.get());
        Ok(waiting.map(|((scope, key), record)| Lapsed { scope, key, record }).collect())
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        Ok(self.remove(limit, |of, _| of == scope))
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Business rows in the same file.
struct RowsBeside<W>(PhantomData<W>);

#[async_trait]
impl<W: Ways> Transactions for RowsBeside<W> {
    async fn complete_in(
        &self,
        place: &Place,
        completion: &Completion,
        row: &str,
        end: End,
    ) -> Result<Fenced<Response>, StoreError> {
        let store = FileStore::<W>::open(place);
        let _lock = store.lock();
        let mut content = store.load();
        let owner = completion.owner();
        let id = (owner.scope().clone(), owner.key().clone());
        let found = content.records.get(&id);
        if found.is_some_and(|found| matches!(found.state, State::Done(_))) {
            return Ok(Fenced::Superseded);
        }
        let (response, retention, now) = (completion.response(), completion.retention(), store.clock.now());
        let decision = machine::complete(found, owner, response, retention, now);
        if let (End::Commit, Some(record)) = (end, decision.write) {
            content.rows.push(row.to_owned());
            if !W::TOGETHER {
                store.save(&content);
                tokio::time::sleep(SLOW).await;
            }
            content.records.insert(id, record);
            store.save(&content);
        }
        Ok(decision.answer)
    }

    async fn rows(&self, place: &Place) -> Vec<String> {
        let store = FileStore::<W>::open(place);
        let _lock = store.lock();
        store.load().rows
    }
}
