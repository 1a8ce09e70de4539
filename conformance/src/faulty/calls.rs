//! Each operation of a store, as it goes through the faults: with arguments of its own, since it may be done again, or
//! after its caller has gone.

use std::{num::NonZeroUsize, pin::Pin, time::Duration};

use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Key, Lapsed, Owner, Record, Resolve, Response,
    Retention, Scope, Snapshot, Store, StoreError, async_trait,
};

use super::{Faulty, Operation};

pub(super) type Call<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

#[async_trait]
impl Store for Faulty {
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        let claim = claim.clone();
        self.through(Operation::Claim, move |store| {
            let claim = claim.clone();
            Box::pin(async move { store.claim(&claim).await })
        })
        .await
    }

    async fn complete(
        &self,
        owner: &Owner,
        response: &Response,
        retention: Retention,
    ) -> Result<Fenced<Response>, StoreError> {
        let (owner, response) = (owner.clone(), response.clone());
        self.through(Operation::Complete, move |store| {
            let (owner, response) = (owner.clone(), response.clone());
            Box::pin(async move { store.complete(&owner, &response, retention).await })
        })
        .await
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        let owner = owner.clone();
        self.through(Operation::Release, move |store| {
            let owner = owner.clone();
            Box::pin(async move { store.release(&owner).await })
        })
        .await
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        let owner = owner.clone();
        self.through(Operation::Forget, move |store| {
            let owner = owner.clone();
            Box::pin(async move { store.forget(&owner).await })
        })
        .await
    }

    async fn hold(&self, owner: &Owner, retention: Retention) -> Result<Fenced<()>, StoreError> {
        let owner = owner.clone();
        self.through(Operation::Hold, move |store| {
            let owner = owner.clone();
            Box::pin(async move { store.hold(&owner, retention).await })
        })
        .await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        let owner = owner.clone();
        self.through(Operation::Renew, move |store| {
            let owner = owner.clone();
            Box::pin(async move { store.renew(&owner, lease).await })
        })
        .await
    }

    async fn checkpoint(&self, owner: &Owner, checkpoint: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        let (owner, checkpoint) = (owner.clone(), checkpoint.clone());
        self.through(Operation::Checkpoint, move |store| {
            let (owner, checkpoint) = (owner.clone(), checkpoint.clone());
            Box::pin(async move { store.checkpoint(&owner, &checkpoint).await })
        })
        .await
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        let resolve = resolve.clone();
        self.through(Operation::Resolve, move |store| {
            let resolve = resolve.clone();
            Box::pin(async move { store.resolve(&resolve).await })
        })
        .await
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        let (scope, key) = (scope.clone(), key.clone());
        self.through(Operation::Read, move |store| {
            let (scope, key) = (scope.clone(), key.clone());
            Box::pin(async move { store.read(&scope, &key).await })
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
        let (scope, key) = (scope.clone(), key.clone());
        self.through(Operation::Wait, move |store| {
            let (scope, key) = (scope.clone(), key.clone());
            Box::pin(async move { store.wait(&scope, &key, seen, at_most).await })
        })
        .await
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.through(Operation::Sweep, move |store| Box::pin(async move { store.sweep(limit).await })).await
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        let after = after.map(|(scope, key)| (scope.clone(), key.clone()));
        self.through(Operation::Lapsed, move |store| {
            let after = after.clone();
            Box::pin(async move { store.lapsed(after.as_ref().map(|(scope, key)| (scope, key)), limit).await })
        })
        .await
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        let scope = scope.clone();
        self.through(Operation::Purge, move |store| {
            let scope = scope.clone();
            Box::pin(async move { store.purge(&scope, limit).await })
        })
        .await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.through(Operation::Check, move |store| Box::pin(async move { store.check().await })).await
    }
}
