//! Sealing what is stored of answers, so that whoever reads the store does not read them.
//!
//! A store with a sealer is a store: everything above it sees responses and results of steps as they were given, everything
//! under it only what was sealed.

use std::{
    fmt,
    num::NonZeroUsize,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use idem_core::{
    AttemptId, Body, Checkpoint, Checkpointed, Checkpoints, Claim, ClaimRow, Fenced, Key, Lapsed, Owner, Record,
    Resolve, Response, Retention, Scope, Snapshot, State, Store, StoreError, StoreErrorKind, async_trait,
};

use crate::Idempotency;

#[cfg(feature = "seal")]
mod keys;

#[cfg(feature = "seal")]
pub use keys::{InvalidSealKey, SealKey, SealKeys};

/// What a sealed result of a step begins with, which no store and no operation writes otherwise.
const SEALED_RESULT: &[u8] = b"\0idem.sealed.1\0";

/// Encrypts what is stored of answers, and decrypts it for replays: see
/// [`Builder::seal`](crate::Builder::seal). With the feature `seal`, `SealKeys` is one with keys of your own; implement this
/// for a service that manages keys.
///
/// It is called within requests, so it must not wait for a network: fetch data keys beforehand. One that panics has failed.
pub trait Seal: fmt::Debug + Send + Sync {
    /// Seals bytes so that they can be opened only with the same `bound_to`: it names the record and what of it they are,
    /// is the same when they are opened, and is to be authenticated with them (as associated data).
    ///
    /// # Errors
    ///
    /// [`SealError`]; the attempt is then tried to be ended again, as when the store fails.
    fn seal(&self, plain: &[u8], bound_to: &[u8]) -> Result<Sealed, SealError>;

    /// Opens what [`seal`](Seal::seal) gave, now or by an earlier version with an older key.
    ///
    /// # Errors
    ///
    /// [`SealError`], if the key is not known, or anything was changed: the bytes, the id, what they are bound to. The
    /// request is then answered with an error, and its operation does not run.
    fn open(&self, sealed: &Sealed, bound_to: &[u8]) -> Result<Vec<u8>, SealError>;
}

/// Bytes that only a key opens.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Names the key, 1 to 255 bytes. It is stored in clear.
    pub key_id: String,
    /// The sealed bytes.
    pub bytes: Bytes,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({} bytes under {:?})", self.bytes.len(), self.key_id)
    }
}

/// Why something could not be sealed or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The key that it is sealed under is not at hand.
    #[error(
        "it is sealed under the key {key_id:?}, which this service does not have; let it open with that key until the \
         longest retention, that of held records included, has passed since it last sealed"
    )]
    UnknownKey {
        /// The key's id.
        key_id: String,
    },
    /// It is not what was sealed for this record under this key.
    #[error(
        "it is not what was sealed under the key {key_id:?} for this record: the secret is another one, or the record was \
         changed"
    )]
    NotAuthentic {
        /// The key's id.
        key_id: String,
    },
    /// The sealer failed, for the reason it gives.
    #[error("the sealer failed: {0}")]
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl Idempotency {
    /// What this runner would store of a response: for completions that are made without an
    /// [`Attempt`](crate::Attempt), after a claim in a transaction of the caller's (see [`Idempotency::prepare`]). The same
    /// response where nothing is [sealed](crate::Builder::seal).
    ///
    /// # Errors
    ///
    /// Of kind configuration if the sealer fails. Do not store the response then.
    pub fn sealed(&self, scope: &Scope, key: &Key, response: Response) -> Result<Response, StoreError> {
        match self.sealed_store() {
            Some(store) => store.sealed_response(scope, key, &response),
            None => Ok(response),
        }
    }

    /// The response that is meant by one that was read in the store by other means than this runner.
    ///
    /// # Errors
    ///
    /// If it can't be opened: of kind configuration if its key is not known, of kind corrupt if it was changed.
    pub fn opened(&self, scope: &Scope, key: &Key, recorded: Response) -> Result<Response, StoreError> {
        match self.sealed_store() {
            Some(store) => store.opened_response(&Place { scope, key, operation: "read" }, recorded),
            None => Ok(recorded),
        }
    }
}

/// A store of which every response and every result of a step is sealed.
pub(crate) struct SealedStore {
    store: Arc<dyn Store>,
    seal: Arc<dyn Seal>,
    /// False where it only opens what others sealed.
    seals: bool,
}

/// By what a service seals, or only opens.
#[derive(Clone)]
pub(crate) struct Sealing {
    pub(crate) seal: Arc<dyn Seal>,
    pub(crate) seals: bool,
}

/// Whose record something is sealed for, and in which operation.
struct Place<'a> {
    scope: &'a Scope,
    key: &'a Key,
    operation: &'static str,
}

impl SealedStore {
    pub(crate) fn new(store: Arc<dyn Store>, Sealing { seal, seals }: Sealing) -> Self {
        Self { store, seal, seals }
    }

