//! Leases: renewed while handlers run, and what happens when they are not.

use std::{
    num::NonZeroU32,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use idem::{Attempt, Claimed, Outcome, Resolution, Resolved, Response, State};
use tokio::sync::Notify;

use crate::place::{
    Ended, LEASE, LIMIT, Place, answering, assert_ran, assert_replays, eventually, key, never, record, request, scope,
};

/// Short in the runner's real time, so that it renews often; by the store's clock it ends only where that is moved.
const SHORT: Duration = Duration::from_millis(600);

// case 018
pub(crate) async fn a_handler_that_outlives_its_lease_three_times_keeps_its_key(place: Place) {
    let (runner, _) = place.runner(|builder| builder.lease(SHORT).max_run(LIMIT)).await;
    let (other, _) = place.runner(|builder| builder).await;
    let finish = Arc::new(Notify::new());
    let (running, told) = (runner.clone(), Arc::clone(&finish));
    let operation = move |attempt: Attempt| async move {
        told.notified().await;
        assert!(!attempt.is_superseded());
        Ok::<_, &'static str>(Response::new(201))
    };
    let first = tokio::spawn(async move { running.run(request("k"), operation).await });
    let begun = place.clock.now();
    while place.clock.now().since(begun) <= SHORT * 3 {
        let renewed = runner.counters().renewed;
        eventually("it is renewed", || async { runner.counters().renewed > renewed }).await;
        place.clock.advance(SHORT / 2);
        let duplicate: Ended = other.run(request("k"), never).await;
        assert!(matches!(duplicate, Outcome::Conflict { .. }), "{duplicate:?}");
    }
    finish.notify_one();
    assert_ran(&first.await.unwrap(), 201);
    assert_replays(&other.run(request("k"), never).await, 201);
    assert_eq!((runner.counters().superseded, other.counters().taken_over), (0, 0));
}

// case 019
pub(crate) async fn a_handler_that_blocks_its_thread_is_renewed_from_another(place: Place) {
    let (runner, _) = place.runner(|builder| builder.lease(SHORT).max_run(LIMIT)).await;
    let counting = runner.clone();
    let operation = move |_| async move {
        let begun = Instant::now();
        while counting.counters().renewed < 3 {
            assert!(begun.elapsed() < LIMIT, "nobody renewed");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok::<_, &'static str>(Response::new(201))
    };
    // In a task, as servers run handlers.
    let running = runner.clone();
    let outcome = tokio::spawn(async move { running.run(request("k"), operation).await }).await.unwrap();
    assert_ran(&outcome, 201);
}

// cases 001, 019
pub(crate) async fn a_handler_that_blocks_the_only_thread_of_its_runtime_is_superseded_and_overwrites_nothing(
    place: Place,
) {
    let place = Arc::new(place);
    let (started, has_started) = tokio::sync::oneshot::channel();
    let (go_on, waits) = mpsc::channel::<()>();
    let blocked = {
        let place = Arc::clone(&place);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (runner, _) = place.runner(|builder| builder).await;
                let operation = move |_| async move {
                    started.send(()).unwrap();
                    waits.recv_timeout(LIMIT).unwrap(); // nothing else moves on this runtime meanwhile
                    Ok::<_, &'static str>(Response::new(201).with_body("R1"))
                };
                let outcome = runner.run(request("k"), operation).await;
                (matches!(outcome, Outcome::Superseded), runner.counters())
            })
        })
    };
    has_started.await.unwrap();
    place.clock.advance(LEASE);
    let (other, _) = place.runner(|builder| builder).await;
    let takeover = |attempt: Attempt| async move {
        assert_eq!((attempt.number(), attempt.is_repeat()), (2, true));
        Ok(Response::new(202).with_body("R2"))
    };
    assert_ran(&other.run(request("k"), takeover).await, 202);
    go_on.send(()).unwrap();
    let (is_superseded, counters) = tokio::task::spawn_blocking(|| blocked.join().unwrap()).await.unwrap();
    assert!(is_superseded);
    assert_eq!((counters.superseded, counters.completed), (1, 0), "the loss is detected and counted");
    assert_replays(&other.run(request("k"), never).await, 202);
}

// case 052
pub(crate) async fn a_handler_that_panics_gives_its_key_back_and_the_next_is_a_repeat(place: Place) {
    let (runner, _) = place.runner(|builder| builder).await;
    let panicking = |_| async { if true { panic!("as planned") } else { Ok::<Response, &str>(Response::new(1)) } };
    let outcome = runner.run(request("k"), panicking).await;
    assert!(matches!(outcome, Outcome::Panicked), "{outcome:?}");
    assert_eq!(record(&runner, "k").await.unwrap().state, State::Released);
    let next = |attempt: Attempt| async move {
        assert_eq!((attempt.number(), attempt.is_repeat()), (2, true));
        Ok(Response::new(201))
    };
    assert_ran(&runner.run(request("k"), next).await, 201);
    assert!(runner.shutdown(LIMIT).await, "nothing hangs");
}

pub(crate) async fn a_handler_that_never_returns_is_told_that_it_lost_its_key_and_counted(place: Place) {
    let (runner, _) = place.runner(|builder| builder.lease(SHORT).max_run(SHORT)).await;
    let (other, _) = place.runner(|builder| builder).await;
    let told = Arc::new(Notify::new());
    let (running, telling) = (runner.clone(), Arc::clone(&told));
    let operation = move |attempt: Attempt| async move {
        attempt.superseded().await;
        telling.notify_one();
        std::future::pending::<Result<Response, &'static str>>().await
    };
    let stuck = tokio::spawn(async move { running.run(request("k"), operation).await });
    eventually("it ran longer than it may", || async { runner.counters().overran == 1 }).await;
    place.clock.advance(SHORT);
    assert_ran(&other.run(request("k"), answering(202)).await, 202);
    tokio::time::timeout(LIMIT, told.notified()).await.expect("it is told");
    assert_eq!(runner.counters().superseded, 1);
    assert!(!stuck.is_finished());
    assert!(!runner.shutdown(Duration::from_millis(10)).await, "it still runs");
    stuck.abort();
}

pub(crate) async fn a_key_that_kills_its_process_each_time_is_unknown_at_the_lapse_limit(place: Place) {
    let (runner, _) = place.runner(|builder| builder.lapse_limit(NonZeroU32::new(3))).await;
    for n in 1..=3 {
        let Claimed::Run(running) = runner.claim(request("k")).await else { panic!("attempt {n}") };
        assert_eq!(running.attempt().number(), n);
        drop(running);
        place.clock.advance(LEASE);
    }
    for _ in 0..2 {
        let outcome: Ended = runner.run(request("k"), never).await;
        assert!(matches!(outcome, Outcome::Unknown), "{outcome:?}");
    }
    assert_eq!(runner.counters().taken_over, 2);
    let seen = record(&runner, "k").await.unwrap().attempt();
    let resolved = runner.resolve(scope(), key("k"), seen, Resolution::Released).await.unwrap();
    assert_eq!(resolved, Resolved::Released);
    assert_ran(&runner.run(request("k"), answering(201)).await, 201);
}
