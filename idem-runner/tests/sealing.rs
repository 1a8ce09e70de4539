//! What is stored of answers is sealed, and nobody above the store notices.

#![cfg(feature = "seal")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{pin::Pin, sync::Arc};

use bytes::Bytes;
use idem_core::{
    Body, CommitError, Completion, Fenced, Key, NotRetained, Response, Retention, Scope, State, Store, StoreErrorKind,
    Transaction,
};
use idem_runner::{
    Attempt, Builder, Idempotency, OnUnavailable, Outcome, Request, Seal, SealError, SealKey, SealKeys, Sealed,
};
use support::{Ended, Faulty, Keyless, LEASE, World, answering, fingerprint, request, scope, world, world_with};

fn keys(id: &str) -> SealKeys {
    SealKeys::new(SealKey::new(id, &[id.len() as u8; 32]).unwrap())
}

fn sealing(keys: SealKeys) -> impl FnOnce(Builder) -> Builder {
    move |builder| builder.seal(Arc::new(keys))
}

fn token() -> Response {
    Response::new(201)
        .with_header("location", "/tokens/top-secret")
        .with_body("bearer top-secret")
        .with_trailer("x-checksum", "top-secret")
}

async fn issue(_: Attempt) -> Result<Response, &'static str> {
    Ok(token())
}

async fn never(_: Attempt) -> Result<Response, &'static str> {
    panic!("it ran again")
}

/// The stored record of a key, and whether it tells the secret.
async fn stored(world: &World, key: &str) -> (State, bool) {
    let record = world.record(key).await.unwrap();
    let is_secret_there = record.encode().windows(10).any(|window| window == b"top-secret");
    (record.state, is_secret_there)
}

// case 036
#[tokio::test]
async fn the_store_does_not_have_the_answer_in_clear_and_clients_get_it_to_the_byte() {
    let world = world_with(sealing(keys("2026-11")));
    let first = world.idempotency.run(request("k"), issue).await;
    assert!(matches!(&first, Outcome::Ran { reply, stored: true } if *reply == token()), "{first:?}");
    let (State::Done(kept), false) = stored(&world, "k").await else { panic!("the secret is stored in clear") };
    assert!(matches!(kept.body(), Body::Sealed { key_id, .. } if key_id == "2026-11"));
    assert_eq!((kept.status(), kept.headers().len(), kept.trailers().len()), (201, 0, 0));

    let retry = world.idempotency.run(request("k"), never).await;
    assert!(matches!(&retry, Outcome::Replay { response, .. } if *response == token()), "{retry:?}");
    // Tools that read through the runner's store read what was answered.
    let found = world.idempotency.store().read(&scope(), &Key::new("k").unwrap()).await.unwrap().unwrap();
    assert_eq!(found.record.state, State::Done(token()));
}

#[tokio::test]
async fn what_is_not_retained_stays_so_and_says_why() {
    let world = world_with(sealing(keys("a")));
    let large = Response::new(201).with_kept(Body::NotRetained(NotRetained::TooLarge));
    let answer = large.clone();
    let _: Ended = world.idempotency.run(request("k"), |_| async { Ok(answer) }).await;
    let retry = world.idempotency.run(request("k"), never).await;
    assert!(matches!(&retry, Outcome::Replay { response, .. } if *response == large), "{retry:?}");
}

#[tokio::test]
async fn an_answer_that_was_moved_to_another_record_is_refused_there_and_nothing_runs() {
    let world = world_with(sealing(keys("a")));
    let _: Ended = world.idempotency.run(request("k"), issue).await;
    let (State::Done(kept), _) = stored(&world, "k").await else { panic!() };
    // Another key of the same scope, and the same key of another scope.
    for (scope, key) in [(scope(), "l"), (Scope::new("tenant-8").unwrap(), "k")] {
        let of_other = || Request::new(scope.clone(), Key::new(key).unwrap(), fingerprint("body"));
        let claim = world.idempotency.prepare(of_other()).unwrap();
        let idem_core::Answer::Claimed(grant) = idem_core::claim(&world.store.inner, &claim).await.unwrap() else {
            panic!()
        };
        let moved = world.store.inner.complete(grant.owner(), &kept, Retention::default()).await.unwrap();
        assert!(matches!(moved, Fenced::Written(_)));
        let outcome = world.idempotency.run(of_other(), never).await;
        let Outcome::Store(error) = outcome else { panic!("{outcome:?}") };
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        assert!(error.to_string().contains("not what was sealed under the key \"a\" for this record"), "{error}");
    }
}