    /// What is stored of a response: its status in clear, and everything, the status as well, sealed. All of it in clear
    /// where this service only opens.
    pub(crate) fn sealed_response(
        &self,
        scope: &Scope,
        key: &Key,
        response: &Response,
    ) -> Result<Response, StoreError> {
        if !self.seals {
            return Ok(response.clone());
        }
        let place = Place { scope, key, operation: "complete" };
        // What a transaction's commit gave back is sealed for this record already. What the operation sealed by means of
        // its own is sealed like every other body.
        if matches!(response.body(), Body::Sealed { .. }) && self.opened_response(&place, response.clone()).is_ok() {
            return Ok(response.clone());
        }
        let Sealed { key_id, bytes } = self
            .seal(&response.encode(), &place.bound_to(""))
            .map_err(|error| self.error(&place, "the response can't be sealed", error))?;
        Ok(Response::new(response.status()).with_kept(Body::Sealed { key_id, bytes }))
    }

    /// What `owner`'s transaction recorded, opened.
    pub(crate) fn opened_of(&self, owner: &Owner, response: Response) -> Result<Response, StoreError> {
        self.opened_response(&Place::of(owner, "complete"), response)
    }

    /// What was stored before there was a sealer comes back as it is.
    fn opened_response(&self, place: &Place<'_>, response: Response) -> Result<Response, StoreError> {
        let Body::Sealed { key_id, bytes } = response.body() else {
            return Ok(response);
        };
        let sealed = Sealed { key_id: key_id.clone(), bytes: bytes.clone() };
        let plain = self
            .open(&sealed, &place.bound_to(""))
            .map_err(|error| self.error(place, "the recorded response can't be opened", error))?;
        Response::decode(plain).map_err(|error| StoreError::undecodable(self.store.backend(), place.operation, error))
    }

    /// The result of a step of an earlier attempt; it may have been opened before.
    pub(crate) fn result_of(&self, owner: &Owner, step: &str, value: &Bytes) -> Result<Bytes, StoreError> {
        self.opened_result(&Place::of(owner, "checkpoint"), step, value)
    }

    fn sealed_result(&self, place: &Place<'_>, step: &str, plain: &[u8]) -> Result<Bytes, StoreError> {
        let Sealed { key_id, bytes } = self
            .seal(plain, &place.bound_to(step))
            .map_err(|error| self.error(place, "the result of a step can't be sealed", error))?;
        let length = [key_id.len() as u8]; // 255 at most
        Ok([SEALED_RESULT, &length, key_id.as_bytes(), &bytes].concat().into())
    }

    fn opened_result(&self, place: &Place<'_>, step: &str, value: &Bytes) -> Result<Bytes, StoreError> {
        let Some(sealed) = value.strip_prefix(SEALED_RESULT) else {
            return Ok(value.clone());
        };
        let cut = || {
            let message = "the sealed result of a step is cut short";
            StoreError::new(StoreErrorKind::Corrupt, self.store.backend(), place.operation, message)
        };
        let (length, rest) = sealed.split_first().ok_or_else(cut)?;
        let (key_id, bytes) = rest.split_at_checked(usize::from(*length)).ok_or_else(cut)?;
        let key_id = std::str::from_utf8(key_id).map_err(|_| cut())?.to_owned();
        let sealed = Sealed { key_id, bytes: value.slice_ref(bytes) };
        let plain = self.open(&sealed, &place.bound_to(step));
        Ok(plain.map_err(|error| self.error(place, "the result of a step can't be opened", error))?.into())
    }

    fn opened_record(&self, place: &Place<'_>, mut record: Record) -> Result<Record, StoreError> {
        if let State::Done(response) = record.state {
            record.state = State::Done(self.opened_response(place, response)?);
        }
        if !record.checkpoints.is_empty() {
            // One that can't be opened stays as it is: the step that it belongs to says so, and nothing else of the record
            // depends on it.
            let opened = |step, value| self.opened_result(place, step, value).unwrap_or_else(|_| value.clone());
            let opened = record.checkpoints.iter().map(|(step, value)| (step.to_owned(), opened(step, value)));
            record.checkpoints = opened.collect::<Checkpoints>();
        }
        Ok(record)
    }

    fn opened_snapshot(&self, place: &Place<'_>, found: Option<Snapshot>) -> Result<Option<Snapshot>, StoreError> {
        let Some(Snapshot { record, now }) = found else {
            return Ok(None);
        };
        Ok(Some(Snapshot { record: self.opened_record(place, record)?, now }))
    }

    fn seal(&self, plain: &[u8], bound_to: &[u8]) -> Result<Sealed, SealError> {
        let sealed = unless_it_panics(|| self.seal.seal(plain, bound_to))?;
        // One that can't be found again would never be opened again.
        match sealed.key_id.len() {
            1..=255 => Ok(sealed),
            length => Err(SealError::Failed(format!("the id of its key has {length} bytes, not 1 to 255").into())),
        }
    }

    fn open(&self, sealed: &Sealed, bound_to: &[u8]) -> Result<Vec<u8>, SealError> {
        unless_it_panics(|| self.seal.open(sealed, bound_to))
    }

