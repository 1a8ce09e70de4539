//! Keys that an open transaction holds: one that claims or finishes them, or one that knows nothing of the store.

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use idem_core::{Answer, Claim, Completion, Fenced, StoreErrorKind};
use idem_postgres::{
    PostgresStore,
    tokio_postgres::{Client, Transaction, error::SqlState},
};
use test_servers::Proxy;
use tokio::task::JoinHandle;

use crate::{
    at_every_level,
    common::{
        LEASE, PATIENCE, Place, claim, claim_of, complete, eventually, granted, number, own, record, response,
        retention, word,
    },
};

at_every_level! {
    a_claim_waits_for_an_open_claim_and_then_gets_what_became_of_it,
    a_claim_of_a_key_that_stays_claimed_in_a_transaction_is_a_conflict,
    a_claim_in_a_transaction_waits_for_its_rival_and_then_gets_what_became_of_it,
    a_claim_in_a_transaction_whose_rival_stays_is_a_conflict,
    claims_that_travel_with_a_held_key_do_not_wait_for_it,
    claims_that_travel_with_a_held_key_are_not_asked_again,
    a_row_that_a_stranger_has_locked_holds_up_no_claim,
    a_row_that_a_stranger_is_changing_holds_up_other_keys_no_longer_than_the_lock_timeout,
    a_row_that_a_stranger_is_inserting_is_a_conflict_in_time,
    a_row_that_a_stranger_is_deleting_ends_in_a_definite_answer,
}

/// A claim through a store that is seen at work.
struct Watched {
    proxy: Proxy,
    store: PostgresStore,
}

impl Watched {
    async fn open(place: &Place) -> Self {
        let proxy = Proxy::start(&place.url);
        let url = proxy.url_through(&place.url);
        let store = place.builder_through(&url).rival_wait(PATIENCE).connect().await.unwrap();
        Self { proxy, store }
    }

    /// Claims, and returns when it was sent away at least once.
    async fn claiming(&self, claim: Claim) -> JoinHandle<Answer> {
        let (store, before) = (self.store.clone(), self.proxy.requests());
        let claiming = tokio::spawn(async move { crate::common::claim(&store, &claim).await });
        // Connecting and preparing are four at most.
        eventually("the claim is asked again", async || self.proxy.requests() > before + 6).await;
        assert!(!claiming.is_finished());
        claiming
    }
}

// case 009
async fn a_claim_waits_for_an_open_claim_and_then_gets_what_became_of_it(place: Place, level: &'static str) {
    let store = place.open().await;
    let watched = Watched::open(&place).await;
    let mut client = place.connect().await;

    let transaction = client.transaction().await.unwrap();
    let grant = granted(store.claim_in(&transaction, &claim_of("committed")).await.unwrap());
    let rival = watched.claiming(claim_of("committed")).await;
    let completion = Completion::new(grant.owner().clone(), response(), retention());
    assert_eq!(store.complete_in(&transaction, &completion).await.unwrap(), Fenced::Written(response()));
    transaction.commit().await.unwrap();
    match rival.await.unwrap() {
        Answer::Replay { response: sent, .. } => assert_eq!(sent, response(), "{level}"),
        other => panic!("{level}: {other:?}"),
    }

    let transaction = client.transaction().await.unwrap();
    granted(store.claim_in(&transaction, &claim_of("rolled back")).await.unwrap());
    let rival = watched.claiming(claim_of("rolled back")).await;
    transaction.rollback().await.unwrap();
    assert_eq!(granted(rival.await.unwrap()).number(), 1, "{level}");

    // Committed in progress: it is an attempt as any other.
    let transaction = client.transaction().await.unwrap();
    granted(store.claim_in(&transaction, &claim_of("in progress")).await.unwrap());
    let rival = watched.claiming(claim_of("in progress")).await;
    transaction.commit().await.unwrap();
    match rival.await.unwrap() {
        Answer::Conflict { left, .. } => assert_eq!(left, Some(LEASE), "{level}"),
        other => panic!("{level}: {other:?}"),
    }
}

