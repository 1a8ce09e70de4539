//! What an operation knows of its attempt.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use idem_core::{
    Body, Checkpoint, Checkpointed, Checkpoints, Completion, Fenced, Grant, InvalidName, Key, NotRetained, Origin,
    Owner, Response, Retention, Scope, StoreError, Transaction,
};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::{
    event::event,
    idempotency::Inner,
    seal::{self, SealedStore},
};

/// The attempt that an operation runs in: a handle, cheap to clone.
#[derive(Clone)]
pub struct Attempt(Arc<Data>);

struct Data {
    owner: Owner,
    origin: Origin,
    is_repeat: bool,
    checkpoints: Checkpoints,
    retention: Retention,
    /// None where nothing protects the operation.
    runner: Option<Arc<Inner>>,
    lost: CancellationToken,
    is_lost: AtomicBool,
    /// Whether its operation gave its outcome: what still works under it, in tasks of its own, is no part of it.
    is_over: AtomicBool,
    progress: Mutex<Progress>,
}

/// What the operation did through its handle.
#[derive(Default)]
struct Progress {
    /// Results of steps that this attempt did itself, or does at this moment.
    steps: HashMap<String, Arc<Step>>,
    /// What it last gave to a transaction of its own.
    committing: Option<Response>,
    /// Its response must not be stored.
    is_secret: bool,
    /// It did nothing, whatever it failed with.
    did_nothing: bool,
}

/// A step that this attempt did itself, or does at this moment.
#[derive(Default)]
struct Step {
    /// What its work gave.
    done: OnceCell<Bytes>,
    /// What the record has of it.
    kept: OnceCell<Bytes>,
}

/// Why a step gave no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError<E> {
    /// The step's own work failed.
    #[error(transparent)]
    Work(E),
    /// The name of the step is none.
    #[error("the name of a step: {0}")]
    Name(InvalidName),
    /// The attempt lost its key to another, which may be at this step too, or has ended while a task of it went on: stop.
    #[error("this attempt is no longer the owner of its key; stop")]
    Superseded,
    /// The results of all steps are larger than 64 KiB together. The step was done and its result is not kept for
    /// other attempts.
    #[error("the results of this operation's steps are larger than 64 KiB together; keep references, not contents")]
    Full,
    /// The store failed. The step was done, and whether its result was kept is not known: asked again, this attempt tries
    /// to keep it, and does not do it again. Or an earlier attempt did it, and its result can't be read here.
    #[error(transparent)]
    Store(StoreError),
}

impl Attempt {
    pub(crate) fn protected(grant: &Grant, runner: Arc<Inner>) -> Self {
        Self(Arc::new(Data {
            owner: grant.owner().clone(),
            origin: grant.origin(),
            is_repeat: grant.is_repeat(),
            checkpoints: grant.checkpoints().clone(),
            retention: runner.settings.retention,
            runner: Some(runner),
            lost: CancellationToken::new(),
            is_lost: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            progress: Mutex::default(),
        }))
    }

    /// An attempt that nothing protects: it is always a first one, keeps no steps, and no transaction can complete it.
    pub(crate) fn unprotected(scope: Scope, key: Key) -> Self {
        Self(Arc::new(Data {
            owner: Owner::nobody(scope, key),
            origin: Origin::First,
            is_repeat: false,
            checkpoints: Checkpoints::default(),
            retention: Retention::default(),
            runner: None,
            lost: CancellationToken::new(),
            is_lost: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            progress: Mutex::default(),
        }))
    }

    /// An attempt for calling a handler in a test: a first one, that no store knows. A transaction that it completes
    /// in answers Superseded.
    pub fn for_test(scope: Scope, key: Key) -> Self {
        Self::unprotected(scope, key)
    }

    /// Whose key it is.
    pub fn scope(&self) -> &Scope {
        self.0.owner.scope()
    }

    /// The key.
    pub fn key(&self) -> &Key {
        self.0.owner.key()
    }

    /// What every write of the attempt carries.
    pub fn owner(&self) -> &Owner {
        &self.0.owner
    }

    /// The attempt's number, from 1; 0 where nothing protects it.
    pub fn number(&self) -> u32 {
        self.0.owner.attempt().number
    }

    /// How the attempt came to own the key.
    pub fn origin(&self) -> Origin {
        self.0.origin
    }

    /// Whether an earlier attempt may have had effects: look for them before repeating them, or repeat them under the
    /// same [downstream key](Attempt::downstream_key).
    pub fn is_repeat(&self) -> bool {
        self.0.is_repeat
    }

