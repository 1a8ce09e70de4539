//! Whether a store can keep its promise.

use idem_core::{StoreError, StoreErrorKind};
use tokio::time::timeout_at;
use tokio_postgres::{
    Client,
    types::{ToSql, Type},
};

use crate::{
    connections::{Mode, typed},
    error::{postgres_error, store_error},
    records::column,
    schema,
    sql::Statements,
    store::Inner,
};

const OPERATION: &str = "check";

/// The oldest server that has what the statements need (`MATERIALIZED`), as it numbers itself.
const OLDEST: i32 = 120_000;

pub(crate) async fn run(inner: &Inner) -> Result<(), StoreError> {
    let deadline = inner.connections.deadline();
    match timeout_at(deadline, look(inner)).await {
        Ok(found) => found,
        Err(_) => {
            let message = "the server did not answer all questions within Builder::timeout";
            Err(store_error(StoreErrorKind::Unavailable, OPERATION, message))
        }
    }
}

async fn look(inner: &Inner) -> Result<(), StoreError> {
    let deadline = inner.connections.deadline();
    let client = inner.connections.fresh(OPERATION, deadline).await?;
    let failed = |error| postgres_error(OPERATION, error);
    let text = "SELECT current_setting('server_version_num')::int4, current_setting('server_version'),
        pg_is_in_recovery(), current_setting('transaction_read_only')::bool, current_setting('server_encoding'),
        current_setting('synchronous_commit') <> 'off', current_setting('fsync')::bool";
    let row = client.query_typed_one(text, &[]).await.map_err(failed)?;
    let version: i32 = column(&row, 0, OPERATION)?;
    if version < OLDEST {
        let known: &str = column(&row, 1, OPERATION)?;
        return refused(format!("the server is PostgreSQL {known}; this store needs 12 or newer"));
    }
    if column(&row, 2, OPERATION)? {
        return refused(
            "the server is a replica, which takes no writes; connect to the primary (several hosts in the URL with \
             target_session_attrs=read-write find it)",
        );
    }
    if column(&row, 3, OPERATION)? {
        return refused(
            "transactions are read-only here (default_transaction_read_only); turn that off for this user or database",
        );
    }
    let encoding: &str = column(&row, 4, OPERATION)?;
    if encoding != "UTF8" {
        return refused(format!("the database's encoding is {encoding}, and names are UTF8; use a database in UTF8"));
    }
    if !column::<bool>(&row, 5, OPERATION)? {
        return refused(
            "synchronous_commit is off, so that a crash of the server would undo what was answered; turn it on for this \
             user: ALTER ROLE … SET synchronous_commit = on",
        );
    }
    if !column::<bool>(&row, 6, OPERATION)? {
        tracing::warn!("the server runs with fsync off: a loss of power may undo what was answered");
    }
    schema::check_version(schema::find(&client, &inner.names, OPERATION).await?, &inner.names, OPERATION)?;
    check_table(inner, &client).await?;
    check_statements(inner, &client).await?;
    check_session(inner).await
}

/// Looks at the table: rights, durability, and what would hide or change rows.
async fn check_table(inner: &Inner, client: &Client) -> Result<(), StoreError> {
    let failed = |error| postgres_error(OPERATION, error);
    let table = inner.names.records();
    let text = "SELECT c.relpersistence = 'p', row_security_active(c.oid),
            ARRAY(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
                WHERE NOT has_table_privilege(c.oid, p)),
            ARRAY(SELECT tgname::text FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal AND tgenabled <> 'D')
        FROM pg_class c WHERE c.oid = $1::text::regclass";
    let values: [(&(dyn ToSql + Sync), Type); 1] = [(&table, Type::TEXT)];
    let row = client.query_typed_one(text, &values).await.map_err(failed)?;
    if !column::<bool>(&row, 0, OPERATION)? {
        return refused(format!(
            "the table {table} is unlogged, so that a crash empties it: ALTER TABLE {table} SET LOGGED"
        ));
    }
    if column(&row, 1, OPERATION)? {
        return refused(format!(
            "row security hides rows of {table} from this user, so that one key could be claimed twice; exempt the user \
             from it (ALTER ROLE … BYPASSRLS)"
        ));
    }
    let missing: Vec<&str> = column(&row, 2, OPERATION)?;
    if !missing.is_empty() {
        let rights = missing.join(", ");
        return refused(format!("the user lacks rights on {table}: GRANT {rights} ON {table} TO this user"));
    }
    let triggers: Vec<&str> = column(&row, 3, OPERATION)?;
    if !triggers.is_empty() {
        tracing::warn!(table, ?triggers, "the table of records has triggers; one that changes or skips rows breaks it");
    }
    Ok(())
}

/// Has the server plan a claim and a completion: columns and indexes must be as they were made.
async fn check_statements(inner: &Inner, client: &Client) -> Result<(), StoreError> {
    let Statements { claim, complete, .. } = &*inner.statements;
    let (text, bytes, rule, number, now) = ("", &[][..] as &[u8], 0_i16, 0_i64, None::<i64>);
    let first: [&(dyn ToSql + Sync); 8] = [&text, &text, &bytes, &bytes, &rule, &number, &number, &now];
    let last: [&(dyn ToSql + Sync); 7] = [&text, &text, &bytes, &number, &bytes, &number, &now];
    for (statement, values) in [(claim, &first[..]), (complete, &last[..])] {
        let explain = format!("EXPLAIN {}", statement.text);
        let plan = client.query_typed(&explain, &typed(statement, values)).await;
        plan.map_err(|error| postgres_error(OPERATION, error))?;
    }
    Ok(())
}

/// Finds out whether a statement that was prepared is still there later: not so behind some poolers.
///
/// Two connections begin and end transactions in turn. A pooler that gives sessions to transactions swaps theirs, in one
/// of the two orders.
async fn check_session(inner: &Inner) -> Result<(), StoreError> {
    if inner.connections.mode == Mode::Unnamed {
        return Ok(());
    }
    let deadline = inner.connections.deadline();
    let one = inner.connections.fresh(OPERATION, deadline).await?;
    let other = inner.connections.fresh(OPERATION, deadline).await?;
    let failed = |error| postgres_error(OPERATION, error);
    let own = one.prepare("SELECT 1").await.map_err(failed)?;
    let others = other.prepare("SELECT 2").await.map_err(failed)?;
    for round in 0..4 {
        let (first, second) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
        for client in [first, second] {
            client.batch_execute("BEGIN").await.map_err(failed)?;
        }
        for (client, statement, expected) in [(&one, &own, 1), (&other, &others, 2)] {
            let row = client.query_one(statement, &[]).await.map_err(failed)?;
            if column::<i32>(&row, 0, OPERATION)? != expected {
                return refused(
                    "a pooler mixes up the prepared statements of its clients; say so with Builder::through_pooler, or \
                     pgbouncer=true in the URL",
                );
            }
        }
        for client in [second, first] {
            client.batch_execute("COMMIT").await.map_err(failed)?;
        }
    }
    Ok(())
}

fn refused<T>(message: impl Into<String>) -> Result<T, StoreError> {
    Err(store_error(StoreErrorKind::Configuration, OPERATION, message))
}
