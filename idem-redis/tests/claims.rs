//! Races for one key, and what each operation costs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{sync::Arc, time::Duration};

use idem_core::{Answer, Checkpoint, Claim, Fenced, OnLapse, Resolve, Store};
use test_servers::{Proxy, redis};
use tokio::{sync::Barrier, time::sleep};

use crate::common::{
    LEASE, Place, claim, claim_of, complete, fingerprint, granted, key, own, record, response, retention, scope, token,
    word,
};

// case 004
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_claims_at_a_time_one_owns_the_key_and_the_servers_value_is_its() {
    let place = Place::new("race");
    let stores = [place.open().await, place.open().await];
    let mut wins = [0, 0];
    for round in 0..1_000 {
        let name = format!("k-{round}");
        let claims = [claim_of(&name), claim_of(&name)];
        let barrier = Arc::new(Barrier::new(2));
        let [one, other] = [0, 1].map(|at| tokio::spawn(race(&stores[at], &claims[at], &barrier)));
        let answers = [one.await.unwrap(), other.await.unwrap()];
        let winner = answers.iter().position(|answer| word(answer) == "Claimed").expect("one of them owns it");
        assert_eq!(word(&answers[1 - winner]), "Conflict");
        assert_eq!(record(&stores[0], &name).await.unwrap().token, claims[winner].token());
        wins[winner] += 1;
    }
    assert!(wins.iter().all(|wins| *wins > 0), "they never met: {wins:?}");
}

fn race(
    store: &idem_redis::RedisStore,
    claim: &Claim,
    barrier: &Arc<Barrier>,
) -> impl Future<Output = Answer> + Send + 'static {
    let (store, claim, barrier) = (store.clone(), claim.clone(), Arc::clone(barrier));
    async move {
        barrier.wait().await;
        idem_core::claim(&store, &claim).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_takes_the_round_trips_that_the_docs_say() {
    let place = Place::new("trips");
    let proxy = Proxy::start(&place.url);
    let store = place.builder_through(&proxy.url_through(&place.url)).connect().await.unwrap();
    // Every script is known to the server from here on.
    let warm = own(&store, &claim_of("warm")).await;
    store.renew(&warm, LEASE).await.unwrap();
    complete(&store, &warm).await;
    let warm = own(&store, &claim_of("warm 2")).await;
    store.release(&warm).await.unwrap();

    let count = || proxy.take_commands().len();
    count();
    let first = claim_of("k");
    let owner = own(&store, &first).await;
    assert_eq!(count(), 1, "first claim");
    assert_eq!(word(&claim(&store, &claim_of("k")).await), "Conflict");
    assert_eq!(count(), 2, "conflict");
    let other = Claim::new(scope(), key("k"), token(), fingerprint("another request"));
    assert_eq!(word(&claim(&store, &other).await), "Reuse");
    assert_eq!(count(), 1, "reuse");
    own(&store, &first).await;
    assert_eq!(count(), 3, "a repeated claim");
    store.renew(&owner, LEASE).await.unwrap();
    assert_eq!(count(), 1, "renewal");
    store.read(&scope(), &key("k")).await.unwrap();
    assert_eq!(count(), 1, "read");
    store.checkpoint(&owner, &Checkpoint::new("step", "done").unwrap()).await.unwrap();
    assert_eq!(count(), 2, "checkpoint");
    store.release(&owner).await.unwrap();
    assert_eq!(count(), 2, "release");
    let short = claim_of("k").with_lease(Duration::from_millis(1));
    assert_eq!(granted(claim(&store, &short).await).number(), 2);
    assert_eq!(count(), 2, "a claim after a release");
    sleep(Duration::from_millis(20)).await;
    let taken = granted(claim(&store, &claim_of("k")).await);
    assert_eq!(taken.number(), 3);
    assert_eq!(count(), 2, "takeover");
    store.hold(taken.owner(), retention()).await.unwrap();
    assert_eq!(count(), 2, "hold");
    assert_eq!(word(&claim(&store, &claim_of("k").with_on_lapse(OnLapse::Hold)).await), "Unknown");
    assert_eq!(count(), 1, "unknown");
    let resolve = Resolve::new(scope(), key("k"), taken.owner().attempt(), token());
    let Fenced::Written(resolved) = idem_core::resolve(&store, &resolve).await.unwrap() else { panic!("superseded") };
    assert_eq!(count(), 2, "resolve");
    assert_eq!(store.complete(resolved.owner(), &response(), retention()).await.unwrap(), Fenced::Written(response()));
    assert_eq!(count(), 1, "completion");
    assert_eq!(word(&claim(&store, &claim_of("k")).await), "Replay");
    assert_eq!(count(), 1, "replay");
    let owner = own(&store, &claim_of("k-2")).await;
    count();
    store.forget(&owner).await.unwrap();
    assert_eq!(count(), 2, "forget");
}

// case 017
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_died_under_hold_is_unknown_however_long_ago() {
    let place = Place::new("hold");
    let moved = place.builder().clock(place.clock.clone()).build().unwrap();
    let under_hold = || claim_of("k").with_on_lapse(OnLapse::Hold);
    let owner = own(&moved, &under_hold()).await;
    assert_eq!(moved.renew(&owner, LEASE).await.unwrap(), Fenced::Written(()));
    for after in [LEASE + Duration::from_secs(1), Duration::from_secs(60 * 60), Duration::from_secs(20 * 86_400)] {
        place.clock.advance(after);
        for claim in [under_hold(), claim_of("k")] {
            assert_eq!(word(&self::claim(&moved, &claim).await), "Unknown", "{after:?} later");
        }
    }
    // By the server's own clock as well, which is asked only if it must be.
    let store = place.open().await;
    let owner = own(&store, &claim_of("k-2").with_on_lapse(OnLapse::Hold)).await;
    assert_eq!(store.renew(&owner, Duration::from_millis(1)).await.unwrap(), Fenced::Written(()));
    sleep(Duration::from_millis(20)).await;
    assert_eq!(word(&claim(&store, &claim_of("k-2")).await), "Unknown");
    assert!(redis().command(&["PTTL", &place.name("k-2")]).integer() > 29 * 86_400_000);
}
