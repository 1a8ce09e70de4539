//! The store itself.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Key, Lapsed, Owner, Record, Resolve, Response,
    Retention, Scope, Snapshot, Store, StoreError, StoreErrorKind, Timestamp, TokenReused, async_trait,
    machine::{self, Decision},
};
use rusqlite::Connection;

use crate::{
    Builder, OpenError,
    check::{FileId, self_test},
    clock::Clock,
    error::{BACKEND, store_error},
    listing,
    queue::{Access, Order, Queue, queue},
    records,
    wait::Waiters,
    writer::Worker,
};

/// Keeps records in a table of an SQLite file.
///
/// A handle: clones share its threads and connections. Several handles on one file, in one process or in several, are
/// safe together; a clone is cheaper.
///
/// When the last clone is dropped, what is queued is still done and the file is closed; the drop waits for that, a
/// moment usually and one time limit at most.
///
/// Its operations need a Tokio runtime with time enabled, and panic outside one. A runtime whose clock is paused moves
/// it while the store's threads work, so that operations time out: move the store's own clock instead
/// ([`Builder::clock`]).
#[derive(Clone, Debug)]
pub struct SqliteStore {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    pub(crate) clock: Clock,
    pub(crate) waiters: Arc<Waiters>,
    file: FileId,
    writer: Queue,
    reader: Queue,
    reading: Option<thread::JoinHandle<()>>,
    writing: Option<thread::JoinHandle<()>>,
}

/// What opening found, for [`SqliteStore::start`].
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) path: PathBuf,
    pub(crate) writer: Connection,
    pub(crate) reader: Connection,
    pub(crate) clock: Clock,
    pub(crate) timeout: Duration,
}

impl SqliteStore {
    /// Opens the file at `path`, judging by the host's clock, with a time limit of 5 seconds. It blocks, as
    /// [`Builder::open`] does.
    ///
    /// # Errors
    ///
    /// [`OpenError`] says what is wrong with the place or the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::builder(path).open()
    }

    /// Opens the file at `path` in another way than [`SqliteStore::open`].
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new(path.as_ref().into())
    }

    /// The file, as an absolute path without links.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    pub(crate) fn start(opened: Opened) -> Result<Self, OpenError> {
        let Opened { path, writer, reader, clock, timeout } = opened;
        let file = match FileId::of(&path) {
            Ok(file) => file,
            Err(source) => return Err(OpenError::Place { path, source }),
        };
        let waiters = Arc::new(Waiters::new());
        let (write_queue, writes) = queue(timeout);
        let (read_queue, reads) = queue(timeout);
        let worker = |connection, jobs| Worker { connection, jobs, clock: clock.clone(), waiters: waiters.clone() };
        let failed = |source| OpenError::Thread { source };
        let writing = worker(writer, writes).write().map_err(failed)?;
        // If this one can't start, dropping the queues ends the other.
        let reading = worker(reader, reads).read().map_err(failed)?;
        let inner = Inner {
            path,
            clock,
            waiters,
            file,
            writer: write_queue,
            reader: read_queue,
            reading: Some(reading),
            writing: Some(writing),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    async fn write<T, W>(&self, order: Order, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&mut Access<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        self.inner.writer.run(order, work).await
    }

    /// Has the machine decide a write of `owner`'s.
    async fn settle<A, D>(&self, order: Order, owner: &Owner, decide: D) -> Result<A, StoreError>
    where
        A: Send + 'static,
        D: FnOnce(Option<&Record>, &Owner, Timestamp) -> Decision<A> + Send + 'static,
    {
        let owner = owner.clone();
        self.write(order, move |access| {
            let now = access.now;
            access.decide(owner.scope(), owner.key(), |found| decide(found, &owner, now))
        })
        .await
    }
}

impl Access<'_> {
    /// Finds the record, lets `decide` decide, and writes what that comes to.
    fn decide<A>(
        &mut self,
        scope: &Scope,
        key: &Key,
        decide: impl FnOnce(Option<&Record>) -> Decision<A>,
    ) -> Result<A, StoreError> {
        let (answer, wrote) = records::decide(self.connection, self.operation, scope, key, decide)?;
        self.wrote = wrote;
        Ok(answer)
    }

    fn claim(&mut self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        let (scope, key) = (claim.scope(), claim.key());
        let found = records::find(self.connection, self.operation, scope, key)?;
        let record = found.as_ref().map(|row| &row.record);
        let decision =
            machine::claim(record, claim, self.now).map_err(|TokenReused| StoreError::token_reused(BACKEND))?;
        match (decision.write, found) {
            (Some(record), found) => {
                records::write(self.connection, self.operation, scope, key, found.as_ref(), &record)?;
                self.wrote = true;
                Ok(ClaimRow::Written(record))
            }
            (None, Some(row)) => Ok(ClaimRow::Found { record: row.record, now: Some(self.now) }),
            (None, None) => {
                let message = "the machine left a record that is absent as it is; this is a bug in idem";
                Err(store_error(StoreErrorKind::Contract, self.operation, message))
            }
        }
    }

    fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        let row = records::find(self.connection, self.operation, scope, key)?;
        let live = row.filter(|row| row.record.is_live(self.now));
        Ok(live.map(|row| Snapshot { record: row.record, now: self.now }))
    }
}

