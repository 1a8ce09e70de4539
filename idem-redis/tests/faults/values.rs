//! What is on the server and is no record of this version.

use std::num::NonZeroUsize;

use idem_core::{Checkpoint, Fenced, Key, Owner, Response, Scope, State, Store, StoreErrorKind};
use test_servers::{Reply, redis};

use crate::common::{LEASE, Place, claim_of, complete, key, own, retention, scope};

fn value(place: &Place, key: &str) -> Vec<u8> {
    redis().command(&["GET", &place.name(key)]).bytes().to_vec()
}

fn put(place: &Place, key: &str, value: &[u8]) {
    redis().command(&[b"SET", place.name(key).as_bytes(), value, b"PX", b"600000"]);
}

/// Every operation on the record but a purge, as its owner.
async fn assert_refused(place: &Place, name: &str, owner: &Owner, kind: StoreErrorKind) {
    let store = place.open().await;
    let claim = claim_of(name);
    let note = Checkpoint::new("step", "done").unwrap();
    for (what, answer) in [
        ("claim", store.claim(&claim).await.map(drop)),
        ("complete", store.complete(owner, &Response::new(200), retention()).await.map(drop)),
        ("release", store.release(owner).await.map(drop)),
        ("forget", store.forget(owner).await.map(drop)),
        ("hold", store.hold(owner, retention()).await.map(drop)),
        ("renew", store.renew(owner, LEASE).await.map(drop)),
        ("checkpoint", store.checkpoint(owner, &note).await.map(drop)),
        ("read", store.read(&scope(), &key(name)).await.map(drop)),
        ("lapsed", store.lapsed(None, NonZeroUsize::MIN).await.map(drop)),
    ] {
        let error = answer.expect_err(what);
        assert_eq!(error.kind(), kind, "{what}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_a_newer_format_is_refused_and_never_written_over() {
    let place = Place::new("newer");
    let store = place.open().await;
    let owner = own(&store, &claim_of("k")).await;
    let mut newer = value(&place, "k");
    newer[1] = 2;
    put(&place, "k", &newer);
    assert_refused(&place, "k", &owner, StoreErrorKind::Configuration).await;
    assert_eq!(value(&place, "k"), newer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_is_no_record_is_corrupt_and_never_written_over() {
    let place = Place::new("corrupt");
    let store = place.open().await;
    let owner = own(&store, &claim_of("k")).await;
    let whole = value(&place, "k");
    for damaged in [&b""[..], b"i", b"{\"status\":201}", &whole[..77], &whole[..whole.len() - 1], &[0xff; 200]] {
        put(&place, "k", damaged);
        let truncated_tail = damaged.len() == whole.len() - 1;
        if truncated_tail {
            // Scripts of the owner need no more than the head.
            let error = store.claim(&claim_of("k")).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
        } else {
            assert_refused(&place, "k", &owner, StoreErrorKind::Corrupt).await;
        }
        assert_eq!(value(&place, "k"), damaged);
    }
    // A purge takes it away: whatever it is, it is the scope's.
    assert_eq!(store.purge(&scope(), NonZeroUsize::MAX).await.unwrap(), 1);
    own(&store, &claim_of("k")).await;
}

// case 017
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_whose_expiry_somebody_took_away_is_corrupt_and_nobody_takes_it_over() {
    let place = Place::new("persisted");
    let store = place.open().await;
    let owner = own(&store, &claim_of("k")).await;
    redis().command(&["PERSIST", &place.name("k")]);
    let before = value(&place, "k");
    assert_refused(&place, "k", &owner, StoreErrorKind::Corrupt).await;
    assert_eq!(value(&place, "k"), before);
    // As the error says.
    redis().command(&["DEL", &place.name("k")]);
    assert_eq!(store.complete(&owner, &crate::common::response(), retention()).await.unwrap(), Fenced::Superseded);
    complete(&store, &own(&store, &claim_of("k")).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_type_is_corrupt() {
    let place = Place::new("type");
    let store = place.open().await;
    let owner = own(&store, &claim_of("k")).await;
    let name = place.name("k");
    redis().command(&["DEL", &name]);
    redis().command(&["RPUSH", &name, "a"]);
    redis().command(&["PEXPIRE", &name, "600000"]);
    assert_refused(&place, "k", &owner, StoreErrorKind::Corrupt).await;
    assert_eq!(redis().command(&["LLEN", &name]), Reply::Integer(1));
}

// cases 014, 080
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_and_bodies_of_any_bytes_are_kept_as_they_are() {
    let place = Place::new("odd");
    let store = place.open().await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let bodies: [&[u8]; 8] = [b"", b"\0", b"-1", b":1\r\n", b"$-1\r\n", b"nil", b"1", &every_byte];
    let names = ["{", "}", "{a}b", "a{}", ":", "%", "*", "?", "[a-z]", "\\", "a b", "é🦀"];
    for (number, name) in names.into_iter().enumerate() {
        let scope = Scope::new(name).unwrap();
        let claim = idem_core::Claim::new(
            scope.clone(),
            Key::new(name).unwrap(),
            crate::common::token(),
            crate::common::fingerprint("request"),
        );
        let owner = own(&store, &claim).await;
        let response = Response::new(200).with_header("x", &b"\xff\0"[1..1]).with_body(bodies[number % 8].to_vec());
        let written = store.complete(&owner, &response, retention()).await.unwrap();
        assert_eq!(written, Fenced::Written(response.clone()));
        let found = store.read(&scope, claim.key()).await.unwrap().unwrap();
        assert_eq!(found.record.state, State::Done(response));
        // Only this scope's, whatever its name would match as a pattern.
        assert_eq!(store.purge(&scope, NonZeroUsize::MAX).await.unwrap(), 1, "{name}");
    }
}
