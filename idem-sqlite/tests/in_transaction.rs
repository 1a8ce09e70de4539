//! Completing a record in a transaction of the caller's.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use common::{Place, claim_of, key, own, record, response, retention, scope};
use idem_core::{
    Answer, CommitError, Completion, Fenced, Owner, State, Store, StoreError, StoreErrorKind, Transaction as _,
};
use idem_sqlite::{
    SqliteStore,
    rusqlite::{Connection, DropBehavior, ErrorCode, Transaction, TransactionBehavior},
};

const LEASE: Duration = Duration::from_secs(2);

/// A place whose file also has the caller's payments, and an attempt that owns k-1.
async fn payments() -> (Place, SqliteStore, Connection, Owner) {
    let place = Place::new();
    let store = place.open();
    let caller = place.connect();
    caller.execute_batch("CREATE TABLE payments (id INTEGER PRIMARY KEY)").unwrap();
    let owner = own(&store, &claim_of("k-1").with_lease(LEASE)).await;
    (place, store, caller, owner)
}

fn begin(caller: &mut Connection) -> Transaction<'_> {
    caller.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

fn pay(transaction: &Transaction<'_>) {
    transaction.execute("INSERT INTO payments DEFAULT VALUES", ()).unwrap();
}

fn paid(place: &Place) -> i64 {
    place.connect().query_row("SELECT count(*) FROM payments", (), |row| row.get(0)).unwrap()
}

fn completion(owner: &Owner) -> Completion {
    Completion::new(owner.clone(), response(), retention())
}

// case 037
#[tokio::test]
async fn the_business_row_and_the_completion_are_committed_together() {
    let (place, store, mut caller, owner) = payments().await;
    let transaction = begin(&mut caller);
    pay(&transaction);
    let sent = store.in_transaction(transaction).commit_with(completion(&owner)).unwrap();
    assert_eq!(sent, response());
    assert_eq!(paid(&place), 1);
    match idem_core::claim(&store, &claim_of("k-1")).await.unwrap() {
        Answer::Replay { response: replayed, .. } => assert_eq!(replayed, response()),
        other => panic!("{other:?}"),
    }
}

// case 037
#[tokio::test]
async fn the_business_row_and_the_completion_are_rolled_back_together() {
    let (place, store, mut caller, owner) = payments().await;
    let transaction = begin(&mut caller);
    pay(&transaction);
    assert_eq!(store.complete_in(&transaction, &completion(&owner)).unwrap(), Fenced::Written(response()));
    assert_eq!(record(&store, "k-1").await.unwrap().state, State::InProgress);
    drop(transaction);
    assert_eq!(paid(&place), 0);
    assert_eq!(record(&store, "k-1").await.unwrap().state, State::InProgress);
    store.complete(&owner, &response(), retention()).await.unwrap();
}

#[tokio::test]
async fn an_attempt_that_was_taken_over_commits_nothing() {
    let (place, store, mut caller, first) = payments().await;
    place.clock.advance(LEASE);
    let second = own(&store, &claim_of("k-1")).await;
    let before = record(&store, "k-1").await;

    let transaction = begin(&mut caller);
    pay(&transaction);
    assert_eq!(store.complete_in(&transaction, &completion(&first)).unwrap(), Fenced::Superseded);
    drop(transaction);

    // Also where the caller's transactions commit when they are dropped.
    let mut transaction = begin(&mut caller);
    transaction.set_drop_behavior(DropBehavior::Commit);
    pay(&transaction);
    let error = store.in_transaction(transaction).commit_with(completion(&first)).unwrap_err();
    assert!(matches!(error, CommitError::Superseded), "{error:?}");
    assert_eq!((paid(&place), record(&store, "k-1").await), (0, before));

    let transaction = begin(&mut caller);
    pay(&transaction);
    store.in_transaction(transaction).commit_with(completion(&second)).unwrap();
    assert_eq!(paid(&place), 1);
}

