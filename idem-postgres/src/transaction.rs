//! Claiming and completing in a transaction of the caller's.

use futures_util::future::BoxFuture;
use idem_core::{
    Answer, Claim, ClaimRow, CommitError, Completion, Fenced, Owner, Response, Snapshot, State, Store, StoreError,
    StoreErrorKind, TokenReused, Transaction, machine,
};
use tokio::time::Instant;
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use crate::{
    PostgresStore,
    connections::{Values, typed},
    error::{BACKEND, described, judge, postgres_error, store_error},
    records::{self, ClaimColumns, OwnerColumns, Swap, column, millis},
    sql::Statement,
    store::{Pauses, changing},
    wait,
};

/// The operation that errors name.
const COMPLETE: &str = "complete_in";
const CLAIM: &str = "claim_in";
const LOCK: &str = "lock_in";

impl PostgresStore {
    /// Completes the record in a transaction of the caller's, which must be on the store's database. The completion is
    /// there once that is committed, and not if it is rolled back. For `tokio_postgres` and `deadpool_postgres`.
    ///
    /// If the answer is [`Fenced::Superseded`] another attempt owns the key: roll back. Until the transaction ends, a
    /// claim of the key is a Conflict and renewals of the attempt leave it alone; claims of other keys go on. Nothing
    /// else of the transaction should follow, so that this is short.
    ///
    /// Above READ COMMITTED begin the transaction with [`lock_in`](PostgresStore::lock_in).
    ///
    /// An attempt that had completed before, in another transaction, is answered with the recorded response, as
    /// everywhere. So do not do a transaction again whose COMMIT was not answered, without reading the record first;
    /// [`in_transaction`](PostgresStore::in_transaction) does that.
    ///
    /// # Errors
    ///
    /// The transaction has failed and must be rolled back:
    ///
    /// - of kind unavailable if the server could not do it, or other transactions came in between (a serialization
    ///   failure, above READ COMMITTED): do the transaction again;
    /// - of kind configuration if the session's `synchronous_commit` is off, so that a crash could undo what the client
    ///   was told, if the table is not in this database, or if a newer version of idem wrote the record;
    /// - of kind corrupt if the record can't be read.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future leaves the completion made or not within the transaction: roll it back.
    pub async fn complete_in(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        completion: &Completion,
    ) -> Result<Fenced<Response>, StoreError> {
        Ok(match self.completed_in(transaction, completion).await? {
            Completed::Now(response) | Completed::Before(response) => Fenced::Written(response),
            Completed::Superseded => Fenced::Superseded,
        })
    }

    async fn completed_in(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        completion: &Completion,
    ) -> Result<Completed, StoreError> {
        let (owner, response) = (completion.owner(), completion.response());
        let now = self.now();
        let (bytes, kept) = (response.encode(), millis(completion.retention().standard()));
        let own = OwnerColumns::of(owner);
        let values = own.and(&[&bytes, &kept, &now]);
        let written = rows(transaction, COMPLETE, &self.inner.statements.complete_in, &values).await?;
        let Some(written) = written.first() else {
            let values: [&(dyn ToSql + Sync); 3] = [&owner.scope().as_str(), &owner.key().as_str(), &now];
            let found = rows(transaction, COMPLETE, &self.inner.statements.read, &values).await?;
            let Some(row) = found.first() else { return Ok(Completed::Superseded) };
            let (found, at) = (records::record(row, COMPLETE)?, records::seen_at(row, COMPLETE)?);
            let decision = machine::complete(Some(&found), owner, response, completion.retention(), at);
            return match (decision.write, decision.answer) {
                (Some(_), _) => Err(changing(COMPLETE)),
                (None, Fenced::Written(recorded)) => Ok(Completed::Before(recorded)),
                (None, Fenced::Superseded) => Ok(Completed::Superseded),
            };
        };
        if column(written, 1, COMPLETE)? {
            let message = "the session's synchronous_commit is off, so that a crash of the server could undo a commit that \
                the client was told about; SET LOCAL synchronous_commit = on in the transaction";
            return Err(store_error(StoreErrorKind::Configuration, COMPLETE, message));
        }
        Ok(Completed::Now(response.clone()))
    }

