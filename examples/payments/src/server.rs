//! The payments service.
//!
//! From the outside in: authentication, the idempotency layer (key, size, validation, claim), the handler. So a replay
//! can't be had without authentication, and what the client can correct is refused before its key is claimed.

mod faults;
mod metrics;
mod pay;

use std::{fmt, future::Future, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::{Path, Request, State},
    http::{StatusCode, request::Parts},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use idem::{
    FieldSelector, Idempotency, Key, Retention, Scope, State as RecordState,
    tower::{Body, IdempotencyLayer, Refusal},
};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use self::faults::Faults;
use crate::{
    Failure,
    cli::Serve,
    client::Client,
    ledger::Ledger,
    model::{Payment, PaymentRequest, Tenant, Totals},
    problem::problem,
    provider::{Charges, Provider},
    storage::{self, Storage, Together},
};

/// How long a shutdown waits for what was claimed.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(60);

/// How long it waits after that for connections to close.
const CLOSING_LIMIT: Duration = Duration::from_secs(3);

/// What the handlers share.
struct Service {
    idempotency: Idempotency,
    ledger: Ledger,
    together: Option<Together>,
    provider: Provider,
}

/// A record, as `GET /debug/records/{tenant}/{key}` shows it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RecordLine {
    pub(crate) state: String,
    /// Of the recorded response.
    pub(crate) status: Option<u16>,
    pub(crate) attempt: u32,
    pub(crate) takeovers: u32,
}

impl fmt::Display for RecordLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, status, attempt, takeovers } = self;
        let status = status.map_or("none".into(), |status| status.to_string());
        write!(f, "{state:<11}  {status:<6}  {attempt:<7}  {takeovers}")
    }
}

/// Serves until `stop` ends, then finishes what was claimed.
pub(crate) async fn serve(options: Serve, stop: impl Future<Output = ()>) -> Result<(), Failure> {
    let provider = match &options.provider {
        Some(url) => Provider::At(Box::new(Client::new(provider_url(url).map_err(Failure::Usage)?))),
        None => Provider::Here(Arc::new(Charges::default())),
    };
    let metrics = metrics::install()?;
    let Storage { store, ledger, together } = storage::open(&options.store, options.ledger.as_deref()).await?;
    let mut builder = Idempotency::builder(store);
    if let Some(lease) = options.lease {
        builder = builder.lease(lease);
    }
    if let Some(max_run) = options.max_run {
        builder = builder.max_run(max_run);
    }
    if let Some(retention) = options.retention {
        builder = builder.retention(Retention::new(retention));
    }
    let idempotency = builder.build().map_err(|error| Failure::Usage(error.to_string()))?;
    let service = Arc::new(Service { idempotency: idempotency.clone(), ledger, together, provider });
    let app = router(service)?.merge(metrics::page(metrics));

    let listener = listen(options.listen).await?;
    let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = axum::serve(listener, app).with_graceful_shutdown(async move {
        let _ = stopped.await; // an end of the sender is a stop too
    });
    let serving = tokio::spawn(serving.into_future());
    stop.await;
    drop(stopping);
    let settled = idempotency.shutdown(SHUTDOWN_LIMIT).await;
    // Every answer is there now, and is written; a client that is silent meanwhile is not waited for for long.
    match tokio::time::timeout(CLOSING_LIMIT, serving).await {
        Ok(Ok(Err(error))) => Err(format!("serving ended: {error}").into()),
        _ if settled => Ok(()),
        _ => Err(format!("not everything ended within {SHUTDOWN_LIMIT:?}; what did not is left to its lease").into()),
    }
}

/// Listens, and says where.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    let listener = TcpListener::bind(address).await.map_err(|error| format!("--listen {address}: {error}"))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    crate::say(&format!("listening on http://{address}"))?;
    Ok(listener)
}

