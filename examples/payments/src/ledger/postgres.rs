//! The ledger in a PostgreSQL database, which may be the store's own.

use std::time::Duration;

use deadpool_postgres::{
    Client, GenericClient, Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime, Transaction,
};
use tokio_postgres::{Config, IsolationLevel, NoTls, Row};

use super::{LedgerError, NewPayment, Reservation};
use crate::{
    model::{Payment, Tenant},
    provider::Order,
};

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS payments (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant text NOT NULL,
        downstream_key text NOT NULL UNIQUE,
        charge_id text NOT NULL,
        amount_minor bigint NOT NULL,
        currency text NOT NULL
    );
    CREATE INDEX IF NOT EXISTS payments_by_tenant ON payments (tenant, id);
    CREATE TABLE IF NOT EXISTS carts (
        tenant text NOT NULL,
        cart text NOT NULL,
        downstream_key text NOT NULL,
        PRIMARY KEY (tenant, cart)
    );
";

/// The advisory lock under which servers that start at once make the tables one after the other: `IF NOT EXISTS` alone
/// fails for some of them.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended('payments ledger', 0))";

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);

const CONNECTIONS: usize = 8;

#[derive(Clone)]
pub(crate) struct PostgresLedger(Pool);

impl PostgresLedger {
    /// Connects, and makes the tables.
    pub(crate) async fn open(config: &Config) -> Result<Self, LedgerError> {
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let pool = Pool::builder(Manager::from_config(config.clone(), NoTls, recycling))
            .max_size(CONNECTIONS)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(PATIENCE))
            .create_timeout(Some(PATIENCE))
            .build();
        let ledger = Self(pool.map_err(|error| LedgerError(error.to_string()))?);
        let mut connection = ledger.connection().await?;
        let transaction = begin(&mut connection).await?;
        transaction.batch_execute(LOCK).await?;
        transaction.batch_execute(SCHEMA).await?;
        transaction.commit().await?;
        drop(connection);
        Ok(ledger)
    }

    pub(crate) async fn connection(&self) -> Result<Client, LedgerError> {
        Ok(self.0.get().await?)
    }

    pub(super) async fn reserve(
        &self,
        tenant: &Tenant,
        cart: &str,
        downstream_key: &str,
    ) -> Result<Reservation, LedgerError> {
        let connection = self.connection().await?;
        let reserve = "INSERT INTO carts (tenant, cart, downstream_key) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        connection.execute(reserve, &[&tenant.as_str(), &cart, &downstream_key]).await?;
        let owner = "SELECT downstream_key FROM carts WHERE tenant = $1 AND cart = $2";
        let owner: String = connection.query_one(owner, &[&tenant.as_str(), &cart]).await?.try_get(0)?;
        Ok(if owner == downstream_key { Reservation::Own } else { Reservation::Taken })
    }

    pub(super) async fn find(&self, downstream_key: &str) -> Result<Option<(Order, Payment)>, LedgerError> {
        find(&self.connection().await?, downstream_key).await
    }

    pub(super) async fn insert(&self, new: &NewPayment) -> Result<Payment, LedgerError> {
        let mut connection = self.connection().await?;
        let transaction = begin(&mut connection).await?;
        let payment = insert_payment(&transaction, new).await?;
        transaction.commit().await?;
        Ok(payment)
    }

    pub(super) async fn payments(&self, tenant: &Tenant) -> Result<Vec<Payment>, LedgerError> {
        let of_tenant = "SELECT id, charge_id, amount_minor FROM payments WHERE tenant = $1 ORDER BY id";
        let rows = self.connection().await?.query(of_tenant, &[&tenant.as_str()]).await?;
        rows.iter().map(payment).collect()
    }

    pub(super) async fn count(&self) -> Result<u64, LedgerError> {
        let count: i64 = self.connection().await?.query_one("SELECT count(*) FROM payments", &[]).await?.try_get(0)?;
        Ok(count.unsigned_abs())
    }
}

/// Begins a transaction at READ COMMITTED, whatever the database's default is: above that the record would have to be
/// locked before anything is read (`PostgresStore::lock_in`).
pub(crate) async fn begin(connection: &mut Client) -> Result<Transaction<'_>, LedgerError> {
    Ok(connection.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?)
}

/// Writes the payment in the caller's transaction, unless its downstream key has one.
pub(crate) async fn insert_payment(transaction: &Transaction<'_>, new: &NewPayment) -> Result<Payment, LedgerError> {
    let insert = "
        INSERT INTO payments (tenant, downstream_key, charge_id, amount_minor, currency) VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (downstream_key) DO NOTHING RETURNING id, charge_id, amount_minor";
    let NewPayment { tenant, downstream_key, charge_id, amount_minor, currency } = new;
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
        [&tenant.as_str(), downstream_key, charge_id, amount_minor, currency];
    if let Some(row) = transaction.query_opt(insert, &values).await? {
        return payment(&row);
    }
    let written = find(transaction, downstream_key).await?;
    written.map(|(_, payment)| payment).ok_or_else(|| LedgerError("a payment was removed while it was read".into()))
}

/// The payment under a downstream key, with what was ordered.
async fn find(client: &impl GenericClient, downstream_key: &str) -> Result<Option<(Order, Payment)>, LedgerError> {
    let written = "SELECT id, charge_id, amount_minor, currency FROM payments WHERE downstream_key = $1";
    let Some(row) = client.query_opt(written, &[&downstream_key]).await? else { return Ok(None) };
    Ok(Some((Order { amount_minor: row.try_get(2)?, currency: row.try_get(3)? }, payment(&row)?)))
}

/// The first of the tables that has rows, the store's included. Makes none of them.
pub(crate) async fn table_in_use(config: &Config) -> Result<Option<&'static str>, LedgerError> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    for table in ["public.idem_records", "payments", "carts"] {
        let is_there: bool = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table]).await?.try_get(0)?;
        let has_rows = format!("SELECT EXISTS (SELECT FROM {table})");
        if is_there && client.query_one(&has_rows, &[]).await?.try_get(0)? {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

fn payment(row: &Row) -> Result<Payment, LedgerError> {
    let (id, charge_id, amount_minor): (i64, &str, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    Ok(Payment::succeeded(id.unsigned_abs(), charge_id, amount_minor))
}

impl From<tokio_postgres::Error> for LedgerError {
    /// What the server said, without its details, which may have values of rows.
    fn from(error: tokio_postgres::Error) -> Self {
        Self(error.as_db_error().map_or_else(|| crate::client::chain(&error), |said| said.message().into()))
    }
}

impl From<PoolError> for LedgerError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => error.into(),
            other => Self(other.to_string()),
        }
    }
}
