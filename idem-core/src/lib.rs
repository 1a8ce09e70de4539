//! The pure core of idem.

mod downstream;
pub mod fingerprint;

pub use downstream::downstream_key;
pub use fingerprint::{
    Differences, FieldSelector, Fingerprint, FingerprintBuilder, FingerprintKey, InvalidFingerprint,
    InvalidFingerprintKey, InvalidParts, InvalidSelector, NotCanonical, PartDifference, canonical_json,
};
