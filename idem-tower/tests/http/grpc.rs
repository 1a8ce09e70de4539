//! Calls of gRPC: trailers say how they ended, and problems are statuses. `examples/tonic` is tested with tonic.

use axum::{Extension, body::Body, response::IntoResponse, response::Response, routing::post as on_post};
use http::HeaderMap;
use idem_tower::FollowedLive;

use crate::support::{Answer, App, Chunks, Count, Server, Setup, post, with, within, without};

fn call(key: &str) -> axum::extract::Request {
    with(post(key, "\0\0\0\0\u{1}a"), "content-type", "application/grpc")
}

/// An answer as gRPC has it: a message, then how the call ended.
fn ended(run: usize, code: u16) -> Response {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", code.into());
    trailers.insert("x-receipt", run.into());
    trailers.insert("details-bin", "AAH_".parse().unwrap());
    let mut response = Response::new(Body::new(Chunks::of(&["\0\0\0\0\u{1}", "b"]).then_trailers(trailers)));
    response.headers_mut().insert("content-type", "application/grpc+proto".parse().unwrap());
    response
}

/// An application that ends its runs with these codes, one after the other.
fn app(setup: &Setup, codes: &'static [u16], count: &Count) -> App {
    let count = count.clone();
    let handler = move || async move {
        let run = count.up();
        ended(run, codes[run - 1])
    };
    setup.app_under(setup.layer().grpc(), on_post(handler))
}

fn trailer(answer: &Answer, name: &str) -> String {
    answer.trailers.as_ref().unwrap()[name].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_call_that_ended_well_is_replayed_with_its_message_and_all_of_its_trailers() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = app(&setup, &[0], &count);
    let first = app.send(call("k")).await;
    let mut again = app.send(call("k")).await;
    assert!(again.is_replay() && !first.is_replay());
    again.headers.remove("idempotent-replayed");
    assert_eq!(again, first);
    assert_eq!((trailer(&again, "grpc-status"), trailer(&again, "x-receipt")), ("0".into(), "1".into()));
    assert_eq!(trailer(&again, "details-bin"), "AAH_");
}

