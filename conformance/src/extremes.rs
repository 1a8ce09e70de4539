//! Extremes: numbers, lengths and counts that are larger than what one meets in a first test.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use idem_core::{
    Answer, Body, Checkpoint, Checkpointed, Claim, Fenced, Fingerprint, Key, Response, Retention, Scope, State, Token,
};

use crate::{
    Harness,
    concurrency::value,
    expect::{claimed, conflict, ok, present, replayed, taken_over, written},
    fidelity::assert_replayed,
    world::{World, key, scope},
};

/// How many attempts one record has.
const ATTEMPTS: u32 = 300;
/// How many records one scope has.
const RECORDS: usize = 1_200;

/// Attempts are counted past what a byte holds, and so are lapses.
pub async fn numbers_and_lapses_are_counted_past_255(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, released, lapsed) = (scope("tenant"), key("released"), key("lapsed"));
    let first = claimed(world.ask(&world.claim(&tenant, &released)).await, "A claim of an unused key must be Claimed");
    let mut last = first;
    for number in 2..=ATTEMPTS {
        written(world.store().release(last.owner()).await, "A release by the owner must be Written");
        last = claimed(world.ask(&world.claim(&tenant, &released)).await, "A released record must be Claimed");
        assert_eq!(last.number(), number, "Attempts must be counted one by one");
    }
    let done = world.store().complete(last.owner(), &Response::new(200), Retention::default()).await;
    written(done, "A completion by the owner must be Written");

    if harness.waits() {
        return; // so many leases in real time take too long
    }
    let short = |claim: Claim| claim.with_lease(Duration::from_millis(1));
    let claim = short(world.claim(&tenant, &lapsed));
    let mut last = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    for number in 2..=ATTEMPTS {
        world.advance_to(last.lease_end()).await;
        let claim = short(world.claim(&tenant, &lapsed));
        last = taken_over(world.ask(&claim).await, "A lapsed record must be TakenOver");
        assert_eq!(last.number(), number, "Attempts must be counted one by one");
    }
    let record = present(world.store().read(&tenant, &lapsed).await, "The record must be there");
    assert_eq!(record.lapses, ATTEMPTS - 1, "Lapses must be counted one by one");
}

/// A lease of nothing has lapsed at once. Retentions of more than 49 days, of centuries and of all time keep the record for
/// as long as the store can count, and never for less.
// case 017
pub async fn no_time_at_all_and_all_time_are_durations(harness: &Harness) {
    let world = World::new(harness).await;
    let tenant = scope("tenant");
    let claim = world.claim(&tenant, &key("none")).with_lease(Duration::ZERO);
    claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    let now = world.now().await;
    world.advance_to(now).await; // by what the clock may be off
    let next = world.ask(&world.claim(&tenant, claim.key())).await;
    taken_over(next, "A record whose lease is of no time must be TakenOver at once");

    let day = Duration::from_secs(24 * 60 * 60);
    let century = 100 * 365 * day;
    let lengths = [("60 days", 60 * day), ("400 days", 400 * day), ("300 years", 3 * century), ("ever", Duration::MAX)];
    for (name, keep) in lengths {
        // What is longer than time can be counted is kept to its end.
        let least = keep.min(9 * century);
        let is_kept = |kept: Duration| if keep == least { kept == keep } else { kept >= least };
        let retention = Retention::new(keep).with_held(keep);
        let claim = world.claim(&tenant, &key(name)).with_retention(retention);
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        let record = present(world.store().read(&tenant, &key(name)).await, "A claimed record must be there");
        let kept = record.expiry.since(record.claimed);
        assert!(is_kept(kept), "A record must be kept for {name}; this one is for {kept:?}");
        let completed = world.store().complete(grant.owner(), &Response::new(200), retention).await;
        written(completed, "A completion by the owner must be Written");
        let done = present(world.store().read(&tenant, &key(name)).await, "A done record must be there");
        let kept = done.settled.map(|settled| done.expiry.since(settled)).unwrap_or_default();
        assert!(is_kept(kept), "A done record must be kept for {name}; this one is for {kept:?}");
        replayed(world.ask(&world.claim(&tenant, &key(name))).await, "A record that is kept for long must be Replay");
    }
}

