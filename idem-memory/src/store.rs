//! The store: each operation is one step of the machine under one lock.

use std::{fmt, num::NonZeroUsize, sync::Arc, time::Duration};

use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Key, Lapsed, Owner, Record, Resolve, Response,
    Retention, Scope, Snapshot, State, Store, StoreError, StoreErrorKind, Timestamp, async_trait,
    machine::{self, Decision, TokenReused},
};

use crate::{
    Builder,
    records::{Records, name, parts},
    wait,
};

pub(crate) const BACKEND: &str = "memory";

/// A store that keeps its records in this process. Clones share them.
#[derive(Clone)]
pub struct MemoryStore(Arc<Records>);

impl MemoryStore {
    /// A store of up to a million records that goes by the host's clock.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Sets up a store.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// How many records it holds, with those that expired and have not left yet.
    pub fn record_count(&self) -> usize {
        self.0.count()
    }

    pub(crate) fn of(records: Records) -> Self {
        Self(Arc::new(records))
    }

    /// A write of an attempt.
    fn write<A>(
        &self,
        operation: &'static str,
        owner: &Owner,
        rule: impl Fn(Option<&Record>, Timestamp) -> Decision<A>,
    ) -> Result<A, StoreError> {
        let name = name(owner.scope(), owner.key());
        Ok(self.0.decide(operation, &name, |found, now| Ok(rule(found, now)))?.answer)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryStore({} of {} records)", self.0.count(), self.0.limit())
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        let rule = |found: Option<&Record>, now| {
            machine::claim(found, claim, now).map_err(|TokenReused| StoreError::token_reused(BACKEND))
        };
        let outcome = self.0.decide("claim", &name(claim.scope(), claim.key()), rule)?;
        match (outcome.written, outcome.found) {
            (Some(record), _) => Ok(ClaimRow::Written(record)),
            (None, Some(record)) => Ok(ClaimRow::Found { record, now: Some(outcome.now) }),
            (None, None) => {
                let message = "the machine wrote nothing for a claim on an absent record";
                Err(StoreError::new(StoreErrorKind::Contract, BACKEND, "claim", message))
            }
        }
    }

    async fn complete(
        &self,
        owner: &Owner,
        response: &Response,
        retention: Retention,
    ) -> Result<Fenced<Response>, StoreError> {
        self.write("complete", owner, |found, now| machine::complete(found, owner, response, retention, now))
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.write("release", owner, |found, now| machine::release(found, owner, now))
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.write("forget", owner, |found, now| machine::forget(found, owner, now))
    }

    async fn hold(&self, owner: &Owner, retention: Retention) -> Result<Fenced<()>, StoreError> {
        self.write("hold", owner, |found, now| machine::hold(found, owner, retention, now))
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        self.write("renew", owner, |found, now| machine::renew(found, owner, lease, now))
    }

    async fn checkpoint(&self, owner: &Owner, checkpoint: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        self.write("checkpoint", owner, |found, now| machine::checkpoint(found, owner, checkpoint, now))
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        let name = name(resolve.scope(), resolve.key());
        let outcome = self.0.decide("resolve", &name, |found, now| Ok(machine::resolve(found, resolve, now)))?;
        Ok(outcome.written.map_or(Fenced::Superseded, Fenced::Written))
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        let (found, now) = self.0.read("read", &name(scope, key))?;
        Ok(found.map(|record| Snapshot { record, now }))
    }

    async fn wait(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
    ) -> Result<Option<Snapshot>, StoreError> {
        wait::wait(&self.0, &name(scope, key), seen, at_most).await
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        Ok(self.0.sweep(limit.get()))
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        let after = after.map(|(scope, key)| name(scope, key));
        let mut found = self.0.select("lapsed", |name, record, now| {
            let waits = record.state == State::Held || record.is_lapsed(now);
            waits && after.as_deref().is_none_or(|after| name > after)
        })?;
        found.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        found.truncate(limit.get());
        found.into_iter().map(|(name, record)| lapsed(&name, record)).collect()
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        Ok(self.0.purge(scope, limit.get()))
    }

    async fn check(&self) -> Result<(), StoreError> {
        // There is nothing that could be set up wrongly: the limit is a number above zero.
        Ok(())
    }
}

fn lapsed(name: &str, record: Record) -> Result<Lapsed, StoreError> {
    let (scope, key) = parts(name);
    match (Scope::from_stored(scope), Key::new(key)) {
        (Ok(scope), Ok(key)) => Ok(Lapsed { scope, key, record }),
        _ => {
            let message = "the name of a record is not one that a claim could give";
            Err(StoreError::new(StoreErrorKind::Corrupt, BACKEND, "lapsed", message))
        }
    }
}
