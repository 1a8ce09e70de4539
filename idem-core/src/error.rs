//! What can go wrong in a store.

use std::{error::Error, fmt};

use crate::DecodeError;

/// What kind of failure it is, which is what to do about it. Conflict, Reuse, Replay, Unknown and Superseded are
/// answers, never errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store could not be reached, was too slow or is full. Whether the operation was applied is not known: repeat
    /// it, with the same token.
    Unavailable,
    /// A stored record can't be read. Repeating won't help: look at the record that the message names.
    Corrupt,
    /// The store is set up so that it can't keep its promise, or a newer version of idem wrote to it. Repeating won't
    /// help: change what the message names.
    Configuration,
    /// The caller (or the store's code) broke the contract of the [`Store`](crate::Store) trait. Repeating won't help:
    /// it is a bug.
    Contract,
}

/// A failure of a store: its kind, which store, in which operation, what happened, and the driver's error behind it.
#[derive(Debug)]
pub struct StoreError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: StoreErrorKind,
    backend: &'static str,
    operation: &'static str,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// A failure of `operation` (a method of the trait, such as `claim`) on `backend` (such as `sqlite`). The message
    /// says what happened and what to do, and holds no key, body or fingerprint in full.
    pub fn new(
        kind: StoreErrorKind,
        backend: &'static str,
        operation: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self(Box::new(Inner { kind, backend, operation, message: message.into(), source: None }))
    }

    /// The same with the error that caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The failure to read a stored value: of kind configuration if a newer version wrote it, else corrupt. The message
    /// does not say which value; a store that can name it without its key (by the number of its row, by the shortened
    /// forms that `Debug` gives) puts that before it.
    pub fn undecodable(backend: &'static str, operation: &'static str, error: DecodeError) -> Self {
        let kind = match error {
            DecodeError::Newer { .. } => StoreErrorKind::Configuration,
            DecodeError::Corrupt { .. } => StoreErrorKind::Corrupt,
        };
        Self::new(kind, backend, operation, error.to_string()).with_source(error)
    }

    /// The refusal of a claim whose token was used for another operation.
    pub fn token_reused(backend: &'static str) -> Self {
        let message = "the token of this claim was used for two operations; make a new token for each";
        Self::new(StoreErrorKind::Contract, backend, "claim", message)
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> StoreErrorKind {
        self.0.kind
    }

    /// What happened and what to do, without what the other methods tell.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Which store failed.
    pub fn backend(&self) -> &'static str {
        self.0.backend
    }

    /// In which operation.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, backend, operation, message, .. } = &*self.0;
        write!(f, "{backend} store, {operation}: {message} ({kind})")
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unavailable => "unavailable: repeat it with the same token",
            Self::Corrupt => "corrupt: repeating won't help",
            Self::Configuration => "configuration: repeating won't help",
            Self::Contract => "contract: this is a bug",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_which_store_what_it_did_what_happened_and_what_to_do() {
        let error = StoreError::new(StoreErrorKind::Unavailable, "sqlite", "claim", "the disk is full");
        assert_eq!(
            error.to_string(),
            "sqlite store, claim: the disk is full (unavailable: repeat it with the same token)"
        );
    }

    #[test]
    fn a_newer_format_is_a_matter_of_configuration_and_damage_is_not() {
        let newer = DecodeError::Newer { what: "a stored record", found: 9, known: 1 };
        let damaged = DecodeError::Corrupt { what: "a stored record", problem: "it ends 3 bytes early".into() };
        assert_eq!(StoreError::undecodable("s", "read", newer).kind(), StoreErrorKind::Configuration);
        assert_eq!(StoreError::undecodable("s", "read", damaged).kind(), StoreErrorKind::Corrupt);
    }
}
