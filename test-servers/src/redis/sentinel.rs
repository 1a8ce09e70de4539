//! A primary, its replica and the Sentinels that watch them.

use std::path::Path;

use super::client::Reply;
use super::private::{PrivateRedis, RedisSettings};
use super::server::{ADMIN, Role, Server};

/// The name under which clients ask Sentinels for the primary.
const SERVICE: &str = "idem";
const SENTINELS: usize = 3;
/// How many Sentinels must miss a primary.
const QUORUM: usize = 2;

/// A primary and a replica, watched by three Sentinels of which two must agree. Ends when it is dropped, and with this
/// process.
///
/// A primary that does not answer for a second is missed, and the replica is promoted one to a few seconds later.
#[derive(Debug)]
pub struct RedisSentinel {
    nodes: [PrivateRedis; 2],
    sentinels: Vec<Sentinel>,
}

impl RedisSentinel {
    /// Starts all of them. When this returns, the replica follows, and every Sentinel knows both and the other Sentinels.
    ///
    /// # Panics
    ///
    /// As [`PrivateRedis::start`], or if they do not get to know each other.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(RedisSettings::new())
    }

    /// As [`RedisSentinel::start`], with settings for primary and replica. If they speak TLS, so do the Sentinels.
    ///
    /// # Panics
    ///
    /// As [`RedisSentinel::start`].
    #[must_use]
    pub fn start_with(settings: RedisSettings) -> Self {
        let settings = settings.for_peers();
        let primary = PrivateRedis::start(settings.clone());
        let replica = primary.replica();
        let sentinels: Vec<Sentinel> =
            (0..SENTINELS).map(|_| Sentinel::start(primary.peer_port(), &settings)).collect();
        for sentinel in &sentinels {
            sentinel.await_acquaintance();
        }
        Self { nodes: [primary, replica], sentinels }
    }

    /// The address for clients,
    /// `redis-sentinel://[default:password@]127.0.0.1:port?node=127.0.0.1:port&…&sentinelServiceName=…`. It names all
    /// Sentinels; user and password are those of the data nodes.
    #[must_use]
    pub fn url(&self) -> String {
        let data = self.nodes[0].url();
        let login = data.strip_prefix("redis://").and_then(|rest| rest.rsplit_once('@'));
        let login = login.map_or(String::new(), |(login, _)| format!("{login}@"));
        let nodes: String =
            self.sentinels[1..].iter().map(|sentinel| format!("node=127.0.0.1:{}&", sentinel.port())).collect();
        let first = self.sentinels[0].port();
        format!("redis-sentinel://{login}127.0.0.1:{first}?{nodes}sentinelServiceName={SERVICE}")
    }

    /// The same for clients that speak TLS.
    ///
    /// # Panics
    ///
    /// If they were started without [`RedisSettings::tls`].
    #[must_use]
    pub fn tls_url(&self) -> String {
        let _ = self.nodes[0].tls_url();
        let plain = self.url().replacen("redis-sentinel://", "rediss-sentinel://", 1);
        let ports = self.sentinels.iter().map(|sentinel| sentinel.0.ports());
        ports.fold(plain, |url, ports| url.replace(&format!(":{}", ports.plain), &format!(":{}", ports.tls)))
    }

    /// The name under which clients ask Sentinels for the primary.
    #[must_use]
    pub fn service(&self) -> &'static str {
        SERVICE
    }

    /// Primary and replica, in the order in which they began as such.
    #[must_use]
    pub fn nodes(&self) -> &[PrivateRedis; 2] {
        &self.nodes
    }

    /// The Sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Sentinel] {
        &self.sentinels
    }

    /// The node that all Sentinels which answer name as the primary. Waits until they agree, and until it says so itself
    /// unless it is stopped or paused.
    ///
    /// # Panics
    ///
    /// If they do not agree within a minute.
    #[must_use]
    pub fn primary(&self) -> &PrivateRedis {
        self.await_primary(|_| true)
    }

    /// Waits until another node than this one is the primary, for all Sentinels that answer and for itself, and gives it.
    ///
    /// # Panics
    ///
    /// If none is within a minute.
    pub fn await_failover(&self, from: &PrivateRedis) -> &PrivateRedis {
        self.await_primary(|port| port != from.port())
    }

    /// Makes the Sentinels replace a primary that is well, and gives the new one.
    ///
    /// # Panics
    ///
    /// If they refuse or do not do it within a minute.
    pub fn failover(&self) -> &PrivateRedis {
        let old = self.primary();
        let sentinel = self.sentinels.iter().find(|sentinel| sentinel.0.is_answering());
        let sentinel = sentinel.unwrap_or_else(|| panic!("no Sentinel runs"));
        sentinel.command(&["SENTINEL", "FAILOVER", SERVICE]);
        self.await_failover(old)
    }

    fn await_primary(&self, wanted: impl Fn(u16) -> bool) -> &PrivateRedis {
        let mut found = None;
        self.sentinels[0].0.wait_until("the Sentinels agree on a primary", |_| {
            let mut named = None;
            for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.0.is_answering()) {
                let address = sentinel.0.try_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])?;
                let port = address.list()[1].integer();
                if named.replace(port).is_some_and(|other| other != port) {
                    return Ok(false);
                }
            }
            found = self.nodes.iter().find(|node| named == Some(node.peer_port().into()) && wanted(node.port()));
            let Some(node) = found else { return Ok(false) };
            Ok(!node.server().is_answering() || node.server().info("replication", "role")? == "master")
        });
        found.expect("it was waited for")
    }
}

