//! The server's memory is really full: by what was written, up to its limit.

use idem_core::{Fenced, Response, State, Store, StoreError, StoreErrorKind};
use test_servers::{PrivateRedis, RedisConnection, RedisSettings};

use crate::common::{LEASE, Place, claim, claim_of, complete, granted, own, record, response, retention, word};

/// What a server may hold beyond what it holds when it starts.
const ROOM: i64 = 4 * 1024 * 1024;

fn info(server: &PrivateRedis, name: &str) -> i64 {
    let info = server.command(&["INFO"]).text();
    let value = info.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("the server says nothing of {name}"))
}

fn limited(server: &PrivateRedis) {
    let limit = info(server, "used_memory") + ROOM;
    server.command(&["CONFIG", "SET", "maxmemory", &limit.to_string()]);
}

/// Writes until the server refuses. Nothing that is written goes of its own accord; and what the server itself takes and
/// gives back from here on, such as buffers of connections, is not to make room again.
fn fill(server: &PrivateRedis, from: &str) {
    let mut connection: RedisConnection = server.connect();
    for size in [100_000, 1_000, 10] {
        let value = vec![b'x'; size];
        let mut number = 0;
        loop {
            let name = format!("filler:{from}:{size}:{number}");
            match connection.try_command(&[b"SET", name.as_bytes(), value.as_slice()]) {
                Ok(_) => number += 1,
                Err(error) => {
                    assert!(error.starts_with("OOM "), "{error}");
                    break;
                }
            }
            assert!(number < 1_000_000, "it is never full");
        }
    }
    let limit = info(server, "maxmemory") - ROOM / 8;
    server.command(&["CONFIG", "SET", "maxmemory", &limit.to_string()]);
}

fn assert_full<T>(operation: &str, answer: Result<T, StoreError>) {
    let error = answer.map(drop).expect_err(operation);
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{operation}: {error}");
    assert!(error.to_string().contains("memory is full"), "{operation}: {error}");
}

// case 024
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_full_refuses_claims_and_frees_no_key_whose_completion_it_refuses() {
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "full");
    let store = place.open().await;
    limited(&server);
    // The store's own writes come to the limit.
    let big = Response::new(200).with_body(vec![7; 200_000]);
    let mut owners = Vec::new();
    for number in 0..10 {
        owners.push(own(&store, &claim_of(&format!("owned-{number}"))).await);
    }
    let mut kept = 0;
    loop {
        let Ok(answer) = idem_core::claim(&store, &claim_of(&format!("done-{kept}"))).await else { break };
        if store.complete(granted(answer).owner(), &big, retention()).await.is_err() {
            break;
        }
        kept += 1;
        assert!(kept < 100, "it is never full");
    }
    assert!(kept > 5, "it was full from the start");
    fill(&server, "first");

    let owner = &owners[0];
    assert_full("claim", store.claim(&claim_of("new")).await);
    assert_full("complete", store.complete(owner, &response(), retention()).await);
    assert_full("a big one", store.complete(owner, &big, retention()).await);
    assert_full("renew", store.renew(owner, LEASE).await);
    assert_full("release", store.release(owner).await);
    assert_full("forget", store.forget(owner).await);
    assert_full("hold", store.hold(owner, retention()).await);
    // Nothing was lost, and nobody gets what has an owner.
    for number in 0..10 {
        let name = format!("owned-{number}");
        let found = record(&store, &name).await.unwrap();
        assert_eq!((found.state, found.number), (State::InProgress, 1), "{name}");
        let answer = idem_core::claim(&store, &claim_of(&name)).await;
        assert!(answer.as_ref().map_or(true, |answer| word(answer) == "Conflict"), "{name}: {answer:?}");
    }
    assert!(record(&store, "new").await.is_none(), "a claim that was refused is there");
    assert_eq!(info(&server, "evicted_keys"), 0);

    // Memory is there again.
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    for (number, owner) in owners.iter().enumerate() {
        assert_eq!(word(&claim(&store, &claim_of(&format!("owned-{number}"))).await), "Conflict");
        complete(&store, owner).await;
    }
    own(&store, &claim_of("new")).await;
    for number in 0..kept {
        assert_eq!(word(&claim(&store, &claim_of(&format!("done-{number}"))).await), "Replay");
    }
}

// case 024
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_whose_record_was_evicted_is_superseded_and_brings_nothing_back() {
    for policy in ["allkeys-lru", "allkeys-random", "volatile-ttl"] {
        let server = PrivateRedis::start(RedisSettings::new().set("maxmemory-policy", policy));
        let place = Place::at(&server.url(), "evicts");
        let store = place.builder().accept_eviction().connect().await.unwrap();
        limited(&server);
        let claims: Vec<_> = (0..20).map(|number| claim_of(&format!("owned-{number}"))).collect();
        let mut owners = Vec::new();
        for claim in &claims {
            owners.push(own(&store, claim).await);
        }
        // Others' keys, with an expiry later than that of records.
        let mut connection = server.connect();
        let is_there =
            |number: &usize| server.command(&["EXISTS", &place.name(&format!("owned-{number}"))]).integer() == 1;
        let mut filled = 0;
        let evicted = loop {
            for _ in 0..50 {
                let name = format!("filler:{filled}");
                connection.command(&[b"SET", name.as_bytes(), &[b'x'; 20_000], b"PX", b"8640000000"]);
                filled += 1;
            }
            if let Some(evicted) = (0..owners.len()).find(|number| !is_there(number)) {
                break evicted;
            }
            assert!(filled < 100_000, "{policy}: no record was evicted");
        };
        let (owner, name) = (&owners[evicted], format!("owned-{evicted}"));
        assert!(info(&server, "evicted_keys") > 0);
        assert_eq!(store.complete(owner, &response(), retention()).await.unwrap(), Fenced::Superseded, "{policy}");
        assert_eq!(store.renew(owner, LEASE).await.unwrap(), Fenced::Superseded, "{policy}");
        assert_eq!(store.release(owner).await.unwrap(), Fenced::Superseded, "{policy}");
        assert_eq!(store.hold(owner, retention()).await.unwrap(), Fenced::Superseded, "{policy}");
        assert!(!is_there(&evicted), "{policy}: it was brought back");
        // With all the room that there is, so that what follows is not evicted as well.
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        let next = granted(claim(&store, &claim_of(&name)).await);
        assert_eq!(next.number(), 1);
        assert_eq!(store.complete(owner, &response(), retention()).await.unwrap(), Fenced::Superseded, "{policy}");
        complete(&store, next.owner()).await;
    }
}
