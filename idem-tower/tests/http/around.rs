//! Beside the layers that services have around it: compression, CORS, limits, caches.

use std::{convert::Infallible, future::ready};

use axum::{
    Router,
    body::Body,
    middleware,
    response::IntoResponse,
    routing::{get, post as on_post},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::{
    CompressionLevel,
    compression::CompressionLayer,
    cors::{AllowOrigin, CorsLayer},
    decompression::{DecompressionLayer, RequestDecompressionLayer},
    limit::RequestBodyLimitLayer,
};

use crate::support::{Answer, App, Count, Server, Setup, authenticate, post, with, within};

/// Long enough to be worth compressing.
fn receipt() -> String {
    "paid 250000 VND; ".repeat(100)
}

/// A POST that wants gzip, or does not.
fn post_for(encoding: &str) -> axum::extract::Request {
    with(post("k", "{}"), "accept-encoding", encoding)
}

/// A service that always answers with this body, under these headers.
fn always(
    body: Bytes,
    headers: HeaderMap,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send> {
    service_fn(move |_| {
        let mut response = Response::new(Body::from(body.clone()));
        *response.headers_mut() = headers.clone();
        ready(Ok(response))
    })
}

/// Undone by a layer, so that what was compressed is what was meant.
async fn unpacked(answer: Answer) -> Bytes {
    let service = DecompressionLayer::new().layer(always(answer.body, answer.headers));
    let response = service.oneshot(Request::new(Body::empty())).await.unwrap();
    response.into_body().collect().await.unwrap().to_bytes()
}

async fn gzip(text: &'static str, level: CompressionLevel) -> Bytes {
    let service = CompressionLayer::new().quality(level).layer(always(text.into(), HeaderMap::new()));
    let request = Request::get("/").header("accept-encoding", "gzip").body(Body::empty()).unwrap();
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-encoding"], "gzip");
    response.into_body().collect().await.unwrap().to_bytes()
}

#[tokio::test]
async fn under_a_compression_each_replay_is_compressed_as_its_own_client_likes_it() {
    let setup = Setup::new();
    let App(app) = setup.app(on_post(async || (StatusCode::CREATED, receipt())));
    let app = App(app.layer(CompressionLayer::new()));
    let first = app.send(post_for("gzip")).await;
    assert_eq!(first.header("content-encoding"), Some("gzip"));
    assert!(first.body.len() < receipt().len());
    assert_eq!(unpacked(first).await, receipt());

    let plain = app.send(post_for("identity")).await;
    assert!(plain.is_replay());
    assert_eq!((plain.header("content-encoding"), plain.text()), (None, &*receipt()));

    let packed = app.send(post_for("gzip")).await;
    assert!(packed.is_replay());
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert_eq!(unpacked(packed).await, receipt());
    let recorded = setup.record("k").await;
    assert!(format!("{recorded:?}").contains(&format!("{} bytes", receipt().len())), "{recorded:?}");
}

#[tokio::test]
async fn a_compression_inside_is_recorded_with_its_encoding_and_its_bytes_are_replayed_whoever_asks() {
    let setup = Setup::new();
    let app = setup.app(on_post(async || (StatusCode::CREATED, receipt())).layer(CompressionLayer::new()));
    let first = app.send(post_for("gzip")).await;
    for encoding in ["gzip", "identity"] {
        let mut again = app.send(post_for(encoding)).await;
        assert!(again.is_replay());
        again.headers.remove("idempotent-replayed");
        assert_eq!(again, first, "{encoding}");
    }
    assert_eq!(first.header("content-encoding"), Some("gzip"));
    assert_eq!(unpacked(first).await, receipt());
}

#[tokio::test]
async fn over_a_real_connection_a_compressed_replay_has_framing_of_its_own() {
    let setup = Setup::new();
    let App(app) = setup.app(on_post(async || receipt()));
    let server = Server::of(App(app.layer(CompressionLayer::new()))).await;
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http::<Body>();
    for is_replay in [false, true] {
        let mut request = post_for("gzip");
        *request.uri_mut() = format!("http://{}/", server.address).parse().unwrap();
        let answer = Answer::of(within(client.request(request)).await.unwrap()).await;
        assert_eq!(answer.is_replay(), is_replay);
        assert_eq!(answer.header("content-length"), None, "the recorded length is not that of the compressed body");
        assert_eq!(unpacked(answer).await, receipt());
    }
}

const ORDER: &str = r#"{"amount": 250000, "currency": "VND", "note": "the same the same the same the same the same"}"#;

async fn packed_post(level: CompressionLevel) -> axum::extract::Request {
    with(post("k", gzip(ORDER, level).await), "content-encoding", "gzip")
}

#[tokio::test]
async fn under_a_decompression_a_retry_may_be_compressed_otherwise_or_not_at_all() {
    let (setup, count) = (Setup::new(), Count::default());
    let counted = count.clone();
    let App(app) = setup.app(on_post(move |body: String| async move {
        counted.up();
        body
    }));
    // `Router::layer` would route first, and the layer changes the type of the body.
    let app = ServiceBuilder::new().layer(RequestDecompressionLayer::new()).service(app);
    let send = async |request| Answer::of(app.clone().oneshot(request).await.unwrap()).await;
    assert_eq!(send(packed_post(CompressionLevel::Best).await).await.text(), ORDER);
    assert!(send(packed_post(CompressionLevel::Precise(0)).await).await.is_replay());
    assert!(send(post("k", ORDER)).await.is_replay());
    assert_eq!(count.now(), 1);
}

#[tokio::test]
async fn over_a_decompression_the_same_bytes_are_a_retry_and_other_bytes_never_run() {
    let (setup, count) = (Setup::new(), Count::default());
    let counted = count.clone();
    let handler = on_post(move |body: String| async move {
        counted.up();
        body
    });
    let app = setup.app(handler.layer(RequestDecompressionLayer::new()));
    assert_eq!(app.send(packed_post(CompressionLevel::Best).await).await.text(), ORDER);
    assert!(app.send(packed_post(CompressionLevel::Best).await).await.is_replay());
    app.send(packed_post(CompressionLevel::Precise(0)).await).await.problem("idempotency-key-reused");
    assert_eq!(count.now(), 1);
}

fn header_names(value: Option<&str>) -> Vec<String> {
    let mut names: Vec<_> = value.unwrap_or("").split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
    names.sort();
    names
}

// case 105
#[tokio::test]
async fn under_a_cors_layer_scripts_of_other_origins_can_send_keys_and_read_the_marks() {
    let setup = Setup::new();
    let App(app) = setup.app(on_post(async || StatusCode::CREATED));
    let readable = ["idempotent-replayed", "idempotency-stored", "retry-after"].map(HeaderName::from_static);
    let cors = CorsLayer::new()
        .allow_origin(AllowOrigin::list(["https://a.example".parse().unwrap(), "https://b.example".parse().unwrap()]))
        .allow_methods([Method::POST])
        .allow_headers(["idempotency-key", "content-type", "x-api-key"].map(HeaderName::from_static))
        .expose_headers(readable);
    let app = App(app.layer(cors));

    let preflight = Request::options("/")
        .header("origin", "https://a.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "idempotency-key")
        .body(Body::empty())
        .unwrap();
    let answer = app.send(preflight).await;
    assert_eq!(answer.status, 200);
    assert!(answer.header("access-control-allow-headers").unwrap().contains("idempotency-key"));

    for (origin, is_replay) in [("https://a.example", false), ("https://a.example", true), ("https://b.example", true)]
    {
        let answer = app.send(with(post("k", "{}"), "origin", origin)).await;
        assert_eq!(answer.is_replay(), is_replay);
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin), "each origin is told its own");
        let exposed = header_names(answer.header("access-control-expose-headers"));
        assert_eq!(exposed, ["idempotency-stored", "idempotent-replayed", "retry-after"]);
    }
    // A problem can be read by scripts as well.
    let reused = app.send(with(post("k", "[]"), "origin", "https://a.example")).await;
    reused.problem("idempotency-key-reused");
    assert_eq!(reused.header("access-control-allow-origin"), Some("https://a.example"));
}

// case 105
#[tokio::test]
async fn a_cors_layer_outside_replaces_the_names_that_this_one_adds() {
    let setup = Setup::new();
    let App(app) = setup.app_under(setup.layer().expose_for_cors(true), on_post(async || StatusCode::CREATED));
    let own = App(app.clone());
    let under = App(app.layer(CorsLayer::new().expose_headers([HeaderName::from_static("x-own")])));
    own.send(post("k", "{}")).await;
    assert_eq!(own.send(post("k", "{}")).await.header("access-control-expose-headers"), Some("idempotent-replayed"));
    assert_eq!(under.send(post("k", "{}")).await.header("access-control-expose-headers"), Some("x-own"));
}

// case 126
#[tokio::test]
async fn a_body_limit_outside_is_the_same_problem_and_claims_nothing() {
    let setup = Setup::new();
    let App(app) = setup.app(on_post(async || "done"));
    let app = ServiceBuilder::new().layer(RequestBodyLimitLayer::new(4)).service(app);
    let stream = futures_util::stream::iter([Ok::<_, Infallible>("12345"), Ok("67890")]);
    let response = app.clone().oneshot(post("k", Body::from_stream(stream))).await.unwrap();
    Answer::of(response).await.problem("request-too-large");
    let answer = Answer::of(app.oneshot(post("k", "1234")).await.unwrap()).await;
    assert!(!answer.is_replay(), "the key was free: {answer:?}");
}

#[tokio::test]
async fn what_the_response_says_to_caches_neither_keeps_it_from_being_recorded_nor_lets_it_be_replayed_longer() {
    for directive in ["no-store", "private, max-age=0", "public, max-age=31536000", "no-cache"] {
        let setup = Setup::new();
        let clock = setup.clock.clone();
        let retention = setup.idempotency.retention().standard();
        let app = setup.app(on_post(move || async move { [("cache-control", directive), ("expires", "0")] }));
        app.send(post("k", "{}")).await;
        clock.advance(retention.saturating_sub(std::time::Duration::from_millis(1)));
        let again = app.send(post("k", "{}")).await;
        assert!(again.is_replay(), "{directive}");
        assert_eq!((again.header("cache-control"), again.header("expires")), (Some(directive), Some("0")));
        clock.advance(std::time::Duration::from_millis(1));
        assert!(!app.send(post("k", "{}")).await.is_replay(), "{directive}");
    }
}

#[tokio::test]
async fn routes_vary_one_setup_by_methods_key_and_policies_over_one_store() {
    let setup = Setup::new();
    let everything = idem_runner::Idempotency::builder(setup.store.clone())
        .settle(idem_runner::SettlePolicy::keep_everything())
        .sweep(idem_runner::Sweep::Off)
        .build()
        .unwrap();
    let scope_of = |_: &http::request::Parts| idem_core::Scope::new("tenant-7").ok();
    let kept = idem_tower::IdempotencyLayer::builder(everything, scope_of).methods([Method::PUT, Method::DELETE]);
    let count = Count::default();
    let failing = |count: &Count| {
        let count = count.clone();
        async move || (StatusCode::BAD_REQUEST, count.up().to_string()).into_response()
    };
    let router = Router::new()
        .route("/forgotten", on_post(failing(&count)).layer(setup.layer().build().unwrap()))
        .route(
            "/kept",
            on_post(failing(&count)).put(failing(&count)).get(failing(&count)).layer(kept.optional().build().unwrap()),
        )
        .route("/read", get(failing(&count)))
        .layer(middleware::from_fn(authenticate));
    let app = App(router);
    let send = async |method: &str, uri: &str| {
        let answer = app.send(crate::support::request(method, uri, uri, "{}")).await;
        (answer.is_replay(), answer.text().to_owned())
    };
    assert_eq!(send("POST", "/forgotten").await, (false, "1".into()));
    assert_eq!(send("POST", "/forgotten").await, (false, "2".into()), "a refusal is forgotten on this route");
    assert_eq!(send("PUT", "/kept").await, (false, "3".into()));
    assert_eq!(send("PUT", "/kept").await, (true, "3".into()), "and kept on that one");
    assert_eq!(send("POST", "/kept").await, (false, "4".into()), "which covers other methods");
}
