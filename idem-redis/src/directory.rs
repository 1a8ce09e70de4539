//! The nodes of a cluster: which one has a key, and a client of its own for each.
//!
//! The client has a mode for clusters, in which one task serves all nodes: while one of them stands still or is gone, it
//! waits for that one and sends nothing to the others. Here a node that fails holds up nobody but its own keys.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use fred::{
    clients::Client,
    error::{Error, ErrorKind},
    interfaces::ClientLike,
    types::{
        Builder as FredBuilder, ClusterHash, CustomCommand, Value,
        cluster::ClusterRouting,
        config::{Config, Server, ServerConfig},
    },
};
use futures_util::future::select_ok;
use tokio::{
    sync::{Mutex as AsyncMutex, Semaphore},
    time::{sleep, timeout},
};

use crate::line::{IN_FLIGHT, Line, Request, Way, locked};

/// How many nodes may say of a key that another one has it, before that is an error.
const REDIRECTIONS: usize = 5;

/// The nodes of a cluster.
pub(crate) struct Directory {
    make: NodeClients,
    /// The nodes that the URL names.
    named: Vec<Server>,
    timeout: Duration,
    known: Mutex<Known>,
    /// When it was learned last who has what. One learns it at a time.
    learned: AsyncMutex<Option<Instant>>,
    learns: AtomicBool,
    /// For calls while no node is known.
    pub(crate) room: Arc<Semaphore>,
}

#[derive(Default)]
struct Known {
    slots: Option<ClusterRouting>,
    /// To the masters, as far as they were needed.
    lines: HashMap<Server, Arc<Line>>,
}

/// Makes clients: of single nodes, or of what the URL names.
#[derive(Clone)]
pub(crate) struct NodeClients {
    pub(crate) builder: FredBuilder,
    /// The host that certificates must be for where nodes tell each other's addresses.
    pub(crate) tls_name: Option<String>,
}

/// Where a node says that a key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirection {
    pub(crate) to: Server,
    /// That it is only about to be there.
    pub(crate) asks: bool,
    /// How many nodes may still say so.
    left: usize,
}

