//! The SQLite store.

mod check;
mod clock;
mod error;
mod listing;
mod options;
mod queue;
mod records;
mod schema;
mod store;
mod transaction;
mod wait;
mod writer;

pub use options::{OpenError, SqliteBuilder};
pub use rusqlite;
pub use store::SqliteStore;
pub use transaction::SqliteTransaction;
