//! The second door: settling by hand.

use std::sync::Arc;

use idem_core::Response;
use tokio::runtime::Handle;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use crate::{
    Answered, Attempt, Settled,
    detach::Detached,
    event::event,
    idempotency::{Inner, is_answer},
    renew::Renewal,
    settle::{Ending, Persisted},
};

/// What [`Idempotency::claim`](crate::Idempotency::claim) comes to.
#[derive(Debug)]
#[must_use = "a claim that is dropped keeps its key until its lease lapses"]
pub enum Claimed {
    /// Do the operation, then settle.
    Run(Running),
    /// Nothing is to be done.
    Answered(Answered),
}

/// An attempt that is settled by hand. Its lease is renewed while this value lives, for `max_run` at most.
///
/// Settling is not cancelled when its future is dropped. A value that is dropped unsettled leaves its key to the lease:
/// what it did is not known, so the key is not freed at once, and the next attempt is a repeat.
#[must_use = "an attempt that is dropped unsettled keeps its key until its lease lapses"]
pub struct Running {
    attempt: Attempt,
    /// None once it is settled.
    parts: Option<Parts>,
    /// Whether a caller has it. Until then nothing was done under it.
    is_delivered: bool,
}

struct Parts {
    runner: Arc<Inner>,
    runtime: Handle,
    /// None where nothing protects the operation.
    renewal: Option<Renewal>,
    /// A shutdown waits for it.
    claimed: TaskTrackerToken,
}

impl Running {
    pub(crate) fn new(runner: Arc<Inner>, runtime: Handle, attempt: Attempt, renewal: Option<Renewal>) -> Self {
        let claimed = runner.tracker.token();
        Self { attempt, parts: Some(Parts { runner, runtime, renewal, claimed }), is_delivered: false }
    }

    pub(crate) fn deliver(&mut self) {
        self.is_delivered = true;
    }

    /// The attempt.
    pub fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// Records the response. The answer has the recorded one, which is what the client must get: with its body, where
    /// that [was not retained](Attempt::do_not_retain).
    pub fn complete(self, response: Response) -> impl Future<Output = Settled> + Send {
        let retained = match &self.parts {
            Some(parts) => parts.runner.retained(&self.attempt, response.clone()),
            None => response.clone(),
        };
        let ending = Ending::Complete(retained.clone());
        let attempt = self.attempt.clone();
        let settled = self.settle(move |_| ending);
        async move {
            match settled.await {
                Settled::Completed(recorded) if is_answer(&attempt, &retained, &recorded) => {
                    Settled::Completed(response)
                }
                settled => settled,
            }
        }
    }

    /// Gives the key back after an outcome that is not final; under hold the outcome is held, until someone resolves
    /// it. The next attempt is a repeat.
    pub fn release(self) -> impl Future<Output = Settled> + Send {
        self.settle(Inner::passing)
    }

    /// Gives the key back after an attempt that did nothing, so that a corrected request may use it.
    pub fn forget(self) -> impl Future<Output = Settled> + Send {
        self.settle(|_| Ending::Forget)
    }

    /// Leaves the outcome unknown until someone resolves it.
    pub fn hold(self) -> impl Future<Output = Settled> + Send {
        self.settle(|_| Ending::Hold)
    }

    /// The work is there before its future is first polled, so that it is done even if it never is.
    fn settle(mut self, ending: impl FnOnce(&Inner) -> Ending) -> impl Future<Output = Settled> + Send {
        let work = self.parts.take().and_then(|Parts { runner, runtime, renewal, claimed }| {
            let renewal = renewal?;
            let (ending, attempt) = (ending(&runner), self.attempt.clone());
            let work = async move {
                let _claimed = claimed;
                runner.persist(&attempt, ending, renewal).await
            };
            Some(Detached::new(runtime, work.in_current_span()))
        });
        async move {
            let Some(work) = work else {
                return Settled::NotStored;
            };
            match work.await {
                Persisted::Completed(recorded) => Settled::Completed(recorded),
                Persisted::GivenBack => Settled::GivenBack,
                Persisted::Pending => Settled::Pending,
                Persisted::Failed => Settled::NotStored,
                Persisted::Superseded => Settled::Superseded,
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A shutdown waits for what is given back.
        let Some(Parts { runner, runtime, renewal, claimed: _claimed }) = self.parts.take() else {
            return;
        };
        if renewal.is_none() {
            return;
        }
        if self.is_delivered {
            event!(WARN, "dropped_unsettled", attempt = ?self.attempt, "an attempt was dropped unsettled; its key is left to its lease");
        } else {
            let _runtime = runtime.enter();
            runner.give_back_in_background(self.attempt.owner().clone());
        }
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Running").field(&self.attempt).finish()
    }
}