/// Ends the threads once they have done what is queued.
impl Drop for Inner {
    fn drop(&mut self) {
        // The writer last: whoever closes the file last folds its log back, which the reader may not.
        for (queue, thread) in [(&mut self.reader, &mut self.reading), (&mut self.writer, &mut self.writing)] {
            queue.close();
            // A thread that panicked has told its callers by then.
            let _ = thread.take().map(thread::JoinHandle::join);
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        let order = Order::new("claim").waking(claim.scope(), claim.key()).needing_caller();
        let claim = claim.clone();
        self.write(order, move |access| access.claim(&claim)).await
    }

    async fn complete(
        &self,
        owner: &Owner,
        response: &Response,
        retention: Retention,
    ) -> Result<Fenced<Response>, StoreError> {
        let order = Order::new("complete").waking(owner.scope(), owner.key());
        let response = response.clone();
        self.settle(order, owner, move |found, owner, now| machine::complete(found, owner, &response, retention, now))
            .await
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        let order = Order::new("release").waking(owner.scope(), owner.key());
        self.settle(order, owner, machine::release).await
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        let order = Order::new("forget").waking(owner.scope(), owner.key());
        self.settle(order, owner, machine::forget).await
    }

    async fn hold(&self, owner: &Owner, retention: Retention) -> Result<Fenced<()>, StoreError> {
        let order = Order::new("hold").waking(owner.scope(), owner.key());
        self.settle(order, owner, move |found, owner, now| machine::hold(found, owner, retention, now)).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        let order = Order::new("renew");
        self.settle(order, owner, move |found, owner, now| machine::renew(found, owner, lease, now)).await
    }

    async fn checkpoint(&self, owner: &Owner, checkpoint: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        let order = Order::new("checkpoint");
        let checkpoint = checkpoint.clone();
        self.settle(order, owner, move |found, owner, now| machine::checkpoint(found, owner, &checkpoint, now)).await
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        let order = Order::new("resolve").waking(resolve.scope(), resolve.key()).needing_caller();
        let resolve = resolve.clone();
        self.write(order, move |access| {
            let now = access.now;
            access.decide(resolve.scope(), resolve.key(), |found| {
                let Decision { answer, write } = machine::resolve(found, &resolve, now);
                let answer = match (answer, &write) {
                    (Fenced::Written(()), Some(record)) => Fenced::Written(record.clone()),
                    _ => Fenced::Superseded,
                };
                Decision { answer, write }
            })
        })
        .await
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        let (scope, key) = (scope.clone(), key.clone());
        self.inner.reader.run(Order::new("read").needing_caller(), move |access| access.read(&scope, &key)).await
    }

    async fn wait(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
    ) -> Result<Option<Snapshot>, StoreError> {
        let read = || {
            let (scope, key) = (scope.clone(), key.clone());
            let order = Order::new("wait").needing_caller();
            self.inner.reader.run(order, move |access| access.read(&scope, &key))
        };
        self.inner.waiters.wait(scope, key, seen, at_most, read).await
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        let order = Order::new("sweep").needing_caller();
        in_batches(limit, |batch| {
            self.write(order.clone(), move |access| listing::sweep(access.connection, access.now, batch))
        })
        .await
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        let after = after.map(|(scope, key)| (scope.clone(), key.clone()));
        let order = Order::new("lapsed").needing_caller();
        let list =
            move |access: &mut Access<'_>| listing::lapsed(access.connection, after.as_ref(), access.now, limit.get());
        self.inner.reader.run(order, list).await
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        let order = Order::new("purge").waking_everybody().needing_caller();
        in_batches(limit, |batch| {
            let scope = scope.clone();
            self.write(order.clone(), move |access| {
                let removed = listing::purge(access.connection, &scope, batch)?;
                access.wrote = removed > 0;
                Ok(removed)
            })
        })
        .await
    }

    async fn check(&self) -> Result<(), StoreError> {
        let (path, file, clock) = (self.inner.path.clone(), self.inner.file, self.inner.clock.clone());
        self.write(Order::new("check"), move |access| self_test(access, &path, file, &clock)).await
    }
}

/// Removes up to `limit` rows, a bounded transaction at a time, so that other operations come in between.
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