    /// Whether the key protects the operation: false when it runs by
    /// [`OnUnavailable::RunUnprotected`](crate::OnUnavailable::RunUnprotected), and in tests of handlers.
    pub fn is_protected(&self) -> bool {
        self.0.runner.is_some()
    }

    /// What earlier attempts left: results of their steps. One that can't be opened here is sealed still;
    /// [`step`](Attempt::step) says why.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.0.checkpoints
    }

    /// The key to send to another service with one step: the same in every attempt, and in no other operation or step. 69
    /// ASCII characters; [providers that take fewer](idem_core::downstream_uuid) get a
    /// [UUID](Attempt::downstream_uuid).
    pub fn downstream_key(&self, step: &str) -> String {
        idem_core::downstream_key(self.scope().as_str(), self.key().as_str(), step)
    }

    /// The same as a UUID of 36 characters, for providers that take no other, or no longer one. A service must send one and
    /// the same form in every attempt.
    pub fn downstream_uuid(&self, step: &str) -> String {
        idem_core::downstream_uuid(self.scope().as_str(), self.key().as_str(), step)
    }

    /// Waits until another attempt is known to have taken the key over. Whatever this attempt does from then on is not
    /// the recorded outcome: stop if you can.
    ///
    /// The next renewal finds out, within a third of the lease; after `max_run` it takes up to a lease, and while the
    /// operation blocks the only thread of its runtime nobody can tell it.
    pub async fn superseded(&self) {
        self.0.lost.cancelled().await;
    }

    /// Whether another attempt is known to have taken the key over.
    pub fn is_superseded(&self) -> bool {
        self.0.lost.is_cancelled()
    }

    /// Does one step of the operation once: a later attempt gets its result instead of doing it again, and so does this
    /// one if it asks twice, also at once.
    ///
    /// A crash between the end of the work and the keeping of its result still repeats the work, so send
    /// [`Attempt::downstream_key`] along.
    ///
    /// # Errors
    ///
    /// [`StepError`]: the work's own error, a bad name, a lost key, too many bytes, a store that fails. For other attempts the
    /// step counts as not done then.
    ///
    /// Work that asks for its own step waits for itself.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future drops the work; a result that was not kept is not there for the next attempt.
    pub async fn step<E, F>(&self, name: &str, work: impl FnOnce() -> F) -> Result<Bytes, StepError<E>>
    where
        F: Future<Output = Result<Bytes, E>>,
    {
        Checkpoint::new(name, Bytes::new()).map_err(StepError::Name)?;
        if let Some(kept) = self.0.checkpoints.find(name) {
            let opened = match (&self.0.runner, self.sealed_store()) {
                (_, Some(store)) => store.result_of(&self.0.owner, name, kept),
                (Some(runner), None) => seal::unsealed_result(runner.store.backend(), kept),
                (None, None) => Ok(kept.clone()),
            };
            return opened.map_err(StepError::Store);
        }
        let step = Arc::clone(self.progress().steps.entry(name.into()).or_default());
        step.kept.get_or_try_init(|| self.do_step(name, &step.done, work)).await.cloned()
    }

    async fn do_step<E, F>(
        &self,
        name: &str,
        done: &OnceCell<Bytes>,
        work: impl FnOnce() -> F,
    ) -> Result<Bytes, StepError<E>>
    where
        F: Future<Output = Result<Bytes, E>>,
    {
        // What another attempt may be doing at this moment is not begun, and nothing once the outcome is given.
        if self.is_superseded() || self.0.is_over.load(Ordering::SeqCst) {
            return Err(StepError::Superseded);
        }
        // Work whose result could not be kept is not done again by this attempt: only the keeping is.
        let result = done.get_or_try_init(work).await.map_err(StepError::Work)?.clone();
        let Some(runner) = &self.0.runner else {
            return Ok(result);
        };
        let checkpoint = Checkpoint::new(name, result).map_err(StepError::Name)?;
        // The first value of a name stays, so a repeated checkpoint is the same checkpoint.
        match runner.repeated("checkpoint", || runner.store.checkpoint(&self.0.owner, &checkpoint)).await {
            Ok(Fenced::Written(Checkpointed::Kept(kept))) => Ok(kept),
            Ok(Fenced::Written(Checkpointed::Full)) => Err(StepError::Full),
            Ok(Fenced::Superseded) => {
                // After a commit of its own its record is done, and its key not lost.
                if !self.used_transaction() {
                    self.mark_lost();
                }
                Err(StepError::Superseded)
            }
            Err(error) => Err(StepError::Store(error)),
        }
    }

    /// Says that the response of this attempt must not be stored, because it holds a secret that is shown once. It goes
    /// out whole; of a final one only its status is recorded, and a retry gets
    /// [`Outcome::Replay`](crate::Outcome::Replay) of a response that is [not retained](idem_core::Body::NotRetained).
    ///
    /// Call it before a response is [committed](Attempt::commit) in the operation's own transaction: then it holds for that
    /// too, and the first client gets what the operation answers.
    pub fn do_not_retain(&self) {
        self.progress().is_secret = true;
    }

    /// Says that the operation did nothing, and will not: if it fails with an error or a passing status now, its key is
    /// forgotten instead of released (or held, under hold), so that a corrected request may use it. For what is refused before
    /// it begins: by a validation, or for want of room. It says nothing of a panic.
    pub fn nothing_was_done(&self) {
        self.progress().did_nothing = true;
    }

    /// Completes the record in the caller's transaction and commits it: the effects and "this key is done" together or
    /// not at all. Gives the recorded response, which is what the client must get.
    ///
    /// What it returns is the backend's choice: `Result<Response, CommitError>` for SQLite, a future of it elsewhere.
    /// Its error Superseded means that everything was rolled back, so `?` is right.
    pub fn commit<T: Transaction>(&self, transaction: T, response: Response) -> T::Committed {
        transaction.commit_with(self.completion(response))
    }

    /// The same for code that keeps its own transaction: hand it to the backend's `complete_in`, and commit only if that
    /// did not answer Superseded.
    ///
    /// Where responses are [sealed](crate::Builder::seal), it holds the sealed one, and so does what the backend gives back.
    /// The runner gives the opened one to the client; elsewhere [`Attempt::opened`] does. If sealing fails the response is not
    /// retained.
    pub fn completion(&self, response: Response) -> Completion {
        let is_secret = {
            let mut progress = self.progress();
            progress.committing = Some(response.clone());
            progress.is_secret
        };
        let response = match is_secret {
            true => Response::new(response.status()).with_kept(Body::NotRetained(NotRetained::Secret)),
            false => response,
        };
        let kept = match self.sealed_store() {
            Some(store) => store.sealed_response(self.scope(), self.key(), &response).unwrap_or_else(|error| {
                // What this transaction does must be done once, and what it says must not be stored in clear.
                event!(ERROR, "not_sealed", %error, attempt = ?self, "a response can't be sealed; it is not retained");
                Response::new(response.status()).with_kept(Body::NotRetained(NotRetained::Secret))
            }),
            None => response,
        };
        Completion::new(self.0.owner.clone(), kept, self.0.retention)
    }

    /// The response that is meant by one that [`Attempt::commit`] gave, where responses are sealed; elsewhere the same.
    ///
    /// # Errors
    ///
    /// If it can't be opened: of kind configuration if its key is not known, of kind corrupt if it was changed.
    pub fn opened(&self, recorded: Response) -> Result<Response, StoreError> {
        match self.sealed_store() {
            Some(store) => store.opened_of(&self.0.owner, recorded),
            None => Ok(recorded),
        }
    }

    fn sealed_store(&self) -> Option<&SealedStore> {
        self.0.runner.as_ref().and_then(|runner| runner.sealed.as_deref())
    }

    /// Makes it known, and counts, that the attempt lost its key: once, whoever finds out first.
    pub(crate) fn mark_lost(&self) {
        if self.0.is_lost.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(runner) = &self.0.runner {
            runner.counting.superseded.one();
        }
        event!(WARN, "superseded", attempt = ?self, "the attempt lost its key; its outcome is not the recorded one");
        self.0.lost.cancel();
    }

    /// Whether the operation may have completed its record in a transaction of its own.
    pub(crate) fn used_transaction(&self) -> bool {
        self.progress().committing.is_some()
    }

    /// Its operation gave its outcome: no step begins any more.
    pub(crate) fn mark_over(&self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_secret(&self) -> bool {
        self.progress().is_secret
    }

    pub(crate) fn did_nothing(&self) -> bool {
        self.progress().did_nothing
    }

    /// Whether this is what the operation gave to a transaction of its own, by [`commit`](Attempt::commit) or
    /// [`completion`](Attempt::completion). An operation whose reply has this response must have committed it.
    pub fn is_committing(&self, response: &Response) -> bool {
        self.progress().committing.as_ref() == Some(response)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.0.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("scope", self.scope())
            .field("key", self.key())
            .field("number", &self.number())
            .field("is_repeat", &self.is_repeat())
            .finish_non_exhaustive()
    }
}
