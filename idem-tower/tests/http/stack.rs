//! Where the layer stands among others, and what it hands on.

use std::{
    convert::Infallible,
    future::{Ready, pending, ready},
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use axum::{
    Extension, Router,
    extract::{MatchedPath, OriginalUri, Request},
    middleware,
    routing::post as on_post,
};
use http::Response;
use http_body_util::BodyExt;
use idem_core::OnLapse;
use idem_runner::Attempt;
use idem_tower::Body;
use tokio::sync::Semaphore;
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt,
    limit::ConcurrencyLimitLayer,
    load_shed::{LoadShedLayer, error::Overloaded},
    service_fn,
    util::BoxCloneService,
};

use crate::support::{Answer, App, Chunks, Count, Gate, Setup, Tenant, authenticate, post, request, with, within};

#[derive(Clone)]
struct Marker(&'static str);

#[tokio::test]
async fn extensions_the_matched_path_and_the_original_path_arrive_at_the_handler() {
    let setup = Setup::new();
    let handler = |Extension(Marker(marker)): Extension<Marker>,
                   Extension(attempt): Extension<Attempt>,
                   matched: MatchedPath,
                   OriginalUri(original): OriginalUri,
                   request: Request| async move {
        let key = attempt.key().as_str().to_owned();
        let tenant = attempt.scope().as_str().to_owned();
        format!("{marker} {tenant} {key} {} {original} {}", matched.as_str(), request.uri())
    };
    let inner = Router::new().route("/payments/{id}", on_post(handler)).layer(setup.layer().build().unwrap());
    let router =
        Router::new().nest("/v1", inner).layer(Extension(Marker("marked"))).layer(middleware::from_fn(authenticate));
    let answer = App(router).send(request("POST", "/v1/payments/7?x=1", "k", "{}")).await;
    assert_eq!(answer.text(), "marked tenant-7 k /v1/payments/{id} /v1/payments/7?x=1 /payments/7?x=1");
}

#[tokio::test]
async fn the_handler_gets_the_body_and_its_trailers_as_they_were_sent() {
    let setup = Setup::new();
    let app = setup.app(on_post(|request: Request| async move {
        assert_eq!(request.headers()["idempotency-key"], "k");
        let collected = request.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["checksum"], "9");
        collected.to_bytes()
    }));
    let trailers = http::HeaderMap::from_iter([(http::HeaderName::from_static("checksum"), "9".parse().unwrap())]);
    let sent = Chunks::of(&["{ \"a\" :", " 1e2,\0 }"]).then_trailers(trailers);
    let answer = app.send(post("k", axum::body::Body::new(sent))).await;
    assert_eq!(answer.text(), "{ \"a\" : 1e2,\0 }");
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn inside_of_nested_routers_the_same_rest_of_two_paths_is_two_targets() {
    let (setup, count) = (Setup::new(), Count::default());
    let inner = Router::new()
        .route("/payments", on_post(move || async move { count.up().to_string() }))
        .layer(setup.layer().build().unwrap());
    let router = Router::new().nest("/v1", inner.clone()).nest("/v2", inner).layer(middleware::from_fn(authenticate));
    let app = App(router);
    assert_eq!(app.send(request("POST", "/v1/payments", "k", "{}")).await.text(), "1");
    let refused = app.send(request("POST", "/v2/payments", "k", "{}")).await;
    assert_eq!(refused.problem("idempotency-key-reused")["differences"][0]["part"], "target");
}

#[tokio::test]
async fn routes_of_one_router_can_be_layered_differently() {
    let (setup, count) = (Setup::new(), Count::default());
    let counting = |count: &Count| {
        let count = count.clone();
        on_post(move || async move { count.up().to_string() })
    };
    let router = Router::new()
        .route("/required", counting(&count).layer(setup.layer().build().unwrap()))
        .route("/optional", counting(&count).layer(setup.layer().optional().build().unwrap()))
        .route("/unprotected", counting(&count))
        .layer(middleware::from_fn(authenticate));
    let app = App(router);
    let no_key = |uri: &str| crate::support::without(request("POST", uri, "k", "{}"), "idempotency-key");
    assert_eq!(app.send(no_key("/required")).await.status, 400);
    assert_eq!(app.send(no_key("/optional")).await.text(), "1");
    assert_eq!(app.send(request("POST", "/unprotected", "k", "{}")).await.text(), "2");
    assert_eq!(app.send(request("POST", "/unprotected", "k", "{}")).await.text(), "3");
}

#[tokio::test]
async fn a_layer_under_another_leaves_the_request_to_it_instead_of_waiting_for_it() {
    let (setup, count) = (Setup::new(), Count::default());
    let route = on_post(move || async move { count.up().to_string() }).layer(setup.layer().build().unwrap());
    let app = setup.app(route);
    assert_eq!(app.send(post("k", "{}")).await.text(), "1");
    assert!(app.send(post("k", "{}")).await.is_replay());
}

#[tokio::test]
async fn a_layer_under_one_that_promises_something_else_refuses_instead_of_stepping_aside() {
    let (setup, count) = (Setup::new(), Count::default());
    let holds = Setup::with(|builder| builder.on_lapse(OnLapse::Hold));
    for inner in [holds.layer(), setup.layer().header("x-cart-key").optional()] {
        let count = count.clone();
        let route = on_post(move || async move { count.up().to_string() }).layer(inner.build().unwrap());
        let app = setup.app(route);
        let problem = app.send(with(post("k", "{}"), "x-cart-key", "c")).await.problem("operation-failed");
        assert!(problem["detail"].as_str().unwrap().contains("set up wrongly"), "{problem}");
        let left = setup.record("k").await;
        assert_eq!((left.state, left.fingerprint), (idem_core::State::Released, None), "its key is free");
    }
    assert_eq!(count.now(), 0);
}

/// A request to a bare tower service, whose principal was authenticated.
fn authenticated(key: &str) -> Request {
    let mut request = post(key, "{}");
    request.extensions_mut().insert(Tenant("tenant-7".into()));
    request
}

// case 104
#[tokio::test]
async fn a_replay_needs_no_place_in_a_limiter_that_stands_inside_and_new_work_does() {
    let (setup, started) = (Setup::new(), Gate::new());
    let handler = {
        let started = started.clone();
        service_fn(move |request: http::Request<Body>| {
            let started = started.clone();
            async move {
                if request.headers()["idempotency-key"] == "blocks" {
                    started.open();
                    pending::<()>().await;
                }
                Ok::<_, Infallible>(Response::new(Body::from("done")))
            }
        })
    };
    let service = ServiceBuilder::new()
        .layer(setup.layer().build().unwrap())
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(handler);
    let send = |key: &'static str| {
        let service = service.clone();
        async move { service.oneshot(authenticated(key)).await }
    };
    assert!(send("finished").await.is_ok());
    let blocking = tokio::spawn(send("blocks"));
    started.pass().await;

    let replay = Answer::of(within(send("finished")).await.unwrap()).await;
    assert_eq!((replay.text(), replay.is_replay()), ("done", true));
    let refused = within(send("new")).await.expect_err("new work has no place");
    assert!(refused.is::<Overloaded>(), "{refused}");
    assert_eq!(setup.record("new").await.state, idem_core::State::Released);
    blocking.abort();
}