// case 009
async fn a_claim_of_a_key_that_stays_claimed_in_a_transaction_is_a_conflict(place: Place, level: &'static str) {
    let wait = Duration::from_millis(100);
    let store = place.builder().rival_wait(wait).connect().await.unwrap();
    let mut client = place.connect().await;
    let transaction = client.transaction().await.unwrap();
    granted(store.claim_in(&transaction, &claim_of("k")).await.unwrap());
    let begun = Instant::now();
    match claim(&store, &claim_of("k")).await {
        Answer::Conflict { left: None, seen: None } => assert!(begun.elapsed() >= wait),
        other => panic!("{level}: {other:?}"),
    }
    transaction.rollback().await.unwrap();
    own(&store, &claim_of("k")).await;
}

async fn claim_in(store: &PostgresStore, client: &mut Client, claim: &Claim) -> Result<Answer, StoreErrorKind> {
    let transaction = client.transaction().await.unwrap();
    let answer = store.claim_in(&transaction, claim).await.map_err(|error| error.kind());
    transaction.rollback().await.unwrap();
    answer
}

async fn a_claim_in_a_transaction_waits_for_its_rival_and_then_gets_what_became_of_it(
    place: Place,
    level: &'static str,
) {
    let store = place.builder().rival_wait(PATIENCE).connect().await.unwrap();
    let (mut client, mut others) = (place.connect().await, place.connect().await);
    for is_committed in [true, false] {
        let name = format!("committed: {is_committed}");
        let transaction = client.transaction().await.unwrap();
        let grant = granted(store.claim_in(&transaction, &claim_of(&name)).await.unwrap());
        let finish = async {
            // Whether it comes before or after the rival's look, the rival gets the same.
            tokio::task::yield_now().await;
            let completion = Completion::new(grant.owner().clone(), response(), retention());
            assert_eq!(store.complete_in(&transaction, &completion).await.unwrap(), Fenced::Written(response()));
            if is_committed {
                transaction.commit().await.unwrap();
            } else {
                transaction.rollback().await.unwrap();
            }
        };
        let rival = async {
            loop {
                match claim_in(&store, &mut others, &claim_of(&name)).await {
                    Ok(answer) => return word(&answer),
                    // Its transaction began before the other one ended.
                    Err(kind) => {
                        assert_eq!((kind, level == "read committed"), (StoreErrorKind::Unavailable, false), "{level}");
                    }
                }
            }
        };
        let (rival, ()) = join(rival, finish).await;
        assert_eq!(rival, if is_committed { "Replay" } else { "Claimed" }, "{level}");
    }
}

async fn a_claim_in_a_transaction_whose_rival_stays_is_a_conflict(place: Place, level: &'static str) {
    let wait = Duration::from_millis(100);
    let store = place.builder().rival_wait(wait).connect().await.unwrap();
    let (mut client, mut others) = (place.connect().await, place.connect().await);
    let transaction = client.transaction().await.unwrap();
    granted(store.claim_in(&transaction, &claim_of("k")).await.unwrap());
    let begun = Instant::now();
    let rival = others.transaction().await.unwrap();
    match store.claim_in(&rival, &claim_of("k")).await.unwrap() {
        Answer::Conflict { left: None, .. } => assert!(begun.elapsed() >= wait),
        other => panic!("{level}: {other:?}"),
    }
    // Its transaction is as good as before.
    assert_eq!(word(&store.claim_in(&rival, &claim_of("another")).await.unwrap()), "Claimed", "{level}");
    rival.commit().await.unwrap();
    transaction.rollback().await.unwrap();
}

/// Claims at once, so that all but the first travel together, and the held key among them; when all others are answered,
/// lets go. Gives the answer for the held key.
async fn claims_around(store: &PostgresStore, held: &str, round: &str, let_go: impl AsyncFnOnce()) -> Answer {
    let names = (0..63).map(|number| format!("{round} {number}"));
    let others: Vec<Claim> = names.map(|name| claim_of(&name)).collect();
    let (first, rest) = others.split_at(20);
    let held = claim_of(held);
    let claims = |claims: &'_ [Claim]| {
        let claims = claims.to_vec();
        async move {
            let claims = claims.iter().map(|claim| idem_core::claim(store, claim));
            for answer in join_all(claims).await {
                assert_eq!(word(&answer.unwrap()), "Claimed");
            }
        }
    };
    let answered = async {
        join(claims(first), claims(rest)).await;
        let_go().await;
    };
    // Polled in this order: one of the others goes alone, and the held one stands in line with the rest.
    let (_, held) = join(answered, claim(store, &held)).await;
    held
}

