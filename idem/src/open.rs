//! Opening a store that a URL names.

use std::{error::Error, sync::Arc};

use idem_core::Store;

/// A scheme that [`open`] knows.
struct Scheme {
    name: &'static str,
    /// Other spellings that lead to the same store, which knows what each of them means.
    aliases: &'static [&'static str],
    /// The feature of this crate that it comes with.
    feature: &'static str,
    /// How a URL of this scheme is written.
    form: &'static str,
}

const SCHEMES: [Scheme; 4] = [
    Scheme { name: "memory", aliases: &[], feature: "memory", form: "memory:" },
    Scheme { name: "sqlite", aliases: &[], feature: "sqlite", form: "sqlite:PATH" },
    Scheme {
        name: "postgres",
        aliases: &["postgresql"],
        feature: "postgres",
        form: "postgres://USER:PASSWORD@HOST:PORT/DATABASE",
    },
    Scheme {
        name: "redis",
        aliases: &[
            "rediss",
            "redis-cluster",
            "rediss-cluster",
            "redis-sentinel",
            "rediss-sentinel",
            "valkey",
            "valkeys",
            "valkey-cluster",
            "valkeys-cluster",
            "valkey-sentinel",
            "valkeys-sentinel",
        ],
        feature: "redis",
        form: "redis://USER:PASSWORD@HOST:PORT",
    },
];

/// Opens the store that a URL names, for programs that read it from their settings.
///
/// | URL | store | feature |
/// |---|---|---|
/// | `memory:` | a new one in this process, shared with nobody | `memory` (default) |
/// | `sqlite:PATH` | the SQLite file at `PATH`, which is made if it is not there | `sqlite` |
/// | `postgres://USER:PASSWORD@HOST:PORT/DATABASE` | the table `public.idem_records` of a PostgreSQL database, which is made if it is not there | `postgres` |
/// | `redis://USER:PASSWORD@HOST:PORT` | a Redis or Valkey server, under keys that begin with `idem` | `redis` |
/// | `redis-cluster://HOST:PORT?node=HOST:PORT` | a cluster of them | `redis` |
/// | `redis-sentinel://HOST:PORT?sentinelServiceName=NAME` | one that Sentinels watch | `redis` |
///
/// `PATH` is everything behind the colon, as it is: relative or absolute, with no escapes and no parameters. Two slashes
/// in front are taken as part of the scheme, so that `sqlite://data/idem.db` is the relative `data/idem.db` and
/// `sqlite:///var/idem.db` the absolute `/var/idem.db`.
///
/// A PostgreSQL URL may also begin with `postgresql://`, and may have parameters: `idem::postgres::PostgresStore::connect`
/// lists them, and its builder has what a URL can't say.
///
/// A Redis URL speaks TLS where its scheme has another `s` (`rediss://`, `rediss-cluster://`, `rediss-sentinel://`), and
/// may say `valkey` for `redis` in any of them. `idem::redis::RedisStore::connect` lists the parameters, its builder has
/// what a URL can't say, and **its documentation what Redis can lose**: read that before money depends on it.
///
/// Opening a file blocks the thread for as long as that takes: do it at start-up. **No server is connected to here**: that
/// happens in the first operation, or in [`Store::check`], which makes a database's table too. Run that on the result before
/// serving, whatever the store is.
///
/// # Errors
///
/// [`OpenError`] says which of its cases it is and what to do. It never shows more of a URL than its scheme, the names
/// of parameters, the path of a file, and a prefix of keys.
pub fn open(url: &str) -> Result<Arc<dyn Store>, OpenError> {
    let Some((name, rest)) = url.split_once(':').filter(|(name, _)| is_scheme(name)) else {
        return Err(OpenError::NotAUrl { known: forms() });
    };
    let Some(scheme) = SCHEMES.iter().find(|scheme| scheme.name == name || scheme.aliases.contains(&name)) else {
        return Err(OpenError::UnknownScheme { scheme: name.into(), known: forms() });
    };
    match scheme.name {
        #[cfg(feature = "memory")]
        "memory" => open_memory(scheme, rest),
        #[cfg(feature = "sqlite")]
        "sqlite" => open_sqlite(scheme, rest),
        #[cfg(feature = "postgres")]
        "postgres" => open_postgres(scheme, url, rest),
        #[cfg(feature = "redis")]
        "redis" => open_redis(scheme, url, rest),
        _ => {
            let _ = rest; // unused where no store is built in
            Err(OpenError::FeatureOff { scheme: scheme.name, feature: scheme.feature })
        }
    }
}

