//! Completion that outlives trouble.

use std::{
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem::{Attempt, Claimed, Idempotency, Outcome, Response, Settled, State, StoreErrorKind};
use idem_conformance::faulty::{Fault, Operation, drop_after};
use tokio::task::JoinSet;

use crate::place::{
    Ended, LEASE, LIMIT, Place, answering, assert_ran, assert_replays, counting, eventually, never, record, request,
};

/// How long a client waits where its response can't be stored.
const SOON: Duration = Duration::from_millis(200);

async fn is_done(runner: &Idempotency, name: &str) -> bool {
    record(runner, name).await.is_some_and(|record| matches!(record.state, State::Done(_)))
}

// cases 076, 079
pub(crate) async fn while_a_completion_can_not_be_stored_the_client_has_its_answer_and_the_key_is_never_freed(
    place: Place,
) {
    let (runner, faults) = place.runner(|builder| builder.completion_patience(SOON)).await;
    let (other, _) = place.runner(|builder| builder).await;
    faults.arm_times(Fault::Fail(StoreErrorKind::Unavailable), Operation::Complete, 0, u64::MAX);
    let outcome: Ended = runner.run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: false, .. }), "{outcome:?}");
    let retry: Ended = other.run(request("k"), never).await;
    assert!(matches!(retry, Outcome::Conflict { .. }), "{retry:?}");
    // Past the lapse too, as long as nobody has taken over.
    place.clock.advance(LEASE * 2);
    faults.disarm();
    eventually("the response is stored", || is_done(&runner, "k")).await;
    assert_replays(&other.run(request("k"), never).await, 201);
    assert!(runner.shutdown(LIMIT).await);
    let counters = runner.counters();
    assert_eq!((counters.completed, counters.released, counters.superseded), (1, 0, 0));
    assert!(counters.completion_retries > 0 && counters.store_errors > 0, "{counters:?}");
}

// case 001
pub(crate) async fn a_completion_that_arrives_after_a_takeover_overwrites_nothing(place: Place) {
    let (runner, faults) = place.runner(|builder| builder.completion_patience(SOON)).await;
    let (other, _) = place.runner(|builder| builder).await;
    // One is on its way somewhere, and what is sent after it is lost.
    faults.arm(Fault::Late, Operation::Complete);
    faults.arm_times(Fault::LoseRequest, Operation::Complete, 0, u64::MAX);
    let first: Ended = runner.run(request("k"), answering(201)).await;
    assert!(matches!(first, Outcome::Ran { stored: false, .. }), "{first:?}");
    place.clock.advance(LEASE);
    let takeover = |attempt: Attempt| async move {
        assert_eq!((attempt.number(), attempt.is_repeat()), (2, true));
        Ok(Response::new(202))
    };
    assert_ran(&other.run(request("k"), takeover).await, 202);
    assert_eq!(faults.deliver().await, 1);
    assert_replays(&other.run(request("k"), never).await, 202);
    // The first one learns it when its next try gets through, and ends with that.
    faults.disarm();
    assert!(runner.shutdown(LIMIT).await);
    assert_eq!((runner.counters().superseded, runner.counters().completed), (1, 0));
    assert_replays(&other.run(request("k"), never).await, 202);
}

// cases 047, 051, 119
pub(crate) async fn a_client_that_leaves_at_any_moment_cancels_nothing(place: Place) {
    let mut ended = 0;
    for polls in 1..200 {
        let (runner, faults) = place.runner(|builder| builder).await;
        faults.arm(Fault::Delay(Duration::from_millis(1)), Operation::Claim);
        faults.arm(Fault::Delay(Duration::from_millis(1)), Operation::Complete);
        let (name, runs) = (format!("dropped after {polls}"), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&runs);
        let operation = move |_| async move {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            counted.fetch_add(1, Ordering::SeqCst);
            Ok::<_, &'static str>(Response::new(201))
        };
        let answered = drop_after(polls, runner.run(request(&name), operation)).await;
        assert!(runner.shutdown(LIMIT).await, "what was dropped ends all the same");
        let (other, _) = place.runner(|builder| builder).await;
        assert_replays(&other.run(request(&name), never).await, 201);
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{name}");
        ended += usize::from(answered.is_some());
        if ended == 2 {
            return; // the polls cover the whole run
        }
    }
    panic!("it never ended within the polls");
}

/// Lost requests, lost replies, repeated and delayed calls, on every operation. No lease lapses.
pub(crate) async fn a_store_that_loses_and_repeats_calls_runs_each_operation_once(place: Place) {
    const KEYS: usize = 60;
    let mut servers = Vec::new();
    for seed in 1..=2 {
        let (runner, faults) = place.runner(|builder| builder).await;
        faults.storm(seed, NonZeroU64::new(3).unwrap());
        servers.push((runner, faults));
    }
    let runs: Vec<Arc<AtomicUsize>> = (0..KEYS).map(|_| Arc::default()).collect();
    let mut clients = JoinSet::new();
    for (n, runs) in runs.iter().enumerate() {
        for (runner, _) in &servers {
            let (runner, runs) = (runner.clone(), Arc::clone(runs));
            clients.spawn(async move {
                loop {
                    match runner.run(request(&n.to_string()), counting(&runs, 201)).await {
                        Outcome::Ran { .. } | Outcome::Replay { .. } => return,
                        Outcome::Conflict { .. } | Outcome::Store(_) => {
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                        other => panic!("{n}: {other:?}"),
                    }
                }
            });
        }
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    for (runner, faults) in &servers {
        assert!(runner.shutdown(LIMIT).await);
        assert!(faults.struck() > 20, "there was trouble");
    }
    let (calm, _) = place.runner(|builder| builder).await;
    for (n, runs) in runs.iter().enumerate() {
        assert_replays(&calm.run(request(&n.to_string()), never).await, 201);
        assert_eq!(runs.load(Ordering::SeqCst), 1, "key {n}");
    }
    let sum = |count: fn(&Idempotency) -> u64| servers.iter().map(|(runner, _)| count(runner)).sum::<u64>();
    assert_eq!(sum(|runner| runner.counters().completed), KEYS as u64);
    assert_eq!(sum(|runner| runner.counters().superseded + runner.counters().completion_failures), 0);

    // What is settled by hand is settled through the same trouble.
    let (runner, faults) = place.runner(|builder| builder).await;
    let Claimed::Run(running) = runner.claim(request("by hand")).await else { panic!() };
    faults.arm_times(Fault::LoseReply, Operation::Complete, 0, 3);
    assert_eq!(running.complete(Response::new(201)).await, Settled::Completed(Response::new(201)));
}
