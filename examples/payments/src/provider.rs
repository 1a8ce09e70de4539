//! The payment provider: charges money, and is itself idempotent. The same key gives the same charge.
//!
//! It is a part of the server, or a process of its own, so that charges outlive a crash of the server.

use std::{
    collections::HashMap,
    future::{Future, IntoFuture},
    hash::{BuildHasher, RandomState},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Deserialize, Serialize};

use crate::{Failure, client::Client, server::listen};

/// How long the provider may take beyond the delay that was asked for.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The header by which a caller asks for a slow answer.
pub(crate) const DELAY: &str = "x-delay-ms";

/// How to reach the provider.
#[derive(Clone)]
pub(crate) enum Provider {
    Here(Arc<Charges>),
    At(Box<Client>),
}

/// What is to be charged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Order {
    pub(crate) amount_minor: i64,
    pub(crate) currency: String,
}

/// The answer to a charge.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Charged {
    charge_id: String,
}

/// What the provider did so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProviderTotals {
    pub(crate) calls: u64,
    pub(crate) distinct_charges: u64,
}

/// Why there is no charge.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotCharged {
    /// The key charged another order before. That stays so: no retry helps.
    OtherOrder,
    /// The provider could not be asked, or could not say. A retry may help.
    Failed(String),
}

impl From<String> for NotCharged {
    fn from(problem: String) -> Self {
        Self::Failed(problem)
    }
}

impl Provider {
    /// Charges the order under the key, and gives the id of the charge. The charge is made at once, and the answer comes
    /// after `delay`.
    pub(crate) async fn charge(&self, key: &str, order: &Order, delay: Duration) -> Result<String, NotCharged> {
        match self {
            Self::Here(charges) => {
                let charge = charges.charge(key, order)?;
                tokio::time::sleep(delay).await;
                Ok(charge)
            }
            Self::At(client) => {
                let delay_ms = delay.as_millis().to_string();
                let headers = [("idempotency-key", key), (DELAY, &delay_ms)];
                let body = serde_json::to_vec(order).map_err(|error| error.to_string())?;
                let reply = client.post("/charges", &headers, body, delay.saturating_add(TIME_LIMIT)).await?;
                match reply.status {
                    StatusCode::OK => {}
                    StatusCode::UNPROCESSABLE_ENTITY => return Err(NotCharged::OtherOrder),
                    status => return Err(format!("the provider answered {status}: {}", reply.text()).into()),
                }
                let charged: Charged = serde_json::from_slice(&reply.body).map_err(|error| error.to_string())?;
                Ok(charged.charge_id)
            }
        }
    }

    pub(crate) async fn totals(&self) -> Result<ProviderTotals, String> {
        match self {
            Self::Here(charges) => Ok(charges.totals()),
            Self::At(client) => {
                let reply = client.get("/totals", &[], TIME_LIMIT).await?;
                serde_json::from_slice(&reply.body).map_err(|error| error.to_string())
            }
        }
    }
}

/// Every charge that was made, by key.
#[derive(Debug, Default)]
pub(crate) struct Charges(Mutex<Made>);

#[derive(Debug, Default)]
struct Made {
    calls: u64,
    by_key: HashMap<String, (Order, String)>,
}

impl Charges {
    /// Charges the order, unless the key did before.
    fn charge(&self, key: &str, order: &Order) -> Result<String, NotCharged> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.calls += 1;
        if let Some((charged, charge_id)) = made.by_key.get(key) {
            return if charged == order { Ok(charge_id.clone()) } else { Err(NotCharged::OtherOrder) };
        }
        // Random, so that a second charge of one key, after the first was lost, can't look like the first.
        let charge_id = format!("ch_{:016x}", RandomState::new().hash_one(key));
        made.by_key.insert(key.into(), (order.clone(), charge_id.clone()));
        Ok(charge_id)
    }

    fn totals(&self) -> ProviderTotals {
        let made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ProviderTotals { calls: made.calls, distinct_charges: made.by_key.len() as u64 }
    }
}

/// The provider as a process of its own, until `stop` ends.
pub(crate) async fn serve(address: SocketAddr, stop: impl Future<Output = ()>) -> Result<(), Failure> {
    let listener = listen(address).await?;
    tokio::select! {
        served = axum::serve(listener, router()).into_future() => {
            served.map_err(|error| format!("serving ended: {error}"))?;
        }
        () = stop => {}
    }
    Ok(())
}

fn router() -> Router {
    Router::new()
        .route("/charges", post(charge))
        .route("/totals", get(async |State(charges): State<Arc<Charges>>| Json(charges.totals())))
        .with_state(Arc::new(Charges::default()))
}

async fn charge(State(charges): State<Arc<Charges>>, headers: HeaderMap, Json(order): Json<Order>) -> Response {
    let Some(key) = headers.get("idempotency-key").and_then(|key| key.to_str().ok()) else {
        return (StatusCode::BAD_REQUEST, "an Idempotency-Key is needed").into_response();
    };
    let delay = headers.get(DELAY).and_then(|delay| delay.to_str().ok()?.parse().ok());
    match charges.charge(key, &order) {
        Ok(charge_id) => {
            tokio::time::sleep(Duration::from_millis(delay.unwrap_or(0))).await;
            Json(Charged { charge_id }).into_response()
        }
        Err(_) => (StatusCode::UNPROCESSABLE_ENTITY, "this key charged another order").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(amount_minor: i64) -> Order {
        Order { amount_minor, currency: "VND".into() }
    }

    #[test]
    fn the_same_key_is_the_same_charge_and_another_key_another() {
        let charges = Charges::default();
        let first = charges.charge("k-1", &order(5)).unwrap();
        assert_eq!(charges.charge("k-1", &order(5)).unwrap(), first);
        assert_ne!(charges.charge("k-2", &order(5)).unwrap(), first);
        assert_eq!(charges.totals(), ProviderTotals { calls: 3, distinct_charges: 2 });
    }

    #[test]
    fn a_key_charges_one_order_only() {
        let charges = Charges::default();
        charges.charge("k-1", &order(5)).unwrap();
        assert_eq!(charges.charge("k-1", &order(6)), Err(NotCharged::OtherOrder));
        assert_eq!(charges.totals().distinct_charges, 1);
    }
}
