//! Claims that count only once replicas have them.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fred::{
    clients::{Client, WithOptions},
    error::{Error, ErrorKind},
    interfaces::{ClientLike, ClusterInterface, ServerInterface},
    types::{Builder as FredBuilder, Key, cluster::ClusterRouting, config::Options},
};
use idem_core::{StoreError, StoreErrorKind};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
};

use crate::error::store_error;

/// How many claims wait for replicas at a time. The others wait for their turn, within their time limit.
const AT_A_TIME: usize = 32;

/// Connections that serve one claim at a time: `WAIT` speaks of what its own connection wrote, and holds up whatever
/// comes after it there.
///
/// None of them connects again by itself, since `WAIT` on a new connection would speak of nothing: one that breaks, or
/// whose claim ended in any other way than well, is thrown away.
pub(crate) struct Replicas {
    at_least: u32,
    timeout: Duration,
    builder: FredBuilder,
    room: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
}

/// A connection that ends when it is dropped.
struct Connection {
    client: Client,
    task: JoinHandle<Result<(), Error>>,
}

/// A connection while it serves a claim.
pub(crate) struct Session {
    replicas: Arc<Replicas>,
    connection: Connection,
    options: Options,
    _room: OwnedSemaphorePermit,
}

impl Replicas {
    /// With what makes clients that never connect again.
    pub(crate) fn new(at_least: u32, timeout: Duration, builder: FredBuilder) -> Arc<Self> {
        let room = Arc::new(Semaphore::new(AT_A_TIME));
        Arc::new(Self { at_least, timeout, builder, room, idle: Mutex::default() })
    }

    /// A connection for a claim of `key`.
    pub(crate) async fn session(self: &Arc<Self>, key: &Key) -> Result<Session, Error> {
        let room = Arc::clone(&self.room).acquire_owned().await;
        let room = room.map_err(|_| Error::new(ErrorKind::Canceled, "the store is gone"))?; // it never is
        let connection = match self.idle() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        // The write and the wait go to one and the same node. Where that no longer is the key's, the claim fails.
        let node = connection.client.cached_cluster_state().and_then(|state| {
            let slot = ClusterRouting::hash_key(key.as_bytes());
            state.get_server(slot).cloned()
        });
        let options = Options {
            max_attempts: Some(1),
            max_redirections: node.as_ref().map(|_| 1),
            cluster_node: node,
            timeout: Some(self.timeout),
            ..Default::default()
        };
        Ok(Session { replicas: Arc::clone(self), connection, options, _room: room })
    }

    fn idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(connection) = idle.pop() {
            if !connection.task.is_finished() {
                return Some(connection);
            }
        }
        None
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let client = self.builder.build()?;
        let task = client.connect();
        let connection = Connection { client, task };
        connection.client.wait_for_connect().await?;
        Ok(connection)
    }
}

impl Session {
    pub(crate) fn client(&self) -> WithOptions<Client> {
        self.connection.client.with_options(&self.options)
    }

    /// Waits until enough replicas have what was written on this connection. Half of the time limit at most, so that the
    /// answer comes within it.
    pub(crate) async fn replicated(self) -> Result<Result<(), StoreError>, Error> {
        let at_least = i64::from(self.replicas.at_least);
        let millis = i64::try_from((self.replicas.timeout / 2).as_millis()).unwrap_or(i64::MAX).max(1);
        let have: i64 = self.client().wait(at_least, millis).await?;
        self.done();
        if have >= at_least {
            return Ok(Ok(()));
        }
        let message = format!(
            "the claim reached {have} replicas of the {at_least} that Builder::min_replicas asks for; it may be there, and \
             can be repeated with its token"
        );
        Ok(Err(store_error(StoreErrorKind::Unavailable, "claim", message)))
    }

    /// Gives the connection back for other claims.
    pub(crate) fn done(self) {
        let Self { replicas, connection, .. } = self;
        replicas.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}