/// Responses with a hundred headers, long values, headers as well as trailers, and large bodies of every kind are replayed
/// whole.
// cases 036, 080, 125
pub async fn a_response_of_many_and_long_parts_is_replayed_whole(harness: &Harness) {
    let mut many = Response::new(200).with_body("body").with_trailer("grpc-status", "0");
    for number in 0..100 {
        many = many.with_header(format!("x-{number}"), format!("{number}"));
    }
    assert_replayed(harness, many.with_header(&b"x-\xff\xfe"[..], "a name of bytes")).await;
    let long = Response::new(200).with_header("x-long", "v".repeat(20_000)).with_trailer("t-long", "t".repeat(20_000));
    assert_replayed(harness, long).await;
    let large = vec![0xfe; 3 << 20];
    assert_replayed(harness, Response::new(200).with_body(large.clone())).await;
    let sealed = Body::Sealed { key_id: "2026-11".into(), bytes: large.into() };
    assert_replayed(harness, Response::new(200).with_kept(sealed)).await;
}

/// Fifty checkpoints whose names are long, and differ in case or by a space at the end, are all kept, in their order.
pub async fn many_checkpoints_of_names_that_are_alike_are_all_kept(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let grant = claimed(world.ask(&world.claim(&tenant, &key)).await, "A claim of an unused key must be Claimed");
    let long = "n".repeat(100);
    let mut names: Vec<String> = (0..44).map(|number| format!("step {number}")).collect();
    names.extend([format!("{long}a"), format!("{long}b"), "Case".into(), "case".into(), "end".into(), "end ".into()]);
    for (number, name) in names.iter().enumerate() {
        let Ok(note) = Checkpoint::new(name, format!("v{number}")) else { continue };
        let kept = written(world.store().checkpoint(grant.owner(), &note).await, "A checkpoint must be Written");
        assert_eq!(kept, Checkpointed::Kept(format!("v{number}").into()), "{name:?} must be kept as a name of its own");
    }
    let record = present(world.store().read(&tenant, &key).await, "The record must be there");
    let found: Vec<_> = record.checkpoints.iter().map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
    let made = names.iter().enumerate().filter(|(_, name)| Checkpoint::new(name, "").is_ok());
    let made: Vec<_> = made.map(|(number, name)| (name.clone(), format!("v{number}").into_bytes())).collect();
    assert_eq!(found, made, "Every checkpoint must be kept, in the order in which they were made");
}

/// Tokens that differ in one byte are two tokens, wherever that byte is, and whatever is before it.
pub async fn tokens_that_differ_in_one_byte_are_two(harness: &Harness) {
    let world = World::new(harness).await;
    let tenant = scope("tenant");
    for place in [0, 1, 3, 4, 7, 8, 11, 15] {
        for filled in [0_u8, 7, 0xff] {
            let key = key(&format!("{place}-{filled}"));
            let token = |byte: u8| {
                let mut bytes = [filled; 16];
                bytes[place] = byte;
                bytes[(place + 5) % 16] = 0x42; // never a token of nothing
                Token::from_bytes(bytes)
            };
            let claim =
                |byte| Claim::new(tenant.clone(), key.clone(), token(byte), crate::world::fingerprint("request"));
            claimed(world.ask(&claim(1)).await, "A claim of an unused key must be Claimed");
            let rule = "A claim under a token that differs in one byte is a rival's, and must be Conflict";
            conflict(world.ask(&claim(2)).await, rule);
            let again = world.ask(&claim(1)).await;
            claimed(again, "A claim repeated under its token must be Claimed again, whatever bytes the token has");
        }
    }
}

/// A fingerprint of as many parts as there can be is found again.
pub async fn a_fingerprint_of_many_parts_is_found_again(harness: &Harness) {
    let world = World::new(harness).await;
    let mut parts = Fingerprint::builder();
    let names: Vec<String> = (0..30).map(|number| format!("a part with a long name, number {number}")).collect();
    for name in &names {
        parts = parts.part(name, name);
    }
    // A store need not keep what cannot be made.
    let Ok(fingerprint) = parts.build() else { return };
    let claim = |token| Claim::new(scope("tenant"), key("k"), token, fingerprint.clone());
    claimed(world.ask(&claim(world.token())).await, "A claim of an unused key must be Claimed");
    conflict(world.ask(&claim(world.token())).await, "The same request must be Conflict, however many parts it has");
}

