//! The layer from outside: requests in, responses out, records in the store.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod around;
mod cancellation;
#[cfg(feature = "axum")]
mod commit;
mod grpc;
#[cfg(feature = "axum")]
mod hooks;
mod keys;
mod limits;
mod outcomes;
mod replay;
mod resending;
mod reuse;
mod scope;
mod stack;
mod support;
mod wire;
