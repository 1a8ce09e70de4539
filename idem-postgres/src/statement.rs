//! What to run in transactions of other drivers.

use idem_core::{Completion, Owner};

use crate::{PostgresStore, records::millis};

impl PostgresStore {
    /// The completion as a statement, for transactions of other drivers (sqlx, diesel): run it in the caller's
    /// transaction, as the last thing before the commit.
    ///
    /// If it changes exactly one row the attempt still owned its key: commit, and send the response. If it changes none, another
    /// attempt owns it or this one has ended, in a transaction before this one perhaps: roll back, and read the record. The transaction must be durable (`synchronous_commit` not off); above READ
    /// COMMITTED its first statement should be the one of [`lock_statement`](PostgresStore::lock_statement).
    pub fn completion_statement(&self, completion: &Completion) -> OwnerStatement {
        let owner = completion.owner();
        let mut parameters = owner_parameters(owner);
        parameters.push(Parameter::Bytes(completion.response().encode()));
        parameters.push(Parameter::BigInt(Some(millis(completion.retention().standard()))));
        parameters.push(Parameter::BigInt(self.now()));
        OwnerStatement { sql: self.inner.statements.complete_in.text.clone(), parameters, rows: 1 }
    }

    /// What [`lock_in`](PostgresStore::lock_in) runs, for transactions of other drivers. It returns one row while the
    /// attempt owns its key, else none: roll back, and read the record.
    pub fn lock_statement(&self, owner: &Owner) -> OwnerStatement {
        let mut parameters = owner_parameters(owner);
        parameters.push(Parameter::BigInt(self.now()));
        OwnerStatement { sql: self.inner.statements.lock_in.text.clone(), parameters, rows: 1 }
    }
}

/// A statement of an attempt's, for a driver of the caller's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerStatement {
    /// The SQL, with parameters `$1`, `$2` and so on.
    pub sql: String,
    /// The values of the parameters, in their order.
    pub parameters: Vec<Parameter>,
    /// How many rows it changes or returns while the attempt owns its key.
    pub rows: u64,
}

/// The value of a parameter, of the type that the statement expects.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parameter {
    /// `text`
    Text(String),
    /// `bytea`
    Bytes(Vec<u8>),
    /// `bigint`, or null.
    BigInt(Option<i64>),
}

impl std::fmt::Debug for Parameter {
    /// Without the bytes, which are tokens and responses.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => f.debug_tuple("Text").field(&text.len()).finish(),
            Self::Bytes(bytes) => f.debug_tuple("Bytes").field(&bytes.len()).finish(),
            Self::BigInt(number) => f.debug_tuple("BigInt").field(number).finish(),
        }
    }
}

fn owner_parameters(owner: &Owner) -> Vec<Parameter> {
    let attempt = owner.attempt();
    vec![
        Parameter::Text(owner.scope().as_str().into()),
        Parameter::Text(owner.key().as_str().into()),
        Parameter::Bytes(attempt.token.as_bytes().to_vec()),
        Parameter::BigInt(Some(attempt.number.into())),
    ]
}
