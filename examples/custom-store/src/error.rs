//! What redb's failures are to whoever uses the store.

use std::io;

use idem_core::{DecodeError, Key, Scope, StoreError, StoreErrorKind};

pub(crate) const BACKEND: &str = "redb";

/// Why an operation has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Its own affair: others of its transaction are not touched by it.
    Own(StoreError),
    /// The database's: nothing of its transaction can be relied on.
    Database(redb::Error),
}

impl Failure {
    pub(crate) fn into_store_error(self, operation: &'static str) -> StoreError {
        match self {
            Self::Own(error) => error,
            Self::Database(error) => {
                let (kind, message) = judge(&error);
                store_error(kind, operation, message).with_source(error)
            }
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Own(error)
    }
}

/// The same for each of redb's error types.
macro_rules! from_redb {
    ($($error:ident),*) => {$(
        impl From<redb::$error> for Failure {
            fn from(error: redb::$error) -> Self {
                Self::Database(error.into())
            }
        }
    )*};
}

from_redb!(CommitError, StorageError, TableError, TransactionError);

pub(crate) fn store_error(kind: StoreErrorKind, operation: &'static str, message: impl Into<String>) -> StoreError {
    StoreError::new(kind, BACKEND, operation, message)
}

/// A record that can't be read. It is named by the beginnings of scope and key: errors hold no key in full.
pub(crate) fn undecodable(operation: &'static str, scope: &Scope, key: &Key, error: DecodeError) -> StoreError {
    let cause = StoreError::undecodable(BACKEND, operation, error);
    let message = format!("the record of {scope:?} and {key:?}: {}", cause.message());
    store_error(cause.kind(), operation, message).with_source(cause)
}

/// What kind of failure it is, with what happened and what to do.
pub(crate) fn judge(error: &redb::Error) -> (StoreErrorKind, String) {
    use StoreErrorKind::{Configuration, Contract, Corrupt, Unavailable};
    let (kind, advice) = match error {
        redb::Error::Io(error) => match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                (Unavailable, "the disk is full, or the file as large as it may be; make room")
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                (Configuration, "the file can't be written; let this process write it")
            }
            io::ErrorKind::NotFound => (Configuration, "the file is gone, or another is in its place; put it back"),
            _ => (Unavailable, "the file could not be read or written"),
        },
        redb::Error::Corrupted(_) => (Corrupt, "the file is damaged; restore it from a backup"),
        redb::Error::TableTypeMismatch { .. }
        | redb::Error::TableIsMultimap(_)
        | redb::Error::TableDoesNotExist(_)
        | redb::Error::TypeDefinitionChanged { .. } => {
            (Configuration, "the tables in the file are not those of this store; give it a file of its own")
        }
        redb::Error::ValueTooLarge(_) => (Contract, "the record is larger than redb can store; limit the response"),
        // An earlier failure (`PreviousIo`), a file that is being opened anew, a panic in between: what passes.
        _ => (Unavailable, "the file is not usable at the moment"),
    };
    (kind, format!("{advice} (redb: {error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(error: redb::Error) -> StoreErrorKind {
        Failure::Database(error).into_store_error("claim").kind()
    }

    #[test]
    fn what_passes_is_unavailable_and_what_stays_is_not() {
        for passing in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::Other] {
            assert_eq!(kind_of(redb::Error::Io(passing.into())), StoreErrorKind::Unavailable, "{passing:?}");
        }
        assert_eq!(kind_of(redb::Error::PreviousIo), StoreErrorKind::Unavailable);
        assert_eq!(kind_of(redb::Error::TransactionPoisoned), StoreErrorKind::Unavailable);
        for staying in [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::NotFound] {
            assert_eq!(kind_of(redb::Error::Io(staying.into())), StoreErrorKind::Configuration, "{staying:?}");
        }
        assert_eq!(kind_of(redb::Error::Corrupted("a page".into())), StoreErrorKind::Corrupt);
        assert_eq!(kind_of(redb::Error::ValueTooLarge(1 << 32)), StoreErrorKind::Contract);
    }
}
