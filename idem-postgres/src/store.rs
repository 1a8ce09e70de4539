//! The store itself.

use std::{fmt, num::NonZeroUsize, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Key, Lapsed, MAX_CHECKPOINT_BYTES, Owner, Record,
    Resolve, Response, Retention, Scope, Snapshot, State, Store, StoreError, StoreErrorKind, Timestamp, TokenReused,
    async_trait,
    machine::{self, Decision},
};
use tokio::{
    sync::OnceCell,
    time::{Instant, timeout},
};
use tokio_postgres::{Row, types::ToSql};

use crate::{
    Builder, OpenError, check,
    clock::Clock,
    connections::{Connections, too_slow},
    error::{BACKEND, store_error},
    listen::{Dial, Listener},
    pauses::{Pauses, changing},
    queue::{Given, Queue},
    records::{self, OwnerColumns, millis},
    schema::{self, Names},
    sql::{Statement, Statements},
    wait::{self, Waiters},
};

/// Keeps records in a table of a PostgreSQL database.
///
/// A handle: clones share its connections. Any number of handles on one table, in any number of processes, are safe
/// together; a clone is cheaper.
///
/// Its operations need a Tokio runtime with I/O and time enabled, and panic outside one. Connections belong to the
/// runtime that they were made in; a store that is used in another one makes its own there.
#[derive(Clone)]
pub struct PostgresStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) connections: Connections,
    pub(crate) statements: Arc<Statements>,
    pub(crate) names: Names,
    pub(crate) clock: Clock,
    pub(crate) rival_wait: Duration,
    pub(crate) waiters: Arc<Waiters>,
    migrates: bool,
    migrated: OnceCell<()>,
    queue: Queue,
    pub(crate) listener: Listener,
}

/// What a store is set up with.
pub(crate) struct Parts {
    pub(crate) connections: Connections,
    pub(crate) dial: Option<Dial>,
    pub(crate) names: Names,
    pub(crate) clock: Clock,
    pub(crate) rival_wait: Duration,
    pub(crate) migrates: bool,
}

impl PostgresStore {
    /// Connects to the database that a URL names, makes the table `public.idem_records` if it is not there, and
    /// checks that the store can keep its promise there.
    ///
    /// The URL is `postgres://USER:PASSWORD@HOST:PORT/DATABASE?NAME=VALUE&…` with the parameters of libpq that
    /// tokio-postgres knows, `sslmode` (`disable`, `prefer`, `require`, `verify-ca`, `verify-full`), `sslrootcert`, and
    /// `pgbouncer=true` for [`Builder::through_pooler`].
    ///
    /// # Errors
    ///
    /// [`OpenError`] says what is wrong with the URL, the server or the table.
    pub async fn connect(url: &str) -> Result<Self, OpenError> {
        Self::builder(url).connect().await
    }

    /// Sets a store up in another way than [`PostgresStore::connect`].
    pub fn builder(url: &str) -> Builder {
        Builder::of_url(url)
    }

    /// Sets a store up whose connections are made as a pool's are: with its configuration, TLS and connector.
    ///
    /// They are not the pool's own. The store makes them through the pool's manager, at most as many as the pool may
    /// have ([`Builder::max_connections`]) and one for claims, and shares them with nobody: a connection that was given
    /// back to the pool inside a transaction can't swallow a claim, whatever the pool's recycling method, and handlers
    /// that take all of the pool's connections stop no claim. The pool's hooks and statement caches are not used.
    pub fn from_pool(pool: Pool) -> Builder {
        Builder::of_pool(pool)
    }

