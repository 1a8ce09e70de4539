//! Idempotency-Key as a tower layer, for axum and hyper.
#![allow(dead_code)]
mod body;
mod fingerprint;
mod header;
mod headers;
mod problem;
pub use body::Body;
pub use header::{KeyError, Mode, parse};
pub use headers::{record, respond};
pub use problem::Code;
