//! Whose connections the store uses, and what becomes of those that others use; stores of several processes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "how one process of a test speaks to another")]

mod common;

use std::{
    num::NonZeroUsize,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use common::{
    LEASE, PATIENCE, Place, claim, claim_of, complete, connect, eventually, fingerprint, granted, key, number, own,
    record, response, retention, scope, word,
};
use futures_util::future::join_all;
use idem_core::{Answer, Completion, Fenced, Response, Store};
use idem_postgres::{
    PostgresStore,
    deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod},
    tokio_postgres::NoTls,
};
use idem_runner::{Attempt, Idempotency, Outcome, Request};
use tokio::{sync::Barrier, time::timeout};

fn pool(url: &str, recycling_method: RecyclingMethod, size: usize) -> Pool {
    let manager = Manager::from_config(url.parse().unwrap(), NoTls, ManagerConfig { recycling_method });
    Pool::builder(manager).max_size(size).build().unwrap()
}

fn from_pool(place: &Place, pool: &Pool) -> idem_postgres::Builder {
    PostgresStore::from_pool(pool.clone()).table(&place.table).clock(place.clock.clone()).timeout(PATIENCE)
}

// case 049
#[tokio::test]
async fn connections_that_were_returned_within_a_transaction_swallow_no_claim() {
    for method in [RecyclingMethod::Fast, RecyclingMethod::Verified] {
        let place = Place::new(&format!("returned_{method:?}").to_lowercase());
        let pool = pool(&place.url, method.clone(), 3);
        let store = from_pool(&place, &pool).connect().await.unwrap();
        let connections = [pool.get().await.unwrap(), pool.get().await.unwrap(), pool.get().await.unwrap()];
        connections[0].batch_execute("BEGIN").await.unwrap();
        connections[1].batch_execute("BEGIN").await.unwrap();
        assert!(connections[1].batch_execute("SELECT 1 / 0").await.is_err());
        connections[2].batch_execute("BEGIN READ ONLY").await.unwrap();
        drop(connections);

        // One after the other, and together.
        let claims: Vec<_> = (0..100).map(|number| claim_of(&format!("k-{number}"))).collect();
        let (lone, together) = claims.split_at(50);
        let mut owners = Vec::new();
        for claim in lone {
            owners.push(own(&store, claim).await);
        }
        owners.extend(join_all(together.iter().map(|claim| own(&store, claim))).await);
        for owner in owners.iter().step_by(2) {
            complete(&store, owner).await;
        }
        // Its own connections, and nothing of the pool's.
        let other = place.open().await;
        for (number, claim) in claims.iter().enumerate() {
            let answer = self::claim(&other, &claim_of(claim.key().as_str())).await;
            assert_eq!(word(&answer), if number % 2 == 0 { "Replay" } else { "Conflict" }, "{method:?}");
        }
        // The pool's connections are still as they were left.
        let states = join_all((0..3).map(async |_| {
            let connection = pool.get().await.unwrap();
            connection.batch_execute("SELECT 1").await.is_ok()
        }));
        assert!(states.await.contains(&false), "{method:?}: the aborted one is the caller's affair");
    }
}

#[tokio::test]
async fn a_pool_that_gives_no_connection_is_not_asked_for_any() {
    let place = Place::new("refusing_pool");
    let manager = Manager::new(place.url.parse().unwrap(), NoTls);
    let refuse = Hook::sync_fn(|_, _| Err(HookError::message("nobody may have one")));
    let pool = Pool::builder(manager).max_size(1).post_create(refuse).build().unwrap();
    assert!(pool.get().await.is_err());
    let store = from_pool(&place, &pool).connect().await.unwrap();
    let owner = own(&store, &claim_of("k")).await;
    complete(&store, &owner).await;
}

