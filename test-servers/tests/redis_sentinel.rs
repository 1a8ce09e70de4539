//! Sentinels that replace a primary.

use std::time::{Duration, Instant};

use test_servers::{PrivateRedis, RedisConnection, RedisSentinel, RedisSettings};

fn is(node: &PrivateRedis, other: &PrivateRedis) -> bool {
    node.port() == other.port()
}

#[test]
fn the_sentinels_name_the_primary_and_know_the_replica() {
    let redis = RedisSentinel::start();
    assert!(is(redis.primary(), &redis.nodes()[0]));
    assert_eq!(redis.sentinels().len(), 3);
    for sentinel in redis.sentinels() {
        assert!(redis.url().contains(&format!("127.0.0.1:{}", sentinel.port())));
        let answer = sentinel.command(&["SENTINEL", "CKQUORUM", redis.service()]).text();
        assert!(answer.starts_with("OK 3 usable Sentinels"), "{answer}");
    }
    redis.primary().command(&["SET", "key", "7"]);
    redis.primary().await_replica(&redis.nodes()[1]);
    assert_eq!(redis.nodes()[1].command(&["GET", "key"]).text(), "7");
}

#[test]
fn a_killed_primary_is_replaced_and_comes_back_as_a_replica() {
    let redis = RedisSentinel::start_with(RedisSettings::new().password("secret"));
    let [first, second] = redis.nodes();
    first.command(&["SET", "key", "7"]);
    first.await_replica(second);
    first.kill();
    assert!(is(redis.await_failover(first), second));
    assert_eq!(second.command(&["GET", "key"]).text(), "7");
    second.command(&["SET", "key", "8"]);
    first.start_again();
    let deadline = Instant::now() + Duration::from_secs(60);
    while first.command(&["GET", "key"]).text() != "8" {
        assert!(Instant::now() < deadline, "it does not follow: {}", first.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(is(redis.primary(), second));
}

#[test]
fn a_paused_primary_is_replaced_and_written_to_by_nobody_who_asks_the_sentinels() {
    let redis = RedisSentinel::start();
    let [first, second] = redis.nodes();
    first.pause();
    assert!(is(redis.await_failover(first), second));
    first.resume();
    assert!(is(redis.primary(), second));
}

#[test]
fn one_sentinel_less_still_replaces_a_primary_and_a_lone_one_does_not() {
    let redis = RedisSentinel::start();
    let [first, second] = redis.nodes();
    redis.sentinels()[0].kill();
    first.kill();
    assert!(is(redis.await_failover(first), second));
    redis.sentinels()[1].kill();
    let mut last = RedisConnection::open(&format!("redis://127.0.0.1:{}", redis.sentinels()[2].port()));
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Ok(answer) = last.try_command(&["SENTINEL", "CKQUORUM", redis.service()]) {
        assert!(Instant::now() < deadline, "it misses nobody: {answer:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let refused = last.try_command(&["SENTINEL", "CKQUORUM", redis.service()]).unwrap_err();
    assert!(refused.starts_with("NOQUORUM "), "{refused}");
    redis.sentinels()[0].start_again();
    redis.sentinels()[1].start_again();
    assert!(is(redis.primary(), second));
}

#[test]
fn a_primary_that_is_well_can_be_replaced() {
    let redis = RedisSentinel::start();
    let [first, second] = redis.nodes();
    first.command(&["SET", "key", "7"]);
    first.await_replica(second);
    assert!(is(redis.failover(), second));
    assert_eq!(second.command(&["GET", "key"]).text(), "7");
}

#[test]
fn the_address_holds_the_login_of_the_data_nodes() {
    let redis = RedisSentinel::start_with(RedisSettings::new().password("secret"));
    let [first, second, third] = [0, 1, 2].map(|at| redis.sentinels()[at].port());
    let expected = format!(
        "redis-sentinel://default:secret@127.0.0.1:{first}?node=127.0.0.1:{second}&node=127.0.0.1:{third}\
         &sentinelServiceName=idem"
    );
    assert_eq!(redis.url(), expected);
}
