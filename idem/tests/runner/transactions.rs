//! Operations that complete their records in transactions of their own.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use idem::{
    Attempt, Fenced, Idempotency, ManualClock, OnConflict, Outcome, Response, Timestamp,
    postgres::{
        PostgresStore,
        tokio_postgres::{NoTls, connect},
    },
};
use tokio::sync::Notify;

use crate::place::{Ended, LEASE, LIMIT, assert_replays, counting, request};

/// The operation completes its record in a transaction and takes its time before it commits, or rolls back: while it is
/// open the store can't see what is to become of the record, and those who wait do not wait on a lock of its.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn those_who_wait_for_a_transaction_get_what_it_committed_or_run_when_it_is_rolled_back() {
    let url = test_servers::postgres().url();
    let clock = ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000));
    let store = PostgresStore::builder(&url).table("runner_transactions").clock(clock).connect().await.unwrap();
    let builder = Idempotency::builder(Arc::new(store.clone())).lease(LEASE);
    let runner = builder.on_conflict(OnConflict::Wait { at_most: LIMIT }).build().unwrap();
    for (name, commits) in [("committed", true), ("rolled back", false)] {
        let (mut client, connection) = connect(&url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let (written, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (telling, told, store, running) =
            (Arc::clone(&written), Arc::clone(&finish), store.clone(), runner.clone());
        let operation = move |attempt: Attempt| async move {
            let transaction = client.transaction().await.unwrap();
            let completion = attempt.completion(Response::new(201));
            assert!(matches!(store.complete_in(&transaction, &completion).await.unwrap(), Fenced::Written(_)));
            telling.notify_one();
            told.notified().await;
            if commits {
                transaction.commit().await.unwrap();
                return Ok(Response::new(201));
            }
            transaction.rollback().await.unwrap();
            Err("rolled back")
        };
        let first = tokio::spawn(async move { running.run(request(name), operation).await });
        written.notified().await;
        let (runs, mut waiters) = (Arc::default(), tokio::task::JoinSet::new());
        for _ in 0..10 {
            let (runner, operation) = (runner.clone(), counting(&runs, 202));
            waiters.spawn(async move { runner.run(request(name), operation).await });
        }
        // Longer than a claim takes: they all found the owner at it, whether or not its lock was in their way.
        tokio::time::sleep(Duration::from_millis(100)).await;
        finish.notify_one();
        let first: Ended = first.await.unwrap();
        let (mut replays, expected) = (0, if commits { 201 } else { 202 });
        while let Some(outcome) = waiters.join_next().await {
            match outcome.unwrap() {
                Outcome::Ran { stored: true, .. } => {}
                outcome => {
                    assert_replays(&outcome, expected);
                    replays += 1;
                }
            }
        }
        let runs = runs.load(Ordering::SeqCst);
        if commits {
            assert!(matches!(first, Outcome::Ran { stored: true, .. }), "{first:?}");
            assert_eq!((runs, replays), (0, 10));
        } else {
            assert!(matches!(first, Outcome::Failed("rolled back")), "{first:?}");
            assert_eq!((runs, replays), (1, 9));
        }
    }
}
