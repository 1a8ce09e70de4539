//! Waiting for the attempt that is at it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem_core::{OnLapse, Response, Store, StoreErrorKind};
use idem_runner::{Claimed, Idempotency, OnConflict, OnUnavailable, Outcome, Settled};
use support::{Ended, Fault, LEASE, World, answering, eventually, request, world_with};
use tokio::{sync::Notify, task::JoinSet, time::Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// A runner whose requests wait for a minute.
fn waiting_world() -> World {
    world_with(|builder| builder.on_conflict(OnConflict::Wait { at_most: MINUTE }))
}

/// So many requests at once, each of which would answer 202 and counts in `runs`.
fn spawn_waiters(idempotency: &Idempotency, count: usize, runs: &Arc<AtomicUsize>) -> JoinSet<Ended> {
    let mut waiters = JoinSet::new();
    for _ in 0..count {
        let (idempotency, runs) = (idempotency.clone(), Arc::clone(runs));
        waiters.spawn(async move {
            let operation = |_| async move {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok(Response::new(202))
            };
            idempotency.run(request("k"), operation).await
        });
    }
    waiters
}

async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

// case 005
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_gets_the_answer_of_the_running_attempt() {
    let world = world_with(|builder| builder.on_conflict(OnConflict::Wait { at_most: Duration::from_secs(20) }));
    let finish = Arc::new(Notify::new());
    let first = world.spawn("k", &finish);
    tokio::task::yield_now().await;
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let idempotency = world.idempotency.clone();
        waiting.spawn(async move { idempotency.run(request("k"), answering(500)).await });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    finish.notify_one();
    while let Some(outcome) = waiting.join_next().await {
        assert!(matches!(outcome.unwrap(), Outcome::Replay { response, .. } if response.status() == 201));
    }
    assert!(matches!(first.await.unwrap(), Outcome::Ran { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_limit_with_a_conflict() {
    let world = world_with(|builder| builder.on_conflict(OnConflict::Wait { at_most: Duration::from_secs(20) }));
    let _running = world.idempotency.claim(request("k")).await;
    let start = tokio::time::Instant::now();
    let outcome: Ended = world.idempotency.run(request("k"), answering(500)).await;
    assert!(matches!(outcome, Outcome::Conflict { .. }), "{outcome:?}");
    assert_eq!(start.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn many_who_wait_for_one_key_cost_the_store_one_wait() {
    let world = waiting_world();
    let (finish, runs) = (Arc::new(Notify::new()), Arc::default());
    let first = world.spawn("k", &finish);
    tokio::task::yield_now().await;
    let mut waiters = spawn_waiters(&world.idempotency, 500, &runs);
    a_moment().await;
    assert_eq!(world.store.calls("wait"), 1);
    finish.notify_one();
    while let Some(outcome) = waiters.join_next().await {
        assert!(matches!(outcome.unwrap(), Outcome::Replay { response, .. } if response.status() == 201));
    }
    assert!(matches!(first.await.unwrap(), Outcome::Ran { .. }));
    assert_eq!((world.store.calls("wait"), runs.load(Ordering::SeqCst)), (1, 0));
    assert_eq!(world.store.calls("claim"), 1 + 500 * 2, "one claim before and one after it");
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_different_keys_wait_apart() {
    let world = waiting_world();
    let running = [world.idempotency.claim(request("k")).await, world.idempotency.claim(request("l")).await];
    for key in ["k", "l"] {
        let idempotency = world.idempotency.clone();
        tokio::spawn(async move { idempotency.run(request(key), answering(201)).await });
    }
    a_moment().await;
    assert_eq!(world.store.calls("wait"), 2);
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn while_a_lease_is_renewed_those_who_wait_do_not_claim_again() {
    let world = waiting_world();
    let (finish, runs) = (Arc::new(Notify::new()), Arc::default());
    let first = world.spawn("k", &finish);
    tokio::task::yield_now().await;
    let mut waiters = spawn_waiters(&world.idempotency, 50, &runs);
    world.advance(LEASE + LEASE / 2).await;
    assert_eq!(world.store.calls("claim"), 1 + 50);
    assert_eq!(world.store.calls("wait"), 2, "one for each lease that they saw, one at a time");
    finish.notify_one();
    while let Some(outcome) = waiters.join_next().await {
        assert!(matches!(outcome.unwrap(), Outcome::Replay { .. }));
    }
    assert!(matches!(first.await.unwrap(), Outcome::Ran { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_given_back_is_run_by_one_of_those_who_wait_and_replayed_to_the_others() {
    let world = waiting_world();
    let runs = Arc::default();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let mut waiters = spawn_waiters(&world.idempotency, 20, &runs);
    a_moment().await;
    let given_back = Instant::now();
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
    assert_eq!(given_back.elapsed(), Duration::ZERO, "at once");
}

#[tokio::test(start_paused = true)]
async fn when_another_gets_the_key_that_was_given_back_the_wait_goes_on_for_that_one_and_keeps_its_place() {
    let world = world_with(|builder| builder.on_conflict(OnConflict::Wait { at_most: MINUTE }).max_waiters(1));
    let runs = Arc::default();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let mut waiters = spawn_waiters(&world.idempotency, 1, &runs);
    a_moment().await;
    let rival = world.another(|builder| builder);
    assert_eq!(running.release().await, Settled::GivenBack);
    let Claimed::Run(running) = rival.claim(request("k")).await else { panic!("the one that waits was faster") };
    a_moment().await;
    assert_eq!((world.store.calls("wait"), world.store.calls("claim")), (2, 4));
    assert!(matches!(running.complete(Response::new(201)).await, Settled::Completed(_)));
    assert!(matches!(waiters.join_next().await.unwrap().unwrap(), Outcome::Replay { .. }));
    assert_eq!(world.idempotency.counters().waits_refused, 0);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_goes_away_ends_the_wait_at_once() {
    let world = waiting_world();
    let Claimed::Run(_running) = world.idempotency.claim(request("k")).await else { panic!() };
    let mut waiters = spawn_waiters(&world.idempotency, 1, &Arc::default());
    a_moment().await;
    let start = Instant::now();
    assert_eq!(world.store.inner.purge(&support::scope(), NonZeroUsize::MIN).await.unwrap(), 1);
    assert!(matches!(waiters.join_next().await.unwrap().unwrap(), Outcome::Ran { stored: true, .. }));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

// case 052
#[tokio::test(start_paused = true)]
async fn a_panic_wakes_those_who_wait() {
    let world = waiting_world();
    let (idempotency, finish) = (world.idempotency.clone(), Arc::new(Notify::new()));
    let told = Arc::clone(&finish);
    let first = tokio::spawn(async move {
        let operation = |_| async move {
            told.notified().await;
            if true { panic!("as planned") } else { Ok::<Response, &str>(Response::new(1)) }
        };
        idempotency.run(request("k"), operation).await
    });
    tokio::task::yield_now().await;
    let runs = Arc::default();
    let mut waiters = spawn_waiters(&world.idempotency, 3, &runs);
    a_moment().await;
    finish.notify_one();
    assert!(matches!(first.await.unwrap(), Outcome::Panicked));
    while let Some(outcome) = waiters.join_next().await {
        assert!(matches!(outcome.unwrap(), Outcome::Ran { .. } | Outcome::Replay { .. }));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lapse_ends_the_wait_with_one_takeover_or_under_hold_with_an_unknown_outcome() {
    for on_lapse in [OnLapse::TakeOver, OnLapse::Hold] {
        let world = world_with(|builder| builder.on_conflict(OnConflict::Wait { at_most: MINUTE }).on_lapse(on_lapse));
        drop(world.idempotency.claim(request("k")).await);
        let runs = Arc::default();
        let start = Instant::now();
        let mut waiters = spawn_waiters(&world.idempotency, 5, &runs);
        world.advance(LEASE + Duration::from_secs(1)).await;
        let mut unknown = 0;
        while let Some(outcome) = waiters.join_next().await {
            unknown += usize::from(matches!(outcome.unwrap(), Outcome::Unknown));
        }
        let expected = if on_lapse == OnLapse::Hold { (0, 5) } else { (1, 0) };
        assert_eq!((runs.load(Ordering::SeqCst), unknown), expected, "{on_lapse:?}");
        assert_eq!(start.elapsed(), LEASE + Duration::from_secs(1), "not at the end of their patience");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lapse_at_the_limit_is_an_unknown_outcome_for_those_who_wait() {
    let world =
        world_with(|builder| builder.on_conflict(OnConflict::Wait { at_most: MINUTE }).lapse_limit(NonZeroU32::new(1)));
    drop(world.idempotency.claim(request("k")).await);
    let mut waiters = spawn_waiters(&world.idempotency, 1, &Arc::default());
    world.advance(LEASE + Duration::from_secs(1)).await;
    assert!(matches!(waiters.join_next().await.unwrap().unwrap(), Outcome::Unknown));
}

// case 010
#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_while_it_waits_runs_nothing_and_leaves_nothing_behind() {
    let world = waiting_world();
    let runs = Arc::default();
    let Claimed::Run(running) = world.another(|builder| builder).claim(request("k")).await else { panic!() };
    let mut leaving = spawn_waiters(&world.idempotency, 3, &runs);
    a_moment().await;
    let before = world.record("k").await;
    leaving.abort_all();
    while leaving.join_next().await.is_some() {}
    a_moment().await;
    assert_eq!(world.idempotency.counters().waits_abandoned, 3);
    assert_eq!(world.record("k").await, before, "nobody's record was touched");
    // The key is free now, and nobody takes it.
    assert_eq!(running.release().await, Settled::GivenBack);
    assert!(world.idempotency.shutdown(Duration::from_secs(1)).await, "nothing goes on");
    assert_eq!(world.record("k").await.unwrap().number, 1);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

// case 010
#[tokio::test(start_paused = true)]
async fn one_who_leaves_while_a_claim_by_hand_waits_claims_nothing_either() {
    let world = waiting_world();
    let Claimed::Run(running) = world.another(|builder| builder).claim(request("k")).await else { panic!() };
    let idempotency = world.idempotency.clone();
    let leaving = tokio::spawn(async move { idempotency.claim(request("k")).await });
    a_moment().await;
    leaving.abort();
    a_moment().await;
    assert_eq!(world.idempotency.counters().waits_abandoned, 1);
    assert_eq!(running.release().await, Settled::GivenBack);
    assert!(world.idempotency.shutdown(Duration::from_secs(1)).await, "nothing goes on");
    assert_eq!(world.record("k").await.unwrap().number, 1);
}

#[tokio::test(start_paused = true)]
async fn those_who_stay_are_answered_when_the_one_that_came_first_leaves() {
    let world = waiting_world();
    let runs = Arc::default();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let mut leaving = spawn_waiters(&world.idempotency, 1, &runs);
    a_moment().await;
    let mut staying = spawn_waiters(&world.idempotency, 2, &runs);
    a_moment().await;
    leaving.abort_all();
    while leaving.join_next().await.is_some() {}
    assert!(matches!(running.complete(Response::new(201)).await, Settled::Completed(_)));
    while let Some(outcome) = staying.join_next().await {
        assert!(matches!(outcome.unwrap(), Outcome::Replay { .. }));
    }
    assert_eq!(world.store.calls("wait"), 1);
}

#[tokio::test(start_paused = true)]
async fn those_who_can_not_see_whom_they_wait_for_ask_less_and_less_often() {
    let world = waiting_world();
    world.store.plan("busy", Fault::Busy, usize::MAX);
    let idempotency = world.idempotency.clone();
    let waiting = tokio::spawn(async move { idempotency.run(request("k"), answering(201)).await });
    tokio::time::sleep(Duration::from_millis(700)).await;
    let soon = world.store.calls("busy");
    assert!((4..=8).contains(&soon), "quick at first: {soon}");
    tokio::time::sleep(Duration::from_secs(10)).await;
    let later = world.store.calls("busy") - soon;
    assert!((15..=25).contains(&later), "and patient then: {later}");
    world.store.heal();
    assert!(matches!(waiting.await.unwrap(), Outcome::Ran { stored: true, .. }));

    // The limit holds here too.
    world.store.plan("busy", Fault::Busy, usize::MAX);
    let start = Instant::now();
    let refused: Ended = world.idempotency.run(request("l"), answering(201)).await;
    assert!(matches!(refused, Outcome::Conflict { .. }), "{refused:?}");
    assert_eq!(start.elapsed().as_millis(), MINUTE.as_millis());

    // Where none is to wait, that is a conflict like any other.
    world.store.plan("busy", Fault::Busy, usize::MAX);
    let refused: Ended = world.another(|builder| builder).run(request("l"), answering(201)).await;
    assert!(matches!(refused, Outcome::Conflict { retry_after } if retry_after == Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_is_finishing_is_waited_for_and_asked_after_again_within_a_second() {
    let world = waiting_world();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    world.store.plan("busy", Fault::BusyBy, usize::MAX);
    let mut waiters = spawn_waiters(&world.idempotency, 1, &Arc::default());
    world.advance(Duration::from_secs(10)).await;
    assert_eq!(world.store.calls("busy"), 2, "no claim while its lease is live");
    world.store.heal();
    let completed = Instant::now();
    assert!(matches!(running.complete(Response::new(201)).await, Settled::Completed(_)));
    assert!(matches!(waiters.join_next().await.unwrap().unwrap(), Outcome::Replay { .. }));
    assert_eq!(completed.elapsed(), Duration::ZERO);

    // One whose lease has lapsed may be dead.
    drop(world.idempotency.claim(request("l")).await);
    world.clock.advance(LEASE);
    world.store.plan("busy", Fault::BusyBy, 1);
    let start = Instant::now();
    let outcome: Ended = world.idempotency.run(request("l"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
    assert_eq!(start.elapsed().as_millis(), 1_000);
}

// case 075
#[tokio::test(start_paused = true)]
async fn one_that_waits_for_another_attempt_never_runs_unprotected_beside_it() {
    let world = world_with(|builder| {
        builder.on_conflict(OnConflict::Wait { at_most: MINUTE }).on_unavailable(OnUnavailable::RunUnprotected)
    });
    let Claimed::Run(_running) = world.another(|builder| builder).claim(request("k")).await else { panic!() };
    let runs = Arc::default();
    let mut waiters = spawn_waiters(&world.idempotency, 3, &runs);
    a_moment().await;
    for operation in ["wait", "claim"] {
        world.store.plan(operation, Fault::Refused(StoreErrorKind::Unavailable), usize::MAX);
    }
    world.advance(LEASE * 2).await;
    while let Some(outcome) = waiters.join_next().await {
        let outcome = outcome.unwrap();
        assert!(matches!(outcome, Outcome::Store(_)), "{outcome:?}");
    }
    assert_eq!((runs.load(Ordering::SeqCst), world.idempotency.counters().unprotected), (0, 0));
    // One that knows of nobody does, as was chosen.
    let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: false, .. }), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn over_the_limit_of_waiters_a_request_is_refused_at_once_and_counted() {
    let world = world_with(|builder| builder.on_conflict(OnConflict::Wait { at_most: MINUTE }).max_waiters(2));
    let runs = Arc::default();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let mut waiters = spawn_waiters(&world.idempotency, 2, &runs);
    a_moment().await;
    let start = tokio::time::Instant::now();
    let third: Ended = world.idempotency.run(request("k"), answering(500)).await;
    assert!(matches!(third, Outcome::Conflict { .. }), "{third:?}");
    assert_eq!((start.elapsed(), world.idempotency.counters().waits_refused), (Duration::ZERO, 1));
    assert!(matches!(running.complete(Response::new(201)).await, Settled::Completed(_)));
    while let Some(outcome) = waiters.join_next().await {
        assert!(matches!(outcome.unwrap(), Outcome::Replay { .. }));
    }
    // Their places are free again.
    let Claimed::Run(_running) = world.idempotency.claim(request("l")).await else { panic!() };
    let idempotency = world.idempotency.clone();
    let waiting = tokio::spawn(async move { idempotency.run(request("l"), answering(500)).await });
    a_moment().await;
    assert!(!waiting.is_finished());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_goes_on_when_the_runtime_of_the_one_that_began_it_ends() {
    let world = Arc::new(waiting_world());
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    // The first one waits on a runtime of its own, whose timers the shared wait has.
    let (idempotency, there) = (world.idempotency.clone(), world.clone());
    let ended = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let first = runtime.spawn(async move { idempotency.run(request("k"), answering(500)).await });
        runtime.block_on(eventually("it waits", || async { there.store.calls("wait") == 1 }));
        assert!(!first.is_finished());
        (runtime, there)
    });
    let (runtime, _) = tokio::task::spawn_blocking(|| ended.join().unwrap()).await.unwrap();
    let mut staying = spawn_waiters(&world.idempotency, 3, &Arc::default());
    eventually("they wait", || async { world.store.calls("claim") >= 5 }).await;
    a_moment().await;
    runtime.shutdown_background();
    a_moment().await;
    assert!(matches!(running.complete(Response::new(201)).await, Settled::Completed(_)));
    while let Some(outcome) = staying.join_next().await {
        assert!(matches!(outcome.unwrap(), Outcome::Replay { response, .. } if response.status() == 201));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_waits_fail_hang_or_panic_still_ends_the_waiting() {
    for fault in [Fault::Refused(StoreErrorKind::Unavailable), Fault::Hangs, Fault::Panics] {
        let world = waiting_world();
        world.store.plan("wait", fault, usize::MAX);
        let (start, runs) = (Instant::now(), Arc::default());
        let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
        let mut waiters = spawn_waiters(&world.idempotency, 3, &runs);
        a_moment().await;
        assert_eq!(world.idempotency.counters().store_errors > 0, !matches!(fault, Fault::Hangs), "{fault:?}");
        assert!(matches!(running.complete(Response::new(201)).await, Settled::Completed(_)));
        while let Some(outcome) = waiters.join_next().await {
            assert!(matches!(outcome.unwrap(), Outcome::Replay { .. }), "{fault:?}");
        }
        assert_eq!(runs.load(Ordering::SeqCst), 0);
        assert!(world.idempotency.counters().store_errors > 0, "{fault:?}");
        // One that hangs is given up a store_timeout after the time that it may take, which is the lease.
        let bounds = if matches!(fault, Fault::Hangs) { 35_000..35_100 } else { 20..100 };
        assert!(bounds.contains(&start.elapsed().as_millis()), "{fault:?}: {:?}", start.elapsed());
    }
}

// In real time: nothing else moves while a store like that is asked again and again.
#[tokio::test]
async fn a_store_whose_waits_end_at_once_is_asked_no_longer_than_the_limit() {
    let at_most = Duration::from_millis(50);
    let world = world_with(|builder| builder.on_conflict(OnConflict::Wait { at_most }));
    let Claimed::Run(_running) = world.idempotency.claim(request("k")).await else { panic!() };
    world.store.plan("wait at once", Fault::AtOnce, usize::MAX);
    let start = Instant::now();
    let outcome: Ended = world.idempotency.run(request("k"), answering(500)).await;
    assert!(matches!(outcome, Outcome::Conflict { .. }), "{outcome:?}");
    assert!(start.elapsed() >= at_most, "{:?}", start.elapsed());
}

// case 005
#[tokio::test(start_paused = true)]
async fn what_one_that_waited_may_have_claimed_is_taken_back_when_the_reply_never_came() {
    let world = waiting_world();
    let Claimed::Run(first) = world.idempotency.claim(request("k")).await else { panic!() };
    let runs = Arc::new(AtomicUsize::new(0));
    let mut waiters = spawn_waiters(&world.idempotency, 1, &runs);
    a_moment().await;
    world.store.plan("claim", Fault::ReplyLost, usize::MAX);
    assert_eq!(first.release().await, Settled::GivenBack);
    world.advance(Duration::from_secs(6)).await;
    assert!(matches!(waiters.join_next().await.unwrap().unwrap(), Outcome::Store(_)));
    world.store.heal();
    world.advance(Duration::from_secs(2)).await;
    let retry: Ended = world.another(|builder| builder).run(request("k"), answering(201)).await;
    assert!(matches!(retry, Outcome::Ran { stored: true, .. }), "{retry:?}");
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_an_attempt_does_not_run_unprotected_beside_it_when_the_store_goes_away() {
    let world = world_with(|builder| {
        builder.on_conflict(OnConflict::Wait { at_most: MINUTE }).on_unavailable(OnUnavailable::RunUnprotected)
    });
    let finish = Arc::new(Notify::new());
    let first = world.spawn("k", &finish);
    tokio::task::yield_now().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let mut waiters = spawn_waiters(&world.idempotency, 3, &runs);
    a_moment().await;
    for operation in ["claim", "wait", "renew"] {
        world.store.plan(operation, Fault::Refused(StoreErrorKind::Unavailable), usize::MAX);
    }
    world.advance(MINUTE).await;
    while let Some(outcome) = waiters.join_next().await {
        assert!(matches!(outcome.unwrap(), Outcome::Store(_) | Outcome::Conflict { .. }));
    }
    assert_eq!((runs.load(Ordering::SeqCst), world.idempotency.counters().unprotected), (0, 0));
    finish.notify_one();
    assert!(matches!(first.await.unwrap(), Outcome::Ran { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_when_the_shutdown_begins_claims_no_more() {
    let world = world_with(|builder| builder.on_conflict(OnConflict::Wait { at_most: Duration::from_secs(20) }));
    let Claimed::Run(running) = world.another(|builder| builder).claim(request("k")).await else { panic!() };
    let idempotency = world.idempotency.clone();
    let waiting = tokio::spawn(async move { idempotency.run(request("k"), answering(201)).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(world.idempotency.shutdown(Duration::from_secs(1)).await);
    assert!(matches!(waiting.await.unwrap(), Outcome::ShuttingDown));
    assert_eq!(running.release().await, Settled::GivenBack);
}
