//! Which requests are covered, and which keys are accepted.

use axum::routing::{any, post as on_post};
use http::Method;
use idem_tower::Mode;

use crate::support::{Count, Setup, post, request, with, without};

/// A handler that answers with how often it ran.
macro_rules! counting {
    ($count:expr) => {{
        let count = $count.clone();
        move || async move { count.up().to_string() }
    }};
}

#[tokio::test]
async fn a_request_without_a_key_is_refused_where_one_is_required_and_its_handler_does_not_run() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(on_post(counting!(count)));
    let answer = app.send(without(post("k", ""), "idempotency-key")).await;
    assert_eq!(answer.status, 400);
    let problem = answer.problem("idempotency-key-missing");
    assert_eq!(problem["type"], "urn:idem:problem:idempotency-key-missing");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!((count.now(), setup.records.record_count()), (0, 0));
}

// case 061
#[tokio::test]
async fn where_a_key_is_optional_requests_without_one_all_run_and_none_is_made_up() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app_under(setup.layer().optional(), on_post(counting!(count)));
    for run in ["1", "2"] {
        let answer = app.send(without(post("k", "{}"), "idempotency-key")).await;
        assert_eq!((answer.text(), answer.is_replay()), (run, false));
    }
    assert_eq!(setup.records.record_count(), 0);
    assert_eq!(app.send(post("k", "{}")).await.text(), "3");
    assert!(app.send(post("k", "{}")).await.is_replay());
    assert_eq!(count.now(), 3);
}

#[tokio::test]
async fn methods_that_are_not_covered_pass_with_a_key_and_without() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(any(counting!(count)));
    for (method, run) in [("GET", "1"), ("PUT", "2"), ("DELETE", "3"), ("GET", "4")] {
        let answer = app.send(request(method, "/", "k", "")).await;
        assert_eq!((answer.status, answer.text()), (200, run), "{method}");
    }
    assert_eq!(app.send(without(request("GET", "/", "k", ""), "idempotency-key")).await.text(), "5");
    assert_eq!(setup.records.record_count(), 0);
    assert_eq!(app.send(request("PATCH", "/", "k", "")).await.text(), "6");
    assert!(app.send(request("PATCH", "/", "k", "")).await.is_replay());
}

#[tokio::test]
async fn the_methods_and_the_header_can_be_chosen() {
    let (setup, count) = (Setup::new(), Count::default());
    let layer = setup.layer().methods([Method::PUT]).header("X-Idempotency-Key");
    let app = setup.app_under(layer, any(counting!(count)));
    let put = || with(without(request("PUT", "/", "k", ""), "idempotency-key"), "x-idempotency-key", "k");
    assert_eq!(app.send(put()).await.text(), "1");
    assert!(app.send(put()).await.is_replay());
    let answer = app.send(request("PUT", "/", "k", "")).await;
    let problem = answer.problem("idempotency-key-missing");
    assert!(problem["detail"].as_str().unwrap().starts_with("the header x-idempotency-key is missing"), "{problem}");
    assert_eq!(app.send(request("POST", "/", "k", "")).await.text(), "2");
}

#[tokio::test]
async fn where_a_key_is_optional_it_is_the_chosen_header_that_makes_a_request_covered() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app_under(setup.layer().optional().header("X-Idempotency-Key"), on_post(counting!(count)));
    let chosen = || with(without(post("k", ""), "idempotency-key"), "x-idempotency-key", "k");
    assert_eq!(app.send(chosen()).await.text(), "1");
    assert!(app.send(chosen()).await.is_replay());
    for run in ["2", "3"] {
        assert_eq!(app.send(post("k", "")).await.text(), run, "the header that it is by default means nothing here");
    }
    assert_eq!(setup.records.record_count(), 1);
}

// case 107
#[tokio::test]
async fn several_keys_are_refused_and_never_joined_into_one() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(on_post(counting!(count)));
    for second in ["k2", "k1"] {
        let mut two_lines = post("k1", "");
        two_lines.headers_mut().append("idempotency-key", second.parse().unwrap());
        let answer = app.send(two_lines).await;
        assert_eq!(answer.status, 400);
        answer.problem("idempotency-key-malformed");
    }
    let answer = app.send(post("k1, k2", "")).await;
    assert_eq!(answer.status, 400);
    answer.problem("idempotency-key-malformed");
    assert_eq!((count.now(), setup.records.record_count()), (0, 0));
}

// case 110
#[tokio::test]
async fn a_key_of_255_bytes_works_and_a_longer_one_is_told_the_limit_before_the_store_is_asked() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(on_post(counting!(count)));
    assert_eq!(app.send(post(&"k".repeat(255), "")).await.status, 200);
    let calls = setup.store.calls.load(std::sync::atomic::Ordering::SeqCst);
    for length in [256, 65_536] {
        let answer = app.send(post(&"k".repeat(length), "")).await;
        assert_eq!(answer.status, 400);
        let problem = answer.problem("idempotency-key-too-long");
        assert!(problem["detail"].as_str().unwrap().ends_with("the limit is 255"), "{problem}");
    }
    assert_eq!(setup.store.calls.load(std::sync::atomic::Ordering::SeqCst), calls);
    assert_eq!(count.now(), 1);
}

// case 111
#[tokio::test]
async fn quoted_and_bare_are_one_key_and_bare_ones_are_refused_where_the_draft_is_followed_strictly() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(on_post(counting!(count)));
    assert_eq!(app.send(post("\"abc\"", "")).await.text(), "1");
    assert!(app.send(post("abc", "")).await.is_replay());
    assert_eq!(app.send(post("abc;p=1", "")).await.text(), "2");
    app.send(post("\"abc", "")).await.problem("idempotency-key-malformed");

    let strict = setup.app_under(setup.layer().mode(Mode::Strict), on_post(counting!(count)));
    assert!(strict.send(post("\"abc\";p=1", "")).await.is_replay());
    strict.send(post("abc", "")).await.problem("idempotency-key-malformed");
    assert_eq!(count.now(), 2);
}
