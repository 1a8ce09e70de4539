use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use idem_core::{
    Claim, Fingerprint, ManualClock, Owner, Retention, Token,
    machine::{self, Verdict},
};

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn records(limit: usize) -> (Records, ManualClock) {
    let clock = ManualClock::starting_at(Timestamp::from_millis(1_000_000));
    (Records::new(NonZeroUsize::new(limit).unwrap(), Clock::Manual(clock.clone())), clock)
}

fn scope() -> Scope {
    Scope::new("s").unwrap()
}

fn name(key: &str) -> String {
    super::name(&scope(), &Key::new(key).unwrap())
}

fn a_claim(key: &str, retention: Duration) -> Claim {
    let fingerprint = Fingerprint::builder().part("body", "x").build().unwrap();
    Claim::new(scope(), Key::new(key).unwrap(), Token::from_bytes([7; 16]), fingerprint)
        .with_lease(Duration::from_secs(1))
        .with_retention(Retention::new(retention).with_held(retention))
}

fn claim(records: &Records, key: &str, retention: Duration) -> Result<Outcome<Verdict>, StoreError> {
    let claim = a_claim(key, retention);
    records.decide("claim", &name(key), |found, now| Ok(machine::claim(found, &claim, now).unwrap()))
}

fn set_expiry(records: &Records, key: &str, at: i64) {
    let rule = |found: Option<&Record>, _| {
        let mut record = found.unwrap().clone();
        record.expiry = Timestamp::from_millis(at);
        Ok(Decision { answer: (), write: Some(record) })
    };
    records.decide("test", &name(key), rule).unwrap();
}

/// How many entries the expiry order holds, in all shards.
fn filed(records: &Records) -> usize {
    records.shards.iter().map(|shard| shard.lock().by_expiry.len()).sum()
}

fn room(records: &Records) -> usize {
    records.shards.iter().map(|shard| shard.lock().by_name.capacity()).sum()
}

// case 124
#[test]
fn expired_records_that_nobody_asks_for_again_leave_with_the_claims_of_new_ones() {
    let (records, clock) = records(1_000_000);
    for n in 0..200_000 {
        claim(&records, &format!("old-{n}"), MINUTE).unwrap();
    }
    assert_eq!(records.count(), 200_000);
    clock.advance(MINUTE);
    // Each new record takes two along, where its shard has them.
    for n in 0..210_000 {
        claim(&records, &format!("new-{n}"), MINUTE).unwrap();
    }
    assert_eq!((records.count(), filed(&records)), (210_000, 210_000));
}

// case 124
#[test]
fn a_sweep_frees_what_expired_with_the_room_that_it_took() {
    let (records, clock) = records(1_000_000);
    for n in 0..200_000 {
        claim(&records, &format!("old-{n}"), MINUTE).unwrap();
    }
    clock.advance(MINUTE - Duration::from_millis(1));
    assert_eq!(records.sweep(usize::MAX), 0, "they live for a millisecond yet");
    clock.advance(Duration::from_millis(1));
    assert_eq!(records.sweep(50_000), 50_000);
    assert_eq!(records.sweep(usize::MAX), 150_000);
    assert_eq!((records.count(), filed(&records)), (0, 0));
    assert!(room(&records) <= SHARDS * SMALL_MAP, "room for {} records is left", room(&records));
}

// case 025
#[test]
fn a_full_store_refuses_new_keys_and_evicts_nothing_that_lives() {
    let (records, clock) = records(3);
    for key in ["k1", "k2", "k3"] {
        claim(&records, key, MINUTE).unwrap();
    }
    let error = claim(&records, "k4", MINUTE).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("full") && error.to_string().contains("max_records"), "{error}");
    for key in ["k1", "k2", "k3"] {
        assert!(records.read("read", &name(key)).unwrap().0.is_some(), "{key}");
        claim(&records, key, MINUTE).unwrap();
    }
    clock.advance(MINUTE);
    claim(&records, "k4", MINUTE).unwrap();
    assert_eq!(records.count(), 1, "the three that expired made room");
}

#[test]
fn an_expired_record_makes_room_for_itself_in_a_full_store() {
    let (records, clock) = records(1);
    claim(&records, "k", MINUTE).unwrap();
    clock.advance(MINUTE);
    assert_eq!(claim(&records, "k", MINUTE).unwrap().answer, Verdict::Claimed);
    assert_eq!(records.count(), 1);
}

