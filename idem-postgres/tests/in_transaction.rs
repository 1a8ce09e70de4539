//! Claiming and completing in transactions of the caller's: business rows and record together, or neither.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{
    LEASE, PATIENCE, Place, claim, claim_of, complete, connect, eventually, fingerprint, granted, key, number, own,
    record, response, retention, rounds, scope, word,
};
use futures_util::future::{BoxFuture, join, join_all};
use idem_core::{
    Answer, Checkpoint, CommitError, Completion, Fenced, OnLapse, Owner, Resolve, Response, Retention, State, Store,
    StoreErrorKind, Transaction as _,
};
use idem_postgres::{
    Parameter, PostgresStore,
    deadpool_postgres::{Manager, Pool},
    tokio_postgres::{Client, IsolationLevel, NoTls, Transaction, types::ToSql},
};
use idem_runner::{Attempt, Idempotency, Outcome, Request};
use test_servers::{Cut, Fault, Proxy};
use tokio::sync::{Barrier, Notify};

const LEVELS: [IsolationLevel; 3] =
    [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

fn is_snapshot(level: IsolationLevel) -> bool {
    !matches!(level, IsolationLevel::ReadCommitted)
}

/// A place that also has payments.
async fn payments(name: &str) -> (Place, PostgresStore, Client) {
    let place = Place::new(name);
    let store = place.open().await;
    let client = place.connect().await;
    client.batch_execute(&format!("CREATE TABLE {name}_payments (name TEXT NOT NULL)")).await.unwrap();
    (place, store, client)
}

async fn pay(transaction: &Transaction<'_>, place: &Place, name: &str) {
    let insert = format!("INSERT INTO {}_payments VALUES ($1)", place.table);
    transaction.execute(&insert, &[&name]).await.unwrap();
}

async fn paid(place: &Place, name: &str) -> i64 {
    let count = format!("SELECT count(*) FROM {}_payments WHERE name = '{name}'", place.table);
    number(&place.connect().await, &count).await
}

async fn begin(client: &mut Client, level: IsolationLevel) -> Transaction<'_> {
    client.build_transaction().isolation_level(level).start().await.unwrap()
}

fn completion(owner: &Owner) -> Completion {
    Completion::new(owner.clone(), response(), retention())
}

fn pool(url: &str) -> Pool {
    Pool::builder(Manager::new(url.parse().unwrap(), NoTls)).max_size(4).build().unwrap()
}

// case 037
#[tokio::test]
async fn a_payment_and_its_completion_are_committed_together_through_both_drivers() {
    let (place, store, mut client) = payments("together").await;
    let pool = pool(&place.url);
    for level in LEVELS {
        for by_pool in [false, true] {
            let name = format!("{level:?} {by_pool}");
            let owner = own(&store, &claim_of(&name)).await;
            let sent = if by_pool {
                let mut connection = pool.get().await.unwrap();
                let transaction = connection.build_transaction().isolation_level(level).start().await.unwrap();
                pay(&transaction, &place, &name).await;
                store.in_transaction(transaction).commit_with(completion(&owner)).await
            } else {
                let transaction = begin(&mut client, level).await;
                pay(&transaction, &place, &name).await;
                store.in_transaction(transaction).commit_with(completion(&owner)).await
            };
            assert_eq!(sent.unwrap(), response());
            assert_eq!(paid(&place, &name).await, 1);
            match claim(&store, &claim_of(&name)).await {
                Answer::Replay { response: replayed, .. } => assert_eq!(replayed, response()),
                other => panic!("{other:?}"),
            }
        }
    }
}

// case 037
#[tokio::test]
async fn a_payment_and_its_completion_are_rolled_back_together() {
    let (place, store, mut client) = payments("rolled_back").await;
    let mut connection = pool(&place.url).get().await.unwrap();
    let owner = own(&store, &claim_of("k")).await;
    for level in LEVELS {
        let transaction = begin(&mut client, level).await;
        pay(&transaction, &place, "k").await;
        assert_eq!(store.complete_in(&transaction, &completion(&owner)).await.unwrap(), Fenced::Written(response()));
        drop(transaction);
        let transaction = connection.build_transaction().isolation_level(level).start().await.unwrap();
        pay(&transaction, &place, "k").await;
        assert_eq!(store.complete_in(&transaction, &completion(&owner)).await.unwrap(), Fenced::Written(response()));
        transaction.rollback().await.unwrap();
        assert_eq!(paid(&place, "k").await, 0);
        assert_eq!(record(&store, "k").await.unwrap().state, State::InProgress);
    }
    complete(&store, &owner).await;
}

/// An owner whose key another attempt took over.
async fn superseded(place: &Place, store: &PostgresStore, name: &str) -> (Owner, Owner) {
    let first = own(store, &claim_of(name)).await;
    place.clock.advance(LEASE);
    (first, own(store, &claim_of(name)).await)
}

