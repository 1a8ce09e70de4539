//! Fencing: only the attempt that owns a record writes to it.

use std::time::Duration;

use idem_core::{
    Checkpoint, Fenced, Grant, OnLapse, Origin, Owner, Record, Response, Retention, State, Store, StoreError,
};

use crate::{
    Harness,
    agreement::differences,
    expect::{absent, claimed, conflict, ok, present, replayed, superseded, taken_over, unknown, written},
    world::{World, key, scope},
};

/// An attempt that wakes up after it lost its key can do nothing to the record: not complete it, not renew, release,
/// forget, hold, nor leave a checkpoint, neither while its successor runs nor after.
// cases 001, 021, 022
pub async fn an_attempt_that_lost_its_key_changes_nothing(harness: &Harness) {
    let world = World::new(harness).await;
    let (old, new) = zombie(&world).await;
    let (tenant, key) = (old.owner().scope(), old.owner().key());
    assert_untouched_by(&world, old.owner()).await;
    conflict(
        world.ask(&world.claim(tenant, key)).await,
        "A third claim must be Conflict: the attempt that lost the key must not have freed it",
    );
    let completed =
        world.store().complete(new.owner(), &Response::new(201).with_body("R2"), Retention::default()).await;
    written(completed, "A completion by the owner must be Written");
    assert_untouched_by(&world, old.owner()).await;
    let replay = replayed(world.ask(&world.claim(tenant, key)).await, "A claim of a done record must be Replay");
    assert_eq!(replay, Response::new(201).with_body("R2"), "The replay must be what the owner completed with");
}

/// The same after the successor gave the record back, or left it held.
pub async fn an_attempt_that_lost_its_key_changes_nothing_after_its_successor_ended(harness: &Harness) {
    let world = World::new(harness).await;
    for ends_held in [false, true] {
        let (old, new) = zombie(&world).await;
        let ended = match ends_held {
            true => world.store().hold(new.owner(), Retention::default()).await,
            false => world.store().release(new.owner()).await,
        };
        written(ended, "An attempt must be able to end");
        assert_untouched_by(&world, old.owner()).await;
    }
}

/// The token alone names no attempt: where one token comes back under another number (a resolver used it again), the
/// writes of the old number are Superseded.
pub async fn a_write_with_the_right_token_and_an_old_number_is_superseded(harness: &Harness) {
    let world = World::new(harness).await;
    let claim = world.claim(&scope("tenant"), &key("k"));
    let old = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    written(world.store().hold(old.owner(), Retention::default()).await, "A hold by the owner must be Written");
    let owner = old.owner();
    let resolve = idem_core::Resolve::new(owner.scope().clone(), owner.key().clone(), owner.attempt(), claim.token());
    let new = written(
        idem_core::resolve(&**world.store(), &resolve).await,
        "A resolve of a held record must be Written, under any token",
    );
    assert_eq!(new.number(), 2, "A resolver must be the next attempt");
    assert_untouched_by(&world, old.owner()).await;
    let completed = world.store().complete(new.owner(), &Response::new(200), Retention::default()).await;
    written(completed, "A completion by the resolver must be Written");
    assert_untouched_by(&world, old.owner()).await;
}

/// A write that carries another token than the record has is Superseded, whatever the number.
pub async fn a_write_with_the_right_number_and_another_token_is_superseded(harness: &Harness) {
    let world = World::new(harness).await;
    // The stranger owns the same key of another place, as attempt 1 too.
    let elsewhere = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    claimed(world.ask(&world.claim(&tenant, &key)).await, "A claim of an unused key must be Claimed");
    let stranger = elsewhere.ask(&elsewhere.claim(&tenant, &key)).await;
    let stranger = claimed(stranger, "A claim of an unused key must be Claimed: two places share no records");
    assert_untouched_by(&world, stranger.owner()).await;
}

