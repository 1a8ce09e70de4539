//! Faults: what the network, the driver and the scheduler do to calls changes no outcome. The store is wrapped in
//! [`Faulty`].

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use idem_core::{
    Answer, Checkpoint, Checkpointed, Claim, Fenced, Owner, Response, Retention, Store, StoreError, StoreErrorKind,
};
use tokio::{sync::Barrier, task::JoinSet};

use crate::{
    Harness,
    expect::{claimed, conflict, ok, present, replayed, taken_over, written},
    faulty::{Fault, Faulty, Operation},
    rng,
    world::{World, key, scope},
};

const WRITES: [Operation; 6] = [
    Operation::Complete,
    Operation::Release,
    Operation::Forget,
    Operation::Hold,
    Operation::Renew,
    Operation::Checkpoint,
];

/// A claim whose request or reply is lost, or that is applied twice, is one attempt when it is repeated with its token.
// cases 047, 063
pub async fn a_claim_that_is_lost_or_applied_twice_is_one_attempt(harness: &Harness) {
    let world = World::new(harness).await;
    for fault in [Fault::LoseRequest, Fault::LoseReply, Fault::Repeat] {
        let (store, faults) = Faulty::wrap(world.open().await);
        let claim = world.claim(&scope("tenant"), &key(&format!("{fault:?}")));
        faults.arm(fault, Operation::Claim);
        match idem_core::claim(&*store, &claim).await {
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable),
            Ok(answer) => {
                let grant = claimed(Ok(answer), "A claim that is applied twice must be Claimed both times");
                assert_eq!(grant.number(), 1, "A claim that is applied twice must be one attempt");
            }
        }
        let grant = claimed(idem_core::claim(&*store, &claim).await, "A repeated claim must be Claimed");
        assert_eq!((grant.number(), grant.is_repeat()), (1, false), "A repeated claim must be the same attempt");
        let rival = world.claim(claim.scope(), claim.key());
        conflict(idem_core::claim(&*store, &rival).await, "A claim of a record in progress must be Conflict");
    }
}

/// A write whose reply is lost, or that is applied twice, is answered as the first time when it is repeated, and leaves
/// what one of it leaves.
// cases 047, 063
pub async fn a_write_that_is_lost_or_applied_twice_is_answered_as_the_first_time(harness: &Harness) {
    let world = World::new(harness).await;
    for fault in [Fault::LoseRequest, Fault::LoseReply, Fault::Repeat] {
        for write in WRITES {
            let (store, faults) = Faulty::wrap(world.open().await);
            let claim = world.claim(&scope("tenant"), &key(&format!("{fault:?} {write:?}")));
            let grant = claimed(idem_core::claim(&*store, &claim).await, "A claim of an unused key must be Claimed");
            faults.arm(fault, write);
            match apply(&*store, write, grant.owner()).await {
                Err(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable),
                Ok(is_written) => {
                    assert!(is_written, "A {write:?} that is applied twice must be Written both times");
                }
            }
            assert_eq!(faults.struck(), 1);
            assert!(ok(apply(&*store, write, grant.owner()).await), "A {write:?} that is repeated must be Written");
            let record = present(world.store().read(claim.scope(), claim.key()).await, "The record must be there");
            assert_eq!(record.attempt(), grant.owner().attempt(), "A {write:?} must leave the attempt what it is");
            assert!(record.checkpoints.iter().count() <= 1, "A checkpoint that is applied twice must be kept once");
        }
    }
}

/// A write that arrives only when its attempt has lost the key changes nothing, whatever became of the key.
// cases 001, 021, 022, 063
pub async fn a_write_that_arrives_when_its_attempt_has_lost_the_key_changes_nothing(harness: &Harness) {
    let world = World::new(harness).await;
    let (late, faults) = Faulty::wrap(world.open().await);
    let mut owners = Vec::new();
    let mut end = world.now().await;
    for write in WRITES {
        let claim = world.claim(&scope("tenant"), &key(&format!("{write:?}"))).with_lease(world.lease());
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        end = end.max(grant.lease_end());
        faults.arm(Fault::Late, write);
        assert!(apply(&*late, write, grant.owner()).await.is_err());
        owners.push((write, claim, grant));
    }
    world.advance_to(end).await;
    let mut known = Vec::new();
    for (number, (_, claim, _)) in owners.iter().enumerate() {
        let second = world.claim(claim.scope(), claim.key());
        let second = taken_over(world.ask(&second).await, "A claim of a lapsed record must be TakenOver");
        // Some are done by then, some are not.
        if number % 2 == 0 {
            let completed = world.store().complete(second.owner(), &Response::new(200), Retention::default()).await;
            written(completed, "A completion by the owner must be Written");
        }
        known.push(present(world.store().read(claim.scope(), claim.key()).await, "The record must be there"));
    }
    assert_eq!(faults.deliver().await, WRITES.len());
    for ((write, claim, _), known) in owners.iter().zip(known) {
        let record = present(world.store().read(claim.scope(), claim.key()).await, "The record must be there");
        assert_eq!(record, known, "A {write:?} that arrives late must change nothing");
    }
}

