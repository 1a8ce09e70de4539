//! Names: whose key it is, and which intent it names.

use std::{fmt, sync::Arc};

use sha2::{Digest, Sha256};

/// The most bytes that a [`Key`] or a [`Scope`] may have.
pub const MAX_NAME_BYTES: usize = 255;

/// The name of one intent: 1 to 255 bytes of UTF-8 without control characters.
///
/// Two keys are the same only if they are the same bytes: there is no case folding, trimming or Unicode normalisation.
/// `Debug` shows the first characters only, since keys are never logged in full.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// Whose key it is (a tenant, an API key, a principal), or the family of operations it belongs to (a queue, a job).
///
/// The same string under two scopes names two records. A scope has the limits of a [`Key`], and
/// [`Scope::global`] must be typed out: there is no default.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(Arc<str>);

/// Why a string can't be a [`Key`] or a [`Scope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// It has no bytes. A missing name is never turned into a shared one.
    #[error("it is empty; give it 1 to 255 bytes")]
    Empty,
    /// It has more than 255 bytes. Bytes count, not characters.
    #[error("it has {bytes} bytes and the limit is 255; shorten it, or use Key::digest_of")]
    TooLong {
        /// How many bytes it has.
        bytes: usize,
    },
    /// It holds a control character (U+0000 to U+001F, U+007F to U+009F).
    #[error("it holds a control character at byte {at}; arbitrary bytes enter through Key::digest_of")]
    ControlCharacter {
        /// The offset in bytes of the first one.
        at: usize,
    },
}

impl Key {
    /// Takes a name as it is.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] if it is empty, longer than 255 bytes, or holds a control character.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidName> {
        valid(name.as_ref()).map(|name| Self(name.into()))
    }

    /// A key for arbitrary bytes, such as a message id: `sha256-` and the digest in hexadecimal.
    ///
    /// # Errors
    ///
    /// [`InvalidName::Empty`] if there are no bytes: "no id" must not become one key that all messages share.
    pub fn digest_of(bytes: &[u8]) -> Result<Self, InvalidName> {
        if bytes.is_empty() {
            return Err(InvalidName::Empty);
        }
        Ok(Self(digest_name(bytes).into()))
    }

    /// A key for an intent that several values name together, such as the columns of an event that has no id: `parts-` and
    /// a digest in hexadecimal. Their order counts, and which of them are missing. A value without bytes is missing.
    ///
    /// The digest is SHA-256 over `"idem.key-parts.1:"` and, of each value, a zero byte if it is missing, else a byte 1, its
    /// length as 8 bytes, big endian, and the value.
    ///
    /// # Errors
    ///
    /// [`InvalidName::Empty`] if all values are missing, or there are none: what has no name must not share one with
    /// everything else that has none.
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = Option<&'a [u8]>>) -> Result<Self, InvalidName> {
        let (mut hash, mut is_named) = (Sha256::new_with_prefix("idem.key-parts.1:"), false);
        for part in parts {
            match part.filter(|bytes| !bytes.is_empty()) {
                Some(bytes) => {
                    is_named = true;
                    hash.update([1]);
                    hash.update((bytes.len() as u64).to_be_bytes());
                    hash.update(bytes);
                }
                None => hash.update([0]),
            }
        }
        if is_named { Ok(Self(named("parts-", &hash.finalize()).into())) } else { Err(InvalidName::Empty) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Scope {
    /// Takes a name as it is.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] if it is empty, longer than 255 bytes, or holds a control character.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidName> {
        valid(name.as_ref()).map(|name| Self(name.into()))
    }

    /// A scope for arbitrary bytes, such as a principal's id: `sha256-` and the digest in hexadecimal.
    ///
    /// Where principals choose their names, make all scopes by this or none: a name given to [`Scope::new`] may look like this.
    ///
    /// # Errors
    ///
    /// [`InvalidName::Empty`] if there are no bytes.
    pub fn digest_of(bytes: &[u8]) -> Result<Self, InvalidName> {
        if bytes.is_empty() {
            return Err(InvalidName::Empty);
        }
        Ok(Self(digest_name(bytes).into()))
    }

    /// The one scope that everybody shares. Whoever knows a key in it gets the response stored under it, so it is only
    /// right where all callers are the same party. No string given to [`Scope::new`] equals it.
    pub fn global() -> Self {
        Self("".into())
    }

    /// The name; empty for [`Scope::global`].
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads back what [`Scope::as_str`] gave, for stores: the empty string is [`Scope::global`].
    ///
    /// # Errors
    ///
    /// [`InvalidName`] as for [`Scope::new`], save that empty is allowed.
    pub fn from_stored(name: &str) -> Result<Self, InvalidName> {
        if name.is_empty() { Ok(Self::global()) } else { Self::new(name) }
    }
}