    /// Whether the attempt's completion is there for others than the transaction that made it.
    async fn is_committed(&self, owner: &Owner) -> Result<bool, StoreError> {
        let found = self.read(owner.scope(), owner.key()).await?;
        Ok(found.is_some_and(|Snapshot { record, .. }| {
            record.attempt() == owner.attempt() && matches!(record.state, State::Done(_))
        }))
    }

    /// Takes the attempt's record for a transaction of the caller's: as its first statement, where it runs above READ
    /// COMMITTED and completes the record in the end. A renewal that came later would make the completion fail there.
    ///
    /// [`Fenced::Superseded`] says that another attempt owns the key, before any work was done.
    ///
    /// # Errors
    ///
    /// As of [`complete_in`](PostgresStore::complete_in).
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future leaves the record taken or not, until the transaction ends.
    pub async fn lock_in(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        owner: &Owner,
    ) -> Result<Fenced<()>, StoreError> {
        let (own, now) = (OwnerColumns::of(owner), self.now());
        let values = own.and(&[&now]);
        let found = rows(transaction, LOCK, &self.inner.statements.lock_in, &values).await?;
        Ok(if found.is_empty() { Fenced::Superseded } else { Fenced::Written(()) })
    }

    /// Claims in a transaction of the caller's, for operations whose effects are all in this database: claim, business
    /// rows and completion ([`complete_in`](PostgresStore::complete_in)) are committed together, and nobody ever sees
    /// the attempt in progress. A crash or a rollback leaves nothing, so no lease has to lapse.
    ///
    /// Let it be the first statement, and roll back unless the answer is Claimed or TakenOver. A rival for the key, in a
    /// transaction or not, waits up to [`Builder::rival_wait`](crate::Builder::rival_wait) for this one to end, and
    /// then gets the replay, or a Conflict; claims of other keys are not held up. Above READ COMMITTED a claim that had
    /// to wait ends in a serialization failure: do the transaction again.
    ///
    /// A transaction that is committed without a completion leaves the record in progress, as any claim does.
    ///
    /// # Errors
    ///
    /// As of [`complete_in`](PostgresStore::complete_in), and of kind contract if the token was used for two operations.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future leaves the claim made or not within the transaction: roll it back.
    pub async fn claim_in(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        claim: &Claim,
    ) -> Result<Answer, StoreError> {
        self.ready().await?;
        idem_core::answer(self, claim, self.claim_row_in(transaction, claim).await?).await
    }

    async fn claim_row_in(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        claim: &Claim,
    ) -> Result<ClaimRow, StoreError> {
        let statements = &self.inner.statements;
        let ClaimColumns { scope, key, token, fingerprint, on_lapse, lease, kept } = ClaimColumns::of(claim);
        let mut pauses = Pauses::until(Instant::now() + self.inner.rival_wait);
        // Asked for, and not waited for by the server, so that a limit does not make the transaction fail.
        loop {
            let locked = rows(transaction, CLAIM, &statements.lock, &[&scope, &key]).await?;
            match locked.first().map(|row| column(row, 0, CLAIM)).transpose()? {
                Some(true) => break,
                _ if pauses.pause().await => {}
                _ => return Ok(ClaimRow::Busy { seen: None }),
            }
        }
        loop {
            let now = self.now();
            let values: [&(dyn ToSql + Sync); 8] =
                [&scope, &key, &&token[..], &fingerprint, &on_lapse, &lease, &kept, &now];
            let given = rows(transaction, CLAIM, &statements.claim_in, &values).await?;
            // A row that can't be seen yet was inserted before the lock was taken.
            if let Some(row) = given.first() {
                let (record, now) = match records::given(row, CLAIM)? {
                    (None, now) => return Ok(ClaimRow::Written(records::first(claim, now, CLAIM)?)),
                    (Some(record), now) => (record, now),
                };
                let decision = machine::claim(Some(&record), claim, now)
                    .map_err(|TokenReused| StoreError::token_reused(BACKEND))?;
                let Some(next) = decision.write else {
                    return Ok(ClaimRow::Found { record, now: Some(now) });
                };
                let swap = Swap::of(claim.scope(), claim.key(), (&record, now), &next, self.now());
                if !rows(transaction, CLAIM, &statements.swap_in, &swap.values()).await?.is_empty() {
                    return Ok(ClaimRow::Written(next));
                }
            }
            if !pauses.pause().await {
                return Ok(ClaimRow::Busy { seen: None });
            }
        }
    }

