//! Claiming: repeated with its token while the reply may be lost, waited for where that is wanted.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use idem_core::{Answer, AttemptId, Claim, Grant, StoreError, StoreErrorKind, Token};
use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    Answered, OnConflict, OnUnavailable, Request, event::event, idempotency::Inner, settle::Backoff, wait::Waited,
};

/// How long to wait at most before asking again where the store can't say whom to wait for: sooner at first.
const POLL: Duration = Duration::from_millis(500);

/// How long to wait for an owner that is finishing, whose lease the store could not see, before claiming again.
const FINISHING: Duration = Duration::from_secs(1);

/// A key that is owned.
pub(crate) struct Granted {
    pub(crate) grant: Grant,
    /// When the store was asked for it: its lease began then at the earliest.
    pub(crate) asked: Instant,
}

impl Inner {
    /// What the claim was granted; none if the operation is to run unprotected. A claim that waits for another attempt
    /// waits until `waiting` is cancelled at most.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        request: Request,
        waiting: Option<&CancellationToken>,
    ) -> Result<Option<Granted>, Answered> {
        let token = self.token().map_err(Answered::Store)?;
        let claim = self.claim_for(request, token);
        let give_up = Instant::now() + self.waiting();
        let mut backoff = Backoff::default();
        let mut seat = None;
        loop {
            let (answer, asked) = match self.ask(&claim).await {
                Ok(answered) => answered,
                Err(error) => return self.unavailable(claim, error, seat.is_some()),
            };
            self.note(&answer);
            let (left, seen) = match answer {
                Answer::Claimed(grant) | Answer::TakenOver(grant) => return Ok(Some(Granted { grant, asked })),
                Answer::Replay { response, stored_at } => return Err(Answered::Replay { response, stored_at }),
                Answer::Reuse { differences } => return Err(Answered::Reuse { differences }),
                Answer::Unknown => return Err(Answered::Unknown),
                Answer::Superseded => return Err(Answered::Superseded),
                Answer::Conflict { left, seen } => (left, seen),
            };
            let conflict = || {
                self.counting.conflict.one();
                event!(DEBUG, "conflict", "another attempt is at it");
                Err(Answered::Conflict { retry_after: retry_after(left) })
            };
            let Some(waiting) = waiting.filter(|_| Instant::now() < give_up) else {
                return conflict();
            };
            if seat.is_none() {
                seat = self.waits.seat();
                if seat.is_none() {
                    self.counting.waits_refused.one();
                    event!(WARN, "wait_refused", "every place for waiters is taken (the setting max_waiters)");
                    return conflict();
                }
            }
            let wait = self.until_claiming_may_help(&claim, seen, left, give_up, &mut backoff);
            let has_waited = waiting.run_until_cancelled(wait).await.is_some();
            if self.closing.is_cancelled() {
                return Err(Answered::ShuttingDown);
            }
            if !has_waited {
                self.counting.waits_abandoned.one();
                event!(DEBUG, "wait_abandoned", "the caller left while it waited for another attempt");
                return Err(Answered::Conflict { retry_after: retry_after(left) }); // nobody hears it
            }
        }
    }

    /// Asks the store, and says when it was asked last: a lease begins then at the earliest.
    ///
    /// First so that nothing is taken over. What may be taken over lapsed because its owner died, or because the owner could
    /// not reach the store: if its outcome waits here to be stored, or the store was away just now, so that the owner is about
    /// to renew its lease, it is left alone.
    async fn ask(&self, claim: &Claim) -> Result<(Answer, Instant), StoreError> {
        let careful = claim.clone().with_lapse_limit(Some(NonZeroU32::MIN));
        let (answer, asked) = self.ask_once(&careful).await?;
        match answer {
            Answer::Unknown if self.outages.was_just_now() || self.renewer.is_settling(claim.scope(), claim.key()) => {
                Ok((Answer::Conflict { left: None, seen: None }, asked))
            }
            Answer::Unknown => self.ask_once(claim).await,
            answer => Ok((answer, asked)),
        }
    }

    /// Its token makes a repeated claim the same claim.
    async fn ask_once(&self, claim: &Claim) -> Result<(Answer, Instant), StoreError> {
        let mut asked = Instant::now();
        let ask = || {
            asked = Instant::now();
            idem_core::claim(&*self.store, claim)
        };
        let answer = self.repeated("claim", ask).await?;
        Ok((answer, asked))
    }

    /// Counts an answer, and says it. A conflict is none yet: the request may wait.
    fn note(&self, answer: &Answer) {
        match answer {
            Answer::Claimed(grant) => {
                self.counting.claimed.one();
                event!(DEBUG, "claimed", number = grant.number(), "claimed");
            }
            Answer::TakenOver(grant) => {
                self.counting.claimed.one();
                self.counting.taken_over.one();
                event!(WARN, "taken_over", number = grant.number(), "took over from an attempt that ended silently");
            }
            Answer::Replay { response, .. } => {
                self.counting.replayed.one();
                event!(DEBUG, "replayed", status = response.status(), "answered with the recorded response");
            }
            Answer::Reuse { differences } => {
                self.counting.reused.one();
                event!(INFO, "reused", %differences, "the key was used for another request");
            }
            Answer::Unknown => {
                self.counting.unknown.one();
                event!(WARN, "unknown", "the outcome of an earlier attempt is unknown until someone resolves it");
            }
            Answer::Superseded => self.counting.superseded.one(),
            Answer::Conflict { .. } => {}
        }
    }

    /// Waits until another claim may be answered otherwise, or until `give_up`.
    async fn until_claiming_may_help(
        &self,
        claim: &Claim,
        seen: Option<AttemptId>,
        left: Option<Duration>,
        give_up: Instant,
        backoff: &mut Backoff,
    ) {
        let pause = |pause: Duration| time::sleep_until(give_up.min(Instant::now() + pause));
        let Some(attempt) = seen else {
            return pause(backoff.pause().min(POLL)).await;
        };
        // A lapse ends no wait of the store's, so none is longer than the lease; one that was renewed goes on.
        let mut left = left.unwrap_or(FINISHING);
        while !left.is_zero() && Instant::now() < give_up {
            let record = (claim.scope(), claim.key());
            let wait = self.waits.wait(&self.store, record, attempt, left, self.settings.store_timeout);
            match time::timeout_at(give_up, wait).await {
                Ok(Waited::Running { left: more }) => left = more,
                // A wait that fails says nothing that claiming again won't say better.
                Ok(Waited::Failed) => return pause(backoff.pause()).await,
                Ok(Waited::Ended) | Err(_) => return,
            }
        }
    }

    pub(crate) fn claim_for(&self, request: Request, token: Token) -> Claim {
        let Request { scope, key, fingerprint, older } = request;
        let claim = Claim::new(scope, key, token, fingerprint)
            .with_lease(self.settings.lease)
            .with_retention(self.settings.retention)
            .with_on_lapse(self.settings.on_lapse)
            .with_lapse_limit(self.settings.lapse_limit);
        older.into_iter().fold(claim, Claim::accepting)
    }

    /// Calls the store, again while it may only have lost the reply, for about `store_timeout`. The call must bear being
    /// applied twice.
    pub(crate) async fn repeated<T, C>(
        &self,
        operation: &'static str,
        mut call: impl FnMut() -> C,
    ) -> Result<T, StoreError>
    where
        C: Future<Output = Result<T, StoreError>>,
    {
        let give_up = Instant::now() + self.settings.store_timeout;
        let mut backoff = Backoff::default();
        loop {
            let error = match self.in_time(operation, async { call().await }).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let pause = backoff.pause();
            if error.kind() != StoreErrorKind::Unavailable || Instant::now() + pause >= give_up {
                return Err(error);
            }
            time::sleep(pause).await;
        }
    }

    /// What a request gets whose claim could not be made. Whoever knows of another attempt, because it `has_waited` for that or
    /// because that runs here, does not run beside it, whatever the policy.
    fn unavailable(
        self: &Arc<Self>,
        claim: Claim,
        error: StoreError,
        has_waited: bool,
    ) -> Result<Option<Granted>, Answered> {
        if error.kind() != StoreErrorKind::Unavailable {
            return Err(Answered::Store(error));
        }
        let runs_unprotected = self.settings.on_unavailable == OnUnavailable::RunUnprotected;
        if runs_unprotected && !has_waited && !self.renewer.runs(claim.scope(), claim.key()) {
            return Ok(None);
        }
        self.take_back_in_background(claim);
        Err(Answered::Store(error))
    }

    fn waiting(&self) -> Duration {
        match self.settings.on_conflict {
            OnConflict::Refuse => Duration::ZERO,
            OnConflict::Wait { at_most } => at_most,
        }
    }

    pub(crate) fn token(&self) -> Result<Token, StoreError> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| {
            let message = "the operating system gives no random bytes for a token";
            StoreError::new(StoreErrorKind::Configuration, self.store.backend(), "claim", message).with_source(error)
        })?;
        Ok(Token::from_bytes(bytes))
    }
}

/// The time left of the owner's lease, from 1 to 5 seconds: it may finish long before its lease ends.
fn retry_after(left: Option<Duration>) -> Duration {
    left.unwrap_or_default().clamp(Duration::from_secs(1), Duration::from_secs(5))
}
