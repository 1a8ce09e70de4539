//! Completing a record in a transaction of the caller's, as the suite asks for it.

use async_trait::async_trait;
use idem_core::{Completion, Fenced, Response, StoreError};

use crate::Place;

/// How the transaction of [`Transactions::complete_in`] ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is committed, unless the attempt is superseded.
    Commit,
    /// It is rolled back.
    Rollback,
}

/// What a harness offers whose store can complete a record in a transaction of the caller's.
#[async_trait]
pub trait Transactions: Send + Sync {
    /// Opens a transaction of its own in the database at the place, writes `row` into a business table of its own
    /// making, completes the record in the same transaction, and ends it as told. A superseded attempt ends in a
    /// rollback, whatever it was told; so does one that has completed in another transaction, which is Superseded here.
    ///
    /// The answer is that of the completion, also where it is then rolled back.
    ///
    /// # Errors
    ///
    /// The completion's. What fails beside it may panic.
    async fn complete_in(
        &self,
        place: &Place,
        completion: &Completion,
        row: &str,
        end: End,
    ) -> Result<Fenced<Response>, StoreError>;

    /// The business rows that are committed at the place, in any order; none if the table was never made.
    async fn rows(&self, place: &Place) -> Vec<String>;
}