/// An attempt whose lease lapsed may still renew and complete while nobody took over.
pub async fn a_lapsed_attempt_that_nobody_took_over_may_still_write(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let claim = world.claim(&tenant, &key).with_lease(world.lease());
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    world.advance_to(grant.lease_end()).await;
    let charge = Checkpoint::new("charge", "ch_1").expect("a valid name");
    let kept = world.store().checkpoint(grant.owner(), &charge).await;
    written(kept, "A checkpoint by a lapsed attempt must be Written while nobody took over");
    let renewed = world.store().renew(grant.owner(), idem_core::DEFAULT_LEASE).await;
    written(renewed, "A renewal by a lapsed attempt must be Written while nobody took over");
    conflict(world.ask(&world.claim(&tenant, &key)).await, "A renewed record must be Conflict again");
    let again = world.claim(&tenant, &crate::world::key("k2")).with_lease(world.lease());
    let grant = claimed(world.ask(&again).await, "A claim of an unused key must be Claimed");
    world.advance_to(grant.lease_end()).await;
    let completed = world.store().complete(grant.owner(), &Response::new(200), Retention::default()).await;
    written(completed, "A completion by a lapsed attempt must be Written while nobody took over");
    replayed(world.ask(&world.claim(&tenant, again.key())).await, "A completed record must be Replay");
}

/// A completion whose reply was lost is repeated: it is answered with the recorded response, also when the repetition
/// brings another one.
// case 063
pub async fn a_repeated_completion_is_answered_with_the_response_that_is_recorded(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let grant = claimed(world.ask(&world.claim(&tenant, &key)).await, "A claim of an unused key must be Claimed");
    let recorded = Response::new(201).with_body("first");
    for response in [recorded.clone(), recorded.clone(), Response::new(500).with_body("second")] {
        let answer = world.store().complete(grant.owner(), &response, Retention::default()).await;
        let answer = written(answer, "A repeated completion by the same attempt must be Written");
        assert_eq!(answer, recorded, "A repeated completion must be answered with the response that is recorded");
    }
    let replay = replayed(world.ask(&world.claim(&tenant, &key)).await, "A completed record must be Replay");
    assert_eq!(replay, recorded, "A repeated completion must not change what is recorded");
}

/// The write that ended an attempt may be repeated and gets its answer again; every other write of that attempt is
/// Superseded.
pub async fn an_attempt_ends_once_and_only_the_write_that_ended_it_may_be_repeated(harness: &Harness) {
    let world = World::new(harness).await;
    for end in ["release", "forget", "hold", "complete"] {
        let claim = world.claim(&scope("tenant"), &key(end));
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        written(write(&**world.store(), end, grant.owner()).await, "A write that ends an attempt must be Written");
        let known = present(world.store().read(claim.scope(), claim.key()).await, "An ended record must be there");
        for again in WRITES {
            // A release and a forget end in the same state.
            let is_repeated =
                again == end || (["release", "forget"].contains(&again) && known.state == State::Released);
            let answer = write(&**world.store(), again, grant.owner()).await;
            match is_repeated {
                true => written(answer, "The write that ended an attempt must be answered again when it is repeated"),
                false => superseded(answer, &format!("After a {end} a {again} by the same attempt must be Superseded")),
            }
            let stored = present(world.store().read(claim.scope(), claim.key()).await, "An ended record must be there");
            assert_eq!(stored, known, "A {again} after a {end} must change nothing: {}", differences(&known, &stored));
        }
    }
}

/// Only a claim creates a record: whatever an attempt writes after its record expired, was swept, or was purged, is
/// Superseded and leaves none.
// case 003
pub async fn no_write_brings_a_record_back_that_expired_or_was_purged(harness: &Harness) {
    let world = World::new(harness).await;
    let tenant = scope("tenant");
    let rule = "A write must not bring back a record that is gone";
    let purged =
        claimed(world.ask(&world.claim(&tenant, &key("purged"))).await, "A claim of an unused key must be Claimed");
    let limit = std::num::NonZeroUsize::MIN.saturating_add(9);
    assert_eq!(ok(world.store().purge(&tenant, limit).await), 1, "A purge must say how many records it removed");
    absent(world.store().read(&tenant, &key("purged")).await, "A purged record must be absent");
    let expired = claimed(
        world.ask(&world.short_claim(&tenant, &key("expired"))).await,
        "A claim of an unused key must be Claimed",
    );
    let record = present(world.store().read(&tenant, &key("expired")).await, "A claimed record must be there");
    world.advance_to(record.expiry).await;
    for is_swept in [false, true] {
        if is_swept {
            ok(world.store().sweep(limit).await);
        }
        for owner in [purged.owner(), expired.owner()] {
            for name in WRITES {
                let rule = format!("A {name} on a record that is gone must be Superseded");
                superseded(write(&**world.store(), name, owner).await, &rule);
                absent(world.store().read(owner.scope(), owner.key()).await, rule.as_str());
            }
        }
    }
    for owner in [purged.owner(), expired.owner()] {
        let grant = claimed(world.ask(&world.claim(owner.scope(), owner.key())).await, rule);
        assert_eq!((grant.number(), grant.is_repeat()), (1, false), "A new record must begin with attempt 1");
    }
}

