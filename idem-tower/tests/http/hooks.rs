//! What the layer's own functions may do, and what they may not: a mistake in one of them runs nothing twice.

use std::{convert::Infallible, time::Duration};

use axum::{Extension, http::request::Parts, routing::post as on_post};
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http_body::Frame;
use http_body_util::StreamBody;
use idem_core::{CommitError, FieldSelector, OnLapse, Response as Recorded, Scope};
use idem_runner::{Idempotency, SealKey, SealKeys};
use idem_tower::{CommitProblem, IdempotencyLayer};
use tower::ServiceExt;

use crate::support::{App, Count, Gate, Setup, post, within};

type Change = fn(&http::response::Parts, Recorded) -> Recorded;

fn panics(_: &http::response::Parts, _: Recorded) -> Recorded {
    panic!("as planned")
}

// case 036
#[tokio::test]
async fn a_function_that_redacts_and_fails_leaves_the_operation_done_and_its_answer_not_retained() {
    let has_no_such_status: Change = |_, recorded| Recorded::new(99).with_kept(recorded.body().clone());
    let makes_it_longer: Change = |_, recorded| recorded.with_body(vec![b'x'; 9]);
    for hook in [panics as Change, has_no_such_status, makes_it_longer] {
        let (setup, count) = (Setup::new(), Count::default());
        let runs = count.clone();
        let handler = move || async move { (StatusCode::CREATED, format!("paid {}", runs.up())) };
        let app = setup.app_under(setup.layer().max_response_bytes(8).redact(hook), on_post(handler));
        let first = app.send(post("k", "{}")).await;
        assert_eq!((first.status, first.text(), first.header("idempotency-stored")), (201, "paid 1", None));
        app.send(post("k", "{}")).await.problem("response-not-retained");
        assert_eq!(count.now(), 1);
    }
}

#[tokio::test]
async fn a_function_that_panics_before_the_claim_is_an_error_of_its_request_and_nothing_is_claimed() {
    fn broken<T>() -> T {
        panic!("as planned")
    }
    let (setup, count) = (Setup::new(), Count::default());
    let runs = count.clone();
    let handler = on_post(move || async move { format!("paid {}", runs.up()) });
    let scope = |_: &Parts| -> Option<Scope> { broken() };
    for layer in [
        IdempotencyLayer::builder(setup.idempotency.clone(), scope),
        setup.layer().validate(|_, _: &Bytes| broken()),
        setup.layer().fingerprint_with(|_, _, _| broken()),
    ] {
        let app = setup.app_under(layer, handler.clone());
        let problem = app.send(post("k", "{}")).await.problem("operation-failed");
        assert_eq!((problem["status"].as_u64(), count.now()), (Some(500), 0));
        assert!(problem["detail"].as_str().unwrap().contains("nothing was done"), "{problem}");
    }
    let app = setup.app(handler);
    assert_eq!(app.send(post("k", "{}")).await.text(), "paid 1");
}

// case 100
#[tokio::test]
async fn a_problem_of_the_layers_that_a_handler_answers_with_is_no_final_outcome() {
    let (setup, count) = (Setup::new(), Count::default());
    let runs = count.clone();
    let handler = move || async move {
        match runs.up() {
            // As where the transaction is one of another store than the runner's.
            1 => Err(CommitProblem(CommitError::Superseded)),
            _ => Ok("paid"),
        }
    };
    let app = setup.app(on_post(handler));
    app.send(post("k", "{}")).await.problem("request-in-progress");
    let retry = app.send(post("k", "{}")).await;
    assert_eq!((retry.status, retry.text(), retry.is_replay()), (200, "paid", false));
}

// case 017
#[tokio::test]
async fn under_hold_a_failure_says_what_its_retries_will_be_told() {
    let setup = Setup::with(|builder| builder.on_lapse(OnLapse::Hold));
    async fn fails() -> &'static str {
        panic!("as planned")
    }
    let app = setup.app(on_post(fails));
    for _ in 0..2 {
        let problem = app.send(post("k", "{}")).await.problem("outcome-unknown");
        assert_eq!(problem["status"], 409);
    }
}