// case 104
#[tokio::test]
async fn under_hold_a_request_whose_inner_service_is_never_ready_did_nothing_and_waits_for_nobody() {
    /// A service that has ended, such as a buffer whose worker did.
    #[derive(Clone)]
    struct Closed;

    impl Service<http::Request<Body>> for Closed {
        type Response = Response<Body>;
        type Error = &'static str;
        type Future = Ready<Result<Response<Body>, &'static str>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
            Poll::Ready(Err("closed"))
        }

        fn call(&mut self, _: http::Request<Body>) -> Self::Future {
            panic!("it was called although it is not ready")
        }
    }

    let setup = Setup::with(|builder| builder.on_lapse(OnLapse::Hold));
    let service = setup.layer().build().unwrap().layer(Closed);
    assert_eq!(service.oneshot(authenticated("k")).await.unwrap_err(), "closed");
    let left = setup.record("k").await;
    assert_eq!((left.state, left.fingerprint), (idem_core::State::Released, None));
}

// case 104
#[tokio::test]
async fn a_replay_does_not_wait_for_an_inner_service_that_is_not_ready() {
    let setup = Setup::new();
    let permits = Arc::new(Semaphore::new(1));
    let limit = tower::limit::GlobalConcurrencyLimitLayer::with_semaphore(permits.clone());
    let handler = service_fn(|_: http::Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::from("done"))) });
    let service = ServiceBuilder::new().layer(setup.layer().build().unwrap()).layer(limit).service(handler);
    Answer::of(service.clone().oneshot(authenticated("k")).await.unwrap()).await;
    let _all = permits.acquire().await.unwrap();
    let replay = within(service.clone().oneshot(authenticated("k"))).await.unwrap();
    assert!(Answer::of(replay).await.is_replay());
}

