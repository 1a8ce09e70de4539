//! Handlers of axum that commit in their own transaction.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use axum::{
    Extension,
    response::{IntoResponse, Response},
    routing::post as on_post,
};
use bytes::Bytes;
use http::StatusCode;
use idem_core::{
    Body as Kept, CommitError, Completion, Fenced, NotRetained, Response as Recorded, Store, StoreError,
    StoreErrorKind, Transaction,
};
use idem_runner::{Attempt, Seal, SealError, Sealed};
use idem_tower::{CommitProblem, CurrentAttempt, DoNotStore, record, respond};

use crate::support::{Answer, Count, Faulty, Gate, Server, Setup, post, request, within, without};

/// What a transaction of an SQL store does, without a transaction: completes the record.
struct InTransaction(Arc<Faulty>);

impl Transaction for InTransaction {
    type Committed = Pin<Box<dyn Future<Output = Result<Recorded, CommitError>> + Send>>;

    fn commit_with(self, completion: Completion) -> Self::Committed {
        Box::pin(async move {
            let (owner, response) = (completion.owner(), completion.response());
            match self.0.complete(owner, response, completion.retention()).await? {
                Fenced::Written(recorded) => Ok(recorded),
                Fenced::Superseded => Err(CommitError::Superseded),
            }
        })
    }
}

#[tokio::test]
async fn a_handler_that_commits_and_answers_with_something_else_is_answered_for_with_what_it_committed() {
    let (setup, count) = (Setup::new(), Count::default());
    let (store, runs) = (setup.store.clone(), count.clone());
    let handler = move |CurrentAttempt(attempt): CurrentAttempt| async move {
        let run = runs.up();
        let committed = Recorded::new(201).with_header("location", "/1").with_body(format!("paid in run {run}"));
        attempt.commit(InTransaction(store), committed).await?;
        Ok::<_, CommitProblem>((StatusCode::BAD_GATEWAY, "failed after the commit"))
    };
    let app = setup.app(on_post(handler));
    let first = app.send(post("k", "{}")).await;
    assert_eq!((first.status, first.text(), first.header("location")), (201, "paid in run 1", Some("/1")));
    assert!(!first.is_replay());
    let again = app.send(post("k", "{}")).await;
    assert_eq!((again.status, &again.body, again.header("location")), (201, &first.body, Some("/1")));
    assert_eq!(count.now(), 1);
}

#[tokio::test]
async fn a_handler_sends_the_recorded_response_or_the_same_with_headers_that_are_never_recorded() {
    let setup = Setup::new();
    let store = setup.store.clone();
    let handler = move |attempt: CurrentAttempt| async move {
        let mut response = http::Response::new(Bytes::from_static(b"paid"));
        *response.status_mut() = StatusCode::CREATED;
        response.headers_mut().insert("set-cookie", "session=1".parse().unwrap());
        response.headers_mut().insert("etag", "\"1\"".parse().unwrap());
        attempt.commit(InTransaction(store), record(&response)).await?;
        Ok::<_, CommitProblem>(response.map(axum::body::Body::from))
    };
    let app = setup.app(on_post(handler));
    let first = app.send(post("k", "{}")).await;
    assert_eq!((first.status, first.text(), first.header("set-cookie")), (201, "paid", Some("session=1")));
    let again = app.send(post("k", "{}")).await;
    assert_eq!((again.text(), again.header("set-cookie"), again.header("etag")), ("paid", None, Some("\"1\"")));
    assert!(again.is_replay());

    let store = setup.store.clone();
    let app = setup.app(on_post(move |attempt: CurrentAttempt| async move {
        let recorded = attempt.commit(InTransaction(store), Recorded::new(201).with_body("paid")).await?;
        Ok::<_, CommitProblem>(respond(&recorded))
    }));
    assert_eq!(app.send(post("k-2", "{}")).await.text(), "paid");
    assert!(app.send(post("k-2", "{}")).await.is_replay());
}