/// One Sentinel.
#[derive(Debug)]
pub struct Sentinel(Server);

impl Sentinel {
    fn start(primary: u16, settings: &RedisSettings) -> Self {
        let server = Server::start(settings.program(), Role::Sentinel, &settings.files(), |folder, ports| {
            let tls = settings.peer_configuration(ports);
            format!(
                "bind 127.0.0.1\nport {port}\ndir \"{folder}\"\n{tls}\
                 sentinel monitor {SERVICE} 127.0.0.1 {primary} {QUORUM}\n\
                 sentinel auth-user {SERVICE} {user}\nsentinel auth-pass {SERVICE} {password}\n\
                 sentinel down-after-milliseconds {SERVICE} 1000\nsentinel failover-timeout {SERVICE} 3000\n",
                port = ports.plain,
                folder = folder.display(),
                user = ADMIN.0,
                password = ADMIN.1,
            )
        });
        let sentinel = Self(server);
        sentinel.hurry();
        sentinel
    }

    /// The loopback port. It stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.0.ports().plain
    }

    /// The process id, or nothing while it is stopped.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.0.process_id()
    }

    /// The temporary folder that holds the settings and the log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.0.folder()
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.0.log()
    }

    /// Runs a command over a connection of its own.
    ///
    /// # Panics
    ///
    /// If it can't be reached or refuses it, or no answer comes within a minute.
    pub fn command<W: AsRef<[u8]>>(&self, words: &[W]) -> Reply {
        self.0.command(words)
    }

    /// Kills it with SIGKILL. Nothing if it is stopped.
    ///
    /// # Panics
    ///
    /// If it does not end.
    pub fn kill(&self) {
        self.0.kill();
    }

    /// Starts it on the same port, with what it knew, after it was killed. Nothing if it runs.
    ///
    /// # Panics
    ///
    /// If it does not start (with its log).
    pub fn start_again(&self) {
        self.0.start_again();
        self.hurry();
    }

    /// Holds it still (SIGSTOP). Nothing if it is stopped.
    pub fn pause(&self) {
        self.0.pause();
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.0.resume();
    }

    /// Makes it look at the nodes and talk to the others more often than every 10 s and 2 s, and lets it act on a machine
    /// so busy that it stands still for more than 2 s: otherwise it would then do nothing for half a minute.
    fn hurry(&self) {
        let settings = ["INFO-PERIOD", "500", "PUBLISH-PERIOD", "200", "TILT-TRIGGER", "60000"];
        self.command(&[&["SENTINEL", "DEBUG"], settings.as_slice()].concat());
    }

    /// Waits until it knows the primary, the replica and the other Sentinels.
    fn await_acquaintance(&self) {
        self.0.wait_until("the Sentinel knows everybody", |server| {
            let primary = fields(&server.try_command(&["SENTINEL", "MASTER", SERVICE])?);
            let replicas = server.try_command(&["SENTINEL", "REPLICAS", SERVICE])?;
            let value = |fields: &[(String, String)], name: &str| {
                fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.clone()).unwrap_or_default()
            };
            let [replica] = replicas.list() else { return Ok(false) };
            let replica = fields(replica);
            Ok(value(&primary, "flags") == "master"
                && value(&primary, "num-other-sentinels") == (SENTINELS - 1).to_string()
                && value(&replica, "flags") == "slave"
                && value(&replica, "master-link-status") == "ok")
        });
    }
}

/// Names and values that follow each other in a list.
fn fields(reply: &Reply) -> Vec<(String, String)> {
    reply.list().chunks_exact(2).map(|pair| (pair[0].text(), pair[1].text())).collect()
}
