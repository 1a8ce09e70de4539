//! When leases are renewed, by whom, and what is told of it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem_core::{Answer, Grant, Response, Retention, Store, StoreErrorKind};
use idem_runner::{Attempt, Claimed, Outcome, Settled};
use support::{Ended, Fault, LEASE, World, answering, eventually, request, world, world_with};
use tokio::{runtime, sync::Notify};

const SECOND: Duration = Duration::from_secs(1);
const UNAVAILABLE: Fault = Fault::Refused(StoreErrorKind::Unavailable);

#[tokio::test(start_paused = true)]
async fn an_attempt_is_renewed_after_each_third_of_its_lease_or_soon_after_and_never_late() {
    let world = world();
    let _first = world.idempotency.claim(request("k")).await;
    world.advance(SECOND).await;
    let _second = world.idempotency.claim(request("l")).await; // between two looks at what is due
    world.advance(SECOND * 9 - Duration::from_millis(500)).await;
    assert_eq!(world.store.calls("renew"), 0);
    world.advance(Duration::from_millis(500)).await;
    assert_eq!(world.store.calls("renew"), 1);
    world.advance(SECOND * 3).await;
    assert_eq!(world.store.calls("renew"), 2);
    world.advance(LEASE * 2).await;
    let counters = world.idempotency.counters();
    assert_eq!((counters.renewed_late, counters.renewal_failures, counters.overran), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_an_answer_is_given_up_within_a_sixth_of_the_lease_and_tried_again() {
    let world = world();
    world.store.plan("renew", Fault::Hangs, 1);
    let Claimed::Run(_running) = world.idempotency.claim(request("k")).await else { panic!() };
    world.advance(SECOND * 15).await;
    let counters = world.idempotency.counters();
    assert_eq!((counters.renewal_failures, counters.store_errors), (1, 1));
    world.advance(SECOND * 5).await;
    assert_eq!(world.idempotency.counters().renewed, 1);
    world.advance(LEASE).await;
    let duplicate: Ended = world.another(|builder| builder).run(request("k"), answering(500)).await;
    assert!(matches!(duplicate, Outcome::Conflict { .. }), "{duplicate:?}");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_counts_from_when_it_was_asked_for_and_not_from_its_answer() {
    let world = world();
    world.store.plan("renew", Fault::Late(SECOND * 4), 1);
    let Claimed::Run(_running) = world.idempotency.claim(request("k")).await else { panic!() };
    world.advance(SECOND * 15).await;
    // It was asked for after 10 seconds and answered after 14: its lease ends after 40.
    world.store.plan("renew", UNAVAILABLE, usize::MAX);
    world.advance(SECOND * 25 + SECOND / 2).await;
    world.store.heal();
    world.advance(SECOND * 3).await;
    let counters = world.idempotency.counters();
    assert_eq!((counters.renewed, counters.renewed_late), (2, 1), "{counters:?}");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_comes_after_the_end_of_its_attempt_does_not_mean_that_the_key_was_lost() {
    let world = world();
    world.store.plan("renew", Fault::Delayed(SECOND * 4), 1);
    let finish = Arc::new(Notify::new());
    let first = world.spawn("k", &finish);
    world.advance(SECOND * 11).await;
    finish.notify_one();
    assert!(matches!(first.await.unwrap(), Outcome::Ran { stored: true, .. }));
    world.advance(LEASE).await;
    assert_eq!(world.store.calls("renew"), 1);
    assert_eq!(world.idempotency.counters().superseded, 0);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_finds_the_record_ended_by_a_completion_whose_reply_was_lost_loses_nothing() {
    let world = world_with(|builder| builder.completion_patience(LEASE * 2));
    world.store.plan("complete", Fault::ReplyLost, usize::MAX);
    let told = Arc::new(AtomicUsize::new(0));
    let (idempotency, telling) = (world.idempotency.clone(), told.clone());
    let operation = move |attempt: Attempt| async move {
        tokio::spawn(async move {
            attempt.superseded().await;
            telling.fetch_add(1, Ordering::SeqCst);
        });
        Ok::<_, &'static str>(Response::new(201))
    };
    let first = tokio::spawn(async move { idempotency.run(request("k"), operation).await });
    world.advance(LEASE).await;
    assert!(world.store.calls("renew") > 0);
    world.store.heal();
    assert!(matches!(first.await.unwrap(), Outcome::Ran { stored: true, .. }));
    assert_eq!((world.idempotency.counters().superseded, told.load(Ordering::SeqCst)), (0, 0));
}

/// Takes over by hand, so that nobody renews it.
async fn take_over(world: &World, key: &str) -> Grant {
    let claim = world.idempotency.prepare(request(key)).unwrap();
    match idem_core::claim(&world.store.inner, &claim).await.unwrap() {
        Answer::Claimed(grant) | Answer::TakenOver(grant) => grant,
        other => panic!("{other:?}"),
    }
}

// case 019
#[tokio::test(start_paused = true)]
async fn the_next_renewal_tells_an_attempt_that_it_lost_its_key_and_is_its_last() {
    let world = world();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    world.clock.advance(LEASE);
    take_over(&world, "k").await;
    let started = tokio::time::Instant::now();
    running.attempt().superseded().await;
    assert!(started.elapsed() <= LEASE / 3, "{:?}", started.elapsed());
    tokio::time::sleep(LEASE).await;
    assert_eq!(world.store.calls("renew"), 1);
    assert_eq!(running.complete(Response::new(201)).await, Settled::Superseded);
    assert_eq!(world.idempotency.counters().superseded, 1, "told by a renewal and by its own end, counted once");
}

/// After `max_run` the record is looked at, and that alone tells.
#[tokio::test(start_paused = true)]
async fn after_max_run_an_attempt_is_looked_after_once_in_a_lease_and_told_when_another_has_its_key() {
    // With the shorter retention the record has expired by then, and the rival's is a new one: its number is 1 too.
    for retention in [LEASE * 100, LEASE] {
        let world = world_with(|builder| {
            builder.max_run(LEASE * 2).retention(Retention::new(retention).with_held(Duration::ZERO))
        });
        let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
        let attempt = running.attempt();
        world.advance(LEASE * 3 - SECOND * 11).await;
        assert_eq!(world.store.calls("renew"), 5, "none from max_run on");
        assert_eq!((world.store.calls("read"), world.idempotency.counters().overran), (1, 1));
        assert!(!attempt.is_superseded(), "it is the owner still");
        world.advance(SECOND * 6).await;
        assert!(!attempt.is_superseded() && world.store.calls("read") == 1, "it has lapsed, and nobody took over");
        let rival = take_over(&world, "k").await;
        assert_eq!(rival.number() == 1, retention == LEASE);
        world.advance(SECOND * 6).await;
        assert!(attempt.is_superseded(), "{retention:?}");
        world.advance(LEASE * 2).await;
        assert_eq!(world.store.calls("read"), 2, "none once it was told");
        let counters = world.idempotency.counters();
        assert_eq!((counters.overran, counters.superseded), (1, 1));
    }
}

/// Whoever has the owner can end its record in the store itself.
#[tokio::test(start_paused = true)]
async fn an_attempt_whose_record_was_ended_beside_its_runner_is_told_before_and_after_max_run() {
    for later in [SECOND, LEASE * 2 + SECOND] {
        let world = world_with(|builder| builder.max_run(LEASE * 2));
        let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
        world.advance(later).await;
        let _ = world.store.inner.release(running.attempt().owner()).await.unwrap();
        world.advance(LEASE).await;
        assert!(running.attempt().is_superseded(), "{later:?}");
    }
}

// case 019
#[tokio::test(start_paused = true)]
async fn an_attempt_whose_transaction_was_not_committed_is_told_that_it_lost_its_key_like_every_other() {
    for later in [SECOND, LEASE * 2 + SECOND] {
        let world = world_with(|builder| builder.max_run(LEASE * 2));
        let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
        drop(running.attempt().completion(Response::new(201))); // its transaction is rolled back
        world.advance(later).await;
        world.clock.advance(LEASE);
        take_over(&world, "k").await;
        world.advance(LEASE * 2).await;
        assert!(running.attempt().is_superseded(), "{later:?}");
        let step = running.attempt().step("mail", || async { panic!("it was done all the same") }).await;
        assert!(matches!(step, Err(idem_runner::StepError::<()>::Superseded)), "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_that_hangs_or_panics_keeps_no_other_attempt_from_being_renewed() {
    for fault in [Fault::Hangs, Fault::Panics] {
        let world = world_with(|builder| builder.max_run(LEASE * 2));
        world.store.plan("read", fault, usize::MAX);
        let _stuck = world.idempotency.claim(request("stuck")).await;
        world.advance(LEASE + LEASE / 2).await;
        let Claimed::Run(_running) = world.idempotency.claim(request("k")).await else { panic!() };
        world.advance(LEASE * 2 - SECOND).await;
        let counters = world.idempotency.counters();
        assert!((1..=2).contains(&counters.store_errors) && counters.renewal_failures == 0, "{fault:?}: {counters:?}");
        let duplicate: Ended = world.another(|builder| builder).run(request("k"), answering(500)).await;
        assert!(matches!(duplicate, Outcome::Conflict { .. }), "{fault:?}: {duplicate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_in_a_renewal_ends_no_other_and_is_asked_again() {
    let world = world();
    let running = [world.idempotency.claim(request("k")).await, world.idempotency.claim(request("l")).await];
    world.store.plan("renew", Fault::Panics, 1);
    world.advance(LEASE * 2).await;
    for key in ["k", "l"] {
        let duplicate: Ended = world.another(|builder| builder).run(request(key), answering(500)).await;
        assert!(matches!(duplicate, Outcome::Conflict { .. }), "{key}: {duplicate:?}");
    }
    let counters = world.idempotency.counters();
    assert_eq!((counters.renewal_failures, counters.store_errors, counters.renewed_late), (1, 1, 0));
    drop(running);
}

#[test]
fn attempts_are_renewed_on_another_runtime_when_the_first_one_has_ended() {
    let paused = || runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let world = world();
    paused().block_on(async {
        let outcome: Ended = world.idempotency.run(request("first"), answering(201)).await;
        assert!(matches!(outcome, Outcome::Ran { stored: true, .. }));
    });
    paused().block_on(async {
        let Claimed::Run(_running) = world.idempotency.claim(request("k")).await else { panic!() };
        world.advance(LEASE * 2).await;
        let duplicate: Ended = world.another(|builder| builder).run(request("k"), answering(500)).await;
        assert!(matches!(duplicate, Outcome::Conflict { .. }), "{duplicate:?}");
    });
}

#[tokio::test(start_paused = true)]
async fn however_many_attempts_run_one_task_renews_them() {
    let world = world();
    let mut running = Vec::new();
    for n in 0..100 {
        running.push(world.idempotency.claim(request(&n.to_string())).await);
    }
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks <= 2, "one renews and one sweeps: {tasks}");
    world.advance(LEASE * 2).await;
    assert!(world.idempotency.counters().renewed >= 500, "{}", world.idempotency.counters().renewed);
}

// case 018
#[tokio::test(start_paused = true)]
async fn two_renewals_in_a_row_may_fail_or_hang() {
    for fault in [Fault::Hangs, Fault::Refused(StoreErrorKind::Unavailable), Fault::Panics] {
        let world = world();
        let finish = Arc::new(Notify::new());
        let first = world.spawn("k", &finish);
        tokio::task::yield_now().await;
        for _ in 0..3 {
            world.store.plan("renew", fault, 2);
            world.advance(LEASE).await;
        }
        let counters = world.idempotency.counters();
        assert_eq!((counters.renewal_failures, counters.renewed_late), (6, 0), "{fault:?}: {counters:?}");
        let rival: Ended = world.another(|builder| builder).run(request("k"), answering(500)).await;
        assert!(matches!(rival, Outcome::Conflict { .. }), "{fault:?}: {rival:?}");
        finish.notify_one();
        assert!(matches!(first.await.unwrap(), Outcome::Ran { stored: true, .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_that_hang_hold_up_no_others() {
    let world = world();
    let finish = Arc::new(Notify::new());
    let keys: Vec<&'static str> = (0..200).map(|n| &*format!("k{n}").leak()).collect();
    let running: Vec<_> = keys.iter().map(|key| world.spawn(key, &finish)).collect();
    tokio::task::yield_now().await;
    // The first two hundred hang; whatever is asked for beside them is answered.
    world.store.plan("renew", Fault::Hangs, keys.len());
    world.advance(LEASE / 3 + LEASE / 12).await;
    let last = world.spawn("last", &finish);
    tokio::task::yield_now().await;
    world.advance(LEASE * 2).await;
    let counters = world.idempotency.counters();
    assert_eq!((counters.renewal_failures, counters.renewed_late), (200, 0), "{counters:?}");
    for operation in running.into_iter().chain([last]) {
        finish.notify_waiters();
        assert!(matches!(operation.await.unwrap(), Outcome::Ran { stored: true, .. }));
    }
}

// case 019
#[test]
fn each_runtime_renews_its_own_leases_so_that_another_one_may_end_or_stand_still() {
    let lease = Duration::from_millis(300);
    let world = world_with(|builder| builder.lease(lease).max_run(Duration::from_secs(60)));
    let current_thread = || runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let once = |key: &'static str| world.idempotency.run(request(key), answering(201));
    // Both were the first one that the runner saw, and are not driven from then on.
    let stands_still = current_thread();
    let _: Ended = stands_still.block_on(once("a"));
    let ends = current_thread();
    let _: Ended = ends.block_on(once("b"));
    drop(ends);
    let idempotency = world.idempotency.clone();
    let outcome: Ended = current_thread().block_on(async {
        let operation = move |_| async move {
            eventually("its lease is renewed", || async { idempotency.counters().renewed >= 3 }).await;
            Ok(Response::new(201))
        };
        world.idempotency.run(request("c"), operation).await
    });
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
}

// case 076
#[tokio::test(start_paused = true)]
async fn a_completion_that_is_tried_again_is_renewed_past_max_run_and_has_not_overrun() {
    let world = world_with(|builder| builder.max_run(LEASE));
    world.store.plan("complete", Fault::Refused(StoreErrorKind::Unavailable), usize::MAX);
    let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: false, .. }), "{outcome:?}");
    world.advance(LEASE * 4).await;
    let rival: Ended = world.another(|builder| builder).run(request("k"), answering(500)).await;
    assert!(matches!(rival, Outcome::Conflict { .. }), "{rival:?}");
    assert_eq!(world.idempotency.counters().overran, 0);
    world.store.heal();
    world.advance(Duration::from_secs(6)).await;
    let retry: Ended = world.idempotency.run(request("k"), answering(500)).await;
    assert!(matches!(retry, Outcome::Replay { .. }), "{retry:?}");
}
