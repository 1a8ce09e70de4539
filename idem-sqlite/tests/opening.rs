//! Opening: every way in which a place or a file can be wrong.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{fs, path::Path, time::Duration};

use common::{Place, claim_of, own, record};
use idem_core::{Store, StoreErrorKind};
use idem_sqlite::{
    OpenError, SqliteStore,
    rusqlite::{Connection, TransactionBehavior},
};

fn refusal(path: impl AsRef<Path>) -> OpenError {
    SqliteStore::builder(path).timeout(Duration::from_millis(50)).open().unwrap_err()
}

#[test]
fn an_empty_path_is_refused() {
    assert!(matches!(refusal(""), OpenError::EmptyPath));
}

// case 074
#[test]
fn a_database_without_a_file_is_refused() {
    for path in [":memory:", "file::memory:?cache=shared", "file:idem.db"] {
        let error = refusal(path);
        assert!(matches!(error, OpenError::NotAFile { .. }), "{error:?}");
        assert!(!Path::new(path).exists());
    }
}

#[cfg(unix)]
#[test]
fn a_device_and_a_path_that_is_no_text_are_refused() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    assert!(matches!(refusal("/dev/null"), OpenError::NotAFile { .. }));
    assert!(matches!(refusal(OsStr::from_bytes(b"idem-\xff.db")), OpenError::NotUtf8 { .. }));
}

#[test]
fn a_directory_is_refused() {
    let place = Place::new();
    let directory = place.file().parent().unwrap().to_path_buf();
    assert!(matches!(refusal(&directory), OpenError::Directory { path } if path == directory));
    assert!(matches!(refusal("/"), OpenError::Directory { .. }));
}

