//! Whether a store can keep its promise.

use bytes::Bytes;
use fred::{
    clients::Client,
    interfaces::{ClientLike, ClusterInterface},
    types::{
        InfoKind, Key,
        config::{Options, Server},
    },
};
use idem_core::{StoreError, StoreErrorKind};

use crate::{
    RedisStore,
    error::store_error,
    link::{Call, running},
};

const OPERATION: &str = "check";

/// The oldest server that has what the store needs (`SET … NX GET`).
const OLDEST: u32 = 7;

/// For how long a probe stays if its removal gets lost.
const PROBE_MILLIS: i64 = 60_000;

impl RedisStore {
    pub(crate) async fn check_servers(&self) -> Result<(), StoreError> {
        let client = self.inner.link.client();
        // The first answer: from here on the client knows the nodes of a cluster.
        self.learn(OPERATION).await?;
        for node in nodes(&client) {
            self.check_node(&client, node).await?;
        }
        self.check_rights().await
    }

    async fn check_node(&self, client: &Client, node: Option<Server>) -> Result<(), StoreError> {
        let link = &self.inner.link;
        let options = Options { cluster_node: node.clone(), timeout: Some(link.timeout), ..Default::default() };
        let info = async |kind| {
            let asked = client.with_options(&options);
            link.call(OPERATION, running(|| async move { asked.info::<String>(Some(kind)).await })).await
        };
        let (server, memory) = (info(InfoKind::Server).await?, info(InfoKind::Memory).await?);
        let (persistence, replication) = (info(InfoKind::Persistence).await?, info(InfoKind::Replication).await?);
        let on = node.map(|node| format!(" (node {node})")).unwrap_or_default();

        let version = field(&server, "redis_version").unwrap_or("unknown");
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_none_or(|major| major < OLDEST) {
            return refused(format!(
                "the server is version {version}{on}; this store needs Redis 7 or newer, or Valkey"
            ));
        }
        if field(&replication, "role") != Some("master") {
            return refused(format!("the server is a replica{on}, which takes no writes; connect to the primary"));
        }
        let policy = field(&memory, "maxmemory_policy").unwrap_or("noeviction");
        let limit = field(&memory, "maxmemory").unwrap_or("0");
        if policy != "noeviction" && !self.inner.accepts_eviction {
            return refused(format!(
                "the server removes keys of its own accord when its memory is full (maxmemory-policy {policy}, maxmemory \
                 {limit}{on}), and a record that is removed is a key that can be claimed twice; set it to noeviction, or \
                 accept it with Builder::accept_eviction"
            ));
        }
        if policy != "noeviction" {
            tracing::warn!(policy, limit, "records may be removed when the server's memory is full, as was accepted");
        }
        if field(&persistence, "aof_enabled") != Some("1") {
            tracing::warn!(
                "the server has no append-only file{on}: a restart loses records, and their keys can be claimed again"
            );
        }
        Ok(())
    }

    /// Whether the user may do what the store does, tried out where no record is.
    async fn check_rights(&self) -> Result<(), StoreError> {
        let inner = &*self.inner;
        let (link, scripts) = (&inner.link, &inner.scripts);
        let key: Key = inner.names.probe().into();
        let value = Bytes::from_static(b"a probe");
        link.set_unreplicated(OPERATION, key.clone(), value.clone(), PROBE_MILLIS).await?;
        let call = Call { key, now: None, ends: Some((inner.names.channel(), "0".into())) };
        link.script(OPERATION, &scripts.look, &call, Vec::new()).await?;
        // Not there any more if two stores check at the same time.
        link.script(OPERATION, &scripts.remove, &call, vec![value.into()]).await?;
        Ok(())
    }
}

/// Every node that takes writes; one that is not named where there is no cluster.
fn nodes(client: &Client) -> Vec<Option<Server>> {
    match client.cached_cluster_state() {
        Some(state) if client.is_clustered() => state.unique_primary_nodes().into_iter().map(Some).collect(),
        _ => vec![None],
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn refused<T>(message: String) -> Result<T, StoreError> {
    Err(store_error(StoreErrorKind::Configuration, OPERATION, message))
}
