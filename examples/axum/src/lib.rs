//! Idempotency keys in a service of axum, on one page: orders whose row and whose "this key is done" are written in one
//! transaction, or not at all.
//!
//! `examples/payments` is the long form, with a provider outside of the database, crashes and every store.

use std::{path::Path, sync::Arc};

use axum::{
    Extension, Json, Router,
    body::Bytes,
    extract::{Request, State},
    http::{StatusCode, header, request::Parts},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::post,
};
use idem::{
    Attempt, CommitError, Idempotency, Scope,
    sqlite::SqliteStore,
    tower::{CommitProblem, CurrentAttempt, IdempotencyLayer, Refusal, respond},
};
use rusqlite::{Connection, TransactionBehavior};
use serde::{Deserialize, Serialize};

/// Records and orders live in one file.
struct Shop {
    file: Box<Path>,
    store: SqliteStore,
}

#[derive(Deserialize)]
struct Order {
    article: String,
    pieces: u32,
}

#[derive(Serialize)]
struct Ordered {
    id: i64,
    article: String,
    pieces: u32,
}

/// Who asks: what authentication found out.
#[derive(Clone)]
struct Customer(String);

/// The service, and its runner: shut that down behind the server.
///
/// # Errors
///
/// If the file can't be opened, or a setting can't be.
pub fn app(file: &Path) -> Result<(Router, Idempotency), Box<dyn std::error::Error + Send + Sync>> {
    let store = SqliteStore::builder(file).open()?;
    Connection::open(file)?.execute_batch(
        "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT, article TEXT, pieces INTEGER)",
    )?;
    let idempotency = Idempotency::builder(Arc::new(store.clone())).build()?;
    let scope_of = |parts: &Parts| parts.extensions.get().and_then(|Customer(id)| Scope::new(id).ok());
    let once_per_key = IdempotencyLayer::builder(idempotency.clone(), scope_of).validate(validate).build()?;
    let app = Router::new()
        .route("/orders", post(order).layer(once_per_key))
        .layer(from_fn(authenticate)) // outside: a replay skips the handler and its checks
        .with_state(Arc::new(Shop { file: file.into(), store }));
    Ok((app, idempotency))
}

async fn authenticate(mut request: Request, next: Next) -> Response {
    let customer = request.headers().get("x-api-key").and_then(|key| key.to_str().ok()).map(|key| Customer(key.into()));
    let Some(customer) = customer else { return StatusCode::UNAUTHORIZED.into_response() };
    request.extensions_mut().insert(customer);
    next.run(request).await
}

/// What the client can correct is refused before its key is claimed.
fn validate(_: &Parts, body: &Bytes) -> Result<(), Refusal> {
    match serde_json::from_slice(body) {
        Ok(Order { pieces: 1.., .. }) => Ok(()),
        _ => {
            let refused = (StatusCode::BAD_REQUEST, "send {\"article\": \"…\", \"pieces\": 1 or more}").into_response();
            Err(refused.map(idem::tower::Body::new).into())
        }
    }
}

/// Runs once per key.
async fn order(
    State(shop): State<Arc<Shop>>,
    Extension(customer): Extension<Customer>,
    CurrentAttempt(attempt): CurrentAttempt,
    Json(order): Json<Order>,
) -> Result<Response, Failed> {
    let work = move || write(&shop, &customer, order, &attempt);
    let recorded = tokio::task::spawn_blocking(work).await.map_err(|_| Failed::Ours)??;
    Ok(respond(&recorded).into_response())
}

/// The row is committed together with the key, so a crash at any point leaves both or neither.
fn write(
    shop: &Shop,
    Customer(customer): &Customer,
    order: Order,
    attempt: &Attempt,
) -> Result<idem::Response, Failed> {
    let mut connection = Connection::open(&shop.file)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let insert = "INSERT INTO orders (customer, article, pieces) VALUES (?1, ?2, ?3)";
    transaction.execute(insert, (customer, &order.article, order.pieces))?;
    let ordered = Ordered { id: transaction.last_insert_rowid(), article: order.article, pieces: order.pieces };

    let response = idem::Response::new(201).with_header("content-type", "application/json");
    let response = response.with_body(serde_json::to_vec(&ordered)?);
    Ok(attempt.commit(shop.store.in_transaction(transaction), response)?) // superseded: the row is rolled back
}

/// Why nothing was ordered.
#[derive(Debug)]
enum Failed {
    /// Another attempt owns the key, or the store failed: the layer's own problems.
    Commit(CommitError),
    /// Something of this service. A 5xx is never recorded: the retry runs again.
    Ours,
}

impl From<CommitError> for Failed {
    fn from(error: CommitError) -> Self {
        Self::Commit(error)
    }
}

impl From<rusqlite::Error> for Failed {
    fn from(_: rusqlite::Error) -> Self {
        Self::Ours
    }
}

impl From<serde_json::Error> for Failed {
    fn from(_: serde_json::Error) -> Self {
        Self::Ours
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        match self {
            Self::Commit(error) => CommitProblem(error).into_response(),
            Self::Ours => (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")]).into_response(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use idem::Key;

    use super::*;

    #[test]
    fn an_attempt_that_does_not_own_its_key_writes_no_row_and_its_client_is_told_to_retry() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("orders.db");
        drop(app(&file).unwrap());
        let shop = Shop { file: file.clone().into(), store: SqliteStore::builder(&file).open().unwrap() };
        let stranger = Attempt::for_test(Scope::new("anna").unwrap(), Key::new("k-1").unwrap());
        let order = Order { article: "tea".into(), pieces: 2 };
        let failed = write(&shop, &Customer("anna".into()), order, &stranger).unwrap_err();
        let response = failed.into_response();
        assert_eq!(
            (response.status(), response.headers()["retry-after"].to_str().unwrap()),
            (StatusCode::CONFLICT, "1")
        );
        let rows: i64 =
            Connection::open(&file).unwrap().query_row("SELECT count(*) FROM orders", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0);
    }
}
