//! A Redis of a test's own, which it may stop, kill, pause, replicate and reach through TLS.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::client::{RedisConnection, Reply};
use super::program::{Program, program, tls_program};
use super::server::{ADMIN, Ports, Role, Server};
use crate::private::checked_setting;
use crate::{tls, url};

/// The certificate of the authority, in the server's folder.
const CA_FILE: &str = "ca.crt";

/// How a server speaks TLS; clients have no certificates.
const TLS_SETTINGS: &str =
    "tls-auth-clients no\ntls-ca-cert-file ca.crt\ntls-cert-file server.crt\ntls-key-file server.key\n";

/// Settings of a private Redis.
///
/// By default every write is appended to a file, and the system is never asked to bring it to the disk
/// (`appendonly yes`, `appendfsync no`). A kill loses nothing that was answered, since the server hands a write to the
/// system before it answers, and only a crash of the whole machine would. `everysec` is the weaker choice here: while
/// its sync runs, the server answers writes that it still keeps to itself.
#[derive(Debug, Clone, Default)]
pub struct RedisSettings {
    lines: Vec<(String, String)>,
    password: Option<String>,
    identity: Option<Arc<tls::Identity>>,
    /// Whether servers talk to each other through TLS.
    peers_use_tls: bool,
}

impl RedisSettings {
    /// The defaults: the server's own, except for `appendonly yes`, `appendfsync no`, `save ""` and
    /// `maxmemory-policy noeviction`. `DEBUG` is allowed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A line of redis.conf: the name of a setting and what stands behind it, as it stands there, such as
    /// `("maxmemory", "2mb")` or `("client-output-buffer-limit", "normal 1mb 1mb 10")`. An empty value is `""`. Of a
    /// setting that has one value, the last counts.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        let value = if value.is_empty() { "\"\"" } else { value };
        self.lines.push(checked_setting(name, value));
        self
    }

    /// The password that clients must give (`requirepass`). [`PrivateRedis::url`] holds it.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.set("requirepass", &quoted(password))
    }

    /// Another user, with its password and the rules of what it may do, such as `~app:* +@read +set`.
    #[must_use]
    pub fn user(self, name: &str, password: &str, rules: &str) -> Self {
        self.set("user", &format!("{name} on {} {rules}", quoted(&format!(">{password}"))))
    }

    /// Speaks TLS on a second port, with a certificate for this host name (or address) by an authority of its own (see
    /// [`PrivateRedis::ca_file`]). That port is reached as `localhost` and as `127.0.0.1`: a certificate for anything
    /// else is one for a wrong host. Servers with clones of these settings have the same certificate; in a cluster, and
    /// with Sentinels, they talk to each other through TLS, too.
    ///
    /// # Panics
    ///
    /// If no certificate can be made for it.
    #[must_use]
    pub fn tls(mut self, host: &str) -> Self {
        self.identity = Some(Arc::new(tls::identity(host)));
        self
    }

    /// For servers that work together: through TLS if they speak it.
    pub(super) fn for_peers(mut self) -> Self {
        self.peers_use_tls = self.identity.is_some();
        self
    }

    /// What speaks TLS as well, and does so when it talks to servers.
    pub(super) fn peer_configuration(&self, ports: Ports) -> String {
        match self.peers_use_tls {
            true => format!("tls-port {}\n{TLS_SETTINGS}tls-replication yes\n", ports.tls),
            false => String::new(),
        }
    }

    /// With these before its own, which count more.
    pub(super) fn before(mut self, defaults: &[(&str, &str)]) -> Self {
        let defaults = defaults.iter().map(|(name, value)| checked_setting(name, value));
        self.lines = defaults.chain(self.lines).collect();
        self
    }

    fn configuration(&self, folder: &Path, ports: Ports) -> String {
        let folder = quoted(&folder.to_string_lossy());
        let mut text = format!(
            "bind 127.0.0.1\nport {}\ndir {folder}\n\
             appendonly yes\nappendfsync no\nsave \"\"\nmaxmemory-policy noeviction\n\
             enable-debug-command local\nrepl-diskless-sync-delay 0\n\
             user {admin} on >{password} ~* &* +@all\nmasteruser {admin}\nmasterauth {password}\n",
            ports.plain,
            admin = ADMIN.0,
            password = ADMIN.1,
        );
        if self.identity.is_some() && !self.peers_use_tls {
            let _ = write!(text, "tls-port {}\n{TLS_SETTINGS}", ports.tls);
        }
        text.push_str(&self.peer_configuration(ports));
        if self.lines.iter().any(|(name, _)| name == "cluster-enabled") {
            let _ = writeln!(text, "cluster-port {}", ports.bus);
            if self.peers_use_tls {
                text.push_str("tls-cluster yes\n");
            }
        }
        self.lines.iter().for_each(|(name, value)| {
            let _ = writeln!(text, "{name} {value}");
        });
        text
    }

    /// What servers with these settings run.
    pub(super) fn program(&self) -> &'static Program {
        if self.identity.is_some() { tls_program() } else { program() }
    }

    /// What the server finds in its folder.
    pub(super) fn files(&self) -> Vec<(&str, &str)> {
        let Some(identity) = &self.identity else { return Vec::new() };
        vec![("server.crt", &*identity.certificate), ("server.key", &identity.key), (CA_FILE, &identity.authority)]
    }
}

