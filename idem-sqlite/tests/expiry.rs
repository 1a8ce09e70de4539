//! Leases and retentions, to the millisecond, by a clock that is moved.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{num::NonZeroUsize, time::Duration};

use common::{Place, claim_of, key, own, record, response, retention, scope, token};
use idem_core::{Answer, ClaimRow, Fenced, OnLapse, Resolve, Retention, Scope, State, Store};

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(2);
const RETENTION: Duration = Duration::from_secs(5);

fn all() -> NonZeroUsize {
    NonZeroUsize::MAX
}

/// What the table says, as people see it: state, number, lease_end, expiry.
fn raw(place: &Place, name: &str) -> (i64, i64, i64, i64) {
    let sql = "SELECT state, number, lease_end, expiry FROM idem_records WHERE key = ?1";
    let columns = |row: &idem_sqlite::rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    place.connect().query_row(sql, [name], columns).unwrap()
}

fn rows(place: &Place) -> i64 {
    place.connect().query_row("SELECT count(*) FROM idem_records", (), |row| row.get(0)).unwrap()
}

// cases 041, 043, 086
#[tokio::test]
async fn a_lease_is_live_to_its_last_millisecond_and_over_at_its_end() {
    let place = Place::new();
    let store = place.open();
    own(&store, &claim_of("k-1").with_lease(LEASE)).await;

    place.clock.advance(LEASE - MS);
    match idem_core::claim(&store, &claim_of("k-1")).await.unwrap() {
        Answer::Conflict { left, .. } => assert_eq!(left, Some(MS)),
        other => panic!("{other:?}"),
    }
    place.clock.advance(MS);
    assert!(matches!(idem_core::claim(&store, &claim_of("k-1")).await.unwrap(), Answer::TakenOver(_)));
}

// cases 086, 087
#[tokio::test]
async fn a_record_is_replayed_to_its_last_millisecond_and_absent_at_its_expiry_unswept() {
    let place = Place::new();
    let store = place.open();
    let owner = own(&store, &claim_of("k-1").with_lease(LEASE)).await;
    store.complete(&owner, &response(), Retention::new(RETENTION)).await.unwrap();

    place.clock.advance(RETENTION - MS);
    assert!(record(&store, "k-1").await.is_some());
    assert!(matches!(idem_core::claim(&store, &claim_of("k-1")).await.unwrap(), Answer::Replay { .. }));
    place.clock.advance(MS);
    assert_eq!(record(&store, "k-1").await, None);
    assert_eq!(rows(&place), 1);
    match idem_core::claim(&store, &claim_of("k-1")).await.unwrap() {
        Answer::Claimed(grant) => assert!(grant.number() == 1 && !grant.is_repeat()),
        other => panic!("{other:?}"),
    }
    assert_eq!(rows(&place), 1);
}

// case 086
#[tokio::test]
async fn the_columns_that_people_see_are_those_of_the_record() {
    let place = Place::new();
    let store = place.open();
    let now = place.clock.now();
    let claim = || claim_of("k-1").with_lease(LEASE).with_retention(Retention::new(RETENTION));
    let owner = own(&store, &claim()).await;
    let at = |after| now.after(after).as_millis();
    assert_eq!(raw(&place, "k-1"), (0, 1, at(LEASE), at(RETENTION)));

    place.clock.advance(MS);
    store.renew(&owner, LEASE).await.unwrap();
    assert_eq!(raw(&place, "k-1"), (0, 1, at(LEASE + MS), at(RETENTION)));
    store.release(&owner).await.unwrap();
    assert_eq!(raw(&place, "k-1").0, 1);
    let owner = own(&store, &claim()).await;
    store.hold(&owner, Retention::new(RETENTION).with_held(2 * RETENTION)).await.unwrap();
    assert_eq!(raw(&place, "k-1"), (2, 2, at(LEASE + MS), at(2 * RETENTION + MS)));

    let owner = own(&store, &claim_of("k-2").with_lease(LEASE)).await;
    store.complete(&owner, &response(), Retention::new(RETENTION)).await.unwrap();
    assert_eq!(raw(&place, "k-2"), (3, 1, at(LEASE + MS), at(RETENTION + MS)));
    for name in ["k-1", "k-2"] {
        let record = record(&store, name).await.unwrap();
        let (_, number, lease_end, expiry) = raw(&place, name);
        assert_eq!(i64::from(record.number), number);
        assert_eq!((record.lease_end.as_millis(), record.expiry.as_millis()), (lease_end, expiry));
    }
}

