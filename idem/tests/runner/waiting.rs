//! Wait instead of conflict.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem::{Builder, Claimed, Idempotency, OnConflict, Outcome, Response, Settled};
use idem_conformance::faulty::{Faults, Operation};
use tokio::task::JoinSet;

use crate::place::{Ended, LIMIT, Place, counting, eventually, record, request};

fn wait(builder: Builder) -> Builder {
    builder.on_conflict(OnConflict::Wait { at_most: LIMIT })
}

fn spawn_waiters(runner: &Idempotency, count: usize, runs: &Arc<AtomicUsize>) -> JoinSet<Ended> {
    let mut waiters = JoinSet::new();
    for _ in 0..count {
        let (runner, operation) = (runner.clone(), counting(runs, 202));
        waiters.spawn(async move { runner.run(request("k"), operation).await });
    }
    waiters
}

/// Until so many requests have claimed, found the key taken and wait.
async fn waiting(faults: &Faults, count: usize) {
    eventually("all of them wait", || async {
        faults.calls(Operation::Claim) >= count && faults.calls(Operation::Wait) > 0
    })
    .await;
    tokio::time::sleep(Duration::from_millis(50)).await; // for the last claims to be answered; nothing hangs on it
}

// case 005
pub(crate) async fn many_who_wait_for_one_key_cost_one_subscription_and_get_the_replay(place: Place) {
    let (owner, _) = place.runner(|builder| builder).await;
    let (runner, faults) = place.runner(wait).await;
    let Claimed::Run(running) = owner.claim(request("k")).await else { panic!() };
    let runs = Arc::default();
    let mut waiters = spawn_waiters(&runner, 200, &runs);
    waiting(&faults, 200).await;
    assert_eq!(faults.calls(Operation::Wait), 1);
    assert!(matches!(running.complete(Response::new(201)).await, Settled::Completed(_)));
    while let Some(outcome) = waiters.join_next().await {
        let outcome = outcome.unwrap();
        assert!(matches!(&outcome, Outcome::Replay { response, .. } if response.status() == 201), "{outcome:?}");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    let claims = faults.calls(Operation::Claim);
    assert!(claims <= 400, "one before and one after it, but for those that came too late to wait: {claims}");
    assert_eq!(faults.calls(Operation::Wait), 1);
}

// case 010
pub(crate) async fn a_caller_that_leaves_while_it_waits_touches_nothing(place: Place) {
    let (owner, _) = place.runner(|builder| builder).await;
    let (runner, faults) = place.runner(wait).await;
    let Claimed::Run(running) = owner.claim(request("k")).await else { panic!() };
    let before = record(&owner, "k").await;
    let runs = Arc::default();
    let mut waiters = spawn_waiters(&runner, 5, &runs);
    waiting(&faults, 5).await;
    waiters.abort_all();
    while waiters.join_next().await.is_some() {}
    eventually("they left", || async { runner.counters().waits_abandoned == 5 }).await;
    assert_eq!(record(&owner, "k").await, before);
    assert_eq!(running.release().await, Settled::GivenBack);
    assert!(runner.shutdown(LIMIT).await, "nothing goes on");
    assert_eq!((record(&owner, "k").await.unwrap().number, runs.load(Ordering::SeqCst)), (1, 0));
}

pub(crate) async fn a_key_that_is_given_back_is_run_by_one_of_those_who_wait(place: Place) {
    let (owner, _) = place.runner(|builder| builder).await;
    let (runner, faults) = place.runner(wait).await;
    let Claimed::Run(running) = owner.claim(request("k")).await else { panic!() };
    let runs = Arc::default();
    let mut waiters = spawn_waiters(&runner, 20, &runs);
    waiting(&faults, 20).await;
    assert_eq!(running.release().await, Settled::GivenBack);
    let mut replays = 0;
    while let Some(outcome) = waiters.join_next().await {
        match outcome.unwrap() {
            Outcome::Ran { reply, stored: true } => assert_eq!(reply.status(), 202),
            Outcome::Replay { response, .. } if response.status() == 202 => replays += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((runs.load(Ordering::SeqCst), replays), (1, 19));
}
