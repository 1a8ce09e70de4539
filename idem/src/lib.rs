//! Idempotency keys for Rust services: one effect and one answer per key, whatever the network, the client's retry loop,
//! a crash or a second server does.
//!
//! This crate gives every part of idem one name to come from. [`Idempotency`] runs operations; a [`Store`] keeps their
//! records ([`open`] makes one from a URL); the HTTP layer is in `idem::tower`.
//!
//! ```
//! use idem::{Fingerprint, Idempotency, Key, Outcome, Request, Response, Scope};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let idempotency = Idempotency::builder(idem::open("memory:")?).build()?;
//! let request = || -> Result<Request, Box<dyn std::error::Error>> {
//!     let fingerprint = Fingerprint::builder().json("body", r#"{"amountMinor": 250000}"#).build()?;
//!     Ok(Request::new(Scope::new("tenant-7")?, Key::new("k-1")?, fingerprint))
//! };
//! let pay = |_attempt| async { Ok::<_, std::io::Error>(Response::new(201).with_body("paid")) };
//!
//! let first = idempotency.run(request()?, pay).await;
//! assert!(matches!(first, Outcome::Ran { stored: true, .. }));
//! let retry = idempotency.run(request()?, pay).await;
//! assert!(matches!(retry, Outcome::Replay { response, .. } if response.status() == 201));
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! A feature adds names and changes nothing that is there without it.
//!
//! | feature | adds |
//! |---|---|
//! | `memory` (default) | `idem::memory`, and `memory:` in [`open`] |
//! | `sqlite` | `idem::sqlite`, and `sqlite:PATH` in [`open`] |
//! | `postgres` | `idem::postgres`, and `postgres://…` in [`open`] |
//! | `redis` | `idem::redis`, and `redis://…` and its kin in [`open`] |
//! | `tower` | `idem::tower` |
//! | `axum` | `tower`, with the extractor for axum's handlers |
//! | `metrics` | nothing to call: counters and times go to the recorder of the `metrics` facade, as `docs/observability.md` lists |
//! | `seal` | `SealKeys`, which encrypts what is stored of answers |

mod open;
mod retention;

/// Compiles the examples of the project's README.
#[cfg(all(doctest, feature = "postgres", feature = "redis", feature = "sqlite", feature = "axum", feature = "seal"))]
#[doc = include_str!("../../README.md")]
struct Readme;

/// Compiles and runs the example of the page about consumers.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../docs/consumers.md")]
struct Consumers;

pub use idem_core::{
    Answer, AttemptId, Body, Checkpoint, Checkpointed, Checkpoints, Claim, ClaimRow, CommitError, Completion,
    DEFAULT_LEASE, DecodeError, Differences, Fenced, FieldSelector, Fingerprint, FingerprintBuilder, FingerprintKey,
    Grant, InvalidFingerprint, InvalidFingerprintKey, InvalidName, InvalidParts, InvalidSelector, Key, Lapsed,
    MAX_CHECKPOINT_BYTES, MAX_NAME_BYTES, ManualClock, NotCanonical, NotRetained, OnLapse, Origin, Owner,
    PartDifference, Record, Resolve, Response, Retention, Scope, Snapshot, State, Store, StoreError, StoreErrorKind,
    Timestamp, Token, Transaction, canonical_json, downstream_key, downstream_uuid,
};
#[cfg(feature = "memory")]
pub use idem_memory as memory;
#[cfg(feature = "postgres")]
pub use idem_postgres as postgres;
#[cfg(feature = "redis")]
pub use idem_redis as redis;
pub use idem_runner::{
    Answered, Attempt, Builder, Claimed, ConfigError, Counters, Idempotency, OnConflict, OnUnavailable, Outcome, Reply,
    Request, Resolution, Resolved, Running, Seal, SealError, Sealed, Settle, SettlePolicy, Settled, StepError, Sweep,
};
#[cfg(feature = "seal")]
pub use idem_runner::{InvalidSealKey, SealKey, SealKeys};
#[cfg(feature = "sqlite")]
pub use idem_sqlite as sqlite;
#[cfg(feature = "tower")]
pub use idem_tower as tower;

pub use crate::{
    open::{OpenError, open},
    retention::retention_for,
};