/// A Redis server of a test's own, on a loopback port of its own, with its data in a temporary folder. Unless its
/// settings say otherwise, whoever reaches the loopback interface may use it without a password. Ends when it is
/// dropped, and with this process.
#[derive(Debug)]
pub struct PrivateRedis {
    server: Server,
    settings: RedisSettings,
}

impl PrivateRedis {
    /// Starts a server and waits until it answers.
    ///
    /// # Panics
    ///
    /// If Redis is not installed (the message says how to install it), is too old, or does not start (with its log).
    #[must_use]
    pub fn start(settings: RedisSettings) -> Self {
        let configuration = |folder: &Path, ports| settings.configuration(folder, ports);
        let server = Server::start(settings.program(), Role::Data, &settings.files(), configuration);
        Self { server, settings }
    }

    /// A replica of this server with the same settings, on a port of its own. When this returns, it has a copy of the
    /// data and follows.
    ///
    /// # Panics
    ///
    /// If this server does not run or the replica can't be made.
    #[must_use]
    pub fn replica(&self) -> Self {
        let replica = Self::start(self.settings.clone());
        replica.follow(self);
        replica
    }

    /// Makes this server a replica of another one, whose data replace its own, and waits until it follows and can be
    /// killed without losing them. Restarts keep it so.
    ///
    /// # Panics
    ///
    /// If one of them does not run, or it does not come to follow.
    pub fn follow(&self, primary: &Self) {
        self.command(&["REPLICAOF", "127.0.0.1", &primary.peer_port().to_string()]);
        self.command(&["CONFIG", "REWRITE"]);
        self.await_copy();
    }

    /// Waits until a replica has a copy of its primary's data, follows, and can be killed without losing them.
    pub(super) fn await_copy(&self) {
        self.server.wait_until("the replica follows", |server| {
            let is = |section, name, value| Ok::<_, std::io::Error>(server.info(section, name)? == value);
            // A copy is in memory only until the rewrite of the file that follows it has ended.
            Ok(is("replication", "master_link_status", "up")?
                && is("persistence", "aof_rewrite_in_progress", "0")?
                && is("persistence", "aof_rewrite_scheduled", "0")?)
        });
    }

