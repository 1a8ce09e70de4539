//! The PostgreSQL store of idem: native claims, grouped, and in the caller's own transaction.
//!
//! # When to use it
//!
//! For services that have a PostgreSQL (12 or newer) anyway: any number of processes and hosts share a table. If the
//! business data is in the same database, business rows and "this key is done" can be committed together, so that an
//! effect happens exactly once.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use idem_core::Store;
//! use idem_postgres::PostgresStore;
//!
//! # async fn open() -> Result<(), Box<dyn std::error::Error>> {
//! let store = PostgresStore::connect("postgres://app:secret@db.internal/shop?sslmode=verify-full").await?;
//! let store: Arc<dyn Store> = Arc::new(store);
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! - Of any number of claims on one key, from any processes, exactly one owns it: a claim is one statement, whose insert
//!   decides. A replay, a conflict and a reuse are that same statement; they write nothing, lock no row and leave no trace
//!   in the log. A takeover is one more, conditional `UPDATE`.
//! - Every write of an attempt is one statement, fenced by its token and number.
//! - Every statement is a transaction of its own and needs nothing of its session, so it works at every
//!   `default_transaction_isolation` and behind a pooler (see [`Builder::through_pooler`]).
//! - Leases and retentions are judged by the server's clock alone. Keys are compared by their bytes.
//! - An operation on one record ends within its time limit ([`Builder::timeout`], 5 seconds) and an eighth of it; a sweep, a
//!   purge and a listing are bounded statement by statement. A connection that breaks, or lies dead, is
//!   replaced and the statement sent once more, which is safe for every one of them; serialization failures are repeated.
//!   What can't be done is an error of kind unavailable, and the next operation finds a server that is back by itself.
//! - The store's connections are its own, also where it was made [from a pool](PostgresStore::from_pool). One is for
//!   claims, one for waits, and up to 8 for everything else; none is held while a handler works.
//!
//! # What it costs
//!
//! A claim and a completion are a commit each. A claim that comes alone runs on its caller's task, on a connection that is
//! ready for it. Claims that come while one is in flight travel together, up to 64 in a statement, and share its commit.
//! The project's `benches` measure both against bare statements.
//!
//! The table's pages are filled to less than a third (`fillfactor`) by inserts, because a completed record is larger than
//! its claim: where the completion finds room on the page, it touches no index and its space is reclaimed without vacuum.
//!
//! Expired records are absent, and stay in the table until they are claimed again or swept
//! ([`Store::sweep`](idem_core::Store::sweep): an index finds them, in batches that skip what is locked).
//!
//! # In the caller's transaction
//!
//! [`PostgresStore::in_transaction`] wraps a transaction of `tokio_postgres` or `deadpool_postgres`; with the runner it is
//! what `attempt.commit` takes:
//!
//! ```no_run
//! # use idem_core::{Completion, CommitError, Owner, Response, Retention, Transaction};
//! # use idem_postgres::{PostgresStore, tokio_postgres::Client};
//! # async fn pay(store: &PostgresStore, client: &mut Client, owner: Owner) -> Result<(), Box<dyn std::error::Error>> {
//! // Charge the card and so on first: while the transaction is open, a retry of this key is a Conflict.
//! let transaction = client.transaction().await?;
//! transaction.execute("INSERT INTO payments (amount) VALUES ($1)", &[&250_000_i64]).await?;
//! let completion = Completion::new(owner, Response::new(201).with_body("{}"), Retention::default());
//! let response = store.in_transaction(transaction).commit_with(completion).await?;
//! // The row and the completion are committed: this is what the client must get.
//! # let _ = response;
//! # Ok(()) }
//! ```
//!
//! [`PostgresStore::complete_in`] is for code that commits by itself, and [`PostgresStore::completion_statement`] for
//! transactions of other drivers. At READ COMMITTED that is all. Above it, begin the transaction with
//! [`PostgresStore::lock_in`]: a renewal of the lease that came after the transaction's first look would otherwise make its
//! completion fail.
//!
//! Where *all* effects of an operation are rows of this database, the claim can be part of the transaction too:
//!
//! ```no_run
//! # use idem_core::{Answer, Claim, Completion, Response, Retention, Transaction};
//! # use idem_postgres::{PostgresStore, tokio_postgres::Client};
//! # async fn pay(store: &PostgresStore, client: &mut Client, claim: Claim) -> Result<Response, Box<dyn std::error::Error>> {
//! let transaction = client.transaction().await?;
//! let grant = match store.claim_in(&transaction, &claim).await? {
//!     Answer::Claimed(grant) | Answer::TakenOver(grant) => grant,
//!     Answer::Replay { response, .. } => return Ok(response),
//!     other => return Err(format!("not now: {other:?}").into()),
//! };
//! transaction.execute("INSERT INTO notes (text) VALUES ('paid')", &[]).await?;
//! let completion = Completion::new(grant.owner().clone(), Response::new(201), Retention::default());
//! Ok(store.in_transaction(transaction).commit_with(completion).await?)
//! # }
//! ```
//!
//! One commit instead of three, no lease that a crash would leave, and a rival that comes meanwhile waits a moment
//! ([`Builder::rival_wait`]) and gets the replay.
//!
//! # What is in the database
//!
//! A table of records (`public.idem_records`, or as [`Builder::schema`] and [`Builder::table`] say), beside it one with the
//! version of its schema, and a function that inserts first claims. The store makes them before its first operation, ten servers at once if need be;
//! [`Builder::without_migrating`] leaves that to [`PostgresStore::migrate`] or to the SQL that [`Builder::migrations`] gives.
//! The store needs SELECT, INSERT, UPDATE and DELETE on the first, SELECT on the second, and EXECUTE on the function. Instants are milliseconds
//! since 1970 (`to_timestamp(expiry / 1000.0)` shows one). Look, and change nothing by hand.
//!
//! It takes advisory locks whose numbers are made of the table's name, scope and key, and for waits listens on a channel
//! that begins with `idem_`.
//!
//! [`Store::check`](idem_core::Store::check) refuses a replica, a missing, older or newer schema, missing rights, an
//! unlogged table, row security, `synchronous_commit = off`, another encoding than UTF8, and a pooler that the store was
//! not told of.

mod check;
mod clock;
mod connections;
mod error;
mod listen;
mod listing;
mod options;
mod pauses;
mod queue;
mod records;
mod schema;
mod sql;
mod statement;
mod store;
mod tls;
mod transaction;
mod url;
mod wait;

pub use deadpool_postgres;
pub use tokio_postgres;

pub use crate::{
    options::{Builder, OpenError},
    schema::Migration,
    statement::{OwnerStatement, Parameter},
    store::PostgresStore,
    transaction::{CallersTransaction, DriversTransaction, PostgresTransaction},
};