#[tokio::test]
async fn without_its_key_an_answer_is_an_error_that_names_the_key_and_nothing_runs_whatever_the_policy() {
    let world = world_with(sealing(keys("2026-11")));
    let _: Ended = world.idempotency.run(request("k"), issue).await;
    let fail_open = |builder: Builder| builder.on_unavailable(OnUnavailable::RunUnprotected);
    for other in
        [world.another(sealing(keys("other"))), world.another(|builder| sealing(keys("2"))(fail_open(builder)))]
    {
        let outcome = other.run(request("k"), never).await;
        let Outcome::Store(error) = outcome else { panic!("{outcome:?}") };
        assert_eq!(error.kind(), StoreErrorKind::Configuration);
        assert!(
            error.to_string().contains("sealed under the key \"2026-11\", which this service does not have"),
            "{error}"
        );
    }
    // The right key still opens it.
    assert!(matches!(world.idempotency.run(request("k"), never).await, Outcome::Replay { .. }));
}

#[tokio::test]
async fn keys_are_changed_under_way_and_what_was_stored_in_clear_before_is_replayed_as_well() {
    let world = world();
    let _: Ended = world.idempotency.run(request("clear"), issue).await;
    let first = world.another(sealing(keys("2026-11")));
    let _: Ended = first.run(request("november"), issue).await;
    let older = SealKey::new("2026-11", &[7; 32]).unwrap();
    let changed = SealKeys::new(SealKey::new("2026-12", &[12; 32]).unwrap()).accepting(older).unwrap();
    let second = world.another(sealing(changed));
    let _: Ended = second.run(request("december"), issue).await;
    for key in ["clear", "november", "december"] {
        let outcome = second.run(request(key), never).await;
        assert!(matches!(&outcome, Outcome::Replay { response, .. } if *response == token()), "{key}: {outcome:?}");
    }
    let (State::Done(kept), false) = stored(&world, "december").await else { panic!() };
    assert!(matches!(kept.body(), Body::Sealed { key_id, .. } if key_id == "2026-12"));
}

#[tokio::test]
async fn results_of_steps_are_sealed_too_and_a_takeover_resumes_behind_them() {
    let world = world_with(sealing(keys("a")));
    let charge = |attempt: &Attempt| {
        let attempt = attempt.clone();
        async move { attempt.step("charge", || async { Ok::<_, &str>(Bytes::from_static(b"top-secret")) }).await }
    };
    let idem_runner::Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    assert_eq!(charge(running.attempt()).await.unwrap(), "top-secret");
    let (state, is_secret_there) = stored(&world, "k").await;
    assert_eq!((state, is_secret_there), (State::InProgress, false));
    drop(running);
    world.clock.advance(LEASE);

    let resumed = world.idempotency.run(request("k"), |attempt: Attempt| async move {
        let kept = attempt.step("charge", || async { panic!("it is charged twice") }).await;
        let kept: Result<_, idem_runner::StepError<&str>> = kept;
        Ok::<_, &str>(Response::new(201).with_body(kept.unwrap()))
    });
    let resumed = resumed.await;
    assert!(matches!(&resumed, Outcome::Ran { reply, .. } if *reply == Response::new(201).with_body("top-secret")));
}

/// A transaction that completes the record in the store itself, beneath the runner.
struct Own(Arc<Faulty>);

impl Transaction for Own {
    type Committed = Pin<Box<dyn Future<Output = Result<Response, CommitError>> + Send>>;

    fn commit_with(self, completion: Completion) -> Self::Committed {
        Box::pin(async move {
            let (owner, response) = (completion.owner(), completion.response());
            match self.0.inner.complete(owner, response, completion.retention()).await? {
                Fenced::Written(recorded) => Ok(recorded),
                Fenced::Superseded => Err(CommitError::Superseded),
            }
        })
    }
}