#[cfg(feature = "memory")]
fn open_memory(scheme: &Scheme, rest: &str) -> Result<Arc<dyn Store>, OpenError> {
    if !rest.is_empty() {
        let problem = "it takes nothing behind the colon";
        return Err(OpenError::Malformed { scheme: scheme.name, problem, form: scheme.form });
    }
    Ok(Arc::new(idem_memory::MemoryStore::new()))
}

#[cfg(feature = "sqlite")]
fn open_sqlite(scheme: &Scheme, rest: &str) -> Result<Arc<dyn Store>, OpenError> {
    let path = rest.strip_prefix("//").unwrap_or(rest);
    let problem = match path {
        "" => "it has no path",
        ":memory:" => "each connection would have a database of its own; use memory: for a store without a file",
        _ => {
            let opened = idem_sqlite::SqliteStore::open(path);
            let failed = |error| OpenError::Store { store: format!("sqlite:{path}"), source: Box::new(error) };
            return opened.map(|store| Arc::new(store) as _).map_err(failed);
        }
    };
    Err(OpenError::Malformed { scheme: scheme.name, problem, form: scheme.form })
}

#[cfg(feature = "postgres")]
fn open_postgres(scheme: &Scheme, url: &str, rest: &str) -> Result<Arc<dyn Store>, OpenError> {
    two_slashes(scheme, rest)?;
    let failed = |error| OpenError::Store { store: "the PostgreSQL store".into(), source: Box::new(error) };
    let store = idem_postgres::PostgresStore::builder(url).build().map_err(failed)?;
    Ok(Arc::new(store))
}

#[cfg(feature = "redis")]
fn open_redis(scheme: &Scheme, url: &str, rest: &str) -> Result<Arc<dyn Store>, OpenError> {
    two_slashes(scheme, rest)?;
    let failed = |error| OpenError::Store { store: "the Redis store".into(), source: Box::new(error) };
    let store = idem_redis::RedisStore::builder(url).build().map_err(failed)?;
    Ok(Arc::new(store))
}

/// What the URL of a server has behind its scheme.
#[cfg(any(feature = "postgres", feature = "redis"))]
fn two_slashes(scheme: &Scheme, rest: &str) -> Result<(), OpenError> {
    if rest.starts_with("//") {
        return Ok(());
    }
    let problem = "it has no // behind the colon";
    Err(OpenError::Malformed { scheme: scheme.name, problem, form: scheme.form })
}

/// Why [`open`] gave no store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// It does not begin with a scheme and a colon. It is not shown, since it may be a password.
    #[error("the store's URL has no scheme; write {known}")]
    NotAUrl {
        /// How the URLs that this version knows are written.
        known: String,
    },
    /// A scheme that this version has no store for.
    #[error("there is no store for {scheme}: URLs; write {known}")]
    UnknownScheme {
        /// The scheme.
        scheme: String,
        /// How the URLs that this version knows are written.
        known: String,
    },
    /// The store is not built in.
    #[error("the store for {scheme}: URLs is not built in; turn on the feature \"{feature}\" of the crate idem-keys")]
    FeatureOff {
        /// The scheme.
        scheme: &'static str,
        /// The feature to turn on.
        feature: &'static str,
    },
    /// The rest of the URL is not what its scheme takes.
    #[error("the {scheme}: URL is malformed: {problem}; write {form}")]
    Malformed {
        /// The scheme.
        scheme: &'static str,
        /// What is wrong.
        problem: &'static str,
        /// How a URL of this scheme is written.
        form: &'static str,
    },
    /// The store could not be opened: the backend's own error says why.
    #[error("can't open {store}: {source}")]
    Store {
        /// The store, without anything secret.
        store: String,
        /// The backend's error.
        source: Box<dyn Error + Send + Sync>,
    },
}

fn forms() -> String {
    SCHEMES.map(|scheme| scheme.form).join(" or ")
}

