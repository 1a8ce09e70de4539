//! What is stored of answers is sealed, and nobody above the store notices.

#![cfg(feature = "seal")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{
    num::NonZeroUsize,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use bytes::Bytes;
use idem_core::{
    Answer, Body, Checkpoint, CommitError, Completion, Fenced, Key, MAX_CHECKPOINT_BYTES, NotRetained, Resolve,
    Response, Retention, Scope, State, Store, StoreErrorKind, Token, Transaction,
};
use idem_runner::{
    Attempt, Builder, Claimed, Idempotency, OnUnavailable, Outcome, Request, Seal, SealError, SealKey, SealKeys,
    Sealed, Settled, StepError,
};
use support::{Ended, Fault, Faulty, Keyless, LEASE, World, answering, fingerprint, request, scope, world, world_with};

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
async fn an_answer_that_comes_too_late_is_superseded() {
    let world = world_with(sealing(keys("a")));
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    world.clock.advance(LEASE);
    let takeover = world.idempotency.run(request("k"), issue).await;
    assert!(matches!(takeover, Outcome::Ran { stored: true, .. }), "{takeover:?}");
    assert_eq!(running.complete(Response::new(202)).await, Settled::Superseded);
}

#[tokio::test]
async fn an_answer_that_was_moved_to_another_record_is_refused_there_and_nothing_runs() {
    let world = world_with(sealing(keys("a")));
    let _: Ended = world.idempotency.run(request("k"), issue).await;
    let (State::Done(kept), _) = stored(&world, "k").await else { panic!() };
    // Another key of the same scope, the same key of another scope, and one that reads the same when written together.
    for (scope, key) in [(scope(), "l"), (Scope::new("tenant-8").unwrap(), "k"), (Scope::new("tenant-").unwrap(), "7k")]
    {
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

// What is sealed for one step is not opened as the result of another.
#[tokio::test]
async fn a_result_that_was_moved_to_another_step_is_refused_there_and_the_step_is_not_done() {
    let world = world_with(sealing(keys("a")));
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let result = Bytes::from_static(b"ch_1");
    running.attempt().step("charge", || async { Ok::<_, &str>(result) }).await.unwrap();
    let sealed = world.record("k").await.unwrap().checkpoints.find("charge").unwrap().clone();
    let moved = Checkpoint::new("refund", sealed).unwrap();
    let _ = world.store.inner.checkpoint(running.attempt().owner(), &moved).await.unwrap();
    drop(running);
    world.clock.advance(LEASE);
    let operation = |attempt: Attempt| async move {
        let refused = attempt.step("refund", || async { panic!("it is refunded") }).await;
        let Err(idem_runner::StepError::<&str>::Store(error)) = refused else { panic!("{refused:?}") };
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        Err::<Response, _>("refused")
    };
    let outcome = world.idempotency.run(request("k"), operation).await;
    assert!(matches!(outcome, Outcome::Failed("refused")), "{outcome:?}");
}

#[tokio::test]
async fn a_result_that_is_too_large_once_it_is_sealed_is_told_as_such() {
    let world = world_with(sealing(keys("a")));
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let step = async |name: &str, size| {
        running.attempt().step(name, || async move { Ok::<_, &str>(Bytes::from(vec![7; size])) }).await
    };
    let full = step("all", MAX_CHECKPOINT_BYTES - 20).await;
    assert!(matches!(full, Err(StepError::Full)), "{full:?}");
    assert_eq!(step("less", MAX_CHECKPOINT_BYTES - 100).await.unwrap().len(), MAX_CHECKPOINT_BYTES - 100);
}

/// Names its key at too great length.
#[derive(Debug)]
struct Verbose;

impl Seal for Verbose {
    fn seal(&self, plain: &[u8], _: &[u8]) -> Result<Sealed, SealError> {
        Ok(Sealed { key_id: "x".repeat(256), bytes: plain.to_vec().into() })
    }

    fn open(&self, sealed: &Sealed, _: &[u8]) -> Result<Vec<u8>, SealError> {
        Ok(sealed.bytes.to_vec())
    }
}

#[tokio::test]
async fn a_result_whose_sealer_names_no_key_that_can_be_stored_is_an_error_and_not_kept() {
    let world = world_with(|builder| builder.seal(Arc::new(Verbose)));
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let step = running.attempt().step("charge", || async { Ok::<_, &str>(Bytes::from("ch_1")) }).await;
    let Err(StepError::Store(error)) = step else { panic!("{step:?}") };
    assert_eq!(error.kind(), StoreErrorKind::Configuration);
    assert!(error.to_string().contains("the id of its key has 256 bytes, not 1 to 255"), "{error}");
    assert!(world.record("k").await.unwrap().checkpoints.is_empty());
}

/// Opens everything as the same bytes, and counts.
#[derive(Debug, Default)]
struct Junk(AtomicUsize);

impl Seal for Junk {
    fn seal(&self, _: &[u8], _: &[u8]) -> Result<Sealed, SealError> {
        Ok(Sealed { key_id: "junk".into(), bytes: Bytes::from_static(b"sealed") })
    }

    fn open(&self, _: &Sealed, _: &[u8]) -> Result<Vec<u8>, SealError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(b"\xffjunk".to_vec())
    }
}

#[tokio::test]
async fn what_was_just_sealed_is_not_opened_to_be_known_and_what_opens_to_no_response_is_an_error() {
    let junk = Arc::new(Junk::default());
    let seal = Arc::clone(&junk);
    let world = world_with(|builder| builder.seal(seal));
    let first = world.idempotency.run(request("k"), issue).await;
    assert!(matches!(&first, Outcome::Ran { reply, stored: true } if *reply == token()), "{first:?}");
    assert_eq!(junk.0.load(Ordering::SeqCst), 0);
    let outcome = world.idempotency.run(request("k"), never).await;
    let Outcome::Store(error) = outcome else { panic!("{outcome:?}") };
    assert!(matches!(error.kind(), StoreErrorKind::Corrupt | StoreErrorKind::Configuration), "{error}");
    assert!(error.to_string().starts_with("faulty store, claim: "), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_store_of_which_all_is_sealed_does_what_it_is_asked_and_gives_everything_opened() {
    let world = world_with(sealing(keys("a")));
    let store = world.idempotency.store();
    let second = Duration::from_secs(1);
    let result = Bytes::from_static(b"top-secret");
    let claim = async |key: &str| {
        let claim = world.idempotency.prepare(request(key)).unwrap().with_lease(second * 10);
        match idem_core::claim(&**store, &claim).await.unwrap() {
            Answer::Claimed(grant) => grant.owner().clone(),
            other => panic!("{other:?}"),
        }
    };
    let left = async |key: &str| {
        let record = world.record(key).await.unwrap();
        (record.lease_end.since(world.clock.now()), record.expiry.since(world.clock.now()))
    };
    let keep = Retention::new(second * 100).with_held(second * 500);

    let done = claim("done").await;
    let _ = store.renew(&done, second * 20).await.unwrap();
    assert_eq!(left("done").await.0, second * 20);
    let (found, _) = tokio::join!(store.wait(done.scope(), done.key(), done.attempt(), second * 30), async {
        tokio::time::sleep(second).await;
        store.complete(&done, &token(), keep).await.unwrap()
    });
    assert_eq!(found.unwrap().unwrap().record.state, State::Done(token()));
    assert_eq!(left("done").await.1, second * 100);

    let forgotten = claim("forgotten").await;
    let _ = store.forget(&forgotten).await.unwrap();
    assert_eq!(world.record("forgotten").await.unwrap().fingerprint, None);

    for key in ["a", "b"] {
        let owner = claim(key).await;
        let _ = store.checkpoint(&owner, &Checkpoint::new("charge", result.clone()).unwrap()).await.unwrap();
        let start = tokio::time::Instant::now();
        assert!(store.wait(owner.scope(), owner.key(), owner.attempt(), second * 3).await.unwrap().is_some());
        assert_eq!(start.elapsed(), second * 3, "{key}");
        let _ = store.hold(&owner, keep).await.unwrap();
        assert_eq!(left(key).await.1, second * 500, "{key}");
    }
    let (a, many) = (Key::new("a").unwrap(), NonZeroUsize::new(9).unwrap());
    let after = store.lapsed(Some((&scope(), &a)), many).await.unwrap();
    assert_eq!(after.iter().map(|lapsed| lapsed.key.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(after[0].record.checkpoints.find("charge"), Some(&result));
    assert_eq!(store.lapsed(None, NonZeroUsize::MIN).await.unwrap()[0].key, a);
    let seen = after[0].record.attempt();
    let resolve = Resolve::new(scope(), Key::new("b").unwrap(), seen, Token::from_bytes([9; 16]));
    let Fenced::Written(grant) = idem_core::resolve(&**store, &resolve).await.unwrap() else { panic!() };
    assert_eq!(grant.checkpoints().find("charge"), Some(&result));

    world.clock.advance(second * 101);
    assert_eq!(store.sweep(many).await.unwrap(), 1, "what was done");
    assert_eq!(store.purge(&scope(), NonZeroUsize::MIN).await.unwrap(), 1);
    assert_eq!(store.purge(&scope(), many).await.unwrap(), 2);
    world.store.plan("check", Fault::Refused(StoreErrorKind::Configuration), 1);
    assert_eq!(store.check().await.unwrap_err().kind(), StoreErrorKind::Configuration);
    store.check().await.unwrap();
}

/// Bytes from their hexadecimal digits.
fn hex(digits: &str) -> Bytes {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// What was stored before an upgrade must be opened after it: neither how it is sealed nor what it is bound to may change.
#[tokio::test]
async fn what_the_first_version_sealed_is_opened() {
    let keys = || SealKeys::new(SealKey::new("2026-12", &[12; 32]).unwrap());
    let world = world_with(sealing(keys()));
    let response = "016949efe6f0fe60bf5938f0efb9c96e67cf17df21d83fa4d460523ed9891fe3edcdf8b7818c7f320e697fe6a428ac65595bc23126\
                    58580c7543893600";
    let recorded = Response::new(201).with_kept(Body::Sealed { key_id: "2026-12".into(), bytes: hex(response) });
    let opened = world.idempotency.opened(&scope(), &Key::new("k").unwrap(), recorded).unwrap();
    assert_eq!(opened, Response::new(201).with_body("paid"));

    let result = "006964656d2e7365616c65642e310007323032362d313201027b94607a437e2656a3dbe1d7aa053e5cdc8f4ee54b1e9eff4425e51cc3\
                  5a4a9dcff3ac0aa2e30203cfd4a7";
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    let kept = Checkpoint::new("charge", hex(result)).unwrap();
    let _ = world.store.inner.checkpoint(running.attempt().owner(), &kept).await.unwrap();
    drop(running);
    world.clock.advance(LEASE);
    let resumed = world.idempotency.run(request("k"), |attempt: Attempt| async move {
        let found = attempt.checkpoints().find("charge").cloned().unwrap_or_default();
        Ok::<_, &str>(Response::new(201).with_body(found))
    });
    let resumed = resumed.await;
    assert!(
        matches!(&resumed, Outcome::Ran { reply, .. } if *reply == Response::new(201).with_body("ch_1")),
        "{resumed:?}"
    );
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
        let (tell, told) = mpsc::channel();
        let operation = move |attempt: Attempt| async move {
            let recorded = attempt.commit(Own(store), token()).await.map_err(|_| "not committed")?;
            let opened = attempt.opened(recorded.clone()).map_err(|_| "not opened")?;
            tell.send((recorded.clone(), opened.clone())).unwrap();
            Ok::<_, &'static str>([token(), recorded, opened][answer].clone())
        };
        let sent = match world.idempotency.run(request("k"), operation).await {
            Outcome::Ran { reply, stored: true } => reply,
            Outcome::Recorded(response) => response,
            other => panic!("{other:?}"),
        };
        assert_eq!(sent, token(), "answer {answer}");
        let (recorded, opened) = told.try_recv().unwrap();
        assert!(matches!(recorded.body(), Body::Sealed { .. }));
        assert_eq!(opened, token());
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
    assert_eq!(world.idempotency.sealed(claim.scope(), claim.key(), sealed.clone()).unwrap(), sealed, "sealed once");
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
