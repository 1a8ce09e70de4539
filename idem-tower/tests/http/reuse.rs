//! A key that is used for another request.

use axum::{
    Router, middleware,
    routing::{any, delete, post as on_post},
};
use http::Method;
use idem_core::{FieldSelector, FingerprintKey};
use serde_json::json;

use crate::support::{Answer, App, Count, Gate, Setup, authenticate, post, request, with};

const BODY: &str = r#"{"amount":1,"steps":["debit","credit"],"b":{"x":1,"y":2}}"#;

fn counting(count: &Count) -> axum::routing::MethodRouter {
    let count = count.clone();
    any(move || async move { count.up().to_string() })
}

#[track_caller]
fn differing_parts(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 422);
    let problem = answer.problem("idempotency-key-reused");
    assert_eq!(answer.header("retry-after"), None);
    assert!(problem["detail"].as_str().unwrap().ends_with("use a new key for this one"), "{problem}");
    let differences = problem["differences"].as_array().unwrap();
    differences.iter().map(|difference| difference["part"].as_str().unwrap().to_owned()).collect()
}

// cases 032, 058
#[tokio::test]
async fn another_body_target_method_or_content_type_under_the_same_key_is_refused_and_nothing_runs() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(counting(&count));
    assert_eq!(app.send(request("POST", "/?a=1", "k", BODY)).await.text(), "1");
    let reversed = BODY.replace(r#""debit","credit""#, r#""credit","debit""#);
    for (other, part) in [
        (request("POST", "/?a=1", "k", BODY.replace(":1,\"s", ":2,\"s")), "body"),
        (request("POST", "/?a=1", "k", reversed), "body"),
        (request("POST", "/?a=2", "k", BODY), "target"),
        (request("PATCH", "/?a=1", "k", BODY), "method"),
        (with(request("POST", "/?a=1", "k", BODY), "content-type", "text/plain"), "content-type"),
    ] {
        let differing = differing_parts(&app.send(other).await);
        assert!(differing.contains(&part.to_owned()), "{part}: {differing:?}");
    }
    assert_eq!(count.now(), 1);
    let again = app.send(request("POST", "/?a=1", "k", BODY)).await;
    assert_eq!((again.text(), again.is_replay()), ("1", true));
}

// case 032
#[tokio::test]
async fn a_delete_that_reuses_the_key_of_a_create_is_told_that_the_target_differs_and_deletes_nothing() {
    let (setup, count) = (Setup::new(), Count::default());
    let layer = setup.layer().methods([Method::POST, Method::DELETE]).build().unwrap();
    let deleted = count.clone();
    let router = Router::new()
        .route("/tables", on_post(|| async { (http::StatusCode::CREATED, "created") }))
        .route("/tables/7", delete(move || async move { deleted.up().to_string() }))
        .layer(layer)
        .layer(middleware::from_fn(authenticate));
    let app = App(router);
    assert_eq!(app.send(request("POST", "/tables", "k", "{}")).await.status, 201);
    let answer = app.send(request("DELETE", "/tables/7", "k", "")).await;
    assert_eq!(differing_parts(&answer), ["body", "method", "target"]);
    assert_eq!(count.now(), 0);
}

// case 132
#[tokio::test]
async fn a_retry_with_an_empty_body_is_told_that_the_lengths_differ_while_the_first_runs_and_after_it() {
    let (setup, count) = (Setup::new(), Count::default());
    let (started, go) = (Gate::new(), Gate::new());
    let handler = {
        let (count, started, go) = (count.clone(), started.clone(), go.clone());
        move || async move {
            started.open();
            go.pass().await;
            count.up().to_string()
        }
    };
    let app = setup.app(on_post(handler));
    let first = tokio::spawn({
        let app = app.clone();
        async move { app.send(post("k", BODY)).await }
    });
    started.pass().await;
    // case 060: while the first is in flight
    let empty = app.send(post("k", "")).await;
    assert_eq!(differing_parts(&empty), ["body"]);
    go.open();
    assert_eq!(first.await.unwrap().text(), "1");

    let problem = app.send(post("k", "")).await.problem("idempotency-key-reused");
    assert_eq!(problem["differences"], json!([{ "part": "body", "storedLength": BODY.len(), "givenLength": 0 }]));
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains(&format!("body length differs: {} -> 0", BODY.len())), "{detail}");
    assert_eq!(count.now(), 1);
}

// case 129
#[tokio::test]
async fn json_that_means_the_same_is_a_retry_and_with_raw_bodies_it_is_not() {
    let same = r#" { "b": {"y":2,"x":1}, "\u0061mount": 1.0, "steps": ["debit","credit"] }"#;
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(counting(&count));
    app.send(post("k", BODY)).await;
    assert!(app.send(post("k", same)).await.is_replay());

    let raw = setup.app_under(setup.layer().raw_body(), counting(&count));
    raw.send(post("raw", BODY)).await;
    assert_eq!(differing_parts(&raw.send(post("raw", same)).await), ["body"]);
    assert!(raw.send(post("raw", BODY)).await.is_replay());
}

