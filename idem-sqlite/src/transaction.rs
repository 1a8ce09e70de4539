//! Completing a record in a transaction of the caller's.

use std::{fs, path::Path};

use idem_core::{CommitError, Completion, Fenced, Response, StoreError, StoreErrorKind, Transaction, machine};
use rusqlite::{DropBehavior, MAIN_DB, TransactionState};

use crate::{
    SqliteStore,
    error::{sqlite_error, store_error},
    records, schema,
};

const OPERATION: &str = "complete_in";

impl SqliteStore {
    /// Completes a record inside a transaction of the caller's, on the caller's own connection to the store's file, so
    /// that business rows and "this key is done" are committed together or not at all. It commits nothing: that is the
    /// caller's to do, at once; and on [`Fenced::Superseded`] the caller must roll back.
    ///
    /// The answer is the response to send, once the commit has succeeded. An attempt that had completed before is answered
    /// Superseded too: what this transaction did, an earlier one did. [`read`](idem_core::Store::read) tells what is
    /// recorded, also where it is not known whether a commit succeeded.
    ///
    /// It blocks for as long as SQLite needs to read and write one row. While the transaction is open every claim on
    /// this file waits, so prepare everything before it and keep it short.
    ///
    /// # Errors
    ///
    /// Nothing was written to the record, and the transaction should be rolled back:
    ///
    /// - of kind contract if the transaction does not hold the write lock, or if it is on another file than the store's
    ///   (an attached database does not count: SQLite commits several files in WAL mode one after the other);
    /// - of kind configuration if the connection's `synchronous` is below FULL, so that a loss of power could undo what
    ///   the client was told, or if a newer version of idem wrote the record;
    /// - of kind corrupt if the record can't be read;
    /// - of kind unavailable if SQLite could not read or write.
    pub fn complete_in(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        completion: &Completion,
    ) -> Result<Fenced<Response>, StoreError> {
        self.check_same_file(transaction)?;
        check_write_lock(transaction)?;
        check_durable(transaction)?;
        let (owner, response) = (completion.owner(), completion.response());
        let now = self.inner.clock.now();
        let decide = |found: Option<&_>| machine::complete(found, owner, response, completion.retention(), now);
        let (answer, wrote) = records::decide(transaction, OPERATION, owner.scope(), owner.key(), decide)?;
        Ok(if wrote { answer } else { Fenced::Superseded })
    }

    /// The caller's transaction in the form in which a record can be completed and committed with it in one step:
    /// [`Transaction::commit_with`](idem_core::Transaction::commit_with).
    ///
    /// The transaction is refused, and rolled back, where [`complete_in`](SqliteStore::complete_in) refuses it.
    pub fn in_transaction<'c>(&self, mut transaction: rusqlite::Transaction<'c>) -> SqliteTransaction<'c> {
        // Whatever goes wrong before the commit must end in a rollback, also where the caller set something else.
        transaction.set_drop_behavior(DropBehavior::Rollback);
        SqliteTransaction { store: self.clone(), transaction }
    }

    fn check_same_file(&self, transaction: &rusqlite::Transaction<'_>) -> Result<(), StoreError> {
        // SQLite names the file by an absolute path without links; the second look is for those that moved since.
        let path = transaction.path().filter(|path| !path.is_empty());
        let is_same = path.is_some_and(|path| {
            Path::new(path) == self.path() || fs::canonicalize(path).is_ok_and(|path| path == self.path())
        });
        if is_same {
            return Ok(());
        }
        Err(contract(format!(
            "the transaction is on {}, and the store's records are in {:?}; begin it on a connection whose main \
             database is the store's file",
            path.map_or("no file".into(), |path| format!("{path:?}")),
            self.path(),
        )))
    }
}

fn check_write_lock(transaction: &rusqlite::Transaction<'_>) -> Result<(), StoreError> {
    let state = transaction.transaction_state(Some(MAIN_DB)).map_err(|error| sqlite_error(OPERATION, error))?;
    if state == TransactionState::Write {
        return Ok(());
    }
    Err(contract(
        "the transaction does not hold the file's write lock, so another attempt could take the key over between its \
         check and its commit; begin it with TransactionBehavior::Immediate",
    ))
}

fn check_durable(transaction: &rusqlite::Transaction<'_>) -> Result<(), StoreError> {
    if schema::is_durable(transaction).map_err(|error| sqlite_error(OPERATION, error))? {
        return Ok(());
    }
    let message = "the connection's synchronous is below FULL, so that a loss of power could undo a commit that the \
        client was told about; run PRAGMA synchronous = FULL on it before the transaction";
    Err(store_error(StoreErrorKind::Configuration, OPERATION, message))
}

fn contract(message: impl Into<String>) -> StoreError {
    store_error(StoreErrorKind::Contract, OPERATION, message)
}

/// A transaction of the caller's in which a record can be completed: see [`SqliteStore::in_transaction`].
///
/// Dropping it rolls back.
#[derive(Debug)]
pub struct SqliteTransaction<'c> {
    // Dropped before the store: it holds the write lock that the store's last operations wait for.
    transaction: rusqlite::Transaction<'c>,
    store: SqliteStore,
}

impl<'c> SqliteTransaction<'c> {
    /// The transaction, for further statements.
    pub fn inner(&self) -> &rusqlite::Transaction<'c> {
        &self.transaction
    }
}

impl Transaction for SqliteTransaction<'_> {
    type Committed = Result<Response, CommitError>;

    /// Completes and commits, at once and blocking.
    fn commit_with(self, completion: Completion) -> Self::Committed {
        let Self { transaction, store } = self;
        // On every way out but the last the transaction is dropped, which rolls it back.
        match store.complete_in(&transaction, &completion)? {
            Fenced::Superseded => Err(CommitError::Superseded),
            Fenced::Written(response) => {
                transaction.commit().map_err(|error| {
                    let message = format!("the commit failed ({error}); read the record to see what became of it");
                    store_error(StoreErrorKind::Unavailable, OPERATION, message).with_source(error)
                })?;
                store.inner.waiters.wake(completion.owner().scope(), completion.owner().key());
                Ok(response)
            }
        }
    }
}
