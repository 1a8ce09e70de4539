//! The store's own connections.
//!
//! They are made as the caller's pool makes them, and never shared with it: a connection that other code left inside a
//! transaction, or with settings of its own, can't swallow a write of the store's.

use std::{fmt, num::NonZeroUsize, time::Duration};

use deadpool::managed::{self, Metrics, Object, PoolError, RecycleError, RecycleResult};
use deadpool_postgres::{ClientWrapper, Pool};
use idem_core::{StoreError, StoreErrorKind};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::{
    Client, Error, Row,
    types::{ToSql, Type},
};

use crate::{
    error::{Cure, described, judge, store_error},
    sql::Statement,
};

/// The values of a statement's parameters.
pub(crate) type Values<'a> = [&'a (dyn ToSql + Sync)];

/// How statements are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Prepared once for each connection.
    Prepared,
    /// Without a name, each time anew: through poolers that give each transaction another session.
    Unnamed,
}

/// Makes connections as the caller's pool does.
pub(crate) struct Source {
    pool: Pool,
    timeout: Duration,
    /// What is run on each.
    setup: Option<String>,
}

/// A connection of the store's own pool.
pub(crate) struct Pooled {
    client: ClientWrapper,
    asked: Asked,
}

/// When the oldest question was asked on a connection to which, or to a later one, no answer has come.
///
/// Callers leave, and with them the questions that they asked. If all of them leave early, none stays long enough to
/// learn that nothing comes back.
#[derive(Debug, Default)]
pub(crate) struct Asked(Option<Instant>);

impl Asked {
    pub(crate) fn asks(&mut self) {
        self.0.get_or_insert_with(Instant::now);
    }

    pub(crate) fn is_answered(&mut self) {
        self.0 = None;
    }

    /// Whether it has been silent for so long that it must be taken for dead.
    pub(crate) fn is_overdue(&self, timeout: Duration) -> bool {
        self.0.is_some_and(|asked| asked.elapsed() >= timeout / 4)
    }
}

impl managed::Manager for Source {
    type Type = Pooled;
    type Error = Error;

    async fn create(&self) -> Result<Pooled, Error> {
        match self.connect().await {
            // One that breaks while it is made is as little reason to give up as one that breaks later.
            Err(error) if judge(&error).cure == Cure::Fresh => self.connect().await,
            made => made,
        }
    }

    async fn recycle(&self, pooled: &mut Pooled, _: &Metrics) -> RecycleResult<Error> {
        match pooled.client.is_closed() || pooled.asked.is_overdue(self.timeout) {
            true => Err(RecycleError::message("the connection is closed, or does not answer")),
            false => Ok(()),
        }
    }
}

impl Source {
    async fn connect(&self) -> Result<Pooled, Error> {
        let mut client = managed::Manager::create(self.pool.manager()).await?;
        // The pool's manager need not know of a connection that never comes back to it.
        managed::Manager::detach(self.pool.manager(), &mut client);
        if let Some(setup) = &self.setup {
            client.batch_execute(setup).await?;
        }
        Ok(Pooled { client, asked: Asked::default() })
    }
}

/// Connections for everything but claims, which have one of their own.
#[derive(Clone)]
pub(crate) struct Connections {
    own: managed::Pool<Source>,
    pub(crate) mode: Mode,
    pub(crate) timeout: Duration,
}

impl Connections {
    pub(crate) fn new(pool: Pool, at_most: NonZeroUsize, mode: Mode, timeout: Duration) -> Result<Self, String> {
        // The server gives a statement up before its caller does: one that waits for a lock of the whole table would keep
        // its session long after that. Behind a pooler the session is not the store's.
        let patience = (timeout / 2).as_millis() * 19 / 20;
        let setup = (mode == Mode::Prepared).then(|| format!("SET statement_timeout = '{}ms'", patience.max(1)));
        let own = managed::Pool::builder(Source { pool, timeout, setup }).max_size(at_most.get()).build();
        own.map(|own| Self { own, mode, timeout }).map_err(|error| error.to_string())
    }

    /// When an operation that begins now must have ended.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// A connection for whoever asks alone.
    pub(crate) async fn fresh(&self, operation: &'static str, deadline: Instant) -> Result<ClientWrapper, StoreError> {
        match timeout_at(deadline, managed::Manager::create(self.own.manager())).await {
            Ok(Ok(Pooled { client, .. })) => Ok(client),
            Ok(Err(error)) => Err(crate::error::postgres_error(operation, error)),
            Err(_) => Err(too_slow(operation, "connecting to the server took", self.timeout)),
        }
    }

    /// Runs a statement as a transaction of its own: again where that may help, and until the store's time limit.
    pub(crate) async fn rows(
        &self,
        operation: &'static str,
        statement: &Statement,
        values: &Values<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let mut tries = Tries::new(operation, self.timeout);
        loop {
            let mut pooled = self.checkout(operation, tries.deadline).await?;
            pooled.asked.asks();
            let failure = match timeout_at(tries.limit(), run(&pooled.client, self.mode, statement, values)).await {
                Ok(Ok(rows)) => {
                    pooled.asked.is_answered();
                    return Ok(rows);
                }
                Ok(Err(error)) => Failure::Of(error),
                Err(_) => Failure::Late,
            };
            if failure.is_of_the_connection(&pooled.asked, self.timeout) {
                drop(Object::take(pooled));
                // Those that lay idle may be as dead as this one.
                self.own.retain(|_, _| false);
            } else {
                if !matches!(failure, Failure::Late) {
                    pooled.asked.is_answered();
                }
                // Nobody else has to wait while this one pauses.
                drop(pooled);
            }
            tries.after(failure).await?;
        }
    }