#[tokio::test]
async fn an_attempt_with_the_right_token_and_another_number_commits_nothing() {
    let (place, store, mut caller, owner) = payments().await;
    // Resolving under the token of the attempt itself gives it the next number.
    store.hold(&owner, retention()).await.unwrap();
    let resolve = idem_core::Resolve::new(scope(), key("k-1"), owner.attempt(), owner.attempt().token);
    store.resolve(&resolve).await.unwrap();
    let transaction = begin(&mut caller);
    pay(&transaction);
    let error = store.in_transaction(transaction).commit_with(completion(&owner)).unwrap_err();
    assert!(matches!(error, CommitError::Superseded), "{error:?}");
    assert_eq!(paid(&place), 0);
}

#[tokio::test]
async fn a_transaction_of_an_attempt_that_has_completed_is_rolled_back() {
    let (place, store, mut caller, owner) = payments().await;
    let transaction = begin(&mut caller);
    pay(&transaction);
    store.in_transaction(transaction).commit_with(completion(&owner)).unwrap();
    let again = begin(&mut caller);
    pay(&again);
    let error = store.in_transaction(again).commit_with(completion(&owner)).unwrap_err();
    assert!(matches!(error, CommitError::Superseded), "{error:?}");
    assert_eq!(paid(&place), 1);
}

fn assert_refused(error: &StoreError, what: &str) {
    assert_eq!(error.kind(), StoreErrorKind::Contract, "{error}");
    assert!(error.to_string().contains(what), "{error}");
}

// case 068
#[tokio::test]
async fn a_transaction_that_does_not_hold_the_write_lock_is_refused_and_told_how_to_begin() {
    let (place, store, mut caller, owner) = payments().await;
    let before = record(&store, "k-1").await;
    let transaction = caller.transaction().unwrap();
    let error = store.complete_in(&transaction, &completion(&owner)).unwrap_err();
    assert_refused(&error, "begin it with TransactionBehavior::Immediate");

    // Reading is not enough either: a rival may commit in between, and then SQLite lets it write no more (517).
    let _: i64 = transaction.query_row("SELECT count(*) FROM payments", (), |row| row.get(0)).unwrap();
    let error = store.complete_in(&transaction, &completion(&owner)).unwrap_err();
    assert_refused(&error, "begin it with TransactionBehavior::Immediate");
    own(&store, &claim_of("k-2")).await;
    let error = store.complete_in(&transaction, &completion(&owner)).unwrap_err();
    assert_refused(&error, "begin it with TransactionBehavior::Immediate");
    let busy = transaction.execute("INSERT INTO payments DEFAULT VALUES", ()).unwrap_err();
    assert_eq!(busy.sqlite_error().map(|error| error.extended_code), Some(517));
    match store.in_transaction(transaction).commit_with(completion(&owner)).unwrap_err() {
        CommitError::Store(error) => assert_refused(&error, "begin it with TransactionBehavior::Immediate"),
        other => panic!("{other:?}"),
    }
    assert_eq!((paid(&place), record(&store, "k-1").await), (0, before));

    // A deferred transaction that wrote first does hold it.
    let transaction = caller.transaction().unwrap();
    pay(&transaction);
    store.in_transaction(transaction).commit_with(completion(&owner)).unwrap();
    assert_eq!(paid(&place), 1);
}

#[tokio::test]
async fn a_transaction_on_another_file_is_refused() {
    let (place, store, _caller, owner) = payments().await;
    let elsewhere = Place::new();
    let _other_store = elsewhere.open();
    let mut memory = Connection::open_in_memory().unwrap();
    let error = store.complete_in(&begin(&mut memory), &completion(&owner)).unwrap_err();
    assert_refused(&error, "the transaction is on no file");

    let mut other = elsewhere.connect();
    other.execute("ATTACH ?1 AS idem", [place.file().to_str().unwrap()]).unwrap();
    let error = store.complete_in(&begin(&mut other), &completion(&owner)).unwrap_err();
    assert_refused(&error, "whose main database is the store's file");
    assert_eq!(record(&store, "k-1").await.unwrap().state, State::InProgress);
}

