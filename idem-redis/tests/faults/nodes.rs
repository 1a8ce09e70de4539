//! One of several nodes stands still or dies: a master of a cluster, its replica, a Sentinel.

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use idem_core::Store;
use idem_redis::RedisStore;
use test_servers::{PrivateRedis, RedisCluster, RedisSentinel, RedisSettings};
use tokio::{task::block_in_place, time::sleep};

use crate::common::{Place, assert_unavailable, claim, claim_of, complete, eventually, eventually_ok, own, word};

/// Of which what is not held up takes a small part, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(2);

/// What a busy machine may add to it.
const SLACK: Duration = Duration::from_secs(2);

/// For how long a node fails: long enough for every connection to it to be given up, and tried again.
const TROUBLE: Duration = LIMIT.saturating_mul(4);

/// Three masters of which none is given up by the others while a test lasts.
fn that_stay() -> RedisCluster {
    RedisCluster::start_with(RedisSettings::new().set("cluster-node-timeout", "120000"), 3, 0)
}

/// Names of keys: those that a node serves, and those that others do.
fn names(cluster: &RedisCluster, place: &Place, node: &PrivateRedis) -> [Vec<String>; 2] {
    let is_there = |name: &String| cluster.owner(&place.name(name)).port() == node.port();
    let (there, elsewhere) = (0..60).map(|number| format!("k-{number}")).partition(is_there);
    [there, elsewhere]
}

/// Claims keys all the time, for as long as there is trouble. All are answered, and hardly any takes as long as if it
/// waited for the node that fails: the machine is busy with other things too.
async fn goes_on(store: &RedisStore, names: &[String]) {
    let (begun, mut asks, mut slow) = (Instant::now(), 0, 0);
    while begun.elapsed() < TROUBLE {
        for name in names {
            let asked = Instant::now();
            let answer = idem_core::claim(store, &claim_of(name)).await;
            let answer = answer.unwrap_or_else(|error| panic!("{name}, after {:?}: {error}", begun.elapsed()));
            assert!(["Claimed", "Conflict"].contains(&word(&answer)));
            asks += 1;
            slow += usize::from(asked.elapsed() > LIMIT / 2);
            sleep(Duration::from_millis(2)).await;
        }
    }
    assert!(slow <= asks / 50, "{slow} of {asks} took as long as if they waited for another node");
}

/// Claims keys all the time of which none can be had.
async fn is_unavailable(store: &RedisStore, names: &[String]) {
    let begun = Instant::now();
    while begun.elapsed() < TROUBLE {
        let claims: Vec<_> = names.iter().map(|name| claim_of(name)).collect();
        let asked = Instant::now();
        for answer in join_all(claims.iter().map(|claim| store.claim(claim))).await {
            assert_unavailable(answer);
        }
        assert!(asked.elapsed() < 2 * LIMIT + SLACK, "{:?}", asked.elapsed());
        sleep(LIMIT / 10).await;
    }
}

/// While a node fails, those of the others are answered as if nothing were.
async fn holds_up_nobody_else(fail: impl Fn(&PrivateRedis), mend: impl Fn(&PrivateRedis)) {
    let cluster = that_stay();
    let place = Place::at(&cluster.url(), "others");
    let store = place.builder().timeout(LIMIT).connect().await.unwrap();
    let node = cluster.owner(&place.name("k-0"));
    let [there, elsewhere] = names(&cluster, &place, node);
    fail(node);
    join(goes_on(&store, &elsewhere), is_unavailable(&store, &there)).await;
    // Also through a handle that has yet to learn which nodes there are.
    let new = place.builder().timeout(LIMIT).build().unwrap();
    for name in &elsewhere {
        eventually("the others are found", async || new.claim(&claim_of(name)).await.is_ok()).await;
    }
    assert_unavailable(new.claim(&claim_of(&there[0])).await);
    block_in_place(|| mend(node));
    // Not checked: a master that comes back says for seconds that the cluster is down.
    let patient = place.builder().build().unwrap();
    for name in &there {
        eventually_ok("it works again", async || store.claim(&claim_of(name)).await).await;
        let answer = claim(&patient, &claim_of(name)).await;
        assert_eq!(word(&answer), "Conflict", "{name}: what was applied late has one owner");
    }
}

