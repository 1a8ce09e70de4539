//! A client that hangs up cancels nothing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use idem_core::{Response, State};
use idem_runner::{Claimed, Outcome};
use support::{Ended, Fault, answering, eventually, request, world};

/// Polls a future `times` times, then drops it. True if it was ready before.
async fn dropped_after<F: Future>(times: usize, future: F) -> bool {
    let mut future = pin!(future);
    for _ in 0..times {
        let ready = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
        if ready {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

// cases 047, 051, 119
#[tokio::test]
async fn dropped_at_any_point_after_its_first_poll_an_operation_runs_to_its_end_once() {
    let mut finished = 0;
    for polls in 1..100 {
        let world = world();
        // Pending answers of the store make points to be dropped at, before, during and after the operation.
        world.store.plan("claim", Fault::Slowly(5), 1);
        world.store.plan("complete", Fault::Slowly(5), 1);
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        let operation = move |_| async move {
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            counted.fetch_add(1, Ordering::SeqCst);
            Ok::<_, &'static str>(Response::new(201))
        };
        let ready = dropped_after(polls, world.idempotency.run(request("k"), operation)).await;
        assert!(world.idempotency.shutdown(Duration::from_secs(20)).await, "what was dropped ends all the same");
        let retry: Ended = world.another(|builder| builder).run(request("k"), answering(500)).await;
        assert!(matches!(retry, Outcome::Replay { .. }), "dropped after {polls} polls: {retry:?}");
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        finished += usize::from(ready);
        if finished == 3 {
            return; // the polls cover the whole run
        }
    }
    panic!("the run never ended within the polls");
}

#[tokio::test]
async fn a_future_that_was_never_polled_did_nothing() {
    let world = world();
    drop(world.idempotency.run(request("k"), answering(201)));
    assert!(world.idempotency.shutdown(Duration::from_secs(5)).await);
    assert_eq!(world.store.calls("claim"), 0);
}

#[tokio::test]
async fn a_claim_by_hand_that_is_dropped_before_it_is_answered_is_given_back() {
    let world = world();
    world.store.plan("claim", Fault::Slowly(5), 1);
    assert!(!dropped_after(1, world.idempotency.claim(request("k"))).await);
    eventually("the key is free", || async {
        world.record("k").await.is_some_and(|record| record.state == State::Released)
    })
    .await;
    let next = world.idempotency.claim(request("k")).await;
    let Claimed::Run(running) = next else { panic!("{next:?}") };
    assert!(!running.attempt().is_repeat(), "nothing was done under it");
}

#[tokio::test]
async fn a_handler_that_is_dropped_with_its_claim_leaves_the_key_to_its_lease() {
    let world = world();
    drop(world.idempotency.claim(request("k")).await);
    assert!(world.idempotency.shutdown(Duration::from_secs(5)).await, "whatever the drop started has ended");
    let next = world.another(|builder| builder);
    let retry: Ended = next.run(request("k"), answering(201)).await;
    assert!(matches!(retry, Outcome::Conflict { .. }), "what it did is not known, so the key is not freed: {retry:?}");
    world.clock.advance(support::LEASE);
    let later = next.run(request("k"), |attempt| async move {
        assert!(attempt.is_repeat());
        Ok::<_, &'static str>(Response::new(201))
    });
    assert!(matches!(later.await, Outcome::Ran { stored: true, .. }));
}

#[tokio::test]
async fn settling_by_hand_goes_on_when_its_future_is_dropped() {
    let world = world();
    for (key, polls) in [("never polled", 0), ("polled", 1)] {
        let Claimed::Run(running) = world.idempotency.claim(request(key)).await else { panic!() };
        world.store.plan("complete", Fault::Slowly(5), 1);
        assert!(!dropped_after(polls, running.complete(Response::new(201))).await);
    }
    assert!(world.idempotency.shutdown(Duration::from_secs(5)).await);
    for key in ["never polled", "polled"] {
        assert!(matches!(world.record(key).await.unwrap().state, State::Done(_)), "{key}");
    }
}
