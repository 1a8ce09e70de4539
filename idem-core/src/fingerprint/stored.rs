//! The fingerprint itself, held in its stored form.

use std::fmt;

use thiserror::Error;

use super::{Differences, FingerprintBuilder, FingerprintKey, digest::valid_key_id};

const DIGEST_LEN: usize = 32;
const SHORT_LEN: usize = 8;
const MAX_NAME: usize = 255;
pub(super) const MAX_PARTS: usize = 255;

/// A digest of the meaningful parts of a request, with a short digest and the length of each part.
///
/// It is held in its stored form, which the module documentation describes, so storing and loading cost a copy and a
/// check. Retries are told by [`matches`](Self::matches). `==` asks for the same stored bytes, which is more: two JSON
/// bodies of one meaning match, and differ in their lengths.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    stored: Box<[u8]>,
}

impl Fingerprint {
    /// The scheme that this code makes, and the newest that it reads.
    pub const SCHEME: u8 = 1;

    /// Starts an unkeyed fingerprint.
    pub fn builder() -> FingerprintBuilder {
        FingerprintBuilder::new(None)
    }

    /// Starts a fingerprint whose digests are keyed, for requests whose content must not be guessed from the store.
    pub fn keyed(key: &FingerprintKey) -> FingerprintBuilder {
        FingerprintBuilder::new(Some(key.clone()))
    }

    /// Takes a fingerprint from its stored form.
    ///
    /// # Errors
    ///
    /// [`InvalidFingerprint`] if these are not exactly the bytes that [`as_bytes`](Self::as_bytes) of some fingerprint
    /// could give.
    pub fn from_bytes(stored: &[u8]) -> Result<Fingerprint, InvalidFingerprint> {
        let mut rest = stored;
        let scheme = take_byte(&mut rest)?;
        if scheme != Self::SCHEME {
            return Err(InvalidFingerprint::UnknownScheme { scheme });
        }
        let key_id = take_prefixed(&mut rest)?;
        if !key_id.is_empty() && !valid_key_id(key_id) {
            return Err(InvalidFingerprint::KeyId);
        }
        take_array::<DIGEST_LEN>(&mut rest)?;
        let count = take_byte(&mut rest)?;
        if count == 0 {
            return Err(InvalidFingerprint::Parts);
        }
        let mut previous = "";
        for _ in 0..count {
            let part = Part::take(&mut rest)?;
            if part.name <= previous {
                return Err(InvalidFingerprint::Parts);
            }
            previous = part.name;
        }
        if !rest.is_empty() {
            return Err(InvalidFingerprint::TrailingBytes { count: rest.len() });
        }
        Ok(Fingerprint { stored: stored.into() })
    }

    /// The stored form: 36 bytes, the key id, and for each part 17 bytes and its name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.stored
    }

    /// The version of the scheme by which it was made; 1 so far.
    pub fn scheme(&self) -> u8 {
        self.stored[0]
    }

    /// The id of the key under which it was made, none if it is unkeyed.
    pub fn key_id(&self) -> Option<&str> {
        let id = &self.stored[2..self.digest_start()];
        std::str::from_utf8(id).ok().filter(|id| !id.is_empty())
    }

    /// Whether two requests are the same: made by one scheme under one key, and of equal digests. This is the rule for
    /// retries.
    pub fn matches(&self, other: &Fingerprint) -> bool {
        self.identity() == other.identity()
    }

    /// What [`matches`](Self::matches) compares: the stored form up to the end of the digest (scheme, key id, digest).
    /// A store that compares fingerprints itself compares these bytes: behind them are the parts, whose lengths may
    /// differ between two spellings of one request.
    pub fn identity(&self) -> &[u8] {
        &self.stored[..self.digest_start() + DIGEST_LEN]
    }

    /// Where `given` differs from this stored fingerprint, to be told to the client whose key is being reused.
    ///
    /// It explains a mismatch and does not decide whether there is one: that is for [`matches`](Self::matches).
    pub fn differences(&self, given: &Fingerprint) -> Differences {
        Differences::between(self, given)
    }

    pub(super) fn is_comparable(&self, other: &Fingerprint) -> bool {
        self.scheme() == other.scheme() && self.key_id() == other.key_id()
    }

    /// The parts, in the order of their names.
    pub(super) fn parts(&self) -> Vec<Part<'_>> {
        let mut rest = &self.stored[self.digest_start() + DIGEST_LEN + 1..];
        // The stored form was checked or made here, so this ends with its last part.
        std::iter::from_fn(|| Part::take(&mut rest).ok()).collect()
    }

    /// The stored form of these values, which are within the limits and in order.
    pub(super) fn assemble<'a>(
        key_id: &str,
        digest: [u8; DIGEST_LEN],
        parts: impl ExactSizeIterator<Item = Part<'a>>,
    ) -> Fingerprint {
        let mut stored = vec![Self::SCHEME, key_id.len() as u8];
        stored.extend_from_slice(key_id.as_bytes());
        stored.extend_from_slice(&digest);
        stored.push(parts.len() as u8);
        for part in parts {
            stored.push(part.name.len() as u8);
            stored.extend_from_slice(part.name.as_bytes());
            stored.extend_from_slice(&part.short);
            stored.extend_from_slice(&part.length.to_be_bytes());
        }
        Fingerprint { stored: stored.into() }
    }

    fn digest(&self) -> &[u8] {
        let start = self.digest_start();
        &self.stored[start..start + DIGEST_LEN]
    }

    fn digest_start(&self) -> usize {
        2 + usize::from(self.stored[1])
    }
}

