//! Expired records leave, however many there are, while the store is used.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_core::{
    Answer, Claim, Fingerprint, Grant, Key, ManualClock, Response, Retention, Scope, Store, Timestamp, Token,
};
use idem_postgres::{
    PostgresStore,
    tokio_postgres::{self, Client, NoTls},
};
use test_servers::postgres;

async fn client() -> Client {
    let (client, connection) = tokio_postgres::connect(&postgres().url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn store(table: &str) -> (PostgresStore, ManualClock) {
    let clock = ManualClock::starting_at(Timestamp::from_millis(1_764_547_200_000));
    let store = PostgresStore::builder(&postgres().url()).table(table).clock(clock.clone()).connect().await.unwrap();
    (store, clock)
}

fn claim(key: &str, number: u64) -> Claim {
    let fingerprint = Fingerprint::builder().part("body", "b").build().unwrap();
    let token = Token::from_bytes((u128::from(number) + 1).to_be_bytes());
    Claim::new(Scope::new("s").unwrap(), Key::new(key).unwrap(), token, fingerprint)
        .with_retention(Retention::new(Duration::from_secs(60)))
}

async fn claimed(store: &PostgresStore, claim: &Claim) -> Grant {
    match idem_core::claim(store, claim).await.unwrap() {
        Answer::Claimed(grant) => grant,
        other => panic!("it was answered {other:?}"),
    }
}

fn all() -> NonZeroUsize {
    NonZeroUsize::MAX
}

async fn rows(client: &Client, table: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_expired_records_leave_while_claims_go_on() {
    let (table, expired) = ("a_million", 1_000_000);
    let (store, clock) = store(table).await;
    let client = client().await;
    let fill = format!(
        "INSERT INTO {table} (scope, key, format, state, token, number, origin, repeat, lapses, fingerprint, lease_end,
            claimed, settled, expiry, on_lapse, started, response, sweep_at)
        SELECT 'old', 'k-' || i, 1, 3, '\\x00', 1, 0, false, 0, '\\x00', 0, 0, 0, i, 0, false, '\\x00', i
        FROM generate_series(1, {expired}) i"
    );
    client.batch_execute(&fill).await.unwrap();

    let over = Arc::new(AtomicBool::new(false));
    let claims = tokio::spawn({
        let (store, over) = (store.clone(), Arc::clone(&over));
        async move {
            let mut number = 0;
            while !over.load(Ordering::SeqCst) {
                let grant = claimed(&store, &claim(&format!("new-{number}"), number)).await;
                store.complete(grant.owner(), &Response::new(201), Retention::default()).await.unwrap();
                number += 1;
            }
            number
        }
    });
    let mut removed = 0;
    let batch = NonZeroUsize::new(20_000).unwrap();
    loop {
        let now_removed = store.sweep(batch).await.unwrap();
        removed += now_removed;
        if now_removed < batch.get() {
            break;
        }
    }
    over.store(true, Ordering::SeqCst);
    let claims = claims.await.unwrap();
    assert_eq!(removed, expired);
    assert!(claims > 0, "no claim came in between");
    assert_eq!(rows(&client, table).await, i64::try_from(claims).unwrap(), "only what is live is left");
    clock.advance(Duration::from_secs(24 * 60 * 60));
    assert_eq!(store.sweep(all()).await.unwrap(), usize::try_from(claims).unwrap());
}

#[tokio::test]
async fn a_record_whose_retention_moved_on_is_filed_anew_and_leaves_at_its_end() {
    let (store, clock) = store("moved_on").await;
    let grant = claimed(&store, &claim("k", 1)).await;
    clock.advance(Duration::from_secs(59));
    store.complete(grant.owner(), &Response::new(201), Retention::new(Duration::from_secs(60))).await.unwrap();
    clock.advance(Duration::from_secs(59));
    // Its claim's retention is over, and its own is not.
    assert_eq!(store.sweep(all()).await.unwrap(), 0);
    assert!(store.read(grant.owner().scope(), grant.owner().key()).await.unwrap().is_some());
    clock.advance(Duration::from_secs(1));
    assert_eq!(store.sweep(all()).await.unwrap(), 1);
}

#[tokio::test]
async fn a_record_whose_retention_moved_back_leaves_at_its_end() {
    let (store, clock) = store("moved_back").await;
    let long = claim("k", 1).with_retention(Retention::new(Duration::from_secs(24 * 60 * 60)));
    let grant = claimed(&store, &long).await;
    store.complete(grant.owner(), &Response::new(201), Retention::new(Duration::from_secs(60))).await.unwrap();
    clock.advance(Duration::from_secs(60));
    assert_eq!(store.sweep(all()).await.unwrap(), 1);
}

#[tokio::test]
async fn rows_that_were_filed_anew_do_not_end_a_sweep_early() {
    let (store, clock) = store("many_moved_on").await;
    let mut client = client().await;
    // More than a batch of records that are due and have not expired, all before one that has.
    for number in 0..3 {
        claimed(&store, &claim(&format!("k-{number}"), number)).await;
    }
    let transaction = client.transaction().await.unwrap();
    let stay = "INSERT INTO many_moved_on (scope, key, format, state, token, number, origin, repeat, lapses, lease_end,
            claimed, expiry, on_lapse, started, sweep_at)
        SELECT 's', 'stay-' || i, 1, 0, '\\x00', 1, 0, false, 0, 0, 0, 9000000000000000, 0, false, 0
        FROM generate_series(1, 2500) i";
    transaction.batch_execute(stay).await.unwrap();
    transaction.commit().await.unwrap();
    clock.advance(Duration::from_secs(60));
    assert_eq!(store.sweep(all()).await.unwrap(), 3);
    assert_eq!(rows(&client, "many_moved_on").await, 2500);
    assert_eq!(store.sweep(all()).await.unwrap(), 0);
}

#[tokio::test]
async fn a_sweep_passes_over_records_that_someone_has_locked() {
    let (store, clock) = store("locked").await;
    for number in 0..3 {
        claimed(&store, &claim(&format!("k-{number}"), number)).await;
    }
    clock.advance(Duration::from_secs(60));
    let mut client = client().await;
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute("SELECT FROM locked WHERE key = 'k-1' FOR UPDATE").await.unwrap();
    assert_eq!(store.sweep(all()).await.unwrap(), 2);
    transaction.rollback().await.unwrap();
    assert_eq!(store.sweep(all()).await.unwrap(), 1);
}

#[tokio::test]
async fn records_that_wait_for_someone_are_found_behind_pages_of_others() {
    let (store, clock) = store("many_pages").await;
    let client = client().await;
    let fill = "INSERT INTO many_pages (scope, key, format, state, token, number, origin, repeat, lapses, lease_end,
            claimed, expiry, on_lapse, started, sweep_at)
        SELECT 's', to_char(i, 'FM000000'), 1, CASE WHEN i IN (4000, 6000, 8000, 17000, 18000) THEN 2 ELSE 1 END, '\\x00010203040506070809101112131415',
            1, 0, false, 0, 0, 0, 9000000000000000, 0, false, 9000000000000000
        FROM generate_series(1, 20000) i";
    client.batch_execute(fill).await.unwrap();
    clock.advance(Duration::from_secs(1));
    let mut found = Vec::new();
    let mut after: Option<(Scope, Key)> = None;
    loop {
        let behind = after.as_ref().map(|(scope, key)| (scope, key));
        let page = store.lapsed(behind, NonZeroUsize::new(2).unwrap()).await.unwrap();
        assert!(page.len() <= 2, "{page:?}");
        let Some(last) = page.last() else { break };
        after = Some((last.scope.clone(), last.key.clone()));
        found.extend(page.into_iter().map(|lapsed| lapsed.key.as_str().to_owned()));
    }
    assert_eq!(found, ["004000", "006000", "008000", "017000", "018000"]);
}