fn valid(name: &str) -> Result<&str, InvalidName> {
    if name.is_empty() {
        return Err(InvalidName::Empty);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(InvalidName::TooLong { bytes: name.len() });
    }
    match name.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(InvalidName::ControlCharacter { at }),
        None => Ok(name),
    }
}

fn digest_name(bytes: &[u8]) -> String {
    named("sha256-", &Sha256::digest(bytes))
}

fn named(prefix: &str, digest: &[u8]) -> String {
    use fmt::Write as _;
    digest.iter().fold(String::from(prefix), |mut name, byte| {
        let _ = write!(name, "{byte:02x}"); // writing to a String can't fail
        name
    })
}

/// At most eight characters and never more than half of the name, escaped.
fn shortened(f: &mut fmt::Formatter<'_>, what: &str, name: &str) -> fmt::Result {
    let shown: String = name.chars().take(8.min(name.chars().count() / 2)).collect();
    write!(f, "{what}({}…, {} bytes)", shown.escape_debug(), name.len())
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shortened(f, "Key", &self.0)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("Scope::global()") } else { shortened(f, "Scope", &self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // case 110
    #[test]
    fn a_name_has_1_to_255_bytes_whatever_it_has_in_characters() {
        assert_eq!(Key::new(""), Err(InvalidName::Empty));
        assert_eq!(Key::new("k".repeat(255)).unwrap().as_str().len(), 255);
        assert_eq!(Key::new("k".repeat(256)), Err(InvalidName::TooLong { bytes: 256 }));
        assert_eq!(Key::new("😂".repeat(128)), Err(InvalidName::TooLong { bytes: 512 }));
        assert_eq!(Scope::new("k".repeat(65_536)), Err(InvalidName::TooLong { bytes: 65_536 }));
    }

    // case 113
    #[test]
    fn control_characters_are_refused_and_digests_take_any_bytes() {
        for bad in ["a\nb", "a\0", "\u{1b}[31m", "a\u{7f}", "a\u{85}"] {
            assert!(matches!(Key::new(bad), Err(InvalidName::ControlCharacter { .. })), "{bad:?}");
        }
        assert!(Key::new("../etc").is_ok());
        let digest = Key::digest_of(b"a\nb\0\xff").unwrap();
        assert_eq!(digest.as_str().len(), 71);
        assert_ne!(digest, Key::digest_of(b"a\nb\0\xfe").unwrap());
    }

    // case 109
    #[test]
    fn nothing_is_not_a_key() {
        assert_eq!(Key::digest_of(b""), Err(InvalidName::Empty));
        assert_eq!(Scope::digest_of(b""), Err(InvalidName::Empty));
        for none in [&[][..], &[None], &[None, None], &[Some(&b""[..]), None]] {
            assert_eq!(Key::of_parts(none.iter().copied()), Err(InvalidName::Empty), "{none:?}");
        }
    }

    // case 109
    #[test]
    fn a_key_of_parts_tells_apart_what_they_are_where_they_end_and_which_are_missing() {
        let of = |parts: &[Option<&str>]| Key::of_parts(parts.iter().map(|part| part.map(str::as_bytes))).unwrap();
        let keys = [
            of(&[Some("1"), None]),
            of(&[None, Some("1")]),
            of(&[Some("1")]),
            of(&[Some("1"), Some("2")]),
            of(&[Some("2"), Some("1")]),
            of(&[Some("12")]),
            of(&[Some("null")]),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{index}");
        }
        assert_eq!(of(&[Some("1"), None]), of(&[Some("1"), Some("")]));
        // Computed with Python's hashlib from the description above.
        assert_eq!(
            of(&[Some("invoice-7"), None, Some("2026-11")]).as_str(),
            "parts-f514ebb8685272db3fe8c26e5396187c01302952508c0582b9519f272aec9635"
        );
    }

    #[test]
    fn only_scope_global_is_the_global_scope() {
        assert_eq!(Scope::new(""), Err(InvalidName::Empty));
        assert_eq!(Scope::from_stored("").unwrap(), Scope::global());
        assert_eq!(Scope::from_stored("t").unwrap(), Scope::new("t").unwrap());
        assert_eq!((Scope::global().as_str(), Scope::new("t").unwrap().as_str()), ("", "t"));
    }

    #[test]
    fn debug_never_shows_a_whole_name() {
        assert_eq!(format!("{:?}", Key::new("k-1").unwrap()), "Key(k…, 3 bytes)");
        let long = format!("{:?}", Key::new("8e03978e-40d5-43e8-bc93-6894a57f9324").unwrap());
        assert_eq!(long, "Key(8e03978e…, 36 bytes)");
        assert_eq!(format!("{:?}", Key::new("x").unwrap()), "Key(…, 1 bytes)");
        assert_eq!(format!("{:?}", Scope::new("tenant-7").unwrap()), "Scope(tena…, 8 bytes)");
        assert_eq!(format!("{:?}", Scope::global()), "Scope::global()");
    }
}
