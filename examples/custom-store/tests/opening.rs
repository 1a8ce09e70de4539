//! Opening: twice in a process, in two processes, and files that are none of this store's.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{
    fs,
    io::{BufRead as _, BufReader},
    time::Duration,
};

use common::{Place, another_process, claim_of, open_by_host_clock, own, part, record, said, say};
use custom_store::{OpenError, RedbStore};
use idem_core::{Answer, Store, StoreErrorKind};
use redb::{Database, TableDefinition};

fn refusal(place: &Place) -> OpenError {
    RedbStore::builder(place.file()).timeout(Duration::from_millis(50)).open().unwrap_err()
}

#[tokio::test]
async fn a_second_opening_in_the_process_is_a_handle_on_the_same_store_by_whatever_path() {
    let place = Place::new();
    let first = place.open();
    let inside = place.dir().join("inside");
    fs::create_dir(&inside).unwrap();
    let roundabout = inside.join("..").join("idem.redb");
    let second = RedbStore::builder(roundabout).clock(place.clock.clone()).open().unwrap();
    own(&first, &claim_of("k-1")).await;
    assert!(matches!(idem_core::claim(&second, &claim_of("k-1")).await.unwrap(), Answer::Conflict { .. }));
    drop(first);
    assert!(record(&second, "k-1").await.is_some(), "the other handle keeps the store open");
    drop(second);
    Database::open(place.file()).unwrap(); // the last one closed it
}

#[test]
fn of_many_openings_at_once_each_gets_a_handle_on_one_store() {
    let place = Place::new();
    for _ in 0..5 {
        let opened: Vec<RedbStore> = std::thread::scope(|scope| {
            let openings: Vec<_> = (0..8).map(|_| scope.spawn(|| place.open())).collect();
            openings.into_iter().map(|opening| opening.join().unwrap()).collect()
        });
        drop(opened);
    }
}

#[tokio::test]
async fn a_file_that_another_process_has_open_is_refused_until_that_ends() {
    if let Some(file) = part() {
        let store = open_by_host_clock(file);
        own(&store, &claim_of("k-1")).await;
        say("opened");
        let _ = std::io::stdin().read_line(&mut String::new()); // until the other process closes it
        return;
    }
    let place = Place::new();
    let test = "a_file_that_another_process_has_open_is_refused_until_that_ends";
    let mut child = another_process(test, &place.file()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| said(&line.unwrap()) == Some("opened")));
    let error = refusal(&place);
    assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
    drop(child.stdin.take());
    // It ends while this waits for it.
    assert!(record(&open_by_host_clock(place.file()), "k-1").await.is_some());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_as_it_is() {
    let place = Place::new();
    let notes = "these are notes, and nobody wants them to become a database\n".repeat(200);
    fs::write(place.file(), &notes).unwrap();
    let error = refusal(&place);
    assert!(matches!(error, OpenError::NotADatabase { .. }), "{error:?}");
    assert!(error.to_string().contains("idem.redb"), "{error}");
    assert_eq!(fs::read_to_string(place.file()).unwrap(), notes);
}

#[test]
fn a_database_of_something_else_is_refused_and_left_as_it_is() {
    let place = Place::new();
    let theirs = TableDefinition::<u64, &str>::new("orders");
    let database = Database::create(place.file()).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(theirs).unwrap().insert(1, "an order").unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = refusal(&place);
    assert!(matches!(error, OpenError::NotAStore { .. }), "{error:?}");
    let database = Database::create(place.file()).unwrap();
    assert_eq!(database.begin_write().unwrap().list_tables().unwrap().count(), 1);
}

#[test]
fn a_file_of_a_newer_format_is_refused_and_says_which() {
    let place = Place::new();
    drop(place.open());
    let database = Database::create(place.file()).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(TableDefinition::<&str, u32>::new("idem_format")).unwrap().insert("", 9).unwrap();
    // A newer version may well have other tables.
    transaction.open_table(TableDefinition::<u64, u64>::new("idem_later")).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = refusal(&place);
    assert!(matches!(error, OpenError::NewerFormat { found: 9, known: 1, .. }), "{error:?}");
    assert!(error.to_string().contains("format 9"), "{error}");
}

#[test]
fn tables_of_the_same_names_and_other_types_are_refused() {
    let place = Place::new();
    let database = Database::create(place.file()).unwrap();
    let transaction = database.begin_write().unwrap();
    for name in ["idem_records", "idem_open", "idem_expiries"] {
        transaction.open_table(TableDefinition::<u64, u64>::new(name)).unwrap();
    }
    transaction.open_table(TableDefinition::<&str, u32>::new("idem_format")).unwrap().insert("", 1).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = refusal(&place);
    assert!(matches!(error, OpenError::NotAStore { .. }), "{error:?}");
}

#[tokio::test]
async fn a_damaged_file_is_refused_or_whole_and_never_panics() {
    let place = Place::new();
    let store = place.open();
    for number in 0..20 {
        own(&store, &claim_of(&format!("k-{number}"))).await;
    }
    drop(store);
    let whole = fs::read(place.file()).unwrap();
    let mut refused = 0;
    for at in (0..whole.len()).step_by(997) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        fs::write(place.file(), damaged).unwrap();
        match RedbStore::builder(place.file()).clock(place.clock.clone()).open() {
            // A byte that nothing is kept in, or that is repaired from the other copy of it.
            Ok(store) => {
                for number in 0..20 {
                    let found = store.read(&common::scope(), &common::key(&format!("k-{number}"))).await.unwrap();
                    assert!(found.is_some(), "byte {at}: k-{number} is lost");
                }
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0);
}

#[test]
fn places_that_are_no_files_are_refused_with_what_to_do() {
    let place = Place::new();
    let open = |path: &std::path::Path| RedbStore::open(path).unwrap_err();
    assert!(matches!(open("".as_ref()), OpenError::EmptyPath));
    assert!(matches!(open(place.dir()), OpenError::NotAFile { .. }));
    let error = open(&place.dir().join("missing").join("idem.redb"));
    assert!(matches!(error, OpenError::MissingDirectory { .. }), "{error:?}");
    assert!(!place.dir().join("missing").exists());
    let error = RedbStore::builder(place.file()).timeout(Duration::ZERO).open().unwrap_err();
    assert!(matches!(error, OpenError::NoTime), "{error:?}");
    assert!(!place.file().exists());
}

#[tokio::test]
async fn the_check_notices_that_the_file_was_replaced() {
    let place = Place::new();
    let store = place.open();
    store.check().await.unwrap();
    fs::rename(place.file(), place.dir().join("elsewhere")).unwrap();
    assert_eq!(store.check().await.unwrap_err().kind(), StoreErrorKind::Configuration);
    fs::write(place.file(), "").unwrap();
    assert_eq!(store.check().await.unwrap_err().kind(), StoreErrorKind::Configuration);
}
