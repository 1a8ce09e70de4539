//! Where it is measured: a server, whose databases keep the measures apart.

use std::{num::NonZeroUsize, sync::Arc};

use idem_core::Claim;
use idem_redis::RedisStore;
use test_servers::{PrivateRedis, RedisConnection, RedisSettings, Reply};

use crate::{Failure, cli::Aof, operations::AnyStore};

// The databases of the measures.
pub(crate) const SPEED: usize = 0;
pub(crate) const TRIPS: usize = 1;
/// The first of three.
pub(crate) const MEMORY: usize = 2;
/// The first of three.
pub(crate) const GROWTH: usize = 5;

/// A server of our own.
pub(crate) struct Place {
    pub(crate) server: PrivateRedis,
    aof: Aof,
}

impl Place {
    /// Starts a server.
    pub(crate) fn prepare(aof: Aof) -> Self {
        let settings = match aof {
            Aof::No => RedisSettings::new().set("appendonly", "no"),
            Aof::Everysec => RedisSettings::new().set("appendfsync", "everysec"),
            Aof::Always => RedisSettings::new().set("appendfsync", "always"),
        };
        // A rewrite of the file would hit one side of a round only.
        Self { server: PrivateRedis::start(settings.set("auto-aof-rewrite-percentage", "0")), aof }
    }

    pub(crate) fn describe(&self) -> String {
        let (major, minor, patch) = self.server.version();
        let persistence = match self.aof {
            Aof::No => "no append-only file",
            Aof::Everysec => "appendfsync everysec",
            Aof::Always => "appendfsync always",
        };
        format!(
            "{} {major}.{minor}.{patch}, {persistence}; client and server on {} cores",
            self.server.server_name(),
            std::thread::available_parallelism().map_or(0, NonZeroUsize::get),
        )
    }

    /// The address of a database.
    pub(crate) fn url(&self, database: usize) -> String {
        format!("{}/{database}", self.server.url())
    }

    /// Runs a command in a database.
    pub(crate) fn command<W: AsRef<[u8]>>(&self, database: usize, words: &[W]) -> Reply {
        tokio::task::block_in_place(|| RedisConnection::open(&self.url(database)).command(words))
    }

    /// Removes what a turn has left, so that every turn finds as many keys as the one before it.
    pub(crate) fn remove(&self, database: usize, names: Vec<String>) {
        let words: Vec<String> = std::iter::once("DEL".into()).chain(names).collect();
        if words.len() > 1 {
            self.command(database, &words);
        }
    }
}

/// A store as a service opens it.
pub(crate) async fn opened(url: &str) -> Result<AnyStore, Failure> {
    Ok(Arc::new(RedisStore::connect(url).await?))
}

/// What the server's key of a claim is. Our scopes and keys have nothing that is written in another way.
pub(crate) fn name(claim: &Claim) -> String {
    format!("idem:r:{}:{}", claim.scope().as_str(), claim.key().as_str())
}

pub(crate) fn names(claims: &[Claim]) -> Vec<String> {
    claims.iter().map(name).collect()
}
