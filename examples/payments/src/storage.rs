//! Opening the store and the ledger that the command line names.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use idem::{Store, postgres::PostgresStore, sqlite::SqliteStore};
use tokio_postgres::{Config, config::SslMode};

use crate::{
    Failure,
    client::chain,
    ledger::{Ledger, MemoryLedger, PostgresLedger, SqliteLedger},
};

pub(crate) const MEMORY: &str = "memory:";

/// The store, the ledger, and whether they share a database.
pub(crate) struct Storage {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ledger: Ledger,
    pub(crate) together: Option<Together>,
}

/// The store again, with the connection to its own database, where payments live in that: row and record are then
/// committed together.
#[derive(Clone)]
pub(crate) enum Together {
    Sqlite(SqliteStore, SqliteLedger),
    Postgres(PostgresStore, PostgresLedger),
}

/// Opens both, and checks that the store can keep its promise. Blocks where it opens a file.
pub(crate) async fn open(store_url: &str, ledger_url: Option<&str>) -> Result<Storage, Failure> {
    let (option, ledger_url) = match ledger_url {
        Some(url) => ("--ledger", url),
        None if keeps_payments(store_url) => ("--store", store_url),
        None => {
            let backend = KnownStore::open(store_url)?.shared().backend();
            return Err(Failure::Usage(format!(
                "--store: a {backend} store keeps records only; name a database for the payments, in which a unique \
                 column is the second layer: --ledger sqlite:PATH or --ledger postgres://USER:PASSWORD@HOST:PORT/DATABASE"
            )));
        }
    };
    let place = Place::of(ledger_url).map_err(|problem| Failure::Usage(format!("{option}: {problem}")))?;
    let known = KnownStore::open(store_url)?;
    let store = known.shared();
    store.check().await.map_err(|error| format!("--store: {error}"))?;
    let ledger = place.open().await?;
    let together = match (known, &ledger) {
        _ if !place.is_the_database_of(store_url) => None,
        (KnownStore::Sqlite(store), Ledger::Sqlite(ledger)) => Some(Together::Sqlite(store, ledger.clone())),
        (KnownStore::Postgres(store), Ledger::Postgres(ledger)) => Some(Together::Postgres(store, ledger.clone())),
        _ => None,
    };
    Ok(Storage { store, ledger, together })
}

/// A store, as the type that it is where a caller's transaction can complete its records.
enum KnownStore {
    Sqlite(SqliteStore),
    Postgres(PostgresStore),
    Other(Arc<dyn Store>),
}

impl KnownStore {
    fn open(url: &str) -> Result<Self, Failure> {
        if let Some(path) = sqlite_path(url) {
            let failed = |error| format!("--store: can't open sqlite:{}: {error}", path.display());
            return Ok(Self::Sqlite(SqliteStore::open(&path).map_err(failed)?));
        }
        if is_postgres(url) {
            // It connects when it is checked.
            let store = PostgresStore::builder(url).build();
            return store.map(Self::Postgres).map_err(|error| Failure::Usage(format!("--store: {error}")));
        }
        idem::open(url).map(Self::Other).map_err(|error| Failure::Usage(format!("--store: {error}")))
    }

    fn shared(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(store) => Arc::new(store.clone()),
            Self::Postgres(store) => Arc::new(store.clone()),
            Self::Other(store) => Arc::clone(store),
        }
    }
}

/// Where a ledger, or what the demo begins with, can be.
pub(crate) enum Place {
    Memory,
    Sqlite(PathBuf),
    Postgres(Box<Config>),
}

impl Place {
    /// What a URL names, or what is wrong with it. No more of it is shown than the names of parameters.
    pub(crate) fn of(url: &str) -> Result<Self, String> {
        if url == MEMORY {
            return Ok(Self::Memory);
        }
        if let Some(path) = sqlite_path(url) {
            return Ok(Self::Sqlite(path));
        }
        if !is_postgres(url) {
            return Err("it is memory: or sqlite:PATH or postgres://USER:PASSWORD@HOST:PORT/DATABASE".into());
        }
        if url.contains("pgbouncer=true") {
            return Err("the ledger of this example does not go through PgBouncer: name its database directly with \
                        --ledger, or keep payments elsewhere"
                .into());
        }
        match url.parse::<Config>() {
            Ok(config) if config.get_ssl_mode() != SslMode::Require => Ok(Self::Postgres(Box::new(config))),
            // What the driver does not know.
            Err(error) if !url.contains("sslmode=verify-") => {
                Err(format!("the ledger can't read the PostgreSQL URL: {}", chain(&error)))
            }
            _ => Err(
                "the ledger of this example connects without TLS: write sslmode=prefer or disable, or keep payments \
                      elsewhere with --ledger"
                    .into(),
            ),
        }
    }

    async fn open(&self) -> Result<Ledger, String> {
        let opened = match self {
            Self::Memory => Ok(Ledger::Memory(Arc::new(MemoryLedger::default()))),
            Self::Sqlite(path) => SqliteLedger::open(path).map(Ledger::Sqlite),
            Self::Postgres(config) => PostgresLedger::open(config).await.map(Ledger::Postgres),
        };
        opened.map_err(|error| error.to_string())
    }

