//! How a store is set up.

use std::{num::NonZeroUsize, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use idem_core::{ManualClock, StoreError};

use crate::{
    Migration, PostgresStore,
    clock::Clock,
    connections::{Connections, Mode},
    listen::Dial,
    schema::{self, Names},
    store::Parts,
    tls,
    url::Target,
};

/// How long an operation may take if nothing else is said.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time limit; a longer one means this.
const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// How long a claim waits for a transaction that holds its key, if nothing else is said.
const DEFAULT_RIVAL_WAIT: Duration = Duration::from_secs(1);

/// How many connections a store makes for everything but claims, if nothing else is said.
const DEFAULT_CONNECTIONS: NonZeroUsize = NonZeroUsize::new(8).unwrap();

/// How often the server is asked whether a connection that lies idle is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// How a [`PostgresStore`] is set up. Made by [`PostgresStore::builder`] and [`PostgresStore::from_pool`].
#[derive(Clone)]
#[must_use = "it sets nothing up before `build` or `connect`"]
pub struct Builder {
    origin: Origin,
    schema: String,
    table: String,
    clock: Clock,
    timeout: Duration,
    rival_wait: Duration,
    max_connections: Option<NonZeroUsize>,
    through_pooler: bool,
    migrates: bool,
    listen: Option<String>,
}

#[derive(Clone)]
enum Origin {
    Url(String),
    Pool(Pool),
}

impl Builder {
    pub(crate) fn of_url(url: &str) -> Self {
        Self::new(Origin::Url(url.into()))
    }

    pub(crate) fn of_pool(pool: Pool) -> Self {
        Self::new(Origin::Pool(pool))
    }

    fn new(origin: Origin) -> Self {
        Self {
            origin,
            schema: "public".into(),
            table: "idem_records".into(),
            clock: Clock::Server,
            timeout: DEFAULT_TIMEOUT,
            rival_wait: DEFAULT_RIVAL_WAIT,
            max_connections: None,
            through_pooler: false,
            migrates: true,
            listen: None,
        }
    }

    /// The schema that the table is in: `public` if nothing else is said. 1 to 48 letters, digits and underscores.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// The table of records: `idem_records` if nothing else is said. 1 to 48 letters, digits and underscores. Two
    /// tables are two stores.
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = table.into();
        self
    }

    /// How long an operation may take before it is an error of kind unavailable: more than zero, and at most an hour (a
    /// longer time means an hour). 5 seconds if nothing else is said.
    ///
    /// It holds for connecting, waiting for a connection, the statement, and a second try on another connection
    /// together; an operation that takes several statements may take an eighth more. No statement of the store's own waits
    /// longer than an eighth of it for a lock. What runs in a transaction of the caller's waits as that is set up.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(MAX_TIMEOUT);
        self
    }

    /// How long a claim that could be granted waits for an open transaction that holds its key (one that
    /// [claims in it](PostgresStore::claim_in), or whose attempt has lapsed and is being finished) before it is a Conflict. 1 second if nothing else is
    /// said, and never longer than the [timeout](Builder::timeout).
    pub fn rival_wait(mut self, rival_wait: Duration) -> Self {
        self.rival_wait = rival_wait;
        self
    }

    /// How many connections the store makes at most, beside one for claims and one for waits. 8 if nothing else is
    /// said, or what the pool that it was made from allows.
    pub fn max_connections(mut self, at_most: NonZeroUsize) -> Self {
        self.max_connections = Some(at_most);
        self
    }

    /// The server is behind a pooler that gives each transaction another session, such as PgBouncer in transaction mode:
    /// statements are sent without names. Slower, and right everywhere. The URL's `pgbouncer=true` says the same.
    ///
    /// Needless for PgBouncer from 1.21 on with `max_prepared_statements` above zero; the start-up check tells.
    pub fn through_pooler(mut self) -> Self {
        self.through_pooler = true;
        self
    }

    /// The table is made, and brought to this version's schema, by somebody else: by
    /// [`PostgresStore::migrate`] or the SQL that [`Builder::migrations`] gives. If nothing is said, the store does it
    /// before its first operation.
    pub fn without_migrating(mut self) -> Self {
        self.migrates = false;
        self
    }

    /// The server to listen at for the ends of attempts that are waited for, where the store was made from a pool: the
    /// same one, directly, not through a pooler. A store that was made from a URL listens there, unless it goes
    /// [through a pooler](Builder::through_pooler). Without it waits look for themselves, ten times a second.
    pub fn listen(mut self, url: &str) -> Self {
        self.listen = Some(url.into());
        self
    }

    /// Judges leases and retentions by a clock that tests move, instead of the server's. Every handle on one table must
    /// follow the same one.
    pub fn clock(mut self, clock: ManualClock) -> Self {
        self.clock = Clock::Manual(clock);
        self
    }

    /// The SQL that makes the table and brings it to this version's schema, step by step, for those who have tools of
    /// their own for that.
    ///
    /// # Errors
    ///
    /// [`OpenError::Name`].
    pub fn migrations(&self) -> Result<Vec<Migration>, OpenError> {
        Ok(schema::migrations(&Names::new(&self.schema, &self.table)?))
    }

    /// Sets the store up. Nothing is connected before its first operation, so that a service can start while its
    /// database does not run.
    ///
    /// # Errors
    ///
    /// [`OpenError`], of all that can be found out without the server.
    pub fn build(self) -> Result<PostgresStore, OpenError> {
        if self.timeout.is_zero() {
            return Err(OpenError::NoTime);
        }
        let names = Names::new(&self.schema, &self.table)?;
        let mut through_pooler = self.through_pooler;
        let (pool, mut dial, at_most) = match &self.origin {
            Origin::Pool(pool) => (pool.clone(), None, NonZeroUsize::new(pool.status().max_size)),
            Origin::Url(url) => {
                let target = Target::parse(url)?;
                through_pooler |= target.through_pooler;
                let dial = self.dial(target)?;
                let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
                let manager = Manager::from_config(dial.config.clone(), dial.tls.clone(), recycling);
                let pool = Pool::builder(manager).build();
                let pool = pool.map_err(|error| OpenError::Pool { problem: error.to_string() })?;
                (pool, Some(dial), None)
            }
        };
        // Behind a pooler the request to be told would stay with a session that others get.
        if through_pooler {
            dial = None;
        }
        if let Some(url) = &self.listen {
            dial = Some(self.dial(Target::parse(url)?)?);
        }
        let mode = if through_pooler { Mode::Unnamed } else { Mode::Prepared };
        let at_most = self.max_connections.or(at_most).unwrap_or(DEFAULT_CONNECTIONS);
        let connections =
            Connections::new(pool, at_most, mode, self.timeout).map_err(|problem| OpenError::Pool { problem })?;
        let rival_wait = self.rival_wait.min(self.timeout);
        Ok(PostgresStore::of(Parts {
            connections,
            dial,
            names,
            clock: self.clock,
            rival_wait,
            migrates: self.migrates,
        }))
    }

    /// Sets the store up, makes its table if it has to, and [checks](idem_core::Store::check) that it can keep its
    /// promise.
    ///
    /// # Errors
    ///
    /// Those of [`Builder::build`], of [`PostgresStore::migrate`], and of the check.
    pub async fn connect(self) -> Result<PostgresStore, OpenError> {
        let store = self.build()?;
        idem_core::Store::check(&store).await?;
        Ok(store)
    }

    fn dial(&self, target: Target) -> Result<Dial, OpenError> {
        let Target { mut config, verify, roots, .. } = target;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(self.timeout);
        }
        // A peer that is gone without a word is found out by the system, not only by the next statement.
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(self.timeout);
        }
        config.keepalives_idle(config.get_keepalives_idle().min(KEEPALIVE));
        if config.get_application_name().is_none() {
            config.application_name("idem");
        }
        Ok(Dial { config, tls: tls::connector(&verify, &roots)? })
    }
}

impl std::fmt::Debug for Builder {
    /// Without the URL, which may have a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("schema", &self.schema)
            .field("table", &self.table)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Why a store could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL can't be read. It is not shown, since it may have a password.
    #[error("the PostgreSQL URL can't be read: {problem}; write postgres://USER:PASSWORD@HOST:PORT/DATABASE")]
    Url {
        /// What is wrong.
        problem: String,
    },
    /// The name of the table or schema is none.
    #[error("the {setting} {name:?} is not 1 to 48 letters, digits and underscores that begin with no digit")]
    Name {
        /// `schema` or `table`.
        setting: &'static str,
        /// The name.
        name: String,
    },
    /// The time limit is zero.
    #[error("the time limit is zero, in which nothing can be done; set Builder::timeout to more")]
    NoTime,
    /// TLS can't be set up.
    #[error("TLS can't be set up: {problem}")]
    Tls {
        /// What is wrong.
        problem: String,
    },
    /// The pool of connections can't be set up.
    #[error("the pool of connections can't be set up: {problem}")]
    Pool {
        /// What is wrong.
        problem: String,
    },
    /// The server can't be reached, or the store can't keep its promise there.
    #[error(transparent)]
    Store(#[from] StoreError),
}