/// Whether it is a scheme by RFC 3986. What is none may be anything, and is not shown.
fn is_scheme(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &str = "memory: or sqlite:PATH or postgres://USER:PASSWORD@HOST:PORT/DATABASE or \
                         redis://USER:PASSWORD@HOST:PORT";

    /// The spellings of a scheme.
    fn spellings(name: &str) -> impl Iterator<Item = &'static str> {
        let scheme = SCHEMES.into_iter().find(|scheme| scheme.name == name).unwrap();
        [scheme.name].into_iter().chain(scheme.aliases.iter().copied())
    }

    fn refused(url: &str) -> OpenError {
        match open(url) {
            Ok(store) => panic!("{url} opened a {} store", store.backend()),
            Err(error) => error,
        }
    }

    #[test]
    fn each_documented_spelling_leads_to_its_store_and_no_other_does() {
        let spelled = [
            ("memory", "memory"),
            ("sqlite", "sqlite"),
            ("postgres", "postgres postgresql"),
            (
                "redis",
                "redis rediss redis-cluster rediss-cluster redis-sentinel rediss-sentinel \
                 valkey valkeys valkey-cluster valkeys-cluster valkey-sentinel valkeys-sentinel",
            ),
        ];
        for (name, expected) in spelled {
            assert_eq!(spellings(name).collect::<Vec<_>>().join(" "), expected);
        }
        assert_eq!(SCHEMES.map(|scheme| scheme.name).as_slice(), spelled.map(|(name, _)| name));
        for (scheme, feature) in SCHEMES.map(|scheme| (scheme.name, scheme.feature)) {
            assert_eq!(scheme, feature);
        }
        for other in ["postgresq:", "redi:", "redis-:", "svn+ssh:", "x.y:"] {
            assert!(matches!(refused(other), OpenError::UnknownScheme { .. }), "{other}");
        }
    }

    #[test]
    fn an_unknown_scheme_is_named_and_the_known_ones_are_listed() {
        let shown = refused("mysql://app:hunter2@db/idem").to_string();
        assert_eq!(shown, format!("there is no store for mysql: URLs; write {KNOWN}"));
    }

    #[test]
    fn what_has_no_scheme_is_refused_without_being_shown() {
        for url in ["", "hunter2", "app hunter2:x", ":memory:", "7up:x"] {
            let error = refused(url);
            assert!(matches!(error, OpenError::NotAUrl { .. }), "{url}");
            assert_eq!(error.to_string(), format!("the store's URL has no scheme; write {KNOWN}"));
        }
    }

    #[test]
    fn no_error_shows_a_password() {
        for url in [
            "mysql://app:hunter2@db/idem",
            "memory://app:hunter2@host",
            "app:hunter2",
            "hunter2@x",
            // Each is wrong in another place, so that it is refused whether the store is built in or not.
            "postgres:app:hunter2@db/idem",
            "postgres://app:hunter2@db:port/idem",
            "postgres://app:hunter2",
            "postgres://app:hunter2@db/idem?sslmode=sometimes",
            "postgresql://app:hunter2@db/idem?no_such_parameter=1",
            "postgres://app:%hunter2%zz@db:port/idem",
            "postgres://db:port/idem?user=app&password=hunter2",
            "redis:app:hunter2@cache",
            "redis://app:hunter2@cache:port",
            "redis://app:hunter2",
            "redis://app:hunter2@cache/idem",
            "rediss://app:hunter2@cache?sslrootcert=/no/such/file",
            "rediss://app:hunter2@cache?sslrootcert=%zz",
            "valkey://app:hunter2@cache?prefix=a%20b",
            "redis-sentinel://app:hunter2@cache",
            "redis-cluster://app:hunter2@cache?node=hunter2",
        ] {
            let error = refused(url);
            let mut shown = format!("{error} {error:?}");
            let mut source = error.source();
            while let Some(error) = source {
                shown.push_str(&format!(" {error} {error:?}"));
                source = error.source();
            }
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }

    #[cfg(feature = "memory")]
    #[test]
    fn memory_opens_a_store_and_takes_nothing_behind_the_colon() {
        assert_eq!(open("memory:").unwrap().backend(), "memory");
        let shown = refused("memory:x").to_string();
        assert_eq!(shown, "the memory: URL is malformed: it takes nothing behind the colon; write memory:");
    }

    #[cfg(not(feature = "sqlite"))]
    #[test]
    fn a_store_that_is_not_built_in_names_its_feature() {
        let shown = refused("sqlite:idem.db").to_string();
        assert!(shown.contains("turn on the feature \"sqlite\" of the crate idem-keys"), "{shown}");
    }

    #[cfg(not(all(feature = "postgres", feature = "redis")))]
    #[test]
    fn without_its_feature_the_url_of_a_server_names_that_in_each_spelling() {
        for (name, is_on) in [("postgres", cfg!(feature = "postgres")), ("redis", cfg!(feature = "redis"))] {
            for scheme in spellings(name).filter(|_| !is_on) {
                let shown = refused(&format!("{scheme}://app:hunter2@db/idem")).to_string();
                assert!(shown.contains(&format!("turn on the feature \"{name}\" of the crate idem-keys")), "{shown}");
                assert!(!shown.contains("hunter2"), "{shown}");
            }
        }
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn a_postgres_store_opens_in_each_spelling_without_a_runtime_and_without_its_server() {
        for scheme in spellings("postgres") {
            let store = open(&format!("{scheme}://app:hunter2@nowhere.invalid:1/idem?connect_timeout=3")).unwrap();
            assert_eq!(store.backend(), "postgres");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_redis_store_opens_in_each_spelling_without_a_runtime_and_without_its_server() {
        let servers = "app:hunter2@nowhere.invalid:1?node=elsewhere.invalid:2&sentinelServiceName=main&prefix=shop";
        for scheme in spellings("redis") {
            if ["rediss", "valkeys"].iter().any(|with_tls| scheme.starts_with(with_tls)) {
                // The file is read, and only for TLS.
                let error = refused(&format!("{scheme}://{servers}&sslrootcert=/no/such/ca.pem"));
                assert!(error.to_string().contains("/no/such/ca.pem"), "{scheme}: {error}");
            } else {
                assert_eq!(open(&format!("{scheme}://{servers}")).unwrap().backend(), "redis", "{scheme}");
            }
        }
    }

    #[cfg(any(feature = "postgres", feature = "redis"))]
    #[tokio::test]
    async fn a_server_that_is_not_there_is_told_by_the_check() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for url in [
            #[cfg(feature = "postgres")]
            format!("postgres://app:hunter2@{free}/idem"),
            #[cfg(feature = "redis")]
            format!("redis://app:hunter2@{free}"),
        ] {
            let error = open(&url).unwrap().check().await.unwrap_err();
            assert_eq!(error.kind(), idem_core::StoreErrorKind::Unavailable, "{error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn a_postgres_url_that_can_not_be_read_says_what_is_wrong_with_it() {
        for (url, part) in [
            (
                "postgres:app@db/idem",
                "the postgres: URL is malformed: it has no // behind the colon; write postgres://",
            ),
            ("postgres://app@db:port/idem", "can't open the PostgreSQL store: the PostgreSQL URL can't be read"),
            ("postgres://app@db/idem?sslmode=sometimes", "sslmode is none of disable"),
        ] {
            let error = refused(url);
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_redis_url_that_can_not_be_read_says_what_is_wrong_with_it() {
        for (url, part) in [
            ("rediss:cache", "the redis: URL is malformed: it has no // behind the colon; write redis://"),
            ("redis://cache:port", "can't open the Redis store: the Redis URL can't be read; write redis://"),
            ("redis-sentinel://cache", "redis-sentinel://HOST:PORT?sentinelServiceName=NAME"),
            ("redis://cache?prefix=a*", "can't open the Redis store: the prefix \"a*\" is not"),
        ] {
            let error = refused(url);
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_sqlite_file_opens_at_its_path_in_each_spelling() {
        let folder = tempfile::tempdir().unwrap();
        for slashes in ["", "//"] {
            let path = folder.path().join(format!("idem{}.db", slashes.len()));
            let store = open(&format!("sqlite:{slashes}{}", path.display())).unwrap();
            assert_eq!(store.backend(), "sqlite");
            assert!(path.exists());
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_bad_path_is_shown_with_the_error_of_the_backend_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing/idem.db");
        let error = refused(&format!("sqlite:{}", path.display()));
        assert!(error.to_string().starts_with(&format!("can't open sqlite:{}: ", path.display())), "{error}");
        assert!(error.source().is_some());
        for url in ["sqlite:", "sqlite://", "sqlite::memory:"] {
            assert!(matches!(refused(url), OpenError::Malformed { scheme: "sqlite", .. }), "{url}");
        }
    }
}
