//! Where payment rows and cart reservations live.

mod memory;
pub(crate) mod postgres;
pub(crate) mod sqlite;

use std::sync::Arc;

pub(crate) use self::{memory::MemoryLedger, postgres::PostgresLedger, sqlite::SqliteLedger};
use crate::{
    model::{Payment, Tenant},
    provider::Order,
};

/// The ledger, in one of its forms.
#[derive(Clone)]
pub(crate) enum Ledger {
    Memory(Arc<MemoryLedger>),
    Sqlite(SqliteLedger),
    Postgres(PostgresLedger),
}

/// A payment that is to be written.
#[derive(Clone, Debug)]
pub(crate) struct NewPayment {
    pub(crate) tenant: Tenant,
    /// The key that the charge was made under. A payment that is written again under it is the same one: a second line
    /// behind the idempotency record.
    pub(crate) downstream_key: String,
    pub(crate) charge_id: String,
    pub(crate) amount_minor: i64,
    pub(crate) currency: String,
}

/// The answer to the reservation of a cart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reservation {
    /// It is this payment's, from now on or since an earlier attempt of it.
    Own,
    /// Another payment has it.
    Taken,
}

/// Why the ledger could not do it.
#[derive(Debug)]
pub(crate) struct LedgerError(String);

impl LedgerError {
    /// A payment that can't be written down.
    pub(crate) fn unwritable(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

impl std::fmt::Display for LedgerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the ledger: {}", self.0)
    }
}

impl From<rusqlite::Error> for LedgerError {
    fn from(error: rusqlite::Error) -> Self {
        Self(error.to_string())
    }
}

impl Ledger {
    /// Reserves a cart for the payment whose charge has this key, before any money moves: once per tenant and cart.
    pub(crate) async fn reserve(
        &self,
        tenant: &Tenant,
        cart: &str,
        downstream_key: &str,
    ) -> Result<Reservation, LedgerError> {
        match self {
            Self::Memory(ledger) => Ok(ledger.reserve(tenant, cart, downstream_key)),
            Self::Sqlite(ledger) => {
                let (tenant, cart, key) = (tenant.clone(), cart.to_owned(), downstream_key.to_owned());
                ledger.run(move |connection| sqlite::reserve(connection, &tenant, &cart, &key)).await
            }
            Self::Postgres(ledger) => ledger.reserve(tenant, cart, downstream_key).await,
        }
    }

    /// The payment that was written under this downstream key, with what was ordered.
    pub(crate) async fn find(&self, downstream_key: &str) -> Result<Option<(Order, Payment)>, LedgerError> {
        match self {
            Self::Memory(ledger) => Ok(ledger.find(downstream_key)),
            Self::Sqlite(ledger) => {
                let key = downstream_key.to_owned();
                ledger.run(move |connection| sqlite::find(connection, &key)).await
            }
            Self::Postgres(ledger) => ledger.find(downstream_key).await,
        }
    }

    /// Writes the payment by itself. Again under the same downstream key, it gives the payment that was written first.
    pub(crate) async fn insert(&self, payment: NewPayment) -> Result<Payment, LedgerError> {
        match self {
            Self::Memory(ledger) => Ok(ledger.insert(payment)),
            Self::Sqlite(ledger) => {
                let insert = move |connection: &mut rusqlite::Connection| {
                    let transaction = sqlite::begin(connection)?;
                    let payment = sqlite::insert_payment(&transaction, &payment)?;
                    transaction.commit()?;
                    Ok(payment)
                };
                ledger.run(insert).await
            }
            Self::Postgres(ledger) => ledger.insert(&payment).await,
        }
    }

    /// The tenant's payments, oldest first.
    pub(crate) async fn payments(&self, tenant: &Tenant) -> Result<Vec<Payment>, LedgerError> {
        match self {
            Self::Memory(ledger) => Ok(ledger.payments(tenant)),
            Self::Sqlite(ledger) => {
                let tenant = tenant.clone();
                ledger.run(move |connection| sqlite::payments(connection, &tenant)).await
            }
            Self::Postgres(ledger) => ledger.payments(tenant).await,
        }
    }

    /// How many payments there are, of all tenants.
    pub(crate) async fn count(&self) -> Result<u64, LedgerError> {
        match self {
            Self::Memory(ledger) => Ok(ledger.count()),
            Self::Sqlite(ledger) => ledger.run(|connection| sqlite::count(connection)).await,
            Self::Postgres(ledger) => ledger.count().await,
        }
    }
}

#[cfg(test)]
mod tests;