impl Directory {
    pub(crate) fn new(make: NodeClients, named: Vec<Server>, timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            make,
            named,
            timeout,
            known: Mutex::default(),
            learned: AsyncMutex::default(),
            learns: AtomicBool::new(false),
            room: Arc::new(Semaphore::new(IN_FLIGHT)),
        })
    }

    /// Room for calls that are under way to the node that has the key: a node that fails must not take that of others.
    pub(crate) fn room(&self, key: &str) -> Arc<Semaphore> {
        let known = locked(&self.known);
        let line = known.server(key).and_then(|server| known.lines.get(server));
        Arc::clone(line.map_or(&self.room, |line| &line.room))
    }

    /// Sends a command to the node that has the key, wherever others say that this is.
    pub(crate) async fn send(self: &Arc<Self>, key: &str, request: &Request) -> Result<Value, Error> {
        let mut at = self.start(key).await?;
        loop {
            let line = self.line(&at.to)?;
            let (client, number) = line.client();
            let way = if at.asks { Way::Asking(client) } else { Way::Straight(client) };
            match line.heard(number, way.send(request.clone(), |answer| answer).await) {
                Err(error) => at = self.redirected(&error, &at).ok_or(error)?,
                answer => return answer,
            }
        }
    }

    /// The node that has the key, as far as is known.
    pub(crate) async fn start(self: &Arc<Self>, key: &str) -> Result<Redirection, Error> {
        let to = match self.node_of(key) {
            Some(to) => {
                if self.line(&to)?.takes_loss() {
                    self.learn_soon();
                }
                Some(to)
            }
            None => {
                self.learn().await?;
                self.node_of(key)
            }
        };
        let to = to.ok_or_else(|| Error::new(ErrorKind::Cluster, "CLUSTERDOWN no node has the slot of the key"))?;
        Ok(Redirection { to, asks: false, left: REDIRECTIONS })
    }

    /// The node that has the key, as far as is known.
    pub(crate) fn node_of(&self, key: &str) -> Option<Server> {
        locked(&self.known).server(key).cloned()
    }

    /// The masters, each with its client.
    pub(crate) async fn masters(&self) -> Result<Vec<(Server, Client)>, Error> {
        self.learn().await?;
        let masters = locked(&self.known).slots.as_ref().map(ClusterRouting::unique_primary_nodes).unwrap_or_default();
        masters.into_iter().map(|server| Ok((server.clone(), self.line(&server)?.client().0))).collect()
    }

    /// What is in the way of a connection to a node, if there is none.
    pub(crate) fn trouble(&self) -> Option<Error> {
        locked(&self.known).lines.values().find_map(|line| line.trouble())
    }

    /// Where the key is instead, if that is what the answer of a node comes to. Where the node failed, it is learned anew in
    /// the background who has what.
    pub(crate) fn redirected(self: &Arc<Self>, error: &Error, at: &Redirection) -> Option<Redirection> {
        let redirection = redirection(error, at);
        let is_about_to = redirection.as_ref().is_some_and(|redirection| redirection.asks);
        let is_of_nodes = matches!(
            error.kind(),
            ErrorKind::Timeout | ErrorKind::IO | ErrorKind::Cluster | ErrorKind::Canceled | ErrorKind::Backpressure
        );
        if is_of_nodes && !is_about_to {
            self.learn_soon();
        }
        redirection
    }

    fn line(&self, server: &Server) -> Result<Arc<Line>, Error> {
        let mut known = locked(&self.known);
        if let Some(line) = known.lines.get(server) {
            return Ok(Arc::clone(line));
        }
        let line = Arc::new(Line::new(self.make.of(server), self.timeout)?);
        known.lines.insert(server.clone(), Arc::clone(&line));
        Ok(line)
    }

    /// Learns who has what.
    async fn learn(&self) -> Result<(), Error> {
        let begun = Instant::now();
        let mut learned = self.learned.lock().await;
        if learned.is_some_and(|at| at > begun) {
            return Ok(());
        }
        let slots = self.ask_cluster().await?;
        let masters = slots.unique_primary_nodes();
        let mut known = locked(&self.known);
        // Calls that are under way keep theirs until they end.
        known.lines.retain(|server, _| masters.contains(server));
        known.slots = Some(slots);
        *learned = Some(Instant::now());
        Ok(())
    }

    /// The same in the background, not all the time.
    fn learn_soon(self: &Arc<Self>) {
        if !self.learns.swap(true, Ordering::SeqCst) {
            let directory = Arc::clone(self);
            tokio::spawn(async move {
                // Dropped with its runtime, too.
                let _done = Done(&directory.learns);
                let _ = directory.learn().await;
                sleep((directory.timeout / 20).min(Duration::from_millis(100))).await;
            });
        }
    }

    /// From whoever tells it first of those that say that all is well: the masters as they were known, and if none of them
    /// does, the nodes that the URL names.
    async fn ask_cluster(&self) -> Result<ClusterRouting, Error> {
        let ask_any = async |nodes: &[Server]| {
            first_of(nodes.iter().map(async |server| slots(&self.line(server)?.client().0, server).await)).await
        };
        let masters = locked(&self.known).slots.as_ref().map(ClusterRouting::unique_primary_nodes);
        if let Some(masters) = masters
            && let Ok(Ok(told)) = timeout(self.timeout / 4, ask_any(&masters)).await
        {
            return Ok(told);
        }
        ask_any(&self.named).await
    }
}

/// What succeeds first of several; if none does, how the last failed.
async fn first_of<T>(asks: impl Iterator<Item = impl Future<Output = Result<T, Error>>>) -> Result<T, Error> {
    let asks: Vec<_> = asks.map(Box::pin).collect();
    if asks.is_empty() {
        return Err(Error::new(ErrorKind::Cluster, "CLUSTERDOWN there is no node to ask"));
    }
    Ok(select_ok(asks).await?.0)
}

/// Each client is of one node.
fn command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, ClusterHash::Random, false)
}

/// Who has which slots, as a node of a cluster says.
async fn slots(client: &Client, server: &Server) -> Result<ClusterRouting, Error> {
    let info = client.custom::<String, Value>(command("CLUSTER"), vec!["INFO".into()]).await?;
    if !info.contains("cluster_state:ok") {
        // Cut off from the others, it would go on telling what was.
        return Err(Error::new(ErrorKind::Cluster, "CLUSTERDOWN a node says that the cluster is not whole"));
    }
    let slots = client.custom::<Value, Value>(command("CLUSTER"), vec!["SLOTS".into()]).await?;
    let routing = ClusterRouting::from_cluster_slots(slots, server.host.clone())?;
    match routing.len() == 0 {
        true => Err(Error::new(ErrorKind::Cluster, "CLUSTERDOWN a node knows of no slot that is served")),
        false => Ok(routing),
    }
}