/// A scope of many records keeps them all, lists them all and gives them all up: no limit but the caller's counts.
// case 123
pub async fn a_scope_of_many_records_keeps_lists_and_purges_them_all(harness: &Harness) {
    let world = World::new(harness).await;
    let tenant = scope("tenant");
    let mut end = world.now().await;
    let claims: Vec<Claim> = (0..RECORDS)
        .map(|number| {
            let claim = world.claim(&tenant, &key(&format!("k-{number:05}")));
            // The first half waits for someone afterwards.
            if number < RECORDS / 2 {
                claim.with_lease(world.lease())
            } else {
                claim.with_lease(Duration::from_secs(9_000))
            }
        })
        .collect();
    let tasks: Vec<_> = claims
        .chunks(100)
        .map(|claims| (claims.to_vec(), Arc::clone(world.store())))
        .map(|(claims, store)| {
            tokio::spawn(async move {
                let mut ends = Vec::new();
                for claim in claims {
                    let rule = "A claim of an unused key must be Claimed";
                    let grant = claimed(idem_core::claim(&*store, &claim).await, rule);
                    ends.push((claim, grant.lease_end()));
                }
                ends
            })
        })
        .collect();
    for task in tasks {
        for (claim, lease_end) in value(task.await) {
            if claim.lease() == world.lease() {
                end = end.max(lease_end);
            }
        }
    }
    for claim in claims.iter().step_by(100) {
        present(world.store().read(&tenant, claim.key()).await, "A record must stay, however many come after it");
    }
    world.advance_to(end).await;
    let listed = ok(world.store().lapsed(None, NonZeroUsize::MIN.saturating_add(499)).await);
    assert_eq!(listed.len(), 500, "A page must be as long as was asked for, while there are more: of {}", RECORDS / 2);
    let listed = ok(world.store().lapsed(None, NonZeroUsize::MAX).await);
    assert_eq!(listed.len(), RECORDS / 2, "All records that wait for someone must be listed");
    let limit = NonZeroUsize::MIN.saturating_add(999);
    let rule = "A purge must remove as many records as it was allowed to, while there are more";
    assert_eq!(ok(world.store().purge(&tenant, limit).await), 1_000, "{rule}");
    let rule = "A purge must remove all that is left, if it was allowed to";
    assert_eq!(ok(world.store().purge(&tenant, limit).await), RECORDS - 1_000, "{rule}");
    assert_eq!(ok(world.store().purge(&tenant, limit).await), 0, "After a purge below its limit nothing must be left");
}

/// A sweep removes as many records as it was allowed to, while there are more. (Where it removes nothing, the database does.)
// case 123
pub async fn a_sweep_of_many_records_stops_at_its_limit_alone(harness: &Harness) {
    const EXPIRED: usize = 350;
    let world = World::new(harness).await;
    let tenant = scope("tenant");
    let mut end = world.now().await;
    for number in 0..EXPIRED {
        let claim = world.short_claim(&tenant, &key(&format!("k-{number}")));
        claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        end = end.max(world.latest_now().await.after(world.retention().standard()));
    }
    world.advance_to(end).await;
    let limit = NonZeroUsize::MIN.saturating_add(299);
    let swept = ok(world.store().sweep(limit).await);
    if swept == 0 {
        let check = "a_sweep_of_many_records_stops_at_its_limit_alone";
        return harness.notes().note_not_seen(check, "a sweep that removes what has expired");
    }
    assert_eq!(swept, limit.get(), "A sweep must remove as many records as it was allowed to, while there are more");
    assert_eq!(ok(world.store().sweep(limit).await), EXPIRED - limit.get(), "A sweep must remove what is left");
}

