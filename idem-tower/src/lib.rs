//! Idempotency-Key as a tower layer, for axum and hyper.
mod header;
pub use header::{KeyError, Mode, parse};
