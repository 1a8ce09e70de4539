//! One of several nodes stands still or dies: a master of a cluster, its replica, a Sentinel.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use idem_core::Store;
use idem_redis::RedisStore;
use test_servers::{PrivateRedis, RedisCluster, RedisSettings};
use tokio::time::sleep;

use crate::common::{Place, assert_unavailable, claim_of, eventually, word};

const LIMIT: Duration = Duration::from_millis(500);

/// What a busy machine may add to it.
const SLACK: Duration = Duration::from_secs(2);

/// Three masters of which none takes another's place while a test lasts.
fn that_stay() -> RedisCluster {
    RedisCluster::start_with(RedisSettings::new().set("cluster-node-timeout", "120000"), 3, 0)
}

/// Names of keys: those that a node serves, and those that others do.
fn names(cluster: &RedisCluster, place: &Place, node: &PrivateRedis) -> [Vec<String>; 2] {
    let is_there = |name: &String| cluster.owner(&place.name(name)).port() == node.port();
    let (there, elsewhere) = (0..60).map(|number| format!("k-{number}")).partition(is_there);
    [there, elsewhere]
}

/// Claims and completes keys of its own on nodes that answer, for so long, and gives how long the slowest took.
async fn goes_on(store: &RedisStore, names: &[String], round: &str, at_least: Duration) -> Duration {
    let (begun, mut slowest) = (Instant::now(), Duration::ZERO);
    for number in 0.. {
        for name in names {
            let began = Instant::now();
            // The same slot, whatever stands behind it: names that begin alike are on other nodes.
            let claim = claim_of(name);
            let _ = (round, number);
            let answer = idem_core::claim(store, &claim).await;
            let answer = answer.unwrap_or_else(|error| panic!("after {:?}: {error}", begun.elapsed()));
            assert!(["Claimed", "Conflict"].contains(&word(&answer)));
            slowest = slowest.max(began.elapsed());
            sleep(Duration::from_millis(2)).await;
        }
        if begun.elapsed() >= at_least {
            break;
        }
    }
    slowest
}

// case 069
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_master_stands_still_the_keys_of_the_others_are_answered_without_delay() {
    let cluster = that_stay();
    let place = Place::at(&cluster.url(), "others");
    let store = place.builder().timeout(LIMIT).connect().await.unwrap();
    let node = cluster.owner(&place.name("k-0"));
    let [there, elsewhere] = names(&cluster, &place, node);
    node.pause();
    let troubled = async {
        let begun = Instant::now();
        while begun.elapsed() < 8 * LIMIT {
            let claims: Vec<_> = there.iter().map(|name| claim_of(name)).collect();
            let asked = Instant::now();
            for answer in join_all(claims.iter().map(|claim| store.claim(claim))).await {
                assert_unavailable(answer);
            }
            assert!(asked.elapsed() < 2 * LIMIT + SLACK, "{:?}", asked.elapsed());
            sleep(LIMIT / 10).await;
        }
    };
    let (slowest, ()) = futures_util::future::join(goes_on(&store, &elsewhere, "paused", 8 * LIMIT), troubled).await;
    println!("slowest {slowest:?}");
    assert!(slowest < LIMIT / 2, "{slowest:?}");
    node.resume();
    for name in &there {
        eventually("it works again", async || store.claim(&claim_of(name)).await.is_ok()).await;
    }
}
