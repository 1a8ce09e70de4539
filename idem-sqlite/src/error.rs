//! What SQLite's failures are to whoever uses the store.

use idem_core::{DecodeError, StoreError, StoreErrorKind};
use rusqlite::{Error, ErrorCode, ffi};

pub(crate) const BACKEND: &str = "sqlite";

pub(crate) fn store_error(kind: StoreErrorKind, operation: &'static str, message: impl Into<String>) -> StoreError {
    StoreError::new(kind, BACKEND, operation, message)
}

/// A failure of SQLite, by what can be done about it.
pub(crate) fn sqlite_error(operation: &'static str, error: Error) -> StoreError {
    let (kind, advice) = judge(&error);
    store_error(kind, operation, format!("{advice} (SQLite: {error})")).with_source(error)
}

/// A row that can't be read: of kind configuration if a newer version wrote it, else corrupt.
pub(crate) fn undecodable(operation: &'static str, id: i64, error: DecodeError) -> StoreError {
    let kind = match error {
        DecodeError::Newer { .. } => StoreErrorKind::Configuration,
        _ => StoreErrorKind::Corrupt,
    };
    store_error(kind, operation, format!("row {id} of idem_records: {error}")).with_source(error)
}

/// Whether another connection holds a lock that this one needs, so that trying again is all it takes.
pub(crate) fn is_busy(error: &Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// What kind of failure it is, and what to do about it.
pub(crate) fn judge(error: &Error) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Configuration, Contract, Corrupt, Unavailable};
    // A busy snapshot is the one busy error that waiting never cures.
    if error.sqlite_error().is_some_and(|error| error.extended_code == ffi::SQLITE_BUSY_SNAPSHOT) {
        return (
            Contract,
            "the transaction read before it wrote, and another connection committed in between; \
             begin it with TransactionBehavior::Immediate",
        );
    }
    let Some(code) = error.sqlite_error_code() else {
        return (Corrupt, "a row of idem_records does not have the form that this store writes");
    };
    match code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
            (Unavailable, "another connection holds the file's lock for too long; keep write transactions short")
        }
        ErrorCode::DiskFull => (Unavailable, "the disk is full; make room on it"),
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied => {
            (Configuration, "the file can't be written; let this process write the file and its directory")
        }
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
            (Corrupt, "the file is damaged; restore it, or run PRAGMA integrity_check on a copy")
        }
        ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch => {
            (Corrupt, "the table's constraints refused a record; look for triggers on it, or a damaged index")
        }
        ErrorCode::Unknown | ErrorCode::SchemaChanged => {
            (Configuration, "the table idem_records is not as this store made it; leave its schema as it is")
        }
        ErrorCode::TooBig => (Contract, "the record is larger than SQLite can store; limit the response"),
        ErrorCode::ApiMisuse | ErrorCode::ParameterOutOfRange => (Contract, "SQLite was called in a wrong way"),
        _ => (Unavailable, "the file could not be read or written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: i32) -> StoreError {
        sqlite_error("claim", Error::SqliteFailure(ffi::Error::new(code), None))
    }

    // case 068
    #[test]
    fn a_busy_snapshot_is_the_callers_and_says_how_to_begin() {
        let error = failure(517);
        assert_eq!(error.kind(), StoreErrorKind::Contract);
        assert!(error.to_string().contains("TransactionBehavior::Immediate"), "{error}");
    }

    #[test]
    fn what_passes_is_unavailable_and_what_stays_is_not() {
        for code in [ffi::SQLITE_BUSY, ffi::SQLITE_LOCKED, ffi::SQLITE_FULL, ffi::SQLITE_IOERR, ffi::SQLITE_CANTOPEN] {
            assert_eq!(failure(code).kind(), StoreErrorKind::Unavailable, "{code}");
        }
        for code in [ffi::SQLITE_READONLY, ffi::SQLITE_PERM, ffi::SQLITE_ERROR] {
            assert_eq!(failure(code).kind(), StoreErrorKind::Configuration, "{code}");
        }
        for code in [ffi::SQLITE_CORRUPT, ffi::SQLITE_NOTADB, ffi::SQLITE_CONSTRAINT] {
            assert_eq!(failure(code).kind(), StoreErrorKind::Corrupt, "{code}");
        }
        assert_eq!(failure(ffi::SQLITE_TOOBIG).kind(), StoreErrorKind::Contract);
    }
}
