//! Claims that count only once replicas have them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use fred::{
    clients::{Client, WithOptions},
    error::{Error, ErrorKind},
    interfaces::{ClientLike, ServerInterface},
    types::config::{Options, Server},
};
use idem_core::{StoreError, StoreErrorKind};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    directory::NodeClients,
    error::store_error,
    line::{Way, locked},
};

/// How many claims wait for replicas at a time. The others wait for their turn, within their time limit.
const AT_A_TIME: usize = 32;

/// Connections that serve one claim at a time: `WAIT` speaks of what its own connection wrote, and holds up whatever
/// comes after it there.
///
/// None of them connects again by itself, since `WAIT` on a new connection would speak of nothing: one that breaks, or
/// whose claim ended in any other way than well, is thrown away.
pub(crate) struct Replicas {
    pub(crate) at_least: u32,
    timeout: Duration,
    make: NodeClients,
    /// How many connections there were whose server was not named.
    connected: AtomicUsize,
    room: Arc<Semaphore>,
    /// By the node of a cluster.
    idle: Mutex<HashMap<Option<Server>, Vec<Connection>>>,
}

/// A connection that ends when it is dropped.
struct Connection {
    client: Client,
    task: JoinHandle<Result<(), Error>>,
}

/// A connection while it serves a claim.
pub(crate) struct Session {
    replicas: Arc<Replicas>,
    node: Option<Server>,
    connection: Connection,
    _room: OwnedSemaphorePermit,
}

impl Replicas {
    /// With what makes clients that never connect again.
    pub(crate) fn new(at_least: u32, timeout: Duration, make: NodeClients) -> Arc<Self> {
        let room = Arc::new(Semaphore::new(AT_A_TIME));
        Arc::new(Self { at_least, timeout, make, connected: AtomicUsize::new(0), room, idle: Mutex::default() })
    }

    /// A connection for a claim, to the node of a cluster that has its key. Within the time limit; nothing is left behind
    /// where the caller loses interest.
    pub(crate) async fn session(self: &Arc<Self>, node: Option<Server>) -> Result<Session, Error> {
        let late = |_| {
            Error::new(ErrorKind::Backpressure, "too many claims wait for replicas, or a connection takes too long")
        };
        timeout(self.timeout, self.wait_for_session(node)).await.map_err(late)?
    }

    async fn wait_for_session(self: &Arc<Self>, node: Option<Server>) -> Result<Session, Error> {
        let room = Arc::clone(&self.room).acquire_owned().await;
        let room = room.map_err(|_| Error::new(ErrorKind::Canceled, "the store is gone"))?; // it never is
        let connection = match self.idle(&node) {
            Some(connection) => connection,
            None => self.connect(node.as_ref()).await?,
        };
        Ok(Session { replicas: Arc::clone(self), node, connection, _room: room })
    }

    /// Whether the user may wait for replicas at all.
    pub(crate) async fn try_out(self: &Arc<Self>, node: Option<&Server>) -> Result<(), Error> {
        let session = self.session(node.cloned()).await?;
        session.client().wait::<i64>(0, 1).await?;
        session.done();
        Ok(())
    }

    fn idle(&self, node: &Option<Server>) -> Option<Connection> {
        let mut idle = locked(&self.idle);
        // Also of nodes that are not asked any more.
        idle.retain(|_, connections| {
            connections.retain(|connection| !connection.task.is_finished());
            !connections.is_empty()
        });
        idle.get_mut(node)?.pop()
    }

    async fn connect(&self, node: Option<&Server>) -> Result<Connection, Error> {
        let client = match node {
            Some(node) => self.make.of(node).any(0)?,
            // Each asks another Sentinel first.
            None => self.make.any(self.connected.fetch_add(1, Ordering::Relaxed))?,
        };
        let task = client.connect();
        let connection = Connection { client, task };
        connection.client.wait_for_connect().await?;
        Ok(connection)
    }
}

impl Session {
    /// Sends a command once.
    pub(crate) fn once(&self) -> Way {
        Way::Once(self.client())
    }

    /// Sends a command to a node that is only about to get the key's slot.
    pub(crate) fn asking(&self) -> Way {
        Way::Asking(self.connection.client.clone())
    }

    fn client(&self) -> WithOptions<Client> {
        let options = Options { max_attempts: Some(1), timeout: Some(self.replicas.timeout), ..Default::default() };
        self.connection.client.with_options(&options)
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
        let Self { replicas, node, connection, .. } = self;
        locked(&replicas.idle).entry(node).or_default().push(connection);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}
