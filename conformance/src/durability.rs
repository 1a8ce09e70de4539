//! Durability: what was answered is there through every handle, and after a restart.

use std::time::Duration;

use idem_core::{Checkpoint, Claim, OnLapse, Record, Response, Retention};

use crate::{
    Harness,
    agreement::differences,
    expect::{claimed, conflict, ok, present, replayed, superseded, taken_over, unknown, written},
    world::{World, key, scope},
};

/// Every write is seen at once through another handle, to the field.
// case 091
pub async fn what_one_handle_wrote_another_sees_at_once(harness: &Harness) {
    let world = World::new(harness).await;
    let other = world.open().await;
    for (claim, expected) in write_one_of_each(&world).await {
        let seen = present(other.read(claim.scope(), claim.key()).await, "Another handle must see the record");
        assert_eq!(seen, expected, "Another handle must see it as it is: {}", differences(&expected, &seen));
    }
    let retry = |name: &str| world.claim(&scope("tenant"), &key(name));
    conflict(idem_core::claim(&*other, &retry("in progress")).await, "In progress must be Conflict to another handle");
    replayed(idem_core::claim(&*other, &retry("done")).await, "Done must be Replay to another handle");
    unknown(idem_core::claim(&*other, &retry("held")).await, "Held must be Unknown to another handle");
    let next =
        claimed(idem_core::claim(&*other, &retry("released")).await, "Released must be Claimed by another handle");
    let kept = next.checkpoints().find("charge");
    assert_eq!(kept, Some(&"ch_1".into()), "Another handle must see the checkpoints");
    let completed = world.store().complete(next.owner(), &Response::new(200), Retention::default()).await;
    written(completed, "An attempt must be able to complete through another handle than the one it claimed through");
}

/// Dropping one handle takes nothing from the others.
pub async fn a_handle_that_is_dropped_takes_nothing_from_the_others(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let handle = world.open().await;
    let grant = claimed(
        idem_core::claim(&*handle, &world.claim(&tenant, &key)).await,
        "A claim of an unused key must be Claimed",
    );
    drop(handle);
    conflict(
        world.ask(&world.claim(&tenant, &key)).await,
        "A record must be Conflict after the handle that claimed it was dropped",
    );
    let completed = world.store().complete(grant.owner(), &Response::new(200), Retention::default()).await;
    written(completed, "An attempt must be able to complete after the handle that claimed for it was dropped");
}

/// Whatever was answered before all handles were dropped is there when the place is opened again: a record in every
/// state, to the field.
pub async fn what_was_answered_is_there_after_a_restart(harness: &Harness) {
    if !harness.is_durable() {
        return harness.notes().note_not_claimed(
            "what_was_answered_is_there_after_a_restart",
            crate::harness::DURABLE,
            "durable",
        );
    }
    let mut world = World::new(harness).await;
    let records = write_one_of_each(&world).await;
    world.reopen().await;
    for (claim, expected) in records {
        let rule = format!("A record {:?} must be there after a restart", claim.key());
        let found = present(world.store().read(claim.scope(), claim.key()).await, &rule);
        assert_eq!(found, expected, "{rule} as it was: {}", differences(&expected, &found));
    }
    let retry = |name: &str| world.claim(&scope("tenant"), &key(name));
    replayed(world.ask(&retry("done")).await, "After a restart a done record must be Replay");
    unknown(world.ask(&retry("held")).await, "After a restart a held record must be Unknown");
    let next = claimed(world.ask(&retry("released")).await, "After a restart a released record must be Claimed");
    assert_eq!(next.number(), 2, "After a restart numbers must count on");
}

