//! The tables, and the modes of a connection.
//!
//! The file may be the caller's own database, so the schema's version is kept in a table of ours; `user_version` is the
//! caller's. Every name is qualified with `main`, so that a temporary table of the caller's can't stand in for ours.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};

use crate::{OpenError, error::is_busy};

/// The version of the schema that this code makes, and the newest that it reads.
pub(crate) const VERSION: i64 = 1;

const FIND_TABLES: &str = "
    SELECT count(*) FILTER (WHERE name = 'idem_schema'), count(*) FILTER (WHERE name = 'idem_records')
    FROM main.sqlite_schema
    WHERE type IN ('table', 'view')";

const FIND_VERSION: &str = "SELECT version FROM main.idem_schema WHERE id = 1";

/// A rowid table, so that new records are appended: a group's commit costs the distinct pages that it touches. For the
/// same reason `record` holds everything and the other columns only what is searched for, or worth a look by people.
///
/// `record` is what counts (`Record::encode`). `state` is 0 in progress, 1 released, 2 held, 3 done; instants are
/// milliseconds since the Unix epoch. Text is compared byte by byte (BINARY, the default).
///
/// The second index holds only what may be waiting for someone, so a completed record takes no room in it.
const CREATE: &str = "
    CREATE TABLE main.idem_records (
        id INTEGER PRIMARY KEY,
        scope TEXT NOT NULL,
        key TEXT NOT NULL,
        state INTEGER NOT NULL,
        number INTEGER NOT NULL,
        lease_end INTEGER NOT NULL,
        expiry INTEGER NOT NULL,
        record BLOB NOT NULL,
        UNIQUE (scope, key)
    );
    CREATE INDEX main.idem_records_expiry ON idem_records (expiry);
    CREATE INDEX main.idem_records_open ON idem_records (scope, key) WHERE state IN (0, 2);
    CREATE TABLE main.idem_schema (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL);";

/// ?1 [`VERSION`].
const INSERT_VERSION: &str = "INSERT INTO main.idem_schema (id, version) VALUES (1, ?1)";

/// Writes what is there already: what a self test can do to find out whether the file still takes writes.
const TOUCH: &str = "UPDATE main.idem_schema SET version = version WHERE id = 1";

/// How a connection of the store is set, after the modes that a promise hangs on.
///
/// - `wal_autocheckpoint`: a checkpoint writes each page once however often it changed since the last one, and syncs
///   twice; at the default of 1000 pages a busy store spends much of its time in them (measured: groups of 64 gain 8
///   times over single transactions at 1000 pages, 14 times at 8000). The WAL file grows to about 32 MiB.
/// - `cache_size`: 16 MiB keeps the inner pages and the ends of the indexes of some million records at hand.
const TUNING: &str = "
    PRAGMA wal_autocheckpoint = 8000;
    PRAGMA cache_size = -16384;";

/// What `PRAGMA synchronous` reads back as when it is FULL; EXTRA is 3.
const FULL: i64 = 2;

/// Sleeps between attempts for a lock: short ones, since `busy_timeout`, whose sleeps grow to 100 ms, starves beside a
/// caller that loops short transactions (measured: 2 claims a second, against 5620 with these).
pub(crate) fn set_busy_handler(connection: &mut Connection, limit: Duration) -> rusqlite::Result<()> {
    let long = i32::try_from(limit.as_micros() / LONG_SLEEP.as_micros()).unwrap_or(i32::MAX);
    let tries = SHORT_TRIES.saturating_add(long);
    connection.busy_handler(Some(move |tried: i32| {
        let again = tried < tries;
        if again {
            std::thread::sleep(if tried < SHORT_TRIES { SHORT_SLEEP } else { LONG_SLEEP });
        }
        again
    }))
}

const SHORT_TRIES: i32 = 20;
const SHORT_SLEEP: Duration = Duration::from_micros(100);
const LONG_SLEEP: Duration = Duration::from_micros(250);

/// Sets the modes, and makes sure of what was really set.
pub(crate) fn set_modes(connection: &Connection, path: &Path, deadline: Instant) -> Result<(), OpenError> {
    let failed = |error| OpenError::of_sqlite(path, error);
    // Changing the mode needs the file for itself and does not always ask the busy handler.
    let mode: String = retry(deadline, || connection.query_row("PRAGMA main.journal_mode = WAL", (), |row| row.get(0)))
        .map_err(failed)?;
    expect(path, "journal_mode", "wal", &mode)?;
    connection.execute_batch("PRAGMA main.synchronous = FULL").map_err(failed)?;
    connection.execute_batch(TUNING).map_err(failed)?;
    check_synchronous(connection, path)
}