/// An attempt under hold that started and died is Unknown to everyone, a second and an hour after its lease ended, and
/// is never taken over.
// case 017
pub async fn an_attempt_under_hold_that_started_is_never_taken_over(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let under_hold = world.short_claim(&tenant, &key).with_on_lapse(OnLapse::Hold);
    let grant = claimed(world.ask(&under_hold).await, "A claim of an unused key must be Claimed");
    written(world.store().renew(grant.owner(), world.lease()).await, "A renewal by the owner must be Written");
    let record = present(world.store().read(&tenant, &key).await, "A claimed record must be there");
    assert!(record.started, "A renewal must mark the attempt as started");
    world.advance_to(record.lease_end).await;
    let waits = if harness.waits() { [world.lease() / 2; 2] } else { [1, 3600].map(Duration::from_secs) };
    for wait in waits {
        world.advance(wait).await;
        unknown(
            world.ask(&world.claim(&tenant, &key)).await,
            "A lapsed attempt under hold that started must be Unknown, never TakenOver",
        );
    }
    let stored = present(world.store().read(&tenant, &key).await, "A record under hold must outlive its lease");
    assert_eq!(stored, record, "An Unknown answer must change nothing: {}", differences(&record, &stored));
}

/// A held record goes to the resolver that saw its attempt, as the next attempt, with fingerprint and checkpoints; the
/// old attempt can do nothing from then on, and the resolver completes it like any attempt.
pub async fn a_held_record_goes_to_the_resolver_that_saw_its_attempt(harness: &Harness) {
    let world = World::new(harness).await;
    let claim = world.claim(&scope("tenant"), &key("k"));
    let old = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    let charge = Checkpoint::new("charge", "ch_1").expect("a valid name");
    written(world.store().checkpoint(old.owner(), &charge).await, "A checkpoint by the owner must be Written");
    written(world.store().hold(old.owner(), Retention::default()).await, "A hold by the owner must be Written");

    let resolve = world.resolve(&old);
    let rival = world.resolve(&old);
    let new =
        written(idem_core::resolve(&**world.store(), &resolve).await, "A resolve of a held record must be Written");
    assert_eq!((new.number(), new.origin(), new.is_repeat()), (2, Origin::Resolved, true));
    assert_eq!(new.checkpoints().find("charge"), Some(&"ch_1".into()), "A resolver must find the checkpoints");
    let record = present(world.store().read(claim.scope(), claim.key()).await, "A resolved record must be there");
    assert_eq!(record.fingerprint.as_ref(), Some(claim.fingerprint()), "A resolver must find the fingerprint");
    assert_eq!((record.on_lapse, record.started), (OnLapse::Hold, true), "A resolver must be under hold, and started");

    let again = idem_core::resolve(&**world.store(), &resolve).await;
    let again = written(again, "A resolve repeated under its token must be Written again");
    assert_eq!(again.owner(), new.owner(), "A repeated resolve must be the same attempt");
    superseded(
        idem_core::resolve(&**world.store(), &rival).await,
        "A resolve by someone else who saw the old attempt must be Superseded",
    );
    assert_untouched_by(&world, old.owner()).await;
    conflict(world.ask(&world.claim(claim.scope(), claim.key())).await, "A resolved record must be Conflict");
    let completed = world.store().complete(new.owner(), &Response::new(200), Retention::default()).await;
    written(completed, "A completion by the resolver must be Written");
    replayed(world.ask(&world.claim(claim.scope(), claim.key())).await, "A completed record must be Replay");
}