/// Shows the beginning of the digest only: fingerprints are never logged in full.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digest: String = self.digest()[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        digest.push('…');
        f.debug_struct("Fingerprint")
            .field("scheme", &self.scheme())
            .field("key_id", &self.key_id())
            .field("digest", &format_args!("{digest}"))
            .finish()
    }
}

/// What is kept of a part.
pub(super) struct Part<'a> {
    pub(super) name: &'a str,
    /// The first bytes of its digest.
    pub(super) short: [u8; SHORT_LEN],
    pub(super) length: u64,
}

impl<'a> Part<'a> {
    pub(super) fn new(name: &'a str, digest: &[u8; DIGEST_LEN], length: u64) -> Part<'a> {
        let mut short = [0; SHORT_LEN];
        short.copy_from_slice(&digest[..SHORT_LEN]);
        Part { name, short, length }
    }

    fn take(rest: &mut &'a [u8]) -> Result<Part<'a>, InvalidFingerprint> {
        let name = std::str::from_utf8(take_prefixed(rest)?).map_err(|_| InvalidFingerprint::Parts)?;
        if !valid_name(name) {
            return Err(InvalidFingerprint::Parts);
        }
        Ok(Part { name, short: take_array(rest)?, length: u64::from_be_bytes(take_array(rest)?) })
    }
}

pub(super) fn valid_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.contains(char::is_control)
}

fn take_byte(rest: &mut &[u8]) -> Result<u8, InvalidFingerprint> {
    take_array(rest).map(|[byte]| byte)
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], InvalidFingerprint> {
    let (taken, after) = rest.split_first_chunk().ok_or(InvalidFingerprint::Truncated)?;
    *rest = after;
    Ok(*taken)
}

/// Takes the bytes behind a length byte.
fn take_prefixed<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], InvalidFingerprint> {
    let length = take_byte(rest)?.into();
    let (taken, after) = rest.split_at_checked(length).ok_or(InvalidFingerprint::Truncated)?;
    *rest = after;
    Ok(taken)
}

/// Bytes are not the stored form of a [`Fingerprint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidFingerprint {
    /// The first byte names a scheme that this version of the library does not know, perhaps one of a newer version.
    #[error("the stored fingerprint has scheme version {scheme}; this library knows version 1")]
    UnknownScheme {
        /// The version found.
        scheme: u8,
    },
    /// The bytes end too early.
    #[error("the stored fingerprint is truncated")]
    Truncated,
    /// More bytes follow the last part.
    #[error("the stored fingerprint is followed by {count} bytes that are not its own")]
    TrailingBytes {
        /// How many.
        count: usize,
    },
    /// The key id is longer than 64 bytes or not visible ASCII.
    #[error("the stored fingerprint has a malformed key id")]
    KeyId,
    /// There are no parts, a name is malformed, or the names are not in ascending order.
    #[error("the stored fingerprint has a malformed list of parts")]
    Parts,
}
