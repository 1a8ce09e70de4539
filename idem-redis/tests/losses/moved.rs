//! Slots of a cluster are given to other masters while operations run: nothing is lost, and nobody waits for it.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use idem_core::{Answer, Fenced, Retention, Store};
use idem_redis::RedisStore;
use test_servers::{PrivateRedis, RedisCluster, RedisSettings};
use tokio::{
    task::block_in_place,
    time::{sleep, timeout},
};

use crate::{
    common::{LEASE, PATIENCE, Place, claim, claim_of, complete, eventually, own, record, response, rounds, word},
    load::{Clients, Plan, Tally},
};

/// What gets lost on its way takes this long. Nodes bring every change of their slots to the disk, and answer nobody
/// meanwhile, which takes seconds on a machine that is busy with that.
const LIMIT: Duration = Duration::from_secs(20);

/// What a busy machine may add to it.
const SLACK: Duration = Duration::from_secs(2);

/// Two clocks that count alike may cut milliseconds at different points.
const GRAIN: Duration = Duration::from_millis(3);

/// The slots that are moved, of which every master has some.
const SLOTS: u16 = 48;

fn is_moved(name: &str) -> bool {
    RedisCluster::slot(name).is_multiple_of(16_384 / SLOTS)
}

/// A name like this one whose slot is moved.
fn moved(place: &Place, name: &str) -> String {
    let names = (0..).map(|number| format!("{name}-{number}"));
    names.into_iter().find(|name| is_moved(&place.name(name))).expect("there are many names")
}

/// A name of each slot that is moved.
fn one_of_each(place: &Place) -> Vec<String> {
    let mut slots = std::collections::BTreeMap::new();
    for number in 0.. {
        let name = place.name(&format!("slot-{number}"));
        if is_moved(&name) {
            slots.entry(RedisCluster::slot(&name)).or_insert(name);
        }
        if slots.len() >= usize::from(SLOTS) {
            break;
        }
    }
    slots.into_values().collect()
}

/// With the rights that the docs name, and no others.
fn settings() -> RedisSettings {
    let rights = "~moved:* &moved:* +set +get +del +pttl +eval +evalsha +scan +publish +subscribe +info +time +wait \
                  +cluster +asking";
    RedisSettings::new().user("app", "pw", rights)
}

/// Moves each slot to the next master while clients are busy with keys in them, and looks at what became of that.
async fn under_load(cluster: &RedisCluster, min_replicas: Option<NonZeroU32>) -> Tally {
    let url = cluster.url().replacen("://", "://app:pw@", 1);
    let place = Place::at(&url, "moved");
    let open = || {
        let builder = place.builder().timeout(LIMIT);
        let builder = match min_replicas {
            None => builder,
            Some(at_least) => builder.min_replicas(at_least),
        };
        builder.build().unwrap()
    };
    let stores = [open(), open()];
    let name = {
        let place = place.clone();
        Arc::new(move |name: &str| moved(&place, name))
    };
    let clients = Clients::start(&stores, Plan { pairs: 16, name, one_dies_of: 16 });
    let busy = async |more: usize| {
        let enough = clients.ledger.keys() + more;
        eventually("operations are done", async || clients.ledger.keys() > enough).await;
    };
    busy(50).await;
    let slots = one_of_each(&place);
    for round in 0..rounds(2, 10) {
        for batch in slots.chunks(12) {
            let to = |name: &String| {
                let at = cluster.nodes()[..3].iter().position(|node| node.port() == cluster.owner(name).port());
                &cluster.nodes()[(at.expect("a master") + 1) % 3]
            };
            let to: Vec<_> = block_in_place(|| batch.iter().map(to).collect());
            block_in_place(|| batch.iter().zip(&to).for_each(|(name, to)| cluster.begin_to_move_slot_of(name, to)));
            // New keys are on the new node from here on, and those that are there on the old one.
            busy(20).await;
            block_in_place(|| batch.iter().zip(&to).for_each(|(name, to)| cluster.move_slot_of(name, to)));
        }
        busy(50 + round).await;
    }
    let over = Instant::now();
    let ledger = Arc::clone(&clients.ledger);
    let tally = clients.stop(&stores[0], over).await;
    for name in ledger.names() {
        let left = cluster.command(&["PTTL", &place.name(&name)]).integer();
        assert!((1..=600_000).contains(&left), "{name} stays for {left}");
    }
    let asked: i64 = cluster.nodes().iter().map(asked).sum();
    assert!(asked > 0, "no client was sent to a node that was about to get a slot");
    tally
}

