//! The layer from outside: requests in, responses out, records in the store.
#![allow(clippy::unwrap_used, reason = "what is unwrapped here is what a test expects")]

mod around;
mod cancellation;
#[cfg(feature = "axum")]
mod commit;
mod grpc;
mod keys;
mod limits;
mod outcomes;
mod replay;
mod reuse;
mod scope;
mod stack;
mod support;
mod wire;