    /// The completion as a statement, for transactions of other drivers (sqlx, diesel): run it in the caller's
    /// transaction, as the last thing before the commit.
    ///
    /// If it changes exactly one row the attempt still owned its key: commit, and send the response. If it changes none,
    /// another attempt does: roll back. The transaction must be durable (`synchronous_commit` not off); above READ
    /// COMMITTED its first statement should be the one of [`lock_statement`](PostgresStore::lock_statement).
    pub fn completion_statement(&self, completion: &Completion) -> CompletionStatement {
        let owner = completion.owner();
        let mut parameters = owner_parameters(owner);
        parameters.push(Parameter::Bytes(completion.response().encode()));
        parameters.push(Parameter::BigInt(Some(millis(completion.retention().standard()))));
        parameters.push(Parameter::BigInt(self.now()));
        CompletionStatement { sql: self.inner.statements.complete_in.text.clone(), parameters, rows: 1 }
    }

    /// What [`lock_in`](PostgresStore::lock_in) runs, for transactions of other drivers. It returns one row while the
    /// attempt owns its key, else none: roll back.
    pub fn lock_statement(&self, owner: &Owner) -> CompletionStatement {
        let mut parameters = owner_parameters(owner);
        parameters.push(Parameter::BigInt(self.now()));
        CompletionStatement { sql: self.inner.statements.lock_in.text.clone(), parameters, rows: 1 }
    }

    /// The caller's transaction in the form in which a record can be completed and committed with it in one step:
    /// [`Transaction::commit_with`](idem_core::Transaction::commit_with). What `attempt.commit` takes.
    ///
    /// It must be the outermost transaction: the commit of a savepoint commits nothing.
    ///
    /// A transaction that is done again because the reply to the first COMMIT was lost is rolled back if the first was
    /// committed after all, and answered with the recorded response.
    pub fn in_transaction<'c>(&self, transaction: impl Into<CallersTransaction<'c>>) -> PostgresTransaction<'c> {
        PostgresTransaction { store: self.clone(), transaction: transaction.into() }
    }
}

/// What came of a completion in a transaction.
enum Completed {
    /// It is part of the transaction.
    Now(Response),
    /// The same attempt had completed with this response: earlier in the transaction, or in another.
    Before(Response),
    Superseded,
}

/// A statement for a driver of the caller's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionStatement {
    /// The SQL, with parameters `$1`, `$2` and so on.
    pub sql: String,
    /// The values of the parameters, in their order.
    pub parameters: Vec<Parameter>,
    /// How many rows it changes or returns while the attempt owns its key.
    pub rows: u64,
}

/// The value of a parameter, of the type that the statement expects.
#[derive(Clone, PartialEq, Eq)]
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

/// Runs a statement without a name, which leaves nothing behind in the caller's session.
async fn rows(
    transaction: &tokio_postgres::Transaction<'_>,
    operation: &'static str,
    statement: &Statement,
    values: &Values<'_>,
) -> Result<Vec<Row>, StoreError> {
    let values: Vec<(&(dyn ToSql + Sync), Type)> = typed(statement, values);
    transaction.query_typed(&statement.text, &values).await.map_err(|error| postgres_error(operation, error))
}

