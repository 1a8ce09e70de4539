//! What a request comes to.

use std::time::Duration;

use idem_core::{Differences, Response, StoreError, Timestamp};

/// What an operation gives: whatever its adapter wants to send, and what is recorded of it.
pub trait Reply {
    /// What is recorded.
    fn response(&self) -> Response;

    /// The status by which the attempt [settles](crate::SettlePolicy): that of the recorded response, unless the protocol
    /// tells outcomes apart by other means, as gRPC does.
    fn settles_as(&self) -> u16 {
        self.response().status()
    }
}

impl Reply for Response {
    fn response(&self) -> Response {
        self.clone()
    }

    fn settles_as(&self) -> u16 {
        self.status()
    }
}

/// What [`Idempotency::run`](crate::Idempotency::run) comes to.
#[derive(Debug)]
#[must_use = "the outcome says what the client must get"]
pub enum Outcome<T, E> {
    /// The operation ran: send its reply.
    Ran {
        /// What it gave.
        reply: T,
        /// False if its response was to be recorded and is not (yet). Unless the operation ran unprotected or the store
        /// refuses it for good, recording goes on in the background; until it succeeds a retry gets Conflict, except that
        /// another process runs it again once the lease has lapsed.
        stored: bool,
    },
    /// The operation ran, and the record holds this response rather than the one it gave, because it was committed in
    /// the caller's own transaction: send this.
    Recorded(Response),
    /// The operation answered with the response that it had given to a transaction of its own, and that transaction was
    /// not committed. Nothing is recorded and the key is released (held, under hold): answer with an error.
    RolledBack,
    /// The operation answered with the response that it had given to a transaction of its own, and the store can't say whether
    /// that was committed. Answer with an error: a retry gets the response if it was, and runs again if it was
    /// not (under hold it is Unknown).
    Unconfirmed(StoreError),
    /// The operation failed with this error. The key is released (held, under hold).
    Failed(E),
    /// The operation panicked. The key is released (held, under hold).
    Panicked,
    /// The operation was done before: send this. Nothing ran. If its body was
    /// [not retained](idem_core::Body::NotRetained), say so instead: the key is spent, and the answer can't be given again.
    Replay {
        /// The recorded response.
        response: Response,
        /// When it was recorded, by the store's clock.
        stored_at: Timestamp,
    },
    /// Another attempt is at it. Nothing ran.
    Conflict {
        /// When to try again: the time left of its lease, from 1 to 5 seconds.
        retry_after: Duration,
    },
    /// The key was used for another request. Nothing ran.
    Reuse {
        /// What differs from it.
        differences: Differences,
    },
    /// The outcome of an earlier attempt is unknown until someone resolves it. Nothing ran.
    Unknown,
    /// The attempt lost its key to another: what it did is not the recorded outcome. Try again to get that.
    Superseded,
    /// The store failed. Nothing ran.
    Store(StoreError),
    /// The service is shutting down. Nothing ran.
    ShuttingDown,
}

/// Why a request gets an answer instead of an attempt. Nothing ran.
#[derive(Debug)]
pub enum Answered {
    /// The operation was done before: send this. If its body was [not retained](idem_core::Body::NotRetained), say so
    /// instead: the key is spent, and the answer can't be given again.
    Replay {
        /// The recorded response.
        response: Response,
        /// When it was recorded, by the store's clock.
        stored_at: Timestamp,
    },
    /// Another attempt is at it.
    Conflict {
        /// When to try again: the time left of its lease, from 1 to 5 seconds.
        retry_after: Duration,
    },
    /// The key was used for another request.
    Reuse {
        /// What differs from it.
        differences: Differences,
    },
    /// The outcome of an earlier attempt is unknown until someone resolves it.
    Unknown,
    /// The key was lost to another attempt before the operation could start.
    Superseded,
    /// The store failed.
    Store(StoreError),
    /// The service is shutting down.
    ShuttingDown,
}

impl Answered {
    /// The word for it in metrics and spans.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Replay { .. } => "replayed",
            Self::Conflict { .. } => "conflict",
            Self::Reuse { .. } => "reused",
            Self::Unknown => "unknown",
            Self::Superseded => "superseded",
            Self::Store(_) => "store_error",
            Self::ShuttingDown => "shutting_down",
        }
    }
}

impl<T, E> From<Answered> for Outcome<T, E> {
    fn from(answered: Answered) -> Self {
        match answered {
            Answered::Replay { response, stored_at } => Self::Replay { response, stored_at },
            Answered::Conflict { retry_after } => Self::Conflict { retry_after },
            Answered::Reuse { differences } => Self::Reuse { differences },
            Answered::Unknown => Self::Unknown,
            Answered::Superseded => Self::Superseded,
            Answered::Store(error) => Self::Store(error),
            Answered::ShuttingDown => Self::ShuttingDown,
        }
    }
}

/// How an attempt ended in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the client must get the recorded response"]
pub enum Settled {
    /// The record is done with this response, which is what the client must get.
    Completed(Response),
    /// The key was given back, or is held.
    GivenBack,
    /// The store could not be told in time. That goes on in the background, past the lapse, until it succeeds, another
    /// attempt has taken over, or the completion limit ends it.
    Pending,
    /// Nothing was written: the operation ran unprotected, or the store refuses it for good, which is logged.
    NotStored,
    /// The attempt had lost its key: nothing was written.
    Superseded,
}