// case 092
#[tokio::test]
async fn what_is_never_replayed_is_not_replayed_when_a_handler_recorded_it_itself_either() {
    let setup = Setup::new();
    let store = setup.store.clone();
    let app = setup.app(on_post(move |attempt: CurrentAttempt| async move {
        let by_hand = Recorded::new(201)
            .with_header("set-cookie", "session=1")
            .with_header("connection", "close")
            .with_header("etag", "\"1\"")
            .with_body("paid");
        Ok::<_, CommitProblem>(respond(&attempt.commit(InTransaction(store), by_hand).await?))
    }));
    assert_eq!(app.send(post("k", "{}")).await.status, 201);
    let again = app.send(post("k", "{}")).await;
    assert!(again.is_replay());
    assert_eq!((again.header("set-cookie"), again.header("connection")), (None, None));
    assert_eq!((again.header("etag"), again.text()), (Some("\"1\""), "paid"));
}

// case 095
#[tokio::test]
async fn framing_that_a_handler_recorded_itself_is_neither_sent_nor_replayed() {
    let setup = Setup::new();
    let store = setup.store.clone();
    let app = setup.app(on_post(move |attempt: CurrentAttempt| async move {
        // As it comes from a provider whose answer was compressed.
        let by_hand = Recorded::new(201)
            .with_header("content-length", "2")
            .with_header("transfer-encoding", "chunked")
            .with_header("etag", "\"1\"")
            .with_body("paid");
        Ok::<_, CommitProblem>(respond(&attempt.commit(InTransaction(store), by_hand).await?))
    }));
    let server = Server::of(app).await;
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .build_http::<axum::body::Body>();
    for is_replay in [false, true] {
        let mut request = post("k", "{}");
        *request.uri_mut() = format!("http://{}/", server.address).parse().unwrap();
        let answer = Answer::of(within(client.request(request)).await.unwrap()).await;
        assert_eq!((answer.text(), answer.is_replay(), answer.header("etag")), ("paid", is_replay, Some("\"1\"")));
        assert_eq!((answer.header("content-length"), answer.header("transfer-encoding")), (Some("4"), None));
    }
}

// case 092
#[tokio::test]
async fn a_trailer_that_is_never_replayed_is_not_replayed_when_a_handler_recorded_it_itself_either() {
    let setup = Setup::new();
    let store = setup.store.clone();
    let app = setup.app(on_post(move |attempt: CurrentAttempt| async move {
        let by_hand = Recorded::new(201)
            .with_body("paid")
            .with_trailer("checksum", "9")
            .with_trailer("content-length", "9")
            .with_trailer("set-cookie", "session=1");
        Ok::<_, CommitProblem>(respond(&attempt.commit(InTransaction(store), by_hand).await?))
    }));
    for (is_replay, names) in [(false, &["checksum", "set-cookie"][..]), (true, &["checksum"])] {
        let answer = app.send(post("k", "{}")).await;
        assert_eq!(answer.is_replay(), is_replay);
        let sent: Vec<_> = answer.trailers.iter().flat_map(|trailers| trailers.keys()).collect();
        assert_eq!(sent, names);
    }
}

// case 036
#[tokio::test]
async fn a_secret_that_is_committed_as_not_retained_goes_out_once() {
    let setup = Setup::new();
    let store = setup.store.clone();
    let app = setup.app(on_post(move |attempt: CurrentAttempt| async move {
        let nothing = Kept::NotRetained(NotRetained::Secret);
        attempt.commit(InTransaction(store), Recorded::new(201).with_kept(nothing)).await?;
        Ok::<_, CommitProblem>((StatusCode::CREATED, Extension(DoNotStore), "s3cr3t"))
    }));
    let first = app.send(post("k", "{}")).await;
    assert_eq!((first.status, first.text()), (201, "s3cr3t"));
    let again = app.send(post("k", "{}")).await;
    assert_eq!(again.status, 409);
    again.problem("response-not-retained");
}

/// Seals by turning every bit: for the tests of what is around it.
#[derive(Debug)]
struct Turned;

impl Seal for Turned {
    fn seal(&self, plain: &[u8], _: &[u8]) -> Result<Sealed, SealError> {
        Ok(Sealed { key_id: "a".into(), bytes: plain.iter().map(|byte| !byte).collect() })
    }

