//! What names one attempt.

use std::fmt;

/// 128 random bits that name one claim.
///
/// Made by the caller before the claim, from a cryptographic source, and never used for a second operation: the token
/// is what lets a claim be repeated when its reply is lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// A token of these bytes, which must be random.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes, for storing.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "Token({a:02x}{b:02x}{c:02x}{d:02x}…)")
    }
}

/// One attempt: the token that claimed it and its number (1, 2, 3 … within the record's life). Together they name it
/// for ever, and every write of an attempt carries both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttemptId {
    /// The token of its claim.
    pub token: Token,
    /// Its number, from 1.
    pub number: u32,
}
