//! Ending an attempt in the store, through trouble.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use idem_core::{Answer, Body, Claim, Fenced, Owner, Response, State, StoreError, StoreErrorKind};
use tokio::time::{self, Instant};
use tracing::Instrument;

use crate::{
    Attempt,
    event::event,
    idempotency::Inner,
    meter::{self, LEASE_LEFT_SECONDS},
    renew::Renewal,
};

/// The pause before what may have been claimed is taken back: the store's trouble may have passed by then.
const TAKE_BACK_PAUSE: Duration = Duration::from_secs(1);

/// How an attempt ends.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    Complete(Response),
    Release,
    Forget,
    Hold,
}

/// What became of a transaction in which an operation completed its record.
#[derive(Debug)]
pub(crate) enum OwnCommit {
    /// It was committed; the record has this response.
    Committed(Response),
    /// It was rolled back: the record is still in progress.
    RolledBack,
    /// Another attempt owns the record.
    Superseded,
}

impl Ending {
    /// The operation of the store that it takes.
    pub(crate) fn operation(&self) -> &'static str {
        match self {
            Self::Complete(_) => "complete",
            Self::Release => "release",
            Self::Forget => "forget",
            Self::Hold => "hold",
        }
    }
}

/// What came of ending it.
#[derive(Debug)]
pub(crate) enum Persisted {
    /// The record is done with this response.
    Completed(Response),
    GivenBack,
    Superseded,
    /// Goes on in the background.
    Pending,
    /// The store will not have it, or not in time. The key is left to its lease, never freed.
    Failed,
}

impl Inner {
    /// Ends the attempt, for as long as a client should wait; then goes on in the background.
    pub(crate) async fn persist(self: &Arc<Self>, attempt: &Attempt, ending: Ending, renewal: Renewal) -> Persisted {
        attempt.mark_over();
        let patience = self.settings.completion_patience;
        let mut work = Box::pin(Arc::clone(self).end(attempt.clone(), ending, renewal));
        match time::timeout(patience, &mut work).await {
            Ok(persisted) => persisted,
            Err(_) => {
                self.tracker.spawn(work.in_current_span());
                Persisted::Pending
            }
        }
    }

    /// Ends the attempt: again and again, past the lapse too, until the store has it, another attempt took over, or
    /// the limit is reached. The lease is renewed meanwhile.
    async fn end(self: Arc<Self>, attempt: Attempt, ending: Ending, renewal: Renewal) -> Persisted {
        let give_up = Instant::now() + self.settings.completion_limit;
        let mut backoff = Backoff::default();
        renewal.settling();
        loop {
            let error = match self.in_time(ending.operation(), self.write(attempt.owner(), &ending)).await {
                Ok(Fenced::Written(recorded)) => {
                    let left = renewal.lease_left();
                    drop(renewal);
                    return self.ended(recorded, ending.operation(), left);
                }
                Ok(Fenced::Superseded) => {
                    let left = renewal.lease_left();
                    drop(renewal);
                    return self.lost(&attempt, left).await;
                }
                Err(error) => error,
            };
            let pause = backoff.pause();
            // All but a bug may pass: a file that is read-only for a moment, a replica until it is promoted.
            if error.kind() == StoreErrorKind::Contract || Instant::now() + pause >= give_up {
                self.counting.completion_failures.one();
                event!(ERROR, "completion_failed", %error, ?attempt, "an attempt could not be ended; its key is left to its lease");
                return Persisted::Failed;
            }
            self.counting.completion_retries.one();
            time::sleep(pause).await;
        }
    }

    async fn write(&self, owner: &Owner, ending: &Ending) -> Result<Fenced<Option<Response>>, StoreError> {
        let retention = self.settings.retention;
        let given_back = match ending {
            Ending::Complete(response) => {
                return Ok(match self.store.complete(owner, response, retention).await? {
                    Fenced::Written(recorded) => Fenced::Written(Some(recorded)),
                    Fenced::Superseded => Fenced::Superseded,
                });
            }
            Ending::Release => self.store.release(owner).await?,
            Ending::Forget => self.store.forget(owner).await?,
            Ending::Hold => self.store.hold(owner, retention).await?,
        };
        Ok(match given_back {
            Fenced::Written(()) => Fenced::Written(None),
            Fenced::Superseded => Fenced::Superseded,
        })
    }