    fn open(&self, sealed: &Sealed, _: &[u8]) -> Result<Vec<u8>, SealError> {
        match &*sealed.key_id {
            "a" => Ok(sealed.bytes.iter().map(|byte| !byte).collect()),
            other => Err(SealError::UnknownKey { key_id: other.into() }),
        }
    }
}

// case 036
#[tokio::test]
async fn what_is_sealed_in_the_store_is_sent_and_replayed_opened_with_a_transaction_of_the_handlers_and_without() {
    let setup = Setup::with(|builder| builder.seal(Arc::new(Turned)));
    let store = setup.store.clone();
    let paid = || Recorded::new(201).with_header("location", "/s3cr3t").with_body("s3cr3t");
    let committing = move |CurrentAttempt(attempt): CurrentAttempt| async move {
        let recorded = attempt.commit(InTransaction(store), paid()).await?;
        Ok::<_, CommitProblem>(respond(&recorded)) // sealed: the layer sends what it means
    };
    let plain = || async { (StatusCode::CREATED, [("location", "/s3cr3t")], "s3cr3t") };
    for (key, app) in [("a", setup.app(on_post(committing))), ("b", setup.app(on_post(plain)))] {
        for is_replay in [false, true] {
            let answer = app.send(post(key, "{}")).await;
            assert_eq!((answer.status, answer.header("location"), answer.text()), (201, Some("/s3cr3t"), "s3cr3t"));
            assert_eq!(answer.is_replay(), is_replay);
        }
        assert!(!setup.record(key).await.encode().windows(6).any(|window| window == b"s3cr3t"));
    }
}

// case 036
#[tokio::test]
async fn an_answer_whose_key_is_gone_is_a_problem_that_tells_the_client_nothing_and_nothing_runs() {
    let (setup, count) = (Setup::with(|builder| builder.seal(Arc::new(Turned))), Count::default());
    let runs = count.clone();
    let store = setup.store.clone();
    let handler = move |CurrentAttempt(attempt): CurrentAttempt| async move {
        runs.up();
        let sealed = Kept::Sealed { key_id: "lost-key".into(), bytes: Bytes::from_static(b"?") };
        let _ = attempt.commit(InTransaction(store), Recorded::new(201).with_kept(sealed)).await;
        "done"
    };
    let app = setup.app(on_post(handler));
    app.send(post("k", "{}")).await;
    let answer = app.send(post("k", "{}")).await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, None));
    answer.problem("store-unavailable");
    assert!(!answer.text().contains("lost-key"), "{answer:?}");
    assert_eq!(count.now(), 1);
}

// case 118
#[tokio::test]
async fn a_commit_that_was_superseded_is_a_conflict_and_the_other_attempts_answer_stands() {
    let setup = Setup::with(|builder| builder.lease(Duration::from_secs(30)));
    let (started, go, count) = (Gate::new(), Gate::new(), Count::default());
    let (store, begun, pass) = (setup.store.clone(), started.clone(), go.clone());
    let handler = move |attempt: CurrentAttempt| async move {
        let run = count.up();
        begun.open();
        pass.pass().await;
        let committed = Recorded::new(201).with_body(run.to_string());
        Ok::<_, CommitProblem>(respond(&attempt.commit(InTransaction(store), committed).await?))
    };
    let app = setup.app(on_post(handler));
    let send = || {
        let app = app.clone();
        tokio::spawn(async move { app.send(post("k", "{}")).await })
    };
    let first = send();
    started.pass().await;
    setup.clock.advance(Duration::from_secs(30));
    let second = send();
    started.pass().await;
    go.open();
    let lost = within(first).await.unwrap();
    assert_eq!((lost.status, lost.header("retry-after")), (409, Some("1")));
    lost.problem("request-in-progress");
    go.open();
    assert_eq!(within(second).await.unwrap().text(), "2");
    assert_eq!(app.send(post("k", "{}")).await.text(), "2");
}

