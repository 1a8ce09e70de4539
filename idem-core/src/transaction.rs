//! Completing a record in a transaction of the caller's.

use crate::{Completion, StoreError};

/// A transaction of the caller's in which a record can be completed, so that business rows and "this key is done"
/// commit together or not at all.
///
/// Each SQL backend wraps its driver's transactions (the types are the driver's own) and implements this once. What
/// [`commit_with`](Transaction::commit_with) gives is the backend's choice: the result itself where the driver is
/// synchronous, a future of it where it is not.
pub trait Transaction {
    /// `Result<Response, CommitError>`, or a future of it. The response is the recorded one: what the client must get.
    type Committed;

    /// Completes the record and commits.
    ///
    /// # To ensure correctness
    ///
    /// - The completion is written inside the caller's transaction, fenced by token and number like
    ///   [`Store::complete`](crate::Store::complete), before anything is committed.
    /// - If the attempt is superseded, nothing is committed: the transaction is rolled back and the answer is
    ///   [`CommitError::Superseded`].
    /// - If the attempt has completed in another transaction, nothing is committed either: what this one did, that one
    ///   did. The answer is [`CommitError::Superseded`], or the recorded response where the store can tell.
    /// - A transaction that can't protect the record (in which a rival could write between its check and its commit) is
    ///   refused with a store error of kind contract that says why.
    fn commit_with(self, completion: Completion) -> Self::Committed;
}

/// Why a caller's transaction was not committed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// Another attempt owns the record, or this one has ended, or there is none any more. The transaction was rolled back.
    #[error("this attempt is no longer the owner of its key, so its transaction was rolled back; do not retry it")]
    Superseded,
    /// The store failed. Unless its kind is unavailable the transaction was rolled back; an unavailable store may have
    /// committed it, which the record tells.
    #[error(transparent)]
    Store(#[from] StoreError),
}
