//! The runner.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt;
use idem_core::{
    Body, Claim, Fenced, Grant, NotRetained, OnLapse, Origin, Response, Retention, Store, StoreError, StoreErrorKind,
};
use tokio::{
    runtime::Handle,
    time::{self, Instant},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, Span, field::Empty};

use crate::{
    Answered, Attempt, Builder, Claimed, Counters, OnConflict, Outcome, Reply, Request, Running, Settle, call,
    claim::Granted,
    config::Settings,
    counters::Counting,
    detach::Detached,
    event::event,
    meter::{self, CLAIM_SECONDS, OPERATION_SECONDS},
    outage::Outages,
    renew::{Renewal, Renewer},
    seal::{SealedStore, Sealing},
    settle::{Ending, OwnCommit, Persisted},
    sweep::Sweeper,
    wait::Waits,
};

/// The name of the span of a request.
const SPAN: &str = "idem.request";

/// Runs operations under idempotency keys. Built once for a store; a handle, cheap to clone.
#[derive(Clone)]
pub struct Idempotency(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    /// The same store, if what it keeps is sealed.
    pub(crate) sealed: Option<Arc<SealedStore>>,
    pub(crate) settings: Settings,
    pub(crate) counting: Arc<Counting>,
    /// Everything that was claimed and is not settled.
    pub(crate) tracker: TaskTracker,
    pub(crate) renewer: Arc<Renewer>,
    pub(crate) outages: Arc<Outages>,
    sweeper: Sweeper,
    /// Cancelled when nothing may be claimed any more.
    pub(crate) closing: CancellationToken,
    pub(crate) waits: Waits,
}

impl Idempotency {
    /// Starts with the defaults of every setting.
    pub fn builder(store: Arc<dyn Store>) -> Builder {
        Builder::new(store)
    }

    pub(crate) fn new(store: Arc<dyn Store>, seal: Option<Sealing>, settings: Settings) -> Self {
        let counting = Arc::new(Counting::new(store.backend()));
        // It has nothing to do with what is sealed.
        let outages = Arc::new(Outages::new(settings.lease / 3));
        let renewer = Renewer::new(Arc::clone(&store), settings.lease, Arc::clone(&counting), Arc::clone(&outages));
        let sealed = seal.map(|seal| Arc::new(SealedStore::new(Arc::clone(&store), seal)));
        let store = sealed.clone().map_or(store, |sealed| sealed as Arc<dyn Store>);
        meter::describe();
        Self(Arc::new(Inner {
            renewer,
            outages,
            sweeper: Sweeper::default(),
            waits: Waits::new(settings.max_waiters, Arc::clone(&counting)),
            store,
            sealed,
            settings,
            counting,
            tracker: TaskTracker::new(),
            closing: CancellationToken::new(),
        }))
    }

    /// Claims the key, runs the operation if it is to run, and settles by what it gives.
    ///
    /// An operation's future is polled in place. Its lease is renewed while it runs, up to `max_run`. If it had to be
    /// completed and the store could not be told, that is tried again in the background while the client has its
    /// answer.
    ///
    /// # Cancellation safety
    ///
    /// A future that is dropped before it is first polled does nothing. From then on nothing is cancelled: claim,
    /// operation and settling go on in a task of their own. Only a request that [waits](crate::OnConflict::Wait) for another attempt
    /// leaves with its caller.
    ///
    /// # Panics
    ///
    /// A panic of the operation is caught: [`Outcome::Panicked`]. Called outside a Tokio runtime it answers with an
    /// error of kind configuration.
    pub async fn run<T, E, F, O>(&self, request: Request, operation: F) -> Outcome<T, E>
    where
        T: Reply + Send + 'static,
        E: Send + 'static,
        F: FnOnce(Attempt) -> O + Send + 'static,
        O: Future<Output = Result<T, E>> + Send + 'static,
    {
        let runtime = match self.0.runtime("claim") {
            Ok(runtime) => runtime,
            Err(error) => return Outcome::Store(error),
        };
        let (span, waiting) = (request.span(), self.0.waits_until());
        let work = Arc::clone(&self.0).run(request, operation, waiting.clone()).instrument(span);
        Detached::new(runtime, self.0.tracker.track_future(work)).telling(waiting).await
    }

    /// The claim that [`run`](Idempotency::run) would make for a request, under a fresh token and with this runner's
    /// settings: for stores that also claim in a transaction of the caller's (`PostgresStore::claim_in`). Whatever comes
    /// of it is between the caller and the store: nothing is renewed, settled, counted or sealed. Where this runner
    /// seals, pass responses through [`sealed`](Idempotency::sealed) and [`opened`](Idempotency::opened).
    ///
    /// # Errors
    ///
    /// Of kind configuration if the operating system gives no random bytes.
    pub fn prepare(&self, request: Request) -> Result<Claim, StoreError> {
        Ok(self.0.claim_for(request, self.0.token()?))
    }

