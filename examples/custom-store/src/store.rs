//! The store itself.

use std::{io, num::NonZeroUsize, path::Path, sync::Arc, thread::JoinHandle, time::Duration};

use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Key, Lapsed, Owner, Record, Resolve, Response,
    Retention, Scope, Snapshot, Store, StoreError, Timestamp, TokenReused, async_trait,
    machine::{self, Decision},
};
use redb::ReadTransaction;

use crate::{
    Builder, OpenError,
    check::self_test,
    clock::Clock,
    error::{BACKEND, Failure},
    file::FileId,
    listing,
    live::Live,
    queue::{Abandoned, Queue, late, queue, unavailable},
    records::{self, Tables},
    wait::Bells,
    writer::Writer,
};

/// Keeps records in a redb file.
///
/// A handle: clones, and whatever else this process opens on the same file, share one database and one thread. When the
/// last of them is dropped, what is queued is still done and the file is closed; the drop waits for that, usually for
/// the time of a sync.
///
/// Its operations need a Tokio runtime with time enabled, and panic outside one.
#[derive(Clone, Debug)]
pub struct RedbStore {
    shared: Arc<Shared>,
    clock: Clock,
    timeout: Duration,
}

/// What the handles of one file share.
#[derive(Debug)]
pub(crate) struct Shared {
    file: FileId,
    database: Arc<Live>,
    bells: Arc<Bells>,
    /// None once the store ends.
    queue: Option<Queue>,
    writer: Option<JoinHandle<()>>,
}

