//! `POST /payments`: look whether it was paid, reserve the cart, charge, write the row.

use std::sync::Arc;

use axum::{
    Extension, Json,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use idem::{
    Attempt, CommitError,
    tower::{CommitProblem, CurrentAttempt, respond},
};

use super::{
    Service,
    faults::{Faults, Point},
    unavailable,
};
use crate::{
    ledger::{LedgerError, NewPayment, Reservation, postgres, sqlite},
    model::{Payment, PaymentRequest, Tenant},
    problem::problem,
    provider::{NotCharged, Order},
    storage::Together,
};

/// The handler. It runs once per key, unless an earlier attempt failed or fell silent.
pub(super) async fn pay(
    State(service): State<Arc<Service>>,
    Extension(tenant): Extension<Tenant>,
    CurrentAttempt(attempt): CurrentAttempt,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    // The layer's hook has looked at both: neither fails here.
    let (Ok(faults), Ok(request)) = (Faults::parse(&headers), PaymentRequest::parse(&body)) else {
        return problem(StatusCode::BAD_REQUEST, "invalid-payment", "Invalid payment", "it changed on its way");
    };
    // The same in every attempt: a second one finds its own reservation, its own charge and its own row.
    let downstream_key = attempt.downstream_key("charge");
    let order = Order { amount_minor: request.amount_minor, currency: request.currency.clone() };

    // The second layer: the column is unique, and rows outlive records. An earlier attempt may have died behind its row;
    // then this one is a repeat. Or its record is gone, expired or lost by a store that can lose some (Redis, in a
    // failover); then this one is number 1, no repeat, and only the row tells.
    match service.ledger.find(&downstream_key).await {
        Ok(None) => {}
        Ok(Some((ordered, payment))) if ordered == order => {
            if !attempt.is_repeat() {
                tracing::warn!("a payment whose record is gone was asked for again, and is the answer");
            }
            return (StatusCode::CREATED, Json(payment)).into_response();
        }
        Ok(Some(_)) => return paid_otherwise(),
        Err(error) => return unavailable(&error),
    }

    if let Some(cart) = &request.cart_id {
        match service.ledger.reserve(&tenant, cart, &downstream_key).await {
            Ok(Reservation::Own) => {}
            Ok(Reservation::Taken) => {
                let detail = "another payment was made, or is being made, for this cart; nothing was charged";
                return problem(StatusCode::CONFLICT, "cart-already-paid", "The cart has a payment", detail);
            }
            Err(error) => return unavailable(&error),
        }
    }

    let charge_id = match service.provider.charge(&downstream_key, &order, faults.delay).await {
        Ok(charge_id) => charge_id,
        Err(NotCharged::OtherOrder) => return paid_otherwise(),
        Err(NotCharged::Failed(error)) => return unavailable(&error),
    };
    faults.reached(Point::AfterCharge);
    if faults.fail {
        let detail = "X-Fail asked for a failure after the charge and before the row";
        return problem(StatusCode::SERVICE_UNAVAILABLE, "failed-on-request", "Failed on request", detail);
    }

    let payment = NewPayment {
        tenant,
        downstream_key,
        charge_id,
        amount_minor: request.amount_minor,
        currency: request.currency,
    };
    match &service.together {
        Some(together) => match commit_together(together, payment, attempt, faults).await {
            Ok(recorded) => respond(&recorded).into_response(),
            Err(error) => error.into_response(),
        },
        // The row first: if the record is not written any more, the next attempt finds the row under its key. If two
        // attempts come here at the same time, one row is written, and both answer with it.
        None => match service.ledger.insert(payment).await {
            Ok(payment) => {
                faults.reached(Point::AfterRow);
                (StatusCode::CREATED, Json(payment)).into_response()
            }
            Err(error) => unavailable(&error),
        },
    }
}

/// Our record of the first order is gone, and the ledger or the provider still has its own. A status that is forgotten: the
/// first order may still be sent again under this key.
fn paid_otherwise() -> Response {
    let detail = "this key was used for another payment, long ago; use a new key for this one";
    problem(StatusCode::UNPROCESSABLE_ENTITY, "key-charged-otherwise", "Key used before", detail)
}

/// Writes the row and completes the record in one transaction. Gives the response that the record holds.
async fn commit_together(
    together: &Together,
    payment: NewPayment,
    attempt: Attempt,
    faults: Faults,
) -> Result<idem::Response, NotCommitted> {
    match together {
        Together::Postgres(store, ledger) => {
            let mut connection = ledger.connection().await?;
            let transaction = postgres::begin(&mut connection).await?;
            let payment = postgres::insert_payment(&transaction, &payment).await?;
            faults.reached(Point::AfterRow);
            Ok(attempt.commit(store.in_transaction(transaction), created(&payment)?).await?)
        }
        Together::Sqlite(store, ledger) => {
            let store = store.clone();
            let commit = move |connection: &mut rusqlite::Connection| {
                let transaction = sqlite::begin(connection).map_err(LedgerError::from)?;
                let payment = sqlite::insert_payment(&transaction, &payment)?;
                faults.reached(Point::AfterRow);
                Ok(attempt.commit(store.in_transaction(transaction), created(&payment)?)?)
            };
            ledger.run(commit).await
        }
    }
}

fn created(payment: &Payment) -> Result<idem::Response, LedgerError> {
    let body = serde_json::to_vec(payment).map_err(LedgerError::unwritable)?;
    Ok(idem::Response::new(StatusCode::CREATED.as_u16())
        .with_header(header::CONTENT_TYPE.as_str(), "application/json")
        .with_body(body))
}

/// Why row and record were not written.
enum NotCommitted {
    Row(LedgerError),
    Record(CommitError),
}

impl IntoResponse for NotCommitted {
    fn into_response(self) -> Response {
        match self {
            Self::Row(error) => unavailable(&error),
            Self::Record(error) => CommitProblem(error).into_response(),
        }
    }
}

impl From<LedgerError> for NotCommitted {
    fn from(error: LedgerError) -> Self {
        Self::Row(error)
    }
}

impl From<CommitError> for NotCommitted {
    fn from(error: CommitError) -> Self {
        Self::Record(error)
    }
}

#[cfg(test)]
mod tests {
    use idem::{Key, Scope};

    use super::*;
    use crate::storage;

    /// The second layer would find the row by its downstream key; the first must not have written it.
    #[tokio::test]
    async fn a_payment_whose_attempt_does_not_own_its_key_leaves_no_row() {
        let folder = tempfile::tempdir().unwrap();
        let file = format!("sqlite:{}", folder.path().join("payments.db").display());
        for url in [file, test_servers::postgres().create_database(&[])] {
            let storage = storage::open(&url, None).await.ok().unwrap();
            let payment = NewPayment {
                tenant: Tenant::of_api_key(b"tenant-7").unwrap(),
                downstream_key: "idem-1".into(),
                charge_id: "ch_1".into(),
                amount_minor: 250_000,
                currency: "VND".into(),
            };
            let stranger = Attempt::for_test(Scope::new("7").unwrap(), Key::new("k-1").unwrap());
            let together = storage.together.unwrap();
            let committed = commit_together(&together, payment, stranger, Faults::default()).await;
            assert!(matches!(committed, Err(NotCommitted::Record(CommitError::Superseded))), "{url}");
            assert_eq!(storage.ledger.count().await.unwrap(), 0, "{url}");
        }
    }
}
