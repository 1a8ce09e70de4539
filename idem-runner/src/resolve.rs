//! Settling what nobody knows the outcome of.

use std::sync::Arc;

use idem_core::{AttemptId, Fenced, Grant, Key, Resolve, Response, Scope, StoreError};
use tokio::runtime::Handle;
use tracing::Instrument;

use crate::{Idempotency, detach::Detached, event::event, idempotency::Inner};

/// What someone found out about an operation whose outcome was unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It was done: this is its response, which every retry gets from now on.
    Done(Response),
    /// It was not done, or is to be done again: the next request runs it, as a repeat.
    Released,
}

/// What came of resolving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// The record is done with this response.
    Done(Response),
    /// The key is free for the next attempt.
    Released,
    /// Nothing was written: the outcome of that attempt is not unknown any more, or never was. Look again.
    Superseded,
}

impl Idempotency {
    /// Settles a record whose outcome is unknown: one that is held, or whose lease lapsed. `seen` is the attempt that was
    /// looked at (`record.attempt()`, from [`Store::lapsed`](idem_core::Store::lapsed) or
    /// [`Store::read`](idem_core::Store::read)): whatever happened since, the attempt itself included, wins.
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use idem_core::{Response, StoreError};
    /// # use idem_runner::{Idempotency, Resolution};
    /// # async fn was_charged(key: &str) -> bool { !key.is_empty() }
    /// async fn settle_what_is_unknown(idempotency: &Idempotency) -> Result<(), StoreError> {
    ///     let some = NonZeroUsize::new(100).unwrap_or(NonZeroUsize::MIN);
    ///     for found in idempotency.store().lapsed(None, some).await? {
    ///         let seen = found.record.attempt();
    ///         let resolution = if was_charged(found.key.as_str()).await {
    ///             Resolution::Done(Response::new(201))
    ///         } else {
    ///             Resolution::Released
    ///         };
    ///         let _resolved = idempotency.resolve(found.scope, found.key, seen, resolution).await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// What the store answers. If it fails between taking the record and settling it, the record is under hold again: its
    /// outcome is unknown once the lease lapses, and it is resolved anew, as another attempt.
    ///
    /// # Cancellation safety
    ///
    /// Once polled it goes on when its future is dropped.
    pub async fn resolve(
        &self,
        scope: Scope,
        key: Key,
        seen: AttemptId,
        resolution: Resolution,
    ) -> Result<Resolved, StoreError> {
        let runtime: Handle = self.0.runtime("resolve")?;
        let runner = Arc::clone(&self.0);
        let work = async move { runner.resolve(scope, key, seen, resolution).await }.in_current_span();
        Detached::new(runtime, self.0.tracker.track_future(work)).await
    }
}

impl Inner {
    async fn resolve(
        &self,
        scope: Scope,
        key: Key,
        seen: AttemptId,
        resolution: Resolution,
    ) -> Result<Resolved, StoreError> {
        let resolve = Resolve::new(scope, key, seen, self.token()?)
            .with_lease(self.settings.lease)
            .with_retention(self.settings.retention);
        let taken = self.repeated("resolve", || idem_core::resolve(&*self.store, &resolve)).await?;
        let Fenced::Written(grant) = taken else {
            return Ok(Resolved::Superseded);
        };
        let resolved = self.settle_as(&grant, resolution).await?;
        if resolved != Resolved::Superseded {
            self.counting.resolved.one();
            event!(INFO, "resolved", number = grant.number(), "the outcome of an earlier attempt is known now");
        }
        Ok(resolved)
    }

    async fn settle_as(&self, grant: &Grant, resolution: Resolution) -> Result<Resolved, StoreError> {
        let owner = grant.owner();
        Ok(match resolution {
            Resolution::Done(response) => {
                let retention = self.settings.retention;
                match self.repeated("complete", || self.store.complete(owner, &response, retention)).await? {
                    Fenced::Written(recorded) => Resolved::Done(recorded),
                    Fenced::Superseded => Resolved::Superseded,
                }
            }
            Resolution::Released => match self.repeated("release", || self.store.release(owner)).await? {
                Fenced::Written(()) => Resolved::Released,
                Fenced::Superseded => Resolved::Superseded,
            },
        })
    }
}
