//! Idempotency-Key as a tower layer, for axum and hyper.
#![allow(dead_code)]
mod body;
mod header;
mod problem;
pub use body::Body;
pub use header::{KeyError, Mode, parse};
pub use problem::Code;
