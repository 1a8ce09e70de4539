//! Cancellation: a call that is dropped at any point has happened or not, and leaves nothing taken.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use idem_core::{Checkpoint, Response, Retention, State, Store};

use crate::{
    Harness,
    expect::{claimed, ok, present, replayed, superseded, taken_over, written},
    faulty::drop_after,
    world::{World, key, scope},
};

/// At most so many polls are granted to a call before it is dropped; most end much earlier.
const POLLS: usize = 24;

/// A claim that is dropped after any number of polls has happened or not: repeated with its token it is Claimed as
/// attempt 1, and other keys are claimed and seen as if nothing had been.
// case 048
pub async fn a_dropped_claim_has_happened_or_not_and_is_found_by_its_token(harness: &Harness) {
    let world = World::new(harness).await;
    let other = world.open().await;
    let tenant = scope("tenant");
    for polls in 0..POLLS {
        let claim = world.claim(&tenant, &key(&format!("k-{polls}")));
        let ended = drop_after(polls, idem_core::claim(&**world.store(), &claim)).await.is_some();
        bystander(&world, &*other, &format!("bystander-{polls}")).await;
        if let Some(snapshot) = ok(other.read(&tenant, claim.key()).await) {
            assert_eq!(snapshot.record.token, claim.token(), "A dropped claim must leave its own record or none");
            assert_eq!((snapshot.record.number, snapshot.record.state), (1, State::InProgress));
        }
        let again = claimed(world.ask(&claim).await, "A dropped claim repeated with its token must be Claimed");
        assert_eq!((again.number(), again.is_repeat()), (1, false), "A repeated claim must be the same attempt");
        let completed = other.complete(again.owner(), &Response::new(201), Retention::default()).await;
        written(completed, "An attempt whose claim was dropped once must be able to complete");
        if ended {
            return;
        }
    }
}

