//! The store of docs/write-your-own-store.md passes the suite, and the guide shows exactly this code.

use std::{
    error::Error,
    num::NonZeroUsize,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use idem_conformance::{Harness, Place};
use idem_core::{
    machine::{self, Decision},
    *,
};
use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition};

const RECORDS: TableDefinition<'_, (&str, &str), &[u8]> = TableDefinition::new("records");

/// What an operation works with: the records, which nobody else writes meanwhile, and the instant that it is judged at.
struct Edit<'a> {
    records: Table<'a, (&'static str, &'static str), &'static [u8]>,
    now: Timestamp,
    wrote: bool,
}

type Failure = Box<dyn Error + Send + Sync>;

struct MyStore {
    database: Arc<Database>,
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

fn open(path: &Path) -> Result<Arc<Database>, redb::Error> {
    let database = Database::create(path)?;
    let transaction = database.begin_write()?;
    transaction.open_table(RECORDS)?; // so that reads find a table
    transaction.commit()?;
    Ok(Arc::new(database))
}

impl MyStore {
    /// Runs `work` in the one write transaction that redb allows at a time.
    async fn edit<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Edit<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (database, now) = (Arc::clone(&self.database), Arc::clone(&self.now));
        blocking(operation, move || {
            let transaction = database.begin_write()?; // from here on nobody else writes
            let (answer, wrote) = {
                let mut edit = Edit { records: transaction.open_table(RECORDS)?, now: now(), wrote: false };
                (work(&mut edit)?, edit.wrote)
            };
            if wrote {
                transaction.commit()?; // synced: whoever hears the answer may rely on it
            }
            Ok(answer)
        })
        .await
    }

    /// Finds the record of an attempt, lets the machine decide, and writes what it decides: one step.
    async fn step<A: Send + 'static>(
        &self,
        operation: &'static str,
        owner: &Owner,
        decide: impl FnOnce(Option<&Record>, &Owner, Timestamp) -> Decision<A> + Send + 'static,
    ) -> Result<A, StoreError> {
        let owner = owner.clone();
        self.edit(operation, move |edit| {
            let found = find(&edit.records, operation, owner.scope(), owner.key())?;
            let decision = decide(found.as_ref(), &owner, edit.now);
            put(edit, owner.scope(), owner.key(), decision.write.as_ref())?;
            Ok(decision.answer)
        })
        .await
    }
}

/// Runs what may wait for the disk where no async thread is held up.
async fn blocking<T: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, StoreError> {
    let unavailable = |failure: Failure| {
        StoreError::new(StoreErrorKind::Unavailable, "mine", operation, failure.to_string()).with_source(failure)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(failure)) => Err(failure.downcast::<StoreError>().map_or_else(unavailable, |own| *own)),
        Err(panicked) => Err(unavailable(panicked.into())),
    }
}

fn find(
    records: &impl ReadableTable<(&'static str, &'static str), &'static [u8]>,
    operation: &'static str,
    scope: &Scope,
    key: &Key,
) -> Result<Option<Record>, Failure> {
    let stored = records.get((scope.as_str(), key.as_str()))?;
    stored.map(|bytes| decode(operation, bytes.value())).transpose()
}

fn decode(operation: &'static str, bytes: &[u8]) -> Result<Record, Failure> {
    Record::decode(bytes.to_vec()).map_err(|error| StoreError::undecodable("mine", operation, error).into())
}

fn put(edit: &mut Edit<'_>, scope: &Scope, key: &Key, record: Option<&Record>) -> Result<(), Failure> {
    if let Some(record) = record {
        edit.records.insert((scope.as_str(), key.as_str()), record.encode().as_slice())?;
        edit.wrote = true;
    }
    Ok(())
}

/// Removes the first `limit` records that `is_doomed`.
fn remove(
    edit: &mut Edit<'_>,
    limit: NonZeroUsize,
    is_doomed: impl Fn(&str, &[u8]) -> Result<bool, Failure>,
) -> Result<usize, Failure> {
    let mut doomed = Vec::new();
    for entry in edit.records.iter()? {
        let (name, bytes) = entry?;
        let (scope, key) = name.value();
        if doomed.len() < limit.get() && is_doomed(scope, bytes.value())? {
            doomed.push((scope.to_owned(), key.to_owned()));
        }
    }
    for (scope, key) in &doomed {
        edit.records.remove((scope.as_str(), key.as_str()))?;
        edit.wrote = true;
    }
    Ok(doomed.len())
}

