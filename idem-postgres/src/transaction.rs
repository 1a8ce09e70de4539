//! Claiming and completing in a transaction of the caller's.

use futures_util::future::BoxFuture;
use idem_core::{
    Answer, Claim, ClaimRow, CommitError, Completion, Fenced, Owner, Response, Snapshot, State, Store, StoreError,
    StoreErrorKind, TokenReused, Transaction, machine,
};
use tokio::time::{Instant, timeout};
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use crate::{
    PostgresStore,
    connections::{Values, too_slow, typed},
    error::{BACKEND, described, judge, postgres_error, store_error},
    pauses::{Pauses, changing},
    records::{self, ClaimColumns, OwnerColumns, Swap, column, millis},
    sql::Statement,
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
    /// If the answer is [`Fenced::Superseded`], roll back: another attempt owns the key, or this one completed in an
    /// earlier transaction, whose rows are there, and the reply to whose COMMIT was lost perhaps. The record tells which.
    ///
    /// Until the transaction ends, a claim of the key is a Conflict and renewals of the attempt leave it alone; claims of
    /// other keys go on. Nothing else of the transaction should follow, so that this is short. So that a host that dies
    /// does not keep the key, the transaction may lie idle for five minutes, unless the session has a limit
    /// (`idle_in_transaction_session_timeout`) of its own.
    ///
    /// Above READ COMMITTED begin the transaction with [`lock_in`](PostgresStore::lock_in).
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
            Completed::Now { response, .. } => Fenced::Written(response),
            // What this transaction did, that one did.
            Completed::Before(_) if self.is_committed(completion.owner()).await? => Fenced::Superseded,
            Completed::Before(response) => Fenced::Written(response),
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
        let is_within_savepoint = column(written, 2, COMPLETE)?;
        Ok(Completed::Now { response: response.clone(), is_within_savepoint })
    }

    async fn commit(
        &self,
        transaction: CallersTransaction<'_>,
        completion: &Completion,
    ) -> Result<Response, CommitError> {
        // On an error the transaction is dropped, which rolls it back.
        let response = match self.completed_in(transaction.inner(), completion).await? {
            Completed::Now { is_within_savepoint: true, .. } => return Err(CommitError::Store(within_savepoint())),
            Completed::Now { response, .. } => response,
            // An earlier transaction was committed, and the reply to that lost. What this one did, that one did.
            Completed::Before(response) if self.is_committed(completion.owner()).await? => {
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
        self.inner.waiters.wake(wait::bell(owner.scope(), owner.key()));
        Ok(response)
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
    /// [`Fenced::Superseded`] says, before any work was done, that another attempt owns the key or that this one has ended:
    /// roll back, and read the record.
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
        if !rows(transaction, LOCK, &self.inner.statements.lock_in, &values).await?.is_empty() {
            return Ok(Fenced::Written(()));
        }
        let values: [&(dyn ToSql + Sync); 3] = [&owner.scope().as_str(), &owner.key().as_str(), &now];
        if let Some(row) = rows(transaction, LOCK, &self.inner.statements.read, &values).await?.first() {
            records::record(row, LOCK)?; // of a newer format, it would be no answer
        }
        Ok(Fenced::Superseded)
    }

    /// Claims in a transaction of the caller's, for operations whose effects are all in this database: claim, business
    /// rows and completion ([`complete_in`](PostgresStore::complete_in)) are committed together, and nobody ever sees
    /// the attempt in progress. A crash or a rollback leaves nothing, so no lease has to lapse.
    ///
    /// Let it be the first statement, and roll back unless the answer is Claimed or TakenOver: until the transaction ends,
    /// the key is locked whatever the answer is (idle for five minutes at most, as with `complete_in`). A rival for the key, in a
    /// transaction or not, waits up to [`Builder::rival_wait`](crate::Builder::rival_wait) for this one to end, and
    /// then gets the replay, or a Conflict; claims of other keys are not held up. Above READ COMMITTED a claim that had
    /// to wait ends in a serialization failure: do the transaction again.
    ///
    /// `Idempotency::prepare` of idem-runner makes the claim of a request.
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

    /// The caller's transaction in the form in which a record can be completed and committed with it in one step:
    /// [`Transaction::commit_with`](idem_core::Transaction::commit_with). What `attempt.commit` takes.
    ///
    /// It must be the outermost transaction: the commit of a savepoint commits nothing, and is refused with a store error
    /// of kind contract.
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
    Now {
        response: Response,
        is_within_savepoint: bool,
    },
    /// The same attempt had completed with this response: earlier in the transaction, or in another.
    Before(Response),
    Superseded,
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
    /// It ends within [`Builder::timeout`](crate::Builder::timeout), with an error of kind unavailable if it took longer.
    ///
    /// # Cancellation safety
    ///
    /// A future that is dropped rolls back, unless the commit was already on its way: then the record tells.
    type Committed = BoxFuture<'c, Result<Response, CommitError>>;

    fn commit_with(self, completion: Completion) -> Self::Committed {
        let Self { store, transaction } = self;
        Box::pin(async move {
            let limit = store.inner.connections.timeout;
            match timeout(limit, store.commit(transaction, &completion)).await {
                Ok(committed) => committed,
                Err(_) => Err(too_slow(
                    COMPLETE,
                    "the transaction may have been committed, which the record tells; it took",
                    limit,
                )
                .into()),
            }
        })
    }
}

fn within_savepoint() -> StoreError {
    let message = "the transaction is within a savepoint of another, so that its commit would commit nothing; complete in \
        the outermost transaction, or in the savepoint with complete_in";
    store_error(StoreErrorKind::Contract, COMPLETE, message)
}

/// A commit that failed: the server's word says that nothing was committed, and without one the record tells.
fn not_committed(error: tokio_postgres::Error) -> StoreError {
    // Classes 08 and 57 are about the connection, and said by a pooler that has lost its own, too.
    let is_servers = error.code().is_some_and(|code| !["08", "57"].contains(&&code.code()[..2]));
    if is_servers {
        let kind = judge(&error).kind;
        let message = format!("the commit failed, and nothing was committed (PostgreSQL: {})", described(&error));
        return store_error(kind, COMPLETE, message).with_source(error);
    }
    let message =
        format!("the reply to the commit was lost ({}); read the record to see what became of it", described(&error));
    store_error(StoreErrorKind::Unavailable, COMPLETE, message).with_source(error)
}
