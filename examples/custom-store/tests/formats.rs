//! Records in the file that this version of idem can't read.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{num::NonZeroUsize, time::Duration};

use common::{Place, claim_of, key, own, record, response, retention, scope};
use idem_core::{Checkpoint, State, Store, StoreErrorKind};
use redb::{Database, ReadableTable as _, TableDefinition};

const RECORDS: TableDefinition<'_, (&str, &str), (i64, &[u8])> = TableDefinition::new("idem_records");

/// Overwrites a byte of the stored record. The store must be closed.
fn damage(place: &Place, name: &str, at: usize, with: u8) {
    let database = Database::open(place.file()).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut records = transaction.open_table(RECORDS).unwrap();
        let (expiry, mut bytes) = {
            let stored = records.get(("tenant-7", name)).unwrap().unwrap();
            (stored.value().0, stored.value().1.to_vec())
        };
        bytes[at] = with;
        records.insert(("tenant-7", name), (expiry, bytes.as_slice())).unwrap();
    }
    transaction.commit().unwrap();
}

#[tokio::test]
async fn a_record_of_a_newer_format_is_refused_as_configuration_and_left_as_it_is() {
    let place = Place::new();
    let store = place.open();
    let owner = own(&store, &claim_of("k-1")).await;
    drop(store);
    damage(&place, "k-1", 0, 9);
    let store = place.open();
    for error in [
        store.claim(&claim_of("k-1")).await.unwrap_err(),
        store.complete(&owner, &response(), retention()).await.unwrap_err(),
        store.release(&owner).await.unwrap_err(),
        store.checkpoint(&owner, &Checkpoint::new("c", "v").unwrap()).await.unwrap_err(),
        store.read(&scope(), &key("k-1")).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Configuration);
        assert!(error.to_string().contains("format 9"), "{error}");
    }
    drop(store);
    damage(&place, "k-1", 0, 1);
    assert_eq!(record(&place.open(), "k-1").await.unwrap().state, State::InProgress);
}

#[tokio::test]
async fn a_damaged_record_is_refused_as_corrupt_without_its_key_and_disturbs_no_other() {
    let place = Place::new();
    let store = place.open();
    own(&store, &claim_of("secret-key-1")).await;
    drop(store);
    damage(&place, "secret-key-1", 1, 200);
    let store = place.open();
    let others: Vec<_> = (0..40)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { own(&store, &claim_of(&format!("k-{number}"))).await })
        })
        .collect();
    for error in [
        store.claim(&claim_of("secret-key-1")).await.unwrap_err(),
        store.read(&scope(), &key("secret-key-1")).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        assert!(!format!("{error} {error:?}").contains("secret-key-1"), "{error:?}");
    }
    for other in others {
        other.await.unwrap();
    }
}

#[tokio::test]
async fn a_record_that_cannot_be_read_can_be_swept_and_purged() {
    let place = Place::new();
    for is_swept in [true, false] {
        let store = place.open();
        own(&store, &claim_of("k-1").with_retention(retention())).await;
        drop(store);
        damage(&place, "k-1", 1, 200);
        let store = place.open();
        let all = NonZeroUsize::MAX;
        if is_swept {
            assert_eq!(store.sweep(all).await.unwrap(), 0);
            place.clock.advance(retention().standard());
            assert_eq!(store.sweep(all).await.unwrap(), 1);
        } else {
            assert_eq!(store.purge(&scope(), all).await.unwrap(), 1);
        }
        place.clock.advance(Duration::from_secs(1));
        own(&store, &claim_of("k-1")).await;
        assert_eq!(store.purge(&scope(), all).await.unwrap(), 1);
    }
}