// cases 128, 133
#[tokio::test]
async fn a_body_with_a_send_time_is_a_retry_where_the_fields_that_count_are_named() {
    let (setup, count) = (Setup::new(), Count::default());
    let fields = FieldSelector::new(&["/amount"]).unwrap();
    let app = setup.app_under(setup.layer().fields(fields), counting(&count));
    app.send(post("k", r#"{"amount":1,"client_ts":1}"#)).await;
    assert!(app.send(post("k", r#"{"client_ts":2,"amount":1}"#)).await.is_replay());
    assert_eq!(differing_parts(&app.send(post("k", r#"{"amount":2,"client_ts":1}"#)).await), ["body"]);
}

// case 133
#[tokio::test]
async fn a_fingerprint_of_ones_own_says_what_counts() {
    let (setup, count) = (Setup::new(), Count::default());
    let layer = setup.layer().fingerprint_with(|parts, request, _| {
        let order = request.headers.get("x-order").map_or(&b""[..], |order| order.as_bytes());
        parts.part("order", order)
    });
    let app = setup.app_under(layer, counting(&count));
    app.send(with(post("k", "one"), "x-order", "1")).await;
    assert!(app.send(with(post("k", "two"), "x-order", "1")).await.is_replay());
    assert_eq!(differing_parts(&app.send(with(post("k", "one"), "x-order", "2")).await), ["order"]);
}

#[tokio::test]
async fn a_mistake_in_such_a_function_is_not_the_clients_and_nothing_runs() {
    let (setup, count) = (Setup::new(), Count::default());
    let layer = setup.layer().fingerprint_with(|parts, _, body| parts.part("twice", body).part("twice", body));
    let answer = setup.app_under(layer, counting(&count)).send(post("k", BODY)).await;
    assert_eq!(answer.status, 500);
    answer.problem("operation-failed");
    assert_eq!((count.now(), setup.records.record_count()), (0, 0));
}

// case 036
#[tokio::test]
async fn after_a_change_of_fingerprint_keys_the_older_records_still_replay() {
    let (setup, count) = (Setup::new(), Count::default());
    let key = |id| FingerprintKey::new(id, &[3; 32]).unwrap();
    let before = setup.app(counting(&count));
    before.send(post("k", BODY)).await;
    let after = setup.layer().fingerprint_key(key("new")).accept_unkeyed_fingerprints();
    let after = setup.app_under(after, counting(&count));
    assert!(after.send(post("k", BODY)).await.is_replay());
    assert_eq!(differing_parts(&after.send(post("k", "{}")).await), ["body"]);
    let forgotten = setup.app_under(setup.layer().fingerprint_key(key("other")), counting(&count));
    forgotten.send(post("k", BODY)).await.problem("store-unavailable");
    assert_eq!(count.now(), 1);
}

// case 036
#[tokio::test]
async fn while_instances_change_their_fingerprint_keys_one_after_another_each_knows_the_others_records() {
    let (setup, count) = (Setup::new(), Count::default());
    let key = |id: &str, byte| FingerprintKey::new(id, &[byte; 32]).unwrap();
    let (old, new) = (|| key("2026-11", 11), || key("2026-12", 12));
    // First every instance accepts the new key, then one after another makes fingerprints with it.
    let not_yet = setup.layer().fingerprint_key(old()).accept_fingerprint_key(new());
    let not_yet = setup.app_under(not_yet, counting(&count));
    let changed = setup.layer().fingerprint_key(new()).accept_fingerprint_key(old());
    let changed = setup.app_under(changed, counting(&count));
    for (name, first, second) in [("a", &not_yet, &changed), ("b", &changed, &not_yet)] {
        assert!(!first.send(post(name, BODY)).await.is_replay());
        assert!(second.send(post(name, BODY)).await.is_replay(), "{name}");
        assert_eq!(differing_parts(&second.send(post(name, "{}")).await), ["body"]);
    }
    assert_eq!(count.now(), 2);
}

// case 101
#[tokio::test]
async fn a_refused_request_is_forgotten_so_that_the_corrected_one_runs_under_the_same_key() {
    let setup = Setup::new();
    let handler = |body: String| async move {
        if body.contains("right") { (http::StatusCode::CREATED, "done") } else { (http::StatusCode::BAD_REQUEST, "no") }
    };
    let app = setup.app(on_post(handler));
    assert_eq!(app.send(post("k", r#"{"code":"wrong"}"#)).await.status, 400);
    assert_eq!(app.send(post("k", r#"{"code":"right"}"#)).await.status, 201);
    assert!(app.send(post("k", r#"{"code":"right"}"#)).await.is_replay());
    differing_parts(&app.send(post("k", r#"{"code":"wrong"}"#)).await);
}