#[tokio::test]
async fn an_attempt_that_was_superseded_commits_nothing() {
    let (place, store, mut client) = payments("superseded").await;
    for level in LEVELS {
        let name = format!("{level:?}");
        let (first, second) = superseded(&place, &store, &name).await;
        let before = record(&store, &name).await;

        let transaction = begin(&mut client, level).await;
        assert_eq!(store.lock_in(&transaction, &first).await.unwrap(), Fenced::Superseded);
        pay(&transaction, &place, &name).await;
        assert_eq!(store.complete_in(&transaction, &completion(&first)).await.unwrap(), Fenced::Superseded);
        transaction.rollback().await.unwrap();

        let transaction = begin(&mut client, level).await;
        pay(&transaction, &place, &name).await;
        let error = store.in_transaction(transaction).commit_with(completion(&first)).await.unwrap_err();
        assert!(matches!(error, CommitError::Superseded), "{error:?}");
        assert_eq!((paid(&place, &name).await, record(&store, &name).await), (0, before));

        let transaction = begin(&mut client, level).await;
        pay(&transaction, &place, &name).await;
        store.in_transaction(transaction).commit_with(completion(&second)).await.unwrap();
        assert_eq!(paid(&place, &name).await, 1);
    }
}

#[tokio::test]
async fn an_attempt_with_the_right_token_and_another_number_commits_nothing() {
    let (place, store, mut client) = payments("numbers").await;
    let owner = own(&store, &claim_of("k")).await;
    // Resolving under the token of the attempt itself gives it the next number.
    store.hold(&owner, retention()).await.unwrap();
    let resolve = Resolve::new(scope(), key("k"), owner.attempt(), owner.attempt().token);
    assert!(matches!(store.resolve(&resolve).await.unwrap(), Fenced::Written(_)));
    let transaction = begin(&mut client, IsolationLevel::ReadCommitted).await;
    assert_eq!(store.lock_in(&transaction, &owner).await.unwrap(), Fenced::Superseded);
    pay(&transaction, &place, "k").await;
    let error = store.in_transaction(transaction).commit_with(completion(&owner)).await.unwrap_err();
    assert!(matches!(error, CommitError::Superseded), "{error:?}");
    assert_eq!(paid(&place, "k").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_attempts_that_complete_in_transactions_at_once_leave_one_payment() {
    let (place, store, _) = payments("at_once").await;
    let mut outcomes = [0, 0];
    for round in 0..rounds(30, 500) {
        let level = LEVELS[round % 3];
        let name = format!("k-{round}");
        let first = own(&store, &claim_of(&name)).await;
        place.clock.advance(LEASE);
        let takeover = async {
            let answer = claim(&store, &claim_of(&name)).await;
            match answer {
                Answer::TakenOver(grant) => commit(&place, &store, level, &name, grant.owner()).await,
                Answer::Replay { .. } | Answer::Conflict { .. } => Ok(false),
                other => panic!("{other:?}"),
            }
        };
        let (by_first, by_second) = join(commit(&place, &store, level, &name, &first), takeover).await;
        let committed = [by_first.unwrap(), by_second.unwrap()];
        assert_eq!(paid(&place, &name).await, committed.iter().filter(|it| **it).count() as i64, "{name}");
        assert_eq!(paid(&place, &name).await, 1, "{name}");
        for (count, committed) in outcomes.iter_mut().zip(committed) {
            *count += usize::from(committed);
        }
        assert!(matches!(record(&store, &name).await.unwrap().state, State::Done(_)));
    }
    assert!(outcomes.iter().sum::<usize>() > 0, "{outcomes:?}");
}

/// Pays and commits, again where the server asks for that. Says whether it was committed.
async fn commit(
    place: &Place,
    store: &PostgresStore,
    level: IsolationLevel,
    name: &str,
    owner: &Owner,
) -> Result<bool, CommitError> {
    let mut client = place.connect().await;
    loop {
        let transaction = begin(&mut client, level).await;
        pay(&transaction, place, name).await;
        match store.in_transaction(transaction).commit_with(completion(owner)).await {
            Ok(_) => return Ok(true),
            Err(CommitError::Superseded) => return Ok(false),
            Err(CommitError::Store(error)) if error.kind() == StoreErrorKind::Unavailable => {}
            Err(error) => return Err(error),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_commits_in_two_transactions_at_once_pays_once() {
    let (place, store, _) = payments("twice").await;
    for round in 0..rounds(30, 500) {
        let (name, level) = (format!("k-{round}"), LEVELS[round % 3]);
        let owner = own(&store, &claim_of(&name)).await;
        let both = join_all((0..2).map(|_| commit(&place, &store, level, &name, &owner))).await;
        assert!(both.into_iter().all(Result::unwrap), "both are answered with the recorded response");
        assert_eq!(paid(&place, &name).await, 1, "{name}");
    }
}

#[tokio::test]
async fn what_was_completed_earlier_in_the_same_transaction_is_committed() {
    let (place, store, mut client) = payments("earlier").await;
    for level in LEVELS {
        let name = format!("{level:?}");
        let owner = own(&store, &claim_of(&name)).await;
        let mut transaction = begin(&mut client, level).await;
        pay(&transaction, &place, &name).await;
        // In a savepoint, which makes it another transaction to the server.
        let inner = transaction.transaction().await.unwrap();
        assert_eq!(store.complete_in(&inner, &completion(&owner)).await.unwrap(), Fenced::Written(response()));
        inner.commit().await.unwrap();
        let sent = store.in_transaction(transaction).commit_with(completion(&owner)).await.unwrap();
        assert_eq!((sent, paid(&place, &name).await), (response(), 1));
        assert_eq!(word(&claim(&store, &claim_of(&name)).await), "Replay");
    }
}

#[tokio::test]
async fn renewals_neither_wait_for_the_callers_transaction_nor_make_it_fail() {
    let (place, store, mut client) = payments("renewed").await;
    for level in LEVELS {
        let name = format!("{level:?}");
        let owner = own(&store, &claim_of(&name)).await;
        let transaction = begin(&mut client, level).await;
        if is_snapshot(level) {
            assert_eq!(store.lock_in(&transaction, &owner).await.unwrap(), Fenced::Written(()));
        }
        pay(&transaction, &place, &name).await;
        for _ in 0..3 {
            place.clock.advance(LEASE / 3);
            assert_eq!(store.renew(&owner, LEASE).await.unwrap(), Fenced::Written(()), "amid the transaction");
        }
        assert_eq!(store.complete_in(&transaction, &completion(&owner)).await.unwrap(), Fenced::Written(response()));
        for _ in 0..3 {
            assert_eq!(store.renew(&owner, LEASE).await.unwrap(), Fenced::Written(()), "while it is completed");
        }
        transaction.commit().await.unwrap();
        assert_eq!(paid(&place, &name).await, 1);
        assert_eq!(store.renew(&owner, LEASE).await.unwrap(), Fenced::Superseded, "it is done");
    }
}

#[tokio::test]
async fn a_renewal_before_a_completion_above_read_committed_is_said_to_be_a_matter_of_doing_it_again() {
    let (place, store, mut client) = payments("unlocked").await;
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let name = format!("{level:?}");
        let owner = own(&store, &claim_of(&name)).await;
        let transaction = begin(&mut client, level).await;
        pay(&transaction, &place, &name).await;
        assert_eq!(store.renew(&owner, LEASE).await.unwrap(), Fenced::Written(()));
        match store.in_transaction(transaction).commit_with(completion(&owner)).await.unwrap_err() {
            CommitError::Store(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                assert!(error.to_string().contains("do the transaction again"), "{error}");
            }
            CommitError::Superseded => panic!("the attempt is the owner"),
            other => panic!("{other:?}"),
        }
        assert_eq!(paid(&place, &name).await, 0);
        assert!(commit(&place, &store, level, &name, &owner).await.unwrap());
        assert_eq!(paid(&place, &name).await, 1);
    }
}

#[tokio::test]
async fn a_claim_of_a_key_that_is_being_completed_is_a_conflict_at_once() {
    let (place, store, mut client) = payments("completing").await;
    for level in LEVELS {
        for with_lock in [false, true] {
            let name = format!("{level:?} {with_lock}");
            let owner = own(&store, &claim_of(&name)).await;
            let transaction = begin(&mut client, level).await;
            if with_lock {
                assert_eq!(store.lock_in(&transaction, &owner).await.unwrap(), Fenced::Written(()));
            } else {
                let completed = store.complete_in(&transaction, &completion(&owner)).await.unwrap();
                assert_eq!(completed, Fenced::Written(response()));
            }
            match claim(&store, &claim_of(&name)).await {
                Answer::Conflict { left: Some(left), seen } => {
                    assert_eq!((left, seen), (LEASE, Some(owner.attempt())));
                }
                other => panic!("{other:?}"),
            }
            // Nobody takes it over: its owner is finishing it.
            place.clock.advance(LEASE);
            match claim(&store, &claim_of(&name)).await {
                Answer::Conflict { left: None, seen } => assert_eq!(seen, Some(owner.attempt())),
                other => panic!("{other:?}"),
            }
            if with_lock {
                transaction.rollback().await.unwrap();
                assert_eq!(word(&claim(&store, &claim_of(&name)).await), "TakenOver");
            } else {
                transaction.commit().await.unwrap();
                assert_eq!(word(&claim(&store, &claim_of(&name)).await), "Replay");
            }
        }
    }
}

fn to_sql(parameter: &Parameter) -> &(dyn ToSql + Sync) {
    match parameter {
        Parameter::Text(text) => text,
        Parameter::Bytes(bytes) => bytes,
        Parameter::BigInt(number) => number,
        other => panic!("a parameter of another type: {other:?}"),
    }
}

#[tokio::test]
async fn the_completion_as_a_statement_changes_one_row_for_the_owner_and_none_for_others() {
    let (place, store, mut client) = payments("statement").await;
    let (first, second) = superseded(&place, &store, "k").await;
    for (owner, expected) in [(&first, 0), (&second, 1)] {
        let (lock, completion) = (store.lock_statement(owner), store.completion_statement(&completion(owner)));
        let transaction = client.transaction().await.unwrap();
        let values: Vec<_> = lock.parameters.iter().map(to_sql).collect();
        assert_eq!(transaction.query(&lock.sql, &values).await.unwrap().len(), expected);
        pay(&transaction, &place, "k").await;
        // As any driver does it: the types are the server's choice, the count is what it reports.
        let values: Vec<_> = completion.parameters.iter().map(to_sql).collect();
        let changed = transaction.execute(&completion.sql, &values).await.unwrap();
        assert_eq!((changed, completion.rows, lock.rows), (expected as u64, 1, 1));
        match changed == completion.rows {
            true => transaction.commit().await.unwrap(),
            false => transaction.rollback().await.unwrap(),
        }
    }
    assert_eq!(paid(&place, "k").await, 1);
    assert_eq!(word(&claim(&store, &claim_of("k")).await), "Replay");
    // Done already: nothing changes, and whoever does it again must roll back.
    let again = store.completion_statement(&completion(&second));
    let values: Vec<_> = again.parameters.iter().map(to_sql).collect();
    assert_eq!(client.execute(&again.sql, &values).await.unwrap(), 0);
}

#[tokio::test]
async fn a_transaction_that_a_crash_could_undo_is_refused() {
    let (place, store, mut client) = payments("asynchronous").await;
    let owner = own(&store, &claim_of("k")).await;
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute("SET LOCAL synchronous_commit = off").await.unwrap();
    pay(&transaction, &place, "k").await;
    match store.in_transaction(transaction).commit_with(completion(&owner)).await.unwrap_err() {
        CommitError::Store(error) => assert_eq!(error.kind(), StoreErrorKind::Configuration, "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(paid(&place, "k").await, 0);
    assert!(commit(&place, &store, IsolationLevel::ReadCommitted, "k", &owner).await.unwrap());
}

fn request(name: &str) -> Request {
    Request::new(scope(), key(name), fingerprint("the request"))
}

fn runner(store: &PostgresStore, lease: Duration) -> Idempotency {
    Idempotency::builder(Arc::new(store.clone())).lease(lease).build().unwrap()
}

/// A handler that pays and commits, on a connection of its own.
async fn handle(attempt: &Attempt, store: &PostgresStore, place: &Place, url: &str) -> Result<Response, CommitError> {
    let mut client = connect(url).await;
    let transaction = client.transaction().await.unwrap();
    pay(&transaction, place, attempt.key().as_str()).await;
    attempt.commit(store.in_transaction(transaction), response()).await
}

#[tokio::test]
async fn the_runner_records_what_a_handler_commits_through_both_drivers() {
    let (place, store, _) = payments("handled").await;
    let idempotency = runner(&store, LEASE);
    let pool = pool(&place.url);
    for by_pool in [false, true] {
        let name = format!("k {by_pool}");
        let (handlers, place_of, pool) = (store.clone(), place.clone(), pool.clone());
        let outcome = idempotency.run(request(&name), move |attempt: Attempt| async move {
            if !by_pool {
                return handle(&attempt, &handlers, &place_of, &place_of.url).await;
            }
            let mut connection = pool.get().await.unwrap();
            let transaction = connection.transaction().await.unwrap();
            pay(&transaction, &place_of, attempt.key().as_str()).await;
            attempt.commit(handlers.in_transaction(transaction), response()).await
        });
        let outcome: Outcome<Response, CommitError> = outcome.await;
        assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
        assert_eq!(paid(&place, &name).await, 1);
        let again =
            idempotency.run(request(&name), |_| async { Ok::<Response, CommitError>(Response::new(500)) }).await;
        assert!(matches!(&again, Outcome::Replay { response: sent, .. } if *sent == response()), "{again:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_runners_own_renewals_do_not_disturb_a_long_transaction() {
    let place = Place::new("long");
    // By the server's clock: a lease that lapses in earnest unless it is renewed.
    let store = PostgresStore::builder(&place.url).table("long").timeout(PATIENCE).connect().await.unwrap();
    place.connect().await.batch_execute("CREATE TABLE long_payments (name TEXT NOT NULL)").await.unwrap();
    let lease = Duration::from_millis(900);
    let runs = LEVELS.map(|level| {
        let (place, store) = (&place, &store);
        async move {
            let idempotency = runner(store, lease);
            let name = format!("{level:?}");
            let mut client = place.connect().await;
            let (store, handlers_place) = (store.clone(), place.clone());
            let outcome = idempotency.run(request(&name), move |attempt: Attempt| async move {
                let transaction = begin(&mut client, level).await;
                if is_snapshot(level) {
                    assert_eq!(store.lock_in(&transaction, attempt.owner()).await.unwrap(), Fenced::Written(()));
                }
                pay(&transaction, &handlers_place, attempt.key().as_str()).await;
                tokio::time::sleep(2 * lease).await;
                assert!(!attempt.is_superseded());
                attempt.commit(store.in_transaction(transaction), response()).await
            });
            let outcome: Outcome<Response, CommitError> = outcome.await;
            assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
            assert_eq!(paid(place, &name).await, 1);
        }
    });
    join_all(runs).await;
}

/// What is true in the end, wherever the commit was cut.
async fn cut_at_commit(cut: Cut, do_again: bool) {
    let table = format!("cut_commit_{cut:?}_{do_again}").to_lowercase();
    let (place, store, _) = payments(&table).await;
    let proxy = Proxy::start(&place.url);
    let url = proxy.url_through(&place.url);
    let idempotency = runner(&store, LEASE);
    for round in 0..rounds(3, 50) {
        let name = format!("k-{round}");
        let handler = || {
            let (store, place, url) = (store.clone(), place.clone(), url.clone());
            move |attempt: Attempt| async move {
                loop {
                    match handle(&attempt, &store, &place, &url).await {
                        Err(CommitError::Store(error)) if do_again => {
                            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                        }
                        answer => return answer,
                    }
                }
            }
        };
        proxy.arm(Fault::new(cut).of("COMMIT"));
        let outcome: Outcome<Response, CommitError> = idempotency.run(request(&name), handler()).await;
        assert_eq!(proxy.strikes(), 1);
        let ended = match outcome {
            Outcome::Ran { stored: true, .. } if do_again => true,
            Outcome::Recorded(recorded) => recorded == response() && cut != Cut::BeforeRequest,
            Outcome::Failed(CommitError::Store(error)) if !do_again => {
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                assert!(cut == Cut::BeforeRequest || cut == Cut::AfterRequest, "it was committed");
                false
            }
            other => panic!("{cut:?}: {other:?}"),
        };
        assert_eq!(paid(&place, &name).await, i64::from(ended), "{cut:?}");
        // The client's retry.
        let again: Outcome<Response, CommitError> = idempotency.run(request(&name), handler()).await;
        match again {
            Outcome::Replay { response: sent, .. } => assert_eq!(sent, response()),
            Outcome::Ran { stored: true, .. } if !ended => {}
            other => panic!("{cut:?}: {other:?}"),
        }
        assert_eq!(paid(&place, &name).await, 1, "{cut:?}");
    }
}

macro_rules! cut_at_commit {
    ($($test:ident: $cut:ident, $again:literal,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            cut_at_commit(Cut::$cut, $again).await;
        }
    )*};
}
cut_at_commit! {
    a_commit_that_never_arrived_is_rolled_back_and_the_retry_pays_once: BeforeRequest, false,
    a_commit_that_may_have_arrived_pays_once: AfterRequest, false,
    a_commit_whose_reply_is_lost_is_recorded: BeforeReply, false,
    a_commit_whose_reply_is_cut_is_recorded: WithinReply, false,
    a_handler_that_does_a_commit_again_that_never_arrived_pays_once: BeforeRequest, true,
    a_handler_that_does_a_commit_again_that_may_have_arrived_pays_once: AfterRequest, true,
    a_handler_that_does_a_commit_again_whose_reply_is_lost_pays_once: BeforeReply, true,
    a_handler_that_does_a_commit_again_whose_reply_is_cut_pays_once: WithinReply, true,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_payment_and_completion_in_one_transaction_are_one_commit() {
    let (place, store, _) = payments("all_in_one").await;
    let stores = [store, place.open().await];
    // Everybody races for the same key; nobody sees it in progress for longer than a transaction takes.
    for round in 0..rounds(20, 200) {
        let name = format!("k-{round}");
        let level = LEVELS[round % 3];
        let barrier = Barrier::new(6);
        let racers = (0..6).map(|racer| {
            let (store, place, name, barrier) = (&stores[racer % 2], &place, &name, &barrier);
            async move {
                let mut client = place.connect().await;
                barrier.wait().await;
                loop {
                    let transaction = begin(&mut client, level).await;
                    let grant = match store.claim_in(&transaction, &claim_of(name)).await {
                        Ok(Answer::Claimed(grant)) => grant,
                        Ok(Answer::Replay { response: sent, .. }) => break assert_eq!(sent, response()),
                        Ok(other) => panic!("{other:?}"),
                        // Above READ COMMITTED whoever had to wait begins again.
                        Err(error) => {
                            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                            assert!(is_snapshot(level), "{error}");
                            continue;
                        }
                    };
                    pay(&transaction, place, name).await;
                    let completion = Completion::new(grant.owner().clone(), response(), retention());
                    match store.in_transaction(transaction).commit_with(completion).await {
                        Ok(sent) => break assert_eq!(sent, response()),
                        Err(CommitError::Store(error)) => {
                            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                            assert!(is_snapshot(level), "{error}");
                        }
                        Err(other) => panic!("{other:?}"),
                    }
                }
            }
        });
        let racers: Vec<BoxFuture<'_, ()>> = racers.map(|racer| Box::pin(racer) as BoxFuture<'_, ()>).collect();
        join_all(racers).await;
        assert_eq!(paid(&place, &name).await, 1, "{name} at {level:?}");
        assert_eq!(record(&stores[0], &name).await.unwrap().number, 1);
    }
}

#[tokio::test]
async fn a_claim_in_a_transaction_takes_over_what_lapsed_and_what_expired() {
    let (place, store, mut client) = payments("claimed_over").await;
    for level in LEVELS {
        let name = |what: &str| format!("{what} {level:?}");
        let (lapsed, expired) = (claim_of(&name("lapsed")), claim_of(&name("expired")));
        own(&store, &lapsed.clone()).await;
        let owner = own(&store, &expired).await;
        store.complete(&owner, &response(), idem_core::Retention::new(LEASE)).await.unwrap();
        place.clock.advance(LEASE);
        for (claim, expected, number) in [(lapsed, "TakenOver", 2), (expired, "Claimed", 1)] {
            let transaction = begin(&mut client, level).await;
            let answer = store.claim_in(&transaction, &claim_of(claim.key().as_str())).await.unwrap();
            assert_eq!(word(&answer), expected);
            let grant = granted(answer);
            assert_eq!(grant.number(), number);
            store.in_transaction(transaction).commit_with(completion(grant.owner())).await.unwrap();
            assert_eq!(word(&self::claim(&store, &claim_of(claim.key().as_str())).await), "Replay");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_when_a_transaction_completes_the_record() {
    let (place, store, mut client) = payments("waited").await;
    let other = place.open().await;
    let owner = own(&store, &claim_of("k")).await;
    let begun = Arc::new(Notify::new());
    let waiting = {
        let (other, seen, begun) = (other.clone(), owner.attempt(), Arc::clone(&begun));
        tokio::spawn(async move {
            begun.notify_one();
            other.wait(&scope(), &key("k"), seen, PATIENCE).await.unwrap()
        })
    };
    begun.notified().await;
    let transaction = client.transaction().await.unwrap();
    assert_eq!(store.complete_in(&transaction, &completion(&owner)).await.unwrap(), Fenced::Written(response()));
    assert!(!waiting.is_finished());
    transaction.commit().await.unwrap();
    eventually("the wait ends", async || waiting.is_finished()).await;
    assert_eq!(waiting.await.unwrap().unwrap().record.state, State::Done(response()));
}

#[tokio::test]
async fn a_transaction_that_is_done_again_by_hand_is_told_to_roll_back() {
    let (place, store, mut client) = payments("by_hand").await;
    for level in LEVELS {
        let name = format!("{level:?}");
        let owner = own(&store, &claim_of(&name)).await;
        for (expected, paid_then) in [(Fenced::Written(response()), 1), (Fenced::Superseded, 1)] {
            let transaction = begin(&mut client, level).await;
            pay(&transaction, &place, &name).await;
            let answer = store.complete_in(&transaction, &completion(&owner)).await.unwrap();
            assert_eq!(answer, expected, "{name}");
            match answer {
                Fenced::Written(_) => transaction.commit().await.unwrap(),
                Fenced::Superseded => transaction.rollback().await.unwrap(),
            }
            assert_eq!(paid(&place, &name).await, paid_then, "{name}");
        }
        let transaction = begin(&mut client, level).await;
        assert_eq!(store.lock_in(&transaction, &owner).await.unwrap(), Fenced::Superseded, "it has ended");
        transaction.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn the_commit_of_a_savepoint_is_refused_as_it_would_commit_nothing() {
    let (place, store, mut client) = payments("savepoint").await;
    let owner = own(&store, &claim_of("k")).await;
    let mut outer = begin(&mut client, IsolationLevel::ReadCommitted).await;
    let inner = outer.transaction().await.unwrap();
    pay(&inner, &place, "k").await;
    match store.in_transaction(inner).commit_with(completion(&owner)).await {
        Err(CommitError::Store(error)) => {
            assert_eq!(error.kind(), StoreErrorKind::Contract, "{error}");
            assert!(error.to_string().contains("savepoint"), "{error}");
        }
        other => panic!("it was answered {other:?}"),
    }
    outer.commit().await.unwrap();
    assert_eq!(paid(&place, "k").await, 0);
    assert_eq!(word(&claim(&store, &claim_of("k")).await), "Conflict", "the attempt is still in progress");
}

#[tokio::test]
async fn a_transaction_that_holds_a_key_may_not_lie_idle_for_ever_unless_the_session_says_how_long() {
    let (place, store, mut client) = payments("idle").await;
    let limit = async |transaction: &Transaction<'_>| -> String {
        transaction.query_one("SHOW idle_in_transaction_session_timeout", &[]).await.unwrap().get(0)
    };
    for own_limit in [None, Some("7s")] {
        if let Some(own_limit) = own_limit {
            client.batch_execute(&format!("SET idle_in_transaction_session_timeout = '{own_limit}'")).await.unwrap();
        }
        let expected = own_limit.unwrap_or("5min");
        for door in ["complete_in", "lock_in", "claim_in"] {
            let name = format!("{door} {expected}");
            let transaction = begin(&mut client, IsolationLevel::ReadCommitted).await;
            match door {
                "claim_in" => drop(granted(store.claim_in(&transaction, &claim_of(&name)).await.unwrap())),
                "lock_in" => drop(store.lock_in(&transaction, &own(&store, &claim_of(&name)).await).await.unwrap()),
                _ => {
                    let owner = own(&store, &claim_of(&name)).await;
                    drop(store.complete_in(&transaction, &completion(&owner)).await.unwrap());
                }
            }
            assert_eq!(limit(&transaction).await, expected, "{door}");
            transaction.rollback().await.unwrap();
        }
        let after: String = client.query_one("SHOW idle_in_transaction_session_timeout", &[]).await.unwrap().get(0);
        assert_eq!(after, own_limit.unwrap_or("0"), "the session is as it was");
    }
    drop(place);
}

#[tokio::test]
async fn a_rival_waits_for_a_transaction_that_claims_a_record_which_is_there_already() {
    let place = Place::new("there_already");
    let store = place.builder().rival_wait(PATIENCE).connect().await.unwrap();
    let mut client = place.connect().await;
    for start in ["released", "expired", "lapsed"] {
        let first = own(&store, &claim_of(start)).await;
        match start {
            "released" => drop(store.release(&first).await.unwrap()),
            "expired" => place.clock.advance(retention().standard()),
            _ => place.clock.advance(LEASE),
        }
        let transaction = begin(&mut client, IsolationLevel::ReadCommitted).await;
        let grant = granted(store.claim_in(&transaction, &claim_of(start)).await.unwrap());
        let rival = tokio::spawn({
            let (store, claim) = (store.clone(), claim_of(start));
            async move { common::claim(&store, &claim).await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!rival.is_finished(), "{start}: it did not wait");
        assert_eq!(
            store.complete_in(&transaction, &completion(grant.owner())).await.unwrap(),
            Fenced::Written(response())
        );
        transaction.commit().await.unwrap();
        assert_eq!(word(&rival.await.unwrap()), "Replay", "{start}");
    }
}

#[tokio::test]
async fn a_transaction_that_was_open_for_long_is_judged_by_the_time_of_its_statements() {
    let place = Place::new("open_for_long");
    // By the server's clock.
    let store = PostgresStore::builder(&place.url).table(&place.table).timeout(PATIENCE).connect().await.unwrap();
    let short = Duration::from_secs(1);
    let brief = |name: &str| claim_of(name).with_lease(short).with_retention(Retention::new(short));
    let (locked, completed) = (own(&store, &brief("locked")).await, own(&store, &brief("completed")).await);
    own(&store, &brief("claimed")).await;
    let mut client = place.connect().await;
    let transaction = client.transaction().await.unwrap();
    let begin = "SELECT floor(date_part('epoch', transaction_timestamp()) * 1000)::int8";
    let begun: i64 = transaction.query_one(begin, &[]).await.unwrap().get(0);
    tokio::time::sleep(short + Duration::from_millis(100)).await;
    // All of them have expired since the transaction began.
    assert_eq!(store.lock_in(&transaction, &locked).await.unwrap(), Fenced::Superseded);
    assert_eq!(store.complete_in(&transaction, &completion(&completed)).await.unwrap(), Fenced::Superseded);
    let over = store.claim_in(&transaction, &claim_of("claimed")).await.unwrap();
    assert!(matches!(&over, Answer::Claimed(grant) if grant.number() == 1), "{over:?}");
    assert_eq!(word(&store.claim_in(&transaction, &claim_of("fresh")).await.unwrap()), "Claimed");
    transaction.commit().await.unwrap();
    let claimed = record(&store, "fresh").await.unwrap().claimed.as_millis();
    assert!(claimed - begun >= 1_100, "it was claimed {} ms after the transaction began", claimed - begun);
}

/// A row, but for what its claim and attempt are told apart by.
async fn row(client: &Client, place: &Place, name: &str) -> String {
    let table = &place.table;
    let text = format!("SELECT (to_jsonb(r) - 'key' - 'token')::text FROM {table} r WHERE key = '{name}'");
    client.query_one(&text, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_claim_writes_the_same_row_alone_in_a_group_and_in_a_transaction() {
    let place = Place::new("same_claim");
    let (store, mut client) = (place.open().await, place.connect().await);
    let (short, long) = (Duration::from_secs(60), Duration::from_secs(60 * 60));
    for (number, (lease, kept, rule)) in
        [(short, long, OnLapse::TakeOver), (long, short, OnLapse::TakeOver), (short, long, OnLapse::Hold)]
            .into_iter()
            .enumerate()
    {
        let retention = Retention::new(kept).with_held(2 * kept);
        let of = |name: &str| {
            claim_of(&format!("{name} {number}")).with_lease(lease).with_retention(retention).with_on_lapse(rule)
        };
        own(&store, &of("alone")).await;
        // The first of them goes by itself, and the others together.
        let together: Vec<_> = (0..4).map(|of_group| of(&format!("group-{of_group}"))).collect();
        join_all(together.iter().map(|claim| own(&store, claim))).await;
        let transaction = client.transaction().await.unwrap();
        granted(store.claim_in(&transaction, &of("transaction")).await.unwrap());
        transaction.commit().await.unwrap();
        let alone = row(&client, &place, &format!("alone {number}")).await;
        for name in ["group-0", "group-1", "group-2", "group-3", "transaction"] {
            assert_eq!(row(&client, &place, &format!("{name} {number}")).await, alone, "{name} {number}");
        }
    }
}

#[tokio::test]
async fn a_completion_writes_the_same_row_alone_and_in_a_transaction() {
    let place = Place::new("same_completion");
    let (store, mut client) = (place.open().await, place.connect().await);
    // Until after the claim's retention; before that; before the end of the lease.
    for (number, kept) in [2 * 3600, 600, 1].into_iter().enumerate() {
        let kept = Retention::new(Duration::from_secs(kept));
        let (alone, within) = (format!("alone {number}"), format!("within {number}"));
        let mut owners = Vec::new();
        for name in [&alone, &within] {
            let owner = own(&store, &claim_of(name).with_retention(retention())).await;
            let note = Checkpoint::new("charge", "ch_1").unwrap();
            assert!(matches!(store.checkpoint(&owner, &note).await.unwrap(), Fenced::Written(_)));
            owners.push(owner);
        }
        place.clock.advance(LEASE / 2);
        assert!(matches!(store.complete(&owners[0], &response(), kept).await.unwrap(), Fenced::Written(_)));
        let transaction = client.transaction().await.unwrap();
        let completion = Completion::new(owners[1].clone(), response(), kept);
        assert_eq!(store.complete_in(&transaction, &completion).await.unwrap(), Fenced::Written(response()));
        transaction.commit().await.unwrap();
        assert_eq!(row(&client, &place, &within).await, row(&client, &place, &alone).await);
    }
}

#[tokio::test]
async fn an_attempt_with_the_right_number_and_another_token_commits_nothing() {
    let (place, store, mut client) = payments("tokens").await;
    let owner = own(&store, &claim_of("k")).await;
    store.purge(&scope(), std::num::NonZeroUsize::MAX).await.unwrap();
    assert_eq!(own(&store, &claim_of("k")).await.attempt().number, owner.attempt().number);
    let transaction = begin(&mut client, IsolationLevel::ReadCommitted).await;
    assert_eq!(store.lock_in(&transaction, &owner).await.unwrap(), Fenced::Superseded);
    pay(&transaction, &place, "k").await;
    let error = store.in_transaction(transaction).commit_with(completion(&owner)).await.unwrap_err();
    assert!(matches!(error, CommitError::Superseded), "{error:?}");
    assert_eq!(paid(&place, "k").await, 0);
}

#[tokio::test]
async fn a_commit_that_the_server_refuses_is_said_to_have_committed_nothing() {
    let (place, store, mut client) = payments("refused").await;
    let owner = own(&store, &claim_of("k")).await;
    let deferred = "ALTER TABLE refused_payments ADD UNIQUE (name) DEFERRABLE INITIALLY DEFERRED";
    client.batch_execute(deferred).await.unwrap();
    let transaction = begin(&mut client, IsolationLevel::ReadCommitted).await;
    pay(&transaction, &place, "k").await;
    pay(&transaction, &place, "k").await;
    match store.in_transaction(transaction).commit_with(completion(&owner)).await.unwrap_err() {
        CommitError::Store(error) => assert!(error.to_string().contains("nothing was committed"), "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(record(&store, "k").await.unwrap().state, State::InProgress);
}

#[tokio::test]
async fn a_completion_in_a_transaction_that_has_failed_already_is_a_breach_of_contract() {
    let (_, store, mut client) = payments("failed_already").await;
    let owner = own(&store, &claim_of("k")).await;
    let transaction = begin(&mut client, IsolationLevel::ReadCommitted).await;
    transaction.batch_execute("SELECT 1 / 0").await.unwrap_err();
    let error = store.complete_in(&transaction, &completion(&owner)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Contract, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_meets_a_strangers_lock_is_not_answered_before_it_is_made() {
    let (place, store, mut client) = payments("renewed_late").await;
    let owner = own(&store, &claim_of("k")).await;
    let lease_end = record(&store, "k").await.unwrap().lease_end;
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute("SELECT FROM renewed_late FOR UPDATE").await.unwrap();
    place.clock.advance(LEASE / 2);
    let renewal = tokio::spawn({
        let store = store.clone();
        async move { store.renew(&owner, LEASE).await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    transaction.rollback().await.unwrap();
    assert_eq!(renewal.await.unwrap(), Fenced::Written(()));
    assert_eq!(record(&store, "k").await.unwrap().lease_end, lease_end.after(LEASE / 2));
}

#[tokio::test]
async fn a_key_that_is_being_completed_in_one_table_is_free_in_another() {
    let (place, store, mut client) = payments("table_one").await;
    let other = Place::at(&place.url, "table_two").open().await;
    let owner = own(&store, &claim_of("k")).await;
    let transaction = begin(&mut client, IsolationLevel::ReadCommitted).await;
    store.complete_in(&transaction, &completion(&owner)).await.unwrap();
    assert_eq!(word(&claim(&other, &claim_of("k")).await), "Claimed");
    transaction.rollback().await.unwrap();
}
