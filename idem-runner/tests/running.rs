//! The first door: one effect and one answer per key.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use idem_core::{Origin, Response, Scope, State};
use idem_runner::{Answered, Claimed, Outcome, Reply, Request, SettlePolicy};
use support::{Ended, answering, fingerprint, request, request_of, world, world_with};
use tokio::sync::{Barrier, Notify};

// case 105
#[tokio::test]
async fn the_first_request_runs_and_a_retry_gets_its_answer() {
    let world = world();
    let operation = |attempt: idem_runner::Attempt| async move {
        assert!(attempt.is_protected() && !attempt.is_repeat() && !attempt.is_superseded());
        assert_eq!((attempt.number(), attempt.origin(), attempt.checkpoints().is_empty()), (1, Origin::First, true));
        assert_eq!((attempt.scope(), attempt.key().as_str()), (&support::scope(), "k"));
        Ok::<_, &'static str>(Response::new(201).with_body("answer"))
    };
    let first: Ended = world.idempotency.run(request("k"), operation).await;
    let Outcome::Ran { reply, stored: true } = first else { panic!("{first:?}") };
    let retry: Ended = world.idempotency.run(request("k"), |_| async { panic!("it must not run again") }).await;
    let Outcome::Replay { response, stored_at } = retry else { panic!("{retry:?}") };
    assert_eq!((response, stored_at), (reply, world.clock.now()));
    assert_eq!((world.store.calls("claim"), world.store.calls("complete")), (2, 1), "round trips: 2, then 1");
    let counters = world.idempotency.counters();
    assert_eq!((counters.claimed, counters.completed, counters.replayed), (1, 1, 1));
}

// case 005
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_fifty_at_once_one_runs_and_the_others_conflict() {
    let world = world();
    let (barrier, finish, runs) = (Arc::new(Barrier::new(50)), Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (idempotency, barrier) = (world.idempotency.clone(), barrier.clone());
        let (finish, runs) = (finish.clone(), runs.clone());
        tasks.spawn(async move {
            barrier.wait().await;
            let operation = move |_| async move {
                runs.fetch_add(1, Ordering::SeqCst);
                finish.notified().await;
                Ok::<_, &'static str>(Response::new(201))
            };
            idempotency.run(request("k"), operation).await
        });
    }
    let mut conflicts = 0;
    while let Some(outcome) = tasks.join_next().await {
        match outcome.unwrap() {
            Outcome::Conflict { .. } => {
                conflicts += 1;
                if conflicts == 49 {
                    finish.notify_one();
                }
            }
            Outcome::Ran { stored, .. } => assert!(stored && conflicts == 49),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((runs.load(Ordering::SeqCst), conflicts), (1, 49));
    assert_eq!(world.idempotency.counters().conflict, 49);
}

#[tokio::test]
async fn a_conflict_says_when_to_try_again_from_one_to_five_seconds() {
    let world = world();
    let Claimed::Run(running) = world.idempotency.claim(request("k")).await else { panic!() };
    for (into_the_lease, expected) in [(0, 5_000), (26_500, 3_500), (29_999, 1_000)] {
        let start = running.attempt().owner().clone();
        assert_eq!(start.attempt().number, 1);
        let passed = world.record("k").await.unwrap().claimed;
        world.clock.advance(passed.after(std::time::Duration::from_millis(into_the_lease)).since(world.clock.now()));
        let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
        let Outcome::Conflict { retry_after } = outcome else { panic!("{outcome:?}") };
        assert_eq!(retry_after.as_millis(), expected);
    }
}

// cases 032, 056, 132
#[tokio::test]
async fn a_key_that_is_used_for_another_request_is_refused_whatever_became_of_the_first() {
    let world = world();
    let _: Ended = world.idempotency.run(request_of("done", "body"), answering(201)).await;
    let _: Ended = world.idempotency.run(request_of("released", "body"), answering(503)).await;
    let _running = world.idempotency.claim(request_of("running", "body")).await;
    for key in ["done", "released", "running"] {
        let outcome: Ended = world.idempotency.run(request_of(key, ""), answering(201)).await;
        let Outcome::Reuse { differences } = outcome else { panic!("{key}: {outcome:?}") };
        assert_eq!(differences.to_string(), "body length differs: 4 -> 0");
    }
    let retry: Ended = world.idempotency.run(request_of("done", "body"), answering(500)).await;
    assert!(matches!(retry, Outcome::Replay { .. }), "the record is untouched: {retry:?}");
}

#[tokio::test]
async fn an_older_form_of_the_fingerprint_still_gets_the_replay() {
    let world = world();
    let _: Ended = world.idempotency.run(request_of("k", "old form"), answering(201)).await;
    for forms in [["old form", "older form"], ["older form", "old form"]] {
        let [one, other] = forms.map(fingerprint);
        let upgraded = request_of("k", "new form").accepting(one).accepting(other);
        let outcome: Ended = world.idempotency.run(upgraded, answering(500)).await;
        assert!(matches!(outcome, Outcome::Replay { .. }), "{forms:?}: {outcome:?}");
    }
}

#[tokio::test]
async fn the_same_key_in_another_scope_is_another_operation() {
    let world = world();
    let _: Ended = world.idempotency.run(request("k"), answering(201)).await;
    let other = Request::new(Scope::new("tenant-8").unwrap(), request_key(), fingerprint("body"));
    let outcome: Ended = world.idempotency.run(other, answering(202)).await;
    assert!(matches!(outcome, Outcome::Ran { reply, .. } if reply.status() == 202));
}

fn request_key() -> idem_core::Key {
    idem_core::Key::new("k").unwrap()
}

// cases 039, 046
#[tokio::test]
async fn after_ten_failures_in_a_row_the_eleventh_try_runs_at_once_and_is_replayed_from_then_on() {
    let world = world();
    for n in 1..=10 {
        let failing = move |attempt: idem_runner::Attempt| async move {
            assert_eq!((attempt.number(), attempt.is_repeat()), (n, n > 1));
            Err::<Response, _>("the broker is away")
        };
        let outcome = world.idempotency.run(request("k"), failing).await;
        assert!(matches!(outcome, Outcome::Failed("the broker is away")), "{outcome:?}");
    }
    let eleventh: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(eleventh, Outcome::Ran { stored: true, .. }));
    let retry: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(retry, Outcome::Replay { .. }));
}

