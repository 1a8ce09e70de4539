//! A handle that keeps a record of what goes through it.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Key, Lapsed, Owner, Record, Resolve, Response,
    Retention, Scope, Snapshot, Store, StoreError, StoreErrorKind,
};

use super::history::{Call, End, Operation, Reply};

/// What numbers the moments of a round: each is taken once.
#[derive(Clone, Debug, Default)]
pub(super) struct Counter(Arc<AtomicU64>);

impl Counter {
    pub(super) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// One task's handle on a store, about one key. A call whose future is dropped stays in the record as such.
pub(super) struct Recorder {
    store: Arc<dyn Store>,
    task: &'static str,
    counter: Counter,
    /// Of this task alone, so that recording makes no task wait for another.
    calls: Mutex<Vec<Call>>,
}

impl Recorder {
    pub(super) fn new(store: Arc<dyn Store>, task: &'static str, counter: Counter) -> Self {
        Self { store, task, counter, calls: Mutex::default() }
    }

    /// What was recorded.
    pub(super) fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls())
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, Vec<Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn record<T: Clone + Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
        reply: impl FnOnce(T) -> Reply + Send,
    ) -> Result<T, StoreError> {
        let at = {
            let mut calls = self.calls();
            calls.push(Call { task: self.task, invoked: self.counter.next(), operation, end: End::Dropped });
            calls.len() - 1
        };
        let answered = call.await;
        let returned = self.counter.next();
        let end = match &answered {
            Ok(answer) => End::Answered { at: returned, reply: Box::new(reply(answer.clone())) },
            Err(error) if error.kind() == StoreErrorKind::Unavailable => End::Failed { at: returned },
            Err(error) => End::Answered {
                at: returned,
                reply: Box::new(Reply::Refused(error.kind(), error.message().to_owned())),
            },
        };
        if let Some(call) = self.calls().get_mut(at) {
            call.end = end;
        }
        answered
    }
}

#[async_trait]
impl Store for Recorder {
    fn backend(&self) -> &'static str {
        self.store.backend()
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        self.record(Operation::Claim(claim.clone()), self.store.claim(claim), Reply::Row).await
    }

    async fn complete(
        &self,
        owner: &Owner,
        response: &Response,
        retention: Retention,
    ) -> Result<Fenced<Response>, StoreError> {
        let operation = Operation::Complete(owner.clone(), response.clone(), retention);
        self.record(operation, self.store.complete(owner, response, retention), Reply::Completed).await
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.record(Operation::Release(owner.clone()), self.store.release(owner), Reply::Ended).await
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.record(Operation::Forget(owner.clone()), self.store.forget(owner), Reply::Ended).await
    }

    async fn hold(&self, owner: &Owner, retention: Retention) -> Result<Fenced<()>, StoreError> {
        let operation = Operation::Hold(owner.clone(), retention);
        self.record(operation, self.store.hold(owner, retention), Reply::Ended).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        self.record(Operation::Renew(owner.clone(), lease), self.store.renew(owner, lease), Reply::Ended).await
    }

    async fn checkpoint(&self, owner: &Owner, checkpoint: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        let operation = Operation::Checkpoint(owner.clone(), checkpoint.clone());
        self.record(operation, self.store.checkpoint(owner, checkpoint), Reply::Kept).await
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        self.record(Operation::Resolve(resolve.clone()), self.store.resolve(resolve), Reply::Resolved).await
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        self.record(Operation::Read, self.store.read(scope, key), Reply::Found).await
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.record(Operation::Purge, self.store.purge(scope, limit), Reply::Removed).await
    }

    // What is about more than one record, or waits, is not recorded.

    async fn wait(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
    ) -> Result<Option<Snapshot>, StoreError> {
        self.store.wait(scope, key, seen, at_most).await
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.store.sweep(limit).await
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        self.store.lapsed(after, limit).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.store.check().await
    }
}
