//! The pure core of idem: names, fingerprints, records, the state machine and the store trait.
//!
//! Nothing here does I/O, reads a clock, or makes randomness. Read it in this order: [`machine`] (the whole idea on one
//! screen), [`Store`] (the contract), and then the smallest backend, `idem-memory`.

mod answer;
mod codec;
mod downstream;
mod error;
pub mod fingerprint;
mod key;
pub mod machine;
mod operation;
mod record;
mod response;
mod store;
mod time;
mod token;
mod transaction;

pub use answer::{Answer, Grant, answer, claim, resolve};
pub use async_trait::async_trait;
pub use codec::DecodeError;
pub use downstream::{downstream_key, downstream_uuid};
pub use error::{StoreError, StoreErrorKind};
pub use fingerprint::{
    Differences, FieldSelector, Fingerprint, FingerprintBuilder, FingerprintKey, InvalidFingerprint,
    InvalidFingerprintKey, InvalidParts, InvalidSelector, NotCanonical, PartDifference, canonical_json,
};
pub use key::{InvalidName, Key, MAX_NAME_BYTES, Scope};
pub use machine::TokenReused;
pub use operation::{
    Checkpoint, Checkpointed, Claim, Completion, DEFAULT_LEASE, Fenced, Lapsed, Owner, Resolve, Retention, Snapshot,
};
pub use record::{Checkpoints, MAX_CHECKPOINT_BYTES, OnLapse, Origin, Record, State};
pub use response::{Body, NotRetained, Response};
pub use store::{ClaimRow, Store};
pub use time::{ManualClock, Timestamp};
pub use token::{AttemptId, Token};
pub use transaction::{CommitError, Transaction};
