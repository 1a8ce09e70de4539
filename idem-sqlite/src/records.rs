//! Finding and writing one record.
//!
//! The rules are the machine's alone. Whoever writes here holds the file's write lock from before the look-up until the
//! commit, so *find, decide, write* is one atomic step.

use idem_core::{Key, Record, Scope, State, StoreError, StoreErrorKind, machine::Decision};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{sqlite_error, store_error, undecodable};

/// ?1 the scope, ?2 the key.
const FIND: &str = "SELECT id, record FROM main.idem_records WHERE scope = ?1 AND key = ?2";

/// ?1 the scope, ?2 the key, ?3 to ?6 what is searched for, ?7 the record that they are taken from.
const INSERT: &str = "
    INSERT INTO main.idem_records (scope, key, state, number, lease_end, expiry, record)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

/// ?1 the row that was found, in this transaction; the rest as in [`INSERT`].
const UPDATE: &str = "
    UPDATE main.idem_records SET state = ?2, number = ?3, lease_end = ?4, expiry = ?5, record = ?6
    WHERE id = ?1";

/// A record and the row that it is in.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) id: i64,
    pub(crate) record: Record,
}

/// The record as it is stored, expired or not.
pub(crate) fn find(
    connection: &Connection,
    operation: &'static str,
    scope: &Scope,
    key: &Key,
) -> Result<Option<Row>, StoreError> {
    let found = connection
        .prepare_cached(FIND)
        .and_then(|mut find| {
            find.query_row(params![scope.as_str(), key.as_str()], |row| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?)))
                .optional()
        })
        .map_err(|error| sqlite_error(operation, error))?;
    found.map(|(id, bytes)| decode(operation, id, bytes)).transpose()
}

pub(crate) fn decode(operation: &'static str, id: i64, bytes: Vec<u8>) -> Result<Row, StoreError> {
    let record = Record::decode(bytes).map_err(|error| undecodable(operation, id, error))?;
    Ok(Row { id, record })
}

/// Writes the record over the row that was found, or where there was none into a new one.
pub(crate) fn write(
    connection: &Connection,
    operation: &'static str,
    scope: &Scope,
    key: &Key,
    found: Option<&Row>,
    record: &Record,
) -> Result<(), StoreError> {
    let state = state_code(&record.state);
    let (lease_end, expiry) = (record.lease_end.as_millis(), record.expiry.as_millis());
    let changed = match found {
        Some(row) => connection.prepare_cached(UPDATE).and_then(|mut update| {
            update.execute(params![row.id, state, record.number, lease_end, expiry, record.encode()])
        }),
        None => connection.prepare_cached(INSERT).and_then(|mut insert| {
            let names = (scope.as_str(), key.as_str());
            insert.execute(params![names.0, names.1, state, record.number, lease_end, expiry, record.encode()])
        }),
    }
    .map_err(|error| sqlite_error(operation, error))?;
    if changed != 1 {
        let message = format!("a write changed {changed} rows of idem_records instead of one; look for triggers on it");
        return Err(store_error(StoreErrorKind::Corrupt, operation, message));
    }
    Ok(())
}

/// Finds the record, lets `decide` decide about it, and writes what that comes to. Says whether anything was written.
pub(crate) fn decide<A>(
    connection: &Connection,
    operation: &'static str,
    scope: &Scope,
    key: &Key,
    decide: impl FnOnce(Option<&Record>) -> Decision<A>,
) -> Result<(A, bool), StoreError> {
    let found = find(connection, operation, scope, key)?;
    let Decision { answer, write: to_write } = decide(found.as_ref().map(|row| &row.record));
    if let Some(record) = &to_write {
        write(connection, operation, scope, key, found.as_ref(), record)?;
    }
    Ok((answer, to_write.is_some()))
}

/// As in the encoded record; the index of open records depends on 0 and 2.
fn state_code(state: &State) -> u8 {
    match state {
        State::InProgress => 0,
        State::Released => 1,
        State::Held => 2,
        State::Done(_) => 3,
    }
}
