//! One operation on its way to the writer, and its answer on the way back.

use std::{
    fmt,
    time::{Duration, Instant},
};

use idem_core::{StoreError, StoreErrorKind};
use tokio::sync::{mpsc, oneshot};

use crate::{
    error::{Failure, store_error},
    records::Tables,
};

/// How many operations may wait for the writer. Further callers wait for room, each within its time limit.
const CAPACITY: usize = 1024;

/// What becomes of an operation whose caller has gone before it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abandoned {
    /// A claim that nobody waits for would only lock its key for a lease.
    Skip,
    /// A completion is worth recording all the same.
    Finish,
}

/// An operation, whatever it answers.
pub(crate) trait Job: Send {
    /// Whether it is to be done: its time is not over, and somebody wants it.
    fn is_wanted(&self) -> bool;

    /// Does it and keeps the answer.
    ///
    /// # Errors
    ///
    /// The database's, after which nothing of the transaction can be relied on. What fails by itself is its answer.
    fn run(&mut self, tables: &mut Tables<'_>) -> Result<(), Lost>;

    /// Gives the answer, once it is durable; or why nothing is.
    fn answer(self: Box<Self>, outcome: Result<(), &Lost>);
}

/// Why the transaction of an operation came to nothing, or perhaps to nothing.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub(crate) kind: StoreErrorKind,
    pub(crate) reason: String,
}

/// The way to the writer.
#[derive(Clone, Debug)]
pub(crate) struct Queue(mpsc::Sender<Box<dyn Job>>);

/// A queue, and its end at the writer.
pub(crate) fn queue() -> (Queue, mpsc::Receiver<Box<dyn Job>>) {
    let (jobs, taken) = mpsc::channel(CAPACITY);
    (Queue(jobs), taken)
}

impl Queue {
    /// Whether the writer is there.
    pub(crate) fn is_open(&self) -> bool {
        !self.0.is_closed()
    }

    /// Has `work` done by the writer, within `timeout`.
    pub(crate) async fn run<T, W>(
        &self,
        operation: &'static str,
        abandoned: Abandoned,
        timeout: Duration,
        work: W,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&mut Tables<'_>) -> Result<T, Failure> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let deadline = Instant::now() + timeout;
        let job = Task { operation, abandoned, deadline, work: Some(work), result: None, reply };
        let ended = || unavailable(operation, "the store's thread has ended; drop its handles and open it anew".into());
        let done = async {
            self.0.send(Box::new(job)).await.map_err(|_| ended())?;
            answer.await.unwrap_or_else(|_| Err(ended()))
        };
        tokio::time::timeout(timeout, done).await.unwrap_or_else(|_| Err(late(operation, timeout)))
    }
}

struct Task<T, W> {
    operation: &'static str,
    abandoned: Abandoned,
    deadline: Instant,
    work: Option<W>,
    result: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, W> Job for Task<T, W>
where
    T: Send,
    W: FnOnce(&mut Tables<'_>) -> Result<T, Failure> + Send,
{
    fn is_wanted(&self) -> bool {
        Instant::now() < self.deadline && !(self.abandoned == Abandoned::Skip && self.reply.is_closed())
    }

    fn run(&mut self, tables: &mut Tables<'_>) -> Result<(), Lost> {
        let Some(work) = self.work.take() else { return Ok(()) };
        match work(tables) {
            Ok(answer) => self.result = Some(Ok(answer)),
            Err(Failure::Own(error)) => self.result = Some(Err(error)),
            Err(failure) => {
                let error = failure.into_store_error(self.operation);
                let lost = Lost { kind: error.kind(), reason: error.message().to_owned() };
                self.result = Some(Err(error));
                return Err(lost);
            }
        }
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), &Lost>) {
        let answer = match (outcome, self.result) {
            // What failed by itself says more than what became of its transaction.
            (_, Some(Err(error))) => Err(error),
            (Ok(()), Some(Ok(answer))) => Ok(answer),
            (Ok(()), None) => {
                Err(unavailable(self.operation, "it could not be begun within its time limit and was not done".into()))
            }
            (Err(lost), _) => Err(store_error(lost.kind, self.operation, lost.reason.clone())),
        };
        // The caller may have gone; nobody else waits for this.
        let _ = self.reply.send(answer);
    }
}

impl fmt::Debug for dyn Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Job")
    }
}

pub(crate) fn late(operation: &'static str, timeout: Duration) -> StoreError {
    let message = format!("it was not done within {timeout:?}; whether it still will be is not known");
    unavailable(operation, message)
}

pub(crate) fn unavailable(operation: &'static str, message: String) -> StoreError {
    store_error(StoreErrorKind::Unavailable, operation, message)
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    /// Puts an operation into the queue and drops the call.
    fn leave(queue: &Queue, abandoned: Abandoned) {
        let mut call = pin!(queue.run("claim", abandoned, LONG, |_| Ok(())));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }

    #[tokio::test]
    async fn a_claim_whose_caller_has_left_is_not_done_and_a_completion_is() {
        let (queue, mut jobs) = queue();
        leave(&queue, Abandoned::Skip);
        leave(&queue, Abandoned::Finish);
        assert!(!jobs.recv().await.unwrap().is_wanted());
        assert!(jobs.recv().await.unwrap().is_wanted());
    }

    #[tokio::test]
    async fn an_operation_ends_in_its_time_also_if_nobody_does_it_and_is_not_done_after_that() {
        let (queue, mut jobs) = queue();
        let done = queue.run("complete", Abandoned::Finish, Duration::from_millis(1), |_| Ok(())).await;
        assert_eq!(done.unwrap_err().kind(), StoreErrorKind::Unavailable);
        assert!(!jobs.recv().await.unwrap().is_wanted());
    }

    #[tokio::test]
    async fn callers_that_find_the_queue_full_wait_for_room_in_their_time() {
        let (queue, _jobs) = queue();
        for _ in 0..CAPACITY {
            leave(&queue, Abandoned::Finish);
        }
        let late = queue.run("complete", Abandoned::Finish, Duration::from_millis(1), |_| Ok(())).await;
        assert_eq!(late.unwrap_err().kind(), StoreErrorKind::Unavailable);
    }

    #[tokio::test]
    async fn a_writer_that_has_ended_is_told_from_one_that_is_late() {
        let (queue, jobs) = queue();
        let mut call = pin!(queue.run("claim", Abandoned::Skip, LONG, |_| Ok(())));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(jobs); // as by a panic, with what it had taken
        let error = call.await.unwrap_err();
        assert!(error.kind() == StoreErrorKind::Unavailable && error.message().contains("ended"), "{error}");
        assert!(!queue.is_open());
    }
}
