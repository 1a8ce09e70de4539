//! A replay equals the first answer.

use std::convert::Infallible;

use axum::{
    Extension,
    body::Body,
    response::{IntoResponse, Response},
    routing::{any, post as on_post},
};
use futures_util::StreamExt;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt;
use idem_runner::SettlePolicy;
use idem_tower::{DoNotStore, FollowedLive, Replayed};
use tower::ServiceExt;

use crate::support::{Answer, App, Chunks, Count, Setup, post, request, within};

/// Sends the same request twice: the first answer and its replay, of which the mark was checked and taken off.
async fn twice(app: &App, request: impl Fn() -> axum::extract::Request) -> (Answer, Answer) {
    let first = app.send(request()).await;
    assert!(!first.is_replay(), "{first:?}");
    let mut again = app.send(request()).await;
    assert!(again.is_replay(), "{again:?}");
    again.headers.remove("idempotent-replayed");
    (first, again)
}

fn post_of(handler: impl Fn() -> Response + Clone + Send + Sync + 'static) -> App {
    Setup::new().app(on_post(move || async move { handler() }))
}

// cases 082, 097
#[tokio::test]
async fn status_headers_and_bytes_come_back_as_they_were() {
    let app = post_of(|| {
        let body = "{ \"b\":1.0, \"a\":1e2, \"a\":3, \"nul\":\"\\u0000\" }";
        let headers = [("location", "/payments/1"), ("etag", "\"v1\""), ("content-type", "application/json")];
        let mut response = (StatusCode::CREATED, headers, body).into_response();
        response.headers_mut().append("link", "</a>".parse().unwrap());
        response.headers_mut().append("link", "</b>".parse().unwrap());
        response.headers_mut().insert("x-latin", http::HeaderValue::from_bytes(b"\xe9").unwrap());
        response
    });
    let (first, again) = twice(&app, || post("k", "{}")).await;
    assert_eq!(first.status, 201);
    assert_eq!(first, again);
    let order = |answer: &Answer| answer.headers.keys().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(order(&first), order(&again));
    assert_eq!(again.headers.get_all("link").into_iter().collect::<Vec<_>>(), ["</a>", "</b>"]);
}

// cases 079, 080
#[tokio::test]
async fn empty_and_binary_bodies_come_back_as_they_were() {
    let (first, again) = twice(&post_of(|| StatusCode::ACCEPTED.into_response()), || post("k", "{}")).await;
    assert_eq!((first.status, first.body.len()), (202, 0));
    assert_eq!(first, again);

    let (first, again) = twice(&post_of(|| (b"\0\xff\x80\n".to_vec()).into_response()), || post("k", "{}")).await;
    assert_eq!(&first.body[..], b"\0\xff\x80\n");
    assert_eq!(first, again);
}

// case 095
#[tokio::test]
async fn answers_without_a_body_come_back_without_one() {
    for status in [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED, StatusCode::RESET_CONTENT] {
        let (first, again) = twice(&post_of(move || status.into_response()), || post("k", "{}")).await;
        assert_eq!((first.status, first.body.len()), (status.as_u16(), 0));
        assert_eq!(first, again, "{status}");
    }
}

// case 095
#[tokio::test]
async fn the_answer_to_head_keeps_the_length_that_get_would_have() {
    let setup = Setup::new();
    let layer = setup.layer().methods([Method::HEAD]);
    let app = setup.app_under(layer, any(|| async { ([("content-length", "42")], "") }));
    let (first, again) = twice(&app, || request("HEAD", "/", "k", "")).await;
    assert_eq!(first.header("content-length"), Some("42"));
    assert_eq!(first, again);
}

