//! SHA-256, plain or keyed, and the keys.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use thiserror::Error;

const MIN_SECRET: usize = 16;
const MAX_ID: usize = 64;

/// A secret for keyed fingerprints, and the name by which a stored fingerprint tells which secret made it.
///
/// Whoever reads the store can try out the possible values of a small field (an amount, a card number) against an
/// unkeyed fingerprint. A keyed one tells nothing without the secret. To change the secret, give the new one another
/// id, and let claims accept fingerprints of the old key for one retention.
#[derive(Clone)]
pub struct FingerprintKey {
    id: Box<str>,
    mac: Hmac<Sha256>,
}

impl FingerprintKey {
    /// A key of an id, 1 to 64 visible ASCII characters, and a secret of at least 16 random bytes.
    ///
    /// # Errors
    ///
    /// [`InvalidFingerprintKey`] if the id or the secret is outside these limits.
    pub fn new(id: &str, secret: &[u8]) -> Result<FingerprintKey, InvalidFingerprintKey> {
        if !valid_key_id(id.as_bytes()) {
            return Err(InvalidFingerprintKey::Id);
        }
        let too_short = InvalidFingerprintKey::Secret { length: secret.len() };
        if secret.len() < MIN_SECRET {
            return Err(too_short);
        }
        Ok(FingerprintKey {
            id: id.into(),
            // HMAC takes secrets of every length, so this cannot fail.
            mac: Hmac::new_from_slice(secret).map_err(|_| too_short)?,
        })
    }

    /// The id, which stored fingerprints carry in clear.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// Shows the id, never the secret.
impl fmt::Debug for FingerprintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FingerprintKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A [`FingerprintKey`] cannot be made of these values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidFingerprintKey {
    /// The id is empty, longer than 64 characters, or holds something else than visible ASCII.
    #[error("the id of a fingerprint key must be 1 to 64 visible ASCII characters")]
    Id,
    /// The secret is too short to be safe from guessing.
    #[error("the secret of a fingerprint key must be at least 16 random bytes; this one has {length}")]
    Secret {
        /// Bytes that were given.
        length: usize,
    },
}

pub(super) fn valid_key_id(id: &[u8]) -> bool {
    (1..=MAX_ID).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

/// SHA-256 of the concatenated pieces, or HMAC-SHA-256 with a key.
pub(super) fn digest(key: Option<&FingerprintKey>, pieces: &[&[u8]]) -> [u8; 32] {
    match key {
        None => {
            let mut hash = Sha256::new();
            pieces.iter().for_each(|piece| hash.update(piece));
            hash.finalize().into()
        }
        Some(key) => {
            let mut mac = key.mac.clone();
            pieces.iter().for_each(|piece| mac.update(piece));
            mac.finalize().into_bytes().into()
        }
    }
}
