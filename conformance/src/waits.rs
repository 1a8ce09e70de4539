//! Waits: what ends them, what does not, and how long they take.

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use idem_core::{Checkpoint, Response, Retention, State};

use crate::{
    Harness,
    concurrency::value,
    expect::{claimed, ok, present, written},
    housekeeping::{waiting, within},
    world::{World, key, scope},
};

/// A lapse, a renewal and a checkpoint do not end a wait: it goes on until the attempt ends.
pub async fn a_wait_goes_on_over_lapses_renewals_and_checkpoints(harness: &Harness) {
    let world = World::new(harness).await;
    let other = world.open().await;
    let claim = world.claim(&scope("tenant"), &key("k")).with_lease(world.lease());
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    let waits = [world.store(), &other].map(|store| waiting(store, &grant));
    for turn in 0..4 {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let renewed = other.renew(grant.owner(), world.lease()).await;
        written(renewed, "A renewal by the owner must be Written");
        let note = Checkpoint::new(&format!("step {turn}"), "done").expect("the suite names checkpoints validly");
        written(other.checkpoint(grant.owner(), &note).await, "A checkpoint by the owner must be Written");
    }
    let record = present(other.read(claim.scope(), claim.key()).await, "The record must be there");
    let (store, owner) = (Arc::clone(world.store()), grant.owner().clone());
    let judged =
        tokio::spawn(
            async move { store.wait(owner.scope(), owner.key(), owner.attempt(), Duration::from_secs(60)).await },
        );
    tokio::time::sleep(Duration::from_millis(50)).await;
    world.advance_to(record.lease_end).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    for wait in &waits {
        assert!(
            !wait.is_finished(),
            "A wait must go on while its attempt does: over renewals, checkpoints and a lapse"
        );
    }
    let earliest = world.earliest_now().await;
    let completed = other.complete(grant.owner(), &Response::new(201), Retention::default()).await;
    written(completed, "A completion by an attempt that lapsed and was not taken over must be Written");
    for wait in waits {
        let record = within(wait, "A wait must be ended by the completion of the attempt").await;
        assert_eq!(record.map(|record| record.state), Some(State::Done(Response::new(201))));
    }
    let judged = ok(value(judged.await)).expect("A wait must find the record that is there");
    assert!(judged.now >= earliest, "A wait must end with the instant at which it ended, not at which it began");
}

/// A wait takes as long as it was told and not less, though the lease has lapsed; and not much more.
pub async fn a_wait_takes_the_time_that_it_was_told(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, k) = (scope("tenant"), key("k"));
    let claim = world.claim(&tenant, &k).with_lease(world.lease());
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    world.advance_to(grant.lease_end()).await;
    let mut shortest = Duration::MAX;
    for at_most in [50, 50, 50, 50, 1_500].map(Duration::from_millis) {
        let begun = Instant::now();
        let found = ok(world.store().wait(&tenant, &k, grant.owner().attempt(), at_most).await);
        let took = begun.elapsed();
        assert!(found.is_some(), "A wait must find the record that is there, lapsed or not");
        assert!(
            took >= at_most,
            "A wait for {at_most:?} on a lapsed attempt that nobody ended must not end after {took:?}"
        );
        shortest = shortest.min(took);
    }
    // The best of several, since the machine may be busy.
    assert!(
        shortest < Duration::from_millis(900),
        "A wait for 50 ms must not take longer by the better part of a second; the shortest of four took {shortest:?}"
    );
}

/// A wait is for a token and a number: when the record is purged and claimed anew, as attempt 1 again, it ends.
pub async fn a_wait_is_ended_by_a_new_record_of_the_same_number(harness: &Harness) {
    let world = World::new(harness).await;
    let other = world.open().await;
    let (tenant, k) = (scope("tenant"), key("k"));
    let grant = claimed(world.ask(&world.claim(&tenant, &k)).await, "A claim of an unused key must be Claimed");
    let waits = [world.store(), &other].map(|store| waiting(store, &grant));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(ok(other.purge(&tenant, NonZeroUsize::MIN).await), 1, "A purge must remove the record");
    let next = claimed(world.ask(&world.claim(&tenant, &k)).await, "A purged key must be Claimed anew");
    for wait in waits {
        let record = within(wait, "A wait must be ended by a new record, also of the same number").await;
        if let Some(record) = record {
            assert_eq!(record.attempt(), next.owner().attempt(), "A wait must end with the record as it is then");
        }
    }
}

/// Waits that meet the completion they wait for are ended by it, each of them, with nothing after it that could wake them:
/// none looks, misses it, and then waits for what has been.
// case 006
pub async fn waits_that_meet_a_completion_are_all_ended_by_it(harness: &Harness) {
    const ROUNDS: u64 = 40;
    let world = World::new(harness).await;
    let other = world.open().await;
    let tenant = scope("tenant");
    let mut late = 0;
    for round in 0..ROUNDS {
        let claim = world.claim(&tenant, &key(&format!("k-{round}")));
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        let begun = Instant::now();
        let waits: Vec<_> = [world.store(), &other, &other].map(|store| waiting(store, &grant)).into_iter().collect();
        // From before the waits have begun to after that, in small steps and in larger ones.
        let step = if round % 2 == 0 { 25 } else { 250 };
        tokio::time::sleep(Duration::from_micros(step * (round % 20))).await;
        let completed = other.complete(grant.owner(), &Response::new(201), Retention::default()).await;
        written(completed, "A completion by the owner must be Written");
        for wait in waits {
            let record = within(wait, "A wait must be ended by the completion of the attempt").await;
            assert_eq!(record.map(|record| record.state), Some(State::Done(Response::new(201))));
        }
        late += usize::from(begun.elapsed() > Duration::from_secs(6));
        assert!(
            late < 3,
            "Waits must be ended at once by the completion; in {late} of {} rounds it took 6 s",
            round + 1
        );
    }
}

/// Many waits on one attempt keep nobody from ending it, also through the handle on which they wait.
// case 052
pub async fn many_waits_do_not_keep_the_owner_from_completing(harness: &Harness) {
    let world = World::new(harness).await;
    let grant =
        claimed(world.ask(&world.claim(&scope("tenant"), &key("k"))).await, "A claim of an unused key must be Claimed");
    let waits: Vec<_> = (0..60).map(|_| waiting(world.store(), &grant)).collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (store, owner) = (Arc::clone(world.store()), grant.owner().clone());
    let completing =
        tokio::spawn(async move { store.complete(&owner, &Response::new(201), Retention::default()).await });
    let rule = "Waits must not keep the owner from completing";
    let Ok(completed) = tokio::time::timeout(Duration::from_secs(20), completing).await else { panic!("{rule}") };
    written(value(completed), rule);
    for wait in waits {
        let record = within(wait, "Each of many waits must be ended by the completion").await;
        assert_eq!(record.map(|record| record.state), Some(State::Done(Response::new(201))));
    }
}
