//! Holding, steps, transactions, sweeping and shutting down.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use idem_core::{
    Body, CommitError, Completion, Fenced, NotRetained, OnLapse, Origin, Resolve, Response, Retention, State, Store,
    StoreErrorKind, Token, Transaction,
};
use idem_runner::{
    Answered, Attempt, Claimed, ConfigError, Idempotency, OnConflict, OnUnavailable, Outcome, Resolution, Resolved,
    Settled, StepError, Sweep,
};
use support::{Ended, Fault, Faulty, LEASE, answering, eventually, request, world, world_with};
use tokio::sync::Notify;

fn under_hold() -> support::World {
    world_with(|builder| builder.on_lapse(OnLapse::Hold))
}

async fn resolve(world: &support::World, key: &str) -> idem_core::Owner {
    let seen = world.record(key).await.unwrap().attempt();
    let key = idem_core::Key::new(key).unwrap();
    let resolve = Resolve::new(support::scope(), key, seen, Token::from_bytes([9; 16]));
    match idem_core::resolve(&*world.store, &resolve).await.unwrap() {
        Fenced::Written(grant) => grant.owner().clone(),
        Fenced::Superseded => panic!("it could not be resolved"),
    }
}

#[tokio::test]
async fn under_hold_a_failure_leaves_the_outcome_unknown_until_someone_resolves_it() {
    for failure in [Some(Ok(Response::new(503))), Some(Err("broken")), None] {
        let world = under_hold();
        let _ = world.idempotency.run(request("k"), |_| async { failure.expect("a panic as planned") }).await;
        let retry: Ended = world.idempotency.run(request("k"), answering(201)).await;
        assert!(matches!(retry, Outcome::Unknown), "{retry:?}");
        let resolver = resolve(&world, "k").await;
        world.store.complete(&resolver, &Response::new(201), Retention::default()).await.unwrap();
        let retry: Ended = world.idempotency.run(request("k"), answering(500)).await;
        assert!(matches!(retry, Outcome::Replay { response, .. } if response.status() == 201));
    }
}

