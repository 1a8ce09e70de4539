//! `Idempotency-Key` as a tower layer: a retried request gets the answer of the first one, and its handler does not run
//! again.
//!
//! ```
//! use std::sync::Arc;
//!
//! use axum::{Router, http::StatusCode, routing::post};
//! use idem_core::Scope;
//! use idem_memory::MemoryStore;
//! use idem_runner::Idempotency;
//! use idem_tower::IdempotencyLayer;
//!
//! # #[derive(Clone)]
//! # struct Tenant(String);
//! # async fn authenticate(mut request: axum::extract::Request, next: axum::middleware::Next) -> axum::response::Response {
//! #     request.extensions_mut().insert(Tenant("tenant-7".into()));
//! #     next.run(request).await
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let idempotency = Idempotency::builder(Arc::new(MemoryStore::new())).build()?;
//! let layer = IdempotencyLayer::builder(idempotency, |parts| {
//!     let Tenant(tenant) = parts.extensions.get()?; // from the authentication, never from what the client claims
//!     Scope::new(tenant).ok()
//! });
//! let app: Router = Router::new()
//!     .route("/payments", post(async || (StatusCode::CREATED, "paid")))
//!     .layer(layer.build()?)
//!     .layer(axum::middleware::from_fn(authenticate)); // outside
//! # use tower::ServiceExt;
//! # for is_replay in [false, true] {
//! #     let request = axum::http::Request::post("/payments").header("idempotency-key", "k-1").body(axum::body::Body::empty())?;
//! #     let answer = app.clone().oneshot(request).await?;
//! #     assert_eq!((answer.status().as_u16(), answer.headers().contains_key("idempotent-replayed")), (201, is_replay));
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! It works wherever tower does: `axum::Router::route_layer` (`layer` also covers unknown paths, whose 404 would be kept),
//! `axum::routing::MethodRouter::layer`, a `ServiceBuilder`, and hyper through `TowerToHyperService`. The layer holds no rules: it reads requests, writes responses, and leaves every decision
//! to [`Idempotency`](idem_runner::Idempotency), which serves consumers and jobs as well. It needs a Tokio runtime.
//!
//! # Where it belongs in the stack
//!
//! From the outside in:
//!
//! 1. tracing, request ids, metrics: they see every request, and know a replay by [`Replayed`] in the response's
//!    extensions;
//! 2. compression of responses and decompression of requests: what is recorded is plain, and each replay is compressed as
//!    its own client likes it. Inside of this layer both are safe and worth less: the first client's encoding is replayed to
//!    every other, and a retry that is compressed otherwise is told that the key is used for another request;
//! 3. CORS, so that each origin is told its own name, and problems can be read by scripts. Expose `Idempotent-Replayed`,
//!    `Idempotency-Stored` and `Retry-After` there, allow the header `Idempotency-Key`, or, where something inside answers
//!    for CORS, use [`Builder::expose_for_cors`];
//! 4. a limit on connections or on requests of all kinds, that protects the server itself;
//! 5. **authentication**, always outside: a replay skips the handler and its checks, so a revoked token must be refused
//!    before the record is looked at. The scope is taken from what it found;
//! 6. **this layer**;
//! 7. rate and concurrency limits on the work itself: a retry of finished work costs no work, and is answered although the
//!    limiter is full. Whether the inner service is ready is waited for after the claim, and requests of clients that have left
//!    wait too, so bound how many wait: by a `LoadShed` around the limiter, or, under
//!    [`OnLapse::Hold`](idem_core::OnLapse::Hold), by limits outside of this layer, since what is refused in here counts as an
//!    outcome that is not known;
//! 8. authorization that depends on the request, validation, the handler. Timeouts belong here too: one outside of this
//!    layer ends the waiting and not the work, and its client is told to retry while it goes on.
//!
//! A request that is refused before it reaches the layer leaves no trace. A request that the handler refuses (400, 403,
//! 422 …) is forgotten, so that a corrected one may use the key: see [`SettlePolicy`](idem_runner::SettlePolicy). To refuse
//! before the key is claimed at all, use [`Builder::validate`].
//!
//! Routes can differ: a [`Builder`] is cheap to clone, and each route gets the layer that it builds, with a key required or
//! optional, other methods, other limits. Where they differ in what is final, in leases or in what a lapse means, give them
//! another [`Idempotency`](idem_runner::Idempotency) on the same store, and shut both down.
//!
//! Where two layers with one header and one `Idempotency` stand around a handler, the outer one protects it, and nothing of the
//! inner one applies: neither what it redacts or validates nor its scope. Layers that differ in these two can't both do what
//! they promise: such a request is refused with `operation-failed`, and its key stays free.
//!
//! # What happens to a request
//!
//! Methods other than POST and PATCH (by default) pass untouched. The others go through, in this order: principal, key,
//! size, validation hook, claim. Until the claim a client that hangs up cancels everything. From the claim on nothing is
//! cancelled: the handler finishes, its answer is recorded, and the client's retry gets it. A client that half-closes its
//! connection behind the request has hung up too, unless the server allows that (hyper's `half_close`).
//!
//! Requests are read whole first, up to a limit, and while one arrives it may take twice its size: put a limit on
//! connections and a time limit on uploads outside of the layer.
//!
//! The handler finds its [`Attempt`](idem_runner::Attempt) in the request's extensions: with the feature `axum` as the
//! argument `CurrentAttempt`. All other
//! extensions arrive as they were. The request's body was read whole, since it is part of the fingerprint.
//!
//! The response is read whole too before it is sent, up to a limit, since it is recorded first:
//!
//! | the response | goes out | is replayed |
//! |---|---|---|
//! | of known or unknown length, up to the limit | once it is whole | byte for byte, with its trailers |
//! | over the limit | whole: what was read, then the rest as it comes | as `response-not-retained` |
//! | marked with [`DoNotStore`] | once it is whole | as `response-not-retained` |
//! | `text/event-stream`, or marked with [`FollowedLive`] | as the handler makes it | as `response-not-retained` |
//! | breaks off before the limit | as `operation-failed` | not at all: its retry runs |
//! | without end, and not marked | never: mark it with [`FollowedLive`] | it is given up once another attempt has the key |
//!
//! When the server is to stop, begin its graceful shutdown, call
//! [`Idempotency::shutdown`](idem_runner::Idempotency::shutdown), and wait for the server a little longer: a server's own
//! shutdown waits for connections, without a limit, and not for the handlers of clients that have left.
//!
//! # What tells a retry from a reused key
//!
//! Method, path and query as the client sent them, the content type (essence and charset), and the body: JSON by its meaning,
//! so that the order of members and white space do not matter, anything else byte by byte. See [`Builder::fields`] for
//! bodies that hold a send time, and [`Builder::fingerprint_with`] for everything else. With axum, turn on the feature
//! `axum`: without it a layer inside of nested routers sees only what they left of the path.
//!
//! A change of this rule on a service that runs makes true retries look like other requests:
//! [`Builder::accept_fingerprints_of`] and [`Builder::accept_fingerprint_key`] accept what was made before it. Turning on the
//! feature `axum` later, where routers nest, is such a change, and one that can't be accepted: do it while no retries are due.
//!
//! # What is stored
//!
//! Status, headers, body and trailers, in their order and byte for byte. Never stored, so that replays lack them:
//!
//! - framing and hop-by-hop headers, which the server makes anew for each response;
//! - `Set-Cookie` and `Set-Cookie2`, `WWW-Authenticate`, `Proxy-Authenticate`, `Authentication-Info`,
//!   `Proxy-Authentication-Info`;
//! - `Date`, and what names a request or a trace: `X-Request-Id`, `X-Correlation-Id`, `traceparent`, `X-Amzn-Trace-Id`,
//!   `CF-Ray` and the like, the same that can't hold keys;
//! - rate limits: `RateLimit`, and all that begin with `RateLimit-`, `X-RateLimit-` or `X-Rate-Limit-`.
//!
//! `Cache-Control` and `Expires` are stored like any other header and mean nothing here: they are for caches, and a record is
//! none.
//!
//! [`Builder::never_store`] and [`Builder::store`] change the list. A body with a secret that is shown once must be marked with
//! [`DoNotStore`]; [`Builder::redact`] leaves out what replays should not show; [`Idempotency`](idem_runner::Idempotency) can
//! [seal](idem_runner::Builder::seal) all that is stored of answers. Small fields that must not be guessed from the fingerprint need [`Builder::fingerprint_key`].
//!
//! # What a client gets
//!
//! The first answer is the handler's own. A replay is the recorded one with `Idempotent-Replayed: true`. Everything else is a
//! problem (RFC 9457) whose `code` is one of [`Code`]; a conflict of the domain that the handler answers with passes
//! untouched. `Idempotency-Stored: false` on an answer means that it could not be recorded in time: that goes on in the
//! background, and until it succeeds a retry is told `request-in-progress`. An answer of a handler that
//! [ran unprotected](idem_runner::OnUnavailable::RunUnprotected) has it too; it is never recorded, and a retry may run.
//!
//! | code | status | `Retry-After` |
//! |---|---|---|
//! | `idempotency-key-missing`, `idempotency-key-malformed`, `idempotency-key-too-long` | 400 | |
//! | `request-incomplete` | 400 | |
//! | `principal-missing` | 401 | |
//! | `request-in-progress` | 409 | 1 to 5 seconds |
//! | `outcome-unknown`, `response-not-retained` | 409 | |
//! | `request-too-large` | 413 | |
//! | `idempotency-key-reused` | 422 | |
//! | `operation-failed` | 500 | |
//! | `store-unavailable` | 503 | 5 seconds, if waiting may help |
//! | `shutting-down` | 503 | 1 second |
//!
//! `docs/problems.md` in the repository tells clients of each what happened, whether a new key is safe, and what to do.

//!
//! # gRPC
//!
//! [`Builder::grpc`] sets a layer up for it: the key is the metadata `idempotency-key`, how a call ended is taken from its
//! trailers, and problems are statuses of gRPC. `examples/tonic` in the repository shows it with tonic. A layer for gRPC-Web
//! belongs outside of this one.

#[cfg(feature = "axum")]
mod axum;
mod body;
mod config;
mod fingerprint;
mod future;
mod grpc;
mod header;
mod headers;
mod layer;
mod problem;
mod service;

#[cfg(feature = "axum")]
pub use axum::{CommitProblem, CurrentAttempt, NoAttempt};
pub use body::Body;
pub use config::{Anonymous, Builder, ConfigError, DEFAULT_MAX_BYTES, Refusal};
pub use future::ResponseFuture;
pub use header::{KeyError, Mode, parse as parse_key};
pub use headers::{record, respond};
pub use layer::IdempotencyLayer;
pub use problem::Code;
pub use service::{DoNotStore, FollowedLive, IdempotencyService, Replayed};