// case 069
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_stands_still_holds_up_no_keys_but_its_own() {
    holds_up_nobody_else(PrivateRedis::pause, PrivateRedis::resume).await;
}

// case 069
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_gone_holds_up_no_keys_but_its_own() {
    holds_up_nobody_else(PrivateRedis::kill, PrivateRedis::start_again).await;
}

// case 069
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_replaced_holds_up_the_others_no_longer_than_the_cluster_itself_is_down() {
    let cluster = RedisCluster::start(3, 1);
    let place = Place::at(&cluster.url(), "replaced");
    let store = place.builder().timeout(LIMIT).connect().await.unwrap();
    let node = cluster.owner(&place.name("k-0"));
    let [there, elsewhere] = names(&cluster, &place, node);
    let owners = join_all(there.iter().map(async |name| own(&store, &claim_of(name)).await)).await;
    block_in_place(|| node.await_replica(cluster.replica_of(&place.name("k-0"))));
    node.pause();
    // Nothing is asked of the node that stands still, so nothing is noticed of it but by the cluster's own word.
    let answers = async |names: &[String]| {
        let asked = Instant::now();
        let claims: Vec<_> = names.iter().map(|name| claim_of(name)).collect();
        let answers = join_all(claims.iter().map(|claim| store.claim(claim))).await;
        assert!(asked.elapsed() < 2 * LIMIT + SLACK, "{:?}", asked.elapsed());
        answers.into_iter().all(|answer| answer.map_err(|error| assert_unavailable::<()>(Err(error))).is_ok())
    };
    eventually("the others are served", async || answers(&elsewhere).await).await;
    eventually("its replica has taken its place", async || answers(&there).await).await;
    assert_ne!(block_in_place(|| cluster.owner(&place.name("k-0")).port()), node.port());
    for owner in &owners {
        complete(&store, owner).await;
    }
    node.resume();
    block_in_place(|| cluster.await_agreement());
    for name in &there {
        assert_eq!(word(&claim(&store, &claim_of(name)).await), "Replay", "{name}");
    }
}

// case 069
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_a_cluster_that_stands_still_holds_up_nobody() {
    let cluster = RedisCluster::start_with(RedisSettings::new().set("cluster-node-timeout", "120000"), 3, 1);
    let place = Place::at(&cluster.url(), "replica");
    let store = place.builder().timeout(LIMIT).connect().await.unwrap();
    let names: Vec<String> = (0..60).map(|number| format!("k-{number}")).collect();
    let replica = cluster.replica_of(&place.name("k-0"));
    replica.pause();
    goes_on(&store, &names).await;
    // It is one of the nodes that the URL names.
    let new = place.builder().timeout(LIMIT).build().unwrap();
    for name in &names {
        eventually("it is answered", async || new.claim(&claim_of(name)).await.is_ok()).await;
    }
    replica.resume();
}

// case 069
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_stands_still_holds_up_nobody_and_a_failover_goes_on_without_it() {
    let servers = RedisSentinel::start();
    let place = Place::at(&servers.url(), "sentinel");
    let store = place.builder().timeout(LIMIT).connect().await.unwrap();
    let names: Vec<String> = (0..10).map(|number| format!("k-{number}")).collect();
    let owner = own(&store, &claim_of("owned")).await;
    // The one that is asked first.
    let sentinel = &servers.sentinels()[0];
    sentinel.pause();
    goes_on(&store, &names).await;
    // A new handle asks the next one.
    let new = place.builder().timeout(LIMIT).build().unwrap();
    eventually("the primary is found", async || new.claim(&claim_of("k-0")).await.is_ok()).await;
    let [primary, replica] = servers.nodes();
    block_in_place(|| {
        primary.await_replica(replica);
        primary.pause();
        servers.await_failover(primary);
    });
    for store in [&store, &new] {
        eventually("the new primary is found", async || store.claim(&claim_of("k-0")).await.is_ok()).await;
    }
    complete(&store, &owner).await;
    primary.resume();
    sentinel.resume();
}
