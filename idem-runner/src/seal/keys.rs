//! A sealer with keys of one's own: XChaCha20-Poly1305, under a random nonce each.

use std::fmt;

use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use thiserror::Error;

use super::{Seal, SealError, Sealed};

/// The format of what is sealed here, its first byte.
const FORMAT: u8 = 1;
const NONCE: usize = 24;
const MAX_ID: usize = 64;

/// A secret that seals, and the name by which what it sealed tells which one opens it.
#[derive(Clone)]
pub struct SealKey {
    id: Box<str>,
    cipher: XChaCha20Poly1305,
}

impl SealKey {
    /// A key of an id, 1 to 64 visible ASCII characters, and 32 random bytes. Never give two secrets one id.
    ///
    /// # Errors
    ///
    /// [`InvalidSealKey`] if the id is none.
    pub fn new(id: &str, secret: &[u8; 32]) -> Result<Self, InvalidSealKey> {
        let is_id = (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
        let key = Self { id: id.into(), cipher: XChaCha20Poly1305::new(secret.into()) };
        is_id.then_some(key).ok_or(InvalidSealKey::Id)
    }

    /// The id, which is stored in clear.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// Shows the id, never the secret.
impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Seals under one key, and opens with that and with older ones.
///
/// What is sealed is encrypted and authenticated (XChaCha20-Poly1305), bound to its scope and key: a sealed response that is
/// moved to another record is not opened there. Nonces are random and long enough that one key may seal for ever.
/// The result of a step takes 57 bytes and the key's id more of the 64 KiB that a record has for them.
///
/// To change the secret: first let every instance open with the new key (`accepting`), then let every instance seal with it
/// and open with the old one, and drop the old one when the longest [retention](idem_core::Retention), that of held records
/// included, has passed since the last of them changed.
///
/// ```
/// use idem_runner::{SealKey, SealKeys};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (secret_of_december, secret_of_november) = ([12; 32], [11; 32]);
/// let keys = SealKeys::new(SealKey::new("2026-12", &secret_of_december)?)
///     .accepting(SealKey::new("2026-11", &secret_of_november)?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SealKeys {
    current: SealKey,
    older: Vec<SealKey>,
}

impl SealKeys {
    /// Seals and opens with this key.
    pub fn new(current: SealKey) -> Self {
        Self { current, older: Vec::new() }
    }

    /// Also opens what this key sealed.
    ///
    /// # Errors
    ///
    /// [`InvalidSealKey`] if there is a key with this id.
    pub fn accepting(mut self, other: SealKey) -> Result<Self, InvalidSealKey> {
        if self.find(&other.id).is_some() {
            return Err(InvalidSealKey::Twice { id: other.id.into() });
        }
        self.older.push(other);
        Ok(self)
    }

    fn find(&self, id: &str) -> Option<&SealKey> {
        std::iter::once(&self.current).chain(&self.older).find(|key| *key.id == *id)
    }
}

/// Keys that can't be used like this.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidSealKey {
    /// The id is empty, longer than 64 characters, or holds something else than visible ASCII.
    #[error("the id of a seal key must be 1 to 64 visible ASCII characters")]
    Id,
    /// Two keys have one id.
    #[error("the id {id:?} names two seal keys; give each secret an id of its own")]
    Twice {
        /// The id.
        id: String,
    },
}

impl Seal for SealKeys {
    fn seal(&self, plain: &[u8], bound_to: &[u8]) -> Result<Sealed, SealError> {
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|error| SealError::Failed(error.into()))?;
        let aad = associated(&self.current.id, bound_to);
        let sealed = self.current.cipher.encrypt(&XNonce::from(nonce), Payload { msg: plain, aad: &aad });
        let sealed = sealed.map_err(|_| SealError::Failed("it is larger than the cipher can seal".into()))?;
        Ok(Sealed { key_id: self.current.id().into(), bytes: [&[FORMAT][..], &nonce, &sealed].concat().into() })
    }

    fn open(&self, sealed: &Sealed, bound_to: &[u8]) -> Result<Vec<u8>, SealError> {
        let Sealed { key_id, bytes } = sealed;
        let key = self.find(key_id).ok_or_else(|| SealError::UnknownKey { key_id: key_id.clone() })?;
        let not_authentic = || SealError::NotAuthentic { key_id: key_id.clone() };
        let (format, rest) = bytes.split_first().ok_or_else(not_authentic)?;
        if *format != FORMAT {
            return Err(SealError::Failed("it was sealed by a newer version; open it with that".into()));
        }
        let (nonce, sealed) = rest.split_first_chunk::<NONCE>().ok_or_else(not_authentic)?;
        let aad = associated(key_id, bound_to);
        key.cipher.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: &aad }).map_err(|_| not_authentic())
    }
}

/// Format, key id and binding, so that none of them can be exchanged.
fn associated(key_id: &str, bound_to: &[u8]) -> Vec<u8> {
    let mut associated = vec![FORMAT];
    associated.extend((key_id.len() as u64).to_be_bytes());
    associated.extend(key_id.as_bytes());
    associated.extend(bound_to);
    associated
}

#[cfg(test)]
mod tests;