// cases 092, 105
#[tokio::test]
async fn what_was_right_for_the_first_exchange_only_is_on_the_first_answer_and_not_on_the_replay() {
    const PASSING: [(&str, &str); 6] = [
        ("set-cookie", "session=1"),
        ("www-authenticate", "Basic"),
        ("date", "Mon, 30 Nov 2026 14:00:00 GMT"),
        ("x-request-id", "r-1"),
        ("ratelimit-remaining", "9"),
        ("x-ratelimit-remaining", "9"),
    ];
    const KEPT: [(&str, &str); 3] = [("location", "/1"), ("etag", "\"1\""), ("content-type", "text/plain")];
    let handler = || {
        let mut response = StatusCode::CREATED.into_response();
        for (name, value) in PASSING.into_iter().chain(KEPT) {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response
    };
    let (first, again) = twice(&post_of(handler), || post("k", "{}")).await;
    for (name, value) in PASSING {
        assert_eq!((first.header(name), again.header(name)), (Some(value), None), "{name}");
    }
    for (name, value) in KEPT {
        assert_eq!((first.header(name), again.header(name)), (Some(value), Some(value)), "{name}");
    }

    let setup = Setup::new();
    let layer = setup.layer().store("Date").never_store("Location");
    let (_, again) =
        twice(&setup.app_under(layer, on_post(move || async move { handler() })), || post("k", "{}")).await;
    assert_eq!(again.header("date"), Some(PASSING[2].1));
    assert_eq!((again.header("location"), again.header("set-cookie")), (None, None));
}

// case 092
#[tokio::test]
async fn a_trailer_that_is_never_recorded_as_a_header_is_not_recorded_either() {
    let setup = Setup::new();
    let app = setup.app(on_post(|| async {
        let names = ["checksum", "set-cookie"].map(http::HeaderName::from_static);
        let trailers = HeaderMap::from_iter(names.map(|name| (name, "9".parse().unwrap())));
        http::Response::new(axum::body::Body::new(Chunks::of(&["paid"]).then_trailers(trailers)))
    }));
    let first = app.send(post("k", "{}")).await;
    assert!(first.trailers.as_ref().unwrap().contains_key("set-cookie"));
    let again = app.send(post("k", "{}")).await;
    let trailers = again.trailers.unwrap();
    assert!(again.headers.contains_key("idempotent-replayed"));
    assert_eq!((trailers.contains_key("checksum"), trailers.contains_key("set-cookie")), (true, false));
}

// case 094
#[tokio::test]
async fn a_streamed_answer_and_its_trailers_come_back_byte_for_byte() {
    let trailers = || HeaderMap::from_iter([(http::HeaderName::from_static("checksum"), "9".parse().unwrap())]);
    let app = post_of(move || {
        let body = Chunks::of(&["one ", "two ", "three"]).then_trailers(trailers());
        Response::new(Body::new(body))
    });
    let (first, again) = twice(&app, || post("k", "{}")).await;
    assert_eq!((first.text(), first.trailers.as_ref()), ("one two three", Some(&trailers())));
    assert_eq!(first, again);
}

// case 094
#[tokio::test]
async fn a_streamed_answer_that_breaks_off_is_a_failure_and_its_retry_runs() {
    let (setup, count) = (Setup::new(), Count::default());
    let runs = count.clone();
    let app = setup.app(on_post(move || async move {
        match runs.up() {
            1 => Response::new(Body::new(Chunks::of(&["half of "]).then_break_off())),
            _ => "all of it".into_response(),
        }
    }));
    let broken = app.send(post("k", "{}")).await;
    assert_eq!(broken.status, 500);
    broken.problem("operation-failed");
    assert_eq!(app.send(post("k", "{}")).await.text(), "all of it");
    assert!(app.send(post("k", "{}")).await.is_replay());
    assert_eq!(count.now(), 2);
}

/// An answer that begins and does not end.
fn endless() -> Body {
    let first = futures_util::stream::iter([Ok::<_, Infallible>("data: 1\n\n")]);
    Body::from_stream(first.chain(futures_util::stream::pending()))
}

// case 094
#[tokio::test]
async fn a_stream_that_is_followed_live_is_not_waited_for_and_its_retry_does_not_run() {
    let event_stream = || ([("content-type", "Text/Event-Stream ; charset=utf-8")], endless()).into_response();
    let marked = || (Extension(FollowedLive), endless()).into_response();
    let handlers: [fn() -> Response; 2] = [event_stream, marked];
    for handler in handlers {
        let count = Count::default();
        let counted = count.clone();
        let app = Setup::new().app(on_post(move || async move {
            counted.up();
            handler()
        }));
        let response = within(app.0.clone().oneshot(post("k", "{}"))).await.unwrap();
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        let frame = within(body.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "data: 1\n\n");
        // Whether its client still follows or has left.
        app.send(post("k", "{}")).await.problem("response-not-retained");
        drop(body);
        app.send(post("k", "{}")).await.problem("response-not-retained");
        assert_eq!(count.now(), 1);
    }
}

// case 094
#[tokio::test]
async fn a_stream_that_begins_with_a_passing_failure_releases_the_key() {
    let count = Count::default();
    let app = Setup::new().app(on_post(move || async move {
        match count.up() {
            1 => (StatusCode::SERVICE_UNAVAILABLE, Extension(FollowedLive), endless()).into_response(),
            _ => "done".into_response(),
        }
    }));
    let failed = within(app.0.clone().oneshot(post("k", "{}"))).await.unwrap();
    assert_eq!(failed.status(), 503);
    assert_eq!(app.send(post("k", "{}")).await.text(), "done");
}

// case 102
#[tokio::test]
async fn errors_come_back_with_their_status_and_body_where_everything_is_kept() {
    let setup = Setup::with(|builder| builder.settle(SettlePolicy::keep_everything()));
    for (key, status) in [("a", 403), ("b", 409), ("c", 503)] {
        let app = setup.app(on_post(move || async move {
            let problem = r#"{"type":"https://shop.example/sold-out","detail":"of the domain"}"#;
            (StatusCode::from_u16(status).unwrap(), [("content-type", "application/problem+json")], problem)
        }));
        let (first, again) = twice(&app, || post(key, "{}")).await;
        assert_eq!(first.status, status);
        assert_eq!(first, again);
    }
}

// case 106
#[tokio::test]
async fn nothing_is_computed_anew_for_a_replay() {
    let (setup, count) = (Setup::new(), Count::default());
    let runs = count.clone();
    let app = setup.app(on_post(move || async move { format!("{{\"execute_at\":{}}}", runs.up()) }));
    let first = app.send(post("k", "{}")).await;
    setup.clock.advance(std::time::Duration::from_secs(180));
    assert_eq!(app.send(post("k", "{}")).await.body, first.body);
    assert_eq!(count.now(), 1);
}

// case 105
#[tokio::test]
async fn a_replay_is_marked_under_the_chosen_name_exposed_on_request_and_tells_since_when() {
    let setup = Setup::new();
    let layer = setup.layer().replay_header("X-Replayed").expose_for_cors(true);
    let app = setup.app_under(layer, on_post(|| async { "done" }));
    let first = app.send(post("k", "{}")).await;
    assert_eq!((first.header("x-replayed"), first.header("access-control-expose-headers")), (None, None));
    let stored_at = setup.clock.now();
    setup.clock.advance(std::time::Duration::from_secs(60));

    let again = app.0.clone().oneshot(post("k", "{}")).await.unwrap();
    assert_eq!(again.extensions().get::<Replayed>(), Some(&Replayed { stored_at }));
    let again = Answer::of(again).await;
    assert_eq!((again.header("x-replayed"), again.header("idempotent-replayed")), (Some("true"), None));
    assert_eq!(again.header("access-control-expose-headers"), Some("x-replayed"));
}

// case 105
#[tokio::test]
async fn names_that_the_handler_lets_scripts_read_stay_readable_beside_the_mark() {
    let setup = Setup::new();
    let layer = setup.layer().expose_for_cors(true);
    let app = setup.app_under(layer, on_post(|| async { ([("access-control-expose-headers", "etag")], "done") }));
    app.send(post("k", "{}")).await;
    let again = app.send(post("k", "{}")).await;
    let exposed: Vec<_> = again.headers.get_all("access-control-expose-headers").into_iter().collect();
    assert_eq!(exposed, ["etag", "idempotent-replayed"]);
}

#[tokio::test]
async fn an_upstreams_mark_of_a_replay_is_not_recorded() {
    let app = post_of(|| ([("idempotent-replayed", "true"), ("idempotency-stored", "false")], "done").into_response());
    app.send(post("k", "{}")).await;
    let again = app.send(post("k", "{}")).await;
    assert_eq!(again.headers.get_all("idempotent-replayed").iter().count(), 1);
    assert_eq!(again.header("idempotency-stored"), None);
}

// case 036
#[tokio::test]
async fn a_secret_goes_out_once_is_not_in_the_record_and_its_retry_is_told_so() {
    let (setup, count) = (Setup::new(), Count::default());
    let runs = count.clone();
    let app = setup.app(on_post(move || async move {
        runs.up();
        (StatusCode::CREATED, [("x-token-hint", "s3cr3t")], Extension(DoNotStore), "s3cr3t")
    }));
    let first = app.send(post("k", "{}")).await;
    assert_eq!((first.status, first.text(), first.is_replay()), (201, "s3cr3t", false));
    let again = app.send(post("k", "{}")).await;
    assert_eq!((again.status, again.header("retry-after")), (409, None));
    again.problem("response-not-retained");
    assert!(!again.text().contains("s3cr3t"));
    let record = setup.record("k").await;
    assert!(!record.encode().windows(6).any(|window| window == b"s3cr3t"));
    assert_eq!(count.now(), 1);
}

// case 036
#[tokio::test]
async fn a_secret_in_an_error_that_is_final_is_not_in_the_record_either() {
    let setup = Setup::new();
    let app = setup.app(on_post(|| async { (StatusCode::CONFLICT, Extension(DoNotStore), "the code was s3cr3t") }));
    assert_eq!(app.send(post("k", "{}")).await.status, 409);
    app.send(post("k", "{}")).await.problem("response-not-retained");
    assert!(!setup.record("k").await.encode().windows(6).any(|window| window == b"s3cr3t"));
}

// case 036
#[tokio::test]
async fn a_handler_can_say_through_its_attempt_too_that_its_answer_must_not_be_kept() {
    let setup = Setup::new();
    let app = setup.app(on_post(async |Extension(attempt): Extension<idem_runner::Attempt>| {
        attempt.do_not_retain();
        (StatusCode::CREATED, "s3cr3t")
    }));
    assert_eq!(app.send(post("k", "{}")).await.text(), "s3cr3t");
    app.send(post("k", "{}")).await.problem("response-not-retained");
    assert!(!setup.record("k").await.encode().windows(6).any(|window| window == b"s3cr3t"));
}

// case 036
#[tokio::test]
async fn of_a_secret_that_is_too_large_no_header_is_kept_either() {
    let setup = Setup::new();
    let layer = setup.layer().max_response_bytes(3);
    let handler = async |Extension(attempt): Extension<idem_runner::Attempt>| {
        attempt.do_not_retain();
        (StatusCode::CREATED, [("x-token-hint", "s3cr3t")], "larger than that")
    };
    let app = setup.app_under(layer, on_post(handler));
    let first = app.send(post("k", "{}")).await;
    assert_eq!((first.text(), first.header("x-token-hint")), ("larger than that", Some("s3cr3t")));
    app.send(post("k", "{}")).await.problem("response-not-retained");
    assert!(!setup.record("k").await.encode().windows(6).any(|window| window == b"s3cr3t"));
}

// case 036
#[tokio::test]
async fn a_secret_is_not_recorded_by_way_of_the_hook_either() {
    let setup = Setup::new();
    let layer = setup.layer().redact(|_, recorded| recorded);
    let app = setup.app_under(layer, on_post(|| async { (StatusCode::CREATED, Extension(DoNotStore), "s3cr3t") }));
    assert_eq!(app.send(post("k", "{}")).await.text(), "s3cr3t");
    app.send(post("k", "{}")).await.problem("response-not-retained");
    assert!(!setup.record("k").await.encode().windows(6).any(|window| window == b"s3cr3t"));
}

// case 036
#[tokio::test]
async fn what_the_hook_leaves_out_goes_out_once_and_is_neither_stored_nor_replayed() {
    let setup = Setup::new();
    let layer = setup.layer().redact(|parts, recorded| {
        assert_eq!(parts.headers["x-kind"], "card");
        let masked = idem_core::Response::new(recorded.status()).with_body(r#"{"card":"**** 1111"}"#);
        masked.with_header("x-kind", "card")
    });
    let handler = || async { (StatusCode::CREATED, [("x-kind", "card")], r#"{"card":"4111 1111"}"#) };
    let app = setup.app_under(layer, on_post(handler));
    let first = app.send(post("k", "{}")).await;
    assert_eq!(
        (first.status, first.text(), first.header("idempotency-stored")),
        (201, r#"{"card":"4111 1111"}"#, None)
    );
    let again = app.send(post("k", "{}")).await;
    assert!(again.is_replay());
    assert_eq!((again.status, again.text()), (201, r#"{"card":"**** 1111"}"#));
    assert!(!setup.record("k").await.encode().windows(9).any(|window| window == b"4111 1111"));
}
