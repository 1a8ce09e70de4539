//! One operation on its way to a thread that owns a connection, and its answer on the way back.

use std::{
    fmt,
    time::{Duration, Instant},
};

use idem_core::{Key, Scope, StoreError, StoreErrorKind, Timestamp};
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::{clock::Clock, error::store_error, wait::Waiters};

/// How many operations may wait for the thread. Further callers wait for room, each within its time limit.
const CAPACITY: usize = 1024;

/// What an operation works with while it runs.
#[derive(Debug)]
pub(crate) struct Access<'a> {
    pub(crate) connection: &'a Connection,
    /// The operation's name, for errors.
    pub(crate) operation: &'static str,
    /// The instant it is judged at: read after the write lock was taken.
    pub(crate) now: Timestamp,
    /// Set by the operation once it wrote.
    pub(crate) wrote: bool,
}

/// What a thread has to know about an operation besides its work.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    operation: &'static str,
    wakes: Wakes,
    needs_caller: bool,
}

/// Whose waits an operation may end, if it writes.
#[derive(Clone, Debug)]
enum Wakes {
    Nobody,
    Record(Scope, Key),
    Everybody,
}

impl Order {
    pub(crate) fn new(operation: &'static str) -> Self {
        Self { operation, wakes: Wakes::Nobody, needs_caller: false }
    }

    /// It may end waits for this record.
    pub(crate) fn waking(self, scope: &Scope, key: &Key) -> Self {
        Self { wakes: Wakes::Record(scope.clone(), key.clone()), ..self }
    }

    /// It may end any wait.
    pub(crate) fn waking_everybody(self) -> Self {
        Self { wakes: Wakes::Everybody, ..self }
    }

    /// It is left undone if its caller has gone before it began. A claim that nobody waits for would only lock its key
    /// for a lease; a completion is worth recording all the same.
    pub(crate) fn needing_caller(self) -> Self {
        Self { needs_caller: true, ..self }
    }
}

/// An operation, whatever it answers.
pub(crate) trait Job: Send {
    /// Whether it is to be done: its time is not over, and somebody wants it.
    fn is_wanted(&self) -> bool;

    /// Does it and keeps the answer.
    fn run(&mut self, connection: &Connection, clock: &Clock);

    /// Gives the answer, once it is durable; or why nothing is.
    fn answer(self: Box<Self>, outcome: Result<&Waiters, Failure<'_>>);
}

/// Why an operation has no answer of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure<'a> {
    /// It was not begun in time.
    Late,
    /// The transaction that it was part of, or was to be, failed.
    Group(StoreErrorKind, &'a str),
}

/// The way to a thread.
#[derive(Debug)]
pub(crate) struct Queue {
    /// None once closed.
    jobs: Option<mpsc::Sender<Box<dyn Job>>>,
    timeout: Duration,
}

/// A queue, and its end at the thread.
pub(crate) fn queue(timeout: Duration) -> (Queue, mpsc::Receiver<Box<dyn Job>>) {
    let (jobs, taken) = mpsc::channel(CAPACITY);
    (Queue { jobs: Some(jobs), timeout }, taken)
}

impl Queue {
    /// Has `work` done by the thread.
    pub(crate) async fn run<T, W>(&self, order: Order, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&mut Access<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let operation = order.operation;
        let (reply, answer) = oneshot::channel();
        let deadline = Instant::now() + self.timeout;
        let job = Task { order, deadline, work: Some(work), wrote: false, result: None, reply };
        let ended = || unavailable(operation, "the store's thread has ended; open the store anew".into());
        let done = async {
            let jobs = self.jobs.as_ref().ok_or_else(ended)?;
            jobs.send(Box::new(job)).await.map_err(|_| ended())?;
            answer.await.unwrap_or_else(|_| Err(ended()))
        };
        match tokio::time::timeout(self.timeout, done).await {
            Ok(result) => result,
            Err(_) => Err(late(operation, self.timeout)),
        }
    }

    /// Takes nothing more; the thread ends once it has done what is queued.
    pub(crate) fn close(&mut self) {
        self.jobs = None;
    }
}

struct Task<T, W> {
    order: Order,
    deadline: Instant,
    work: Option<W>,
    wrote: bool,
    result: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, W> Job for Task<T, W>
where
    T: Send,
    W: FnOnce(&mut Access<'_>) -> Result<T, StoreError> + Send,
{
    fn is_wanted(&self) -> bool {
        Instant::now() < self.deadline && !(self.order.needs_caller && self.reply.is_closed())
    }

    fn run(&mut self, connection: &Connection, clock: &Clock) {
        let Some(work) = self.work.take() else { return };
        let mut access = Access { connection, operation: self.order.operation, now: clock.now(), wrote: false };
        self.result = Some(work(&mut access));
        self.wrote = access.wrote;
    }

    fn answer(self: Box<Self>, outcome: Result<&Waiters, Failure<'_>>) {
        let operation = self.order.operation;
        let result = match (outcome, self.result) {
            // What failed by itself says more than what became of its group.
            (_, Some(Err(error))) => Err(error),
            (Ok(waiters), Some(Ok(answer))) => {
                match &self.order.wakes {
                    Wakes::Record(scope, key) if self.wrote => waiters.wake(scope, key),
                    Wakes::Everybody if self.wrote => waiters.wake_everybody(),
                    _ => {}
                }
                Ok(answer)
            }
            (Ok(_), None) | (Err(Failure::Late), _) => {
                Err(unavailable(operation, "it could not be begun within its time limit and was not done".into()))
            }
            (Err(Failure::Group(kind, reason)), _) => Err(store_error(kind, operation, reason)),
        };
        // The caller may have gone; nobody else waits for this.
        let _ = self.reply.send(result);
    }
}

impl fmt::Debug for dyn Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Job")
    }
}

fn late(operation: &'static str, timeout: Duration) -> StoreError {
    let message = format!(
        "it was not done within {timeout:?}, as when another connection's write transaction stays open for that long; \
         whether it still will be is not known"
    );
    unavailable(operation, message)
}

fn unavailable(operation: &'static str, message: String) -> StoreError {
    store_error(StoreErrorKind::Unavailable, operation, message)
}