/// A takeover that is dropped has happened or not, and counts once.
pub async fn a_dropped_takeover_has_happened_or_not_and_counts_once(harness: &Harness) {
    let world = World::new(harness).await;
    let other = world.open().await;
    let tenant = scope("tenant");
    let mut end = world.now().await;
    for polls in 0..POLLS {
        let claim = world.claim(&tenant, &key(&format!("k-{polls}"))).with_lease(world.lease());
        end = end.max(claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed").lease_end());
    }
    world.advance_to(end).await;
    for polls in 0..POLLS {
        let claim = world.claim(&tenant, &key(&format!("k-{polls}")));
        let ended = drop_after(polls, idem_core::claim(&**world.store(), &claim)).await.is_some();
        bystander(&world, &*other, &format!("bystander-{polls}")).await;
        let again = taken_over(world.ask(&claim).await, "A dropped takeover repeated must be TakenOver");
        assert_eq!(again.number(), 2, "A takeover that was dropped and repeated must count once");
        let record = present(other.read(&tenant, claim.key()).await, "A record that was taken over must be there");
        assert_eq!(record.lapses, 1, "A takeover that was dropped and repeated must count one lapse");
        if ended {
            return;
        }
    }
}

/// A write that is dropped has happened or not: repeated it is Written, the record is what the write makes of it, and
/// stays that also if the dropped call is applied later.
// cases 047, 063
pub async fn a_dropped_write_has_happened_or_not_and_can_be_repeated(harness: &Harness) {
    for write in ["complete", "release", "forget", "hold", "renew", "checkpoint", "resolve"] {
        let world = World::new(harness).await;
        let other = world.open().await;
        for polls in 0..POLLS {
            let claim = world.claim(&scope("tenant"), &key(&format!("k-{polls}")));
            let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
            if write == "resolve" {
                let held = world.store().hold(grant.owner(), Retention::default()).await;
                written(held, "A hold by the owner must be Written");
            }
            let resolve = world.resolve(&grant);
            let call = async |store: &dyn Store| {
                let rule = format!("A dropped {write} that is repeated must be Written");
                let owner = grant.owner();
                match write {
                    "complete" => {
                        let completed = store.complete(owner, &response(), Retention::default()).await;
                        assert_eq!(written(completed, &rule), response(), "It must give the recorded response");
                    }
                    "release" => written(store.release(owner).await, &rule),
                    "forget" => written(store.forget(owner).await, &rule),
                    "hold" => written(store.hold(owner, Retention::default()).await, &rule),
                    "renew" => written(store.renew(owner, Duration::from_secs(99)).await, &rule),
                    "checkpoint" => {
                        let charge = Checkpoint::new("charge", "ch_1").expect("a valid name");
                        written(store.checkpoint(owner, &charge).await, &rule);
                    }
                    _ => drop(written(store.resolve(&resolve).await, &rule)),
                }
            };
            let ended = drop_after(polls, call(&**world.store())).await.is_some();
            bystander(&world, &*other, &format!("bystander-{polls}")).await;
            call(&*other).await;
            let record = present(world.store().read(claim.scope(), claim.key()).await, "The record must be there");
            let rule = format!("The record must be what one {write} makes of it");
            match write {
                "complete" => assert_eq!(record.state, State::Done(response()), "{rule}"),
                "release" => assert_eq!((record.state, record.number), (State::Released, 1), "{rule}"),
                "forget" => assert_eq!((record.state, record.fingerprint), (State::Released, None), "{rule}"),
                "hold" => assert_eq!((record.state, record.number), (State::Held, 1), "{rule}"),
                "renew" => assert_eq!((record.state, record.started), (State::InProgress, true), "{rule}"),
                "checkpoint" => assert_eq!(record.checkpoints.iter().count(), 1, "{rule}"),
                _ => assert_eq!((record.number, record.token), (2, resolve.token()), "{rule}"),
            }
            if ended {
                break;
            }
        }
    }
}

/// A read, wait, sweep, purge or listing that is dropped leaves the store as usable as before.
pub async fn a_dropped_look_leaves_nothing_behind(harness: &Harness) {
    let world = World::new(harness).await;
    let other = world.open().await;
    let (tenant, elsewhere) = (scope("tenant"), scope("elsewhere"));
    let grant = claimed(world.ask(&world.claim(&tenant, &key("k"))).await, "A claim of an unused key must be Claimed");
    let seen = grant.owner().attempt();
    for look in ["read", "wait", "sweep", "lapsed", "purge", "check"] {
        for polls in 0..POLLS {
            let store = world.store();
            let call = async {
                match look {
                    "read" => drop(ok(store.read(&tenant, &key("k")).await)),
                    "wait" => drop(ok(store.wait(&tenant, &key("k"), seen, Duration::from_millis(5)).await)),
                    "sweep" => drop(ok(store.sweep(NonZeroUsize::MIN).await)),
                    "lapsed" => drop(ok(store.lapsed(None, NonZeroUsize::MIN).await)),
                    "purge" => drop(ok(store.purge(&elsewhere, NonZeroUsize::MIN).await)),
                    _ => ok(store.check().await),
                }
            };
            let ended = drop_after(polls, call).await.is_some();
            bystander(&world, &*other, &format!("bystander-{look}-{polls}")).await;
            if ended {
                break;
            }
        }
    }
    let completed = other.complete(grant.owner(), &response(), Retention::default()).await;
    written(completed, "A completion by the owner must be Written");
}

/// Many calls dropped at once, in the middle of other calls, disturb none of these: each is answered, and right.
// case 048
pub async fn calls_that_are_dropped_disturb_no_other_call(harness: &Harness) {
    let world = World::new(harness).await;
    let other = world.open().await;
    let tenant = scope("tenant");
    let mut tasks = Vec::new();
    for number in 0..96 {
        let store = Arc::clone(if number % 2 == 0 { world.store() } else { &other });
        let claim = world.claim(&tenant, &key(&format!("k-{number}")));
        tasks.push(tokio::spawn(async move {
            if number % 3 != 0 {
                drop_after(number % 5, idem_core::claim(&*store, &claim)).await;
            }
            let grant = claimed(
                idem_core::claim(&*store, &claim).await,
                "A claim, dropped before or not, must be Claimed when it is made to the end",
            );
            assert_eq!(grant.number(), 1, "A dropped claim must not count as an attempt of its own");
            if number % 3 != 1 {
                drop_after(number % 7, store.complete(grant.owner(), &response(), Retention::default())).await;
            }
            let completed = store.complete(grant.owner(), &response(), Retention::default()).await;
            written(completed, "A completion, dropped before or not, must be Written when it is made to the end");
        }));
    }
    for task in tasks {
        if let Err(error) = task.await {
            std::panic::resume_unwind(error.into_panic());
        }
    }
    for number in 0..96 {
        let replay = world.ask(&world.claim(&tenant, &key(&format!("k-{number}")))).await;
        assert_eq!(replayed(replay, "A completed record must be Replay"), response());
    }
}

/// A release that is applied late, after the next attempt began, does not free the key of that attempt; nor does a
/// completion end it, nor a claim win it back.
pub async fn a_write_that_arrives_late_does_not_touch_the_next_attempt(harness: &Harness) {
    let world = World::new(harness).await;
    let claim = world.claim(&scope("tenant"), &key("k"));
    let first = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    written(world.store().release(first.owner()).await, "A release by the owner must be Written");
    let second = world.ask(&world.claim(claim.scope(), claim.key())).await;
    let second = claimed(second, "A released record must be Claimed");
    superseded(world.store().release(first.owner()).await, "A release that arrives late must be Superseded");
    let completed = world.store().complete(first.owner(), &response(), Retention::default()).await;
    superseded(completed, "A completion that arrives late must be Superseded");
    let record = present(world.store().read(claim.scope(), claim.key()).await, "A claimed record must be there");
    assert_eq!((record.state, record.number), (State::InProgress, 2), "A late write must not touch the next attempt");
    written(world.store().release(second.owner()).await, "The next attempt must still own its key");
}

fn response() -> Response {
    Response::new(201).with_body("done")
}

/// Claims and completes another key through one handle and finds it done through the other.
async fn bystander(world: &World<'_>, other: &dyn Store, name: &str) {
    let claim = world.claim(&scope("bystanders"), &key(name));
    let rule = "Beside a dropped call another key must be Claimed";
    let grant = claimed(idem_core::claim(other, &claim).await, rule);
    let completed = other.complete(grant.owner(), &response(), Retention::default()).await;
    written(completed, "Beside a dropped call another key must be completed");
    let replay = world.ask(&world.claim(claim.scope(), claim.key())).await;
    replayed(replay, "Beside a dropped call another key must be seen as done through every handle");
}
