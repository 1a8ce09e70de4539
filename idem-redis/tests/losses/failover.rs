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
    load::{Clients, Tally},
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
    let clients = Clients::start(&stores, 6);
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
fn report(what: &str, tally: &Tally) {
    println!("{what}: {tally:?}");
}

/// The primary dies, and the replica has received nothing for so long before that.
async fn dies(primary: &PrivateRedis, replica: &PrivateRedis, behind: Duration) {
    if behind.is_zero() {
        return primary.kill();
    }
    // If it only stood still, the system would have received what it then reads.
    replica.kill();
    sleep(behind).await;
    primary.kill();
    tokio::task::block_in_place(|| replica.start_again());
}

async fn sentinel(min_replicas: Option<NonZeroU32>, behind: Duration) -> Tally {
    let servers = RedisSentinel::start();
    let place = Place::at(&servers.url(), "sentinel");
    let tally = under_load(&place, min_replicas, async || {
        let [primary, replica] = servers.nodes();
        dies(primary, replica, behind).await;
        tokio::task::block_in_place(|| servers.await_failover(primary));
        // It comes back as a replica, which claims that wait for one need.
        tokio::task::block_in_place(|| primary.start_again());
    })
    .await;
    report(&format!("Sentinel, min_replicas {min_replicas:?}, behind {behind:?}"), &tally);
    tally
}

async fn cluster(min_replicas: Option<NonZeroU32>, behind: Duration) -> Tally {
    let cluster = RedisCluster::start(3, 1);
    let place = Place::at(&cluster.url(), "cluster");
    let tally = under_load(&place, min_replicas, async || {
        let name = place.name("0-0");
        let (primary, replica) = (cluster.owner(&name), cluster.replica_of(&name));
        dies(primary, replica, behind).await;
        tokio::task::block_in_place(|| {
            assert_eq!(cluster.owner(&name).port(), replica.port());
            primary.start_again();
            cluster.await_agreement();
        });
    })
    .await;
    report(&format!("Cluster, min_replicas {min_replicas:?}, behind {behind:?}"), &tally);
    tally
}

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
