//! A store of idem that is not one of its own.

mod check;
mod clock;
mod error;
mod file;
mod handles;
mod listing;
mod live;
mod options;
mod queue;
mod records;
mod schema;
mod store;
mod wait;
mod writer;

pub use options::{Builder, OpenError};
pub use store::RedbStore;