    /// Makes the table, or brings it to this version's schema. Any number of servers may do so at once.
    ///
    /// # Errors
    ///
    /// Of kind configuration if a newer version of idem was here, or the user lacks rights; of kind unavailable if the
    /// server can't be reached.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let Inner { connections, names, .. } = &*self.inner;
        let deadline = connections.deadline();
        let mut client = connections.fresh("migrate", deadline).await?;
        match tokio::time::timeout_at(deadline, schema::migrate(&mut client, names, "migrate")).await {
            Ok(done) => done,
            Err(_) => Err(not_migrated()),
        }
    }

    pub(crate) fn of(parts: Parts) -> Self {
        let Parts { connections, dial, names, clock, rival_wait, migrates } = parts;
        let statements = Arc::new(Statements::new(&names, connections.timeout));
        let waiters = Waiters::new();
        let queue = Queue::new(connections.clone(), Arc::clone(&statements), clock.clone());
        let listener = Listener::new(dial, names.channel(), connections.clone(), Arc::clone(&waiters));
        let inner = Inner {
            connections,
            statements,
            names,
            clock,
            rival_wait,
            waiters,
            migrates,
            migrated: OnceCell::new(),
            queue,
            listener,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Makes sure of the table before the first operation.
    pub(crate) async fn ready(&self) -> Result<(), StoreError> {
        let Inner { connections, migrates, migrated, .. } = &*self.inner;
        if !migrates || migrated.initialized() {
            return Ok(());
        }
        // One migrates at a time, and who waits for it must not try for as long as each of those before it.
        match tokio::time::timeout_at(connections.deadline(), migrated.get_or_try_init(|| self.migrate())).await {
            Ok(done) => done.copied(),
            Err(_) => Err(not_migrated()),
        }
    }

    pub(crate) fn now(&self) -> Option<i64> {
        self.inner.clock.set_to().map(Timestamp::as_millis)
    }

    /// Bounds an operation that takes several statements, each of which has the time limit for itself; with a little more,
    /// so that a statement's own error comes first.
    async fn within<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = self.inner.connections.timeout;
        match timeout(limit + limit / 8, work).await {
            Ok(done) => done,
            Err(_) => Err(too_slow(operation, "its statements took", limit)),
        }
    }

    pub(crate) async fn rows(
        &self,
        operation: &'static str,
        statement: &Statement,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        self.ready().await?;
        self.inner.connections.rows(operation, statement, values).await
    }

    /// The record as it is, and whether no transaction of a caller's is finishing it.
    async fn look(&self, operation: &'static str, scope: &Scope, key: &Key) -> Result<Look, StoreError> {
        let now = self.now();
        let rows = self.rows(operation, &self.inner.statements.look, &[&scope.as_str(), &key.as_str(), &now]).await?;
        match rows.first() {
            None => Ok(Look { is_free: true, found: None }),
            Some(row) => Ok(Look {
                is_free: records::column(row, 0, operation)?,
                found: Some((records::record(row, operation)?, records::seen_at(row, operation)?)),
            }),
        }
    }

    /// Writes `next` over the record that was `seen`. False if that has changed, or is locked.
    async fn swap(
        &self,
        operation: &'static str,
        (scope, key): (&Scope, &Key),
        seen: (&Record, Timestamp),
        next: &Record,
    ) -> Result<bool, StoreError> {
        let swap = records::Swap::of(scope, key, seen, next, self.now());
        let rows = self.rows(operation, &self.inner.statements.swap, &swap.values()).await?;
        if !rows.is_empty() {
            self.inner.waiters.wake(wait::bell(scope, key));
        }
        Ok(!rows.is_empty())
    }

    /// Runs a write of the owner's; where it wrote nothing, the machine says why, from the record as it is.
    async fn write<A>(
        &self,
        write: Write<'_>,
        values: &[&(dyn ToSql + Sync)],
        decide: impl Fn(Option<&Record>, &Owner, Timestamp) -> Decision<Fenced<A>>,
        written: impl FnOnce() -> A,
    ) -> Result<Fenced<A>, StoreError> {
        let Write { operation, statement, owner, skips_locked } = write;
        let mut pauses = Pauses::until(self.inner.connections.deadline());
        let written = async {
            loop {
                if !self.rows(operation, statement, values).await?.is_empty() {
                    return Ok(Fenced::Written(written()));
                }
                let Look { is_free, found } = self.look(operation, owner.scope(), owner.key()).await?;
                let now = found.as_ref().map_or(Timestamp::MIN, |(_, now)| *now);
                let decision = decide(found.as_ref().map(|(record, _)| record), owner, now);
                if decision.write.is_none() {
                    return Ok(decision.answer);
                }
                // It is the owner's, and its own transaction is finishing it.
                if skips_locked && !is_free {
                    return Ok(decision.answer);
                }
                if !pauses.pause().await {
                    return Err(changing(operation));
                }
            }
        };
        self.within(operation, written).await
    }

    async fn ask(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        const OPERATION: &str = "claim";
        self.ready().await?;
        let place = (claim.scope(), claim.key());
        let mut changes = Pauses::until(self.inner.connections.deadline());
        let mut rivals = Pauses::until(Instant::now() + self.inner.rival_wait);
        loop {
            let row = match self.inner.queue.ask(claim).await? {
                Given::Row(row) => row,
                Given::Unseen if rivals.pause().await => continue,
                // It must not hold up the claims behind it again.
                Given::Unseen | Given::Locked => return Ok(ClaimRow::Busy { seen: None }),
            };
            let (record, now) = match records::given(&row, OPERATION)? {
                (None, now) => return Ok(ClaimRow::Written(records::first(claim, now, OPERATION)?)),
                (Some(record), now) => (record, now),
            };
            let decision =
                machine::claim(Some(&record), claim, now).map_err(|TokenReused| StoreError::token_reused(BACKEND))?;
            let Some(next) = decision.write else {
                return Ok(ClaimRow::Found { record, now: Some(now) });
            };
            if self.swap(OPERATION, place, (&record, now), &next).await? {
                return Ok(ClaimRow::Written(next));
            }
            if !self.look(OPERATION, claim.scope(), claim.key()).await?.is_free {
                if rivals.pause().await {
                    continue;
                }
                // One that is over is nobody to wait for.
                let seen = (record.state == State::InProgress && record.is_live(now)).then(|| record.attempt());
                return Ok(ClaimRow::Busy { seen });
            }
            if !changes.pause().await {
                return Err(changing(OPERATION));
            }
        }
    }
}

