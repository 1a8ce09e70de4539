//! Whether a store can keep its promise.

use bytes::Bytes;
use fred::{
    clients::Client,
    types::{InfoKind, config::Server},
};
use idem_core::{StoreError, StoreErrorKind};

use crate::{
    RedisStore,
    error::{redis_error, store_error},
    link::Call,
};

const OPERATION: &str = "check";

/// The oldest server that has what the store needs (`SET … NX GET`).
const OLDEST: u32 = 7;

/// How many keys are tried to find one on a certain node: one of 16384 slots is enough for it to be found.
const PROBES: u32 = 1_000_000;

/// For how long a probe stays if its removal gets lost.
const PROBE_MILLIS: i64 = 60_000;

impl RedisStore {
    pub(crate) async fn check_servers(&self) -> Result<(), StoreError> {
        let masters = self.inner.link.masters(OPERATION).await?;
        for (node, client) in &masters {
            self.check_node(client, node.as_ref()).await?;
            self.check_rights(client, node.as_ref()).await?;
        }
        self.look_at_clock(OPERATION, &self.inner.names.probe(0)).await?;
        // The listener goes on, for the waits to come.
        self.inner.listener.listen(OPERATION, &self.inner.link).await
    }

    async fn check_node(&self, client: &Client, node: Option<&Server>) -> Result<(), StoreError> {
        let info = async |kind| self.inner.link.info(OPERATION, client.clone(), kind).await;
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
        // Redis says the one, Valkey the other.
        let mode = field(&server, "redis_mode").or_else(|| field(&server, "server_mode"));
        if node.is_none() && mode == Some("cluster") {
            return refused("the server is a node of a cluster; write redis-cluster:// in the URL".into());
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
            tracing::warn!(
                policy,
                limit,
                "records may be removed when the server's memory is full{on}, as was accepted"
            );
        }
        let replicas = field(&replication, "connected_slaves").and_then(|count| count.parse::<u32>().ok()).unwrap_or(0);
        if let Some(asked) = self.inner.link.replicas.as_ref().map(|asked| asked.at_least)
            && replicas < asked
        {
            let message = format!(
                "the server has {replicas} replicas{on}, and Builder::min_replicas asks for {asked}: no claim would count; \
                 wait for them, add some, or ask for fewer"
            );
            return Err(store_error(StoreErrorKind::Unavailable, OPERATION, message));
        }
        if field(&persistence, "aof_enabled") != Some("1") {
            tracing::warn!(
                "the server has no append-only file{on}: a restart loses records, and their keys can be claimed again"
            );
        }
        Ok(())
    }

    /// Whether the user may do what the store does, tried out where no record is.
    async fn check_rights(&self, master: &Client, node: Option<&Server>) -> Result<(), StoreError> {
        let inner = &*self.inner;
        let (link, scripts) = (&inner.link, &inner.scripts);
        inner.link.page(OPERATION, master.clone(), "0", &inner.names.pattern(None), 1).await?;
        if let Some(replicas) = &link.replicas {
            replicas.try_out(node).await.map_err(|error| redis_error(OPERATION, error))?;
        }
        let Some(key) = self.probe_on(node) else { return Ok(()) };
        let value = Bytes::from_static(b"a probe");
        link.set_unreplicated(OPERATION, &key, value.clone(), PROBE_MILLIS).await?;
        link.value(OPERATION, &key).await?;
        let call = Call { key, now: None, ends: Some((inner.names.channel(), "0".into())) };
        link.bring(OPERATION, &scripts.look, &call).await?;
        // Not there any more if two stores check at the same time.
        link.script(OPERATION, &scripts.remove, &call, vec![value.into()]).await?;
        Ok(())
    }

    /// A key that is on the node. None if it has none at all.
    fn probe_on(&self, node: Option<&Server>) -> Option<String> {
        let mut probes = (0..PROBES).map(|number| self.inner.names.probe(number));
        match node {
            None => probes.next(),
            Some(_) => probes.find(|probe| self.inner.link.node_of(probe).as_ref() == node),
        }
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn refused<T>(message: String) -> Result<T, StoreError> {
    Err(store_error(StoreErrorKind::Configuration, OPERATION, message))
}