#[tokio::test]
async fn an_expiry_that_moves_on_touches_no_index() {
    let (store, clock) = store("untouched").await;
    let client = client().await;
    let filed = async |key: &str| {
        let text = format!("SELECT sweep_at FROM untouched WHERE key = '{key}'");
        client.query_one(&text, &[]).await.unwrap().get::<_, i64>(0)
    };
    let lease = Duration::from_secs(1);
    let (done, lapsed) = (claim("done", 1).with_lease(lease), claim("lapsed", 2).with_lease(lease));
    let grant = claimed(&store, &done).await;
    claimed(&store, &lapsed).await;
    let (of_done, of_lapsed) = (filed("done").await, filed("lapsed").await);
    clock.advance(lease);
    store.complete(grant.owner(), &Response::new(201), Retention::default()).await.unwrap();
    let answer = idem_core::claim(&store, &claim("lapsed", 3).with_retention(Retention::default())).await.unwrap();
    assert!(matches!(answer, Answer::TakenOver(_)), "{answer:?}");
    assert_eq!((filed("done").await, filed("lapsed").await), (of_done, of_lapsed));
}

#[tokio::test]
async fn a_record_that_was_taken_over_with_a_shorter_retention_leaves_at_its_end() {
    let (store, clock) = store("taken_back").await;
    let lease = Duration::from_secs(1);
    let long = claim("k", 1).with_lease(lease).with_retention(Retention::new(Duration::from_secs(24 * 60 * 60)));
    claimed(&store, &long).await;
    clock.advance(lease);
    let answer = idem_core::claim(&store, &claim("k", 2).with_lease(lease)).await.unwrap();
    assert!(matches!(answer, Answer::TakenOver(_)), "{answer:?}");
    clock.advance(Duration::from_secs(60));
    assert_eq!(store.sweep(all()).await.unwrap(), 1);
}

#[tokio::test]
async fn a_record_that_is_held_for_less_than_its_claims_retention_leaves_at_its_end() {
    let (store, clock) = store("held_back").await;
    let long = claim("k", 1).with_retention(Retention::new(Duration::from_secs(24 * 60 * 60)));
    let grant = claimed(&store, &long).await;
    let minute = Duration::from_secs(60);
    store.hold(grant.owner(), Retention::new(minute).with_held(minute)).await.unwrap();
    clock.advance(minute);
    assert_eq!(store.sweep(all()).await.unwrap(), 1);
}

#[tokio::test]
async fn a_purge_removes_more_records_than_a_statement_does() {
    let (store, _clock) = store("purged").await;
    let client = client().await;
    let fill =
        "INSERT INTO purged (scope, key, format, state, token, number, origin, repeat, lapses, lease_end, claimed,
            expiry, on_lapse, started, sweep_at)
        SELECT 's', 'k-' || i, 1, 1, '\\x00', 1, 0, false, 0, 0, 0, 9000000000000000, 0, false, 9000000000000000
        FROM generate_series(1, 2345) i";
    client.batch_execute(fill).await.unwrap();
    let scope = Scope::new("s").unwrap();
    assert_eq!(store.purge(&scope, NonZeroUsize::new(1_500).unwrap()).await.unwrap(), 1_500);
    assert_eq!(store.purge(&scope, all()).await.unwrap(), 845);
    assert_eq!(rows(&client, "purged").await, 0);
}