    /// Claims the key for a handler that settles by hand.
    ///
    /// # Cancellation safety
    ///
    /// A claim whose future is dropped is given back as soon as it is known.
    pub async fn claim(&self, request: Request) -> Claimed {
        let runtime = match self.0.runtime("claim") {
            Ok(runtime) => runtime,
            Err(error) => return Claimed::Answered(Answered::Store(error)),
        };
        let (span, waiting) = (request.span(), self.0.waits_until());
        let work = Arc::clone(&self.0).claim_by_hand(request, runtime.clone(), waiting.clone()).instrument(span);
        let mut claimed = Detached::new(runtime, self.0.tracker.track_future(work)).telling(waiting).await;
        if let Claimed::Run(running) = &mut claimed {
            running.deliver();
        }
        claimed
    }

    /// Stops claiming, for good, and waits until everything that was claimed is settled, for `limit` at most. True if it
    /// all ended in time; what did not is left to its leases. It may be called again, to wait longer. Outside a Tokio runtime
    /// it does not wait.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future ends the waiting. Claiming stays stopped.
    pub async fn shutdown(&self, limit: Duration) -> bool {
        self.0.closing.cancel();
        self.0.tracker.close();
        let ended = match Handle::try_current() {
            Ok(_) => time::timeout(limit, self.0.tracker.wait()).await.is_ok(),
            Err(_) => self.0.tracker.is_empty(),
        };
        if !ended {
            event!(
                WARN,
                "shutdown_incomplete",
                left = self.0.tracker.len(),
                "shut down before every attempt had ended"
            );
        }
        ended
    }

    /// How long a record stays: the window in which a retry is answered from it.
    pub fn retention(&self) -> Retention {
        self.0.settings.retention
    }

    /// What happens to a key whose attempt ended silently, failed or panicked.
    pub fn on_lapse(&self) -> OnLapse {
        self.0.settings.on_lapse
    }

    /// How long an attempt may stay silent before another may take over.
    pub fn lease(&self) -> Duration {
        self.0.settings.lease
    }

    /// Whether it is a handle on the same runner.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn sealed_store(&self) -> Option<&SealedStore> {
        self.0.sealed.as_deref()
    }

    /// The store; what it keeps [sealed](Builder::seal) is opened.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.0.counting.so_far()
    }
}

impl Inner {
    async fn run<T, E, F, O>(
        self: Arc<Self>,
        request: Request,
        operation: F,
        waiting: Option<CancellationToken>,
    ) -> Outcome<T, E>
    where
        T: Reply,
        F: FnOnce(Attempt) -> O,
        O: Future<Output = Result<T, E>>,
    {
        let (attempt, renewal) = match self.start(request, waiting).await {
            Ok(started) => started,
            Err(answered) => return answered.into(),
        };
        let begun = Instant::now();
        let ended = AssertUnwindSafe(async { operation(attempt.clone()).await }).catch_unwind().await;
        attempt.mark_over();
        self.settle(attempt, renewal, ended.map_err(|_| ()), begun.elapsed()).await
    }

    async fn claim_by_hand(
        self: Arc<Self>,
        request: Request,
        runtime: Handle,
        waiting: Option<CancellationToken>,
    ) -> Claimed {
        match self.start(request, waiting).await {
            Ok((attempt, renewal)) => Claimed::Run(Running::new(self, runtime, attempt, renewal)),
            Err(answered) => Claimed::Answered(answered),
        }
    }

    /// Claims, and makes the attempt ready to run.
    async fn start(
        self: &Arc<Self>,
        request: Request,
        waiting: Option<CancellationToken>,
    ) -> Result<(Attempt, Option<Renewal>), Answered> {
        if self.closing.is_cancelled() {
            let answered = Answered::ShuttingDown;
            self.counting.seconds(CLAIM_SECONDS, answered.word(), Duration::ZERO);
            note("claim", answered.word());
            return Err(answered);
        }
        self.sweeper.ensure_running(self);
        let (scope, key) = (request.scope.clone(), request.key.clone());
        let begun = Instant::now();
        let claimed = match self.claim(request, waiting.as_ref()).await {
            Ok(Some(Granted { grant, asked })) => self.confirm(&grant, asked).await.map(|leased| Some((grant, leased))),
            Ok(None) => Ok(None),
            Err(answered) => Err(answered),
        };
        let word = match &claimed {
            Ok(Some((grant, _))) if grant.origin() == Origin::Takeover => "taken_over",
            Ok(Some(_)) => "claimed",
            Ok(None) => "unprotected",
            Err(answered) => answered.word(),
        };
        self.counting.seconds(CLAIM_SECONDS, word, begun.elapsed());
        note("claim", word);
        let Some((grant, leased)) = claimed? else {
            self.counting.unprotected.one();
            event!(WARN, "unprotected", "the store is unavailable: the operation runs unprotected");
            return Ok((Attempt::unprotected(scope, key), None));
        };
        note("attempt", grant.number());
        let attempt = Attempt::protected(&grant, Arc::clone(self));
        let renewal = self.renewer.register(&attempt, leased, self.settings.max_run).await;
        Ok((attempt, Some(renewal)))
    }

