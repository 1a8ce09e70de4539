//! Claims that count only once replicas have them.

use std::time::Duration;

use fred::{
    clients::Client,
    error::Error,
    interfaces::{ClientLike, ClusterInterface, ServerInterface},
    types::{cluster::ClusterRouting, config::Options},
};
use idem_core::{StoreError, StoreErrorKind};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use crate::error::store_error;

/// Connections that are used by one claim at a time: `WAIT` speaks of what its own connection wrote, and holds up
/// whatever comes after it there.
pub(crate) struct Replicas {
    at_least: u32,
    timeout: Duration,
    clients: Vec<Mutex<Client>>,
    next: std::sync::atomic::AtomicUsize,
    connected: OnceCell<()>,
}

impl Replicas {
    pub(crate) fn new(at_least: u32, timeout: Duration, clients: Vec<Client>) -> Self {
        let clients = clients.into_iter().map(Mutex::new).collect();
        Self { at_least, timeout, clients, next: Default::default(), connected: OnceCell::new() }
    }

    /// A connection for one claim.
    pub(crate) async fn client(&self) -> MutexGuard<'_, Client> {
        let connect = || async {
            for client in &self.clients {
                // It goes on by itself, and tries again for as long as it takes.
                drop(client.lock().await.connect());
            }
        };
        self.connected.get_or_init(connect).await;
        if let Some(free) = self.clients.iter().find_map(|client| client.try_lock().ok()) {
            return free;
        }
        let turn = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % self.clients.len();
        self.clients[turn].lock().await
    }

    /// Waits until enough replicas have what was written to `key` on this connection. Half of the time limit at most, so
    /// that the answer comes within it.
    pub(crate) async fn have_it(&self, client: &Client, key: &str) -> Result<Result<(), StoreError>, Error> {
        let node = client.cached_cluster_state().and_then(|state| {
            let slot = ClusterRouting::hash_key(key.as_bytes());
            state.get_server(slot).cloned()
        });
        let options = Options { cluster_node: node, timeout: Some(self.timeout), ..Default::default() };
        let millis = i64::try_from((self.timeout / 2).as_millis()).unwrap_or(i64::MAX).max(1);
        let have: i64 = client.with_options(&options).wait(i64::from(self.at_least), millis).await?;
        if have >= i64::from(self.at_least) {
            return Ok(Ok(()));
        }
        let message = format!(
            "the claim reached {have} replicas of the {} that Builder::min_replicas asks for; it may be there, and can be \
             repeated with its token",
            self.at_least
        );
        Ok(Err(store_error(StoreErrorKind::Unavailable, "claim", message)))
    }
}
