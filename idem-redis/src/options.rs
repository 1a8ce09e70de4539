//! How a store is set up.

use std::{net::IpAddr, num::NonZeroU32, path::PathBuf, sync::Arc, time::Duration};

use fred::types::{
    Builder as FredBuilder,
    config::{Config, ConnectionConfig, ReconnectPolicy, ServerConfig, UnresponsiveConfig},
};
use idem_core::{ManualClock, StoreError};

use crate::{
    RedisStore,
    clock::Clock,
    directory::{Directory, NodeClients},
    line::{Line, QUEUE},
    link::{Link, Nodes},
    listen::Listener,
    names::Names,
    replicas::Replicas,
    store::Parts,
    tls,
    url::Target,
    wait::Waiters,
};

/// What the server's keys begin with if nothing else is said.
const DEFAULT_PREFIX: &str = "idem";

/// How long an operation may take if nothing else is said.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest time limit; a longer one means this. No command may outlive a record, and the client's queue is bounded
/// by it.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the client may take to connect, at least, and for how long a connection may be silent.
const CONNECTING: Duration = Duration::from_secs(1);

/// How a [`RedisStore`] is set up. Made by [`RedisStore::builder`].
#[derive(Clone)]
#[must_use = "it sets nothing up before `build` or `connect`"]
pub struct Builder {
    url: String,
    ca_file: Option<PathBuf>,
    prefix: Option<String>,
    clock: Option<ManualClock>,
    timeout: Duration,
    min_replicas: Option<NonZeroU32>,
    accepts_eviction: bool,
    attempts: u32,
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.into(),
            ca_file: None,
            prefix: None,
            clock: None,
            timeout: DEFAULT_TIMEOUT,
            min_replicas: None,
            accepts_eviction: false,
            attempts: 3,
        }
    }

    /// What the server's keys of this store begin with: `idem` if nothing else is said. 1 to 64 letters, digits, `_`,
    /// `-`, `.` and `:`. Two prefixes are two stores. The URL can say the same: `redis://…?prefix=PREFIX`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// For TLS, trusts the certificates of authorities in this PEM file, instead of those that the system trusts. The URL
    /// can say the same: `rediss://…?sslrootcert=PATH`.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// How long an operation may take before it is an error of kind unavailable: more than zero, and at most a minute (a
    /// longer time means a minute). 2 seconds if nothing else is said.
    ///
    /// A command that took too long may still be applied later: see [what the store promises](crate#what-it-promises).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(MAX_TIMEOUT);
        self
    }

    /// A claim counts only once this many replicas have it (`WAIT`); one that fewer acknowledged within half the time
    /// limit is answered unavailable, and can be repeated with its token.
    ///
    /// It narrows what a failover can lose, and does not rule it out: the replica that is promoted may be another one.
    pub fn min_replicas(mut self, at_least: NonZeroU32) -> Self {
        self.min_replicas = Some(at_least);
        self
    }

    /// Accepts a server that removes keys of its own accord when its memory is full (a `maxmemory-policy` other than
    /// `noeviction`). A record that it removes is a key that can be claimed again: an operation may then run twice.
    pub fn accept_eviction(mut self) -> Self {
        self.accepts_eviction = true;
        self
    }

    /// Judges leases and retentions by a clock that tests move, instead of the server's. Every handle on one prefix must
    /// follow the same one. Records then stay in the server for a day, expired or not.
    pub fn clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// How often a command is sent whose reply is lost: 3 times if nothing else is said. Every command bears it, so there is
    /// nothing to gain from fewer; tests show that nothing hangs on it either.
    #[doc(hidden)]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Sets the store up. Nothing is connected before its first operation, so that a service can start while its server
    /// does not run.
    ///
    /// # Errors
    ///
    /// [`OpenError`], of all that can be found out without the server.
    pub fn build(self) -> Result<RedisStore, OpenError> {
        if self.timeout.is_zero() {
            return Err(OpenError::NoTime);
        }
        let target = Target::parse(&self.url)?;
        let names = Names::new(self.prefix.or(target.prefix).as_deref().unwrap_or(DEFAULT_PREFIX))?;
        let mut config = target.config;
        let tls_name = tls_name(&config).filter(|_| target.uses_tls);
        let ca_file = self.ca_file.or(target.ca_file);
        if ca_file.is_some() && !target.uses_tls {
            let problem = "certificates are named (Builder::ca_file, sslrootcert), but the URL asks for no TLS; write \
                           rediss://, rediss-cluster:// or rediss-sentinel://";
            return Err(OpenError::Tls { problem: problem.into() });
        }
        if target.uses_tls {
            config.tls = Some(tls::config(ca_file.as_deref(), tls_name.clone())?);
        }
        let timeout = self.timeout;
        // Connecting goes on behind operations, which end in their own time. Cut short again and again it would never end.
        let connecting = timeout.max(CONNECTING);
        let mut once = FredBuilder::from_config(config.clone());
        // The first connection is tried again like any other.
        config.fail_fast = false;
        let mut builder = FredBuilder::from_config(config);
        // Without a policy it would stay dead after the first cut. Zero is no limit.
        builder.set_policy(ReconnectPolicy::new_exponential(0, 20, 1_000, 2));
        for builder in [&mut builder, &mut once] {
            builder.with_connection_config(|connection: &mut ConnectionConfig| {
                connection.connection_timeout = connecting;
                connection.internal_command_timeout = connecting;
                connection.reconnect_on_auth_error = true;
                // Every command bears being sent again.
                connection.max_command_attempts = self.attempts;
                connection.max_command_buffer_len = QUEUE;
                connection.unresponsive =
                    UnresponsiveConfig { max_timeout: Some(connecting), interval: connecting / 4 };
            });
            builder.with_performance_config(|performance| performance.default_command_timeout = timeout);
        }
        let failed = |error: fred::error::Error| OpenError::Client { problem: error.to_string() };
        builder.build_subscriber_client().map_err(failed)?;
        let listening = builder.clone();
        let make = NodeClients { builder, tls_name: tls_name.clone() };
        let nodes = nodes(make, timeout).map_err(failed)?;
        let once = NodeClients { builder: once, tls_name };
        let replicas = self.min_replicas.map(|at_least| Replicas::new(at_least.get(), timeout, once));
        let waiters = Waiters::new();
        Ok(RedisStore::of(Parts {
            link: Link::new(nodes, timeout, replicas),
            listener: Listener::new(listening, names.channel(), Arc::clone(&waiters), timeout),
            waiters,
            names,
            clock: self.clock.map_or_else(Clock::server, Clock::Manual),
            accepts_eviction: self.accepts_eviction,
        }))
    }

    /// Sets the store up, connects, and [checks](idem_core::Store::check) that it can keep its promise.
    ///
    /// # Errors
    ///
    /// Those of [`Builder::build`] and of the check.
    pub async fn connect(self) -> Result<RedisStore, OpenError> {
        let store = self.build()?;
        idem_core::Store::check(&store).await?;
        Ok(store)
    }
}