/// Whether the modes are still those that [`set_modes`] set.
pub(crate) fn check_modes(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let mode: String = connection
        .query_row("PRAGMA main.journal_mode", (), |row| row.get(0))
        .map_err(|error| OpenError::of_sqlite(path, error))?;
    expect(path, "journal_mode", "wal", &mode)?;
    check_synchronous(connection, path)
}

fn check_synchronous(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let level = synchronous(connection).map_err(|error| OpenError::of_sqlite(path, error))?;
    if level < FULL {
        return expect(path, "synchronous", "2 (FULL)", &level.to_string());
    }
    Ok(())
}

/// Whether a commit of this connection outlives a loss of power.
pub(crate) fn is_durable(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(synchronous(connection)? >= FULL)
}

fn synchronous(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("PRAGMA main.synchronous")?.query_row((), |row| row.get(0))
}

/// Makes the tables where there are none, and refuses those that this code does not know.
pub(crate) fn create(connection: &Connection, path: &Path, deadline: Instant) -> Result<(), OpenError> {
    if check_version(connection, path)? == Found::Known {
        return Ok(());
    }
    let failed = |error| OpenError::of_sqlite(path, error);
    let begin = || Transaction::new_unchecked(connection, TransactionBehavior::Immediate);
    let transaction = retry(deadline, begin).map_err(failed)?;
    // Another process may have made them since.
    if check_version(connection, path)? == Found::Nothing {
        transaction.execute_batch(CREATE).map_err(failed)?;
        transaction.execute(INSERT_VERSION, [VERSION]).map_err(failed)?;
    }
    transaction.commit().map_err(failed)
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Known,
}

/// Looks for the tables, and whether this code knows their version.
pub(crate) fn check_version(connection: &Connection, path: &Path) -> Result<Found, OpenError> {
    let failed = |error| OpenError::of_sqlite(path, error);
    let damaged = |problem| OpenError::Schema { path: path.into(), problem };
    let tables = connection.query_row(FIND_TABLES, (), |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
    match tables {
        (0, 0) => return Ok(Found::Nothing),
        (1, 1) => {}
        (0, _) => return Err(damaged("it has a table idem_records that is not of this store")),
        (_, _) => return Err(damaged("it has a table idem_schema, and no table idem_records")),
    }
    let version: Option<i64> = connection.query_row(FIND_VERSION, (), |row| row.get(0)).optional().map_err(failed)?;
    match version {
        None => Err(damaged("its table idem_schema has no version")),
        Some(found) if found > VERSION => Err(OpenError::NewerSchema { path: path.into(), found, known: VERSION }),
        Some(found) if found < 1 => Err(damaged("its table idem_schema has a version below 1")),
        Some(_) => Ok(Found::Known),
    }
}

/// Writes to the file, without changing anything.
pub(crate) fn touch(connection: &Connection) -> rusqlite::Result<usize> {
    connection.prepare_cached(TOUCH)?.execute(())
}

fn expect(path: &Path, setting: &'static str, wanted: &'static str, found: &str) -> Result<(), OpenError> {
    if found == wanted {
        return Ok(());
    }
    Err(OpenError::Mode { path: path.into(), setting, wanted, found: found.into() })
}

fn retry<T>(deadline: Instant, mut attempt: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // case 074
    #[test]
    fn a_place_where_wal_is_impossible_is_refused_by_the_mode_that_was_really_set() {
        let memory = Connection::open_in_memory().unwrap();
        let error = set_modes(&memory, Path::new("somewhere"), Instant::now()).unwrap_err();
        match error {
            OpenError::Mode { setting: "journal_mode", wanted: "wal", ref found, .. } => assert_eq!(found, "memory"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_connection_that_no_longer_syncs_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("idem.db");
        let connection = Connection::open(&path).unwrap();
        set_modes(&connection, &path, Instant::now()).unwrap();
        check_modes(&connection, &path).unwrap();
        connection.execute_batch("PRAGMA synchronous = NORMAL").unwrap();
        let error = check_modes(&connection, &path).unwrap_err();
        assert!(matches!(error, OpenError::Mode { setting: "synchronous", .. }), "{error:?}");
    }
}
