//! Claims that wait for replicas.

use std::{
    num::NonZeroU32,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use idem_core::{Fenced, Resolve, Store};
use idem_redis::RedisStore;
use test_servers::{Cut, Fault, PrivateRedis, Proxy, RedisCluster, RedisSettings};
use tokio::time::sleep;

use crate::common::{
    LEASE, Place, assert_unavailable, claim, claim_of, complete, eventually, granted, key, own, record, retention,
    scope, token, word,
};

/// A claim that no replica acknowledges takes half of it.
const LIMIT: Duration = Duration::from_secs(2);

async fn waiting(place: &Place, url: &str) -> RedisStore {
    place.builder_through(url).timeout(LIMIT).min_replicas(NonZeroU32::MIN).connect().await.unwrap()
}

fn has(server: &PrivateRedis, place: &Place, key: &str) -> bool {
    server.command(&["EXISTS", &place.name(key)]).integer() == 1
}

// case 023
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_answered_is_on_a_replica() {
    let primary = PrivateRedis::start(RedisSettings::new());
    let replica = primary.replica();
    let place = Place::at(&primary.url(), "acknowledged");
    let store = waiting(&place, &primary.url()).await;
    for number in 0..50 {
        let name = format!("k-{number}");
        let first = claim_of(&name).with_lease(Duration::from_millis(1));
        own(&store, &first).await;
        assert!(has(&replica, &place, &name));
        // So is a takeover: the replica has the second attempt's token.
        sleep(Duration::from_millis(5)).await;
        let second = claim_of(&name);
        assert_eq!(granted(claim(&store, &second).await).number(), 2);
        let kept = replica.command(&["GET", &place.name(&name)]);
        assert_eq!(kept.bytes()[12..28], second.token().as_bytes()[..]);
    }
    // Many at a time.
    let claims: Vec<_> = (0..500).map(|number| claim_of(&format!("many-{number}"))).collect();
    let owners = join_all(claims.iter().map(|claim| own(&store, claim))).await;
    assert_eq!(owners.len(), 500);
    // And of one key: nobody writes over the claim that came first, though all of them saw that there was none.
    for round in 0..5 {
        let name = format!("one-{round}");
        let claims: Vec<_> = (0..20).map(|_| claim_of(&name)).collect();
        let answers = join_all(claims.iter().map(|claim| self::claim(&store, claim))).await;
        let claimed: Vec<_> = answers.into_iter().filter(|answer| word(answer) == "Claimed").map(granted).collect();
        assert_eq!(claimed.len(), 1);
        assert_eq!(record(&store, &name).await.unwrap().attempt(), claimed[0].owner().attempt());
    }
}

// case 023
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_no_replica_has_is_unavailable_and_can_be_repeated_with_its_token() {
    let primary = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&primary.url(), "alone");
    let builder = place.builder().timeout(LIMIT).min_replicas(NonZeroU32::MIN);
    let store = builder.build().unwrap();
    let error = assert_unavailable(store.check().await);
    assert!(error.to_string().contains("has 0 replicas, and Builder::min_replicas asks for 1"), "{error}");
    let first = claim_of("k");
    for _ in 0..2 {
        let error = assert_unavailable(store.claim(&first).await);
        assert!(error.to_string().contains("reached 0 replicas of the 1"), "{error}");
    }
    let replica = primary.replica();
    assert_eq!(granted(claim(&store, &first).await).number(), 1);
    assert!(has(&replica, &place, "k"));
    assert_eq!(word(&claim(&store, &claim_of("k")).await), "Conflict");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_wait_for_a_replica_that_stands_still_hold_nothing_else_up() {
    let primary = PrivateRedis::start(RedisSettings::new());
    let replica = primary.replica();
    let place = Place::at(&primary.url(), "stalled");
    let store = waiting(&place, &primary.url()).await;
    let done = own(&store, &claim_of("done")).await;
    complete(&store, &done).await;
    let owner = own(&store, &claim_of("owned")).await;
    let held = own(&store, &claim_of("held")).await;
    assert_eq!(store.hold(&held, retention()).await.unwrap(), Fenced::Written(()));
    replica.pause();
    let claims: Vec<_> = (0..100).map(|number| claim_of(&format!("k-{number}"))).collect();
    let begun = Instant::now();
    let stalled = join_all(claims.iter().map(|claim| store.claim(claim)));
    let others = async {
        sleep(LIMIT / 10).await;
        let begun = Instant::now();
        assert_eq!(word(&claim(&store, &claim_of("done")).await), "Replay");
        assert_eq!(word(&claim(&store, &claim_of("owned")).await), "Conflict");
        complete(&store, &owner).await;
        assert!(begun.elapsed() < LIMIT / 2, "they took {:?}", begun.elapsed());
    };
    let (answers, ()) = futures_util::future::join(stalled, others).await;
    assert!(begun.elapsed() < 2 * LIMIT, "{:?}", begun.elapsed());
    answers.into_iter().for_each(|answer| drop(assert_unavailable(answer)));
    // A resolver is an owner too.
    let resolve = Resolve::new(scope(), key("held"), held.attempt(), token());
    assert_unavailable(store.resolve(&resolve).await);
    replica.resume();
    eventually("the replica is back", async || store.claim(&claims[0]).await.is_ok()).await;
    for claim in &claims {
        assert_eq!(granted(self::claim(&store, claim).await).number(), 1);
    }
    assert!(matches!(store.resolve(&resolve).await.unwrap(), Fenced::Written(record) if record.number == 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_gave_up_waiting_for_a_replica_take_nothing_from_others_and_are_not_written_later() {
    let primary = PrivateRedis::start(RedisSettings::new());
    let replica = primary.replica();
    let place = Place::at(&primary.url(), "given-up");
    let store = waiting(&place, &primary.url()).await;
    let owner = own(&store, &claim_of("owned")).await;
    replica.pause();
    // More than calls may be under way.
    let claims: Vec<_> = (0..6_000).map(|number| claim_of(&format!("k-{number}"))).collect();
    let begun = Instant::now();
    for answer in join_all(claims.iter().map(|claim| store.claim(claim))).await {
        assert_unavailable(answer);
    }
    let gave_up = begun.elapsed();
    assert!(gave_up < 3 * LIMIT, "{gave_up:?}");
    let begun = Instant::now();
    assert_eq!(store.renew(&owner, LEASE).await.unwrap(), Fenced::Written(()));
    complete(&store, &owner).await;
    assert!(begun.elapsed() < LIMIT, "they took {:?}", begun.elapsed());
    // Those that had begun to wait are there. None of the others follows.
    sleep(2 * LIMIT).await;
    let there = || primary.command(&["DBSIZE"]).integer();
    let before = there();
    assert!(before < 1_000, "{before} of them were written");
    sleep(LIMIT).await;
    assert_eq!(there(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_on_another_connection_than_the_one_that_wrote_counts_for_nothing() {
    let primary = PrivateRedis::start(RedisSettings::new());
    let replica = primary.replica();
    let place = Place::at(&primary.url(), "reconnected");
    let proxy = Proxy::start(&primary.url());
    let store = waiting(&place, &proxy.url_through(&primary.url())).await;
    own(&store, &claim_of("warm")).await;
    // It would be told at once that all replicas have what was never written there.
    replica.pause();
    for cut in [Cut::BeforeRequest, Cut::AfterRequest, Cut::BeforeReply] {
        let name = format!("{cut:?}");
        let first = claim_of(&name);
        proxy.arm(Fault::new(cut).of("WAIT"));
        assert_unavailable(store.claim(&first).await);
        assert_eq!(proxy.strikes(), 1);
        proxy.arm(Fault::new(cut).of("SET"));
        assert_unavailable(store.claim(&claim_of(&format!("{name} set"))).await);
        assert_eq!(proxy.strikes(), 1);
        proxy.disarm();
    }
    replica.resume();
    for cut in [Cut::BeforeRequest, Cut::AfterRequest, Cut::BeforeReply] {
        eventually("the replica is back", async || store.claim(&claim_of("back")).await.is_ok()).await;
        let first = claim_of(&format!("{cut:?} again"));
        proxy.arm(Fault::new(cut).of("WAIT"));
        assert_unavailable(store.claim(&first).await);
        proxy.disarm();
        assert_eq!(granted(claim(&store, &first).await).number(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_the_node_that_was_written_to_is_the_one_that_is_asked() {
    let cluster = RedisCluster::start(3, 1);
    let place = Place::at(&cluster.url(), "cluster");
    let store = waiting(&place, &cluster.url()).await;
    for number in 0..30 {
        let name = format!("k-{number}");
        own(&store, &claim_of(&name)).await;
        let replica = cluster.replica_of(&place.name(&name));
        let mut asks = replica.connect();
        asks.command(&["READONLY"]);
        assert_eq!(asks.command(&["EXISTS", &place.name(&name)]).integer(), 1, "{name}");
    }
    // Only the claims of one master wait for its replica in vain.
    let replica = cluster.replica_of(&place.name("stalled"));
    replica.pause();
    assert_unavailable(store.claim(&claim_of("stalled")).await);
    replica.resume();
    eventually("the replica is back", async || store.claim(&claim_of("stalled")).await.is_ok()).await;
    // Another node serves the slot now, which the client does not know yet.
    let (name, from) = (place.name("moved"), cluster.owner(&place.name("moved")).port());
    let to = cluster.nodes()[..3].iter().find(|node| node.port() != from).unwrap();
    cluster.move_slot_of(&name, to);
    let moved = claim_of("moved");
    eventually("the client has learned of it", async || store.claim(&moved).await.is_ok()).await;
    assert_eq!(granted(claim(&store, &moved).await).number(), 1);
}