// case 003
#[tokio::test]
async fn a_completion_never_brings_back_a_record_that_expired_or_was_removed() {
    let place = Place::new();
    let store = place.open();
    let claim = |name| claim_of(name).with_lease(LEASE).with_retention(Retention::new(RETENTION));
    let (swept, purged, expired) = (claim("swept"), claim("purged"), claim("expired"));
    let owners = [own(&store, &swept).await, own(&store, &purged).await, own(&store, &expired).await];

    assert_eq!(store.purge(&scope(), all()).await.unwrap(), 3);
    assert_eq!(store.complete(&owners[1], &response(), retention()).await.unwrap(), Fenced::Superseded);
    assert_eq!(rows(&place), 0);

    let owner = own(&store, &swept).await;
    place.clock.advance(RETENTION);
    assert_eq!(store.sweep(all()).await.unwrap(), 1);
    assert_eq!(store.complete(&owner, &response(), retention()).await.unwrap(), Fenced::Superseded);
    assert_eq!(rows(&place), 0);

    let owner = own(&store, &expired).await;
    place.clock.advance(RETENTION);
    assert_eq!(store.complete(&owner, &response(), retention()).await.unwrap(), Fenced::Superseded);
    assert_eq!(record(&store, "expired").await, None);
    let mut caller = place.connect();
    let transaction = caller.transaction_with_behavior(idem_sqlite::rusqlite::TransactionBehavior::Immediate).unwrap();
    let completion = idem_core::Completion::new(owner, response(), retention());
    assert_eq!(store.complete_in(&transaction, &completion).unwrap(), Fenced::Superseded);
}

// case 123
#[tokio::test]
async fn sweeping_removes_what_is_expired_to_the_millisecond_and_nothing_else() {
    let place = Place::new();
    let store = place.open();
    for (name, retention) in [("early", RETENTION - MS), ("now", RETENTION), ("late", RETENTION + MS)] {
        own(&store, &claim_of(name).with_lease(MS).with_retention(Retention::new(retention))).await;
    }
    place.clock.advance(RETENTION);
    assert_eq!(store.sweep(all()).await.unwrap(), 2);
    assert!(record(&store, "late").await.is_some());
    assert_eq!((store.sweep(all()).await.unwrap(), rows(&place)), (0, 1));
}

// case 123
#[tokio::test]
async fn sweeping_keeps_to_its_limit_and_goes_on_over_many_transactions() {
    let place = Place::new();
    let store = place.open();
    let claims: Vec<_> = (0..700).map(|n| claim_of(&format!("k-{n}")).with_lease(MS)).collect();
    for claim in claims {
        own(&store, &claim.with_retention(Retention::new(RETENTION))).await;
    }
    own(&store, &claim_of("live").with_lease(2 * RETENTION)).await;
    place.clock.advance(RETENTION);
    assert_eq!(store.sweep(NonZeroUsize::MIN).await.unwrap(), 1);
    assert_eq!(store.sweep(NonZeroUsize::new(300).unwrap()).await.unwrap(), 300);
    assert_eq!(store.sweep(all()).await.unwrap(), 399);
    assert_eq!(rows(&place), 1);
}

#[tokio::test]
async fn purging_takes_one_scope_whatever_the_names_have_in_common() {
    let place = Place::new();
    let store = place.open();
    let scopes = ["t", "T", "t ", "t%", "t_", "ta"].map(|name| Scope::new(name).unwrap());
    for scope in scopes.iter().chain([&Scope::global()]) {
        for name in ["a", "b"] {
            let claim = claim_of(name);
            let claim = idem_core::Claim::new(scope.clone(), key(name), token(), claim.fingerprint().clone());
            own(&store, &claim).await;
        }
    }
    assert_eq!(store.purge(&scopes[0], NonZeroUsize::MIN).await.unwrap(), 1);
    assert_eq!(store.purge(&scopes[0], all()).await.unwrap(), 1);
    assert_eq!(store.purge(&scopes[0], all()).await.unwrap(), 0);
    assert_eq!(rows(&place), 12);
    assert_eq!(store.purge(&Scope::global(), all()).await.unwrap(), 2);
    assert_eq!(rows(&place), 10);
}

// case 017
#[tokio::test]
async fn under_hold_an_attempt_that_started_and_died_is_never_taken_over() {
    let place = Place::new();
    let store = place.open();
    let claim = claim_of("k-1").with_lease(LEASE).with_on_lapse(OnLapse::Hold);
    let owner = own(&store, &claim).await;
    store.renew(&owner, LEASE).await.unwrap();
    for later in [LEASE + 1000 * MS, Duration::from_secs(60 * 60)] {
        place.clock.advance(later);
        assert!(matches!(idem_core::claim(&store, &claim_of("k-1")).await.unwrap(), Answer::Unknown));
    }
}