#[tokio::test]
async fn what_a_transaction_of_the_callers_completes_is_sealed_and_its_client_gets_it_opened() {
    // Whether the operation answers with what it gave, with what it got back, or with what that means.
    for answer in 0..3 {
        let world = world_with(sealing(keys("a")));
        let store = world.store.clone();
        let operation = move |attempt: Attempt| async move {
            let recorded = attempt.commit(Own(store), token()).await.map_err(|_| "not committed")?;
            assert!(matches!(recorded.body(), Body::Sealed { .. }));
            let opened = attempt.opened(recorded.clone()).map_err(|_| "not opened")?;
            assert_eq!(opened, token());
            Ok::<_, &'static str>([token(), recorded, opened][answer].clone())
        };
        let sent = match world.idempotency.run(request("k"), operation).await {
            Outcome::Ran { reply, stored: true } => reply,
            Outcome::Recorded(response) => response,
            other => panic!("{other:?}"),
        };
        assert_eq!(sent, token(), "answer {answer}");
        assert!(!stored(&world, "k").await.1);
        let retry = world.idempotency.run(request("k"), never).await;
        assert!(matches!(&retry, Outcome::Replay { response, .. } if *response == token()), "{retry:?}");
    }
}

#[tokio::test]
async fn what_is_claimed_and_completed_by_the_callers_own_means_can_be_sealed_and_opened_too() {
    let world = world_with(sealing(keys("a")));
    let claim = world.idempotency.prepare(request("k")).unwrap();
    let answer = idem_core::claim(&world.store.inner, &claim).await.unwrap();
    let idem_core::Answer::Claimed(grant) = answer else { panic!() };
    let sealed = world.idempotency.sealed(claim.scope(), claim.key(), token()).unwrap();
    let _ = world.store.inner.complete(grant.owner(), &sealed, Retention::default()).await.unwrap();
    assert!(!stored(&world, "k").await.1);
    assert_eq!(world.idempotency.opened(claim.scope(), claim.key(), sealed.clone()).unwrap(), token());
    let elsewhere = world.idempotency.opened(claim.scope(), &Key::new("l").unwrap(), sealed).unwrap_err();
    assert_eq!(elsewhere.kind(), StoreErrorKind::Corrupt);
    let retry = world.idempotency.run(request("k"), never).await;
    assert!(matches!(&retry, Outcome::Replay { response, .. } if *response == token()), "{retry:?}");

    let plain = world.another(|builder| builder);
    assert_eq!(plain.sealed(claim.scope(), claim.key(), token()).unwrap(), token());
    assert_eq!(plain.opened(claim.scope(), claim.key(), token()).unwrap(), token());
}