/// A handle that is opened later changes nothing of what is there, and neither does the start-up check.
pub async fn opening_a_handle_and_checking_change_no_record(harness: &Harness) {
    let world = World::new(harness).await;
    let tenant = scope("tenant");
    let mut before = Vec::new();
    for state in ["in progress", "released", "held", "done"] {
        let grant =
            claimed(world.ask(&world.claim(&tenant, &key(state))).await, "A claim of an unused key must be Claimed");
        let (store, rule) = (world.store(), "A write by the owner must be Written");
        match state {
            "released" => written(store.release(grant.owner()).await, rule),
            "held" => written(store.hold(grant.owner(), Retention::default()).await, rule),
            "done" => {
                drop(written(store.complete(grant.owner(), &Response::new(200), Retention::default()).await, rule));
            }
            _ => {}
        }
        before.push((state, present(store.read(&tenant, &key(state)).await, "The record must be there")));
    }
    let other = world.open().await;
    if let Err(error) = other.check().await {
        panic!("A store that is sound must pass its own check; it said: {error}");
    }
    for (state, record) in before {
        let after = present(other.read(&tenant, &key(state)).await, "A record must outlive another opening");
        assert_eq!(after, record, "Opening a handle, or its check, must change no record; this one was {state}");
    }
    let in_progress = other.read(&tenant, &key("in progress")).await;
    assert_eq!(present(in_progress, "The record must be there").state, State::InProgress);
    for probe in [Scope::global(), tenant] {
        let expected = if probe == Scope::global() { 0 } else { 4 };
        let removed = ok(other.purge(&probe, NonZeroUsize::MAX).await);
        assert_eq!(removed, expected, "A check must leave no record of its own in {probe:?}");
    }
    let listed = ok(other.lapsed(None, NonZeroUsize::MAX).await);
    assert!(listed.is_empty(), "A check must leave no record of its own: {listed:?}");
}

/// A sweep that meets claims of the records that it removes leaves what is claimed: whoever was told that it owns a key
/// finds its record.
pub async fn a_sweep_that_meets_claims_of_expired_records_leaves_what_is_claimed(harness: &Harness) {
    const ROUNDS: usize = 6;
    const EXPIRED: usize = 300;
    let world = World::new(harness).await;
    let sweeper = world.open().await;
    for round in 0..ROUNDS {
        let tenant = scope(&format!("tenant-{round}"));
        let keys: Vec<Key> = (0..EXPIRED).map(|number| key(&format!("k-{number:05}"))).collect();
        let mut end = world.now().await;
        for key in &keys {
            claimed(world.ask(&world.short_claim(&tenant, key)).await, "A claim of an unused key must be Claimed");
            end = end.max(world.latest_now().await.after(world.retention().standard()));
        }
        world.advance_to(end).await;
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (over, sweeping) = (Arc::clone(&is_over), Arc::clone(&sweeper));
        let sweeping = tokio::spawn(async move {
            while !over.load(std::sync::atomic::Ordering::SeqCst) {
                ok(sweeping.sweep(NonZeroUsize::MIN.saturating_add(2)).await);
                tokio::task::yield_now().await;
            }
        });
        let claims: Vec<Claim> = keys.iter().map(|key| world.claim(&tenant, key)).collect();
        let store = Arc::clone(world.store());
        let claiming = tokio::spawn(async move {
            let mut grants = Vec::new();
            for claim in &claims {
                let rule = "A claim on an expired record must be Claimed";
                grants.push(claimed(idem_core::claim(&*store, claim).await, rule));
            }
            grants
        });
        let grants = value(claiming.await);
        is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        value(sweeping.await);
        for grant in grants {
            let owner = grant.owner();
            let rule = "A sweep must not remove a record that was claimed anew since it looked";
            let record = present(world.store().read(owner.scope(), owner.key()).await, rule);
            assert_eq!(record.attempt(), owner.attempt(), "{rule}");
            match ok(world.ask(&world.claim(owner.scope(), owner.key())).await) {
                Answer::Conflict { .. } => {}
                other => panic!("{rule}: a rival must be Conflict; the store answered {other:?}"),
            }
            let fenced = ok(world.store().complete(owner, &Response::new(201), Retention::default()).await);
            assert!(matches!(fenced, Fenced::Written(_)), "{rule}: its owner must be able to complete");
        }
    }
}