// case 066
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_hold_all_of_the_pools_connections_stop_no_claim_and_no_completion() {
    let place = Place::new("full_pool");
    let pool = pool(&place.url, RecyclingMethod::Fast, 4);
    let store = from_pool(&place, &pool).connect().await.unwrap();
    let idempotency = Idempotency::builder(Arc::new(store.clone())).build().unwrap();
    let all_hold_one = Arc::new(Barrier::new(4));
    let requests = (0..8).map(|number| {
        let (pool, store, barrier) = (pool.clone(), store.clone(), Arc::clone(&all_hold_one));
        let request = Request::new(scope(), key(&format!("k-{number}")), fingerprint("the request"));
        idempotency.run(request, move |attempt: Attempt| async move {
            let connection = pool.get().await.unwrap();
            barrier.wait().await;
            assert_eq!(pool.status().available, 0, "the pool has none left");
            // Amid that, the store works.
            let nested = own(&store, &claim_of(&format!("nested in {:?}", attempt.key().as_str()))).await;
            complete(&store, &nested).await;
            let row = connection.query_one("SELECT 1", &[]).await.unwrap();
            Ok::<_, std::io::Error>(Response::new(200).with_body(row.get::<_, i32>(0).to_string()))
        })
    });
    for outcome in timeout(PATIENCE, join_all(requests)).await.expect("nobody hangs") {
        assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
    }
    assert_eq!(place.count().await, 16);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_of_the_stores_is_held_while_a_handler_runs() {
    let place = Place::new("none_held");
    let url = format!("{}?application_name=none_held", place.url);
    let store = place.builder_through(&url).connect().await.unwrap();
    let idempotency = Idempotency::builder(Arc::new(store)).build().unwrap();
    let watcher = place.connect().await;
    let request = Request::new(scope(), key("k"), fingerprint("the request"));
    let outcome = idempotency.run(request, move |_| async move {
        // None is in a statement or a transaction, and no lock is held.
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'none_held' AND state <> 'idle'";
        let locks = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
            WHERE a.application_name = 'none_held'";
        let (busy, locks) = (number(&watcher, sql).await, number(&watcher, locks).await);
        Ok::<_, std::io::Error>(Response::new(200).with_body(format!("{busy} {locks}")))
    });
    match outcome.await {
        Outcome::Ran { reply, .. } => assert_eq!(reply, Response::new(200).with_body("0 0")),
        other => panic!("{other:?}"),
    }
}

/// The variable that makes a test play the part of a process that the same test started: a part and an address.
const PART: &str = "IDEM_POSTGRES_TEST_PART";

/// This test once more, in a process of its own with a part to play at the place.
fn another_process(test: &str, part: &str, place: &Place) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(PART, format!("{part} {}", place.url));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The part that this process is to play, and where, if a test started it.
fn part(table: &str) -> Option<(String, Place)> {
    let given = std::env::var(PART).ok()?;
    let (part, url) = given.split_once(' ').unwrap();
    Some((part.into(), Place::at(url, table)))
}

/// What a process that plays a part said, and whether it ended well.
async fn played(mut command: Command) -> (String, bool) {
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (said, output.status.success())
}

// case 091
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_process_did_another_replays() {
    const TABLE: &str = "processes";
    // A default table and schema would do as well: this one is of this test alone.
    let run = async |place: &Place, answer: &'static str| {
        let store = PostgresStore::builder(&place.url).table(TABLE).connect().await.unwrap();
        let idempotency = Idempotency::builder(Arc::new(store)).build().unwrap();
        let request = Request::new(scope(), key("k"), fingerprint("the request"));
        let handler = move |_| async move { Ok::<_, std::io::Error>(Response::new(201).with_body(answer)) };
        idempotency.run(request, handler).await
    };
    if let Some((_, place)) = part(TABLE) {
        match run(&place, "of the second").await {
            Outcome::Replay { response, .. } => assert_eq!(response, Response::new(201).with_body("of the first")),
            other => panic!("{other:?}"),
        }
        println!("replayed");
        return;
    }
    let place = Place::new(TABLE);
    assert!(matches!(run(&place, "of the first").await, Outcome::Ran { stored: true, .. }));
    let (said, is_well) = played(another_process("what_one_process_did_another_replays", "retry", &place)).await;
    assert!(is_well && said.contains("replayed"), "{said}");
}