fn keyless(world: &World) -> Idempotency {
    world.another(|builder| builder.seal(Arc::new(Keyless)))
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_can_not_be_sealed_reaches_its_client_and_is_never_stored_in_clear() {
    let world = world();
    let outcome = keyless(&world).run(request("k"), issue).await;
    assert!(matches!(&outcome, Outcome::Ran { reply, stored: false } if *reply == token()), "{outcome:?}");
    let (state, is_secret_there) = stored(&world, "k").await;
    assert_eq!((state, is_secret_there), (State::InProgress, false), "the key is left to its lease, not freed");
    let again: Ended = keyless(&world).run(request("k"), answering(201)).await;
    assert!(matches!(again, Outcome::Conflict { .. }), "{again:?}");
}

#[tokio::test]
async fn a_transactions_answer_that_can_not_be_sealed_is_not_retained_and_the_key_is_spent() {
    let world = world();
    let store = world.store.clone();
    let operation =
        move |attempt: Attempt| async move { attempt.commit(Own(store), token()).await.map_err(|_| "not committed") };
    let _ = keyless(&world).run(request("k"), operation).await;
    let (state, is_secret_there) = stored(&world, "k").await;
    let secret = Response::new(201).with_kept(Body::NotRetained(NotRetained::Secret));
    assert_eq!((state, is_secret_there), (State::Done(secret), false));
}

/// A sealer with a bug.
#[derive(Debug)]
struct Panics;

impl Seal for Panics {
    fn seal(&self, _: &[u8], _: &[u8]) -> Result<Sealed, SealError> {
        panic!("as planned")
    }

    fn open(&self, _: &Sealed, _: &[u8]) -> Result<Vec<u8>, SealError> {
        panic!("as planned")
    }
}

#[tokio::test(start_paused = true)]
async fn a_sealer_that_panics_is_a_sealer_that_fails_and_nothing_runs_again_because_of_it() {
    let world = world_with(sealing(keys("a")));
    let _ = world.idempotency.run(request("done"), issue).await;
    let broken = world.another(|builder| builder.seal(Arc::new(Panics)).on_unavailable(OnUnavailable::RunUnprotected));
    let retry = broken.run(request("done"), never).await;
    assert!(matches!(&retry, Outcome::Store(error) if error.kind() == StoreErrorKind::Configuration), "{retry:?}");
    let outcome = broken.run(request("k"), issue).await;
    assert!(matches!(&outcome, Outcome::Ran { reply, stored: false } if *reply == token()), "{outcome:?}");
    assert!(broken.counters().completion_retries > 0, "it is tried again");
}

// case 036
#[tokio::test]
async fn before_a_service_seals_all_that_share_its_store_learn_to_open() {
    let world = world_with(sealing(keys("a")));
    let opens = world.another(|builder| builder.open_sealed(Arc::new(keys("a"))));
    let _ = world.idempotency.run(request("sealed"), issue).await;
    let replay = opens.run(request("sealed"), never).await;
    assert!(matches!(&replay, Outcome::Replay { response, .. } if *response == token()), "{replay:?}");
    let _ = opens.run(request("clear"), issue).await;
    assert!(stored(&world, "clear").await.1, "it seals nothing");
    let replay = world.idempotency.run(request("clear"), never).await;
    assert!(matches!(&replay, Outcome::Replay { response, .. } if *response == token()), "{replay:?}");

    let idem_runner::Claimed::Run(running) = opens.claim(request("steps")).await else { panic!() };
    let kept = running.attempt().step("charge", || async { Ok::<_, ()>("top-secret".into()) }).await;
    assert_eq!(kept.unwrap(), "top-secret");
    assert!(stored(&world, "steps").await.1);
}

// cases 036, 037
#[tokio::test]
async fn the_result_of_a_step_that_can_not_be_opened_is_an_error_of_that_step_and_of_nothing_else() {
    let world = world_with(sealing(keys("a")));
    let idem_runner::Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let charge = || async { Ok::<_, &str>(Bytes::from_static(b"ch_1")) };
    assert_eq!(running.attempt().step("charge", charge).await.unwrap(), "ch_1");
    drop(running);
    world.clock.advance(LEASE);
    let limit = std::num::NonZeroUsize::MIN;
    // One has other keys, and one none at all.
    let others = [world.another(sealing(keys("bb"))), world.another(|builder| builder)];
    for other in &others {
        assert_eq!(other.store().lapsed(None, limit).await.unwrap().len(), 1, "it is listed");
    }
    for (mail, other) in ["first mail", "second mail"].into_iter().zip(others) {
        let operation = move |attempt: Attempt| async move {
            let kept = attempt.step("charge", || async { panic!("it is charged twice") }).await;
            let Err(idem_runner::StepError::<&str>::Store(error)) = kept else { panic!("{kept:?}") };
            assert_eq!(error.kind(), StoreErrorKind::Configuration);
            assert_eq!(attempt.step(mail, || async { Ok::<_, &str>("sent".into()) }).await.unwrap(), "sent");
            Ok::<_, &str>(Response::new(503))
        };
        let outcome = other.run(request("k"), operation).await;
        assert!(matches!(outcome, Outcome::Ran { .. }), "{outcome:?}");
    }
    let resumed = world.idempotency.run(request("k"), |attempt: Attempt| async move {
        let kept = attempt.step("charge", || async { Err(()) }).await;
        Ok::<_, ()>(Response::new(201).with_body(kept.unwrap()))
    });
    let resumed = resumed.await;
    assert!(matches!(&resumed, Outcome::Ran { reply, .. } if *reply == Response::new(201).with_body("ch_1")));
}

#[tokio::test]
async fn what_an_operation_sealed_by_its_own_means_is_replayed_as_it_was_whether_the_runner_seals_or_not() {
    let by_itself = Response::new(201).with_kept(Body::Sealed { key_id: "own".into(), bytes: "opaque".into() });
    for world in [world(), world_with(sealing(keys("a")))] {
        let answer = by_itself.clone();
        let _ = world.idempotency.run(request("k"), |_| async { Ok::<_, &'static str>(answer) }).await;
        let replay = world.idempotency.run(request("k"), never).await;
        assert!(matches!(&replay, Outcome::Replay { response, .. } if *response == by_itself), "{replay:?}");
    }
}