// case 100
#[tokio::test]
async fn a_passing_failure_is_sent_and_not_kept() {
    for status in [408, 425, 429, 500, 503, 599] {
        let world = world();
        let first: Ended = world.idempotency.run(request("k"), answering(status)).await;
        assert!(matches!(first, Outcome::Ran { reply, stored: true } if reply.status() == status));
        let second: Ended = world.idempotency.run(request("k"), answering(201)).await;
        assert!(matches!(second, Outcome::Ran { reply, .. } if reply.status() == 201));
        assert_eq!(world.record("k").await.unwrap().number, 2);
    }
}

/// What a protocol gives whose transport says 200 to everything.
#[derive(Debug)]
struct Told(u16);

impl Reply for Told {
    fn response(&self) -> Response {
        Response::new(200).with_trailer("outcome", self.0.to_string())
    }

    fn settles_as(&self) -> u16 {
        self.0
    }
}

// case 100
#[tokio::test]
async fn an_attempt_settles_by_the_status_that_its_reply_names_whatever_is_recorded() {
    for (status, next) in [(503, "release"), (400, "forget"), (409, "replay")] {
        let world = world();
        let first = world.idempotency.run(request("k"), async move |_| Ok::<_, &'static str>(Told(status))).await;
        assert!(matches!(first, Outcome::Ran { stored: true, .. }), "{first:?}");
        let second: Ended = world.idempotency.run(request("k"), answering(201)).await;
        let came = match second {
            Outcome::Replay { response, .. } if response.status() == 200 => "replay",
            Outcome::Ran { .. } if world.record("k").await.unwrap().repeat => "release",
            Outcome::Ran { .. } => "forget",
            other => panic!("{other:?}"),
        };
        assert_eq!(came, next);
    }
}

// case 101
#[tokio::test]
async fn a_refused_request_may_be_corrected_under_its_key_and_the_correction_is_no_repeat() {
    for status in [400, 401, 403, 405, 406, 411, 413, 414, 415, 417, 422, 431] {
        let world = world();
        let _: Ended = world.idempotency.run(request_of("k", "wrong"), answering(status)).await;
        let corrected = world.idempotency.run(request_of("k", "right"), |attempt| async move {
            assert!(!attempt.is_repeat());
            Ok::<_, &'static str>(Response::new(201))
        });
        assert!(matches!(corrected.await, Outcome::Ran { stored: true, .. }), "{status}");
    }
}

// case 101
#[tokio::test]
async fn a_final_refusal_such_as_sold_out_is_replayed() {
    for status in [200, 301, 404, 409, 410] {
        let world = world();
        let _: Ended = world.idempotency.run(request("k"), answering(status)).await;
        let retry: Ended = world.idempotency.run(request("k"), answering(201)).await;
        assert!(matches!(retry, Outcome::Replay { response, .. } if response.status() == status));
    }
}

// case 102
#[tokio::test]
async fn the_preset_that_keeps_everything_replays_refusals_and_failures() {
    for status in [403, 409, 500] {
        let world = world_with(|builder| builder.settle(SettlePolicy::keep_everything()));
        let _: Ended = world.idempotency.run(request("k"), answering(status)).await;
        let retry: Ended = world.idempotency.run(request("k"), answering(201)).await;
        assert!(matches!(retry, Outcome::Replay { response, .. } if response.status() == status));
    }
}

// case 052
#[tokio::test]
async fn a_panic_releases_the_key_and_the_next_attempt_is_a_repeat() {
    let world = world();
    let panicking =
        |_| async { if true { panic!("as planned") } else { Ok::<Response, &'static str>(Response::new(1)) } };
    assert!(matches!(world.idempotency.run(request("k"), panicking).await, Outcome::Panicked));
    let at_once = |_| -> std::future::Ready<Result<Response, &'static str>> { panic!("before there is a future") };
    assert!(matches!(world.idempotency.run(request("k"), at_once).await, Outcome::Panicked));
    let record = world.record("k").await.unwrap();
    assert_eq!((record.state, record.number), (State::Released, 2));
    let next = world.idempotency.run(request("k"), |attempt| async move {
        assert!(attempt.is_repeat());
        assert_eq!(attempt.origin(), Origin::Release);
        Ok::<_, &'static str>(Response::new(201))
    });
    assert!(matches!(next.await, Outcome::Ran { stored: true, .. }));
}

#[test]
fn outside_a_runtime_it_answers_with_an_error_that_says_so() {
    let world = world();
    let outcome: Ended =
        futures_util::FutureExt::now_or_never(world.idempotency.run(request("k"), answering(201))).unwrap();
    let Outcome::Store(error) = outcome else { panic!("{outcome:?}") };
    assert!(error.to_string().contains("Tokio runtime"), "{error}");
    assert_eq!(error.kind(), idem_core::StoreErrorKind::Configuration);
    let claimed = futures_util::FutureExt::now_or_never(world.idempotency.claim(request("k"))).unwrap();
    assert!(matches!(claimed, Claimed::Answered(Answered::Store(_))));
}

#[tokio::test]
async fn the_downstream_key_is_the_same_in_every_attempt_and_differs_by_step_scope_and_key() {
    let world = world();
    let keys = Arc::new(std::sync::Mutex::new(Vec::new()));
    for _ in 0..2 {
        let keys = keys.clone();
        let operation = move |attempt: idem_runner::Attempt| async move {
            keys.lock().unwrap().push((attempt.downstream_key("charge"), attempt.downstream_uuid("charge")));
            Err::<Response, _>("again")
        };
        let _ = world.idempotency.run(request("k"), operation).await;
    }
    let keys = keys.lock().unwrap();
    assert_eq!(keys[0], keys[1]);
    let (first, uuid) = &keys[0];
    assert!(first.is_ascii() && first.len() <= 255 && uuid.len() == 36);
    let other = idem_runner::Attempt::for_test(support::scope(), idem_core::Key::new("l").unwrap());
    assert_ne!(&other.downstream_key("charge"), first);
    assert_ne!(&other.downstream_uuid("charge"), uuid);
    assert_ne!(other.downstream_key("charge"), other.downstream_key("mail"));
    assert_ne!(other.downstream_uuid("charge"), other.downstream_uuid("mail"));
    let elsewhere = idem_runner::Attempt::for_test(Scope::new("tenant-8").unwrap(), request_key());
    assert_ne!(&elsewhere.downstream_key("charge"), first);
    assert_ne!(&elsewhere.downstream_uuid("charge"), uuid);
    assert_eq!(first, &idem_core::downstream_key("tenant-7", "k", "charge"));
    assert_eq!(uuid, &idem_core::downstream_uuid("tenant-7", "k", "charge"));
}
