use std::{num::NonZeroUsize, time::Duration};

use idem_core::{Answer, Claim, Fingerprint, ManualClock, Owner, Response, Retention, Store, Timestamp, Token};
use redb::ReadableTableMetadata as _;

use super::*;
use crate::RedbStore;

/// Every record has exactly one entry in the order of expiries, and one among those that may wait if it may.
fn assert_consistent(store: &RedbStore) {
    let transaction = store.parts().0.begin_read().unwrap();
    let records = transaction.open_table(RECORDS).unwrap();
    let (open, expiries) = (transaction.open_table(OPEN).unwrap(), transaction.open_table(EXPIRIES).unwrap());
    let mut waiting = 0;
    for entry in records.iter().unwrap() {
        let (name, stored) = entry.unwrap();
        let ((scope, key), (expiry, bytes)) = (name.value(), stored.value());
        let record = Record::decode(bytes.to_vec()).unwrap();
        assert_eq!(record.expiry.as_millis(), expiry);
        assert!(expiries.get((expiry, scope, key)).unwrap().is_some());
        let filed = open.get((scope, key)).unwrap().map(|instant| instant.value());
        assert_eq!(filed, waits_from(&record));
        waiting += u64::from(filed.is_some());
    }
    assert_eq!(expiries.len().unwrap(), records.len().unwrap());
    assert_eq!(open.len().unwrap(), waiting);
}

#[test]
fn every_change_rings_the_bell_of_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let database = redb::Database::create(dir.path().join("idem.redb")).unwrap();
    let (transaction, bells) = (database.begin_write().unwrap(), Bells::new());
    let mut tables = Tables::of(&transaction, &bells).unwrap();
    let (scope, key) = (Scope::new("tenant").unwrap(), Key::new("k").unwrap());
    let fingerprint = Fingerprint::builder().part("body", "the request").build().unwrap();
    let claim = Claim::new(scope.clone(), key.clone(), Token::from_bytes([1; 16]), fingerprint);
    let now = Timestamp::from_millis(0);
    tables.put((&scope, &key), &idem_core::machine::claim(None, &claim, now).unwrap().write.unwrap()).unwrap();
    assert!(tables.remove("tenant", "k").unwrap());
    assert!(!tables.remove("tenant", "k").unwrap());
    let changes = tables.close();
    assert!(changes.any);
    let rung: Vec<_> = changes.bells.iter().map(|bell| format!("{bell:?}")).collect();
    assert_eq!(rung, [format!("{:?}", bells.of("tenant", "k")), format!("{:?}", bells.of("tenant", "k"))]);
}

#[tokio::test]
async fn the_tables_agree_after_every_operation() {
    let dir = tempfile::tempdir().unwrap();
    let clock = ManualClock::starting_at(Timestamp::from_millis(1_000));
    let store = RedbStore::builder(dir.path().join("idem.redb")).clock(clock.clone()).open().unwrap();
    let retention = Retention::new(Duration::from_secs(60));
    let fingerprint = Fingerprint::builder().part("body", "the request").build().unwrap();
    let mut token = 0;
    let mut claim = async |name: &str| -> Owner {
        token += 1;
        let (scope, key) = (Scope::new("tenant").unwrap(), Key::new(name).unwrap());
        let claim = Claim::new(scope, key, Token::from_bytes([token; 16]), fingerprint.clone());
        match idem_core::claim(&store, &claim.with_retention(retention)).await.unwrap() {
            Answer::Claimed(grant) | Answer::TakenOver(grant) => grant.owner().clone(),
            other => panic!("{other:?}"),
        }
    };
    let mut owners = Vec::new();
    for name in ["completed", "released", "forgotten", "held", "renewed", "lapsed"] {
        owners.push(claim(name).await);
        assert_consistent(&store);
    }
    clock.advance(Duration::from_secs(1));
    store.complete(&owners[0], &Response::new(201), retention).await.unwrap();
    assert_consistent(&store);
    store.release(&owners[1]).await.unwrap();
    assert_consistent(&store);
    store.forget(&owners[2]).await.unwrap();
    assert_consistent(&store);
    store.hold(&owners[3], retention).await.unwrap();
    assert_consistent(&store);
    store.renew(&owners[4], Duration::from_secs(3_600)).await.unwrap();
    assert_consistent(&store);
    clock.advance(Duration::from_secs(40));
    claim("lapsed").await;
    assert_consistent(&store);
    clock.advance(Duration::from_secs(21));
    let all = NonZeroUsize::new(1_000).unwrap();
    assert_eq!(store.sweep(all).await.unwrap(), 3, "all but those that were renewed, held or taken over");
    assert_consistent(&store);
    assert_eq!(store.purge(&Scope::new("tenant").unwrap(), all).await.unwrap(), 3);
    assert_consistent(&store);
}
