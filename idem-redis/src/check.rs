//! Whether a store can keep its promise.

use fred::{
    clients::Client,
    interfaces::{ClientLike, ClusterInterface},
    types::{
        InfoKind,
        config::{Options, Server},
    },
};
use idem_core::{StoreError, StoreErrorKind, Timestamp};

use crate::{error::store_error, store::Inner};

const OPERATION: &str = "check";

/// The oldest server that has what the store needs (`SET … NX GET`).
const OLDEST: u32 = 7;

pub(crate) async fn run(inner: &Inner) -> Result<(), StoreError> {
    let client = inner.link.client().await;
    let connected = inner.link.call(OPERATION, client.wait_for_connect()).await;
    connected?;
    for node in nodes(client) {
        check_node(inner, client, node).await?;
    }
    Ok(())
}

/// Every node that takes writes; one that is not named where there is no cluster.
fn nodes(client: &Client) -> Vec<Option<Server>> {
    match client.cached_cluster_state() {
        Some(state) if client.is_clustered() => state.unique_primary_nodes().into_iter().map(Some).collect(),
        _ => vec![None],
    }
}

async fn check_node(inner: &Inner, client: &Client, node: Option<Server>) -> Result<(), StoreError> {
    let options = Options { cluster_node: node.clone(), timeout: Some(inner.link.timeout), ..Default::default() };
    let asked = client.with_options(&options);
    let info = async |kind| inner.link.call(OPERATION, asked.info::<String>(Some(kind))).await;
    let (server, memory) = (info(InfoKind::Server).await?, info(InfoKind::Memory).await?);
    let (persistence, replication) = (info(InfoKind::Persistence).await?, info(InfoKind::Replication).await?);
    let on = node.map(|node| format!(" (node {node})")).unwrap_or_default();

    let version = field(&server, "redis_version").unwrap_or("unknown");
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < OLDEST) {
        return refused(format!("the server is version {version}{on}; this store needs Redis 7 or newer, or Valkey"));
    }
    if field(&replication, "role") != Some("master") {
        return refused(format!("the server is a replica{on}, which takes no writes; connect to the primary"));
    }
    let policy = field(&memory, "maxmemory_policy").unwrap_or("noeviction");
    let has_limit = field(&memory, "maxmemory").is_some_and(|bytes| bytes != "0");
    if policy != "noeviction" && !inner.accepts_eviction {
        return refused(format!(
            "the server removes keys of its own accord when its memory is full (maxmemory-policy {policy}{on}), and a record \
             that is removed is a key that can be claimed twice; set it to noeviction, or say Builder::accept_eviction"
        ));
    }
    if policy != "noeviction" {
        tracing::warn!(policy, has_limit, "records may be removed when the server's memory is full, as was accepted");
    }
    if field(&persistence, "aof_enabled") != Some("1") {
        tracing::warn!(
            "the server has no append-only file{on}: a restart loses records, and their keys can be claimed again"
        );
    }
    if let Some(micros) = field(&server, "server_time_usec").and_then(|micros| micros.parse::<i64>().ok()) {
        inner.clock.learn(Timestamp::from_millis(micros / 1_000));
    }
    Ok(())
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn refused<T>(message: String) -> Result<T, StoreError> {
    Err(store_error(StoreErrorKind::Configuration, OPERATION, message))
}
