//! Where it is measured: a server, and a schema of its own in there.

use std::{num::NonZeroUsize, sync::Arc};

use idem_postgres::PostgresStore;
use test_servers::{PgBouncer, PgBouncerSettings, PrivatePostgres, Settings, query, query_value};

use crate::{Failure, cli::Options, operations::AnyStore, postgres::POOL};

/// A server and a schema that holds nothing else.
pub(crate) struct Place {
    pub(crate) url: String,
    schema: String,
    /// None is a server that somebody else runs.
    server: Option<PrivatePostgres>,
}

impl Place {
    /// Starts a server, unless one was given.
    pub(crate) fn prepare(options: &Options) -> Self {
        let server = options.url.is_none().then(|| {
            // Each commit waits for the disk, as it does for users. What comes and goes by itself stays quiet: a
            // checkpoint, or a vacuum, would hit one side of a round only.
            let settings = Settings::new().fsync(true).set("checkpoint_timeout", "1d").set("max_wal_size", "64GB");
            PrivatePostgres::start(settings.set("autovacuum", "off").set("shared_buffers", "256MB"))
        });
        let url = match (&server, &options.url) {
            (Some(server), _) => server.url(),
            (None, url) => url.clone().unwrap_or_default(),
        };
        Self { url, schema: format!("idem_bench_{}", std::process::id()), server }
    }

    pub(crate) fn describe(&self) -> String {
        let setting = |name: &str| {
            tokio::task::block_in_place(|| query_value(&self.url, &format!("SELECT current_setting('{name}')")))
        };
        format!(
            "PostgreSQL {}, fsync {}, synchronous_commit {}; client and server on {} cores",
            setting("server_version"),
            setting("fsync"),
            setting("synchronous_commit"),
            std::thread::available_parallelism().map_or(0, NonZeroUsize::get),
        )
    }

    /// The name of a table, as it is written in a statement.
    pub(crate) fn table(&self, name: &str) -> String {
        format!(r#""{}"."{name}""#, self.schema)
    }

    /// The store whose records are in that table, reached through an address of the same server. The table is made if
    /// it is not there.
    pub(crate) async fn store(&self, table: &str, url: &str) -> Result<AnyStore, Failure> {
        self.opened(PostgresStore::builder(url), table).await
    }

    /// The same through a PgBouncer.
    pub(crate) async fn store_through_pooler(&self, table: &str, url: &str) -> Result<AnyStore, Failure> {
        self.opened(PostgresStore::builder(url).through_pooler(), table).await
    }

    async fn opened(&self, builder: idem_postgres::Builder, table: &str) -> Result<AnyStore, Failure> {
        let connections = NonZeroUsize::new(POOL).ok_or("a pool has connections")?;
        Ok(Arc::new(builder.schema(&self.schema).table(table).max_connections(connections).connect().await?))
    }

    /// A PgBouncer in transaction mode in front of the server.
    pub(crate) fn pooler(&self) -> PgBouncer {
        tokio::task::block_in_place(|| PgBouncer::start(&self.url, PgBouncerSettings::new()))
    }

    /// Removes what was made on a server of somebody else's.
    pub(crate) fn clear(&self) {
        if self.server.is_none() {
            query(&self.url, &format!(r#"DROP SCHEMA IF EXISTS "{}" CASCADE"#, self.schema));
        }
    }
}
