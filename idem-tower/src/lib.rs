//! Idempotency-Key as a tower layer, for axum and hyper.
#[cfg(feature = "axum")]
mod axum;
mod body;
mod config;
mod fingerprint;
mod future;
mod header;
mod headers;
mod layer;
mod problem;
mod service;

#[cfg(feature = "axum")]
pub use axum::{CommitProblem, CurrentAttempt, NoAttempt};
pub use body::Body;
pub use config::{Anonymous, Builder, ConfigError, DEFAULT_MAX_BYTES, Refusal};
pub use future::ResponseFuture;
pub use header::{KeyError, Mode, parse};
pub use headers::{record, respond};
pub use layer::IdempotencyLayer;
pub use problem::Code;
pub use service::{DoNotStore, IdempotencyService, Replayed};