fn not_migrated() -> StoreError {
    let message = "the schema could not be brought to this version within Builder::timeout";
    store_error(StoreErrorKind::Unavailable, "migrate", message)
}

/// A record as it was found, and when.
pub(crate) struct Look {
    is_free: bool,
    found: Option<(Record, Timestamp)>,
}

/// A write of an owner's.
struct Write<'a> {
    operation: &'static str,
    statement: &'a Statement,
    owner: &'a Owner,
    /// Whether it leaves a row alone that is locked.
    skips_locked: bool,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { names, connections, .. } = &*self.inner;
        f.debug_struct("PostgresStore").field("names", names).field("connections", connections).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        self.within("claim", self.ask(claim)).await
    }

    async fn complete(
        &self,
        owner: &Owner,
        response: &Response,
        retention: Retention,
    ) -> Result<Fenced<Response>, StoreError> {
        let statement = &self.inner.statements.complete;
        let write = Write { operation: "complete", statement, owner, skips_locked: false };
        let now = self.now();
        let (bytes, kept) = (response.encode(), millis(retention.standard()));
        let own = OwnerColumns::of(owner);
        let values = own.and(&[&bytes, &kept, &now]);
        let decide =
            |found: Option<&Record>, owner: &Owner, now| machine::complete(found, owner, response, retention, now);
        let answer = self.write(write, &values, decide, || response.clone()).await?;
        self.inner.waiters.wake(wait::bell(owner.scope(), owner.key()));
        Ok(answer)
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.end("release", &self.inner.statements.release, owner, machine::release).await
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.end("forget", &self.inner.statements.forget, owner, machine::forget).await
    }

    async fn hold(&self, owner: &Owner, retention: Retention) -> Result<Fenced<()>, StoreError> {
        let write = Write { operation: "hold", statement: &self.inner.statements.hold, owner, skips_locked: false };
        let (now, kept) = (self.now(), millis(retention.held()));
        let own = OwnerColumns::of(owner);
        let values = own.and(&[&now, &kept]);
        let decide = |found: Option<&Record>, owner: &Owner, now| machine::hold(found, owner, retention, now);
        let answer = self.write(write, &values, decide, || ()).await?;
        self.inner.waiters.wake(wait::bell(owner.scope(), owner.key()));
        Ok(answer)
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        let write = Write { operation: "renew", statement: &self.inner.statements.renew, owner, skips_locked: true };
        let (now, length) = (self.now(), millis(lease));
        let own = OwnerColumns::of(owner);
        let values = own.and(&[&length, &now]);
        let decide = |found: Option<&Record>, owner: &Owner, now| machine::renew(found, owner, lease, now);
        self.write(write, &values, decide, || ()).await
    }

    async fn checkpoint(&self, owner: &Owner, checkpoint: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        let statement = &self.inner.statements.checkpoint;
        let write = Write { operation: "checkpoint", statement, owner, skips_locked: false };
        let now = self.now();
        let limit = i64::try_from(MAX_CHECKPOINT_BYTES).unwrap_or(i64::MAX);
        let own = OwnerColumns::of(owner);
        let (name, value) = (checkpoint.name(), &checkpoint.value()[..]);
        let values = own.and(&[&name, &value, &limit, &now]);
        let decide = |found: Option<&Record>, owner: &Owner, now| machine::checkpoint(found, owner, checkpoint, now);
        self.write(write, &values, decide, || Checkpointed::Kept(checkpoint.value().clone())).await
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        const OPERATION: &str = "resolve";
        let place = (resolve.scope(), resolve.key());
        let mut pauses = Pauses::until(self.inner.connections.deadline());
        let resolved = async {
            loop {
                let Some((record, now)) = self.look(OPERATION, resolve.scope(), resolve.key()).await?.found else {
                    return Ok(Fenced::Superseded);
                };
                let Some(next) = machine::resolve(Some(&record), resolve, now).write else {
                    return Ok(Fenced::Superseded);
                };
                if self.swap(OPERATION, place, (&record, now), &next).await? {
                    return Ok(Fenced::Written(next));
                }
                if !pauses.pause().await {
                    return Err(changing(OPERATION));
                }
            }
        };
        self.within(OPERATION, resolved).await
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        self.within("read", self.snapshot("read", scope, key)).await
    }

    async fn wait(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
    ) -> Result<Option<Snapshot>, StoreError> {
        let help = Waiting { store: self, scope, key, seen };
        self.inner.waiters.wait(wait::bell(scope, key), seen, at_most, &help).await
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.sweep_in_batches(limit.get()).await
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        self.lapsed_by_pages(after, limit.get()).await
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.purge_in_batches(scope, limit.get()).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.ready().await?;
        check::run(&self.inner).await
    }
}