#[test]
fn the_expiry_order_holds_each_record_once_however_often_its_expiry_moves() {
    let (records, clock) = records(10);
    claim(&records, "k", MINUTE).unwrap();
    for step in 0..1_000 {
        set_expiry(&records, "k", 2_000_000 + step);
        set_expiry(&records, "k", 1_999_000 - step);
    }
    assert_eq!(filed(&records), 1);
    set_expiry(&records, "k", 3_000_000);
    clock.advance(Duration::from_secs(1_000));
    assert_eq!(records.sweep(usize::MAX), 0, "what was filed early is filed again, not removed");
    clock.advance(Duration::from_secs(1_000));
    assert_eq!((records.sweep(usize::MAX), filed(&records)), (1, 0));
}

#[test]
fn a_record_whose_expiry_moved_forward_in_time_leaves_at_its_new_expiry() {
    let (records, clock) = records(10);
    claim(&records, "k", 1_000 * MINUTE).unwrap();
    set_expiry(&records, "k", 1_000_001);
    clock.advance(Duration::from_millis(1));
    assert_eq!(records.sweep(usize::MAX), 1);
}

#[test]
fn a_purge_counts_live_records_of_its_scope_alone() {
    let (records, clock) = records(1_000);
    for n in 0..20 {
        claim(&records, &format!("dead-{n}"), MINUTE).unwrap();
    }
    clock.advance(MINUTE);
    for n in 0..5 {
        claim(&records, &format!("live-{n}"), MINUTE).unwrap();
    }
    assert_eq!(records.purge(&Scope::new("t").unwrap(), usize::MAX), 0);
    assert_eq!(records.purge(&scope(), 3), 3);
    assert_eq!(records.purge(&scope(), 3), 2);
    assert_eq!((records.count(), filed(&records)), (0, 0));
}

// case 052
#[test]
fn a_panic_under_the_lock_leaves_the_store_usable_and_the_record_as_it_was() {
    let (records, _) = records(10);
    let before = claim(&records, "k", MINUTE).unwrap().written;
    let panicking = |_: Option<&Record>, _: Timestamp| -> Result<Decision<()>, StoreError> { panic!("on purpose") };
    let caught = catch_unwind(AssertUnwindSafe(|| records.decide("test", &name("k"), panicking).map(|_| ())));
    assert!(caught.is_err());
    assert!(records.shard(&name("k")).entries.is_poisoned(), "the panic happened under the lock");
    assert_eq!(records.read("read", &name("k")).unwrap().0, before);
    let owner = Owner::nobody(scope(), Key::new("k").unwrap());
    records.decide("release", &name("k"), |found, now| Ok(machine::release(found, &owner, now))).unwrap();
}

#[test]
fn a_record_holds_on_to_no_buffer_that_its_parts_were_cut_from() {
    let (records, _) = records(10);
    let whole = Bytes::from(vec![b'x'; 1 << 20]);
    let rule = |_: Option<&Record>, now| {
        let claim = a_claim("k", MINUTE);
        let mut record = machine::claim(None, &claim, now).unwrap().write.unwrap();
        record.state = State::Done(idem_core::Response::new(200).with_body(whole.slice(..10)));
        Ok(Decision { answer: (), write: Some(record) })
    };
    drop(records.decide("test", &name("k"), rule).unwrap());
    assert!(whole.is_unique());
}

#[test]
fn names_are_told_apart_and_sorted_by_scope_then_key() {
    let names =
        [("a", "z"), ("a b", "a"), ("a\u{a0}", "a"), ("aa", "a"), ("ab", "a"), ("b", "a"), ("b", "aa"), ("b", "é")];
    let whole: Vec<_> =
        names.iter().map(|(scope, key)| super::name(&Scope::new(scope).unwrap(), &Key::new(key).unwrap())).collect();
    let mut by_parts = names;
    by_parts.sort_unstable();
    let mut sorted = whole.clone();
    sorted.sort_unstable();
    assert_eq!(sorted.iter().map(|name| parts(name)).collect::<Vec<_>>(), by_parts);
    assert_eq!(whole.iter().map(|name| parts(name)).collect::<Vec<_>>(), names);
}