    async fn checkout(&self, operation: &'static str, deadline: Instant) -> Result<Object<Source>, StoreError> {
        match timeout_at(deadline, self.own.get()).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(PoolError::Backend(error))) => Err(crate::error::postgres_error(operation, error)),
            Ok(Err(error)) => {
                let message = format!("the store's pool gave no connection ({error})");
                Err(store_error(StoreErrorKind::Unavailable, operation, message))
            }
            Err(_) => Err(too_slow(
                operation,
                "no connection of the store's was free, or could be made: raise Builder::max_connections, or look for \
                 what holds them; it took",
                self.timeout,
            )),
        }
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.own.status();
        f.debug_struct("Connections").field("status", &status).field("mode", &self.mode).finish_non_exhaustive()
    }
}

/// Runs one statement.
pub(crate) async fn run(
    client: &ClientWrapper,
    mode: Mode,
    statement: &Statement,
    values: &Values<'_>,
) -> Result<Vec<Row>, Error> {
    match mode {
        Mode::Prepared => {
            let prepared = client.prepare_typed_cached(&statement.text, statement.types).await?;
            client.query(&prepared, values).await
        }
        Mode::Unnamed => unnamed(client, statement, values).await,
    }
}

async fn unnamed(client: &Client, statement: &Statement, values: &Values<'_>) -> Result<Vec<Row>, Error> {
    client.query_typed(&statement.text, &typed(statement, values)).await
}

/// Values with their types, for statements without a name.
pub(crate) fn typed<'a>(statement: &Statement, values: &Values<'a>) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    values.iter().copied().zip(statement.types.iter().cloned()).collect()
}

/// Why a statement gave no rows.
#[derive(Debug)]
pub(crate) enum Failure {
    Of(Error),
    /// It took longer than it may.
    Late,
}

impl Failure {
    /// Whether the connection must not be used again. One that was late once, to somebody who had little time left, may
    /// be in order: replacing it would be more work for a server that is slow already.
    pub(crate) fn is_of_the_connection(&self, asked: &Asked, timeout: Duration) -> bool {
        match self {
            Self::Of(error) => judge(error).cure == Cure::Fresh,
            Self::Late => asked.is_overdue(timeout),
        }
    }
}

/// How often a statement is tried, and for how long. Every operation bears being applied twice, so a lost reply is
/// cured by asking again.
#[derive(Debug)]
pub(crate) struct Tries {
    operation: &'static str,
    begun: Instant,
    pub(crate) deadline: Instant,
    timeout: Duration,
    had_a_fresh_connection: bool,
    again: u32,
}

impl Tries {
    pub(crate) fn new(operation: &'static str, timeout: Duration) -> Self {
        let begun = Instant::now();
        Self { operation, begun, deadline: begun + timeout, timeout, had_a_fresh_connection: false, again: 0 }
    }

    /// When a try that begins now is late: the first leaves time for another, since a connection that lay idle may be
    /// dead without a word. One that begins late, because connections were in demand, is the only one.
    pub(crate) fn limit(&self) -> Instant {
        let begins_in_time = self.begun.elapsed() < self.timeout / 4;
        if begins_in_time && !self.had_a_fresh_connection { self.begun + self.timeout / 2 } else { self.deadline }
    }

    /// Says whether to try again, after a moment.
    ///
    /// # Errors
    ///
    /// What to answer if not.
    pub(crate) async fn after(&mut self, failure: Failure) -> Result<(), StoreError> {
        let cure = match &failure {
            Failure::Of(error) => judge(error).cure,
            Failure::Late => Cure::Fresh,
        };
        let may_try = match cure {
            Cure::Again => true,
            Cure::Fresh => !std::mem::replace(&mut self.had_a_fresh_connection, true),
            Cure::None => false,
        };
        if !may_try || Instant::now() >= self.deadline {
            return Err(self.error(failure));
        }
        if cure == Cure::Again {
            // Each with its own rhythm would be better still, but the deadline bounds it either way.
            sleep(Duration::from_micros(500 << self.again.min(6))).await;
            self.again += 1;
        }
        Ok(())
    }

    pub(crate) fn error(&self, failure: Failure) -> StoreError {
        match failure {
            Failure::Of(error) => {
                tracing::debug!(operation = self.operation, error = described(&error), "a statement failed");
                crate::error::postgres_error(self.operation, error)
            }
            Failure::Late => too_slow(self.operation, "the server's answer took", self.timeout),
        }
    }
}

pub(crate) fn too_slow(operation: &'static str, what: &str, timeout: Duration) -> StoreError {
    let message = format!("{what} longer than {timeout:?} (Builder::timeout)");
    store_error(StoreErrorKind::Unavailable, operation, message)
}
