//! What PostgreSQL's failures are to whoever uses the store.

use std::error::Error as _;

use idem_core::{StoreError, StoreErrorKind};
use tokio_postgres::{Error, error::SqlState};

pub(crate) const BACKEND: &str = "postgres";

pub(crate) fn store_error(kind: StoreErrorKind, operation: &'static str, message: impl Into<String>) -> StoreError {
    StoreError::new(kind, BACKEND, operation, message)
}

/// A failure of PostgreSQL, by what can be done about it.
pub(crate) fn postgres_error(operation: &'static str, error: Error) -> StoreError {
    let Judged { kind, advice, .. } = judge(&error);
    store_error(kind, operation, format!("{advice} (PostgreSQL: {})", described(&error))).with_source(error)
}

/// What the server said, or the driver. Without the detail and the context, which may hold values.
pub(crate) fn described(error: &Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(said), _) => format!("{} {}", said.code().code(), said.message()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

/// What may be tried after a failure. Every operation bears being applied twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cure {
    /// The same again, a moment later: other transactions came in between.
    Again,
    /// The same on a fresh connection: this one is broken, or is no longer what it was.
    Fresh,
    /// Nothing.
    None,
}

/// A failure, by what can be done about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judged {
    pub(crate) kind: StoreErrorKind,
    pub(crate) cure: Cure,
    pub(crate) advice: &'static str,
}

pub(crate) fn judge(error: &Error) -> Judged {
    use StoreErrorKind::{Configuration, Contract, Corrupt, Unavailable};
    let judged = |kind, cure, advice| Judged { kind, cure, advice };
    let Some(code) = error.code() else {
        return match () {
            () if is_of_tls(error) => judged(
                Configuration,
                Cure::None,
                "TLS could not be agreed on; look at sslmode and sslrootcert, and at the server's certificate",
            ),
            () if is_decoding(error) => {
                judged(Corrupt, Cure::None, "a row does not have the form that this store writes")
            }
            () => judged(Unavailable, Cure::Fresh, "the connection to the server was lost, or could not be made"),
        };
    };
    match (code, &code.code()[..2]) {
        (&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED, _) => {
            judged(Unavailable, Cure::Again, "other transactions came in between; do the transaction again")
        }
        (&SqlState::LOCK_NOT_AVAILABLE, _) => {
            judged(Unavailable, Cure::Again, "another transaction holds the record for too long; keep it short")
        }
        (&SqlState::QUERY_CANCELED, _) => {
            judged(Unavailable, Cure::Fresh, "the statement was cancelled, by a statement_timeout or by hand")
        }
        (&SqlState::READ_ONLY_SQL_TRANSACTION, _) => judged(
            Unavailable,
            Cure::Fresh,
            "the server takes no writes (a replica, or default_transaction_read_only); connect to the primary",
        ),
        // A plan of before a change of the schema.
        (&SqlState::FEATURE_NOT_SUPPORTED, _) => {
            judged(Configuration, Cure::Fresh, "the table's schema changed, or the server is too old")
        }
        (&SqlState::INVALID_SQL_STATEMENT_NAME | &SqlState::DUPLICATE_PSTATEMENT, _) => judged(
            Configuration,
            Cure::None,
            "a pooler gave the session to someone else between two statements; say so with Builder::through_pooler, or \
             pgbouncer=true in the URL",
        ),
        (&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME, _) => judged(
            Configuration,
            Cure::None,
            "the table of records is not there; run PostgresStore::migrate, or the SQL that Builder::migrations gives",
        ),
        (&SqlState::INSUFFICIENT_PRIVILEGE, _) => judged(
            Configuration,
            Cure::None,
            "the user lacks rights; grant SELECT, INSERT, UPDATE and DELETE on the table, EXECUTE on the function beside it, \
             and USAGE on their schema",
        ),
        (&SqlState::IN_FAILED_SQL_TRANSACTION, _) => {
            judged(Contract, Cure::None, "an earlier statement of the transaction had failed; roll it back")
        }
        (_, "28" | "3D") => judged(Configuration, Cure::None, "the server refuses the user, password or database"),
        (_, "08" | "57") => judged(Unavailable, Cure::Fresh, "the server ended the connection, or is starting"),
        (_, "53" | "55" | "58") => judged(Unavailable, Cure::None, "the server lacks room, memory or connections"),
        (_, "XX") => judged(Corrupt, Cure::None, "the server found the table or an index damaged"),
        (_, "42") => judged(
            Configuration,
            Cure::None,
            "the table of records is not as this store made it; leave its schema as it is",
        ),
        (_, "22" | "23") => {
            judged(Corrupt, Cure::None, "the table refused a record; look for triggers and constraints")
        }
        _ => judged(Unavailable, Cure::None, "the server failed"),
    }
}

/// Whether the two sides can't agree on TLS, which trying again does not cure. A connection that is cut amid the handshake
/// is not meant.
fn is_of_tls(error: &Error) -> bool {
    let is_cut = |io: &std::io::Error| io.kind() != std::io::ErrorKind::InvalidData;
    error.to_string().starts_with("error performing TLS handshake")
        && !error.source().and_then(|source| source.downcast_ref()).is_some_and(is_cut)
}

/// Whether a value of a row, and not the connection, is what failed.
fn is_decoding(error: &Error) -> bool {
    let shown = error.to_string();
    shown.starts_with("error deserializing") || shown.starts_with("error retrieving column")
}

#[cfg(test)]
mod tests;