fn provider_url(url: &str) -> Result<&str, String> {
    let host = url.strip_prefix("http://").filter(|host| !host.is_empty() && !host.contains('@'));
    host.map(|_| url).ok_or_else(|| "--provider: it is http://ADDR".into())
}

fn router(service: Arc<Service>) -> Result<Router, String> {
    let fields = FieldSelector::new(&PaymentRequest::FIELDS).map_err(|error| error.to_string())?;
    let idempotent = IdempotencyLayer::builder(service.idempotency.clone(), scope_of)
        .fields(fields)
        .validate(validate)
        .build()
        .map_err(|error| error.to_string())?;
    let payments =
        Router::new().route("/payments", post(pay::pay).layer(idempotent).get(list)).route_layer(from_fn(authenticate));
    Ok(Router::new()
        .route("/debug/totals", get(totals))
        .route("/debug/records/{tenant}/{key}", get(record))
        .merge(payments)
        .with_state(service))
}

/// Before all else: whose request it is.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let mut keys = request.headers().get_all("x-api-key").iter();
    let tenant = match (keys.next(), keys.next()) {
        (Some(key), None) => Tenant::of_api_key(key.as_bytes()),
        _ => None,
    };
    let Some(tenant) = tenant else {
        let detail = "send your API key in one X-Api-Key header: tenant- and a number";
        return problem(StatusCode::UNAUTHORIZED, "unauthorized", "No valid API key", detail);
    };
    request.extensions_mut().insert(tenant);
    next.run(request).await
}

fn scope_of(parts: &Parts) -> Option<Scope> {
    parts.extensions.get::<Tenant>().and_then(|tenant| Scope::new(tenant.as_str()).ok())
}

/// What the client can correct: refused before the claim, so that the key stays free.
fn validate(parts: &Parts, body: &Bytes) -> Result<(), Refusal> {
    let refused =
        |detail: String| problem(StatusCode::BAD_REQUEST, "invalid-payment", "Invalid payment", &detail).map(Body::new);
    Faults::parse(&parts.headers).map_err(refused)?;
    PaymentRequest::parse(body).map_err(refused)?;
    Ok(())
}

async fn list(
    State(service): State<Arc<Service>>,
    Extension(tenant): Extension<Tenant>,
) -> Result<Json<Vec<Payment>>, Response> {
    service.ledger.payments(&tenant).await.map(Json).map_err(|error| unavailable(&error))
}

async fn totals(State(service): State<Arc<Service>>) -> Result<Json<Totals>, Response> {
    let provider = service.provider.totals().await.map_err(|error| unavailable(&error))?;
    let payment_rows = service.ledger.count().await.map_err(|error| unavailable(&error))?;
    let totals = Totals { provider_calls: provider.calls, distinct_charges: provider.distinct_charges, payment_rows };
    Ok(Json(totals))
}

async fn record(
    State(service): State<Arc<Service>>,
    Path((tenant, key)): Path<(String, String)>,
) -> Result<Response, Response> {
    let absent = || StatusCode::NOT_FOUND.into_response();
    let (Ok(scope), Ok(key)) = (Scope::new(tenant), Key::new(key)) else {
        return Ok(absent());
    };
    let found = service.idempotency.store().read(&scope, &key).await.map_err(|error| unavailable(&error))?;
    Ok(found.map_or_else(absent, |snapshot| {
        let record = snapshot.record;
        let (state, status) = match &record.state {
            RecordState::InProgress => ("in progress", None),
            RecordState::Released => ("released", None),
            RecordState::Held => ("held", None),
            RecordState::Done(response) => ("done", Some(response.status())),
        };
        let line = RecordLine { state: state.into(), status, attempt: record.number, takeovers: record.lapses };
        Json(line).into_response()
    }))
}

/// A failure of something behind this service. Retrying is safe: a status of 5xx is never recorded.
fn unavailable(error: &dyn fmt::Display) -> Response {
    tracing::warn!("{error}");
    let detail = "something that this service needs failed; try again with the same Idempotency-Key";
    problem(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Unavailable", detail)
}
