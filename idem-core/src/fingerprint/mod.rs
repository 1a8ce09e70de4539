//! What tells a retry from a key that is being reused.
//!
//! A [`Fingerprint`] is a digest of the meaningful parts of a request. It is stored with the record, and a later
//! request with the same key is a retry only if its fingerprint [matches](Fingerprint::matches).
//!
//! ```
//! use idem_core::Fingerprint;
//!
//! let request = |body: &str| {
//!     Fingerprint::builder()
//!         .part("method", "POST")
//!         .part("target", "/payments")
//!         .json("body", body)
//!         .build()
//! };
//! let stored = request(r#"{"amount": 250000, "currency": "VND"}"#)?;
//! assert!(stored.matches(&request(r#"{"currency":"VND","amount":2.5e5}"#)?));
//!
//! let reused = request("")?;
//! assert!(!stored.matches(&reused));
//! assert_eq!(stored.differences(&reused).to_string(), "body length differs: 37 -> 0");
//! # Ok::<(), idem_core::InvalidParts>(())
//! ```
//!
//! # The scheme, version 1
//!
//! Written down so that another language can make the same bytes. `‖` joins bytes, a name in quotes is its ASCII bytes,
//! `u8` and `u64` are big endian. `H` is SHA-256, or HMAC-SHA-256 under the secret in keyed mode.
//!
//! A request is a set of named parts. Each has a kind, which says what is hashed:
//!
//! | kind | part | hashed bytes |
//! |---|---|---|
//! | 0 | raw | as given |
//! | 1 | JSON | its canonical form |
//! | 2 | JSON that has no canonical form | as given |
//! | 3 | selected fields | for each pointer, in the order of the pointers' bytes: `u64(len) ‖ pointer`, then `u8(0)` if the field is absent, else `u8(1) ‖ u64(len) ‖ canonical value` |
//! | 4 | selected fields of a document without a canonical form, or without any of the fields | as given |
//!
//! ```text
//! part digest = H("idem.fingerprint.1.part:" ‖ u8(len) ‖ name ‖ u8(kind) ‖ u64(len) ‖ hashed bytes)
//! digest      = H("idem.fingerprint.1.whole:" ‖ the part digests, in the order of the names' bytes)
//! stored form = u8(1) ‖ u8(len) ‖ key id ‖ digest
//!               ‖ u8(number of parts) ‖ for each part, in the same order:
//!                 u8(len) ‖ name ‖ first 8 bytes of its digest ‖ u64(length as given)
//! ```
//!
//! The key id is empty in the unkeyed mode, else 1 to 64 visible ASCII characters. A name is 1 to 255 bytes of UTF-8
//! without control characters, and names are unique; there are 1 to 255 parts. The short digests and lengths only
//! explain a mismatch: whether there is one is decided by the digest.
//!
//! # Canonical JSON
//!
//! The canonical form is JSON again, in UTF-8:
//!
//! - no white space;
//! - the members of an object in the order of their names' bytes, as the names are written here between their quotes;
//!   arrays keep their order;
//! - strings as RFC 8785 writes them: only `"`, `\` and the characters below U+0020 are escaped, as `\"` `\\` `\b` `\t`
//!   `\n` `\f` `\r`, the rest as `\u00xx` in lower case. There is no Unicode normalisation;
//! - numbers as exact decimals: `-` if negative, the coefficient without zeros at either end, and `e` with the decimal
//!   exponent unless that is 0: `2.50` is `25e-1`, `100` is `1e2`, `12` is `12`. Every zero is `0`. Exponents are never
//!   expanded.
//!
//! A document has no canonical form if it is not strict RFC 8259 JSON (a byte order mark and invalid UTF-8 included),
//! is nested deeper than 128 arrays and objects, repeats a member name within an object (compared after unescaping),
//! holds a lone surrogate, or holds a number whose canonical exponent is outside −2⁶³ to 2⁶³−1.

mod builder;
mod difference;
mod digest;
mod json;
mod selector;
mod stored;

pub use builder::{FingerprintBuilder, InvalidParts};
pub use difference::{Differences, PartDifference};
pub use digest::{FingerprintKey, InvalidFingerprintKey};
pub use json::{NotCanonical, canonical_json};
pub use selector::{FieldSelector, InvalidSelector};
pub use stored::{Fingerprint, InvalidFingerprint};
