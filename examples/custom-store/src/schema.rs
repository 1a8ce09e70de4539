//! The tables in the file, and the version of their form.

use std::path::Path;

use redb::{
    Database, MultimapTableHandle as _, ReadableTable as _, TableDefinition, TableHandle as _, WriteTransaction,
};

use crate::{
    OpenError,
    error::Failure,
    records::{EXPIRIES, OPEN, RECORDS},
};

/// One entry, under `""`: the version of what the file holds.
const FORMAT: TableDefinition<'_, &str, u32> = TableDefinition::new("idem_format");

/// The newest version that this code knows, and the one that it makes.
const VERSION: u32 = 1;

/// What a file is.
enum Found {
    /// It has no tables yet.
    Nothing,
    /// A store of this version.
    Store,
    /// A store of a newer one.
    Newer(u32),
    /// Something else's.
    Other,
}

/// Makes the tables where there is nothing yet; else makes sure that they are this store's.
pub(crate) fn prepare(database: &Database, path: &Path) -> Result<(), OpenError> {
    match look(database) {
        Ok(Found::Store) => Ok(()),
        Ok(Found::Nothing) => make(database).map_err(|failure| failed(path, failure)),
        Ok(Found::Newer(found)) => Err(OpenError::NewerFormat { path: path.into(), found, known: VERSION }),
        Ok(Found::Other) => Err(OpenError::NotAStore { path: path.into() }),
        Err(failure) => Err(failed(path, failure)),
    }
}

/// Writes the version once more: a commit like any other, which changes nothing.
pub(crate) fn touch(transaction: &WriteTransaction) -> Result<(), Failure> {
    transaction.open_table(FORMAT)?.insert("", VERSION)?;
    Ok(())
}

/// Opening a table in a write transaction would make it, so the names are looked at first. Nothing is committed.
fn look(database: &Database) -> Result<Found, Failure> {
    let transaction = database.begin_write()?;
    let mut names: Vec<_> = transaction.list_tables()?.map(|table| table.name().to_owned()).collect();
    names.extend(transaction.list_multimap_tables()?.map(|table| table.name().to_owned()));
    names.sort_unstable();
    if names.is_empty() {
        return Ok(Found::Nothing);
    }
    if !names.iter().any(|name| name == FORMAT.name()) {
        return Ok(Found::Other);
    }
    // Before anything else is looked at: a newer version may have other tables.
    let version = transaction.open_table(FORMAT)?.get("")?.map_or(0, |version| version.value());
    if version > VERSION {
        return Ok(Found::Newer(version));
    }
    if version != VERSION || names != [EXPIRIES.name(), FORMAT.name(), OPEN.name(), RECORDS.name()] {
        return Ok(Found::Other);
    }
    open_all(&transaction)?;
    Ok(Found::Store)
}

/// All of it in one commit: a crash leaves everything or nothing.
fn make(database: &Database) -> Result<(), Failure> {
    let transaction = database.begin_write()?;
    open_all(&transaction)?;
    touch(&transaction)?;
    Ok(transaction.commit()?)
}

/// Opens the tables, which makes those that are missing and fails where their types are others.
fn open_all(transaction: &WriteTransaction) -> Result<(), Failure> {
    transaction.open_table(RECORDS)?;
    transaction.open_table(OPEN)?;
    transaction.open_table(EXPIRIES)?;
    Ok(())
}

fn failed(path: &Path, failure: Failure) -> OpenError {
    let path = path.into();
    match failure {
        Failure::Database(
            redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. },
        ) => OpenError::NotAStore { path },
        Failure::Database(redb::Error::Corrupted(problem)) => OpenError::Damaged { path, problem },
        Failure::Database(source) => OpenError::Database { path, source },
        Failure::Own(error) => OpenError::Damaged { path, problem: error.to_string() },
    }
}