/// An owner that is paused past its lease and goes on is told that it was superseded, and its successor's outcome stays.
// cases 001, 018, 019
pub async fn an_owner_that_is_paused_past_its_lease_is_superseded(harness: &Harness) {
    let world = World::new(harness).await;
    for write in WRITES {
        let (paused, faults) = Faulty::wrap(world.open().await);
        let claim = world.claim(&scope("tenant"), &key(&format!("{write:?}"))).with_lease(world.lease());
        let grant = claimed(idem_core::claim(&*paused, &claim).await, "A claim of an unused key must be Claimed");
        faults.pause();
        let (store, owner) = (Arc::clone(&paused), grant.owner().clone());
        let sleeper = tokio::spawn(async move { apply(&*store, write, &owner).await });
        world.advance_to(grant.lease_end()).await;
        let second = world.claim(claim.scope(), claim.key());
        let second = taken_over(world.ask(&second).await, "A claim of a lapsed record must be TakenOver");
        let response = Response::new(201).with_body(format!("in place of {write:?}"));
        let completed = world.store().complete(second.owner(), &response, Retention::default()).await;
        written(completed, "A completion by the owner must be Written");
        faults.resume();
        let is_written = ok(sleeper.await.expect("the paused call ends"));
        assert!(!is_written, "A {write:?} by an owner that was paused past its lease must be Superseded");
        let third = world.claim(claim.scope(), claim.key());
        let replay = replayed(world.ask(&third).await, "A claim of a done record must be Replay");
        assert_eq!(replay, response, "A replay must be what the successor completed");
    }
}

/// However many requests and replies get lost, are repeated or late: every key has one attempt that owns it and one outcome,
/// and everybody is answered with that.
// cases 005, 063, 076
pub async fn under_a_storm_of_errors_every_key_has_one_owner_and_one_outcome(harness: &Harness) {
    const WORKERS: usize = 6;
    const KEYS: usize = 12;
    const ONE_IN: NonZeroU64 = NonZeroU64::new(3).expect("3 is not 0");

    let world = World::new(harness).await;
    let seed = rng::fresh_seed();
    harness.notes().note_seed(seed);
    let barrier = Arc::new(Barrier::new(WORKERS));
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let (store, faults) = Faulty::wrap(world.open().await);
        faults.storm(seed.wrapping_add(worker as u64), ONE_IN);
        let claims: Vec<_> =
            (0..KEYS).map(|number| world.claim(&scope("tenant"), &key(&format!("k-{number}")))).collect();
        let barrier = Arc::clone(&barrier);
        workers.spawn(async move {
            barrier.wait().await;
            let mut answers = Vec::new();
            for claim in claims {
                let response = Response::new(201).with_body(format!("by {worker} for {:?}", claim.key()));
                // A client asks until it has its answer.
                answers.push(loop {
                    match claim_until_answered(&*store, &claim).await {
                        Answer::Claimed(grant) => {
                            break (true, complete_until_answered(&*store, grant.owner(), &response).await);
                        }
                        Answer::Replay { response, .. } => break (false, response),
                        Answer::Conflict { .. } => tokio::task::yield_now().await,
                        other => panic!("Nothing lapses and nobody gives up, and the store answered {other:?}"),
                    }
                });
            }
            answers
        });
    }
    let answers = workers.join_all().await;
    for number in 0..KEYS {
        let record = world.store().read(&scope("tenant"), &key(&format!("k-{number}"))).await;
        let record = present(record, "A completed record must be there");
        assert_eq!(record.number, 1, "Where nothing lapses a key must have one attempt (the storm's seed was {seed})");
        let owners = answers.iter().filter(|answers| answers[number].0).count();
        assert_eq!(owners, 1, "Exactly one must own a key (the storm's seed was {seed})");
        let first = &answers[0][number].1;
        let all_alike = answers.iter().all(|answers| answers[number].1 == *first);
        assert!(all_alike, "Everybody must be answered with one outcome (the storm's seed was {seed})");
    }
}

/// Repeats a claim until it is not unavailable.
async fn claim_until_answered(store: &dyn Store, claim: &Claim) -> Answer {
    loop {
        match idem_core::claim(store, claim).await {
            Err(error) if error.kind() == StoreErrorKind::Unavailable => tokio::task::yield_now().await,
            answer => return ok(answer),
        }
    }
}

/// The same with a completion, which must be Written.
async fn complete_until_answered(store: &dyn Store, owner: &Owner, response: &Response) -> Response {
    loop {
        match store.complete(owner, response, Retention::default()).await {
            Err(error) if error.kind() == StoreErrorKind::Unavailable => tokio::task::yield_now().await,
            answer => {
                return written(answer, "A completion by the owner must be Written, however often it is repeated");
            }
        }
    }
}

/// Does a write. Says whether it is Written.
async fn apply(store: &dyn Store, write: Operation, owner: &Owner) -> Result<bool, StoreError> {
    let is_written = |fenced: Fenced<()>| fenced == Fenced::Written(());
    Ok(match write {
        Operation::Complete => {
            let response = Response::new(200).with_body("of the first");
            store.complete(owner, &response, Retention::default()).await? == Fenced::Written(response)
        }
        Operation::Release => is_written(store.release(owner).await?),
        Operation::Forget => is_written(store.forget(owner).await?),
        Operation::Hold => is_written(store.hold(owner, Retention::default()).await?),
        Operation::Renew => is_written(store.renew(owner, Duration::from_secs(99)).await?),
        _ => {
            let charge = Checkpoint::new("charge", "ch_1").expect("a valid name");
            matches!(store.checkpoint(owner, &charge).await?, Fenced::Written(Checkpointed::Kept(_)))
        }
    })
}