#[tokio::test]
async fn a_commit_that_failed_is_written_in_the_layers_style_says_nothing_of_the_store_and_its_retry_runs() {
    for is_secret in [false, true] {
        let (setup, count) = (Setup::new(), Count::default());
        let (store, runs) = (setup.store.clone(), count.clone());
        let handler = move |attempt: CurrentAttempt| async move {
            let run = runs.up();
            store.completions_fail(run == 1);
            let paid = Recorded::new(201).with_body(format!("paid in run {run}"));
            let _ = attempt.commit(InTransaction(store), paid.clone()).await;
            let mut response = respond(&paid);
            if is_secret {
                response.extensions_mut().insert(DoNotStore);
            }
            response
        };
        let app = setup.app(on_post(handler));
        let failed = app.send(post("k", "{}")).await;
        assert_eq!((failed.status, failed.header("retry-after")), (500, None));
        failed.problem("operation-failed");
        let second = app.send(post("k", "{}")).await;
        assert_eq!((second.status, second.text(), second.is_replay()), (201, "paid in run 2", false));
    }
}

#[tokio::test]
async fn what_was_committed_without_its_body_is_answered_for_in_the_layers_style() {
    let setup = Setup::new();
    let store = setup.store.clone();
    let layer = setup.layer().problem_base("https://errors.example/");
    let app = setup.app_under(
        layer,
        on_post(move |attempt: CurrentAttempt| async move {
            let nothing = Kept::NotRetained(NotRetained::TooLarge);
            attempt.commit(InTransaction(store), Recorded::new(201).with_kept(nothing)).await?;
            Ok::<_, CommitProblem>((StatusCode::BAD_GATEWAY, "failed after the commit"))
        }),
    );
    for _ in 0..2 {
        let answer = app.send(post("k", "{}")).await;
        let problem = answer.problem("response-not-retained");
        assert_eq!(problem["type"], "https://errors.example/response-not-retained");
    }
}

#[tokio::test]
async fn a_handler_that_needs_an_attempt_and_has_none_is_not_run() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(
        on_post(move |_: CurrentAttempt| async move { count.up().to_string() })
            .put(|attempt: Option<CurrentAttempt>| async move { attempt.is_some().to_string() }),
    );
    let bare = axum::Router::new().route("/", on_post(|_: CurrentAttempt| async {}));
    let answer = crate::support::App(bare).send(post("k", "{}")).await;
    assert_eq!(answer.status, 500);
    let problem = answer.problem("operation-failed");
    assert!(problem["detail"].as_str().unwrap().contains("set up wrongly"), "a retry does not help: {problem}");
    assert_eq!(app.send(request("PUT", "/", "k", "")).await.text(), "false");
    assert_eq!(app.send(post("k", "{}")).await.text(), "1");
    let optional = setup.app_under(
        setup.layer().optional(),
        on_post(|attempt: Option<CurrentAttempt>| async move { attempt.is_some().to_string() }),
    );
    assert_eq!(optional.send(without(post("k-3", "{}"), "idempotency-key")).await.text(), "false");
    assert_eq!(optional.send(post("k-3", "{}")).await.text(), "true");
}

#[tokio::test]
async fn an_attempt_for_tests_can_be_given_to_a_handler() {
    async fn pay(CurrentAttempt(attempt): CurrentAttempt) -> String {
        attempt.downstream_key("charge")
    }
    let (scope, key) = (idem_core::Scope::new("t").unwrap(), idem_core::Key::new("k").unwrap());
    let key = pay(CurrentAttempt(Attempt::for_test(scope, key))).await;
    assert_eq!(key, idem_core::downstream_key("t", "k", "charge"));
}

#[test]
fn a_commit_error_keeps_its_words_for_logs() {
    let error = StoreError::new(StoreErrorKind::Corrupt, "sqlite", "complete", "page 9 is damaged");
    let problem = CommitProblem::from(CommitError::from(error));
    assert!(problem.to_string().contains("page 9 is damaged"));
    let response: Response = problem.into_response();
    assert_eq!((response.status(), response.headers().get("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, None));
    let superseded: Response = CommitProblem::from(CommitError::Superseded).into_response();
    assert_eq!(
        (superseded.status(), &superseded.headers()["retry-after"]),
        (StatusCode::CONFLICT, &"1".parse().unwrap())
    );
}
