//! Runs operations under idempotency keys.
//!
//! [`Idempotency`] is built once and serves web adapters, consumers and jobs alike; adapters hold no rules. It has two
//! doors: [`Idempotency::run`] does the whole thing, [`Idempotency::claim`] is for handlers that settle by hand.
//!
//! ```
//! use std::sync::Arc;
//!
//! use idem_core::{Fingerprint, Key, Response, Scope};
//! use idem_memory::MemoryStore;
//! use idem_runner::{Idempotency, Outcome, Request};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let idempotency = Idempotency::builder(Arc::new(MemoryStore::new())).build()?;
//! let request = || -> Result<Request, Box<dyn std::error::Error>> {
//!     let fingerprint = Fingerprint::builder().json("body", r#"{"amount": 250000}"#).build()?;
//!     Ok(Request::new(Scope::new("tenant-7")?, Key::new("k-1")?, fingerprint))
//! };
//! let charge = |_attempt| async { Ok::<_, std::io::Error>(Response::new(201).with_body("paid")) };
//!
//! let first = idempotency.run(request()?, charge).await;
//! assert!(matches!(first, Outcome::Ran { stored: true, .. }));
//!
//! let again = idempotency.run(request()?, charge).await; // a retry: nothing runs
//! assert!(matches!(again, Outcome::Replay { response, .. } if response == Response::new(201).with_body("paid")));
//! # Ok(())
//! # }
//! ```
//!
//! # What can be seen of it
//!
//! [`Idempotency::counters`] gives numbers to everybody. With the feature `metrics` they, and times besides, also go to
//! whatever recorder of the `metrics` facade the program has installed before it builds an [`Idempotency`]. Spans and
//! events of `tracing` have names that do not change. All of them are in one table: `docs/observability.md`.
//!
//! # What dropping a future does
//!
//! From the claim on, nothing is cancelled: a future of [`Idempotency::run`] that is dropped goes on in a task of its
//! own, so a client that hangs up does not free its key, and its retry gets the replay. One that only waits for another
//! attempt has claimed nothing: it ends, and leaves nothing behind. Everything here needs a Tokio
//! runtime with its timer.

mod attempt;
mod call;
mod claim;
mod config;
mod counters;
mod detach;
mod event;
mod idempotency;
mod manual;
mod meter;
mod outage;
mod outcome;
mod policy;
mod renew;
mod request;
mod resolve;
mod seal;
mod settle;
mod sweep;
mod wait;

pub use attempt::{Attempt, StepError};
pub use config::{Builder, ConfigError};
pub use counters::Counters;
pub use idempotency::Idempotency;
pub use manual::{Claimed, Running};
pub use outcome::{Answered, Outcome, Reply, Settled};
pub use policy::{OnConflict, OnUnavailable, Settle, SettlePolicy, Sweep};
pub use request::Request;
pub use resolve::{Resolution, Resolved};
#[cfg(feature = "seal")]
pub use seal::{InvalidSealKey, SealKey, SealKeys};
pub use seal::{Seal, SealError, Sealed};
