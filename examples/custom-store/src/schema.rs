//! The tables in the file, and the version of their form.

use std::path::Path;

use redb::{Database, ReadableTable as _, TableDefinition, TableHandle as _, WriteTransaction};

use crate::{
    OpenError,
    error::Failure,
    records::{EXPIRIES, OPEN, RECORDS},
};

/// One entry, under `""`: the version of what the file holds.
const FORMAT: TableDefinition<'_, &str, u32> = TableDefinition::new("idem_format");

/// The newest version that this code knows, and the one that it makes.
const VERSION: u32 = 1;

/// Makes the tables where there is nothing yet; else makes sure that they are this store's.
pub(crate) fn prepare(database: &Database, path: &Path) -> Result<(), OpenError> {
    let failed = |source: redb::Error| OpenError::Database { path: path.into(), source };
    let transaction = database.begin_write().map_err(|error| failed(error.into()))?;
    let mut found: Vec<String> =
        transaction.list_tables().map_err(|error| failed(error.into()))?.map(|table| table.name().to_owned()).collect();
    found.sort_unstable();
    if found.is_empty() {
        make(&transaction).map_err(|failure| failed(database_error(failure)))?;
        return transaction.commit().map_err(|error| failed(error.into()));
    }
    if !found.iter().any(|name| name == FORMAT.name()) {
        return Err(OpenError::NotAStore { path: path.into() });
    }
    // Before anything else of it is looked at: a newer version may have other tables.
    let version = version(&transaction).map_err(|failure| failed(database_error(failure)))?;
    if version > VERSION {
        return Err(OpenError::NewerFormat { path: path.into(), found: version, known: VERSION });
    }
    if version == 0 || found != [EXPIRIES.name(), FORMAT.name(), OPEN.name(), RECORDS.name()] {
        return Err(OpenError::NotAStore { path: path.into() });
    }
    check_types(&transaction).map_err(|failure| failed(database_error(failure)))?;
    transaction.abort().map_err(|error| failed(error.into()))
}

/// Writes the version once more: a commit like any other, which changes nothing.
pub(crate) fn touch(transaction: &WriteTransaction) -> Result<(), Failure> {
    transaction.open_table(FORMAT)?.insert("", VERSION)?;
    Ok(())
}

/// All of it in one commit: a crash leaves everything or nothing.
fn make(transaction: &WriteTransaction) -> Result<(), Failure> {
    check_types(transaction)?;
    touch(transaction)
}

/// Opens the tables, which makes those that are missing and fails where their types are others.
fn check_types(transaction: &WriteTransaction) -> Result<(), Failure> {
    transaction.open_table(RECORDS)?;
    transaction.open_table(OPEN)?;
    transaction.open_table(EXPIRIES)?;
    Ok(())
}

fn version(transaction: &WriteTransaction) -> Result<u32, Failure> {
    Ok(transaction.open_table(FORMAT)?.get("")?.map_or(0, |version| version.value()))
}

fn database_error(failure: Failure) -> redb::Error {
    match failure {
        Failure::Database(error) => error,
        Failure::Own(error) => redb::Error::Corrupted(error.to_string()),
    }
}
