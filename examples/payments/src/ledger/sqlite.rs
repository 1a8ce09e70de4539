//! The ledger in a SQLite file, which may be the store's own.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::{LedgerError, NewPayment, Reservation};
use crate::{
    model::{Payment, Tenant},
    provider::Order,
};

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS payments (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        tenant TEXT NOT NULL,
        downstream_key TEXT NOT NULL UNIQUE,
        charge_id TEXT NOT NULL,
        amount_minor INTEGER NOT NULL,
        currency TEXT NOT NULL
    ) STRICT;
    CREATE INDEX IF NOT EXISTS payments_by_tenant ON payments (tenant, id);
    CREATE TABLE IF NOT EXISTS carts (
        tenant TEXT NOT NULL,
        cart TEXT NOT NULL,
        downstream_key TEXT NOT NULL,
        UNIQUE (tenant, cart)
    ) STRICT;
";

/// How long a write waits for the file's lock.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(crate) struct SqliteLedger(Arc<Mutex<Connection>>);

impl SqliteLedger {
    /// Opens the file and makes the tables. Blocks.
    pub(crate) fn open(path: &Path) -> Result<Self, LedgerError> {
        let named = |error: rusqlite::Error| LedgerError(format!("{}: {error}", path.display()));
        let mut connection = Connection::open(path).map_err(named)?;
        connection.busy_timeout(PATIENCE).map_err(named)?;
        connection.pragma_update(None, "journal_mode", "WAL").map_err(named)?;
        connection.pragma_update(None, "synchronous", "FULL").map_err(named)?;
        let transaction = begin(&mut connection).map_err(named)?;
        transaction.execute_batch(SCHEMA).map_err(named)?;
        transaction.commit().map_err(named)?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// Runs work on the connection, on a thread that may block. Dropping the future does not stop it.
    pub(crate) async fn run<T, E>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<LedgerError> + Send + 'static,
    {
        let connection = Arc::clone(&self.0);
        // A transaction that a panic left open was rolled back when it was dropped.
        let work = move || work(&mut connection.lock().unwrap_or_else(PoisonError::into_inner));
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| Err(LedgerError(format!("the work on it ended early: {error}")).into()))
    }
}

/// Begins a transaction that holds the write lock from the start: one that reads first may find, when it comes to write,
/// that another has written since.
pub(crate) fn begin(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

/// Writes the payment in the caller's transaction, unless its downstream key has one.
pub(crate) fn insert_payment(transaction: &Transaction<'_>, new: &NewPayment) -> Result<Payment, LedgerError> {
    if let Some((_, written)) = find(transaction, &new.downstream_key)? {
        return Ok(written);
    }
    transaction.execute(
        "INSERT INTO payments (tenant, downstream_key, charge_id, amount_minor, currency) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![new.tenant.as_str(), new.downstream_key, new.charge_id, new.amount_minor, new.currency],
    )?;
    let id = u64::try_from(transaction.last_insert_rowid()).map_err(|_| LedgerError("an id is negative".into()))?;
    Ok(Payment::succeeded(id, &new.charge_id, new.amount_minor))
}

/// The payment under a downstream key, with what was ordered.
pub(super) fn find(connection: &Connection, downstream_key: &str) -> Result<Option<(Order, Payment)>, LedgerError> {
    let found = connection.query_row(
        "SELECT id, charge_id, amount_minor, currency FROM payments WHERE downstream_key = ?1",
        params![downstream_key],
        |row| Ok((Order { amount_minor: row.get(2)?, currency: row.get(3)? }, payment(row)?)),
    );
    Ok(found.optional()?)
}

pub(super) fn reserve(
    connection: &mut Connection,
    tenant: &Tenant,
    cart: &str,
    downstream_key: &str,
) -> Result<Reservation, LedgerError> {
    let transaction = begin(connection)?;
    transaction.execute(
        "INSERT INTO carts (tenant, cart, downstream_key) VALUES (?1, ?2, ?3) ON CONFLICT (tenant, cart) DO NOTHING",
        params![tenant.as_str(), cart, downstream_key],
    )?;
    let owner: String = transaction.query_row(
        "SELECT downstream_key FROM carts WHERE tenant = ?1 AND cart = ?2",
        params![tenant.as_str(), cart],
        |row| row.get(0),
    )?;
    transaction.commit()?;
    Ok(if owner == downstream_key { Reservation::Own } else { Reservation::Taken })
}

pub(super) fn payments(connection: &Connection, tenant: &Tenant) -> Result<Vec<Payment>, LedgerError> {
    let mut query =
        connection.prepare_cached("SELECT id, charge_id, amount_minor FROM payments WHERE tenant = ?1 ORDER BY id")?;
    let rows = query.query_map(params![tenant.as_str()], payment)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn count(connection: &Connection) -> Result<u64, LedgerError> {
    let count: i64 = connection.query_row("SELECT count(*) FROM payments", [], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

fn payment(row: &rusqlite::Row<'_>) -> rusqlite::Result<Payment> {
    let (id, charge_id, amount_minor): (i64, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(Payment::succeeded(id.unsigned_abs(), &charge_id, amount_minor))
}
