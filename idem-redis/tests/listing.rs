//! Walks through all keys of a server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{num::NonZeroUsize, time::Duration};

use futures_util::future::join_all;
use idem_core::{Claim, Response, Scope, Store};
use test_servers::{PrivateRedis, RedisSettings};
use tokio::time::sleep;

use crate::common::{Place, claim_of, fingerprint, key, own, retention, scope, token};

/// More than a step of the server's looks at, many times.
const KEYS: usize = 20_000;

fn limit(limit: usize) -> NonZeroUsize {
    NonZeroUsize::new(limit).unwrap()
}

fn info(server: &PrivateRedis, section: &str, name: &str) -> u64 {
    let info = server.command(&["INFO", section]).text();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or("calls=0,");
    let digits = line.trim_start_matches("calls=").split(',').next().unwrap();
    digits.parse().unwrap_or_else(|_| panic!("{name} is {line:?}"))
}

fn scans(server: &PrivateRedis) -> u64 {
    info(server, "commandstats", "cmdstat_scan")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_reads_no_further_than_its_limit_and_finds_the_few_among_the_many() {
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "purged");
    let store = place.open().await;
    // Of others, and of another scope of this store.
    server.command(&["EVAL", &format!("for i = 1, {KEYS} do redis.call('SET', 'other:' .. i, 'x') end"), "0"]);
    let others = Scope::new("tenant-8").unwrap();
    let kept = Claim::new(others.clone(), key("k"), token(), fingerprint("the request"));
    own(&store, &kept).await;
    let mine: Vec<Claim> = (0..500).map(|number| claim_of(&format!("k-{number}"))).collect();
    join_all(mine.iter().map(|claim| own(&store, claim))).await;

    let before = scans(&server);
    assert_eq!(store.purge(&scope(), limit(10)).await.unwrap(), 10);
    let after = scans(&server);
    // Whatever it began goes on for a while, if it goes on.
    sleep(Duration::from_millis(200)).await;
    assert_eq!(scans(&server), after, "it goes on after it was answered");
    assert!(after - before <= 21, "{} steps for 10 records", after - before);

    let (mut purged, mut calls) = (10, 0);
    while purged < 500 {
        let now = store.purge(&scope(), limit(100)).await.unwrap();
        assert!((1..=100).contains(&now));
        (purged, calls) = (purged + now, calls + 1);
    }
    assert_eq!((purged, calls), (500, 5));
    assert_eq!(store.purge(&scope(), limit(100)).await.unwrap(), 0);
    assert!(store.read(&others, &key("k")).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_what_waits_for_someone_leaves_the_bodies_of_what_is_done_where_they_are() {
    const BODY: usize = 100_000;
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "listed");
    let store = place.open().await;
    for number in 0..100 {
        let owner = own(&store, &claim_of(&format!("done-{number}"))).await;
        let response = Response::new(200).with_body(vec![b'x'; BODY]);
        store.complete(&owner, &response, retention()).await.unwrap();
    }
    for number in 0..5 {
        let owner = own(&store, &claim_of(&format!("held-{number}"))).await;
        store.hold(&owner, retention()).await.unwrap();
    }
    let sent = || info(&server, "stats", "total_net_output_bytes");
    let before = sent();
    let listed = store.lapsed(None, limit(100)).await.unwrap();
    let names: Vec<&str> = listed.iter().map(|lapsed| lapsed.key.as_str()).collect();
    assert_eq!(names, ["held-0", "held-1", "held-2", "held-3", "held-4"]);
    let took = sent() - before;
    assert!(took < BODY as u64, "{took} bytes were read");
}
