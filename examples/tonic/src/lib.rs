//! Idempotency keys for calls of gRPC: a payments service with tonic.
//!
//! The key is the metadata `idempotency-key`. A retried call gets the first one's answer, with its metadata and trailers;
//! what is final, what may be corrected and what is to be retried is told by the status. See `service` for the server and
//! `client` for a client that retries as it should.

pub mod client;
pub mod messages;
pub mod provider;
pub mod service;

/// What `tonic-build` makes of the description in `build.rs`.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub, clippy::all, reason = "it is generated")]
pub mod rpc {
    include!(concat!(env!("OUT_DIR"), "/shop.v1.Payments.rs"));
}