/// A transaction of one of the drivers.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallersTransaction<'c> {
    /// Of tokio-postgres.
    Driver(DriversTransaction<'c>),
    /// Of deadpool-postgres.
    Pool(deadpool_postgres::Transaction<'c>),
}

/// A transaction of tokio-postgres.
pub struct DriversTransaction<'c>(tokio_postgres::Transaction<'c>);

impl std::fmt::Debug for DriversTransaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriversTransaction").finish_non_exhaustive()
    }
}

impl<'c> From<tokio_postgres::Transaction<'c>> for CallersTransaction<'c> {
    fn from(transaction: tokio_postgres::Transaction<'c>) -> Self {
        Self::Driver(DriversTransaction(transaction))
    }
}

impl<'c> From<deadpool_postgres::Transaction<'c>> for CallersTransaction<'c> {
    fn from(transaction: deadpool_postgres::Transaction<'c>) -> Self {
        Self::Pool(transaction)
    }
}

impl<'c> CallersTransaction<'c> {
    fn inner(&self) -> &tokio_postgres::Transaction<'c> {
        match self {
            Self::Driver(DriversTransaction(transaction)) => transaction,
            Self::Pool(transaction) => transaction,
        }
    }

    async fn commit(self) -> Result<(), tokio_postgres::Error> {
        match self {
            Self::Driver(DriversTransaction(transaction)) => transaction.commit().await,
            Self::Pool(transaction) => transaction.commit().await,
        }
    }

    async fn rollback(self) -> Result<(), tokio_postgres::Error> {
        match self {
            Self::Driver(DriversTransaction(transaction)) => transaction.rollback().await,
            Self::Pool(transaction) => transaction.rollback().await,
        }
    }
}

/// A transaction of the caller's in which a record can be completed: see [`PostgresStore::in_transaction`].
///
/// Dropping it rolls back.
#[derive(Debug)]
pub struct PostgresTransaction<'c> {
    store: PostgresStore,
    transaction: CallersTransaction<'c>,
}

impl<'c> PostgresTransaction<'c> {
    /// The transaction, for further statements.
    pub fn inner(&self) -> &tokio_postgres::Transaction<'c> {
        self.transaction.inner()
    }
}

impl<'c> Transaction for PostgresTransaction<'c> {
    /// # Cancellation safety
    ///
    /// A future that is dropped rolls back, unless the commit was already on its way: then the record tells.
    type Committed = BoxFuture<'c, Result<Response, CommitError>>;

    fn commit_with(self, completion: Completion) -> Self::Committed {
        let Self { store, transaction } = self;
        Box::pin(async move {
            // On an error the transaction is dropped, which rolls it back.
            let response = match store.completed_in(transaction.inner(), &completion).await? {
                Completed::Now(response) => response,
                // An earlier transaction was committed, and the reply to that lost. What this one did, that one did.
                Completed::Before(response) if store.is_committed(completion.owner()).await? => {
                    let _ = transaction.rollback().await;
                    return Ok(response);
                }
                Completed::Before(response) => response,
                Completed::Superseded => {
                    // Whether it arrives or not, nothing of it is committed.
                    let _ = transaction.rollback().await;
                    return Err(CommitError::Superseded);
                }
            };
            transaction.commit().await.map_err(not_committed)?;
            let owner = completion.owner();
            store.inner.waiters.wake(wait::bell(owner.scope(), owner.key()));
            Ok(response)
        })
    }
}

/// A commit that failed: the server's word says that nothing was committed, and without one the record tells.
fn not_committed(error: tokio_postgres::Error) -> StoreError {
    if error.as_db_error().is_some() {
        let kind = judge(&error).kind;
        let message = format!("the commit failed, and nothing was committed (PostgreSQL: {})", described(&error));
        return store_error(kind, COMPLETE, message).with_source(error);
    }
    let message =
        format!("the reply to the commit was lost ({}); read the record to see what became of it", described(&error));
    store_error(StoreErrorKind::Unavailable, COMPLETE, message).with_source(error)
}