// case 036
#[tokio::test]
async fn a_service_that_opens_nothing_says_that_it_can_not_read_a_sealed_answer_and_runs_nothing() {
    let seals = |builder: idem_runner::Builder| {
        builder.seal(std::sync::Arc::new(SealKeys::new(SealKey::new("2026-12", &[7; 32]).unwrap())))
    };
    let setup = Setup::with(seals);
    let (count, scope) = (Count::default(), Scope::new("tenant-7").unwrap());
    let runs = count.clone();
    let handler = on_post(move || async move { (Extension(()), format!("paid {}", runs.up())) });
    assert_eq!(setup.app(handler.clone()).send(post("k", "{}")).await.text(), "paid 1");
    let opens_nothing = idem_runner::Idempotency::builder(setup.store.clone()).build().unwrap();
    let layer = IdempotencyLayer::builder(opens_nothing, move |_| Some(scope.clone()));
    let answer = setup.app_under(layer, handler).send(post("k", "{}")).await;
    let problem = answer.problem("store-unavailable");
    assert_eq!((answer.status, answer.header("retry-after")), (503, None));
    assert!(problem["detail"].as_str().unwrap().contains("was processed before"), "{problem}");
    assert_eq!(count.now(), 1);
}

// cases 060, 118
#[tokio::test]
async fn while_keys_of_fingerprints_change_nobody_is_told_to_use_a_new_key() {
    let key = |id: &str| idem_core::FingerprintKey::new(id, &[id.len() as u8; 32]).unwrap();
    let (setup, count) = (Setup::new(), Count::default());
    let runs = count.clone();
    let handler = on_post(move || async move { format!("paid {}", runs.up()) });
    let app = |layer| -> App { setup.app_under(layer, handler.clone()) };
    let ahead = app(setup.layer().fingerprint_key(key("new")).accept_fingerprint_key(key("before")));
    assert_eq!(ahead.send(post("k", "{}")).await.text(), "paid 1");
    let behind = app(setup.layer().fingerprint_key(key("before")));
    let problem = behind.send(post("k", "{}")).await.problem("store-unavailable");
    assert!(problem["detail"].as_str().unwrap().contains("not under a new one"), "{problem}");
    // As it is to be done: all accept the new key before any uses it.
    let prepared = app(setup.layer().fingerprint_key(key("before")).accept_fingerprint_key(key("new")));
    assert!(prepared.send(post("k", "{}")).await.is_replay());
    assert_eq!(count.now(), 1);
}

// case 133
#[tokio::test]
async fn a_rule_of_fingerprints_is_changed_under_way() {
    let (setup, count) = (Setup::new(), Count::default());
    let runs = count.clone();
    let handler = on_post(move || async move { format!("paid {}", runs.up()) });
    let app = |layer| -> App { setup.app_under(layer, handler.clone()) };
    let before = setup.layer();
    let fields = FieldSelector::new(&["/amount"]).unwrap();
    let after = before.clone().fields(fields).accept_fingerprints_of(&before);
    let body = r#"{"amount":1,"sentAt":1}"#;
    assert_eq!(app(before.clone()).send(post("k", body)).await.text(), "paid 1");
    assert!(app(after.clone()).send(post("k", body)).await.is_replay());
    assert_eq!(app(after.clone()).send(post("l", body)).await.text(), "paid 2");
    assert!(app(after.clone()).send(post("l", r#"{"amount":1,"sentAt":2}"#)).await.is_replay());
    // An instance that is behind must accept the new rule before it is used.
    app(before.clone()).send(post("l", body)).await.problem("idempotency-key-reused");
    assert!(app(before.accept_fingerprints_of(&after)).send(post("l", body)).await.is_replay());
}

// cases 051, 094
#[tokio::test]
async fn an_answer_without_end_is_given_up_when_another_attempt_has_the_key() {
    let setup = Setup::with(|builder| builder.lease(Duration::from_millis(300)));
    let started = Gate::new();
    let starting = started.clone();
    let app = setup.app(on_post(move || async move {
        starting.open();
        axum::body::Body::new(StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>()))
    }));
    let first = tokio::spawn(async move { app.send(post("k", "{}")).await });
    started.pass().await;
    let elsewhere = Idempotency::builder(setup.store.clone()).build().unwrap();
    let layer = IdempotencyLayer::builder(elsewhere, |_| Scope::new("tenant-7").ok());
    let rival = setup.app_under(layer, on_post(|| async { "done" }));
    // A renewal may come in between.
    while {
        setup.clock.advance(setup.idempotency.lease());
        rival.send(post("k", "{}")).await.text() != "done"
    } {}
    within(first).await.unwrap().problem("request-in-progress");
}

#[tokio::test]
async fn layers_outside_see_which_problem_was_answered() {
    let setup = Setup::new();
    let app = setup.app(on_post(|| async { "done" }));
    let answer = app.0.clone().oneshot(crate::support::without(post("k", "{}"), "idempotency-key")).await.unwrap();
    assert_eq!(answer.extensions().get(), Some(&idem_tower::Code::KeyMissing));
    let answer = app.0.oneshot(post("k", "{}")).await.unwrap();
    assert_eq!(answer.extensions().get::<idem_tower::Code>(), None);
}