/// Each single write is durable by the time it is answered: a restart right after it does not undo it.
pub async fn a_restart_right_after_an_answer_undoes_nothing(harness: &Harness) {
    if !harness.is_durable() {
        return harness.notes().note_not_claimed(
            "a_restart_right_after_an_answer_undoes_nothing",
            crate::harness::DURABLE,
            "durable",
        );
    }
    let mut world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let claim = world.claim(&tenant, &key);
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    world.reopen().await;
    conflict(world.ask(&world.claim(&tenant, &key)).await, "A restart must not undo a claim");
    let again = claimed(world.ask(&claim).await, "A claim must be repeatable over a restart");
    assert_eq!(again.owner(), grant.owner(), "A claim repeated over a restart must be the same attempt");

    written(world.store().renew(grant.owner(), Duration::from_secs(500)).await, "A renewal must be Written");
    let renewed = present(world.store().read(&tenant, &key).await, "A renewed record must be there");
    world.reopen().await;
    let found = present(world.store().read(&tenant, &key).await, "A restart must not undo a claim");
    assert_eq!(found, renewed, "A restart must not undo a renewal: {}", differences(&renewed, &found));

    let charge = Checkpoint::new("charge", "ch_1").expect("a valid name");
    written(world.store().checkpoint(grant.owner(), &charge).await, "A checkpoint by the owner must be Written");
    world.reopen().await;
    let found = present(world.store().read(&tenant, &key).await, "A restart must not undo a claim");
    assert_eq!(found.checkpoints.find("charge"), Some(&"ch_1".into()), "A restart must not undo a checkpoint");

    written(world.store().release(grant.owner()).await, "A release by the owner must be Written");
    world.reopen().await;
    let second = claimed(world.ask(&world.claim(&tenant, &key)).await, "A restart must not undo a release");
    assert_eq!(second.number(), 2, "Numbers must count on over a restart");
    world.reopen().await;
    let stale = world.store().complete(grant.owner(), &Response::new(500), Retention::default()).await;
    superseded(stale, "An attempt that was released must be Superseded over a restart");

    written(world.store().hold(second.owner(), Retention::default()).await, "A hold by the owner must be Written");
    world.reopen().await;
    unknown(world.ask(&world.claim(&tenant, &key)).await, "A restart must not undo a hold");
    let resolve = world.resolve(&second);
    let third = idem_core::resolve(&**world.store(), &resolve).await;
    let third = written(third, "A resolve of a held record must be Written");
    world.reopen().await;

    let response = Response::new(201).with_body("done");
    let completed = world.store().complete(third.owner(), &response, Retention::default()).await;
    written(completed, "A restart must not undo a resolve");
    world.reopen().await;
    let replay = replayed(world.ask(&world.claim(&tenant, &key)).await, "A restart must not undo a completion");
    assert_eq!(replay, response, "A replay after a restart must be the recorded response");

    let limit = std::num::NonZeroUsize::MIN;
    assert_eq!(ok(world.store().purge(&tenant, limit).await), 1, "A purge must say how many records it removed");
    world.reopen().await;
    claimed(world.ask(&world.claim(&tenant, &key)).await, "A restart must not undo a purge");
}

/// A lease goes on over a restart: Conflict until it ends, taken over from then on.
// case 041
pub async fn a_lease_goes_on_over_a_restart(harness: &Harness) {
    if !harness.is_durable() {
        return harness.notes().note_not_claimed("a_lease_goes_on_over_a_restart", crate::harness::DURABLE, "durable");
    }
    let mut world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let claim = world.claim(&tenant, &key).with_lease(world.lease());
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    world.reopen().await;
    let early = world.ask(&world.claim(&tenant, &key)).await;
    if world.is_before(grant.lease_end()).await {
        conflict(early, "A lease must be live after a restart");
    }
    world.advance_to(grant.lease_end()).await;
    let late = world.ask(&world.claim(&tenant, &key)).await;
    let second = taken_over(late, "A lease must lapse after a restart when it would have without");
    assert_eq!(second.number(), 2, "Numbers must count on over a restart");
}

/// One record in each state, named as the state, and as it is now.
async fn write_one_of_each(world: &World<'_>) -> Vec<(Claim, Record)> {
    let mut records = Vec::new();
    let store = world.store();
    for name in ["in progress", "renewed under hold", "released", "forgotten", "held", "resolved", "done"] {
        let claim = world.claim(&scope("tenant"), &key(name));
        let claim = match name {
            "renewed under hold" => claim.with_on_lapse(OnLapse::Hold),
            _ => claim,
        };
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        let owner = grant.owner();
        let charge = Checkpoint::new("charge", "ch_1").expect("a valid name");
        if name != "forgotten" {
            written(store.checkpoint(owner, &charge).await, "A checkpoint by the owner must be Written");
        }
        let rule = "A write by the owner must be Written";
        match name {
            "renewed under hold" => written(store.renew(owner, Duration::from_secs(77)).await, rule),
            "released" => written(store.release(owner).await, rule),
            "forgotten" => written(store.forget(owner).await, rule),
            "held" | "resolved" => written(store.hold(owner, Retention::default()).await, rule),
            "done" => {
                let response = Response::new(201).with_header("a", &b"\xff"[..]).with_body(&b"\0\xff"[..]);
                written(store.complete(owner, &response, Retention::default()).await, rule);
            }
            _ => {}
        }
        if name == "resolved" {
            written(store.resolve(&world.resolve(&grant)).await, "A resolve of a held record must be Written");
        }
        let record = present(store.read(claim.scope(), claim.key()).await, "The record must be there");
        records.push((claim, record));
    }
    records
}