    /// Renews the lease before the operation starts, where that is needed, and gives when the lease began at the
    /// earliest.
    ///
    /// Under hold an attempt says that it starts before it does: what lapses without having said so did nothing. And a
    /// claim that was answered so late that a renewal is due may have been lost to another attempt on its way.
    async fn confirm(self: &Arc<Self>, grant: &Grant, asked: Instant) -> Result<Instant, Answered> {
        if self.settings.on_lapse != OnLapse::Hold && asked.elapsed() < self.renewer.interval() {
            return Ok(asked);
        }
        let mut asked = asked;
        let renew = || {
            asked = Instant::now();
            self.store.renew(grant.owner(), self.settings.lease)
        };
        match self.repeated("renew", renew).await {
            Ok(Fenced::Written(())) => Ok(asked),
            Ok(Fenced::Superseded) => {
                self.counting.superseded.one();
                Err(Answered::Superseded)
            }
            Err(error) => {
                self.give_back_in_background(grant.owner().clone());
                Err(Answered::Store(error))
            }
        }
    }

    async fn settle<T: Reply, E>(
        self: Arc<Self>,
        attempt: Attempt,
        renewal: Option<Renewal>,
        ended: Result<Result<T, E>, ()>,
        took: Duration,
    ) -> Outcome<T, E> {
        // What a reply says of itself is the service's code too.
        let says = |reply: &T| panic::catch_unwind(AssertUnwindSafe(|| (reply.settles_as(), reply.response())));
        let (ended, said) = match ended {
            Ok(Ok(reply)) => match says(&reply) {
                Ok(said) => (Ok(Ok(reply)), Some(said)),
                Err(_) => (Err(()), None),
            },
            other => (other, None),
        };
        let ending = match said {
            Some((status, response)) => match self.settings.settle.of(status) {
                // What is in a transaction of its own is recorded as it is.
                Settle::Complete if attempt.is_committing(&response) => Ending::Complete(response),
                Settle::Complete => Ending::Complete(self.retained(&attempt, response)),
                Settle::Release if attempt.did_nothing() => Ending::Forget,
                Settle::Release => self.passing(),
                Settle::Forget => Ending::Forget,
            },
            None if ended.is_err() => {
                event!(ERROR, "panicked", ?attempt, "the operation panicked");
                self.passing()
            }
            None if attempt.did_nothing() => Ending::Forget,
            None => self.passing(),
        };
        self.counting.seconds(OPERATION_SECONDS, ending.operation(), took);
        note("settle", ending.operation());
        let response = match &ending {
            Ending::Complete(response) => Some(response.clone()),
            Ending::Release | Ending::Forget | Ending::Hold => None,
        };
        let Some(renewal) = renewal else {
            return unsettled(ended, response.is_none());
        };
        if let Some(response) = &response
            && attempt.is_committing(response)
        {
            return self.settle_committed(attempt, renewal, ended, response).await;
        }
        let is_to_give_back = response.is_none();
        match self.persist(&attempt, ending, renewal).await {
            Persisted::Completed(recorded) if !response.is_some_and(|given| is_answer(&attempt, &given, &recorded)) => {
                Outcome::Recorded(recorded)
            }
            Persisted::Completed(_) | Persisted::GivenBack => unsettled(ended, true),
            Persisted::Pending | Persisted::Failed => unsettled(ended, is_to_give_back),
            Persisted::Superseded => Outcome::Superseded,
        }
    }

