//! A PostgreSQL of a test's own, which it may stop, kill, pause and replicate.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::folder::Folder;
use crate::keeper::Keeper;
use crate::{find, folder, port, process, sql, tls, url};

/// How long a server may take to accept connections.
const START: Duration = Duration::from_secs(60);
/// A fast shutdown; if it does not come to an end, an immediate one (the server kills its own children then).
const STOP: &str = "INT 300 QUIT 100 KILL 100";
/// Nobody needs the data afterwards, so an immediate shutdown may follow soon.
const END: &str = "INT 20 QUIT 100 KILL 100";
/// The certificate of the authority, in the server's folder.
const CA_FILE: &str = "ca.crt";

/// Settings of a private server.
///
/// By default `fsync` is off: a kill of its processes loses nothing, since the system keeps what they wrote; only a
/// crash of the whole machine would. A test that counts syncs, or that measures, turns it on.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    lines: Vec<(String, String)>,
    access: Vec<String>,
    tls_host: Option<String>,
}

impl Settings {
    /// The defaults: the server's own, except for `fsync = off` and `max_connections = 300`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A setting of postgresql.conf. The last value given for a name counts.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.lines.push(checked_setting(name, value));
        self
    }

    /// Whether each commit waits for the disk.
    #[must_use]
    pub fn fsync(self, on: bool) -> Self {
        self.set("fsync", if on { "on" } else { "off" })
    }

    /// A line of pg_hba.conf before the ones that let everybody in, such as
    /// `host all reader 127.0.0.1/32 scram-sha-256`. The superuser must stay able to log in without a password.
    #[must_use]
    pub fn access(mut self, line: &str) -> Self {
        self.access.push(line.to_owned());
        self
    }

    /// Speaks TLS to clients that ask for it, with a certificate for this host name by an authority of its own (see
    /// [`PrivatePostgres::ca_file`]). The server is reached as `localhost` and as `127.0.0.1`: a certificate for anything
    /// else is one for a wrong host.
    #[must_use]
    pub fn tls(mut self, host: &str) -> Self {
        self.tls_host = Some(host.to_owned());
        self.set("ssl", "on")
    }

    fn configuration(&self) -> String {
        let fixed = [
            // Loopback only; no socket in a folder that all users share.
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("max_connections", "300"),
            ("fsync", "off"),
            ("log_line_prefix", "%m [%p] "),
        ];
        let fixed = fixed.iter().map(|(name, value)| (*name, *value));
        let own = self.lines.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        fixed.chain(own).map(|(name, value)| format!("{name} = '{}'\n", value.replace('\'', "''"))).collect()
    }
}

/// A PostgreSQL server of a test's own, on a loopback port of its own, with its data in a temporary folder. Whoever
/// reaches the loopback interface may log in to it without a password. Ends when it is dropped, and with this process.
#[derive(Debug)]
pub struct PrivatePostgres {
    inner: Mutex<Inner>,
    folder: PathBuf,
    binaries: PathBuf,
    port: u16,
}

#[derive(Debug)]
struct Inner {
    keeper: Keeper,
    /// The process id of the server, while it runs.
    server: Option<u32>,
    /// The server and its children, while they are paused.
    paused: Vec<u32>,
}

impl PrivatePostgres {
    /// Makes a database cluster, starts a server on it and waits until that accepts connections.
    ///
    /// # Panics
    ///
    /// If PostgreSQL is not installed (the message says how to install it) or does not start (with its log).
    #[must_use]
    pub fn start(settings: Settings) -> Self {
        let binaries = find::postgres_binaries().unwrap_or_else(|| panic!("{NOT_INSTALLED}"));
        let (folder, mut keeper) = kept_folder();
        let initdb = binaries.join("initdb");
        let data = folder.join("data");
        let made = keeper.run(
            &folder.join("log"),
            &[
                &text(&initdb),
                "--username=postgres",
                "--encoding=UTF8",
                "--locale=C",
                "--auth=trust",
                "--no-sync",
                "--no-instructions",
                "-D",
                &text(&data),
            ],
        );
        assert!(made, "{} failed:\n{}", initdb.display(), log_tail(&folder));
        append(&data.join("postgresql.conf"), &settings.configuration());
        if let Some(host) = &settings.tls_host {
            let identity = tls::identity(host);
            // Where the server looks for them unless it is told otherwise.
            folder::write_private(&data.join("server.crt"), &identity.certificate);
            folder::write_private(&data.join("server.key"), &identity.key);
            folder::write_private(&folder.join(CA_FILE), &identity.authority);
        }
        if !settings.access.is_empty() {
            let rules = data.join("pg_hba.conf");
            let others = std::fs::read_to_string(&rules).unwrap_or_else(|error| panic!("{}: {error}", rules.display()));
            folder::write_private(&rules, &format!("{}\n{others}", settings.access.join("\n")));
        }
        Self::launch(keeper, folder, binaries)
    }