#[tokio::test]
async fn a_connection_whose_commits_may_be_lost_with_the_power_is_refused() {
    let (place, store, mut caller, owner) = payments().await;
    caller.execute_batch("PRAGMA synchronous = NORMAL").unwrap();
    let transaction = begin(&mut caller);
    pay(&transaction);
    match store.in_transaction(transaction).commit_with(completion(&owner)).unwrap_err() {
        CommitError::Store(error) => {
            assert_eq!(error.kind(), StoreErrorKind::Configuration);
            assert!(error.to_string().contains("PRAGMA synchronous = FULL"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(paid(&place), 0);
    caller.execute_batch("PRAGMA synchronous = EXTRA").unwrap();
    store.in_transaction(begin(&mut caller)).commit_with(completion(&owner)).unwrap();
}

#[tokio::test]
async fn a_temporary_table_of_the_callers_never_stands_in_for_the_stores() {
    let (_place, store, mut caller, owner) = payments().await;
    caller.execute_batch("CREATE TEMP TABLE idem_records AS SELECT * FROM main.idem_records").unwrap();
    store.in_transaction(begin(&mut caller)).commit_with(completion(&owner)).unwrap();
    assert_eq!(record(&store, "k-1").await.unwrap().state, State::Done(response()));
}

#[tokio::test]
async fn a_commit_that_fails_is_unavailable_and_leaves_nothing() {
    let (place, store, mut caller, owner) = payments().await;
    caller
        .execute_batch("CREATE TABLE refunds (payment INTEGER REFERENCES payments DEFERRABLE INITIALLY DEFERRED)")
        .unwrap();
    let transaction = begin(&mut caller);
    transaction.execute("INSERT INTO refunds VALUES (99)", ()).unwrap();
    match store.in_transaction(transaction).commit_with(completion(&owner)).unwrap_err() {
        CommitError::Store(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable),
        other => panic!("{other:?}"),
    }
    assert_eq!(record(&store, "k-1").await.unwrap().state, State::InProgress);
    // The connection is free again, and so is the lock.
    pay(&begin(&mut caller));
    own(&store, &claim_of("k-2")).await;
    assert_eq!(paid(&place), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_when_the_attempt_completes_in_a_transaction() {
    let (_place, store, mut caller, owner) = payments().await;
    let wait = tokio::spawn({
        let (store, seen) = (store.clone(), owner.attempt());
        async move { store.wait(&scope(), &key("k-1"), seen, Duration::from_secs(60)).await.unwrap().unwrap() }
    });
    store.in_transaction(begin(&mut caller)).commit_with(completion(&owner)).unwrap();
    assert_eq!(wait.await.unwrap().record.state, State::Done(response()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_go_on_beside_a_caller_that_loops_short_transactions_and_it_goes_on_beside_them() {
    let (place, store, _caller, _owner) = payments().await;
    let enough = Arc::new(AtomicBool::new(false));
    let looping = std::thread::spawn({
        let (enough, mut caller) = (enough.clone(), place.connect());
        move || {
            let mut committed = 0;
            while !enough.load(Ordering::Relaxed) {
                match caller.transaction_with_behavior(TransactionBehavior::Immediate) {
                    Ok(transaction) => {
                        pay(&transaction);
                        transaction.commit().unwrap();
                        committed += 1;
                    }
                    Err(error) => assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy)),
                }
            }
            committed
        }
    });
    for number in 0..200 {
        own(&store, &claim_of(&format!("beside-{number}"))).await;
    }
    enough.store(true, Ordering::Relaxed);
    let committed: i64 = looping.join().unwrap();
    assert!(committed > 0);
    assert_eq!(paid(&place), committed);
}

// case 084
#[tokio::test(flavor = "multi_thread")]
async fn what_waited_for_the_lock_is_judged_at_the_instant_at_which_it_got_it() {
    let (place, store, mut caller, _owner) = payments().await;
    let transaction = begin(&mut caller);
    let waiting = {
        let store = store.clone();
        tokio::spawn(async move { idem_core::claim(&store, &claim_of("k-1").with_lease(LEASE)).await })
    };
    // Time for it to reach the lock. If it has not by then, it is judged later still.
    tokio::time::sleep(Duration::from_millis(50)).await;
    place.clock.advance(LEASE);
    transaction.rollback().unwrap();
    let answer = waiting.await.unwrap().unwrap();
    assert!(matches!(answer, Answer::TakenOver(_)), "{answer:?}");
}