/// How often clients said that they were sent to a node for a key of a slot that it was about to get.
fn asked(node: &PrivateRedis) -> i64 {
    let info = node.command(&["INFO", "commandstats"]).text();
    let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_asking:calls=")?.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

#[allow(clippy::print_stdout, reason = "whoever reads the output must see what happened")]
fn assert_nothing_lost(what: &str, tally: &Tally) {
    println!("{what}: {tally:?}");
    assert_eq!((tally.lost_claims, tally.lost_completions), (0, 0), "{tally:?}");
    assert_eq!(tally.unavailable, 0, "{tally:?}");
    assert!(tally.lapses > 0, "nothing was taken over: {tally:?}");
    assert!(tally.slowest < LIMIT + SLACK, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slots_that_are_moved_under_load_lose_nothing_and_hold_nobody_up() {
    let cluster = RedisCluster::start_with(settings(), 3, 0);
    assert_nothing_lost("moved slots", &under_load(&cluster, None).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claims_that_wait_for_replicas_follow_their_slots() {
    let cluster = RedisCluster::start_with(settings(), 3, 1);
    assert_nothing_lost("moved slots, min_replicas 1", &under_load(&cluster, Some(NonZeroU32::MIN)).await);
}

/// What is left of the lease of a key that someone owns.
async fn left(store: &RedisStore, name: &str) -> Duration {
    match claim(store, &claim_of(name)).await {
        Answer::Conflict { left: Some(left), .. } => left,
        other => panic!("expected a conflict, and the answer is {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_is_moved_keeps_its_lease_its_expiry_and_its_owner() {
    let cluster = RedisCluster::start(3, 0);
    let place = Place::at(&cluster.url(), "kept");
    let store = place.open().await;
    let owner = own(&store, &claim_of("k").with_retention(Retention::new(2 * LEASE))).await;
    let name = place.name("k");
    let pttl = || Duration::from_millis(u64::try_from(cluster.command(&["PTTL", &name]).integer()).unwrap());
    for _ in 0..6 {
        let from = cluster.owner(&name).port();
        let to = cluster.nodes().iter().find(|node| node.port() != from).unwrap();
        let (before, began) = ((left(&store, "k").await, block_in_place(pttl)), Instant::now());
        block_in_place(|| cluster.move_slot_of(&name, to));
        let after = (left(&store, "k").await, block_in_place(pttl));
        let took = began.elapsed() + SLACK;
        for (before, after) in [(before.0, after.0), (before.1, after.1)] {
            // What the keys took on their way is all that can be added.
            assert!(after <= before + GRAIN && after + took >= before, "{before:?} became {after:?} within {took:?}");
        }
    }
    assert_eq!(store.renew(&owner, LEASE).await.unwrap(), Fenced::Written(()));
    complete(&store, &owner).await;
    assert_eq!(word(&claim(&store, &claim_of("k")).await), "Replay");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_goes_on_while_its_key_is_moved() {
    let cluster = RedisCluster::start(3, 0);
    let place = Place::at(&cluster.url(), "waits");
    let (store, other) = (place.open().await, place.open().await);
    let owner = own(&store, &claim_of("k")).await;
    let name = place.name("k");
    let from = cluster.owner(&name).port();
    let to = cluster.nodes().iter().find(|node| node.port() != from).unwrap();
    let waits = tokio::spawn({
        let owner = owner.clone();
        async move { other.wait(owner.scope(), owner.key(), owner.attempt(), PATIENCE).await.unwrap() }
    });
    sleep(Duration::from_millis(100)).await;
    block_in_place(|| cluster.move_slot_of(&name, to));
    complete(&store, &owner).await;
    let found = timeout(PATIENCE, waits).await.expect("it ends").unwrap().expect("there is a record");
    assert_eq!(found.record.state, idem_core::State::Done(response()));
    assert_eq!(record(&store, "k").await.unwrap().state, found.record.state);
}