    /// None of them is of kind unavailable: the record is there, so nothing may run because it can't be opened.
    fn error(&self, place: &Place<'_>, what: &str, error: SealError) -> StoreError {
        let kind = match error {
            SealError::NotAuthentic { .. } => StoreErrorKind::Corrupt,
            SealError::UnknownKey { .. } | SealError::Failed(_) => StoreErrorKind::Configuration,
        };
        let message = format!("{what}: {error}");
        StoreError::new(kind, self.store.backend(), place.operation, message).with_source(error)
    }
}

/// The result of a step as a service has it that opens none.
pub(crate) fn unsealed_result(backend: &'static str, value: &Bytes) -> Result<Bytes, StoreError> {
    if !value.starts_with(SEALED_RESULT) {
        return Ok(value.clone());
    }
    let message = "the result of a step is sealed, and this service opens nothing: another one that seals shares the store; \
                   build this one with its keys too (the settings seal and open_sealed)";
    Err(StoreError::new(StoreErrorKind::Configuration, backend, "checkpoint", message))
}

fn unless_it_panics<T>(call: impl FnOnce() -> Result<T, SealError>) -> Result<T, SealError> {
    let panicked = |_| Err(SealError::Failed("it panicked, which is a bug in it".into()));
    panic::catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(panicked)
}

impl<'a> Place<'a> {
    fn of(owner: &'a Owner, operation: &'static str) -> Self {
        Self { scope: owner.scope(), key: owner.key(), operation }
    }

    /// Scope, key and step, each behind its length; the step is empty for the response.
    fn bound_to(&self, step: &str) -> Vec<u8> {
        let mut bound_to = b"idem.seal.1:".to_vec();
        for name in [self.scope.as_str(), self.key.as_str(), step] {
            bound_to.extend((name.len() as u64).to_be_bytes());
            bound_to.extend(name.as_bytes());
        }
        bound_to
    }
}

#[async_trait]
impl Store for SealedStore {
    fn backend(&self) -> &'static str {
        self.store.backend()
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        let place = Place { scope: claim.scope(), key: claim.key(), operation: "claim" };
        Ok(match self.store.claim(claim).await? {
            ClaimRow::Written(record) => ClaimRow::Written(self.opened_record(&place, record)?),
            ClaimRow::Found { record, now } => ClaimRow::Found { record: self.opened_record(&place, record)?, now },
            busy @ ClaimRow::Busy { .. } => busy,
        })
    }

    async fn complete(
        &self,
        owner: &Owner,
        response: &Response,
        retention: Retention,
    ) -> Result<Fenced<Response>, StoreError> {
        let sealed = self.sealed_response(owner.scope(), owner.key(), response)?;
        match self.store.complete(owner, &sealed, retention).await? {
            // What was just given need not be opened to be known.
            Fenced::Written(recorded) if recorded == sealed && (sealed != *response || !self.seals) => {
                Ok(Fenced::Written(response.clone()))
            }
            Fenced::Written(recorded) => {
                self.opened_response(&Place::of(owner, "complete"), recorded).map(Fenced::Written)
            }
            Fenced::Superseded => Ok(Fenced::Superseded),
        }
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.store.release(owner).await
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.store.forget(owner).await
    }

    async fn hold(&self, owner: &Owner, retention: Retention) -> Result<Fenced<()>, StoreError> {
        self.store.hold(owner, retention).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        self.store.renew(owner, lease).await
    }

    async fn checkpoint(&self, owner: &Owner, checkpoint: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        let (place, step) = (Place::of(owner, "checkpoint"), checkpoint.name());
        let value = match self.seals {
            true => self.sealed_result(&place, step, checkpoint.value())?,
            false => checkpoint.value().clone(),
        };
        let sealed = Checkpoint::new(step, value).map_err(|error| {
            StoreError::new(StoreErrorKind::Contract, self.store.backend(), "checkpoint", error.to_string())
        })?;
        Ok(match self.store.checkpoint(owner, &sealed).await? {
            Fenced::Written(Checkpointed::Kept(kept)) => {
                Fenced::Written(Checkpointed::Kept(self.opened_result(&place, step, &kept)?))
            }
            other => other,
        })
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        let place = Place { scope: resolve.scope(), key: resolve.key(), operation: "resolve" };
        match self.store.resolve(resolve).await? {
            Fenced::Written(record) => self.opened_record(&place, record).map(Fenced::Written),
            Fenced::Superseded => Ok(Fenced::Superseded),
        }
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        let found = self.store.read(scope, key).await?;
        self.opened_snapshot(&Place { scope, key, operation: "read" }, found)
    }

    async fn wait(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
    ) -> Result<Option<Snapshot>, StoreError> {
        let found = self.store.wait(scope, key, seen, at_most).await?;
        self.opened_snapshot(&Place { scope, key, operation: "wait" }, found)
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.store.sweep(limit).await
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        let lapsed = self.store.lapsed(after, limit).await?;
        let opened = lapsed.into_iter().map(|Lapsed { scope, key, record }| {
            let record = self.opened_record(&Place { scope: &scope, key: &key, operation: "lapsed" }, record)?;
            Ok(Lapsed { scope, key, record })
        });
        opened.collect()
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.store.purge(scope, limit).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.store.check().await
    }
}
