//! Replicas are promoted under load. What is lost is counted, and is what the docs of the crate say.

use std::{
    num::NonZeroU32,
    time::{Duration, Instant},
};

use idem_redis::RedisStore;
use test_servers::{PrivateRedis, RedisCluster, RedisSentinel};
use tokio::time::sleep;

use crate::{
    common::{Place, eventually, rounds},
    load::{Clients, Plan, Tally},
};

const LIMIT: Duration = Duration::from_millis(800);

async fn open(place: &Place, min_replicas: Option<NonZeroU32>) -> [RedisStore; 2] {
    let builder = || match min_replicas {
        None => place.builder().timeout(LIMIT),
        Some(at_least) => place.builder().timeout(LIMIT).min_replicas(at_least),
    };
    [builder().build().unwrap(), builder().build().unwrap()]
}

/// Under load: `fail` makes servers fail, and returns when the failover is over.
async fn under_load(place: &Place, min_replicas: Option<NonZeroU32>, fail: impl AsyncFnOnce()) -> Tally {
    let stores = open(place, min_replicas).await;
    let clients = Clients::start(&stores, Plan::pairs(6));
    let enough = clients.ledger.keys() + rounds(200, 2_000);
    eventually("operations are done", async || clients.ledger.keys() > enough).await;
    fail().await;
    let over = Instant::now();
    let enough = clients.ledger.keys() + rounds(200, 2_000);
    eventually("operations are done again", async || clients.ledger.keys() > enough).await;
    // Leases of before have ended.
    sleep(Duration::from_secs(2)).await;
    clients.stop(&place.open().await, over).await
}

#[allow(clippy::print_stdout, reason = "whoever reads the output must see what was lost")]
fn report(what: &str, tally: Tally) -> Tally {
    println!("{what}: {tally:?}");
    assert_eq!(tally.late, 0, "lost after the failover was over: {tally:?}");
    tally
}

/// The primary dies, and the replica has received nothing for so long before that.
async fn dies(primary: &PrivateRedis, replica: &PrivateRedis, behind: Duration) {
    if behind.is_zero() {
        // It keeps up, but for what comes from here on.
        tokio::task::block_in_place(|| primary.await_replica(replica));
        return primary.kill();
    }
    // If it only stood still, the system would have received what it then reads.
    replica.kill();
    sleep(behind).await;
    primary.kill();
    tokio::task::block_in_place(|| replica.start_again());
}

async fn sentinel(min_replicas: Option<NonZeroU32>, behind: Duration) -> Tally {
    for _ in 0..TRIES {
        let servers = RedisSentinel::start();
        let place = Place::at(&servers.url(), "sentinel");
        let [primary, replica] = servers.nodes();
        let tally = under_load(&place, min_replicas, async || {
            dies(primary, replica, behind).await;
            tokio::task::block_in_place(|| {
                servers.await_failover(primary);
                // It comes back as a replica, which claims that wait for one need.
                primary.start_again();
            });
        })
        .await;
        if tokio::task::block_in_place(|| servers.primary().port()) == replica.port() {
            return report(&format!("Sentinel, min_replicas {min_replicas:?}, behind {behind:?}"), tally);
        }
    }
    panic!("the servers of {TRIES} tests missed a second primary, too, which had not failed")
}

async fn cluster(min_replicas: Option<NonZeroU32>, behind: Duration) -> Tally {
    for _ in 0..TRIES {
        let cluster = RedisCluster::start(3, 1);
        let place = Place::at(&cluster.url(), "cluster");
        let name = place.name("0-0");
        let (primary, replica) = (cluster.owner(&name), cluster.replica_of(&name));
        let tally = under_load(&place, min_replicas, async || {
            dies(primary, replica, behind).await;
            tokio::task::block_in_place(|| {
                assert_eq!(cluster.owner(&name).port(), replica.port());
                primary.start_again();
                cluster.await_agreement();
            });
        })
        .await;
        // The first two masters that were left, or the machine was too busy for them to keep their places.
        let masters = || cluster.nodes().iter().filter(|node| is_master(node)).map(PrivateRedis::port);
        let stay = cluster.nodes()[..3].iter().map(PrivateRedis::port).filter(|port| *port != primary.port());
        let expected: Vec<u16> = stay.chain([replica.port()]).collect();
        if tokio::task::block_in_place(|| masters().all(|port| expected.contains(&port))) {
            return report(&format!("Cluster, min_replicas {min_replicas:?}, behind {behind:?}"), tally);
        }
    }
    panic!("the servers of {TRIES} tests missed a second primary, too, which had not failed")
}

fn is_master(node: &PrivateRedis) -> bool {
    node.command(&["ROLE"]).list()[0].text() == "master"
}

/// How often a test is done again in which a machine that is too busy made the servers miss one that runs: what that
/// loses has no bound.
const TRIES: usize = 4;

/// What the replica had not received.
const BEHIND: Duration = Duration::from_millis(300);

// case 023
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_replica_promoted_by_sentinels_had_not_received_runs_again_and_nothing_else() {
    let tally = sentinel(None, BEHIND).await;
    assert!(tally.lost_claims > 0, "the test failed to lose anything: {tally:?}");
}

// case 023
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claims_that_wait_for_the_replica_are_never_lost_to_its_promotion() {
    let tally = sentinel(Some(NonZeroU32::MIN), BEHIND).await;
    assert_eq!(tally.lost_claims, 0, "{tally:?}");
    assert!(tally.unavailable > 0, "{tally:?}");
}

// case 023
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_replica_promoted_in_a_cluster_had_not_received_runs_again_and_nothing_else() {
    let tally = cluster(None, BEHIND).await;
    assert!(tally.lost_claims > 0, "the test failed to lose anything: {tally:?}");
}

// case 023
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_a_cluster_too_claims_that_wait_for_the_replica_are_never_lost_to_its_promotion() {
    let tally = cluster(Some(NonZeroU32::MIN), BEHIND).await;
    assert_eq!(tally.lost_claims, 0, "{tally:?}");
}

// case 069
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_primary_that_dies_with_a_replica_that_keeps_up_is_replaced_under_load() {
    let tally = sentinel(None, Duration::ZERO).await;
    assert!(tally.keys > 0 && tally.unavailable > 0, "{tally:?}");
}