impl PostgresStore {
    /// Ends an attempt without a response.
    async fn end(
        &self,
        operation: &'static str,
        statement: &Statement,
        owner: &Owner,
        decide: impl Fn(Option<&Record>, &Owner, Timestamp) -> Decision<Fenced<()>>,
    ) -> Result<Fenced<()>, StoreError> {
        let write = Write { operation, statement, owner, skips_locked: false };
        let now = self.now();
        let own = OwnerColumns::of(owner);
        let values = own.and(&[&now]);
        let answer = self.write(write, &values, decide, || ()).await?;
        self.inner.waiters.wake(wait::bell(owner.scope(), owner.key()));
        Ok(answer)
    }

    async fn snapshot(
        &self,
        operation: &'static str,
        scope: &Scope,
        key: &Key,
    ) -> Result<Option<Snapshot>, StoreError> {
        let now = self.now();
        let rows = self.rows(operation, &self.inner.statements.read, &[&scope.as_str(), &key.as_str(), &now]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (record, now) = (records::record(row, operation)?, records::seen_at(row, operation)?);
        Ok(record.is_live(now).then_some(Snapshot { record, now }))
    }
}

/// What a wait needs of the store.
struct Waiting<'a> {
    store: &'a PostgresStore,
    scope: &'a Scope,
    key: &'a Key,
    seen: AttemptId,
}

impl wait::Help for Waiting<'_> {
    async fn read(&self) -> Result<Option<Snapshot>, StoreError> {
        self.store.snapshot("wait", self.scope, self.key).await
    }

    async fn listen(&self) -> bool {
        let Self { store, scope, key, seen } = self;
        if !store.inner.listener.hears() {
            return false;
        }
        let attempt = OwnerColumns::seen(scope, key, *seen);
        // Where it fails the wait looks for itself.
        match store.rows("wait", &store.inner.statements.wait, &attempt.and(&[])).await {
            Ok(rows) => rows.first().is_some_and(|row| records::column(row, 0, "wait").unwrap_or(false)),
            Err(_) => false,
        }
    }
}
