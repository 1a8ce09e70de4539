//! Servers that don't know the scripts: after a flush, a restart, a failover.

use std::time::Duration;

use idem_core::{Fenced, Store};
use idem_redis::RedisStore;
use test_servers::{PrivateRedis, Proxy, RedisCluster, RedisSentinel, RedisSettings};
use tokio::{task::block_in_place, time::sleep};

use crate::common::{
    LEASE, Place, claim, claim_of, complete, eventually, granted, own, record, response, retention, word,
};

fn flush(server: &PrivateRedis) {
    server.command(&["SCRIPT", "FLUSH"]);
}

/// How many scripts a server knows.
fn known(server: &PrivateRedis) -> usize {
    let info = server.command(&["INFO", "memory"]).text();
    let known = info.lines().find_map(|line| line.trim().strip_prefix("number_of_cached_scripts:"));
    known.and_then(|known| known.parse().ok()).expect("the server says how many scripts it knows")
}

// case 064
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_the_server_has_forgotten_are_sent_again() {
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "flushed");
    let store = place.open().await;
    let owner = own(&store, &claim_of("k")).await;
    flush(&server);
    store.renew(&owner, LEASE).await.unwrap();
    flush(&server);
    complete(&store, &owner).await;
    flush(&server);
    assert_eq!(word(&claim(&store, &claim_of("k")).await), "Replay");
    let owner = own(&store, &claim_of("k-2")).await;
    flush(&server);
    store.release(&owner).await.unwrap();
    flush(&server);
    own(&store, &claim_of("k-2")).await;
    assert_eq!(record(&store, "k-2").await.unwrap().number, 2);
    // Also through a restart.
    server.restart();
    assert_eq!(known(&server), 0);
    complete(&store, &own(&store, &claim_of("k-3")).await).await;
}

// case 064
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_between_a_scripts_digest_and_its_body_changes_nothing() {
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "between");
    let proxy = Proxy::start(&place.url);
    let store = place.builder_through(&proxy.url_through(&place.url)).connect().await.unwrap();
    // The answer that the server does not know the script is under way while the next flush happens.
    let mut between = 0;
    for round in 0..20 {
        let name = format!("k-{round}");
        let owner = own(&store, &claim_of(&name)).await;
        flush(&server);
        proxy.take_commands();
        proxy.delay_replies(Duration::from_millis(200));
        let completes = tokio::spawn({
            let store = store.clone();
            async move { complete(&store, &owner).await }
        });
        let mut seen = Vec::new();
        eventually("it is sent", async || {
            seen.extend(proxy.take_commands());
            !seen.is_empty()
        })
        .await;
        sleep(Duration::from_millis(20)).await;
        // Somebody else's, which the flush takes away again.
        server.command(&["EVAL", "return 1", "0"]);
        flush(&server);
        seen.extend(proxy.take_commands());
        between += usize::from(seen.iter().all(|command| command.name == "EVALSHA"));
        completes.await.unwrap();
        proxy.delay_replies(Duration::ZERO);
        let then = proxy.take_commands();
        assert!(then.iter().chain(&seen).any(|command| command.name == "EVAL"), "it was known: {seen:?} {then:?}");
        assert_eq!(word(&claim(&store, &claim_of(&name)).await), "Replay");
        if between == 3 {
            return;
        }
    }
    panic!("no flush came between the two");
}

// case 064
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushes_all_the_time_fail_no_operation() {
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "flushing");
    let store = place.open().await;
    let flushes = std::thread::spawn({
        let url = server.url();
        move || {
            let mut connection = test_servers::RedisConnection::open(&url);
            let mut flushed = 0;
            while connection.try_command(&["EXISTS", "flushing:over"]).is_ok_and(|over| over.integer() == 0) {
                connection.command(&["SCRIPT", "FLUSH"]);
                flushed += 1;
            }
            flushed
        }
    });
    for round in 0..300 {
        let name = format!("k-{round}");
        let owner = own(&store, &claim_of(&name)).await;
        assert_eq!(store.renew(&owner, LEASE).await.unwrap(), Fenced::Written(()));
        assert_eq!(store.release(&owner).await.unwrap(), Fenced::Written(()));
        let again = granted(claim(&store, &claim_of(&name)).await);
        assert_eq!(again.number(), 2);
        complete(&store, again.owner()).await;
    }
    server.command(&["SET", "flushing:over", "1"]);
    let flushed = flushes.join().unwrap();
    assert!(flushed > 300, "there were {flushed} flushes");
}

/// Owners whose attempts began before a failover end them on a node that never had a script.
async fn ends_on(store: &RedisStore, is_new: impl AsyncFnOnce() -> usize) {
    let [completes, renews, releases, repeats] = ["completes", "renews", "releases", "repeats"].map(claim_of);
    let done = own(store, &claim_of("done")).await;
    complete(store, &done).await;
    let (completing, renewing) = (own(store, &completes).await, own(store, &renews).await);
    let releasing = own(store, &releases).await;
    own(store, &repeats).await;
    assert_eq!(is_new().await, 0, "the node knew scripts");
    eventually("the new node is found", async || store.read(&crate::common::scope(), done.key()).await.is_ok()).await;
    complete(store, &completing).await;
    complete(store, &completing).await;
    assert_eq!(store.renew(&renewing, LEASE).await.unwrap(), Fenced::Written(()));
    assert_eq!(store.release(&releasing).await.unwrap(), Fenced::Written(()));
    assert_eq!(granted(claim(store, &repeats).await).number(), 1);
    for name in ["done", "completes"] {
        assert_eq!(word(&claim(store, &claim_of(name)).await), "Replay", "{name}");
    }
    assert_eq!(record(store, "releases").await.unwrap().state, idem_core::State::Released);
    assert_eq!(store.complete(&releasing, &response(), retention()).await.unwrap(), Fenced::Superseded);
}

// case 064
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_sentinels_promoted_is_sent_the_scripts() {
    let servers = RedisSentinel::start();
    let place = Place::at(&servers.url(), "promoted");
    let store = place.open().await;
    let [primary, replica] = servers.nodes();
    ends_on(&store, async || {
        assert!(known(primary) > 0);
        block_in_place(|| {
            primary.await_replica(replica);
            servers.failover();
        });
        // Until it is told, it goes on as a primary, and what it takes is lost.
        eventually("the old primary is a replica", async || {
            // The Sentinels close its connections meanwhile.
            primary.try_command(&["ROLE"]).is_ok_and(|role| role.list()[0].text() == "slave")
        })
        .await;
        known(replica)
    })
    .await;
    assert!(known(replica) > 0);
}

// case 064
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_that_never_had_the_scripts_is_sent_them() {
    let cluster = RedisCluster::start(1, 1);
    let place = Place::at(&cluster.url(), "failover");
    let store = place.open().await;
    let (master, replica) = (&cluster.nodes()[0], &cluster.nodes()[1]);
    ends_on(&store, async || {
        assert!(known(master) > 0);
        block_in_place(|| {
            master.await_replica(replica);
            cluster.failover(&place.name("done"));
        });
        known(replica)
    })
    .await;
    assert!(known(replica) > 0);
    // And flushed everywhere.
    let owner = own(&store, &claim_of("flushed")).await;
    cluster.nodes().iter().for_each(flush);
    complete(&store, &owner).await;
}