impl Known {
    fn server(&self, key: &str) -> Option<&Server> {
        self.slots.as_ref()?.get_server(ClusterRouting::hash_key(key.as_bytes()))
    }
}

impl NodeClients {
    /// The same for one node.
    pub(crate) fn of(&self, server: &Server) -> Self {
        let config = self.builder.get_config().cloned().unwrap_or_default();
        let server = self.with_tls_name(server.clone());
        let mut builder = self.builder.clone();
        builder.set_config(Config { server: ServerConfig::Centralized { server }, ..config });
        Self { builder, ..self.clone() }
    }

    /// Whether Sentinels tell the server.
    pub(crate) fn has_sentinels(&self) -> bool {
        let config = self.builder.get_config();
        config.is_some_and(|config| matches!(config.server, ServerConfig::Sentinel { .. }))
    }

    /// A client, which has not connected yet. Of Sentinels it asks that one first, counted around: the client asks nobody
    /// else while the first one stands still.
    pub(crate) fn any(&self, first: usize) -> Result<Client, Error> {
        let mut config = self.builder.get_config().cloned().unwrap_or_default();
        if let ServerConfig::Sentinel { hosts, .. } = &mut config.server
            && !hosts.is_empty()
        {
            let first = first % hosts.len();
            hosts.rotate_left(first);
        }
        let mut builder = self.builder.clone();
        builder.set_config(config);
        builder.build()
    }

    fn with_tls_name(&self, server: Server) -> Server {
        match &self.tls_name {
            Some(name) if server.host.parse::<IpAddr>().is_ok() => {
                Server::new_with_tls(server.host, server.port, Some(name.clone()))
            }
            _ => server,
        }
    }
}

/// Reads `MOVED SLOT HOST:PORT` and `ASK SLOT HOST:PORT`. Without a host it is the one that says so.
fn redirection(error: &Error, at: &Redirection) -> Option<Redirection> {
    let mut words = error.details().split_ascii_whitespace();
    let asks = match words.next()? {
        "MOVED" => false,
        "ASK" => true,
        _ => return None,
    };
    let (host, port) = words.nth(1)?.rsplit_once(':')?;
    let host = if host.is_empty() { at.to.host.to_string() } else { host.to_owned() };
    Some(Redirection { to: Server::new(host, port.parse().ok()?), asks, left: at.left.checked_sub(1)? })
}

struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(tls_name: Option<&str>) -> NodeClients {
        NodeClients { builder: FredBuilder::default_centralized(), tls_name: tls_name.map(str::to_owned) }
    }

    #[test]
    fn a_redirection_is_read_and_anything_else_is_none() {
        let at = Redirection { to: Server::new("10.0.0.1", 7000), asks: false, left: 5 };
        let read = |details: &str| redirection(&Error::new(ErrorKind::Cluster, details.to_owned()), &at);
        let to = |host: &str, port, asks| Some(Redirection { to: Server::new(host, port), asks, left: 4 });
        assert_eq!(read("MOVED 3999 127.0.0.1:6381"), to("127.0.0.1", 6381, false));
        assert_eq!(read("ASK 3999 node-2.example:6381"), to("node-2.example", 6381, true));
        assert_eq!(read("MOVED 3999 ::1:6381"), to("::1", 6381, false));
        assert_eq!(read("MOVED 3999 :6381"), to("10.0.0.1", 6381, false));
        for other in ["", "MOVED", "MOVED 3999", "ASK 1 host", "MOVED 1 h:99999", "CLUSTERDOWN Hash slot not served"] {
            assert_eq!(read(other), None, "{other}");
        }
        let last = Redirection { left: 0, ..at.clone() };
        assert_eq!(redirection(&Error::new(ErrorKind::Cluster, "MOVED 3999 127.0.0.1:6381"), &last), None);
    }

    #[test]
    fn where_the_url_has_a_name_the_certificates_of_addresses_must_be_for_it() {
        let name = |clients: NodeClients, host: &str| {
            clients.with_tls_name(Server::new(host, 1)).tls_server_name.map(|name| name.to_string())
        };
        assert_eq!(name(clients(Some("cache.example")), "10.0.0.1").as_deref(), Some("cache.example"));
        assert_eq!(name(clients(Some("cache.example")), "node-1.example"), None);
        assert_eq!(name(clients(None), "10.0.0.1"), None);
    }
}