/// Commits, and says whether the server did. At SERIALIZABLE it may refuse a transaction for what others read and wrote
/// on the same pages of an index.
async fn committed(transaction: Transaction<'_>, level: &str) -> bool {
    match transaction.commit().await {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{error}");
            assert_eq!(level, "serializable");
            false
        }
    }
}

// case 009
async fn claims_that_travel_with_a_held_key_do_not_wait_for_it(place: Place, level: &'static str) {
    // A wait without end: were the others to wait for it, the test would not end.
    let store = place.builder().rival_wait(PATIENCE).connect().await.unwrap();
    let mut client = place.connect().await;
    let mut is_committed = false;

    let transaction = client.transaction().await.unwrap();
    let grant = granted(store.claim_in(&transaction, &claim_of("held")).await.unwrap());
    let finish = async || {
        let completion = Completion::new(grant.owner().clone(), response(), retention());
        assert_eq!(store.complete_in(&transaction, &completion).await.unwrap(), Fenced::Written(response()));
        is_committed = committed(transaction, level).await;
    };
    let answer = claims_around(&store, "held", "claimed", finish).await;
    assert_eq!(word(&answer), if is_committed { "Replay" } else { "Claimed" }, "{level}");

    // One that finishes what was claimed before.
    let owner = own(&store, &claim_of("finishing")).await;
    let transaction = client.transaction().await.unwrap();
    let completion = Completion::new(owner, response(), retention());
    assert_eq!(store.complete_in(&transaction, &completion).await.unwrap(), Fenced::Written(response()));
    let finish = async || is_committed = committed(transaction, level).await;
    assert_eq!(word(&claims_around(&store, "finishing", "finished", finish).await), "Conflict", "{level}");
    let answer = claim(&store, &claim_of("finishing")).await;
    assert_eq!(word(&answer), if is_committed { "Replay" } else { "Conflict" }, "{level}");
}

/// As they would be if their group had to give up waiting for it.
async fn claims_that_travel_with_a_held_key_are_not_asked_again(place: Place, level: &'static str) {
    let proxy = Proxy::start(&place.url);
    let store = place.builder_through(&proxy.url_through(&place.url)).rival_wait(PATIENCE).connect().await.unwrap();
    own(&store, &claim_of("warm")).await;
    let mut client = place.connect().await;
    let transaction = client.transaction().await.unwrap();
    granted(store.claim_in(&transaction, &claim_of("held")).await.unwrap());
    let (before, mut requests) = (proxy.requests(), 0);
    let let_go = async || {
        requests = proxy.requests() - before;
        transaction.rollback().await.unwrap();
    };
    assert_eq!(word(&claims_around(&store, "held", "others", let_go).await), "Claimed", "{level}");
    // Of 63 others the first went alone. The held one may have been asked again meanwhile.
    assert!(requests < 10, "{level}: {requests}");
}