    /// The operation answers with what it gave to a transaction of its own: the record tells whether that was committed.
    async fn settle_committed<T, E>(
        self: Arc<Self>,
        attempt: Attempt,
        renewal: Renewal,
        ended: Result<Result<T, E>, ()>,
        response: &Response,
    ) -> Outcome<T, E> {
        match self.own_commit(&attempt).await {
            Ok(OwnCommit::Committed(recorded)) => {
                self.note_completed(&recorded, "commit", renewal.lease_left());
                match is_answer(&attempt, response, &recorded) {
                    true => unsettled(ended, true),
                    false => Outcome::Recorded(recorded),
                }
            }
            Ok(OwnCommit::RolledBack) => {
                event!(
                    ERROR,
                    "not_committed",
                    ?attempt,
                    "an operation answered with what is not committed; its key is given back, unless the commit still arrives"
                );
                match self.persist(&attempt, self.passing(), renewal).await {
                    Persisted::Superseded => Outcome::Superseded,
                    // Committed at the last moment.
                    Persisted::Completed(recorded) if is_answer(&attempt, response, &recorded) => {
                        unsettled(ended, true)
                    }
                    Persisted::Completed(recorded) => Outcome::Recorded(recorded),
                    Persisted::GivenBack | Persisted::Pending | Persisted::Failed => Outcome::RolledBack,
                }
            }
            Ok(OwnCommit::Superseded) => {
                attempt.mark_lost();
                Outcome::Superseded
            }
            Err(error) => {
                event!(ERROR, "commit_unknown", %error, ?attempt, "whether a transaction was committed is not known; its key is left to its lease");
                Outcome::Unconfirmed(error)
            }
        }
    }

    /// What is recorded of a response: all of it, unless it is a secret or too large.
    pub(crate) fn retained(&self, attempt: &Attempt, response: Response) -> Response {
        let is_too_large = |size: usize| self.settings.max_response.is_some_and(|limit| size > limit);
        match response.body() {
            _ if attempt.is_secret() => {
                Response::new(response.status()).with_kept(Body::NotRetained(NotRetained::Secret))
            }
            Body::Kept(bytes) | Body::Sealed { bytes, .. } if is_too_large(bytes.len()) => {
                response.with_kept(Body::NotRetained(NotRetained::TooLarge))
            }
            _ => response,
        }
    }

    /// How an attempt ends that did not come to a final outcome.
    pub(crate) fn passing(&self) -> Ending {
        match self.settings.on_lapse {
            OnLapse::Hold => Ending::Hold,
            OnLapse::TakeOver => Ending::Release,
        }
    }

    /// A call of the store, within the time that it may take.
    pub(crate) async fn in_time<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let (limit, name) = (self.settings.store_timeout, "the setting store_timeout");
        let result = call::answer((self.store.backend(), operation), limit, name, call).await;
        self.outages.note(&result);
        if let Err(error) = &result {
            self.counting.store_error(operation, error);
        }
        result
    }

    /// Until when a request waits for another attempt, where it does: it is cancelled when the shutdown begins, and when
    /// the caller leaves. What has claimed nothing has nothing to finish.
    fn waits_until(&self) -> Option<CancellationToken> {
        matches!(self.settings.on_conflict, OnConflict::Wait { .. }).then(|| self.closing.child_token())
    }

    pub(crate) fn runtime(&self, operation: &'static str) -> Result<Handle, StoreError> {
        Handle::try_current().map_err(|error| {
            let message = "it was called outside a Tokio runtime; run it inside one";
            StoreError::new(StoreErrorKind::Configuration, self.store.backend(), operation, message).with_source(error)
        })
    }
}

/// Whether a client that gets the response which the attempt `given` gets what is recorded: also where that was committed
/// without its body, because the body is a secret or could not be sealed.
pub(crate) fn is_answer(attempt: &Attempt, given: &Response, recorded: &Response) -> bool {
    let is_without_body = attempt.is_secret() || matches!(recorded.body(), Body::NotRetained(_));
    given == recorded || attempt.used_transaction() && is_without_body && given.status() == recorded.status()
}

/// The outcome of an operation that has nothing recorded to say otherwise.
fn unsettled<T, E>(ended: Result<Result<T, E>, ()>, stored: bool) -> Outcome<T, E> {
    match ended {
        Ok(Ok(reply)) => Outcome::Ran { reply, stored },
        Ok(Err(error)) => Outcome::Failed(error),
        Err(()) => Outcome::Panicked,
    }
}

/// Says it in the span of the request, if that is recorded.
fn note(field: &str, value: impl tracing::Value) {
    let span = Span::current();
    if span.metadata().is_some_and(|metadata| metadata.name() == SPAN) {
        span.record(field, value);
    }
}

impl Request {
    /// What happens under this request. Scope and key are shortened.
    fn span(&self) -> Span {
        let Self { scope, key, .. } = self;
        tracing::info_span!(target: "idem", SPAN, ?scope, ?key, claim = Empty, attempt = Empty, settle = Empty)
    }
}

impl std::fmt::Debug for Idempotency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { store, settings, .. } = &*self.0;
        f.debug_struct("Idempotency")
            .field("store", &store.backend())
            .field("settings", settings)
            .finish_non_exhaustive()
    }
}
