//! The store fails, or is slow, or loses replies.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem_core::{OnLapse, Response, Retention, State, StoreErrorKind};
use idem_runner::{Claimed, OnUnavailable, Outcome, Settled};
use support::{Ended, Fault, LEASE, answering, eventually, request, request_of, world, world_with};
use tokio::{sync::Notify, task::JoinHandle};

const FOR_EVER: usize = usize::MAX;
const UNAVAILABLE: Fault = Fault::Refused(StoreErrorKind::Unavailable);

#[tokio::test(start_paused = true)]
async fn a_claim_whose_reply_is_lost_is_repeated_with_its_token_and_runs_as_the_first_attempt() {
    for fault in [Fault::ReplyLost, UNAVAILABLE, Fault::Delayed(Duration::from_secs(4))] {
        let world = world();
        world.store.plan("claim", fault, 1);
        let outcome = world.idempotency.run(request("k"), |attempt| async move {
            assert_eq!((attempt.number(), attempt.is_repeat()), (1, false));
            Ok::<_, &'static str>(Response::new(201))
        });
        assert!(matches!(outcome.await, Outcome::Ran { stored: true, .. }), "{fault:?}");
    }
}

// case 075
#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_nothing_runs_and_afterwards_everything_does() {
    for fault in [UNAVAILABLE, Fault::Hangs, Fault::ReplyLost] {
        let world = world();
        world.store.plan("claim", fault, FOR_EVER);
        let refused: Ended = world.idempotency.run(request("k"), |_| async { panic!("it must not run") }).await;
        let Outcome::Store(error) = refused else { panic!("{refused:?}") };
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        world.store.heal();
        // A claim that was written although its reply was lost is taken back, so that a retry need not wait for a lease.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let retry: Ended = world.idempotency.run(request("k"), answering(201)).await;
        assert!(matches!(retry, Outcome::Ran { stored: true, .. }), "{fault:?}: {retry:?}");
        assert_eq!(world.idempotency.counters().unprotected, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_claimed_is_taken_back_once_after_a_pause_as_if_it_had_never_been() {
    let world = world();
    world.store.plan("claim", Fault::ReplyLost, FOR_EVER);
    let refused: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(refused, Outcome::Store(_)), "{refused:?}");
    tokio::time::sleep(Duration::from_millis(500)).await; // the store's trouble passes
    world.store.heal();
    assert!(world.idempotency.shutdown(Duration::from_secs(2)).await, "it is soon over");
    assert_eq!(world.record("k").await.unwrap().state, State::Released, "and a shutdown waits for it");
    let another = world.another(|builder| builder);
    let retry = another.run(request_of("k", "corrected"), |attempt| async move {
        assert!(!attempt.is_repeat(), "nothing was done under it");
        Ok::<_, &'static str>(Response::new(201))
    });
    assert!(matches!(retry.await, Outcome::Ran { stored: true, .. }));

    // While the trouble lasts it is tried once, and given up in time.
    for fault in [UNAVAILABLE, Fault::Hangs] {
        let world = support::world();
        world.store.plan("claim", fault, FOR_EVER);
        let refused: Ended = world.idempotency.run(request("k"), answering(201)).await;
        assert!(matches!(refused, Outcome::Store(_)), "{refused:?}");
        let claims = world.store.calls("claim");
        assert!(world.idempotency.shutdown(Duration::from_secs(7)).await, "{fault:?}");
        assert_eq!(world.store.calls("claim"), claims + 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_is_an_error_like_others_and_what_was_done_is_answered() {
    let world = world();
    world.store.plan("claim", Fault::Panics, 1);
    let refused: Ended = world.idempotency.run(request("k"), |_| async { panic!("it must not run") }).await;
    let Outcome::Store(error) = refused else { panic!("{refused:?}") };
    assert_eq!((error.kind(), error.to_string().contains("panicked")), (StoreErrorKind::Contract, true), "{error}");

    world.store.plan("complete", Fault::Panics, usize::MAX);
    let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: false, .. }), "{outcome:?}");
    assert!(world.idempotency.counters().completion_retries > 0);
    assert_eq!(world.record("k").await.unwrap().state, State::InProgress, "it goes on");

    let hold = world.another(|builder| builder.on_lapse(OnLapse::Hold));
    world.store.plan("renew", Fault::Panics, usize::MAX);
    let refused: Ended = hold.run(request("l"), |_| async { panic!("it must not run") }).await;
    assert!(matches!(&refused, Outcome::Store(error) if error.kind() == StoreErrorKind::Unavailable), "{refused:?}");
    assert!(hold.shutdown(LEASE).await);
    assert_eq!(world.record("l").await.unwrap().state, State::Released, "nothing was done under it");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_is_repeated_for_about_store_timeout() {
    for timeout in [5, 20] {
        let timeout = Duration::from_secs(timeout);
        let world = world_with(|builder| builder.store_timeout(timeout));
        world.store.plan("claim", UNAVAILABLE, FOR_EVER);
        let start = tokio::time::Instant::now();
        let refused: Ended = world.idempotency.run(request("k"), answering(201)).await;
        assert!(matches!(refused, Outcome::Store(_)), "{refused:?}");
        assert!((timeout / 2..timeout).contains(&start.elapsed()), "{timeout:?}: {:?}", start.elapsed());
        // And so long one call may take.
        world.store.plan("claim", Fault::Hangs, FOR_EVER);
        let start = tokio::time::Instant::now();
        let refused: Ended = world.idempotency.run(request("k"), answering(201)).await;
        assert!(matches!(refused, Outcome::Store(_)), "{refused:?}");
        assert_eq!(start.elapsed(), timeout);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_runs_unprotected_leaves_what_may_have_been_claimed_to_its_lease() {
    let world = world_with(|builder| builder.on_unavailable(OnUnavailable::RunUnprotected));
    world.store.plan("claim", Fault::ReplyLost, FOR_EVER);
    let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: false, .. }), "{outcome:?}");
    world.store.heal();
    assert!(world.idempotency.shutdown(Duration::from_secs(5)).await);
    assert_eq!(world.record("k").await.unwrap().state, State::InProgress, "what ran is not forgotten");
}

#[tokio::test(start_paused = true)]
async fn an_error_that_repeating_does_not_help_is_not_repeated() {
    for kind in [StoreErrorKind::Contract, StoreErrorKind::Configuration, StoreErrorKind::Corrupt] {
        let world = world_with(|builder| builder.on_unavailable(OnUnavailable::RunUnprotected));
        world.store.plan("claim", Fault::Refused(kind), FOR_EVER);
        let outcome: Ended = world.idempotency.run(request("k"), |_| async { panic!("it must not run") }).await;
        assert!(matches!(outcome, Outcome::Store(error) if error.kind() == kind));
        assert_eq!(world.store.calls("claim"), 1);
    }
}

// case 075
#[tokio::test(start_paused = true)]
async fn running_unprotected_is_an_explicit_choice_and_counted() {
    let world = world_with(|builder| builder.on_unavailable(OnUnavailable::RunUnprotected));
    world.store.plan("claim", UNAVAILABLE, FOR_EVER);
    for n in 1..=2 {
        let outcome = world.idempotency.run(request("k"), |attempt| async move {
            assert!(!attempt.is_protected());
            Ok::<_, &'static str>(Response::new(201))
        });
        assert!(matches!(outcome.await, Outcome::Ran { stored: false, .. }), "nothing is recorded");
        assert_eq!(world.idempotency.counters().unprotected, n);
    }
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    assert_eq!(running.complete(Response::new(201)).await, Settled::NotStored);
    assert_eq!(world.store.calls("complete"), 0);
    let passing: Ended = world.idempotency.run(request("k"), answering(503)).await;
    assert!(matches!(passing, Outcome::Ran { stored: true, .. }), "nothing was to be recorded: {passing:?}");
}

// case 075
#[tokio::test(start_paused = true)]
async fn nothing_runs_unprotected_beside_an_attempt_of_the_same_service() {
    let world = world_with(|builder| builder.on_unavailable(OnUnavailable::RunUnprotected));
    let finish = Arc::new(Notify::new());
    let running = world.spawn("k", &finish);
    tokio::task::yield_now().await;
    world.store.plan("claim", UNAVAILABLE, FOR_EVER);
    let retry: Ended = world.idempotency.run(request("k"), |_| async { panic!("it ran beside the first") }).await;
    assert!(matches!(retry, Outcome::Store(_)), "{retry:?}");
    finish.notify_one();
    assert!(matches!(running.await.unwrap(), Outcome::Ran { stored: true, .. }));
    let other: Ended = world.idempotency.run(request("l"), answering(201)).await;
    assert!(matches!(other, Outcome::Ran { stored: false, .. }), "{other:?}");
}

// case 076
#[tokio::test(start_paused = true)]
async fn a_completion_that_fails_is_tried_again_until_it_is_stored() {
    for fault in [UNAVAILABLE, Fault::ReplyLost] {
        let world = world();
        world.store.plan("complete", fault, 3);
        let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
        assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
        assert_eq!(world.store.calls("complete"), 4);
        assert_eq!(world.idempotency.counters().completion_retries, 3);
        let retry: Ended = world.idempotency.run(request("k"), answering(500)).await;
        assert!(matches!(retry, Outcome::Replay { .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_is_tried_again_whatever_the_error_unless_it_is_a_bug() {
    for kind in [StoreErrorKind::Configuration, StoreErrorKind::Corrupt] {
        let world = world();
        world.store.plan("complete", Fault::Refused(kind), 2);
        let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
        assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{kind:?}: {outcome:?}");
    }
    let world = world();
    world.store.plan("complete", Fault::Refused(StoreErrorKind::Contract), FOR_EVER);
    let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: false, .. }), "{outcome:?}");
    assert_eq!((world.store.calls("complete"), world.idempotency.counters().completion_failures), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_release_that_goes_on_in_the_background_leaves_nothing_unrecorded() {
    let world = world();
    world.store.plan("release", UNAVAILABLE, FOR_EVER);
    let outcome: Ended = world.idempotency.run(request("k"), answering(503)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
    world.store.heal();
    assert!(world.idempotency.shutdown(LEASE).await);
    assert_eq!(world.record("k").await.unwrap().state, State::Released);
}

#[tokio::test(start_paused = true)]
async fn who_settles_by_hand_is_told_whether_it_goes_on() {
    let world = world_with(|builder| builder.completion_limit(Duration::from_secs(60)));
    for (key, kind, expected) in [
        ("goes on", StoreErrorKind::Unavailable, Settled::Pending),
        ("is over", StoreErrorKind::Contract, Settled::NotStored),
    ] {
        let Claimed::Run(running) = world.idempotency.claim(request(key)).await else { panic!() };
        world.store.plan("complete", Fault::Refused(kind), FOR_EVER);
        assert_eq!(running.complete(Response::new(201)).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_is_tried_every_five_seconds_until_the_limit_and_not_after_it() {
    let hour = Duration::from_secs(3_600);
    let world = world_with(|builder| builder.completion_limit(hour).completion_patience(hour * 2));
    world.store.plan("complete", UNAVAILABLE, FOR_EVER);
    let start = tokio::time::Instant::now();
    let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: false, .. }), "{outcome:?}");
    assert!((hour - Duration::from_secs(5)..hour).contains(&start.elapsed()), "{:?}", start.elapsed());
    let tries = world.store.calls("complete");
    assert!((720..=730).contains(&tries), "quick at first, and every five seconds then: {tries}");
    assert_eq!(world.idempotency.counters().completion_retries as usize, tries - 1);
}

// case 001
#[tokio::test(start_paused = true)]
async fn a_refused_claim_that_is_taken_back_takes_nothing_from_a_running_attempt() {
    let world = world();
    let finish = Arc::new(Notify::new());
    world.store.plan("renew", UNAVAILABLE, FOR_EVER);
    let running = world.spawn("k", &finish);
    tokio::task::yield_now().await;
    // The store is away for longer than the lease, and a retry is refused meanwhile.
    world.clock.advance(LEASE * 2);
    world.store.plan("claim", UNAVAILABLE, FOR_EVER);
    let refused: Ended = world.idempotency.run(request("k"), answering(500)).await;
    assert!(matches!(refused, Outcome::Store(_)), "{refused:?}");
    world.store.heal();
    tokio::time::sleep(Duration::from_secs(10)).await;
    finish.notify_one();
    assert!(matches!(running.await.unwrap(), Outcome::Ran { stored: true, .. }));
    let retry: Ended = world.idempotency.run(request("k"), answering(500)).await;
    assert!(matches!(retry, Outcome::Replay { response, .. } if response.status() == 201));
}

// cases 076, 079
#[tokio::test(start_paused = true)]
async fn an_outcome_that_waits_to_be_stored_is_not_run_again_by_its_own_service_however_long_the_store_was_away() {
    for fault in [UNAVAILABLE, Fault::Hangs] {
        let world = world();
        for operation in ["complete", "renew"] {
            world.store.plan(operation, fault, FOR_EVER);
        }
        let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
        assert!(matches!(outcome, Outcome::Ran { stored: false, .. }), "{outcome:?}");
        // It lapses, for claims are answered all the time.
        for _ in 0..90 {
            world.advance(Duration::from_secs(1)).await;
            let retry: Ended = world.idempotency.run(request("k"), |_| async { panic!("it ran again") }).await;
            assert!(matches!(retry, Outcome::Conflict { .. }), "{fault:?}: {retry:?}");
        }
        world.store.heal();
        world.advance(Duration::from_secs(11)).await;
        let retry: Ended = world.idempotency.run(request("k"), |_| async { panic!("it ran again") }).await;
        assert!(matches!(retry, Outcome::Replay { .. }), "{fault:?}: {retry:?}");
        assert_eq!((world.idempotency.counters().taken_over, world.idempotency.counters().unknown), (0, 0));
    }
}

// cases 018, 076
#[tokio::test(start_paused = true)]
async fn a_handler_whose_renewals_failed_is_not_taken_over_by_who_saw_that_and_by_others_it_is() {
    for on_lapse in [OnLapse::TakeOver, OnLapse::Hold] {
        let world = world_with(|builder| builder.on_lapse(on_lapse));
        let finish = Arc::new(Notify::new());
        let running = world.spawn("k", &finish);
        tokio::task::yield_now().await;
        world.store.plan("renew", UNAVAILABLE, FOR_EVER);
        world.advance(LEASE * 2).await;
        let retry: Ended = world.idempotency.run(request("k"), |_| async { panic!("it ran beside the first") }).await;
        assert!(matches!(retry, Outcome::Conflict { .. }), "{on_lapse:?}: {retry:?}");
        let elsewhere = world.another(|builder| builder.on_lapse(on_lapse));
        world.store.heal();
        let other: Ended = elsewhere.run(request("k"), answering(202)).await;
        match on_lapse {
            OnLapse::TakeOver => assert!(matches!(other, Outcome::Ran { .. }), "{other:?}"),
            OnLapse::Hold => assert!(matches!(other, Outcome::Unknown), "{other:?}"),
        }
        finish.notify_one();
        let ended = running.await.unwrap();
        assert_eq!(matches!(ended, Outcome::Superseded), on_lapse == OnLapse::TakeOver, "{ended:?}");
    }
}

// cases 018, 076
#[tokio::test(start_paused = true)]
async fn after_an_outage_owners_elsewhere_have_the_time_to_renew_and_the_dead_are_taken_over_all_the_same() {
    let world = world();
    let finish = Arc::new(Notify::new());
    let running = world.spawn("alive", &finish);
    tokio::task::yield_now().await;
    let elsewhere = world.another(|builder| builder);
    let Claimed::Run(dead) = elsewhere.claim(request("dead")).await else { panic!() };
    drop(dead);
    for operation in ["claim", "renew"] {
        world.store.plan(operation, Fault::Hangs, FOR_EVER);
    }
    world.advance(LEASE).await;
    let away: JoinHandle<Ended> = {
        let elsewhere = elsewhere.clone();
        tokio::spawn(async move { elsewhere.run(request("alive"), answering(500)).await })
    };
    tokio::task::yield_now().await;
    world.advance(LEASE).await;
    assert!(matches!(away.await.unwrap(), Outcome::Store(_)));
    world.store.heal();
    // At once, when nobody has renewed anything yet.
    for key in ["alive", "dead"] {
        let retry: Ended = elsewhere.run(request(key), |_| async { panic!("it took over") }).await;
        assert!(matches!(retry, Outcome::Conflict { .. }), "{key}: {retry:?}");
    }
    world.advance(LEASE / 3).await;
    let retry: Ended = elsewhere.run(request("alive"), |_| async { panic!("it took over") }).await;
    assert!(matches!(retry, Outcome::Conflict { .. }), "{retry:?}");
    let retry: Ended = elsewhere.run(request("dead"), answering(201)).await;
    assert!(matches!(retry, Outcome::Ran { stored: true, .. }), "{retry:?}");
    finish.notify_one();
    assert!(matches!(running.await.unwrap(), Outcome::Ran { stored: true, .. }));
}

// case 018
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_answered_later_than_its_lease_runs_only_if_it_still_owns_its_key() {
    let slow = |builder: idem_runner::Builder| builder.store_timeout(LEASE * 3);
    let world = world_with(slow);
    let elsewhere = world.another(slow);
    world.store.plan("claim", Fault::Late(LEASE + Duration::from_secs(2)), 1);
    let idempotency = world.idempotency.clone();
    let late: JoinHandle<Ended> =
        tokio::spawn(
            async move { idempotency.run(request("k"), |_| async { panic!("it ran beside its rival") }).await },
        );
    tokio::task::yield_now().await;
    world.advance(LEASE + Duration::from_secs(1)).await;
    let rival: Ended = elsewhere.run(request("k"), answering(201)).await;
    assert!(matches!(rival, Outcome::Ran { stored: true, .. }), "{rival:?}");
    world.advance(Duration::from_secs(2)).await;
    assert!(matches!(late.await.unwrap(), Outcome::Superseded));

    // Without a rival its lease begins anew before it starts.
    world.store.plan("claim", Fault::Late(LEASE + Duration::from_secs(2)), 1);
    let idempotency = world.idempotency.clone();
    let store = world.store.clone();
    let late: JoinHandle<Ended> = tokio::spawn(async move {
        let operation = move |_| async move {
            assert_eq!(store.calls("renew"), 2, "once in vain for the first key, once for this one");
            Ok(Response::new(201))
        };
        idempotency.run(request("l"), operation).await
    });
    tokio::task::yield_now().await;
    world.advance(LEASE + Duration::from_secs(3)).await;
    assert!(matches!(late.await.unwrap(), Outcome::Ran { stored: true, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_loses_no_completion_stops_no_renewal_and_lets_nothing_run_unprotected() {
    let world = world_with(|builder| builder.on_unavailable(OnUnavailable::RunUnprotected));
    let finish = Arc::new(Notify::new());
    let long = world.spawn("long", &finish);
    tokio::task::yield_now().await;
    for operation in ["complete", "renew"] {
        world.store.plan(operation, Fault::Panics, 2);
    }
    let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
    world.advance(LEASE * 3).await;
    assert_eq!(world.idempotency.counters().renewal_failures, 2);
    assert_eq!(world.idempotency.counters().renewed_late, 0);
    finish.notify_one();
    assert!(matches!(long.await.unwrap(), Outcome::Ran { stored: true, .. }));

    world.store.plan("claim", Fault::Panics, 1);
    let outcome: Ended = world.idempotency.run(request("l"), |_| async { panic!("it must not run") }).await;
    assert!(matches!(&outcome, Outcome::Store(error) if error.kind() == StoreErrorKind::Contract), "{outcome:?}");
}

// cases 076, 079
#[tokio::test(start_paused = true)]
async fn while_a_completion_can_not_be_stored_the_client_has_its_answer_and_the_key_is_never_freed() {
    for fault in [UNAVAILABLE, Fault::Hangs] {
        let world = world();
        world.store.plan("complete", fault, FOR_EVER);
        let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
        assert!(matches!(outcome, Outcome::Ran { stored: false, .. }), "{fault:?}: {outcome:?}");
        let retry: Ended = world.idempotency.run(request("k"), answering(500)).await;
        assert!(matches!(retry, Outcome::Conflict { .. }), "{retry:?}");
        // Past the lapse too: here nobody takes over.
        world.clock.advance(LEASE * 2);
        world.store.heal();
        eventually("the response is stored", || async {
            matches!(world.record("k").await.unwrap().state, State::Done(_))
        })
        .await;
        let retry: Ended = world.idempotency.run(request("k"), answering(500)).await;
        assert!(matches!(retry, Outcome::Replay { response, .. } if response.status() == 201));
        assert_eq!(world.idempotency.counters().released, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_waits_for_its_response_to_be_stored_as_long_as_was_chosen() {
    let none = Duration::ZERO;
    for (patience, is_stored) in [(None, false), (Some(LEASE), true), (Some(none), false)] {
        let world = world_with(|builder| match patience {
            Some(patience) => builder.completion_patience(patience),
            None => builder,
        });
        world.store.plan("complete", Fault::Delayed(Duration::from_secs(3)), 1);
        let start = tokio::time::Instant::now();
        let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
        assert!(matches!(outcome, Outcome::Ran { stored, .. } if stored == is_stored), "{patience:?}: {outcome:?}");
        assert_eq!(start.elapsed(), patience.unwrap_or(Duration::from_secs(1)).min(Duration::from_secs(3)));
        assert!(world.idempotency.shutdown(LEASE).await);
        assert!(matches!(world.record("k").await.unwrap().state, State::Done(_)), "{patience:?}");
    }
}

// case 076
#[tokio::test(start_paused = true)]
async fn a_completion_that_is_never_stored_ends_at_its_limit_and_the_takeover_knows_that_it_is_a_repeat() {
    let world = world_with(|builder| builder.completion_limit(Duration::from_secs(5)));
    world.store.plan("complete", UNAVAILABLE, FOR_EVER);
    let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: false, .. }));
    eventually("it gave up", || async { world.idempotency.counters().completion_failures == 1 }).await;
    world.store.heal();
    assert_eq!(world.record("k").await.unwrap().state, State::InProgress, "left to its lease");
    world.clock.advance(LEASE);
    let takeover = world.idempotency.run(request("k"), |attempt| async move {
        assert_eq!((attempt.number(), attempt.is_repeat()), (2, true));
        Ok::<_, &'static str>(Response::new(201))
    });
    assert!(matches!(takeover.await, Outcome::Ran { stored: true, .. }));
    assert_eq!(world.idempotency.counters().taken_over, 1);
}

// case 076
#[tokio::test(start_paused = true)]
async fn while_a_completion_is_tried_again_its_lease_is_renewed() {
    let world = world();
    world.store.plan("complete", UNAVAILABLE, FOR_EVER);
    let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: false, .. }), "{outcome:?}");
    world.advance(LEASE * 2).await;
    let duplicate: Ended = world.another(|builder| builder).run(request("k"), answering(500)).await;
    assert!(matches!(duplicate, Outcome::Conflict { .. }), "{duplicate:?}");
    world.store.heal();
    eventually("the response is stored", || async { matches!(world.record("k").await.unwrap().state, State::Done(_)) })
        .await;
}

// case 006
#[tokio::test(start_paused = true)]
async fn while_a_completion_is_on_its_way_a_duplicate_conflicts() {
    let world = world();
    world.store.plan("complete", Fault::Delayed(Duration::from_millis(300)), 1);
    let idempotency = world.idempotency.clone();
    let first = tokio::spawn(async move { idempotency.run(request("k"), answering(201)).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let duplicate: Ended = world.idempotency.run(request("k"), answering(500)).await;
    assert!(matches!(duplicate, Outcome::Conflict { .. }), "{duplicate:?}");
    assert!(matches!(first.await.unwrap(), Outcome::Ran { stored: true, .. }));
    let retry: Ended = world.idempotency.run(request("k"), answering(500)).await;
    assert!(matches!(retry, Outcome::Replay { .. }));
}

// cases 001, 018, 019: the lease is lost while the handler blocks the only thread of its runtime
#[tokio::test]
async fn an_attempt_that_lost_its_key_while_it_ran_is_superseded_and_overwrites_nothing() {
    let world = Arc::new(world());
    let rival = world.clone();
    let outcome: Ended = world
        .idempotency
        .run(request("k"), |attempt| async move {
            // A blocking handler: another server takes over and completes before this one comes to its end.
            let took_over = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                rival.clock.advance(LEASE);
                let operation = |attempt: idem_runner::Attempt| async move {
                    assert_eq!((attempt.number(), attempt.is_repeat()), (2, true));
                    Ok::<_, &'static str>(Response::new(201).with_body("R2"))
                };
                let outcome = runtime.block_on(rival.another(|builder| builder).run(request("k"), operation));
                matches!(outcome, Outcome::Ran { stored: true, .. })
            });
            assert!(took_over.join().unwrap());
            assert_eq!(attempt.number(), 1);
            Ok(Response::new(201).with_body("R1"))
        })
        .await;
    assert!(matches!(outcome, Outcome::Superseded), "{outcome:?}");
    assert_eq!(world.idempotency.counters().superseded, 1);
    assert_eq!(world.store.calls("read"), 0, "it used no transaction that the record could tell of");
    let retry: Ended = world.idempotency.run(request("k"), answering(500)).await;
    assert!(matches!(retry, Outcome::Replay { response, .. } if response == Response::new(201).with_body("R2")));
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_is_done_within_a_third_of_its_lease_costs_no_renewal() {
    let world = world();
    let operation = |_| async {
        tokio::time::sleep(LEASE / 4).await;
        Ok::<_, &'static str>(Response::new(201))
    };
    let outcome = world.idempotency.run(request("k"), operation).await;
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }));
    tokio::time::sleep(LEASE * 3).await;
    assert_eq!(world.store.calls("renew"), 0, "neither while it ran nor afterwards");
}

// case 018
#[tokio::test(start_paused = true)]
async fn handlers_that_outlive_their_leases_three_times_keep_their_keys() {
    let world = world();
    let finish = Arc::new(Notify::new());
    let mut running = Vec::new();
    for key in ["k", "l", "m"] {
        running.push(world.spawn(key, &finish));
    }
    for _ in 0..3 {
        world.advance(LEASE).await;
        for key in ["k", "l", "m"] {
            let duplicate: Ended = world.another(|builder| builder).run(request(key), answering(500)).await;
            assert!(matches!(duplicate, Outcome::Conflict { .. }), "{key}: {duplicate:?}");
        }
    }
    let renewals = world.store.calls("renew");
    assert!((9..=30).contains(&renewals), "three in a lease, for three attempts: {renewals}");
    finish.notify_waiters();
    for ended in running {
        assert!(matches!(ended.await.unwrap(), Outcome::Ran { stored: true, .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_outlives_the_retention_keeps_its_key_too() {
    let world = world_with(|builder| builder.retention(Retention::new(LEASE).with_held(LEASE)));
    let finish = Arc::new(Notify::new());
    let first = world.spawn("k", &finish);
    world.advance(LEASE * 3).await;
    let duplicate: Ended = world.another(|builder| builder).run(request("k"), answering(500)).await;
    assert!(matches!(duplicate, Outcome::Conflict { .. }), "{duplicate:?}");
    finish.notify_one();
    assert!(matches!(first.await.unwrap(), Outcome::Ran { stored: true, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_never_returns_holds_its_key_for_max_run_and_is_told_when_it_lost_it() {
    let world = world_with(|builder| builder.max_run(LEASE * 2));
    let told = Arc::new(AtomicUsize::new(0));
    let (idempotency, telling) = (world.idempotency.clone(), told.clone());
    let operation = move |attempt: idem_runner::Attempt| async move {
        attempt.superseded().await;
        telling.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Result<Response, &'static str>>().await
    };
    let stuck = tokio::spawn(async move { idempotency.run(request("k"), operation).await });
    world.advance(LEASE * 3 - Duration::from_secs(11)).await;
    let within: Ended = world.another(|builder| builder).run(request("k"), answering(201)).await;
    assert!(matches!(within, Outcome::Conflict { .. }), "{within:?}");
    world.advance(Duration::from_secs(12)).await;
    let after: Ended = world.another(|builder| builder).run(request("k"), answering(201)).await;
    assert!(matches!(after, Outcome::Ran { stored: true, .. }), "{after:?}");
    // Its renewals had ended, and all the same it is told, so that it can stop, and counted, although it never ends.
    world.advance(LEASE + LEASE / 4).await;
    assert_eq!(told.load(Ordering::SeqCst), 1);
    let counters = world.idempotency.counters();
    assert_eq!((counters.overran, counters.superseded), (1, 1));
    stuck.abort();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_told_that_it_lost_its_key_while_it_still_runs() {
    let world = world();
    let idempotency = world.idempotency.clone();
    let operation = |attempt: idem_runner::Attempt| async move {
        attempt.superseded().await;
        assert!(attempt.is_superseded());
        Err::<Response, _>("stopped")
    };
    let running = tokio::spawn(async move { idempotency.run(request("k"), operation).await });
    tokio::task::yield_now().await;
    world.clock.advance(LEASE); // the store's clock alone: the next renewal comes too late
    let takeover: Ended = world.another(|builder| builder).run(request("k"), answering(201)).await;
    assert!(matches!(takeover, Outcome::Ran { stored: true, .. }), "{takeover:?}");
    assert!(matches!(running.await.unwrap(), Outcome::Superseded));
    assert_eq!(world.idempotency.counters().superseded, 1, "told by a renewal and by its own end, counted once");
    let retry: Ended = world.idempotency.run(request("k"), answering(500)).await;
    assert!(matches!(retry, Outcome::Replay { response, .. } if response.status() == 201));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_renewed_only_after_it_had_lapsed_is_counted() {
    let world = world();
    world.store.plan("renew", UNAVAILABLE, FOR_EVER);
    let finish = Arc::new(Notify::new());
    let first = world.spawn("k", &finish);
    world.advance(LEASE * 2).await;
    assert_eq!(world.idempotency.counters().renewed, 0);
    world.store.heal();
    world.advance(LEASE).await;
    finish.notify_one();
    assert!(matches!(first.await.unwrap(), Outcome::Ran { stored: true, .. }));
    let counters = world.idempotency.counters();
    assert_eq!(counters.renewed_late, 1, "{counters:?}");
    assert!(counters.renewed >= 3 && counters.renewal_failures >= 3, "{counters:?}");
}

// case 019
#[tokio::test]
async fn a_handler_that_blocks_the_only_thread_for_two_leases_is_counted_although_nobody_took_over() {
    let lease = Duration::from_millis(200);
    let world = world_with(|builder| builder.lease(lease).max_run(Duration::from_secs(600)));
    let counting = world.idempotency.clone();
    let operation = move |_| async move {
        std::thread::sleep(lease * 2); // as a handler does that should not
        eventually("it is renewed, late", || async { counting.counters().renewed_late >= 1 }).await;
        Ok::<_, &'static str>(Response::new(201))
    };
    let outcome = world.idempotency.run(request("k"), operation).await;
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
}

// case 019
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_blocks_its_thread_is_renewed_from_another() {
    let world = world_with(|builder| builder.lease(Duration::from_millis(600)).max_run(Duration::from_secs(60)));
    let renewed = world.store.clone();
    let operation = move |_| async move {
        // Blocks until three renewals came through, with a deadline.
        for _ in 0..2_000 {
            if renewed.calls("renew") >= 3 {
                return Ok(Response::new(201));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err("nobody renewed")
    };
    // In a task, as servers run handlers: what the runner starts stands behind it on the same thread.
    let idempotency = world.idempotency.clone();
    let outcome = tokio::spawn(async move { idempotency.run(request("k"), operation).await }).await.unwrap();
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_tried_again_before_the_lease_ends() {
    let world = world();
    world.store.plan("renew", UNAVAILABLE, 1);
    let finish = Arc::new(Notify::new());
    let first = world.spawn("k", &finish);
    world.advance(LEASE + LEASE / 2).await;
    let duplicate: Ended = world.another(|builder| builder).run(request("k"), answering(500)).await;
    assert!(matches!(duplicate, Outcome::Conflict { .. }), "{duplicate:?}");
    finish.notify_one();
    assert!(matches!(first.await.unwrap(), Outcome::Ran { stored: true, .. }));
}
