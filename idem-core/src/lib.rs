//! The pure core of idem.

mod downstream;
pub mod fingerprint;

pub use downstream::downstream_key;
pub use fingerprint::{FieldSelector, Fingerprint, FingerprintKey};