impl RedbStore {
    /// Opens the file at `path`, judging by the host's clock, with a time limit of 5 seconds. It blocks, as
    /// [`Builder::open`] does.
    ///
    /// # Errors
    ///
    /// [`OpenError`] says what is wrong with the place or the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::builder(path).open()
    }

    /// Opens the file at `path` in another way than [`RedbStore::open`].
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new(path.as_ref().into())
    }

    pub(crate) fn of(shared: Arc<Shared>, clock: Clock, timeout: Duration) -> Self {
        Self { shared, clock, timeout }
    }

    /// What the tests of this crate look at.
    #[cfg(test)]
    pub(crate) fn parts(&self) -> (&Live, &Bells) {
        (&self.shared.database, &self.shared.bells)
    }

    /// Has `work` done in a write transaction, judged at an instant that is read once the transaction has begun.
    async fn write<T, W>(&self, operation: &'static str, abandoned: Abandoned, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&mut Tables<'_>, Timestamp) -> Result<T, Failure> + Send + 'static,
    {
        let clock = self.clock.clone();
        let work = move |tables: &mut Tables<'_>| work(tables, clock.now());
        match &self.shared.queue {
            Some(queue) => queue.run(operation, abandoned, self.timeout, work).await,
            None => Err(unavailable(operation, "the store has ended; open it anew".into())),
        }
    }

    /// Has the machine decide a write of `owner`'s.
    async fn settle<A, D>(&self, operation: &'static str, owner: &Owner, decide: D) -> Result<A, StoreError>
    where
        A: Send + 'static,
        D: FnOnce(Option<&Record>, &Owner, Timestamp) -> Decision<A> + Send + 'static,
    {
        let owner = owner.clone();
        self.write(operation, Abandoned::Finish, move |tables, now| {
            let name = (owner.scope(), owner.key());
            Ok(tables.decide(operation, name, |found| decide(found, &owner, now))?.answer)
        })
        .await
    }

    /// Looks at what is committed. On a thread for blocking work, since it may read from the disk; it waits for no lock.
    async fn look<T, L>(&self, operation: &'static str, look: L) -> Result<T, StoreError>
    where
        T: Send + 'static,
        L: FnOnce(&ReadTransaction, Timestamp) -> Result<T, Failure> + Send + 'static,
    {
        let (database, clock) = (Arc::clone(&self.shared.database), self.clock.clone());
        let looking = tokio::task::spawn_blocking(move || {
            // Before the transaction begins: it must not judge by an instant at which a later write could be there.
            let now = clock.now();
            look(&database.begin_read()?, now)
        });
        match tokio::time::timeout(self.timeout, looking).await {
            Ok(Ok(found)) => found.map_err(|failure| failure.into_store_error(operation)),
            Ok(Err(error)) => Err(unavailable(operation, format!("it came to no end: {error}"))),
            Err(_) => Err(late(operation, self.timeout)),
        }
    }

    async fn snapshot(
        &self,
        operation: &'static str,
        scope: &Scope,
        key: &Key,
    ) -> Result<Option<Snapshot>, StoreError> {
        let (scope, key) = (scope.clone(), key.clone());
        self.look(operation, move |transaction, now| {
            let found = records::read(transaction, operation, (&scope, &key))?;
            Ok(found.filter(|record| record.is_live(now)).map(|record| Snapshot { record, now }))
        })
        .await
    }
}

impl Shared {
    pub(crate) fn start(database: Live, file: FileId) -> io::Result<Self> {
        let (database, bells) = (Arc::new(database), Arc::new(Bells::new()));
        let (queue, jobs) = queue();
        let writer = Writer { database: Arc::clone(&database), jobs, bells: Arc::clone(&bells) }.start()?;
        Ok(Self { file, database, bells, queue: Some(queue), writer: Some(writer) })
    }

    pub(crate) fn file(&self) -> &FileId {
        &self.file
    }

    /// Whether its writer is there.
    pub(crate) fn is_usable(&self) -> bool {
        self.queue.as_ref().is_some_and(Queue::is_open)
    }
}

/// Ends the writer once it has done what is queued, and with it the use of the file.
impl Drop for Shared {
    fn drop(&mut self) {
        self.queue = None;
        // A thread that panicked has told its callers by then.
        let _ = self.writer.take().map(JoinHandle::join);
        // Where the writer did not come to that: the file must be free for whoever opens it next.
        self.database.close();
    }
}

/// Finds, decides and writes.
fn claim(tables: &mut Tables<'_>, claim: &Claim, now: Timestamp) -> Result<ClaimRow, Failure> {
    let name = (claim.scope(), claim.key());
    let found = tables.find("claim", name)?;
    let decision =
        machine::claim(found.as_ref(), claim, now).map_err(|TokenReused| StoreError::token_reused(BACKEND))?;
    if let Some(record) = &decision.write {
        tables.put(name, record)?;
    }
    Ok(ClaimRow::decided(found, decision, now))
}

#[async_trait]
impl Store for RedbStore {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    async fn claim(&self, asked: &Claim) -> Result<ClaimRow, StoreError> {
        let asked = asked.clone();
        self.write("claim", Abandoned::Skip, move |tables, now| claim(tables, &asked, now)).await
    }

    async fn complete(
        &self,
        owner: &Owner,
        response: &Response,
        retention: Retention,
    ) -> Result<Fenced<Response>, StoreError> {
        let response = response.clone();
        let decide = move |found: Option<&Record>, owner: &Owner, now| {
            machine::complete(found, owner, &response, retention, now)
        };
        self.settle("complete", owner, decide).await
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.settle("release", owner, machine::release).await
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.settle("forget", owner, machine::forget).await
    }

    async fn hold(&self, owner: &Owner, retention: Retention) -> Result<Fenced<()>, StoreError> {
        self.settle("hold", owner, move |found, owner, now| machine::hold(found, owner, retention, now)).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        self.settle("renew", owner, move |found, owner, now| machine::renew(found, owner, lease, now)).await
    }

    async fn checkpoint(&self, owner: &Owner, checkpoint: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        let checkpoint = checkpoint.clone();
        let decide =
            move |found: Option<&Record>, owner: &Owner, now| machine::checkpoint(found, owner, &checkpoint, now);
        self.settle("checkpoint", owner, decide).await
    }

    async fn resolve(&self, asked: &Resolve) -> Result<Fenced<Record>, StoreError> {
        let asked = asked.clone();
        self.write("resolve", Abandoned::Skip, move |tables, now| {
            let name = (asked.scope(), asked.key());
            let decision = tables.decide("resolve", name, |found| machine::resolve(found, &asked, now))?;
            Ok(decision.write.map_or(Fenced::Superseded, Fenced::Written))
        })
        .await
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        self.snapshot("read", scope, key).await
    }

    async fn wait(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
    ) -> Result<Option<Snapshot>, StoreError> {
        self.shared.bells.wait((scope, key), seen, at_most, || self.snapshot("wait", scope, key)).await
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        in_batches(limit, |batch| {
            self.write("sweep", Abandoned::Skip, move |tables, now| listing::sweep(tables, now, batch))
        })
        .await
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        let after = after.map(|(scope, key)| (scope.clone(), key.clone()));
        self.look("lapsed", move |transaction, now| listing::lapsed(transaction, after.as_ref(), now, limit.get()))
            .await
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        in_batches(limit, |batch| {
            let scope = scope.clone();
            self.write("purge", Abandoned::Skip, move |tables, _| listing::purge(tables, &scope, batch))
        })
        .await
    }

    async fn check(&self) -> Result<(), StoreError> {
        let (file, clock) = (self.shared.file.clone(), self.clock.clone());
        self.write("check", Abandoned::Skip, move |tables, _| self_test(tables, &file, &clock)).await
    }
}

/// Removes up to `limit` records, a bounded transaction at a time, so that other operations come in between.
async fn in_batches<F>(limit: NonZeroUsize, mut remove: impl FnMut(usize) -> F) -> Result<usize, StoreError>
where
    F: Future<Output = Result<usize, StoreError>>,
{
    let mut removed = 0;
    while removed < limit.get() {
        let batch = listing::BATCH.min(limit.get() - removed);
        let now_removed = remove(batch).await?;
        removed += now_removed;
        if now_removed < batch {
            break;
        }
    }
    Ok(removed)
}
