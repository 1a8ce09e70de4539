//! What the tests share: an application under the layer, requests to it, and a store that fails on command.

mod chunks;
mod server;
mod store;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::MethodRouter,
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use idem_core::{Key, ManualClock, Record, Scope, Store as _, Timestamp};
use idem_memory::MemoryStore;
use idem_runner::{Idempotency, Sweep};
use idem_tower::{Builder, IdempotencyLayer};
use serde_json::Value;
use tower::ServiceExt;

pub(crate) use self::{
    chunks::Chunks,
    server::{Gate, Server, within},
    store::Faulty,
};

/// A runner over a memory store whose clock the test moves, and that store.
pub(crate) struct Setup {
    pub(crate) idempotency: Idempotency,
    pub(crate) records: MemoryStore,
    pub(crate) clock: ManualClock,
    pub(crate) store: Arc<Faulty>,
}

impl Setup {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(crate) fn with(choose: impl FnOnce(idem_runner::Builder) -> idem_runner::Builder) -> Self {
        let clock = ManualClock::starting_at(Timestamp::from_millis(1_000_000));
        let records = MemoryStore::builder().clock(clock.clone()).build();
        let store = Arc::new(Faulty::new(records.clone()));
        let builder = Idempotency::builder(store.clone()).sweep(Sweep::Off);
        let idempotency = choose(builder).build().unwrap();
        Self { idempotency, records, clock, store }
    }

    /// A layer whose scope is the authenticated tenant.
    pub(crate) fn layer(&self) -> Builder {
        IdempotencyLayer::builder(self.idempotency.clone(), |parts| {
            let Tenant(tenant) = parts.extensions.get()?;
            Scope::new(tenant).ok()
        })
    }

    /// The record of tenant 7 under a key.
    pub(crate) async fn record(&self, key: &str) -> Record {
        let (scope, key) = (Scope::new("tenant-7").unwrap(), Key::new(key).unwrap());
        self.records.read(&scope, &key).await.unwrap().expect("there is no record").record
    }

    /// An application of one route under the layer, with authentication outside.
    pub(crate) fn app(&self, route: MethodRouter) -> App {
        self.app_under(self.layer(), route)
    }

    pub(crate) fn app_under(&self, layer: Builder, route: MethodRouter) -> App {
        App(Router::new().route("/", route).layer(layer.build().unwrap()).layer(middleware::from_fn(authenticate)))
    }
}

/// The authenticated principal.
#[derive(Clone)]
pub(crate) struct Tenant(pub(crate) String);

/// `X-Api-Key: tenant-…` is a tenant, `anonymous` is nobody, anything else is refused.
pub(crate) async fn authenticate(mut request: Request, next: Next) -> Response {
    match request.headers().get("x-api-key").and_then(|key| key.to_str().ok()) {
        Some("anonymous") => {}
        Some(tenant) if tenant.starts_with("tenant-") => {
            let tenant = Tenant(tenant.to_owned());
            request.extensions_mut().insert(tenant);
        }
        _ => return (StatusCode::UNAUTHORIZED, "who are you?").into_response(),
    }
    next.run(request).await
}

/// A request of tenant 7 to the one route.
pub(crate) fn post(key: &str, body: impl Into<axum::body::Body>) -> Request {
    request("POST", "/", key, body)
}

pub(crate) fn request(method: &str, uri: &str, key: &str, body: impl Into<axum::body::Body>) -> Request {
    Request::builder()
        .method(method)
        .uri(uri)
        .header("x-api-key", "tenant-7")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(body.into())
        .unwrap()
}

/// The same request with another header, instead of those of that name.
pub(crate) fn with(mut request: Request, name: &'static str, value: &str) -> Request {
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

pub(crate) fn without(mut request: Request, name: &str) -> Request {
    request.headers_mut().remove(name);
    request
}

#[derive(Clone)]
pub(crate) struct App(pub(crate) Router);

impl App {
    pub(crate) async fn send(&self, request: Request) -> Answer {
        let response = self.0.clone().oneshot(request).await.unwrap();
        Answer::of(response).await
    }
}

/// A response that was read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    pub(crate) async fn of<B>(response: http::Response<B>) -> Self
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Debug,
    {
        let (parts, body) = response.into_parts();
        let collected = body.collect().await.unwrap();
        let trailers = collected.trailers().cloned();
        Self { status: parts.status.as_u16(), headers: parts.headers, body: collected.to_bytes(), trailers }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The body, which is a problem of this code and the response's status.
    #[track_caller]
    pub(crate) fn problem(&self, code: &str) -> Value {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["code"], code, "{self:?}");
        assert_eq!(problem["status"], self.status);
        assert!(!self.is_replay(), "a problem is no replay: {self:?}");
        problem
    }
}

/// Counts, across clones.
#[derive(Clone, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

impl Count {
    /// One more; gives the new count.
    pub(crate) fn up(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn now(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// The deadline of anything that must happen. Never what a test proves.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