    /// A read-only replica of this server, streaming from it, on a port of its own.
    ///
    /// # Panics
    ///
    /// If this server does not run or the replica can't be made.
    #[must_use]
    pub fn standby(&self) -> Self {
        let (folder, mut keeper) = kept_folder();
        let copied = keeper.run(
            &folder.join("log"),
            &[
                &text(&self.binaries.join("pg_basebackup")),
                "--host=127.0.0.1",
                &format!("--port={}", self.port),
                "--username=postgres",
                "--checkpoint=fast",
                "--no-sync",
                "--wal-method=stream",
                "--write-recovery-conf",
                "-D",
                &text(&folder.join("data")),
            ],
        );
        assert!(copied, "pg_basebackup failed:\n{}", log_tail(&folder));
        append(&folder.join("data/postgresql.conf"), "hot_standby = on\n");
        Self::launch(keeper, folder, self.binaries.clone())
    }

    /// The address of the database `postgres`, as its superuser.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// As [`PrivatePostgres::url`], by the host name `localhost`.
    #[must_use]
    pub fn localhost_url(&self) -> String {
        format!("postgres://postgres@localhost:{}/postgres", self.port)
    }

    /// The certificate of the authority that vouches for this server, a PEM file. No other server's authority does.
    ///
    /// # Panics
    ///
    /// If the server was not started with [`Settings::tls`].
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        let file = self.folder.join(CA_FILE);
        assert!(file.exists(), "this server was started without TLS");
        file
    }

    /// The loopback port. It stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id of the server, or nothing while it is stopped.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.lock().server
    }

    /// The temporary folder that holds the data and the log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Creates an empty database with `ALTER DATABASE … SET` for each option, and gives its address.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    pub fn create_database(&self, name: &str, options: &[(&str, &str)]) -> String {
        create_database(&self.url(), name, options)
    }

    /// The last lines of the server's log.
    #[must_use]
    pub fn log(&self) -> String {
        log_tail(&self.folder)
    }

    /// Shuts the server down in good order: connections are closed, transactions rolled back. Nothing if it is stopped.
    ///
    /// # Panics
    ///
    /// If it does not end.
    pub fn stop(&self) {
        let mut inner = self.lock();
        if inner.server.take().is_some() {
            process::signal("CONT", &std::mem::take(&mut inner.paused));
            assert!(inner.keeper.stop(STOP), "the server does not stop:\n{}", self.log());
        }
    }

    /// Kills the server and all its processes with SIGKILL, as a crash would. When this returns all of them are gone and
    /// their connections are cut. Nothing if it is stopped.
    ///
    /// # Panics
    ///
    /// If they do not end.
    pub fn kill(&self) {
        let mut inner = self.lock();
        let Some(server) = inner.server.take() else { return };
        inner.paused.clear();
        // The server is held still first, so that it starts no child that is missed and does not see them die.
        let children = process::freeze(server);
        process::signal("KILL", &children);
        assert!(inner.keeper.stop("KILL 300"), "process {server} outlives SIGKILL");
        process::await_end(&children, START);
    }

    /// Starts a server that was stopped or killed, with the same data on the same port, and waits until it accepts
    /// connections. Nothing if it runs.
    ///
    /// # Panics
    ///
    /// If it does not start (with its log).
    pub fn start_again(&self) {
        let mut inner = self.lock();
        if inner.server.is_some() {
            return;
        }
        let deadline = Instant::now() + START;
        let failure = loop {
            match run(&mut inner.keeper, &self.folder, &self.binaries, self.port) {
                Ok(server) => {
                    inner.server = Some(server);
                    return;
                }
                Err(Failure::PortTaken) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
                Err(failure) => break failure,
            }
        };
        drop(inner);
        panic!("PostgreSQL does not start again on port {}: {failure:?}\n{}", self.port, self.log());
    }

    /// [`PrivatePostgres::stop`], then [`PrivatePostgres::start_again`].
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
        let mut inner = self.lock();
        if let Some(server) = inner.server {
            let children = process::freeze(server);
            process::signal("STOP", &children);
            inner.paused = children;
            inner.paused.push(server);
        }
    }

    /// Ends a pause.
    pub fn resume(&self) {
        process::signal("CONT", &std::mem::take(&mut self.lock().paused));
    }

    fn launch(mut keeper: Keeper, folder: PathBuf, binaries: PathBuf) -> Self {
        // Another process may take the port between the look and the start.
        for _ in 0..20 {
            let port = port::free();
            match run(&mut keeper, &folder, &binaries, port) {
                Ok(server) => {
                    let inner = Mutex::new(Inner { keeper, server: Some(server), paused: Vec::new() });
                    return Self { inner, folder, binaries, port };
                }
                Err(Failure::PortTaken) => {}
                Err(Failure::Other(what)) => panic!("PostgreSQL does not start: {what}\n{}", log_tail(&folder)),
            }
        }
        panic!("PostgreSQL finds no free port:\n{}", log_tail(&folder));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A test that panicked in here must not keep the others from ending the server.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What to do where no server is installed.
const NOT_INSTALLED: &str = "\
these tests start a PostgreSQL server of their own, and none is installed. Install one, nothing has to be configured:
  - ./scripts/install-servers
  - or apt-get install postgresql (Debian, Ubuntu), brew install postgresql (macOS)
  - or, for the tests that don't stop their server: docker compose up --detach --wait, and
    IDEM_TEST_POSTGRES_URL=postgres://postgres:idem@127.0.0.1:54329/postgres";

#[derive(Debug)]
enum Failure {
    PortTaken,
    Other(String),
}

/// Starts a server and waits until it accepts connections.
fn run(keeper: &mut Keeper, folder: &Path, binaries: &Path, port: u16) -> Result<u32, Failure> {
    let (data, log) = (folder.join("data"), folder.join("log"));
    let before = std::fs::metadata(&log).map_or(0, |data| data.len());
    let command = [&text(&binaries.join("postgres")), "-D", &text(&data), "-p", &port.to_string()];
    let server = keeper.start(&log, &command);
    let deadline = Instant::now() + START;
    while !is_ready(&data, server) {
        if !process::is_running(server) {
            keeper.stop("KILL 10");
            return Err(if log_since(&log, before).contains("could not bind") {
                Failure::PortTaken
            } else {
                Failure::Other("it ended at once".to_owned())
            });
        }
        if Instant::now() > deadline {
            keeper.stop(END);
            return Err(Failure::Other(format!("it accepts no connections after {START:?}")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    match sql::try_query(&format!("postgres://postgres@127.0.0.1:{port}/postgres"), "SELECT 1") {
        Ok(_) => Ok(server),
        Err(error) => {
            keeper.stop(END);
            Err(Failure::Other(sql::describe(&error)))
        }
    }
}

/// Whether the server with that process id says that it accepts connections. Asking the port alone could reach the
/// server of another process.
fn is_ready(data: &Path, server: u32) -> bool {
    let file = std::fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    let mut lines = file.lines();
    lines.next().is_some_and(|id| id.trim() == server.to_string()) && lines.nth(6).is_some_and(|s| s.trim() == "ready")
}

/// A setting that stays on its line.
pub(crate) fn checked_setting(name: &str, value: &str) -> (String, String) {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    assert!(!name.is_empty() && name.chars().all(known), "{name:?} is no name of a setting");
    assert!(!value.contains('\n'), "the value of {name} holds a line break");
    (name.to_owned(), value.to_owned())
}

/// A temporary folder and its keeper.
fn kept_folder() -> (PathBuf, Keeper) {
    let mut folder = Folder::new("idem-postgres-");
    let keeper = Keeper::new("PostgreSQL", &mut folder, END);
    (folder.path().to_path_buf(), keeper)
}

/// Creates an empty database next to the one in `url` and gives its address.
pub(crate) fn create_database(url: &str, name: &str, options: &[(&str, &str)]) -> String {
    // template1 may hold what its owner put there, and can't be copied while somebody looks at it.
    sql::query(url, &format!("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'", identifier(name)));
    for (option, value) in options {
        let option: Vec<String> = option.split('.').map(identifier).collect();
        let value = value.replace('\'', "''");
        sql::query(url, &format!("ALTER DATABASE {} SET {} = '{value}'", identifier(name), option.join(".")));
    }
    url::with_database(url, name)
}

pub(crate) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn append(path: &Path, lines: &str) {
    let old = std::fs::read_to_string(path).unwrap_or_default();
    folder::write_private(path, &format!("{old}\n{lines}"));
}

fn text(path: &Path) -> String {
    path.to_str().unwrap_or_else(|| panic!("{} is not UTF-8", path.display())).to_owned()
}

/// The end of a server's log.
pub(crate) fn log_tail(folder: &Path) -> String {
    let log = log_since(&folder.join("log"), 0);
    let lines: Vec<&str> = log.lines().collect();
    format!("the end of its log:\n{}", lines[lines.len().saturating_sub(40)..].join("\n"))
}

/// What the log has got since it was `offset` bytes long.
pub(crate) fn log_since(log: &Path, offset: u64) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    String::from_utf8_lossy(&bytes[offset..]).into_owned()
}
