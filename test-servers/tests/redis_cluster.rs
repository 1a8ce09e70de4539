//! A cluster whose nodes a test kills, pauses and lets change places.

use std::time::{Duration, Instant};

use test_servers::{PrivateRedis, RedisCluster, RedisConnection, RedisSettings};

/// Keys of which every master of three serves some.
fn keys() -> impl Iterator<Item = String> {
    (0..50).map(|number| format!("key-{number}"))
}

fn is(node: &PrivateRedis, other: &PrivateRedis) -> bool {
    node.port() == other.port()
}

#[test]
fn three_masters_share_the_keys_and_are_ready() {
    let cluster = RedisCluster::start(3, 0);
    assert_eq!(cluster.nodes().len(), 3);
    for node in cluster.nodes() {
        assert!(node.command(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok"));
        assert!(keys().any(|key| is(cluster.owner(&key), node)));
    }
    for key in keys() {
        cluster.command(&["SET", &key, "1"]);
    }
    let sizes: i64 = cluster.nodes().iter().map(|node| node.command(&["DBSIZE"]).integer()).sum();
    assert_eq!(sizes, 50);
}

#[test]
fn a_node_sends_those_who_ask_for_anothers_key_there() {
    let cluster = RedisCluster::start(3, 0);
    let owner = cluster.owner("key");
    let other = cluster.nodes().iter().find(|node| !is(node, owner)).unwrap();
    let redirected = other.try_command(&["GET", "key"]).unwrap_err();
    assert!(redirected.starts_with("MOVED ") && redirected.ends_with(&format!(":{}", owner.port())), "{redirected}");
}

#[test]
fn the_address_names_all_nodes_and_the_login() {
    let cluster = RedisCluster::start_with(RedisSettings::new().password("secret"), 2, 0);
    let [first, second] = [0, 1].map(|at| cluster.nodes()[at].port());
    let expected = format!("redis-cluster://default:secret@127.0.0.1:{first}?node=127.0.0.1:{second}");
    assert_eq!(cluster.url(), expected);
    let mut stranger = RedisConnection::open(&format!("redis://127.0.0.1:{second}"));
    assert!(stranger.try_command(&["PING"]).unwrap_err().starts_with("NOAUTH "));
}

#[test]
fn a_replica_takes_the_place_of_a_killed_master_which_comes_back_as_its_replica() {
    let cluster = RedisCluster::start(3, 1);
    assert_eq!(cluster.nodes().len(), 6);
    cluster.command(&["SET", "key", "7"]);
    let (old, replica) = (cluster.owner("key"), cluster.replica_of("key"));
    old.await_replica(replica);
    old.kill();
    let new = cluster.owner("key");
    assert!(is(new, replica));
    assert_eq!(new.command(&["GET", "key"]).text(), "7");
    cluster.await_agreement();
    old.start_again();
    cluster.await_agreement();
    assert!(is(cluster.owner("key"), new));
    let deadline = Instant::now() + Duration::from_secs(60);
    while old.command(&["ROLE"]).list()[0].text() != "slave" {
        assert!(Instant::now() < deadline, "it does not follow: {}", old.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_replica_takes_the_place_of_a_paused_master() {
    let cluster = RedisCluster::start(3, 1);
    let (old, replica) = (cluster.owner("key"), cluster.replica_of("key"));
    old.pause();
    assert!(is(cluster.owner("key"), replica));
    cluster.command(&["SET", "key", "7"]);
    old.resume();
    cluster.await_agreement();
    assert!(is(cluster.owner("key"), replica));
}

#[test]
fn without_a_replica_a_killed_masters_keys_are_served_again_when_it_is_back() {
    let cluster = RedisCluster::start(3, 0);
    cluster.command(&["SET", "key", "7"]);
    let owner = cluster.owner("key");
    owner.kill();
    owner.start_again();
    assert!(is(cluster.owner("key"), owner));
    assert_eq!(cluster.command(&["GET", "key"]).text(), "7");
}

#[test]
fn a_failover_by_agreement_loses_nothing() {
    let cluster = RedisCluster::start(3, 1);
    cluster.command(&["SET", "key", "7"]);
    let replica = cluster.replica_of("key");
    assert!(is(cluster.failover("key"), replica));
    assert!(is(cluster.owner("key"), replica));
    assert_eq!(cluster.command(&["GET", "key"]).text(), "7");
}

#[test]
fn a_slot_that_moves_takes_its_keys_along() {
    let cluster = RedisCluster::start(3, 0);
    cluster.command(&["SET", "key", "7"]);
    cluster.command(&["SET", "{key}2", "8"]);
    let old = cluster.owner("key");
    let new = cluster.nodes().iter().find(|node| !is(node, old)).unwrap();
    cluster.move_slot_of("key", new);
    assert!(is(cluster.owner("key"), new));
    assert_eq!(cluster.command(&["GET", "{key}2"]).text(), "8");
    assert!(old.try_command(&["GET", "key"]).unwrap_err().starts_with("MOVED "));
}