    /// Whether a store's URL leads to this database too.
    fn is_the_database_of(&self, store_url: &str) -> bool {
        match (self, Self::of(store_url)) {
            (Self::Sqlite(one), Ok(Self::Sqlite(other))) => is_same_file(one, &other),
            (Self::Postgres(one), Ok(Self::Postgres(other))) => {
                let database =
                    |of: &Config| (of.get_dbname().or(of.get_user()).map(str::to_owned), of.get_ports().to_vec());
                one.get_hosts() == other.get_hosts() && database(one) == database(&other)
            }
            _ => false,
        }
    }
}

/// Whether payments can live where a store's URL leads. Otherwise they need a ledger of their own.
pub(crate) fn keeps_payments(store_url: &str) -> bool {
    store_url == MEMORY || sqlite_path(store_url).is_some() || is_postgres(store_url)
}

fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}

/// The file that a `sqlite:` URL names, if it is one and names one: the rules of [`idem::open`].
fn sqlite_path(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    (!path.is_empty() && path != ":memory:").then(|| path.into())
}

/// Whether two paths of files that exist lead to one file.
fn is_same_file(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn row_and_record_are_committed_together_where_they_share_a_database() {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("sqlite:{}", folder.path().join("a.db").display());
        let same = format!("sqlite://{}", folder.path().join("./a.db").display());
        let other = format!("sqlite:{}", folder.path().join("b.db").display());
        let server = test_servers::postgres();
        let (database, another) = (server.create_database(&[]), server.create_database(&[]));
        let redis = format!("{}?prefix={}", test_servers::redis().url(), test_servers::redis().prefix());
        let respelled = format!("{}?application_name=ledger", database.replace("postgres://", "postgresql://"));
        for (store, ledger, together) in [
            (&*store, None, true),
            (&store, Some(&*same), true),
            (&store, Some(&other), false),
            (&store, Some("memory:"), false),
            (&store, Some(&database), false),
            ("memory:", None, false),
            ("memory:", Some(&other), false),
            ("memory:", Some(&database), false),
            (&database, None, true),
            (&database, Some(&respelled), true),
            (&database, Some(&another), false),
            (&database, Some(&other), false),
            (&database, Some("memory:"), false),
            (&redis, Some(&other), false),
            (&redis, Some(&database), false),
            (&redis, Some("memory:"), false),
        ] {
            let storage = open(store, ledger).await.ok().unwrap();
            assert_eq!(storage.together.is_some(), together, "{store} {ledger:?}");
            let expected = ledger.unwrap_or(store).split(':').next().unwrap();
            let opened = match storage.ledger {
                Ledger::Memory(_) => "memory",
                Ledger::Sqlite(_) => "sqlite",
                Ledger::Postgres(_) => "postgres",
            };
            assert!(expected.starts_with(opened), "{store} {ledger:?}");
        }
    }

    #[tokio::test]
    async fn a_url_that_names_no_store_is_refused_with_its_option() {
        for (store, ledger, part) in [
            ("mysql://u:secret@h", None, "--store: there is no store for mysql: URLs"),
            ("sqlite:", None, "--store: the sqlite: URL is malformed"),
            ("redis://u:secret@h", None, "--store: a redis store keeps records only; name a database for the payments"),
            ("valkey-cluster://u:secret@h", None, "--ledger sqlite:PATH"),
            ("redis://u:secret@h:port", None, "--store: can't open the Redis store: the Redis URL can't be read"),
            ("redis://u:secret@h:port", Some("memory:"), "--store: can't open the Redis store"),
            ("memory:", Some("redis://u:secret@h"), "--ledger: it is memory: or sqlite:PATH or postgres://"),
            ("rediss://u:secret@h?sslrootcert=/no/such/ca.pem", Some("memory:"), "/no/such/ca.pem"),
            ("postgres://u:secret@h:port/d", None, "--store: the ledger can't read the PostgreSQL URL"),
            ("postgres://u:secret@h/d?sslmode=sometimes", Some("memory:"), "--store: the PostgreSQL URL can't be read"),
            ("memory:", Some("mysql://u:secret@h"), "--ledger: it is memory: or sqlite:PATH or postgres://"),
            ("memory:", Some("postgres://u:secret@h:port/d"), "--ledger: the ledger can't read the PostgreSQL URL"),
            (
                "postgres://u:secret@h/d?pgbouncer=true",
                None,
                "--store: the ledger of this example does not go through PgBouncer",
            ),
            (
                "postgres://u:secret@h/d?sslmode=verify-full",
                None,
                "--store: the ledger of this example connects without",
            ),
            (
                "memory:",
                Some("postgres://u:secret@h/d?sslmode=require"),
                "--ledger: the ledger of this example connects",
            ),
        ] {
            let Some(Failure::Usage(problem)) = open(store, ledger).await.err() else {
                panic!("{store} {ledger:?} is no mistake in the command line");
            };
            assert!(problem.contains(part) && !problem.contains("secret"), "{problem}");
        }
    }

    #[tokio::test]
    async fn a_database_that_can_not_be_opened_is_an_error_that_says_which() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let nobody = format!("postgres://u:secret@{free}/d");
        let no_redis = format!("redis://u:secret@{free}");
        for (store, ledger, part) in [
            ("sqlite:missing/a.db", None, "missing/a.db"),
            (&*nobody, None, "--store: "),
            (&*no_redis, Some("memory:"), "--store: "),
            ("memory:", Some(&*nobody), "the ledger: "),
        ] {
            let Some(Failure::Run(problem)) = open(store, ledger).await.err() else {
                panic!("{store} {ledger:?} was opened, or is taken for a mistake in the command line");
            };
            assert!(problem.contains(part) && !problem.contains("secret"), "{problem}");
        }
    }
}