/// Nodes of a cluster tell each other's addresses. Where the URL has a name, their certificates must be for that.
fn tls_name(config: &Config) -> Option<String> {
    let ServerConfig::Clustered { hosts, .. } = &config.server else { return None };
    hosts.iter().map(|node| node.host.to_string()).find(|host| host.parse::<IpAddr>().is_err())
}

/// What the configuration of a client is about.
fn nodes(make: NodeClients, timeout: Duration) -> Result<Nodes, fred::error::Error> {
    let config = make.builder.get_config().cloned().unwrap_or_default();
    Ok(match config.server {
        ServerConfig::Centralized { .. } | ServerConfig::Sentinel { .. } => {
            Nodes::One(Arc::new(Line::new(make, timeout)?))
        }
        ServerConfig::Clustered { hosts, .. } => Nodes::Several(Directory::new(make, hosts, timeout)),
    })
}

impl std::fmt::Debug for Builder {
    /// Without the URL, which may have a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("min_replicas", &self.min_replicas)
            .finish_non_exhaustive()
    }
}

/// Why a store could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL can't be read. It is not shown, since it may have a password.
    #[error(
        "the Redis URL can't be read; write redis://USER:PASSWORD@HOST:PORT/DATABASE, rediss:// for TLS, \
         redis-cluster://HOST:PORT?node=HOST:PORT or redis-sentinel://HOST:PORT?sentinelServiceName=NAME"
    )]
    Url,
    /// The URL has a parameter that there is not. Its value is not shown.
    #[error(
        "the Redis URL has a parameter {name:?} that there is not; write prefix, sslrootcert, node, sentinelServiceName, \
         sentinelUsername or sentinelPassword"
    )]
    Parameter {
        /// Its name, 64 characters at most.
        name: String,
    },
    /// The URL of a cluster names a database by number.
    #[error("a cluster has no databases by number; leave /NUMBER out of the Redis URL")]
    ClusterDatabase,
    /// The prefix is none.
    #[error("the prefix {prefix:?} is not 1 to 64 letters, digits, '_', '-', '.' and ':'")]
    Prefix {
        /// The prefix.
        prefix: String,
    },
    /// The time limit is zero.
    #[error("the time limit is zero, in which nothing can be done; set Builder::timeout to more")]
    NoTime,
    /// TLS can't be set up.
    #[error("TLS can't be set up: {problem}")]
    Tls {
        /// What is wrong, with which file.
        problem: String,
    },
    /// The client can't be set up.
    #[error("the client can't be set up: {problem}")]
    Client {
        /// What is wrong.
        problem: String,
    },
    /// The server can't be reached, or the store can't keep its promise there.
    #[error(transparent)]
    Store(#[from] StoreError),
}