#[test]
fn a_missing_directory_is_named_and_not_made() {
    let place = Place::new();
    let missing = place.file().with_file_name("missing");
    let error = refusal(missing.join("idem.db"));
    assert!(matches!(&error, OpenError::MissingDirectory { directory, .. } if *directory == missing), "{error:?}");
    assert!(error.to_string().contains("make it, or correct the path"), "{error}");
    assert!(!missing.exists());

    fs::write(&missing, "a file where a directory should be").unwrap();
    assert!(matches!(refusal(missing.join("idem.db")), OpenError::MissingDirectory { .. }));
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_as_it_is() {
    let place = Place::new();
    let text = "These are the minutes of a meeting, and no database.\n".repeat(100);
    fs::write(place.file(), &text).unwrap();
    let error = refusal(place.file());
    assert!(matches!(error, OpenError::NotADatabase { .. }), "{error:?}");
    assert_eq!(fs::read_to_string(place.file()).unwrap(), text);
}

#[cfg(unix)]
#[test]
fn a_file_that_may_not_be_written_is_refused_as_such() {
    use std::os::unix::fs::PermissionsExt as _;

    let place = Place::new();
    drop(place.open());
    fs::set_permissions(place.file(), fs::Permissions::from_mode(0o444)).unwrap();
    // Whether permissions bind at all is the system's to say: they do not bind root.
    let may_write = fs::OpenOptions::new().write(true).open(place.file()).is_ok();
    match SqliteStore::open(place.file()) {
        Ok(_) => assert!(may_write),
        Err(error) => assert!(!may_write && matches!(error, OpenError::ReadOnly { .. }), "{error:?}"),
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_directory_in_which_nothing_can_be_made_is_refused() {
    // The one directory that takes no file from anybody.
    let error = refusal("/proc/idem.db");
    assert!(matches!(error, OpenError::NotPermitted { .. }), "{error:?}");
    assert!(error.to_string().contains("let this process write the file and its directory"), "{error}");
}

// case 074
#[test]
fn a_file_beside_which_no_log_can_be_made_is_refused() {
    let place = Place::new();
    drop(place.open());
    fs::create_dir(place.file().with_file_name("idem.db-wal")).unwrap();
    let error = refusal(place.file());
    assert!(matches!(error, OpenError::NotPermitted { .. }), "{error:?}");
}

#[test]
fn tables_of_a_newer_schema_are_refused_with_both_versions() {
    let place = Place::new();
    drop(place.open());
    place.connect().execute("UPDATE idem_schema SET version = 7", ()).unwrap();
    let error = refusal(place.file());
    assert!(matches!(error, OpenError::NewerSchema { found: 7, known: 1, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("version 7") && text.contains("up to 1"), "{text}");
}

#[test]
fn tables_that_are_not_the_stores_are_refused_and_left_as_they_are() {
    for (sql, problem) in [
        ("CREATE TABLE idem_records (a)", "a table idem_records that is not of this store"),
        ("CREATE TABLE idem_schema (id, version)", "no table idem_records"),
        ("CREATE TABLE idem_records (a); CREATE TABLE idem_schema (id, version)", "has no version"),
        (
            "CREATE TABLE idem_records (a); CREATE TABLE idem_schema (id, version); INSERT INTO idem_schema VALUES (1, 0)",
            "a version below 1",
        ),
    ] {
        let place = Place::new();
        place.connect().execute_batch(sql).unwrap();
        let error = refusal(place.file());
        assert!(matches!(error, OpenError::Schema { .. }), "{error:?}");
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn a_file_that_another_connection_keeps_for_itself_is_busy() {
    let place = Place::new();
    let mut other = place.connect();
    other.execute_batch("CREATE TABLE payments (id INTEGER PRIMARY KEY)").unwrap();
    let transaction = other.transaction_with_behavior(TransactionBehavior::Exclusive).unwrap();
    assert!(matches!(refusal(place.file()), OpenError::Busy { .. }));
    transaction.commit().unwrap();
    SqliteStore::open(place.file()).unwrap();
}

#[test]
fn no_time_at_all_is_refused_and_any_amount_is_not() {
    let place = Place::new();
    let error = SqliteStore::builder(place.file()).timeout(Duration::ZERO).open().unwrap_err();
    assert!(matches!(error, OpenError::NoTime), "{error:?}");
    SqliteStore::builder(place.file()).timeout(Duration::MAX).open().unwrap();
}

#[tokio::test]
async fn the_callers_own_database_keeps_its_tables_and_its_version() {
    let place = Place::new();
    let caller = place.connect();
    caller.execute_batch("CREATE TABLE payments (id INTEGER PRIMARY KEY); PRAGMA user_version = 42").unwrap();
    let store = place.open();
    own(&store, &claim_of("k-1")).await;
    let version: i64 = caller.query_row("PRAGMA user_version", (), |row| row.get(0)).unwrap();
    assert_eq!(version, 42);
    assert_eq!(caller.execute("INSERT INTO payments VALUES (1)", ()).unwrap(), 1);
}

#[tokio::test]
async fn opening_needs_no_write_lock_where_the_tables_are_there() {
    let place = Place::new();
    own(&place.open(), &claim_of("k-1")).await;
    let mut caller = place.connect();
    let _open = caller.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    // Opening would be busy if it needed the lock.
    let _impatient = place.open_impatient();
    assert!(record(&place.open(), "k-1").await.is_some());
}

#[tokio::test]
async fn a_path_through_a_link_is_the_same_store() {
    let place = Place::new();
    let store = place.open();
    own(&store, &claim_of("k-1")).await;
    let round_about = place
        .file()
        .parent()
        .unwrap()
        .join("..")
        .join(place.file().parent().unwrap().file_name().unwrap())
        .join("idem.db");
    let again = SqliteStore::builder(round_about).clock(place.clock.clone()).open().unwrap();
    assert_eq!(again.path(), store.path());
    assert!(record(&again, "k-1").await.is_some());
}

#[tokio::test]
async fn a_store_that_is_right_passes_its_check_and_the_check_changes_nothing() {
    let place = Place::new();
    let store = SqliteStore::open(place.file()).unwrap();
    own(&store, &claim_of("k-1")).await;
    let before = record(&store, "k-1").await;
    store.check().await.unwrap();
    assert_eq!(record(&store, "k-1").await, before);
}

#[tokio::test]
async fn a_check_notices_what_went_wrong_after_opening() {
    let place = Place::new();
    let store = place.open();
    place.connect().execute("UPDATE idem_schema SET version = 7", ()).unwrap();
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Configuration);
    assert!(error.to_string().contains("version 7"), "{error}");

    place.connect().execute_batch("DROP TABLE idem_schema; DROP TABLE idem_records").unwrap();
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Configuration);
    assert!(error.to_string().contains("gone"), "{error}");
    assert_eq!(store.claim(&claim_of("k-1")).await.unwrap_err().kind(), StoreErrorKind::Configuration);
}

#[cfg(unix)]
#[tokio::test]
async fn a_check_notices_that_the_file_was_removed_or_replaced() {
    let place = Place::new();
    let store = place.open();
    let kept = place.file().with_file_name("kept.db");
    fs::rename(place.file(), &kept).unwrap();
    let error = store.check().await.unwrap_err();
    assert!(error.to_string().contains("can't be found any more"), "{error}");

    Connection::open(place.file()).unwrap().execute_batch("CREATE TABLE other (a)").unwrap();
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Configuration);
    assert!(error.to_string().contains("another file than was opened"), "{error}");
}
