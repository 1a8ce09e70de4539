//! The open database, which is opened anew after a failure.

use std::sync::{PoisonError, RwLock};

use redb::{Database, DatabaseError, ReadTransaction, ReadableDatabase as _, WriteTransaction};

use crate::error::Failure;

/// The database of a file.
///
/// Once a write has failed in the middle (a full disk), redb refuses every other one until the file is closed and opened
/// again. The writer does that, so that the store works again as soon as the disk does.
pub(crate) struct Live {
    reopen: Box<dyn Fn() -> Result<Database, DatabaseError> + Send + Sync>,
    /// None while it could not be opened again, and once it is closed for good.
    database: RwLock<Option<Database>>,
}

impl Live {
    pub(crate) fn new(
        database: Database,
        reopen: impl Fn() -> Result<Database, DatabaseError> + Send + Sync + 'static,
    ) -> Self {
        Self { reopen: Box::new(reopen), database: RwLock::new(Some(database)) }
    }

    /// What was committed until now, however long a write takes meanwhile.
    pub(crate) fn begin_read(&self) -> Result<ReadTransaction, Failure> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        match &*database {
            Some(database) => Ok(database.begin_read()?),
            None => Err(Failure::Database(redb::Error::DatabaseClosed)),
        }
    }

    /// The one write transaction, which is durable once it is committed. For the writer alone.
    pub(crate) fn begin_write(&self) -> Result<WriteTransaction, Failure> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        let opened = match database.take() {
            Some(database) => database,
            None => (self.reopen)().map_err(|error| Failure::Database(error.into()))?,
        };
        let mut transaction = database.insert(opened).begin_write()?;
        // The default durability is that a commit is synced before it returns. Two phases, because clients choose the
        // bytes that are stored: with one, a crash may leave it to a checksum that can be forged to tell a whole commit
        // from a torn one.
        transaction.set_two_phase_commit(true);
        Ok(transaction)
    }

    /// Closes the database, so that the next write opens it anew. Reads that go on fail.
    pub(crate) fn close(&self) {
        let database = self.database.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(database) = database {
            // What it could not write on closing is repaired when the file is opened again.
            let _ = database.close();
        }
    }
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
