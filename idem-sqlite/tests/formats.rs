//! What is stored, to the byte, and what happens where it is not what this version writes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::num::NonZeroUsize;

use common::{Place, claim_of, fingerprint, key, own, record, response, retention, scope, token};
use idem_core::{Answer, Checkpoint, Claim, Completion, Response, Scope, State, Store, StoreErrorKind};
use idem_sqlite::rusqlite::TransactionBehavior;

// cases 079, 080, 082
#[tokio::test]
async fn a_response_is_replayed_byte_for_byte_whatever_its_bytes() {
    let place = Place::new();
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let bodies: [&[u8]; 5] = [
        b"",
        b"\0\xff\xfe",
        b"{ \"b\":1.0, \"a\":1e2,  \"a\":3, \"lone\":\"\\ud800\" }\r\n",
        "\u{feff}😂".as_bytes(),
        &large,
    ];
    for (number, body) in bodies.iter().enumerate() {
        let name = format!("k-{number}");
        let response = Response::new(202).with_header("x", &b"\xff"[..]).with_header("x", "").with_body(body.to_vec());
        let store = place.open();
        let owner = own(&store, &claim_of(&name)).await;
        store.complete(&owner, &response, retention()).await.unwrap();
        drop(store);
        match idem_core::claim(&place.open(), &claim_of(&name)).await.unwrap() {
            Answer::Replay { response: replayed, .. } => assert!(replayed == response, "body {number}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn names_are_told_apart_by_their_bytes() {
    let place = Place::new();
    let store = place.open();
    let names = ["a", "A", "a ", "ä", "a\u{308}", "%", "_", "';--", "😂", "\u{feff}a"];
    for name in names {
        own(&store, &claim_of(name)).await;
    }
    for (scope, name) in [(Scope::global(), "a"), (Scope::new("tenant-7a").unwrap(), "a"), (scope(), "7a")] {
        own(&store, &Claim::new(scope, key(name), token(), fingerprint("the request"))).await;
    }
    for name in names {
        assert!(matches!(idem_core::claim(&store, &claim_of(name)).await.unwrap(), Answer::Conflict { .. }));
    }
}

// case 128
#[tokio::test]
async fn the_fingerprint_is_kept_with_the_record_and_asked_after_reopening() {
    let place = Place::new();
    let claim = |request| Claim::new(scope(), key("k-1"), token(), fingerprint(request));
    let store = place.open();
    let owner = own(&store, &claim("250000")).await;
    store.complete(&owner, &response(), retention()).await.unwrap();
    drop(store);
    let store = place.open();
    assert!(matches!(idem_core::claim(&store, &claim("250000")).await.unwrap(), Answer::Replay { .. }));
    assert!(matches!(idem_core::claim(&store, &claim("1")).await.unwrap(), Answer::Reuse { .. }));
    assert!(matches!(idem_core::claim(&store, &claim("250000")).await.unwrap(), Answer::Replay { .. }));
}

/// Overwrites the stored record from byte `at` on.
fn damage(place: &Place, name: &str, at: usize, with: &[u8]) {
    let connection = place.connect();
    let select = "SELECT record FROM idem_records WHERE key = ?1";
    let mut bytes: Vec<u8> = connection.query_row(select, [name], |row| row.get(0)).unwrap();
    bytes[at..at + with.len()].copy_from_slice(with);
    let update = "UPDATE idem_records SET record = ?2 WHERE key = ?1";
    assert_eq!(connection.execute(update, (name, bytes)).unwrap(), 1);
}

#[tokio::test]
async fn a_record_of_a_newer_format_is_refused_as_configuration_and_left_as_it_is() {
    let place = Place::new();
    let store = place.open();
    let owner = own(&store, &claim_of("k-1")).await;
    damage(&place, "k-1", 0, &[9]);
    let mut caller = place.connect();
    let completion = Completion::new(owner.clone(), response(), retention());
    let in_transaction = {
        let transaction = caller.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        store.complete_in(&transaction, &completion).unwrap_err()
    };
    for error in [
        store.claim(&claim_of("k-1")).await.unwrap_err(),
        store.complete(&owner, &response(), retention()).await.unwrap_err(),
        store.release(&owner).await.unwrap_err(),
        store.checkpoint(&owner, &Checkpoint::new("c", "v").unwrap()).await.unwrap_err(),
        store.read(&scope(), &key("k-1")).await.unwrap_err(),
        in_transaction,
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Configuration);
        assert!(
            error.to_string().contains("format 9") && error.to_string().contains("row 1 of idem_records"),
            "{error}"
        );
    }
    damage(&place, "k-1", 0, &[1]);
    assert_eq!(record(&store, "k-1").await.unwrap().state, State::InProgress);
}

#[tokio::test]
async fn a_damaged_record_is_refused_as_corrupt_and_named_by_its_row_not_its_key() {
    let place = Place::new();
    let store = place.open();
    own(&store, &claim_of("secret-key-1")).await;
    damage(&place, "secret-key-1", 1, &[200]);
    for error in [
        store.claim(&claim_of("secret-key-1")).await.unwrap_err(),
        store.read(&scope(), &key("secret-key-1")).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        assert!(error.to_string().contains("row 1 of idem_records"), "{error}");
        assert!(!format!("{error} {error:?}").contains("secret-key-1"), "{error:?}");
    }
    place.connect().execute("UPDATE idem_records SET record = 'text'", ()).unwrap();
    assert_eq!(store.claim(&claim_of("secret-key-1")).await.unwrap_err().kind(), StoreErrorKind::Corrupt);
    assert_eq!(store.lapsed(None, NonZeroUsize::MAX).await.unwrap().len(), 0);
    own(&store, &claim_of("another")).await;
}