    /// Makes a replica a primary of its own (`REPLICAOF NO ONE`), with what has reached it. Restarts keep it so.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn promote(&self) {
        self.command(&["REPLICAOF", "NO", "ONE"]);
        self.command(&["CONFIG", "REWRITE"]);
    }

    /// Waits until a replica of this server has all that this server had written when this was called.
    ///
    /// # Panics
    ///
    /// If one of them does not run, or the replica does not get there within a minute.
    pub fn await_replica(&self, replica: &Self) {
        let offset = |server: &Server, name: &str| -> std::io::Result<i64> {
            server.info("replication", name)?.parse().map_err(std::io::Error::other)
        };
        let written = offset(&self.server, "master_repl_offset");
        let written = written.unwrap_or_else(|error| panic!("the primary: {error}\n{}", self.log()));
        replica
            .server
            .wait_until("the replica has it all", |replica| Ok(offset(replica, "slave_repl_offset")? >= written));
    }

    /// The address, `redis://[default:password@]127.0.0.1:port`.
    #[must_use]
    pub fn url(&self) -> String {
        self.address("redis", "127.0.0.1", self.server.ports().plain)
    }

    /// The address of the port that speaks TLS, `rediss://[default:password@]127.0.0.1:port`.
    ///
    /// # Panics
    ///
    /// If the server was not started with [`RedisSettings::tls`].
    #[must_use]
    pub fn tls_url(&self) -> String {
        assert!(self.settings.identity.is_some(), "this server was started without TLS");
        self.address("rediss", "127.0.0.1", self.server.ports().tls)
    }

    /// As [`PrivateRedis::tls_url`], by the host name `localhost`.
    ///
    /// # Panics
    ///
    /// As [`PrivateRedis::tls_url`].
    #[must_use]
    pub fn localhost_tls_url(&self) -> String {
        self.tls_url().replacen("127.0.0.1", "localhost", 1)
    }

    /// The certificate of the authority that vouches for this server, and for those with clones of its settings, a PEM file.
    ///
    /// # Panics
    ///
    /// If the server was not started with [`RedisSettings::tls`].
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        assert!(self.settings.identity.is_some(), "this server was started without TLS");
        self.server.folder().join(CA_FILE)
    }

    /// The loopback port. It stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.ports().plain
    }

    /// The port on which other servers reach this one as clients do.
    pub(super) fn peer_port(&self) -> u16 {
        let ports = self.server.ports();
        if self.settings.peers_use_tls { ports.tls } else { ports.plain }
    }

    /// The port on which nodes of a cluster talk to each other.
    pub(super) fn bus_port(&self) -> u16 {
        self.server.ports().bus
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// The process id of the server, or nothing while it is stopped.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.server.process_id()
    }

    /// The temporary folder that holds the data, the settings and the log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.server.folder()
    }

    /// Whose server it is: `Redis`, or `Valkey` if `IDEM_TEST_REDIS_SERVER` names one (that can what the settings ask for).
    #[must_use]
    pub fn server_name(&self) -> &str {
        &self.server.program().version.name
    }

    /// Its version: 7.0.15 is `(7, 0, 15)`.
    #[must_use]
    pub fn version(&self) -> (u32, u32, u32) {
        self.server.program().version.number
    }

    /// Runs a command over a connection of its own, as a user who may do everything.
    ///
    /// # Panics
    ///
    /// If the server can't be reached or refuses it, or no answer comes within a minute.
    pub fn command<W: AsRef<[u8]>>(&self, words: &[W]) -> Reply {
        self.server.command(words)
    }

    /// As [`PrivateRedis::command`], with the refusal.
    ///
    /// # Errors
    ///
    /// What the server says when it refuses it, the code first; or why it can't be reached.
    pub fn try_command<W: AsRef<[u8]>>(&self, words: &[W]) -> Result<Reply, String> {
        self.server.try_command(words).map_err(|error| error.to_string())
    }

    /// A connection for several commands, as a user who may do everything.
    ///
    /// # Panics
    ///
    /// If the server can't be reached.
    #[must_use]
    pub fn connect(&self) -> RedisConnection {
        self.server.connect().unwrap_or_else(|error| panic!("port {}: {error}\n{}", self.port(), self.log()))
    }

    /// The last lines of the server's log.
    #[must_use]
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Shuts the server down in good order: connections are closed, what it has written is kept. Nothing if it is
    /// stopped.
    ///
    /// # Panics
    ///
    /// If it does not end.
    pub fn stop(&self) {
        self.server.stop();
    }

    /// Kills the server and all its processes with SIGKILL, as a crash would. When this returns all of them are gone and
    /// their connections are cut. Nothing if it is stopped.
    ///
    /// # Panics
    ///
    /// If they do not end.
    pub fn kill(&self) {
        self.server.kill();
    }

    /// Starts a server that was stopped or killed, with the same data on the same port, and waits until it has read them
    /// and answers. What `CONFIG SET` changed is as it was, and no script is known. Nothing if it runs.
    ///
    /// # Panics
    ///
    /// If it does not start (with its log).
    pub fn start_again(&self) {
        self.server.start_again();
    }

    /// [`PrivateRedis::stop`], then [`PrivateRedis::start_again`].
    ///
    /// # Panics
    ///
    /// As these two.
    pub fn restart(&self) {
        self.stop();
        self.start_again();
    }

    /// Holds the server and all its processes still (SIGSTOP): connections stay open and nothing answers. Nothing if it
    /// is stopped.
    pub fn pause(&self) {
        self.server.pause();
    }

    /// Ends a pause. What was sent meanwhile is executed now.
    pub fn resume(&self) {
        self.server.resume();
    }

    fn address(&self, scheme: &str, host: &str, port: u16) -> String {
        let login = self.settings.password.as_ref().map(|password| format!("default:{}@", url::encoded(password)));
        format!("{scheme}://{}{host}:{port}", login.unwrap_or_default())
    }
}

/// One word of redis.conf.
fn quoted(word: &str) -> String {
    format!("\"{}\"", word.replace('\\', r"\\").replace('"', "\\\""))
}
