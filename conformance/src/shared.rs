//! Stores that stand before another store.

use std::{fmt, num::NonZeroUsize, ops::Deref, sync::Arc, time::Duration};

use async_trait::async_trait;
use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Key, Lapsed, Owner, Resolve, Response, Retention,
    Scope, Snapshot, Store, StoreError,
};

/// The one `T` of a place: see [`Place::shared`](crate::Place::shared). If `T` is a store, this is a handle on it; made
/// from an `Arc<dyn Store>` it is a handle for a [`Harness`](crate::Harness) whose store is of no type of its own.
pub struct Shared<T: ?Sized>(pub(crate) Arc<T>);

impl<T: ?Sized> From<Arc<T>> for Shared<T> {
    fn from(shared: Arc<T>) -> Self {
        Self(shared)
    }
}

impl<T: ?Sized> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: ?Sized> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// Implements [`Store`] by another store that `$inner` gives, but for the claim.
macro_rules! forward {
    (($($generics:tt)*) $store:ty, $self:ident => $inner:expr; $claim:item) => {
        #[async_trait]
        impl $($generics)* Store for $store {
            $claim

            fn backend(&$self) -> &'static str {
                $inner.backend()
            }

            async fn complete(
                &$self,
                owner: &Owner,
                response: &Response,
                retention: Retention,
            ) -> Result<Fenced<Response>, StoreError> {
                $inner.complete(owner, response, retention).await
            }

            async fn release(&$self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
                $inner.release(owner).await
            }

            async fn forget(&$self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
                $inner.forget(owner).await
            }

            async fn hold(&$self, owner: &Owner, retention: Retention) -> Result<Fenced<()>, StoreError> {
                $inner.hold(owner, retention).await
            }

            async fn renew(&$self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
                $inner.renew(owner, lease).await
            }

            async fn checkpoint(
                &$self,
                owner: &Owner,
                checkpoint: &Checkpoint,
            ) -> Result<Fenced<Checkpointed>, StoreError> {
                $inner.checkpoint(owner, checkpoint).await
            }

            async fn resolve(&$self, resolve: &Resolve) -> Result<Fenced<idem_core::Record>, StoreError> {
                $inner.resolve(resolve).await
            }

            async fn read(&$self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
                $inner.read(scope, key).await
            }

            async fn wait(
                &$self,
                scope: &Scope,
                key: &Key,
                seen: AttemptId,
                at_most: Duration,
            ) -> Result<Option<Snapshot>, StoreError> {
                $inner.wait(scope, key, seen, at_most).await
            }

            async fn sweep(&$self, limit: NonZeroUsize) -> Result<usize, StoreError> {
                $inner.sweep(limit).await
            }

            async fn lapsed(
                &$self,
                after: Option<(&Scope, &Key)>,
                limit: NonZeroUsize,
            ) -> Result<Vec<Lapsed>, StoreError> {
                $inner.lapsed(after, limit).await
            }

            async fn purge(&$self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
                $inner.purge(scope, limit).await
            }

            async fn check(&$self) -> Result<(), StoreError> {
                $inner.check().await
            }
        }
    };
}

forward! {
    (<T: Store + ?Sized>) Shared<T>, self => self.0;
    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        self.0.claim(claim).await
    }
}

/// Tells which rows the store gave for the claims that go through it.
pub(crate) struct Spy<'a> {
    store: &'a dyn Store,
    rows: std::sync::Mutex<Vec<ClaimRow>>,
}

impl<'a> Spy<'a> {
    pub(crate) fn on(store: &'a dyn Store) -> Self {
        Self { store, rows: std::sync::Mutex::default() }
    }

    /// The row that the store gave last, if it gave one.
    pub(crate) fn row(self) -> Option<ClaimRow> {
        self.rows.into_inner().ok()?.pop()
    }
}

forward! {
    () Spy<'_>, self => self.store;
    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        let row = self.store.claim(claim).await?;
        if let Ok(mut rows) = self.rows.lock() {
            rows.push(row.clone());
        }
        Ok(row)
    }
}