#[async_trait]
impl Store for MyStore {
    fn backend(&self) -> &'static str {
        "mine"
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        let claim = claim.clone();
        self.edit("claim", move |edit| {
            let found = find(&edit.records, "claim", claim.scope(), claim.key())?;
            let decision = machine::claim(found.as_ref(), &claim, edit.now)
                .map_err(|TokenReused| StoreError::token_reused("mine"))?;
            put(edit, claim.scope(), claim.key(), decision.write.as_ref())?;
            Ok(ClaimRow::decided(found, decision, edit.now))
        })
        .await
    }

    async fn complete(&self, owner: &Owner, with: &Response, keep: Retention) -> Result<Fenced<Response>, StoreError> {
        let with = with.clone();
        self.step("complete", owner, move |found, owner, now| machine::complete(found, owner, &with, keep, now)).await
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.step("release", owner, machine::release).await
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.step("forget", owner, machine::forget).await
    }

    async fn hold(&self, owner: &Owner, keep: Retention) -> Result<Fenced<()>, StoreError> {
        self.step("hold", owner, move |found, owner, now| machine::hold(found, owner, keep, now)).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        self.step("renew", owner, move |found, owner, now| machine::renew(found, owner, lease, now)).await
    }

    async fn checkpoint(&self, owner: &Owner, note: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        let note = note.clone();
        self.step("checkpoint", owner, move |found, owner, now| machine::checkpoint(found, owner, &note, now)).await
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        let resolve = resolve.clone();
        self.edit("resolve", move |edit| {
            let found = find(&edit.records, "resolve", resolve.scope(), resolve.key())?;
            let written = machine::resolve(found.as_ref(), &resolve, edit.now).write;
            put(edit, resolve.scope(), resolve.key(), written.as_ref())?;
            Ok(written.map_or(Fenced::Superseded, Fenced::Written))
        })
        .await
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        let (database, now) = (Arc::clone(&self.database), Arc::clone(&self.now));
        let (scope, key) = (scope.clone(), key.clone());
        blocking("read", move || {
            let now = now(); // before the look, which then sees whatever was written until this instant
            let records = database.begin_read()?.open_table(RECORDS)?;
            let found = find(&records, "read", &scope, &key)?.filter(|record| record.is_live(now));
            Ok(found.map(|record| Snapshot { record, now }))
        })
        .await
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
            let goes_on =
                found.as_ref().is_some_and(|s| s.record.attempt() == seen && s.record.state == State::InProgress);
            if !goes_on || begun.elapsed() >= at_most {
                return Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.edit("sweep", move |edit| {
            let now = edit.now;
            remove(edit, limit, |_, bytes| Ok(!decode("sweep", bytes)?.is_live(now)))
        })
        .await
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        let (database, now) = (Arc::clone(&self.database), Arc::clone(&self.now));
        let after = after.map(|(scope, key)| (scope.as_str().to_owned(), key.as_str().to_owned()));
        blocking("lapsed", move || {
            let now = now();
            let mut lapsed = Vec::new();
            for entry in database.begin_read()?.open_table(RECORDS)?.iter()? {
                let (name, bytes) = entry?;
                let (scope, key) = name.value(); // redb has them in the order of their bytes
                let record = decode("lapsed", bytes.value())?;
                let waits = record.state == State::Held || record.is_lapsed(now);
                let is_behind = after.as_ref().is_none_or(|after| (scope, key) > (after.0.as_str(), after.1.as_str()));
                if waits && record.is_live(now) && is_behind && lapsed.len() < limit.get() {
                    lapsed.push(Lapsed { scope: Scope::from_stored(scope)?, key: Key::new(key)?, record });
                }
            }
            Ok(lapsed)
        })
        .await
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        let scope = scope.clone();
        self.edit("purge", move |edit| remove(edit, limit, |of, _| Ok(of == scope.as_str()))).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.edit("check", |_| Ok(())).await
    }
}

fn harness() -> Harness {
    Harness::new(async |place: Place| {
        // redb opens a file once in a process: the handles of a place share what is open.
        let opened = place.shared(|| open(&place.dir().join("mine.redb")));
        let clock = place.clock();
        match &*opened {
            Ok(database) => Ok(MyStore { database: Arc::clone(database), now: Arc::new(move || clock.now()) }),
            Err(error) => Err(error.to_string()),
        }
    })
}

idem_conformance::suite!(harness());

#[test]
fn the_guide_shows_this_store() {
    let (guide, this) = (include_str!("../../../docs/write-your-own-store.md"), include_str!("guide.rs"));
    let shown =
        this.split_once("\n\n").and_then(|(_, rest)| rest.split_once("#[test]\nfn the_guide")).map(|(code, _)| code);
    let shown = shown.expect("the module's documentation comes first, and this test last");
    assert!(guide.contains(shown.trim()), "copy the store of tests/guide.rs into docs/write-your-own-store.md");
}
