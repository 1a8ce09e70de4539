//! A memory store that fails, and takes its time, on command.

use std::{
    num::NonZeroUsize,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Key, Lapsed, Owner, Record, Resolve, Response,
    Retention, Scope, Snapshot, Store, StoreError, StoreErrorKind, async_trait,
};
use idem_memory::MemoryStore;
use tokio::task::yield_now;

pub(crate) struct Faulty {
    records: MemoryStore,
    claims_fail: AtomicBool,
    completions_fail: AtomicBool,
    kind: StoreErrorKind,
    /// How often a call gives way before and after it works: await points at which a test can drop it.
    pub(crate) yields: AtomicUsize,
    /// Calls that have begun and not ended.
    pub(crate) in_flight: AtomicUsize,
    pub(crate) calls: AtomicUsize,
}

impl Faulty {
    pub(crate) fn new(records: MemoryStore) -> Self {
        Self {
            records,
            claims_fail: AtomicBool::new(false),
            completions_fail: AtomicBool::new(false),
            kind: StoreErrorKind::Unavailable,
            yields: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
        }
    }

    pub(crate) fn failing_with(records: MemoryStore, kind: StoreErrorKind) -> Self {
        Self { kind, claims_fail: AtomicBool::new(true), ..Self::new(records) }
    }

    pub(crate) fn claims_fail(&self, fail: bool) {
        self.claims_fail.store(fail, Ordering::SeqCst);
    }

    pub(crate) fn completions_fail(&self, fail: bool) {
        self.completions_fail.store(fail, Ordering::SeqCst);
    }

    async fn call<T>(
        &self,
        fails: Option<(&'static str, &AtomicBool)>,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let _in_flight = InFlight::of(&self.in_flight);
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.give_way().await;
        if let Some((operation, fails)) = fails
            && fails.load(Ordering::SeqCst)
        {
            let message = "connection refused by db.internal:5432";
            return Err(StoreError::new(self.kind, "faulty", operation, message));
        }
        let result = work.await;
        self.give_way().await;
        result
    }

    async fn give_way(&self) {
        for _ in 0..self.yields.load(Ordering::SeqCst) {
            yield_now().await;
        }
    }
}

struct InFlight<'a>(&'a AtomicUsize);

impl<'a> InFlight<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Store for Faulty {
    fn backend(&self) -> &'static str {
        "faulty"
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        self.call(Some(("claim", &self.claims_fail)), self.records.claim(claim)).await
    }

    async fn complete(
        &self,
        owner: &Owner,
        response: &Response,
        kept: Retention,
    ) -> Result<Fenced<Response>, StoreError> {
        self.call(Some(("complete", &self.completions_fail)), self.records.complete(owner, response, kept)).await
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.call(None, self.records.release(owner)).await
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.call(None, self.records.forget(owner)).await
    }

    async fn hold(&self, owner: &Owner, retention: Retention) -> Result<Fenced<()>, StoreError> {
        self.call(None, self.records.hold(owner, retention)).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        self.call(None, self.records.renew(owner, lease)).await
    }

    async fn checkpoint(&self, owner: &Owner, checkpoint: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        self.call(None, self.records.checkpoint(owner, checkpoint)).await
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        self.call(None, self.records.resolve(resolve)).await
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        self.call(None, self.records.read(scope, key)).await
    }

    async fn wait(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
    ) -> Result<Option<Snapshot>, StoreError> {
        self.call(None, self.records.wait(scope, key, seen, at_most)).await
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.call(None, self.records.sweep(limit)).await
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        self.call(None, self.records.lapsed(after, limit)).await
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.call(None, self.records.purge(scope, limit)).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.call(None, self.records.check()).await
    }
}
