//! The Redis server that all tests of a process share.

mod client;
mod cluster;
mod private;
mod program;
mod sentinel;
mod server;

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

pub use self::client::{RedisConnection, Reply, redis_command};
pub use self::cluster::RedisCluster;
pub use self::private::{PrivateRedis, RedisSettings};
use self::program::{Version, asked_version};
pub use self::sentinel::{RedisSentinel, Sentinel};
use crate::port;
use crate::url::RedisAddress;

/// The environment variable that names a server to use instead of a private one.
const VARIABLE: &str = "IDEM_TEST_REDIS_URL";

/// The Redis server of this process, started on first use with the defaults of [`RedisSettings`]. If
/// `IDEM_TEST_REDIS_URL` is set, that server is used and none is started.
///
/// # Panics
///
/// If there is no server and none can be started, the message says what to install; if the server is too old.
pub fn redis() -> &'static Redis {
    static SERVER: OnceLock<Redis> = OnceLock::new();
    SERVER.get_or_init(Redis::new)
}

/// A Redis server. Tests may run in it at the same time, keep apart by the prefixes of their keys, and must not stop it,
/// flush it or change its settings.
#[derive(Debug)]
pub struct Redis {
    /// Keeps the private server alive; nothing if the server is not ours.
    server: Option<PrivateRedis>,
    url: String,
    version: Version,
    prefix: String,
    prefixes: AtomicU32,
}

impl Redis {
    /// The address, `redis://[user:password@]host:port[/database]`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A prefix for keys that nobody else has got or will get, `idem-test:…:`, also on a server that others use. Nobody
    /// removes what is kept under it on a server that is not private: give it an expiry.
    pub fn prefix(&self) -> String {
        format!("{}{}:", self.prefix, self.prefixes.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Runs a command over a connection of its own.
    ///
    /// # Panics
    ///
    /// If the server refuses it, or no answer comes within a minute.
    pub fn command<W: AsRef<[u8]>>(&self, words: &[W]) -> Reply {
        redis_command(&self.url, words)
    }

    /// Whose server it is: `Redis` or `Valkey`.
    #[must_use]
    pub fn server_name(&self) -> &str {
        &self.version.name
    }

    /// Its version: 7.0.15 is `(7, 0, 15)`.
    #[must_use]
    pub fn version(&self) -> (u32, u32, u32) {
        self.version.number
    }

    /// Whether the server belongs to this process alone.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.server.is_some()
    }

    /// The process id of a private server.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.server.as_ref()?.process_id()
    }

    /// The private server's folder.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.server.as_ref().map(PrivateRedis::folder)
    }

    fn new() -> Self {
        let (server, url) = match std::env::var(VARIABLE) {
            Ok(url) => (None, url),
            Err(std::env::VarError::NotPresent) => {
                let server = PrivateRedis::start(RedisSettings::new());
                let url = server.url();
                (Some(server), url)
            }
            Err(error) => panic!("{VARIABLE} can't be read: {error}"),
        };
        let version = version_of(&url);
        let prefix = format!("idem-test:{}:{:08x}:", std::process::id(), port::random() as u32);
        Self { server, url, version, prefix, prefixes: AtomicU32::new(0) }
    }
}

/// The version of a server that runs.
fn version_of(url: &str) -> Version {
    let address = RedisAddress::parse(url);
    let whose = format!("the server at {}:{}", address.host, address.port);
    let info = RedisConnection::to(&address).and_then(|mut connection| connection.ask(&["INFO", "server"]));
    let info = info.unwrap_or_else(|error| panic!("{whose} can't be used: {error}")).text();
    asked_version(&info).unwrap_or_else(|| panic!("{whose} does not say its version")).checked(&whose)
}
