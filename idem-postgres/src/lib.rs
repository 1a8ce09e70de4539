//! The PostgreSQL store of idem.

mod check;
mod clock;
mod connections;
mod error;
mod listen;
mod listing;
mod options;
mod queue;
mod records;
mod schema;
mod sql;
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
    store::PostgresStore,
    transaction::{CallersTransaction, CompletionStatement, DriversTransaction, Parameter, PostgresTransaction},
};