// case 100
#[tokio::test]
async fn the_code_in_the_trailers_decides_and_not_the_status_of_http() {
    // FAILED_PRECONDITION is final; INVALID_ARGUMENT is forgotten; UNAVAILABLE is released.
    let cases: [(&'static [u16], _); 3] = [(&[9], None), (&[3, 0], Some(false)), (&[14, 0], Some(true))];
    for (codes, runs_again_as_repeat) in cases {
        let (setup, count) = (Setup::new(), Count::default());
        let app = app(&setup, codes, &count);
        assert_eq!(trailer(&app.send(call("k")).await, "grpc-status"), codes[0].to_string());
        let again = app.send(call("k")).await;
        assert_eq!(again.is_replay(), runs_again_as_repeat.is_none(), "{codes:?}");
        if let Some(is_repeat) = runs_again_as_repeat {
            assert_eq!(trailer(&again, "grpc-status"), "0");
            assert_eq!(setup.record("k").await.repeat, is_repeat, "{codes:?}");
        }
    }
}

#[tokio::test]
async fn an_error_that_has_only_headers_is_judged_by_them_and_one_without_a_code_is_a_failure() {
    let (setup, count) = (Setup::new(), Count::default());
    let runs = count.clone();
    let handler = move || async move {
        match runs.up() {
            1 => Body::empty().into_response(),
            _ => ([("grpc-status", "5"), ("grpc-message", "no such cart")], Body::empty()).into_response(),
        }
    };
    let app = setup.app_under(setup.layer().grpc(), on_post(handler));
    assert_eq!(app.send(call("k")).await.header("grpc-status"), None);
    let second = app.send(call("k")).await;
    assert_eq!((second.header("grpc-status"), second.is_replay()), (Some("5"), false), "the first did not end");
    let third = app.send(call("k")).await;
    assert_eq!((third.header("grpc-status"), third.is_replay()), (Some("5"), true));
    assert_eq!(third.header("grpc-message"), Some("no such cart"));
    assert_eq!(count.now(), 2);
}

// case 125
#[tokio::test]
async fn a_call_whose_answer_is_too_large_is_done_goes_out_whole_and_is_not_run_again() {
    let (setup, count) = (Setup::new(), Count::default());
    let runs = count.clone();
    let layer = setup.layer().grpc().max_response_bytes(3);
    let app = setup.app_under(layer, on_post(move || async move { ended(runs.up(), 0) }));
    let first = app.send(call("k")).await;
    assert_eq!((first.body.len(), trailer(&first, "grpc-status")), (6, "0".into()));
    let again = app.send(call("k")).await;
    assert_eq!((again.status, again.header("grpc-status")), (200, Some("6")));
    assert_eq!(count.now(), 1);
}

#[tokio::test]
async fn a_stream_that_begins_with_its_code_is_judged_by_it_though_it_is_not_read() {
    let (setup, count) = (Setup::new(), Count::default());
    let runs = count.clone();
    let handler = move || async move {
        let code = if runs.up() == 1 { "14" } else { "0" };
        (Extension(FollowedLive), [("grpc-status", code)], Body::empty())
    };
    let app = setup.app_under(setup.layer().grpc(), on_post(handler));
    for (code, runs) in [("14", 1), ("0", 2), ("6", 2)] {
        assert_eq!(app.send(call("k")).await.header("grpc-status"), Some(code));
        assert_eq!(count.now(), runs, "UNAVAILABLE is released, OK is final");
    }
}

#[tokio::test]
async fn where_calls_are_not_grpc_its_code_is_a_header_like_any_other() {
    let setup = Setup::new();
    let app = setup.app(on_post(|| async { (http::StatusCode::CREATED, [("grpc-status", "14")], "done") }));
    app.send(post("k", "{}")).await;
    let again = app.send(post("k", "{}")).await;
    assert_eq!((again.status, again.is_replay(), again.header("grpc-status")), (201, true, Some("14")));
}

#[tokio::test]
async fn a_handler_that_panics_is_an_internal_error_and_its_retry_runs() {
    let (setup, count) = (Setup::new(), Count::default());
    let runs = count.clone();
    let handler = move || async move {
        let run = runs.up();
        assert!(run > 1, "as planned");
        ended(run, 0)
    };
    let app = setup.app_under(setup.layer().grpc(), on_post(handler));
    assert_eq!(app.send(call("k")).await.header("grpc-status"), Some("13"));
    assert_eq!(trailer(&app.send(call("k")).await, "grpc-status"), "0");
}

// case 118
#[tokio::test]
async fn problems_are_statuses_that_have_only_headers() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = app(&setup, &[0], &count);
    let missing = app.send(without(call("k"), "idempotency-key")).await;
    assert_eq!((missing.status, missing.header("grpc-status"), missing.body.len()), (200, Some("3"), 0));
    assert_eq!(missing.header("content-type"), Some("application/grpc"));
    app.send(call("k")).await;
    let reused = app.send(with(post("k", "another"), "content-type", "application/grpc")).await;
    assert_eq!(reused.header("grpc-status"), Some("9"));
    assert!(reused.header("grpc-message").unwrap().contains("body length differs"), "{reused:?}");
    assert_eq!(count.now(), 1);
}

#[tokio::test]
async fn over_http_2_the_trailers_of_a_replay_are_sent_as_trailers() {
    let (setup, count) = (Setup::new(), Count::default());
    let server = Server::of(app(&setup, &[0], &count)).await;
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .http2_only(true)
        .build_http::<Body>();
    for is_replay in [false, true] {
        let mut request = call("k");
        *request.uri_mut() = format!("http://{}/", server.address).parse().unwrap();
        let answer = Answer::of(within(client.request(request)).await.unwrap()).await;
        assert_eq!(answer.is_replay(), is_replay);
        assert_eq!((trailer(&answer, "grpc-status"), trailer(&answer, "x-receipt")), ("0".into(), "1".into()));
    }
}