/// A lapsed record can be resolved too; one that is absent, live, released, done, or under another attempt can't be,
/// and is left as it is.
pub async fn only_a_held_or_lapsed_record_can_be_resolved(harness: &Harness) {
    let world = World::new(harness).await;
    let tenant = scope("tenant");
    let store = world.store();
    for state in ["live", "release", "complete", "another attempt"] {
        let claim = world.claim(&tenant, &key(state));
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        if ["release", "complete"].contains(&state) {
            written(write(&**store, state, grant.owner()).await, "A write that ends an attempt must be Written");
        }
        let mut seen = grant.owner().attempt();
        if state == "another attempt" {
            written(store.hold(grant.owner(), Retention::default()).await, "A hold by the owner must be Written");
            seen.number += 1;
        }
        let known = present(store.read(&tenant, claim.key()).await, "The record must be there");
        let resolve = idem_core::Resolve::new(tenant.clone(), claim.key().clone(), seen, world.token());
        let rule = format!(
            "A resolve of a record that is not held or lapsed under what was seen ({state}) must be Superseded"
        );
        superseded(store.resolve(&resolve).await, &rule);
        let stored = present(store.read(&tenant, claim.key()).await, "The record must be there");
        assert_eq!(stored, known, "{rule}, and change nothing: {}", differences(&known, &stored));
    }
    let absent_key = key("absent");
    let nobody = idem_core::AttemptId { token: world.token(), number: 1 };
    let resolve = idem_core::Resolve::new(tenant.clone(), absent_key.clone(), nobody, world.token());
    superseded(store.resolve(&resolve).await, "A resolve of an absent record must be Superseded");
    absent(store.read(&tenant, &absent_key).await, "A resolve must not create a record");

    let grant = claimed(
        world.ask(&world.claim(&tenant, &key("lapsed")).with_lease(world.lease())).await,
        "A claim of an unused key must be Claimed",
    );
    world.advance_to(grant.lease_end()).await;
    let resolved = idem_core::resolve(&**store, &world.resolve(&grant)).await;
    assert_eq!(written(resolved, "A resolve of a lapsed record must be Written").number(), 2);
    superseded(
        store.complete(grant.owner(), &Response::new(200), Retention::default()).await,
        "A completion by the attempt that was resolved must be Superseded",
    );
}

const WRITES: [&str; 6] = ["complete", "release", "forget", "hold", "renew", "checkpoint"];

/// One write of an attempt, by name. What it gives beside Written does not matter here.
async fn write(store: &dyn Store, name: &str, owner: &Owner) -> Result<Fenced<()>, StoreError> {
    fn only<T>(answer: Fenced<T>) -> Fenced<()> {
        match answer {
            Fenced::Written(_) => Fenced::Written(()),
            Fenced::Superseded => Fenced::Superseded,
        }
    }
    match name {
        "complete" => {
            store.complete(owner, &Response::new(500).with_body("late"), Retention::default()).await.map(only)
        }
        "release" => store.release(owner).await,
        "forget" => store.forget(owner).await,
        "hold" => store.hold(owner, Retention::default()).await,
        "renew" => store.renew(owner, idem_core::DEFAULT_LEASE).await,
        _ => {
            let late = Checkpoint::new("late", "late").expect("a valid name");
            store.checkpoint(owner, &late).await.map(only)
        }
    }
}

/// Every write of `owner`, who owns nothing here (any more), is Superseded and changes nothing.
async fn assert_untouched_by(world: &World<'_>, owner: &Owner) {
    let store = world.store();
    let known: Record = present(store.read(owner.scope(), owner.key()).await, "The record must be there");
    for name in WRITES {
        let rule = format!("A {name} by an attempt that does not own the record must be Superseded");
        superseded(write(&**store, name, owner).await, &rule);
        let stored = present(store.read(owner.scope(), owner.key()).await, "The record must be there");
        assert_eq!(stored, known, "{rule}, and change nothing: {}", differences(&known, &stored));
    }
}

/// An attempt that lapsed, and the one that took its record over.
async fn zombie(world: &World<'_>) -> (Grant, Grant) {
    let token = world.token();
    let name = format!("k-{:02x?}", token.as_bytes());
    let claim = world.claim(&scope("tenant"), &key(&name)).with_lease(world.lease());
    let old = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    world.advance_to(old.lease_end()).await;
    let new = taken_over(
        world.ask(&world.claim(claim.scope(), claim.key())).await,
        "A claim of a lapsed record must be TakenOver",
    );
    assert_eq!((new.number(), new.is_repeat()), (2, true), "A takeover must be attempt 2, and a repeat");
    (old, new)
}