    /// `how` it ended, and with how much of its lease `left`.
    fn ended(&self, recorded: Option<Response>, how: &'static str, left: Option<Duration>) -> Persisted {
        match recorded {
            Some(response) => {
                self.note_completed(&response, how, left);
                Persisted::Completed(response)
            }
            None => {
                self.counting.released.one();
                event!(DEBUG, "released", how, "the attempt ended without a recorded response");
                Persisted::GivenBack
            }
        }
    }

    pub(crate) fn note_completed(&self, response: &Response, how: &'static str, left: Option<Duration>) {
        self.counting.completed.one();
        if matches!(response.body(), Body::NotRetained(_)) {
            self.counting.not_retained.one();
        }
        if let Some(left) = left {
            meter::seconds(LEASE_LEFT_SECONDS, &[("backend", self.counting.backend())], left);
        }
        event!(DEBUG, "completed", how, status = response.status(), "the response is recorded");
    }

    /// The attempt is not the owner (any more): another took over, or it committed its own completion and then gave an
    /// outcome that is not final. What is recorded is what the client must get.
    async fn lost(&self, attempt: &Attempt, left: Option<Duration>) -> Persisted {
        if attempt.used_transaction()
            && let Ok(OwnCommit::Committed(response)) = self.own_commit(attempt).await
        {
            return self.ended(Some(response), "commit", left);
        }
        attempt.mark_lost();
        Persisted::Superseded
    }

    /// What became of the transaction in which the operation completed its record. The record tells.
    pub(crate) async fn own_commit(&self, attempt: &Attempt) -> Result<OwnCommit, StoreError> {
        let found = self.repeated("read", || self.store.read(attempt.scope(), attempt.key())).await?;
        let own = found.map(|found| found.record).filter(|record| record.attempt() == attempt.owner().attempt());
        Ok(match own.map(|record| record.state) {
            Some(State::Done(response)) => OwnCommit::Committed(response),
            Some(State::InProgress) => OwnCommit::RolledBack,
            Some(State::Released | State::Held) | None => OwnCommit::Superseded,
        })
    }

    /// Takes back a claim that may have been written although its reply never came: nobody will run it, so its key
    /// should not stay locked for a lease. One try after the store's trouble may have passed, and no memory of many.
    pub(crate) fn take_back_in_background(self: &Arc<Self>, claim: Claim) {
        let runner = Arc::clone(self);
        // It must not take over from anybody: a limit of one lapse rules that out.
        let claim = claim.with_lapse_limit(Some(NonZeroU32::MIN));
        let work = async move {
            time::sleep(TAKE_BACK_PAUSE).await;
            let claimed = runner.in_time("claim", idem_core::claim(&*runner.store, &claim)).await;
            if let Ok(Answer::Claimed(grant) | Answer::TakenOver(grant)) = claimed {
                let _ = runner.in_time("forget", runner.store.forget(grant.owner())).await;
            }
        };
        self.tracker.spawn(work.in_current_span());
    }

    /// Gives back a key whose attempt never started, for as long as a completion is tried: under hold it would wait for
    /// someone else.
    pub(crate) fn give_back_in_background(self: &Arc<Self>, owner: Owner) {
        let runner = Arc::clone(self);
        let work = async move {
            let give_up = Instant::now() + runner.settings.completion_limit;
            let mut backoff = Backoff::default();
            while let Err(error) = runner.in_time("forget", runner.store.forget(&owner)).await {
                let pause = backoff.pause();
                if error.kind() == StoreErrorKind::Contract || Instant::now() + pause >= give_up {
                    return;
                }
                time::sleep(pause).await;
            }
        };
        self.tracker.spawn(work.in_current_span());
    }
}

/// Longer and longer pauses between tries: 20 ms, doubled up to 5 seconds.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    tries: u32,
}

impl Backoff {
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = Duration::from_millis(20 << self.tries.min(8)).min(Duration::from_secs(5));
        self.tries += 1;
        pause
    }
}