#[tokio::test]
async fn what_waits_for_someone_is_listed_in_order_page_by_page_and_can_be_resolved() {
    let place = Place::new();
    let store = place.open();
    for name in ["d", "b", "live", "done", "a", "held", "released", "short"] {
        let lease = if name == "live" { 2 * LEASE } else { LEASE };
        let keep = if name == "short" { LEASE } else { RETENTION };
        let owner = own(&store, &claim_of(name).with_lease(lease).with_retention(Retention::new(keep))).await;
        match name {
            "done" => drop(store.complete(&owner, &response(), retention()).await.unwrap()),
            "held" => drop(store.hold(&owner, retention()).await.unwrap()),
            "released" => drop(store.release(&owner).await.unwrap()),
            _ => {}
        }
    }
    let names = |lapsed: &[idem_core::Lapsed]| {
        lapsed.iter().map(|found| found.key.as_str().to_owned()).collect::<Vec<_>>().join(" ")
    };
    place.clock.advance(LEASE - MS);
    assert_eq!(names(&store.lapsed(None, all()).await.unwrap()), "held");
    place.clock.advance(MS);
    assert_eq!(names(&store.lapsed(None, all()).await.unwrap()), "a b d held");

    let two = NonZeroUsize::new(2).unwrap();
    let first = store.lapsed(None, two).await.unwrap();
    let last = &first[1];
    let second = store.lapsed(Some((&last.scope, &last.key)), two).await.unwrap();
    assert_eq!((names(&first), names(&second)), ("a b".into(), "d held".into()));
    let last = &second[1];
    assert!(store.lapsed(Some((&last.scope, &last.key)), two).await.unwrap().is_empty());

    let resolve = Resolve::new(last.scope.clone(), last.key.clone(), last.record.attempt(), token());
    match store.resolve(&resolve).await.unwrap() {
        Fenced::Written(record) => assert_eq!((record.number, &record.state), (2, &State::InProgress)),
        Fenced::Superseded => panic!("nobody else resolved it"),
    }
    let other = Resolve::new(last.scope.clone(), last.key.clone(), last.record.attempt(), token());
    assert_eq!(store.resolve(&other).await.unwrap(), Fenced::Superseded);
    assert_eq!(names(&store.lapsed(None, all()).await.unwrap()), "a b d");
}

// cases 001, 021, 022
#[tokio::test]
async fn who_was_taken_over_can_write_nothing_any_more() {
    let place = Place::new();
    let store = place.open();
    let first = own(&store, &claim_of("k-1").with_lease(LEASE)).await;
    place.clock.advance(LEASE);
    let second = own(&store, &claim_of("k-1").with_lease(LEASE)).await;
    let before = record(&store, "k-1").await;

    assert_eq!(store.renew(&first, LEASE).await.unwrap(), Fenced::Superseded);
    assert_eq!(store.release(&first).await.unwrap(), Fenced::Superseded);
    assert_eq!(store.forget(&first).await.unwrap(), Fenced::Superseded);
    assert_eq!(store.hold(&first, retention()).await.unwrap(), Fenced::Superseded);
    assert_eq!(store.complete(&first, &response(), retention()).await.unwrap(), Fenced::Superseded);
    assert_eq!(record(&store, "k-1").await, before);
    assert!(matches!(store.claim(&claim_of("k-1")).await.unwrap(), ClaimRow::Found { .. }));
    let right = idem_core::Response::new(200).with_body("R2");
    assert_eq!(store.complete(&second, &right, retention()).await.unwrap(), Fenced::Written(right.clone()));
    assert_eq!(record(&store, "k-1").await.unwrap().state, State::Done(right));
}

// cases 001, 003
#[tokio::test]
async fn who_owned_a_record_that_is_gone_can_write_nothing_to_the_one_after_it() {
    let place = Place::new();
    let store = place.open();
    let first = own(&store, &claim_of("k-1")).await;
    store.purge(&scope(), all()).await.unwrap();
    let second = own(&store, &claim_of("k-1")).await;
    assert_eq!(first.attempt().number, second.attempt().number);
    let before = record(&store, "k-1").await;

    assert_eq!(store.renew(&first, LEASE).await.unwrap(), Fenced::Superseded);
    assert_eq!(store.complete(&first, &response(), retention()).await.unwrap(), Fenced::Superseded);
    let mut caller = place.connect();
    let transaction = caller.transaction_with_behavior(idem_sqlite::rusqlite::TransactionBehavior::Immediate).unwrap();
    let completion = idem_core::Completion::new(first, response(), retention());
    assert_eq!(store.complete_in(&transaction, &completion).unwrap(), Fenced::Superseded);
    transaction.commit().unwrap();
    assert_eq!(record(&store, "k-1").await, before);
}