#[tokio::test]
async fn what_is_held_or_lapsed_is_resolved_as_done_or_released_by_whoever_looked_at_it() {
    for lapses in [false, true] {
        let world = under_hold();
        for key in ["done", "released"] {
            let Claimed::Run(running) = world.idempotency.claim(request(key)).await else { panic!() };
            if lapses { drop(running) } else { assert_eq!(running.hold().await, Settled::GivenBack) }
        }
        world.clock.advance(LEASE);
        let resolve = async |key: &str, resolution| {
            let seen = world.record(key).await.unwrap().attempt();
            let key = idem_core::Key::new(key).unwrap();
            world.idempotency.resolve(support::scope(), key, seen, resolution).await.unwrap()
        };
        // Lost replies and short outages are gone through.
        world.store.plan("resolve", Fault::ReplyLost, 1);
        world.store.plan("complete", Fault::ReplyLost, 1);
        let response = Response::new(201).with_body("found out");
        assert_eq!(resolve("done", Resolution::Done(response.clone())).await, Resolved::Done(response.clone()));
        let retry: Ended = world.idempotency.run(request("done"), answering(500)).await;
        assert!(matches!(retry, Outcome::Replay { response: replayed, .. } if replayed == response));
        assert_eq!(resolve("done", Resolution::Released).await, Resolved::Superseded, "it is known");

        assert_eq!(resolve("released", Resolution::Released).await, Resolved::Released);
        let again = world.idempotency.run(request("released"), |attempt| async move {
            assert!(attempt.is_repeat());
            Ok::<_, &'static str>(Response::new(201))
        });
        assert!(matches!(again.await, Outcome::Ran { stored: true, .. }));
        assert_eq!(world.idempotency.counters().resolved, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_resolver_has_the_lease_and_retention_that_are_set_and_is_not_counted_if_it_loses_the_record() {
    let (lease, hour) = (Duration::from_secs(10), Duration::from_secs(3_600));
    let keep = Retention::new(hour).with_held(hour * 5);
    let world = world_with(|builder| builder.on_lapse(OnLapse::Hold).lease(lease).retention(keep));
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    assert_eq!(running.hold().await, Settled::GivenBack);
    let resolve = async |idempotency: &Idempotency, resolution| {
        let seen = world.record("k").await.unwrap().attempt();
        idempotency.resolve(support::scope(), idem_core::Key::new("k").unwrap(), seen, resolution).await
    };
    // It fails between taking the record and settling it.
    world.store.plan("complete", Fault::Refused(StoreErrorKind::Corrupt), 1);
    let error = resolve(&world.idempotency, Resolution::Done(Response::new(201))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    let (record, now) = (world.record("k").await.unwrap(), world.clock.now());
    assert_eq!((record.lease_end.since(now), record.expiry.since(now)), (lease, hour * 5));

    // It is slow, and loses the record to another, who has a short outage to go through.
    world.clock.advance(lease);
    for (operation, resolution) in
        [("complete", Resolution::Done(Response::new(500))), ("release", Resolution::Released)]
    {
        world.store.plan(operation, Fault::Delayed(Duration::from_secs(2)), 1);
        let other = world.another(|builder| builder.on_lapse(OnLapse::Hold).retention(keep));
        let before = world.idempotency.counters().resolved;
        let late = resolve(&world.idempotency, resolution);
        let rival = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            world.clock.advance(lease);
            let released = resolve(&other, Resolution::Released).await.unwrap();
            assert_eq!(released, Resolved::Released);
            let Claimed::Run(running) = other.claim(request("k")).await else { panic!() };
            assert_eq!(running.hold().await, Settled::GivenBack);
        };
        let (late, ()) = tokio::join!(late, rival);
        assert_eq!((late.unwrap(), world.idempotency.counters().resolved), (Resolved::Superseded, before));
    }
    world.store.plan("release", Fault::ReplyLost, 1);
    assert_eq!(resolve(&world.idempotency, Resolution::Released).await.unwrap(), Resolved::Released);
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    assert_eq!(running.hold().await, Settled::GivenBack);
    let done = resolve(&world.idempotency, Resolution::Done(Response::new(201))).await.unwrap();
    assert_eq!(done, Resolved::Done(Response::new(201)));
    assert_eq!(world.record("k").await.unwrap().expiry.since(world.clock.now()), hour);
    assert_eq!(world.idempotency.counters().resolved, 2);
}

#[tokio::test(start_paused = true)]
async fn each_resolver_has_a_token_of_its_own_and_an_error_names_what_was_asked_for() {
    let world = under_hold();
    let mut tokens = Vec::new();
    for key in ["k", "l"] {
        let Claimed::Run(running) = world.idempotency.claim(request(key)).await else { panic!() };
        let seen = running.attempt().owner().attempt();
        assert_eq!(running.hold().await, Settled::GivenBack);
        let resolve = || {
            let key = idem_core::Key::new(key).unwrap();
            world.idempotency.resolve(support::scope(), key, seen, Resolution::Released)
        };
        world.store.plan("resolve", Fault::Hangs, 1);
        let error = resolve().await.unwrap_err();
        assert!(error.to_string().starts_with("faulty store, resolve: it gave no answer within 5s"), "{error}");
        assert_eq!(resolve().await.unwrap(), Resolved::Released);
        tokens.push(world.record(key).await.unwrap().token);
    }
    assert_ne!(tokens[0], tokens[1]);
}

#[tokio::test(start_paused = true)]
async fn resolving_goes_on_when_its_future_is_dropped_and_a_shutdown_waits_for_it() {
    let world = under_hold();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let (idempotency, seen) = (world.idempotency.clone(), running.attempt().owner().attempt());
    assert_eq!(running.hold().await, Settled::GivenBack);
    world.store.plan("complete", Fault::Delayed(Duration::from_secs(2)), 1);
    let resolving = tokio::spawn(async move {
        let done = Resolution::Done(Response::new(201));
        idempotency.resolve(support::scope(), idem_core::Key::new("k").unwrap(), seen, done).await
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    resolving.abort();
    assert!(resolving.await.unwrap_err().is_cancelled());
    assert!(world.idempotency.shutdown(Duration::from_secs(2)).await);
    assert_eq!(world.record("k").await.unwrap().state, State::Done(Response::new(201)));
}

#[tokio::test]
async fn who_resolves_an_attempt_that_has_gone_on_since_changes_nothing() {
    let world = under_hold();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let seen = running.attempt().owner().attempt();
    let key = idem_core::Key::new("k").unwrap();
    let resolve = |seen| {
        let done = Resolution::Done(Response::new(500));
        world.idempotency.resolve(support::scope(), key.clone(), seen, done)
    };
    assert_eq!(resolve(seen).await.unwrap(), Resolved::Superseded, "its lease is live");
    world.clock.advance(LEASE);
    let elsewhere = idem_core::AttemptId { number: 7, ..seen };
    assert_eq!(resolve(elsewhere).await.unwrap(), Resolved::Superseded, "not what was seen");
    assert_eq!(running.complete(Response::new(201)).await, Settled::Completed(Response::new(201)));
    assert_eq!(resolve(seen).await.unwrap(), Resolved::Superseded, "it ended by itself");
    assert_eq!(world.idempotency.counters().resolved, 0);
}

// cases 036, 125
#[tokio::test]
async fn a_response_that_is_too_large_or_a_secret_goes_out_whole_and_is_spent() {
    let world = world_with(|builder| builder.max_response(100));
    let whole = |size: usize| Response::new(201).with_header("location", "/1").with_body(vec![7; size]);
    for (key, size, is_secret, kept) in [
        ("fits", 100, false, whole(100)),
        ("large", 101, false, whole(0).with_kept(Body::NotRetained(NotRetained::TooLarge))),
        ("secret", 100, true, Response::new(201).with_kept(Body::NotRetained(NotRetained::Secret))),
    ] {
        let operation = move |attempt: Attempt| async move {
            if is_secret {
                attempt.do_not_retain();
            }
            Ok::<_, &'static str>(whole(size))
        };
        let first = world.idempotency.run(request(key), operation).await;
        let Outcome::Ran { reply, stored: true } = first else { panic!("{key}: {first:?}") };
        assert_eq!(reply, whole(size), "{key}");
        let retry: Ended = world.idempotency.run(request(key), |_| async { panic!("it must not run again") }).await;
        assert!(matches!(retry, Outcome::Replay { response, .. } if response == kept), "{key}");

        let by_hand = format!("{key} by hand");
        let Claimed::Run(running) = world.idempotency.claim(request(&by_hand)).await else { panic!() };
        if is_secret {
            running.attempt().do_not_retain();
        }
        assert_eq!(running.complete(whole(size)).await, Settled::Completed(whole(size)), "{key}");
        let State::Done(recorded) = world.record(&by_hand).await.unwrap().state else { panic!() };
        assert_eq!(recorded, kept, "{key}");
    }
    assert_eq!(world.idempotency.counters().not_retained, 4);
}

// case 036
#[tokio::test]
async fn a_secret_that_is_too_large_is_recorded_as_a_secret_and_what_is_sealed_is_measured_too() {
    let world = world_with(|builder| builder.max_response(100));
    let large = || Response::new(201).with_header("location", "/secrets/1");
    let secret = Response::new(201).with_kept(Body::NotRetained(NotRetained::Secret));
    let too_large = large().with_kept(Body::NotRetained(NotRetained::TooLarge));
    let sealed = |size| Body::Sealed { key_id: "of the operation's own".into(), bytes: vec![7; size].into() };
    for (key, is_secret, response, kept) in [
        ("a secret and large", true, large().with_body(vec![7; 101]), secret.clone()),
        ("a secret and too large for others", true, too_large.clone(), secret.clone()),
        ("too large for others", false, too_large.clone(), too_large.clone()),
        ("sealed and large", false, large().with_kept(sealed(101)), too_large),
        ("sealed and fits", false, large().with_kept(sealed(100)), large().with_kept(sealed(100))),
    ] {
        let operation = move |attempt: Attempt| async move {
            if is_secret {
                attempt.do_not_retain();
            }
            Ok::<_, &'static str>(response)
        };
        assert!(matches!(world.idempotency.run(request(key), operation).await, Outcome::Ran { stored: true, .. }));
        assert_eq!(world.record(key).await.unwrap().state, State::Done(kept), "{key}");
    }
}

#[tokio::test]
async fn what_is_not_to_be_retained_and_not_final_is_released_as_ever() {
    let world = world();
    let operation = |attempt: Attempt| async move {
        attempt.do_not_retain();
        Ok::<_, &'static str>(Response::new(503).with_body("a secret"))
    };
    assert!(matches!(world.idempotency.run(request("k"), operation).await, Outcome::Ran { stored: true, .. }));
    assert_eq!(world.record("k").await.unwrap().state, State::Released);
}

#[tokio::test]
async fn under_hold_a_release_by_hand_is_a_hold() {
    let world = under_hold();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    assert_eq!(running.release().await, Settled::GivenBack);
    let retry: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(retry, Outcome::Unknown), "{retry:?}");
}

#[tokio::test(start_paused = true)]
async fn under_hold_an_attempt_that_lost_its_key_before_it_could_confirm_does_not_run() {
    let world = under_hold();
    world.store.plan("renew", Fault::Delayed(Duration::from_secs(3)), 1);
    let (idempotency, runs) = (world.idempotency.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = runs.clone();
    let operation = move |_| async move {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok::<_, &'static str>(Response::new(201))
    };
    let late = tokio::spawn(async move { idempotency.run(request("k"), operation).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.clock.advance(LEASE);
    let rival = world.another(|builder| builder.on_lapse(OnLapse::Hold)).claim(request("k")).await;
    let Claimed::Run(rival) = rival else { panic!("{rival:?}") };
    assert_eq!(rival.attempt().number(), 2);
    assert!(matches!(late.await.unwrap(), Outcome::Superseded));
    assert_eq!((runs.load(Ordering::SeqCst), world.idempotency.counters().superseded), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn under_hold_an_operation_starts_only_once_the_store_knows_that_it_does() {
    let world = under_hold();
    world.store.plan("renew", Fault::ReplyLost, 2);
    let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");

    world.store.plan("renew", Fault::Refused(StoreErrorKind::Unavailable), usize::MAX);
    let refused: Ended = world.idempotency.run(request("l"), |_| async { panic!("it must not run") }).await;
    assert!(matches!(refused, Outcome::Store(_)), "{refused:?}");
    world.store.heal();
    eventually("the key is given back", || async { world.record("l").await.unwrap().state == State::Released }).await;
    let retry: Ended = world.idempotency.run(request("l"), answering(201)).await;
    assert!(matches!(retry, Outcome::Ran { stored: true, .. }), "{retry:?}");
}

#[tokio::test(start_paused = true)]
async fn under_hold_an_operation_that_was_said_to_start_and_did_not_is_given_back_through_a_short_outage() {
    let world = under_hold();
    world.store.plan("renew", Fault::ReplyLost, usize::MAX);
    world.store.plan("forget", Fault::Refused(StoreErrorKind::Unavailable), 3);
    let refused: Ended = world.idempotency.run(request("k"), |_| async { panic!("it must not run") }).await;
    assert!(matches!(refused, Outcome::Store(_)), "{refused:?}");
    assert!(world.idempotency.shutdown(Duration::from_secs(5)).await);
    assert_eq!(world.record("k").await.unwrap().state, State::Released, "nobody has to find out what became of it");
}

// case 017
#[tokio::test]
async fn under_hold_an_attempt_that_started_and_died_is_never_taken_over() {
    let world = under_hold();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let record = world.record("k").await.unwrap();
    assert!(record.started, "it said that it starts before it does");
    assert_eq!(record.lease_end.since(world.clock.now()), LEASE);
    drop(running);
    for later in [LEASE, Duration::from_secs(3_600)] {
        world.clock.advance(later);
        let retry: Ended = world.idempotency.run(request("k"), answering(201)).await;
        assert!(matches!(retry, Outcome::Unknown), "{retry:?}");
    }
    let resolver = resolve(&world, "k").await;
    world.store.release(&resolver).await.unwrap();
    let retry: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(retry, Outcome::Ran { stored: true, .. }));
}

#[tokio::test]
async fn a_key_that_kills_its_process_each_time_is_unknown_at_the_lapse_limit() {
    let world = world_with(|builder| builder.lapse_limit(NonZeroU32::new(3)));
    for _ in 0..3 {
        let claimed = world.idempotency.claim(request("k")).await;
        assert!(matches!(claimed, Claimed::Run(_)), "{claimed:?}");
        drop(claimed);
        world.clock.advance(LEASE);
    }
    let fourth: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(fourth, Outcome::Unknown), "{fourth:?}");
}

#[tokio::test]
async fn a_step_that_was_done_is_not_done_again_by_the_attempt_that_takes_over() {
    let world = world();
    let charge = |id: &'static str| async move { Ok::<_, &'static str>(Bytes::from(id)) };
    let Claimed::Run(first) = world.idempotency.claim(request("k")).await else { panic!() };
    assert_eq!(first.attempt().step("charge", || charge("ch_1")).await.unwrap(), "ch_1");
    let old = first.attempt().clone();
    drop(first);
    world.clock.advance(LEASE);
    let Claimed::Run(second) = world.idempotency.claim(request("k")).await else { panic!() };
    assert_eq!(second.attempt().checkpoints().find("charge").unwrap(), "ch_1");
    let again = second.attempt().step("charge", || async { panic!("it must not be done again") });
    assert_eq!(again.await.map_err(|_: StepError<()>| ()).unwrap(), "ch_1");
    let late = old.step("mail", || charge("sent")).await;
    assert!(matches!(late, Err(StepError::Superseded)), "{late:?}");
    assert!(old.is_superseded());
    let not_begun = old.step("bill", || async { panic!("it is known to be over") }).await;
    assert!(matches!(not_begun, Err(StepError::<()>::Superseded)), "{not_begun:?}");
    let big = second.attempt().step("big", || async { Ok::<_, ()>(Bytes::from(vec![0; 65_536])) }).await;
    assert!(matches!(big, Err(StepError::Full)), "{big:?}");
    assert_eq!(second.complete(Response::new(201)).await, Settled::Completed(Response::new(201)));
}

/// A transaction of a made-up database: it completes the record through the store, or rolls back.
struct FakeTransaction {
    store: Arc<Faulty>,
    commits: bool,
}

impl Transaction for FakeTransaction {
    type Committed = std::pin::Pin<Box<dyn Future<Output = Result<Response, CommitError>> + Send>>;

    fn commit_with(self, completion: Completion) -> Self::Committed {
        Box::pin(async move {
            if !self.commits {
                return Err(CommitError::Superseded);
            }
            let (owner, response) = (completion.owner(), completion.response());
            match self.store.inner.complete(owner, response, completion.retention()).await? {
                Fenced::Written(recorded) => Ok(recorded),
                Fenced::Superseded => Err(CommitError::Superseded),
            }
        })
    }
}

#[tokio::test]
async fn what_was_committed_in_the_callers_transaction_is_what_the_client_gets() {
    // Whatever the handler answers afterwards, final or not, and whether it fails or panics.
    for after in [Some(Ok(201)), Some(Ok(400)), Some(Ok(503)), Some(Err("broken")), None] {
        let world = world();
        let store = world.store.clone();
        let (tell, told) = mpsc::channel();
        let operation = move |attempt: Attempt| async move {
            let transaction = FakeTransaction { store, commits: true };
            tell.send(attempt.commit(transaction, Response::new(201).with_body("committed")).await.unwrap()).unwrap();
            after.expect("as planned").map(Response::new)
        };
        let outcome = world.idempotency.run(request("k"), operation).await;
        let Outcome::Recorded(response) = outcome else { panic!("{after:?}: {outcome:?}") };
        assert_eq!(response, Response::new(201).with_body("committed"));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [response]);
        assert_eq!(world.idempotency.counters().superseded, 0);
    }
}

#[tokio::test]
async fn an_operation_that_commits_twice_answers_with_what_it_committed_first() {
    let world = world();
    let store = world.store.clone();
    let (tell, told) = mpsc::channel();
    let operation = move |attempt: Attempt| async move {
        for body in ["first", "second"] {
            let transaction = FakeTransaction { store: store.clone(), commits: true };
            tell.send(attempt.commit(transaction, Response::new(201).with_body(body)).await.unwrap()).unwrap();
        }
        Ok::<_, &'static str>(Response::new(201).with_body("second"))
    };
    let outcome = world.idempotency.run(request("k"), operation).await;
    let first = Response::new(201).with_body("first");
    assert!(matches!(&outcome, Outcome::Recorded(response) if *response == first), "{outcome:?}");
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [first.clone(), first]);
}

#[tokio::test]
async fn an_operation_that_answers_with_what_it_did_not_commit_is_an_error_and_nothing_is_recorded() {
    let world = world();
    let operation = |attempt: Attempt| async move {
        let response = Response::new(201).with_body("row 1");
        drop(attempt.completion(response.clone())); // its transaction was dropped without a commit
        Ok::<_, &'static str>(response)
    };
    let outcome = world.idempotency.run(request("k"), operation).await;
    assert!(matches!(outcome, Outcome::RolledBack), "{outcome:?}");
    let record = world.record("k").await.unwrap();
    assert_eq!(record.state, State::Released);
    assert!(record.fingerprint.is_some(), "what it did besides is not known, so the next is a repeat");
    let under_hold = under_hold();
    let outcome = under_hold.idempotency.run(request("k"), operation).await;
    assert!(matches!(outcome, Outcome::RolledBack), "{outcome:?}");
    assert_eq!(under_hold.record("k").await.unwrap().state, State::Held);

    // What it decides after a rollback is another answer, and final.
    let operation = |attempt: Attempt| async move {
        drop(attempt.completion(Response::new(201)));
        Ok::<_, &'static str>(Response::new(409).with_body("sold out"))
    };
    let outcome = world.idempotency.run(request("k"), operation).await;
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
    let retry: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(retry, Outcome::Replay { response, .. } if response.status() == 409));
}

/// What comes between the look at a record that is still in progress and its release.
#[tokio::test(start_paused = true)]
async fn a_commit_or_a_takeover_at_the_last_moment_is_what_the_client_is_told() {
    for is_committed in [true, false] {
        let world = world();
        let late = world.store.clone();
        let operation = move |attempt: Attempt| async move {
            let completion = attempt.completion(Response::new(201));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                if is_committed {
                    let (owner, response) = (completion.owner(), completion.response());
                    late.inner.complete(owner, response, completion.retention()).await.unwrap();
                }
            });
            Ok::<_, &'static str>(Response::new(201))
        };
        world.store.plan("release", Fault::Delayed(Duration::from_millis(200)), 1);
        let idempotency = world.idempotency.clone();
        let running = tokio::spawn(async move { idempotency.run(request("k"), operation).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        if !is_committed {
            world.clock.advance(LEASE);
            let rival: Ended = world.another(|builder| builder).run(request("k"), answering(202)).await;
            assert!(matches!(rival, Outcome::Ran { stored: true, .. }), "{rival:?}");
        }
        match running.await.unwrap() {
            Outcome::Ran { reply, stored: true } if is_committed => assert_eq!(reply, Response::new(201)),
            Outcome::Superseded if !is_committed => {}
            other => panic!("{is_committed}: {other:?}"),
        }
        let counters = world.idempotency.counters();
        assert_eq!((counters.completed, counters.superseded), (is_committed.into(), (!is_committed).into()));
    }
}

#[tokio::test(start_paused = true)]
async fn whether_it_was_committed_is_asked_until_the_store_says_and_if_it_never_does_nobody_is_told_that_it_was() {
    for (kind, is_known) in [(StoreErrorKind::Unavailable, true), (StoreErrorKind::Corrupt, false)] {
        let world = world();
        world.store.plan("read", Fault::Refused(kind), 1);
        let store = world.store.clone();
        let operation = move |attempt: Attempt| async move {
            let transaction = FakeTransaction { store, commits: true };
            attempt.commit(transaction, Response::new(201)).await.map_err(|_| "not committed")
        };
        let outcome = world.idempotency.run(request("k"), operation).await;
        match outcome {
            Outcome::Ran { stored: true, .. } if is_known => {}
            Outcome::Unconfirmed(error) if !is_known => assert_eq!(error.kind(), kind),
            other => panic!("{kind:?}: {other:?}"),
        }
        let retry: Ended = world.idempotency.run(request("k"), answering(500)).await;
        assert!(matches!(retry, Outcome::Replay { .. }), "{retry:?}");
    }
}

#[tokio::test]
async fn what_was_committed_and_is_answered_is_the_operations_own_reply_and_recorded_whole() {
    let world = world_with(|builder| builder.max_response(5));
    let store = world.store.clone();
    let response = Response::new(201).with_body("larger than that");
    let committed = response.clone();
    let operation = move |attempt: Attempt| async move {
        let transaction = FakeTransaction { store, commits: true };
        attempt.commit(transaction, committed).await.map_err(|_| "not committed")
    };
    let outcome = world.idempotency.run(request("k"), operation).await;
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
    assert_eq!((world.idempotency.counters().completed, world.store.calls("complete")), (1, 0));
    let retry: Ended = world.idempotency.run(request("k"), answering(500)).await;
    assert!(matches!(&retry, Outcome::Replay { response: replayed, .. } if *replayed == response), "{retry:?}");
}

/// The record has expired since, and another of the same number has been made in its place.
#[tokio::test]
async fn the_record_of_a_later_life_is_not_taken_for_what_an_attempt_committed() {
    let world = Arc::new(world_with(|builder| builder.retention(Retention::new(LEASE).with_held(LEASE))));
    let rival = world.clone();
    let (tell, told) = mpsc::channel();
    let operation = move |attempt: Attempt| async move {
        let response = Response::new(201).with_body("R1");
        drop(attempt.completion(response.clone()));
        rival.clock.advance(LEASE);
        let second: Ended = rival.another(|builder| builder).run(request("k"), answering(202)).await;
        tell.send((second, attempt.number())).unwrap();
        Ok::<_, &'static str>(response)
    };
    let outcome = world.idempotency.run(request("k"), operation).await;
    assert!(matches!(outcome, Outcome::Superseded), "{outcome:?}");
    let (second, number) = told.try_recv().unwrap();
    assert!(matches!(second, Outcome::Ran { stored: true, .. }), "{second:?}");
    assert_eq!((number, world.record("k").await.unwrap().number), (1, 1));
    assert_eq!(world.store.calls("release"), 0, "there is nothing of it to give back");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_committed_by_itself_did_not_lose_its_key() {
    let world = world();
    let store = world.store.clone();
    let operation = move |attempt: Attempt| async move {
        let transaction = FakeTransaction { store, commits: true };
        let response = attempt.commit(transaction, Response::new(201)).await.map_err(|_| "not committed")?;
        tokio::time::sleep(LEASE).await; // past the next renewal
        assert!(!attempt.is_superseded());
        Ok::<_, &'static str>(response)
    };
    let outcome = world.idempotency.run(request("k"), operation).await;
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
    assert!(world.store.calls("renew") > 0);
}

#[tokio::test]
async fn a_step_that_is_asked_for_twice_is_done_once_and_its_lost_reply_asked_for_again() {
    let world = world();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    world.store.plan("checkpoint", Fault::ReplyLost, 1);
    let first = running.attempt().step("charge", || async { Ok::<_, &'static str>(Bytes::from("ch_1")) }).await;
    assert_eq!(first.unwrap(), "ch_1");
    let again = running.attempt().step("charge", || async { panic!("it must not be done again") }).await;
    assert_eq!(again.map_err(|_: StepError<()>| ()).unwrap(), "ch_1");
}

#[tokio::test(start_paused = true)]
async fn a_step_whose_result_was_kept_although_nobody_heard_of_it_keeps_the_first_result() {
    let world = world();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let step = async |result: &'static str| {
        running.attempt().step("charge", || async move { Ok::<_, &'static str>(Bytes::from(result)) }).await
    };
    world.store.plan("checkpoint", Fault::Late(Duration::from_secs(1)), 1);
    assert!(tokio::time::timeout(Duration::from_millis(500), step("ch_1")).await.is_err());
    assert_eq!(step("ch_2").await.unwrap(), "ch_1");
}

#[tokio::test]
async fn a_step_whose_result_could_not_be_kept_says_so_and_keeps_it_when_it_is_asked_for_again() {
    let world = world();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let step = async |result: &'static str| {
        running.attempt().step("charge", || async move { Ok::<_, &'static str>(Bytes::from(result)) }).await
    };
    world.store.plan("checkpoint", Fault::Refused(StoreErrorKind::Corrupt), 1);
    let failed = step("ch_1").await;
    assert!(matches!(&failed, Err(StepError::Store(e)) if e.kind() == StoreErrorKind::Corrupt), "{failed:?}");
    assert_eq!(step("ch_2").await.unwrap(), "ch_1");
}

// case 036
#[tokio::test]
async fn settled_by_hand_a_secret_goes_out_whole_and_is_not_stored_whether_it_was_committed_or_not() {
    for commits in [true, false] {
        let world = world();
        let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
        let secret = Response::new(201).with_body("top-secret");
        running.attempt().do_not_retain();
        let transaction = FakeTransaction { store: world.store.clone(), commits };
        let committed = running.attempt().commit(transaction, secret.clone()).await;
        assert_eq!(committed.is_ok(), commits);
        assert_eq!(running.complete(secret.clone()).await, Settled::Completed(secret));
        let expected = Response::new(201).with_kept(Body::NotRetained(NotRetained::Secret));
        assert_eq!(world.record("k").await.unwrap().state, State::Done(expected));
    }
}

// case 036
#[tokio::test]
async fn of_a_secret_only_the_status_is_recorded_also_where_its_body_would_not_have_been_kept_anyway() {
    let world = world_with(|builder| builder.max_response(4));
    for body in [Body::Kept("longer than that".into()), Body::NotRetained(NotRetained::TooLarge)] {
        let secret = Response::new(201).with_header("x-token", "top-secret").with_kept(body);
        let operation = |attempt: Attempt| async move {
            attempt.do_not_retain();
            Ok::<_, &'static str>(secret)
        };
        let _ = world.idempotency.run(request("k"), operation).await;
        let expected = Response::new(201).with_kept(Body::NotRetained(NotRetained::Secret));
        assert_eq!(world.record("k").await.unwrap().state, State::Done(expected));
        world.clock.advance(world.idempotency.retention().standard());
    }
}

#[tokio::test]
async fn a_step_without_a_name_is_not_begun() {
    let attempt = Attempt::for_test(support::scope(), idem_core::Key::new("k").unwrap());
    assert!(!attempt.is_protected());
    let unnamed = attempt.step("", || async { panic!("it is not begun") }).await;
    assert!(matches!(unnamed, Err(StepError::<()>::Name(_))), "{unnamed:?}");
    assert_eq!((attempt.number(), attempt.origin(), attempt.is_repeat()), (0, Origin::First, false));
    assert!(attempt.checkpoints().is_empty());
    let named = attempt.step("charge", || async { Ok::<_, ()>(Bytes::from("ch_1")) }).await;
    assert_eq!(named.unwrap(), "ch_1", "what nothing protects has its steps done");
}

#[tokio::test]
async fn a_step_that_is_asked_for_twice_at_once_is_done_once_whether_it_is_dropped_or_fails() {
    let world = world();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let (attempt, runs) = (running.attempt(), AtomicUsize::new(0));
    let charge = || async {
        runs.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        Ok::<_, &'static str>(Bytes::from("ch_1"))
    };
    let (one, other) = tokio::join!(attempt.step("charge", charge), attempt.step("charge", charge));
    assert_eq!((one.unwrap(), other.unwrap(), runs.load(Ordering::SeqCst)), ("ch_1".into(), "ch_1".into(), 1));

    // The one that waits does it where the other did not.
    let failing = || async {
        tokio::task::yield_now().await;
        Err::<Bytes, _>("broken")
    };
    let (one, other) = tokio::join!(attempt.step("mail", failing), attempt.step("mail", charge));
    assert!(matches!(one, Err(StepError::Work("broken"))), "{one:?}");
    assert_eq!(other.unwrap(), "ch_1");
    let hanging = attempt.step("bill", std::future::pending::<Result<Bytes, &'static str>>);
    assert!(tokio::time::timeout(Duration::from_millis(1), hanging).await.is_err());
    assert_eq!(attempt.step("bill", charge).await.unwrap(), "ch_1");
    assert_eq!(running.complete(Response::new(201)).await, Settled::Completed(Response::new(201)));
}

#[tokio::test(start_paused = true)]
async fn a_step_whose_result_could_not_be_kept_is_not_done_again_by_its_own_attempt() {
    let world = world();
    let (store, done) = (world.store.clone(), Arc::new(AtomicUsize::new(0)));
    let counting = Arc::clone(&done);
    let operation = move |attempt: Attempt| async move {
        let work = || async {
            counting.fetch_add(1, Ordering::SeqCst);
            Ok::<_, &'static str>("ch_1".into())
        };
        store.plan("checkpoint", Fault::Refused(StoreErrorKind::Unavailable), usize::MAX);
        assert!(matches!(attempt.step("charge", work).await, Err(StepError::Store(_))));
        store.heal();
        assert_eq!(attempt.step("charge", work).await.unwrap(), "ch_1");
        Ok::<_, &'static str>(Response::new(503))
    };
    let _ = world.idempotency.run(request("k"), operation).await;
    assert_eq!(done.load(Ordering::SeqCst), 1);
    let kept = world.record("k").await.unwrap().checkpoints;
    assert_eq!(kept.find("charge").unwrap(), "ch_1");
}

#[tokio::test]
async fn a_task_that_goes_on_after_its_operation_begins_no_step() {
    let world = world();
    let (send, receive) = tokio::sync::oneshot::channel();
    let operation = |attempt: Attempt| async move {
        let _ = send.send(attempt);
        Ok::<_, &'static str>(Response::new(201))
    };
    let _ = world.idempotency.run(request("k"), operation).await;
    let attempt = receive.await.unwrap();
    let late = attempt.step("charge", || async { panic!("it was done for nobody") }).await;
    assert!(matches!(late, Err(StepError::<()>::Superseded)), "{late:?}");
    assert_eq!(world.idempotency.counters().superseded, 0, "its key was not lost");
}

#[tokio::test]
async fn a_step_after_a_commit_of_its_own_does_not_count_as_a_lost_key() {
    let world = world();
    let store = world.store.clone();
    let operation = move |attempt: Attempt| async move {
        let response = Response::new(201);
        let _ = attempt.commit(FakeTransaction { store, commits: true }, response.clone()).await.unwrap();
        let late = attempt.step("mail", || async { Ok::<_, ()>(Bytes::new()) }).await;
        assert!(matches!(late, Err(StepError::Superseded)), "{late:?}");
        Ok::<_, &'static str>(response)
    };
    let outcome = world.idempotency.run(request("k"), operation).await;
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
    assert_eq!(world.idempotency.counters().superseded, 0);
}

// case 036
#[tokio::test]
async fn a_secret_is_committed_without_its_body_and_reaches_its_first_client_whole() {
    for committed in [
        Response::new(201).with_kept(Body::NotRetained(NotRetained::Secret)),
        Response::new(201).with_header("location", "/tokens/1").with_kept(Body::NotRetained(NotRetained::Secret)),
        Response::new(201).with_header("location", "/tokens/1").with_body("top-secret"),
    ] {
        let world = world();
        let store = world.store.clone();
        let operation = move |attempt: Attempt| async move {
            attempt.do_not_retain();
            let _ = attempt.commit(FakeTransaction { store, commits: true }, committed).await.unwrap();
            Ok::<_, &'static str>(Response::new(201).with_body("top-secret"))
        };
        let outcome = world.idempotency.run(request("k"), operation).await;
        let Outcome::Ran { reply, stored: true } = outcome else { panic!("{outcome:?}") };
        assert_eq!(reply, Response::new(201).with_body("top-secret"));
        let retry: Ended = world.idempotency.run(request("k"), answering(500)).await;
        let secret = Response::new(201).with_kept(Body::NotRetained(NotRetained::Secret));
        assert!(matches!(retry, Outcome::Replay { response, .. } if response == secret));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_panics_when_it_is_asked_what_it_says_is_a_panic_of_its_operation() {
    struct Broken;
    impl idem_runner::Reply for Broken {
        fn response(&self) -> Response {
            panic!("as planned")
        }
        fn settles_as(&self) -> u16 {
            200
        }
    }
    let world = world();
    let outcome = world.idempotency.run(request("k"), |_| async { Ok::<_, ()>(Broken) }).await;
    assert!(matches!(outcome, Outcome::Panicked));
    assert_eq!(world.record("k").await.unwrap().state, State::Released);
}

// cases 101, 104
#[tokio::test]
async fn an_error_of_an_operation_that_did_nothing_forgets_its_key_under_hold_too_and_a_panic_does_not() {
    for world in [world(), under_hold()] {
        let refused = |attempt: Attempt| async move {
            attempt.nothing_was_done();
            Err::<Response, _>("no room")
        };
        let outcome = world.idempotency.run(request("k"), refused).await;
        assert!(matches!(outcome, Outcome::Failed("no room")), "{outcome:?}");
        let corrected = |attempt: Attempt| async move {
            assert!(!attempt.is_repeat());
            Ok::<_, &'static str>(Response::new(201))
        };
        let outcome = world.idempotency.run(support::request_of("k", "corrected"), corrected).await;
        assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");

        let no_room = |attempt: Attempt| async move {
            attempt.nothing_was_done();
            Ok::<_, &'static str>(Response::new(503))
        };
        let outcome = world.idempotency.run(request("m"), no_room).await;
        assert!(matches!(outcome, Outcome::Ran { .. }), "{outcome:?}");
        let left = world.record("m").await.unwrap();
        assert_eq!((left.state, left.fingerprint), (State::Released, None));

        let broken = |attempt: Attempt| async move {
            attempt.nothing_was_done();
            panic!("as planned")
        };
        let _: Ended = world.idempotency.run(request("l"), broken).await;
        assert_ne!(world.record("l").await.unwrap().fingerprint, None, "what it did before it panicked is not known");
    }
}

// case 017
#[tokio::test(start_paused = true)]
async fn under_hold_a_key_whose_operation_could_not_be_started_is_given_back_when_the_store_is_there_again() {
    let world = under_hold();
    world.store.plan("renew", Fault::ReplyLost, usize::MAX);
    world.store.plan("forget", Fault::Refused(StoreErrorKind::Unavailable), 5);
    let outcome: Ended = world.idempotency.run(request("k"), |_| async { panic!("it must not run") }).await;
    assert!(matches!(outcome, Outcome::Store(_)), "{outcome:?}");
    world.store.heal();
    world.advance(Duration::from_secs(6)).await;
    let retry: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(retry, Outcome::Ran { stored: true, .. }), "{retry:?}");
}

#[tokio::test]
async fn an_attempt_that_answers_with_what_it_committed_too_late_is_superseded_by_what_its_successor_recorded() {
    let world = Arc::new(world());
    let rival = world.clone();
    let (tell, told) = mpsc::channel();
    let operation = move |attempt: Attempt| async move {
        rival.clock.advance(LEASE);
        let second: Ended = rival.another(|builder| builder).run(request("k"), answering(202)).await;
        let response = Response::new(201);
        let transaction = FakeTransaction { store: rival.store.clone(), commits: true };
        tell.send((second, attempt.commit(transaction, response.clone()).await)).unwrap();
        Ok::<_, &'static str>(response) // although it was told
    };
    let outcome = world.idempotency.run(request("k"), operation).await;
    assert!(matches!(outcome, Outcome::Superseded), "{outcome:?}");
    let (second, late) = told.try_recv().unwrap();
    assert!(matches!(second, Outcome::Ran { stored: true, .. }), "{second:?}");
    assert!(matches!(late, Err(CommitError::Superseded)), "{late:?}");
    assert_eq!(world.idempotency.counters().superseded, 1);
}

#[tokio::test]
async fn who_completes_by_hand_what_it_committed_is_told_what_is_recorded() {
    let world = world();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let transaction = FakeTransaction { store: world.store.clone(), commits: true };
    let committed = Response::new(201).with_body("committed");
    running.attempt().commit(transaction, committed.clone()).await.unwrap();
    assert_eq!(running.complete(Response::new(202)).await, Settled::Completed(committed));
}

#[tokio::test]
async fn a_transaction_that_was_rolled_back_leaves_the_attempt_to_its_outcome() {
    let world = world();
    let store = world.store.clone();
    let operation = move |attempt: Attempt| async move {
        let transaction = FakeTransaction { store, commits: false };
        attempt.commit(transaction, Response::new(201)).await.map_err(|_| "rolled back")
    };
    let outcome = world.idempotency.run(request("k"), operation).await;
    assert!(matches!(outcome, Outcome::Failed("rolled back")), "{outcome:?}");
    let next: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(next, Outcome::Ran { stored: true, .. }));
}

#[tokio::test]
async fn each_way_of_settling_by_hand_does_what_it_says() {
    let world = world();
    for (key, expected) in [("complete", "Done"), ("release", "Released"), ("forget", "Released"), ("hold", "Held")] {
        let Claimed::Run(running) = world.idempotency.claim(request(key)).await else { panic!() };
        let settled = match key {
            "complete" => running.complete(Response::new(201)).await,
            "release" => running.release().await,
            "forget" => running.forget().await,
            _ => running.hold().await,
        };
        assert!(matches!(settled, Settled::Completed(_) | Settled::GivenBack), "{settled:?}");
        let record = world.record(key).await.unwrap();
        assert!(format!("{:?}", record.state).starts_with(expected), "{key}: {:?}", record.state);
        assert_eq!(record.fingerprint.is_none(), key == "forget");
    }
    let again = world.idempotency.claim(request("complete")).await;
    assert!(matches!(again, Claimed::Answered(Answered::Replay { .. })), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn expired_records_leave_in_the_background_unless_that_is_turned_off() {
    let keep = Retention::new(Duration::from_secs(60)).with_held(Duration::ZERO);
    for (sweep, left) in [(Sweep::Every(Duration::from_secs(10)), 0), (Sweep::Off, 1_200)] {
        let world = world_with(|builder| builder.retention(keep).sweep(sweep));
        for n in 0..1_200 {
            let _: Ended = world.idempotency.run(request(&n.to_string()), answering(201)).await;
        }
        world.clock.advance(Duration::from_secs(61));
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert_eq!(world.store.inner.record_count(), left);
        assert_eq!(world.store.calls("sweep"), if left == 0 { 3 } else { 0 }, "batches of 500, until there is no more");
        assert_eq!(world.idempotency.counters().swept, 1_200 - left as u64);
    }
}

#[tokio::test(start_paused = true)]
async fn between_two_batches_of_a_sweep_others_have_their_turn() {
    let keep = Retention::new(LEASE).with_held(Duration::ZERO);
    let world = world_with(|builder| builder.retention(keep).sweep(Sweep::Every(Duration::from_secs(10))));
    for n in 0..1_200 {
        let _: Ended = world.idempotency.run(request(&n.to_string()), answering(201)).await;
    }
    world.clock.advance(LEASE);
    tokio::time::advance(Duration::from_secs(11)).await;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        seen.insert(world.store.calls("sweep"));
        tokio::task::yield_now().await;
    }
    assert!(seen.contains(&1) && seen.contains(&2) && seen.last() == Some(&3), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_sweep_that_fails_is_tried_again_at_the_next_interval() {
    let world = world_with(|builder| builder.sweep(Sweep::Every(Duration::from_secs(10))));
    for fault in [Fault::Refused(StoreErrorKind::Corrupt), Fault::Hangs] {
        world.store.plan("sweep", fault, 1);
        let before = world.store.calls("sweep");
        let _: Ended = world.idempotency.run(request("k"), answering(201)).await;
        tokio::time::sleep(Duration::from_secs(18)).await;
        assert_eq!(world.store.calls("sweep"), before + 1, "{fault:?}");
        tokio::time::sleep(Duration::from_secs(8)).await; // the interval, and the time that a call may take
        assert!(world.store.calls("sweep") > before + 1, "{fault:?}");
    }
}

#[test]
fn sweeping_goes_on_on_another_runtime_when_the_first_one_has_ended() {
    let world = world_with(|builder| builder.sweep(Sweep::Every(Duration::from_secs(10))));
    for _ in 0..2 {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().start_paused(true).build().unwrap().block_on(async {
            let before = world.store.calls("sweep");
            let _: Ended = world.idempotency.run(request("k"), answering(201)).await;
            tokio::time::sleep(Duration::from_secs(11)).await;
            assert_eq!(world.store.calls("sweep"), before + 1);
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_finishes_what_is_claimed_and_claims_no_more() {
    let world = world();
    let finish = Arc::new(Notify::new());
    let running = world.spawn("k", &finish);
    tokio::task::yield_now().await;
    assert!(!world.idempotency.shutdown(Duration::from_secs(1)).await, "something still runs");
    let refused: Ended = world.idempotency.run(request("l"), answering(201)).await;
    assert!(matches!(refused, Outcome::ShuttingDown), "{refused:?}");
    finish.notify_one();
    assert!(world.idempotency.shutdown(Duration::from_secs(1)).await);
    assert!(matches!(running.await.unwrap(), Outcome::Ran { stored: true, .. }));
    assert!(matches!(world.record("k").await.unwrap().state, State::Done(_)));
    assert_eq!(world.record("l").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_a_claim_by_hand_that_is_on_its_way() {
    let world = world();
    world.store.plan("claim", Fault::Delayed(Duration::from_secs(2)), 1);
    let idempotency = world.idempotency.clone();
    let claiming = tokio::spawn(async move { idempotency.claim(request("k")).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!world.idempotency.shutdown(Duration::from_millis(500)).await);
    let Claimed::Run(running) = claiming.await.unwrap() else { panic!() };
    assert!(matches!(running.complete(Response::new(201)).await, Settled::Completed(_)));
    assert!(world.idempotency.shutdown(Duration::from_secs(1)).await);
}

#[tokio::test(start_paused = true)]
async fn from_the_beginning_of_a_shutdown_neither_door_claims() {
    let world = world();
    let finish = Arc::new(Notify::new());
    let running = world.spawn("k", &finish);
    tokio::task::yield_now().await;
    let idempotency = world.idempotency.clone();
    let shutdown = tokio::spawn(async move { idempotency.shutdown(Duration::from_secs(60)).await });
    tokio::task::yield_now().await;
    let refused: Ended = world.idempotency.run(request("l"), answering(201)).await;
    assert!(matches!(refused, Outcome::ShuttingDown), "{refused:?}");
    let refused = world.idempotency.claim(request("m")).await;
    assert!(matches!(refused, Claimed::Answered(Answered::ShuttingDown)), "{refused:?}");
    finish.notify_one();
    assert!(shutdown.await.unwrap());
    assert!(matches!(running.await.unwrap(), Outcome::Ran { stored: true, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_completions_that_go_on_in_the_background() {
    let world = world();
    world.store.plan("complete", Fault::Refused(StoreErrorKind::Unavailable), 9);
    let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: false, .. }), "{outcome:?}");
    assert!(world.idempotency.shutdown(Duration::from_secs(60)).await);
    assert!(matches!(world.record("k").await.unwrap().state, State::Done(_)));
}

#[tokio::test]
async fn the_configured_retention_is_what_every_write_carries() {
    let hour = Duration::from_secs(3_600);
    let keep = Retention::new(hour).with_held(hour * 5);
    let world = world_with(|builder| builder.retention(keep));
    let now = world.clock.now();
    let expiry = async |key| world.record(key).await.unwrap().expiry.since(now);
    let _: Ended = world.idempotency.run(request("done"), answering(201)).await;
    let _: Ended = world.idempotency.run(request("released"), answering(503)).await;
    assert_eq!((expiry("done").await, expiry("released").await), (hour, hour));
    let Claimed::Run(running) = world.idempotency.claim(request("held")).await else { panic!() };
    assert_eq!(running.hold().await, Settled::GivenBack);
    assert_eq!(expiry("held").await, hour * 5);
    let Claimed::Run(running) = world.idempotency.claim(request("committed")).await else { panic!() };
    let transaction = FakeTransaction { store: world.store.clone(), commits: true };
    running.attempt().commit(transaction, Response::new(201)).await.unwrap();
    assert_eq!(expiry("committed").await, hour);
}

#[tokio::test(start_paused = true)]
async fn everything_that_happens_is_counted_once() {
    let world = world_with(|builder| builder.on_conflict(OnConflict::Wait { at_most: Duration::from_secs(1) }));
    world.store.plan("claim", Fault::ReplyLost, 1);
    let _: Ended = world.idempotency.run(request("k"), answering(201)).await;
    let _: Ended = world.idempotency.run(request("k"), answering(201)).await;
    let _: Ended = world.idempotency.run(support::request_of("k", "other"), answering(201)).await;
    let _: Ended = world.idempotency.run(request("l"), answering(503)).await;
    drop(world.idempotency.claim(request("m")).await);
    let _: Ended = world.idempotency.run(request("m"), answering(201)).await;
    world.clock.advance(LEASE);
    let _: Ended = world.idempotency.run(request("m"), answering(201)).await;
    let seen = world.idempotency.counters();
    assert_eq!((seen.claimed, seen.taken_over, seen.completed, seen.released), (4, 1, 2, 1));
    assert_eq!((seen.replayed, seen.reused, seen.conflict, seen.unknown, seen.superseded), (1, 1, 1, 0, 0));
    assert_eq!((seen.store_errors, seen.completion_retries, seen.completion_failures, seen.unprotected), (1, 0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_what_is_settled_by_hand() {
    let world = world();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    assert!(!world.idempotency.shutdown(Duration::from_secs(1)).await);
    assert!(matches!(running.complete(Response::new(201)).await, Settled::Completed(_)));
    assert!(world.idempotency.shutdown(Duration::from_secs(1)).await);
}

#[tokio::test(start_paused = true)]
async fn a_setting_of_for_ever_is_a_long_time_and_no_panic() {
    let all = |builder: idem_runner::Builder| {
        builder.lease(Duration::MAX).max_run(Duration::MAX).retention(Retention::new(Duration::MAX))
    };
    let outcome: Ended = world().another(all).run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
    let world = world_with(|builder| {
        builder
            .retention(Retention::new(Duration::MAX))
            .max_run(Duration::MAX)
            .completion_limit(Duration::MAX)
            .completion_patience(Duration::MAX)
            .store_timeout(Duration::MAX)
            .on_conflict(OnConflict::Wait { at_most: Duration::MAX })
            .sweep(Sweep::Every(Duration::MAX))
            .max_waiters(usize::MAX)
    });
    world.store.plan("complete", Fault::ReplyLost, 1);
    let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
}

#[test]
fn what_is_not_set_is_as_documented() {
    let idempotency = Idempotency::builder(world().store).build().unwrap();
    let settings = format!("{idempotency:?}");
    for expected in [
        "lease: 30s",
        "max_run: 900s",
        "retention: Retention { standard: 86400s, held: 2592000s }",
        "on_lapse: TakeOver",
        "lapse_limit: None",
        "max_response: None",
        "on_conflict: Refuse",
        "max_waiters: 1024",
        "on_unavailable: Refuse",
        "store_timeout: 5s",
        "completion_patience: 1s",
        "completion_limit: 900s",
        "sweep: Every(60s)",
    ] {
        assert!(settings.contains(expected), "{expected}: {settings}");
    }
    assert_eq!((idempotency.lease(), idempotency.retention()), (LEASE, Retention::default()));
}

#[test]
fn what_is_not_set_is_no_longer_than_what_bounds_it() {
    let short = Duration::from_millis(500);
    let build = |set: fn(idem_runner::Builder) -> idem_runner::Builder| {
        let settings = set(Idempotency::builder(world().store)).build().unwrap();
        format!("{settings:?}")
    };
    let settings = build(|builder| builder.store_timeout(Duration::from_millis(500)));
    assert!(settings.contains(&format!("completion_patience: {short:?}")), "{settings}");
    let settings =
        build(|builder| builder.lease(Duration::from_secs(5)).retention(Retention::new(Duration::from_secs(60))));
    assert!(settings.contains("completion_limit: 60s"), "{settings}");
    // What is equal to its bound is not too long.
    let settings = build(|builder| {
        let minute = Duration::from_secs(60);
        builder.lease(minute).max_run(minute).retention(Retention::new(minute)).completion_limit(minute)
    });
    assert!(settings.contains("lease: 60s"), "{settings}");
}

// cases 043, 121
#[test]
fn settings_that_can_not_be_are_errors_when_built() {
    let world = world();
    let second = Duration::from_secs(1);
    let build = |set: fn(idem_runner::Builder) -> idem_runner::Builder| {
        set(Idempotency::builder(world.store.clone())).build().map(|_| ())
    };
    let zero = |setting| Err(ConfigError::TooShort { setting, value: Duration::ZERO });
    assert_eq!(build(|builder| builder.lease(Duration::ZERO)), zero("lease"));
    assert_eq!(build(|builder| builder.retention(Retention::new(Duration::ZERO))), zero("retention"));
    assert_eq!(build(|builder| builder.max_run(Duration::ZERO)), zero("max_run"));
    assert_eq!(build(|builder| builder.store_timeout(Duration::ZERO)), zero("store_timeout"));
    assert_eq!(build(|builder| builder.completion_limit(Duration::ZERO)), zero("completion_limit"));
    assert_eq!(build(|builder| builder.sweep(Sweep::Every(Duration::ZERO))), zero("sweep: every"));
    let short = Duration::from_micros(999);
    let error = ConfigError::TooShort { setting: "lease", value: short };
    assert_eq!(Idempotency::builder(world.store.clone()).lease(short).build().map(|_| ()), Err(error));
    let both = build(|builder| builder.on_lapse(OnLapse::Hold).on_unavailable(OnUnavailable::RunUnprotected));
    assert_eq!(both, Err(ConfigError::HoldUnprotected));
    let wait = OnConflict::Wait { at_most: Duration::ZERO };
    assert_eq!(
        Idempotency::builder(world.store.clone()).on_conflict(wait).build().map(|_| ()),
        zero("on_conflict: wait at most")
    );
    let error = Idempotency::builder(world.store.clone()).retention(Retention::new(second)).build().unwrap_err();
    assert_eq!(error.to_string(), "lease (30s) is longer than retention (1s); shorten the one or lengthen the other");
    let max_run = Idempotency::builder(world.store.clone()).max_run(second).build();
    assert!(matches!(max_run, Err(ConfigError::TooLong { setting: "lease", limit_name: "max_run", .. })));
    let limit = Idempotency::builder(world.store.clone()).completion_limit(Duration::from_secs(90_000)).build();
    assert!(matches!(limit, Err(ConfigError::TooLong { setting: "completion_limit", .. })));
    let short = Idempotency::builder(world.store.clone()).lease(second).retention(Retention::new(second * 5)).build();
    let short = short.expect("what was not set adapts");
    // case 090
    assert_eq!((short.lease(), short.retention().standard()), (second, second * 5));
}

#[tokio::test]
async fn a_runner_that_is_dropped_leaves_no_task_behind() {
    let world = world_with(|builder| builder.sweep(Sweep::Every(Duration::from_millis(10))));
    let _: Ended = world.idempotency.run(request("k"), answering(201)).await;
    let metrics = tokio::runtime::Handle::current().metrics();
    assert!(metrics.num_alive_tasks() > 0);
    drop(world);
    eventually("every task ended", || async { metrics.num_alive_tasks() == 0 }).await;
}

#[test]
fn outside_a_runtime_a_shutdown_says_whether_everything_has_ended_and_does_not_wait() {
    let world = world();
    assert_eq!(world.idempotency.shutdown(LEASE).now_or_never(), Some(true));
    let world = support::world();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let running = runtime.block_on(world.idempotency.claim(request("k")));
    assert_eq!(world.idempotency.shutdown(LEASE).now_or_never(), Some(false));
    drop(running);
}

#[tokio::test]
async fn a_prepared_claim_has_the_runners_settings_and_a_token_of_its_own() {
    let lease = Duration::from_secs(10);
    let world = world_with(|builder| builder.on_lapse(OnLapse::Hold).lapse_limit(NonZeroU32::new(3)).lease(lease));
    let (one, other) =
        (world.idempotency.prepare(request("k")).unwrap(), world.idempotency.prepare(request("k")).unwrap());
    assert_ne!(one.token(), other.token());
    assert_eq!((one.lease(), world.idempotency.lease()), (lease, lease));
    assert_eq!(one.retention(), world.idempotency.retention());
    assert_eq!((one.on_lapse(), one.lapse_limit()), (OnLapse::Hold, NonZeroU32::new(3)));
    // Nothing was claimed.
    assert!(world.store.read(one.scope(), one.key()).await.unwrap().is_none());
}
