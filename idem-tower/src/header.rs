//! The key header: the only place where a key is read off the wire.
//!
//! The syntax follows the IETF httpapi draft `draft-ietf-httpapi-idempotency-key-header-07` (expired, and no RFC): a
//! String item of RFC 9651, whose parameters are ignored. Most clients send the bare value, so that is accepted too
//! unless the layer is told otherwise: see [`Mode`].

use idem_core::{InvalidName, Key, MAX_NAME_BYTES};
use thiserror::Error;

use self::item::Item;

mod item;

/// Which spellings of a key are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The quoted form, and the bare one: visible ASCII without quote, backslash or comma, spaces and tabs around it
    /// removed. `"abc"` and `abc` are the same key; `abc;p=1` is one bare value.
    #[default]
    Lenient,
    /// The quoted form only, as the draft has it.
    Strict,
}

/// Why a request has no usable key. What was sent is never repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// There is no field line of that name.
    #[error("is missing")]
    Missing,
    /// There is one that is not a key, or there are several. They are never joined: that would make one key of two.
    #[error("is malformed: {problem}")]
    Malformed {
        /// What is wrong with it, in a few fixed words.
        problem: &'static str,
    },
    /// The key is longer than 255 bytes, counted after unescaping.
    #[error("is too long: it names a key of {bytes} bytes, and the limit is {MAX_NAME_BYTES}")]
    TooLong {
        /// How many bytes it has.
        bytes: usize,
    },
}

/// Reads the key from the field lines of its header, as they were received.
///
/// # Errors
///
/// [`KeyError`] unless there is exactly one line and it holds a key of 1 to 255 bytes in a form that `mode` accepts.
pub fn parse<'a>(lines: impl IntoIterator<Item = &'a [u8]>, mode: Mode) -> Result<Key, KeyError> {
    let mut lines = lines.into_iter();
    let line = lines.next().ok_or(KeyError::Missing)?;
    if lines.next().is_some() {
        return Err(malformed("it is sent on more than one line; send one"));
    }
    let value = trim_start(line, b" ");
    if mode == Mode::Strict || value.first() == Some(&b'"') {
        return quoted(value).and_then(|name| named(&name));
    }
    bare(line).and_then(named)
}

/// A String item of RFC 9651, unescaped; it has no other bytes than printable ASCII.
fn quoted(value: &[u8]) -> Result<String, KeyError> {
    let mut input = Item::new(value);
    let name = input.string().ok_or(malformed("it is no quoted string of printable ASCII"))?;
    input.parameters().ok_or(malformed("what follows the quoted string are no parameters of a structured field"))?;
    if !trim_start(input.rest(), b" ").is_empty() {
        return Err(malformed("something follows the quoted string"));
    }
    Ok(name)
}

fn bare(line: &[u8]) -> Result<&str, KeyError> {
    let value = trim_start(line, b" \t");
    let end = value.iter().rposition(|byte| !b" \t".contains(byte)).map_or(0, |last| last + 1);
    let value = &value[..end];
    if !value.iter().all(|byte| byte.is_ascii_graphic() && !b"\"\\,".contains(byte)) {
        return Err(malformed("an unquoted key is visible ASCII without spaces, quotes, backslashes and commas"));
    }
    std::str::from_utf8(value).map_err(|_| malformed("it is not ASCII"))
}

fn named(name: &str) -> Result<Key, KeyError> {
    Key::new(name).map_err(|error| match error {
        InvalidName::TooLong { bytes } => KeyError::TooLong { bytes },
        InvalidName::Empty => malformed("it is empty"),
        _ => malformed("it holds a control character"),
    })
}

fn trim_start<'a>(value: &'a [u8], spaces: &[u8]) -> &'a [u8] {
    let start = value.iter().position(|byte| !spaces.contains(byte)).unwrap_or(value.len());
    &value[start..]
}

const fn malformed(problem: &'static str) -> KeyError {
    KeyError::Malformed { problem }
}

#[cfg(test)]
mod tests;