// case 037
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_amid_a_transaction_leaves_no_payment_and_no_completion() {
    const TEST: &str = "a_process_that_dies_amid_a_transaction_leaves_no_payment_and_no_completion";
    const TABLE: &str = "dying";
    if let Some((part, place)) = part(TABLE) {
        let store = place.open().await;
        let mut client = connect(&place.url).await;
        let claimed_before = own(&store, &claim_of(&format!("claimed, {part}"))).await;
        let transaction = client.transaction().await.unwrap();
        let grant = granted(store.claim_in(&transaction, &claim_of(&format!("all in one, {part}"))).await.unwrap());
        transaction.execute("INSERT INTO dying_payments DEFAULT VALUES", &[]).await.unwrap();
        if part == "completing" {
            for owner in [&claimed_before, grant.owner()] {
                let completion = Completion::new(owner.clone(), response(), retention());
                assert_eq!(store.complete_in(&transaction, &completion).await.unwrap(), Fenced::Written(response()));
            }
        }
        println!("dies");
        std::process::abort();
    }
    let place = Place::new(TABLE);
    let store = place.builder().rival_wait(PATIENCE).connect().await.unwrap();
    let client = place.connect().await;
    client.batch_execute("CREATE TABLE dying_payments (id BIGINT GENERATED ALWAYS AS IDENTITY)").await.unwrap();
    for part in ["claiming", "completing"] {
        let (said, is_well) = played(another_process(TEST, part, &place)).await;
        assert!(!is_well && said.contains("dies"), "{said}");
        // No lease has to lapse for what was claimed in the transaction.
        let answer = claim(&store, &claim_of(&format!("all in one, {part}"))).await;
        assert_eq!(granted(answer).number(), 1);
        let claimed = format!("claimed, {part}");
        assert_eq!(word(&claim(&store, &claim_of(&claimed)).await), "Conflict");
        assert!(record(&store, &claimed).await.unwrap().settled.is_none());
        assert_eq!(number(&client, "SELECT count(*) FROM dying_payments").await, 0);
    }
    place.clock.advance(LEASE);
    for part in ["claiming", "completing"] {
        let grant = granted(claim(&store, &claim_of(&format!("claimed, {part}"))).await);
        assert!(grant.is_repeat() && grant.number() == 2);
    }
}

// case 128
#[tokio::test]
async fn a_new_process_compares_the_fields_that_count_and_no_others() {
    let place = Place::new("selected");
    let selector = idem_core::FieldSelector::new(&["/amount"]).unwrap();
    let request = |body: &str| {
        let fingerprint = idem_core::Fingerprint::builder().selected("body", body, &selector).build().unwrap();
        idem_core::Claim::new(scope(), key("k"), common::token(), fingerprint)
    };
    let owner = own(&place.open().await, &request(r#"{"amount": 10, "sent_at": 1}"#)).await;
    complete(&place.open().await, &owner).await;
    let again = place.open().await;
    assert_eq!(word(&claim(&again, &request(r#"{"sent_at": 2, "amount": 1e1}"#)).await), "Replay");
    match claim(&again, &request(r#"{"amount": 11, "sent_at": 1}"#)).await {
        Answer::Reuse { differences: idem_core::Differences::Parts(parts) } => assert_eq!(parts[0].name(), "body"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_goes_on_in_another_runtime_after_its_first_has_ended() {
    let place = Place::new("moved");
    let store = tokio::task::spawn_blocking({
        let place = place.clone();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let store = place.open().await;
                own(&store, &claim_of("k-1")).await;
                let seen = record(&store, "k-1").await.unwrap().attempt();
                assert!(store.wait(&scope(), &key("k-1"), seen, Duration::from_millis(1)).await.unwrap().is_some());
                store
            })
        }
    });
    let store = store.await.unwrap();
    let owner = own(&store, &claim_of("k-2")).await;
    let waiting = tokio::spawn({
        let (store, seen) = (store.clone(), owner.attempt());
        async move { store.wait(&scope(), &key("k-2"), seen, PATIENCE).await.unwrap() }
    });
    complete(&store, &owner).await;
    assert!(timeout(PATIENCE, waiting).await.unwrap().unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_makes_no_more_connections_than_it_may() {
    let place = Place::new("at_most");
    for by_pool in [false, true] {
        let application = if by_pool { "at_most_by_pool" } else { "at_most_by_setting" };
        let url = format!("{}?application_name={application}", place.url);
        let builder = match by_pool {
            true => from_pool(&place, &pool(&url, RecyclingMethod::Fast, 2)),
            false => place.builder_through(&url).max_connections(NonZeroUsize::new(2).unwrap()),
        };
        let store = builder.connect().await.unwrap();
        let claims: Vec<_> = (0..12).map(|number| claim_of(&format!("{application} {number}"))).collect();
        let owners = join_all(claims.iter().map(|claim| own(&store, claim))).await;
        let (mut stranger, watcher) = (place.connect().await, place.connect().await);
        let transaction = stranger.transaction().await.unwrap();
        transaction.batch_execute("SELECT FROM at_most FOR UPDATE").await.unwrap();
        let completions = owners.into_iter().map(|owner| {
            let store = store.clone();
            tokio::spawn(async move { complete(&store, &owner).await })
        });
        let completions: Vec<_> = completions.collect();
        let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{application}'");
        let waiting = format!("{sessions} AND wait_event_type = 'Lock'");
        eventually("two of them wait for the rows", async || number(&watcher, &waiting).await >= 2).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        // And one for claims.
        let sessions = number(&watcher, &sessions).await;
        assert!(sessions <= 3, "there are {sessions} connections");
        transaction.rollback().await.unwrap();
        for completion in completions {
            completion.await.unwrap();
        }
    }
}