#[tokio::test]
async fn a_request_that_is_not_covered_waits_for_the_inner_service_to_be_ready() {
    let setup = Setup::new();
    let permits = Arc::new(Semaphore::new(0));
    let limit = tower::limit::GlobalConcurrencyLimitLayer::with_semaphore(permits.clone());
    let handler = service_fn(|_: http::Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::from("done"))) });
    let service = ServiceBuilder::new().layer(setup.layer().build().unwrap()).layer(limit).service(handler);
    let mut response = pin!(service.oneshot(request("GET", "/", "k", "")));
    assert!(response.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    permits.add_permits(1);
    assert_eq!(Answer::of(within(response).await.unwrap()).await.text(), "done");
}

// case 066
#[tokio::test]
async fn no_call_of_the_store_is_in_flight_while_the_handler_runs() {
    let setup = Setup::new();
    let pool = Arc::new(Semaphore::new(1));
    let store = setup.store.clone();
    let app = setup.app(on_post(move || async move {
        let _connection = pool.acquire().await.unwrap();
        tokio::task::yield_now().await;
        store.in_flight.load(Ordering::SeqCst).to_string()
    }));
    let requests: Vec<_> = (0..8)
        .map(|request| {
            let app = app.clone();
            tokio::spawn(async move { app.send(post(&format!("k-{request}"), "{}")).await })
        })
        .collect();
    for request in requests {
        assert_eq!(within(request).await.unwrap().text(), "0");
    }
}

#[tokio::test]
async fn an_error_of_the_service_passes_and_releases_the_key() {
    let (setup, count) = (Setup::new(), Count::default());
    let handler = service_fn(move |_: http::Request<Body>| {
        let run = count.up();
        async move { if run == 1 { Err(std::io::Error::other("broken")) } else { Ok(Response::new(Body::from("done"))) } }
    });
    let service = setup.layer().build().unwrap().layer(handler);
    let error = service.clone().oneshot(authenticated("k")).await.unwrap_err();
    assert_eq!(error.to_string(), "broken");
    let second = Answer::of(service.oneshot(authenticated("k")).await.unwrap()).await;
    assert_eq!((second.text(), second.is_replay()), ("done", false));
}

/// Is never ready, and says so with an error; called all the same, it answers.
#[derive(Clone)]
struct NeverReady;

impl Service<http::Request<Body>> for NeverReady {
    type Response = Response<Body>;
    type Error = &'static str;
    type Future = Ready<Result<Response<Body>, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Err("never ready"))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        ready(Ok(Response::new(Body::from("called"))))
    }
}

#[tokio::test]
async fn a_service_that_fails_to_become_ready_is_not_called_and_the_key_is_released() {
    let setup = Setup::new();
    let service = setup.layer().build().unwrap().layer(NeverReady);
    assert_eq!(service.clone().oneshot(authenticated("k")).await.unwrap_err(), "never ready");
    assert_eq!(setup.record("k").await.state, idem_core::State::Released);
    // Nor is it called with a request that is passed on.
    assert_eq!(service.oneshot(request("GET", "/", "k", "")).await.unwrap_err(), "never ready");
}

#[tokio::test]
async fn a_service_that_is_no_sync_and_has_errors_of_its_own_can_be_layered() {
    let setup = Setup::new();
    let handler = service_fn(|_: http::Request<Body>| async { Ok::<_, String>(Response::new(Body::empty())) });
    let boxed: BoxCloneService<http::Request<Body>, Response<Body>, String> = BoxCloneService::new(handler);
    let service = setup.layer().build().unwrap().layer(boxed);
    let response = service.oneshot(authenticated("k")).await.unwrap();
    assert_eq!(response.status(), 200);
}