async fn a_row_that_a_stranger_has_locked_holds_up_no_claim(place: Place, level: &'static str) {
    let store = place.builder().rival_wait(PATIENCE).connect().await.unwrap();
    let mut client = place.connect().await;
    let done = own(&store, &claim_of("done")).await;
    complete(&store, &done).await;
    own(&store, &claim_of("running")).await;
    for (held, expected) in [("done", "Replay"), ("running", "Conflict")] {
        let transaction = client.transaction().await.unwrap();
        let lock = format!("SELECT 1 FROM {} WHERE key = $1 FOR UPDATE", place.table);
        transaction.query_one(&lock, &[&held]).await.unwrap();
        let answer = claims_around(&store, held, held, async || {}).await;
        assert_eq!(word(&answer), expected, "{level}");
        transaction.rollback().await.unwrap();
    }
    // One that lapsed can't be taken over while it is locked, and that is said in time.
    place.clock.advance(LEASE);
    let impatient = place.builder().timeout(Duration::from_millis(800)).connect().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction
        .query_one(&format!("SELECT 1 FROM {} WHERE key = 'running' FOR UPDATE", place.table), &[])
        .await
        .unwrap();
    match idem_core::claim(&impatient, &claim_of("running")).await {
        Err(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{level}: {error}"),
        Ok(answer) => assert_eq!(word(&answer), "Conflict", "{level}"),
    }
    transaction.rollback().await.unwrap();
    assert_eq!(word(&claim(&store, &claim_of("running")).await), "TakenOver", "{level}");
}

async fn a_row_that_a_stranger_is_changing_holds_up_other_keys_no_longer_than_the_lock_timeout(
    place: Place,
    level: &'static str,
) {
    let store = place.builder().rival_wait(PATIENCE).connect().await.unwrap();
    let lock_timeout = Duration::from_millis(200);
    let done = own(&store, &claim_of("held")).await;
    complete(&store, &done).await;
    let mut client = place.connect().await;
    let transaction = client.transaction().await.unwrap();
    let change = format!("UPDATE {} SET waited = waited WHERE key = 'held'", place.table);
    assert_eq!(transaction.execute(&change, &[]).await.unwrap(), 1);

    let begun = Instant::now();
    let mut others_took = Duration::ZERO;
    let answer = claims_around(&store, "held", "others", async || others_took = begun.elapsed()).await;
    // Once in their group, and once more behind the one that is tried by itself.
    assert!(others_took < 2 * lock_timeout + Duration::from_secs(1), "{level}: {others_took:?}");
    assert_eq!(word(&answer), if looks_first(level) { "Replay" } else { "Conflict" }, "{level}");
    transaction.rollback().await.unwrap();
    assert_eq!(word(&claim(&store, &claim_of("held")).await), "Replay", "{level}");
}

/// Whether a claim that travels alone looks before it inserts, so that it does not wait for the row.
fn looks_first(level: &str) -> bool {
    level != "serializable"
}

/// Nobody sees the row yet, so nobody knows better than to insert it too.
async fn a_row_that_a_stranger_is_inserting_is_a_conflict_in_time(place: Place, level: &'static str) {
    let store = place.builder().rival_wait(Duration::from_millis(100)).timeout(PATIENCE).connect().await.unwrap();
    own(&store, &claim_of("template")).await;
    let mut client = place.connect().await;
    let transaction = client.transaction().await.unwrap();
    let copy = format!(
        "CREATE TEMPORARY TABLE copied ON COMMIT DROP AS SELECT * FROM {table} WHERE key = 'template';
        UPDATE copied SET key = 'held';
        INSERT INTO {table} SELECT * FROM copied",
        table = place.table
    );
    transaction.batch_execute(&copy).await.unwrap();
    let begun = Instant::now();
    match claim(&store, &claim_of("held")).await {
        Answer::Conflict { left: None, seen: None } => {}
        other => panic!("{level}: {other:?}"),
    }
    assert!(begun.elapsed() < PATIENCE / 2, "{level}: {:?}", begun.elapsed());
    transaction.rollback().await.unwrap();
    own(&store, &claim_of("held")).await;
}

async fn a_row_that_a_stranger_is_deleting_ends_in_a_definite_answer(place: Place, level: &'static str) {
    let store = place.builder().rival_wait(PATIENCE).connect().await.unwrap();
    let (mut client, watcher) = (place.connect().await, place.connect().await);
    for is_committed in [true, false] {
        let name = format!("committed: {is_committed}");
        own(&store, &claim_of(&name)).await;
        let transaction = client.transaction().await.unwrap();
        let delete = format!("DELETE FROM {} WHERE key = $1", place.table);
        assert_eq!(transaction.execute(&delete, &[&name]).await.unwrap(), 1);
        let ends = async {
            let waits = format!(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'",
                place.table
            );
            if !looks_first(level) {
                eventually("the claim waits", async || number(&watcher, &waits).await == 1).await;
            }
            if is_committed {
                transaction.commit().await.unwrap();
            } else {
                transaction.rollback().await.unwrap();
            }
        };
        let claim = claim_of(&name);
        let (answer, ()) = join(self::claim(&store, &claim), ends).await;
        // It does not wait for long.
        let answer = word(&answer);
        assert!(answer == "Conflict" || is_committed && answer == "Claimed", "{level}: {answer}");
        let answer = word(&self::claim(&store, &claim).await);
        assert_eq!(answer, if is_committed { "Claimed" } else { "Conflict" }, "{level}");
        assert_eq!(record(&store, &name).await.unwrap().number, 1);
    }
}
