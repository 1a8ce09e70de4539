//! The store as its callers see it.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem_core::{
    Answer, Claim, Fenced, Fingerprint, Grant, Key, ManualClock, Owner, Response, Retention, Scope, State, Store,
    StoreErrorKind, Timestamp, Token, claim,
};
use tokio::{sync::Barrier, task::JoinSet, time::timeout};

use crate::MemoryStore;

const LEASE: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// A deadline for liveness only.
const SOON: Duration = Duration::from_secs(30);

fn token() -> Token {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    Token::from_bytes(bytes)
}

fn scope() -> Scope {
    Scope::new("tenant-7").unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn a_claim(name: &str) -> Claim {
    let fingerprint = Fingerprint::builder().part("body", "x").build().unwrap();
    Claim::new(scope(), key(name), token(), fingerprint)
}

async fn claimed(store: &MemoryStore, name: &str) -> Grant {
    match claim(store, &a_claim(name)).await.unwrap() {
        Answer::Claimed(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn completed(store: &MemoryStore, owner: &Owner) {
    let response = Response::new(201).with_body("done");
    let answer = store.complete(owner, &response, Retention::default()).await.unwrap();
    assert_eq!(answer, Fenced::Written(response));
}

fn manual(limit: usize) -> (MemoryStore, ManualClock) {
    let clock = ManualClock::starting_at(Timestamp::from_millis(0));
    let limit = NonZeroUsize::new(limit).unwrap();
    (MemoryStore::builder().max_records(limit).clock(clock.clone()).build(), clock)
}

// case 025
#[tokio::test]
async fn a_full_store_answers_for_the_keys_that_it_has() {
    let (store, _) = manual(3);
    let _running = claimed(&store, "k1").await;
    for name in ["k2", "k3"] {
        completed(&store, claimed(&store, name).await.owner()).await;
    }
    let error = claim(&store, &a_claim("k4")).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (StoreErrorKind::Unavailable, "claim"));
    assert!(matches!(claim(&store, &a_claim("k1")).await.unwrap(), Answer::Conflict { .. }));
    assert!(matches!(claim(&store, &a_claim("k2")).await.unwrap(), Answer::Replay { .. }));
}

// case 010
#[tokio::test]
async fn a_key_whose_record_was_reclaimed_has_one_owner_again() {
    let (store, clock) = manual(10);
    let first = claimed(&store, "k").await;
    let waiter = {
        let (store, seen) = (store.clone(), first.owner().attempt());
        tokio::spawn(async move { store.wait(&scope(), &key("k"), seen, SOON).await })
    };
    completed(&store, first.owner()).await;
    let woken = timeout(SOON, waiter).await.unwrap().unwrap().unwrap().unwrap();
    assert!(matches!(woken.record.state, State::Done(_)));
    clock.advance(DAY);
    assert_eq!(store.sweep(NonZeroUsize::MAX).await.unwrap(), 1);
    let _second = claimed(&store, "k").await;
    assert!(matches!(claim(&store, &a_claim("k")).await.unwrap(), Answer::Conflict { .. }));
    assert_eq!(
        store.complete(first.owner(), &Response::new(500), Retention::default()).await.unwrap(),
        Fenced::Superseded
    );
}

// case 052
#[tokio::test]
async fn every_waiter_is_woken_when_the_attempt_is_over() {
    let (store, _) = manual(10);
    let owner = claimed(&store, "k").await.owner().clone();
    let mut waiters = JoinSet::new();
    for _ in 0..3 {
        let (store, seen) = (store.clone(), owner.attempt());
        waiters.spawn(async move { store.wait(&scope(), &key("k"), seen, DAY).await.unwrap().unwrap().record.state });
    }
    tokio::task::yield_now().await;
    store.release(&owner).await.unwrap();
    let states = timeout(SOON, waiters.join_all()).await.unwrap();
    assert_eq!(states, [State::Released, State::Released, State::Released]);
    let _next = claimed(&store, "k").await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_deadline_with_the_record_as_it_is() {
    let (store, _) = manual(10);
    let owner = claimed(&store, "k").await.owner().clone();
    let snapshot = store.wait(&scope(), &key("k"), owner.attempt(), Duration::from_secs(5)).await.unwrap();
    assert_eq!(snapshot.unwrap().record.state, State::InProgress);
}

#[tokio::test]
async fn a_change_before_the_wait_is_noticed_at_once() {
    let (store, _) = manual(10);
    let owner = claimed(&store, "k").await.owner().clone();
    completed(&store, &owner).await;
    let snapshot = timeout(SOON, store.wait(&scope(), &key("k"), owner.attempt(), DAY)).await.unwrap().unwrap();
    assert!(matches!(snapshot.unwrap().record.state, State::Done(_)));
    let absent = timeout(SOON, store.wait(&scope(), &key("none"), owner.attempt(), DAY)).await.unwrap().unwrap();
    assert_eq!(absent, None);
}

#[tokio::test]
async fn a_renewal_wakes_nobody_and_a_takeover_does() {
    let (store, clock) = manual(10);
    let owner = claimed(&store, "k").await.owner().clone();
    let (scope, key) = (scope(), key("k"));
    let mut wait = Box::pin(store.wait(&scope, &key, owner.attempt(), DAY));
    store.renew(&owner, LEASE).await.unwrap();
    assert!(timeout(Duration::ZERO, &mut wait).await.is_err());
    clock.advance(LEASE);
    assert!(timeout(Duration::ZERO, &mut wait).await.is_err(), "a lapse alone does not end the wait");
    assert!(matches!(claim(&store, &a_claim("k")).await.unwrap(), Answer::TakenOver(_)));
    let snapshot = timeout(SOON, wait).await.unwrap().unwrap().unwrap();
    assert_eq!(snapshot.record.number, 2);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_when_the_record_expires_though_nobody_touches_it() {
    let (store, clock) = manual(10);
    let owner = claimed(&store, "k").await.owner().clone();
    let waiter = {
        let store = store.clone();
        tokio::spawn(async move { store.wait(&scope(), &key("k"), owner.attempt(), 30 * DAY).await.unwrap() })
    };
    tokio::task::yield_now().await;
    clock.advance(DAY);
    assert_eq!(waiter.await.unwrap(), None);
}

#[tokio::test]
async fn a_purge_ends_the_wait_for_an_attempt_that_it_removed() {
    let (store, _) = manual(10);
    let owner = claimed(&store, "k").await.owner().clone();
    let (scope, key) = (scope(), key("k"));
    let mut wait = Box::pin(store.wait(&scope, &key, owner.attempt(), DAY));
    assert!(timeout(Duration::ZERO, &mut wait).await.is_err());
    assert_eq!(store.purge(&scope, NonZeroUsize::MAX).await.unwrap(), 1);
    assert_eq!(timeout(SOON, wait).await.unwrap().unwrap(), None);
}

#[tokio::test]
async fn lapsed_lists_what_waits_for_someone_in_pages_by_scope_and_key() {
    let (store, clock) = manual(100);
    for name in ["b", "a", "d"] {
        claimed(&store, name).await;
    }
    store.hold(claimed(&store, "c").await.owner(), Retention::default()).await.unwrap();
    completed(&store, claimed(&store, "done").await.owner()).await;
    clock.advance(LEASE);
    claimed(&store, "live").await;
    let two = NonZeroUsize::new(2).unwrap();
    let mut names = Vec::new();
    loop {
        let after = names.last().map(|name: &String| (scope(), key(name)));
        let page = store.lapsed(after.as_ref().map(|(scope, key)| (scope, key)), two).await.unwrap();
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 2);
        names.extend(page.iter().map(|lapsed| lapsed.key.as_str().to_owned()));
    }
    assert_eq!(names, ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn lapsed_lists_records_of_the_global_scope_too_and_first() {
    let (store, clock) = manual(10);
    claimed(&store, "k").await;
    let global = Claim::new(Scope::global(), key("k"), token(), a_claim("k").fingerprint().clone());
    assert!(matches!(claim(&store, &global).await.unwrap(), Answer::Claimed(_)));
    clock.advance(LEASE);
    let listed = store.lapsed(None, NonZeroUsize::MAX).await.unwrap();
    let scopes: Vec<_> = listed.into_iter().map(|lapsed| lapsed.scope).collect();
    assert_eq!(scopes, [Scope::global(), scope()]);
    assert_eq!(store.purge(&Scope::global(), NonZeroUsize::MAX).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_fifty_claims_at_once_on_one_key_exactly_one_owns_it_in_each_of_a_thousand_rounds() {
    const TASKS: usize = 50;
    const ROUNDS: usize = 1_000;
    let store = MemoryStore::new();
    let barrier = Arc::new(Barrier::new(TASKS));
    let claimed = Arc::new((0..ROUNDS).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>());
    let conflicts = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (store, barrier, claimed, conflicts) = (store.clone(), barrier.clone(), claimed.clone(), conflicts.clone());
        tasks.spawn(async move {
            for (round, claimed) in claimed.iter().enumerate() {
                let a_claim = a_claim(&format!("round-{round}"));
                barrier.wait().await;
                match claim(&store, &a_claim).await.unwrap() {
                    Answer::Claimed(_) => claimed.fetch_add(1, Ordering::Relaxed),
                    Answer::Conflict { .. } => conflicts.fetch_add(1, Ordering::Relaxed),
                    other => panic!("{other:?}"),
                };
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert!(claimed.iter().all(|claims| claims.load(Ordering::Relaxed) == 1));
    assert_eq!(conflicts.load(Ordering::Relaxed), ROUNDS * (TASKS - 1));
    assert_eq!(store.record_count(), ROUNDS);
}

#[test]
fn debug_shows_counts_and_no_keys() {
    let (store, _) = manual(3);
    assert_eq!(format!("{store:?}"), "MemoryStore(0 of 3 records)");
}

#[test]
fn the_host_clock_shows_the_present_in_milliseconds() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let shown = crate::clock::Clock::host().now().as_millis();
    assert!(u128::try_from(shown).unwrap().abs_diff(now) < 60_000, "{shown} against {now}");
}
