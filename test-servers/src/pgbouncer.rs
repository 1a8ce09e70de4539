//! A PgBouncer in front of a PostgreSQL server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tokio_postgres::config::Host;

use crate::folder::Folder;
use crate::keeper::Keeper;
use crate::private::{checked_setting, log_since, log_tail};
use crate::{find, folder, port, process, sql, url};

/// How long it may take to accept connections.
const START: Duration = Duration::from_secs(60);
/// At once; what its clients do is lost, and the server rolls it back.
const END: &str = "TERM 50 KILL 100";

/// Settings of a PgBouncer.
#[derive(Debug, Clone, Default)]
pub struct PgBouncerSettings {
    lines: Vec<(String, String)>,
}

impl PgBouncerSettings {
    /// Transaction mode, 20 server connections per database, and no support of named prepared statements: versions
    /// from 1.21 can have it and get it by `set("max_prepared_statements", "100")`.
    ///
    /// `ignore_startup_parameters` stays unset, so that a client that sends parameters that PgBouncer does not know
    /// fails here as it would for users.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many connections to the server a database gets. Further clients wait for a free one.
    #[must_use]
    pub fn pool_size(self, connections: u32) -> Self {
        self.set("default_pool_size", &connections.to_string())
    }

    /// A setting of the section `[pgbouncer]`. The last value given for a name counts.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.lines.push(checked_setting(name, value));
        self
    }

    fn configuration(&self, upstream: &str, folder: &Path, port: u16, version: (u32, u32)) -> String {
        let fixed = [
            ("listen_addr", "127.0.0.1".to_owned()),
            ("listen_port", port.to_string()),
            ("unix_socket_dir", String::new()),
            ("auth_type", "any".to_owned()),
            ("pool_mode", "transaction".to_owned()),
            ("default_pool_size", "20".to_owned()),
            ("max_client_conn", "1000".to_owned()),
            ("pidfile", folder.join("pid").display().to_string()),
        ];
        let fixed = fixed.into_iter().map(|(name, value)| (name.to_owned(), value));
        let unprepared = (version >= (1, 21)).then(|| ("max_prepared_statements".to_owned(), "0".to_owned()));
        let lines: String = fixed
            .chain(unprepared)
            .chain(self.lines.iter().cloned())
            .map(|(name, value)| format!("{name} = {value}\n"))
            .collect();
        format!("[databases]\n* = {upstream}\n\n[pgbouncer]\n{lines}")
    }
}

/// A PgBouncer in transaction mode on a loopback port of its own, which reaches every database of one server. It logs in
/// there as the user of the address that it was started with, whoever its client claims to be. Ends when it is dropped,
/// and with this process.
#[derive(Debug)]
pub struct PgBouncer {
    /// Ends the process and removes the folder when it is dropped.
    _keeper: Keeper,
    process: u32,
    folder: PathBuf,
    port: u16,
    version: (u32, u32),
}

impl PgBouncer {
    /// Starts a PgBouncer in front of the server that `postgres_url` names, and waits until that can be reached through
    /// it.
    ///
    /// # Panics
    ///
    /// If PgBouncer is not installed (the message says how to install it), does not start (with its log) or can't reach
    /// the server.
    #[must_use]
    pub fn start(postgres_url: &str, settings: PgBouncerSettings) -> Self {
        let program = find::program("pgbouncer").unwrap_or_else(|| panic!("{NOT_INSTALLED}"));
        let version = version(&program);
        let upstream = upstream(postgres_url);
        let mut folder = Folder::new("idem-pgbouncer-");
        let path = folder.path().to_path_buf();
        let mut keeper = Keeper::new("PgBouncer", &mut folder, END);
        let (log, file) = (path.join("log"), path.join("pgbouncer.ini"));
        // Another process may take the port between the look and the start.
        for _ in 0..20 {
            let port = port::free();
            folder::write_private(&file, &settings.configuration(&upstream, &path, port, version));
            let before = std::fs::metadata(&log).map_or(0, |data| data.len());
            let process = keeper.start(&log, &[&program.to_string_lossy(), &file.to_string_lossy()]);
            let address = url::with_address(postgres_url, &format!("127.0.0.1:{port}"));
            match await_answer(process, &address) {
                Ok(()) => return Self { _keeper: keeper, process, folder: path, port, version },
                Err(what) => {
                    keeper.stop(END);
                    // Its exact words differ between versions; the system's do not.
                    let taken = log_since(&log, before).contains("Address already in use");
                    assert!(taken, "PgBouncer does not start: {what}\n{}", log_tail(&path));
                }
            }
        }
        panic!("PgBouncer finds no free port:\n{}", log_tail(&path));
    }

    /// The address of the same database, by the same user, through this PgBouncer.
    #[must_use]
    pub fn url_through(&self, postgres_url: &str) -> String {
        url::with_address(postgres_url, &format!("127.0.0.1:{}", self.port))
    }

    /// The address of PgBouncer's own console (`SHOW POOLS` and the like, by simple queries).
    #[must_use]
    pub fn console_url(&self) -> String {
        format!("postgres://pgbouncer@127.0.0.1:{}/pgbouncer", self.port)
    }

    /// Its version: 1.18 is `(1, 18)`.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Its process id.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.process
    }

    /// The temporary folder that holds its settings and its log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log(&self) -> String {
        log_tail(&self.folder)
    }
}

const NOT_INSTALLED: &str = "\
these tests need PgBouncer, and it is not installed. Either
  - ./scripts/install-servers
  - apt-get install pgbouncer (Debian, Ubuntu) or brew install pgbouncer (macOS): the tests start one of their own";

fn await_answer(process: u32, url: &str) -> Result<(), String> {
    let deadline = Instant::now() + START;
    loop {
        let answer = sql::try_query(url, "SELECT 1");
        // Whoever answers on that port while it does not run is not PgBouncer.
        if !process::is_running(process) {
            return Err("it ended at once".to_owned());
        }
        match answer {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(format!("no answer comes through it after {START:?}: {}", sql::describe(&error)));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// The server and the user, as PgBouncer wants them.
fn upstream(postgres_url: &str) -> String {
    let config: tokio_postgres::Config =
        postgres_url.parse().unwrap_or_else(|error| panic!("that is no address of a PostgreSQL server: {error}"));
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => host.clone(),
        Some(Host::Unix(folder)) => folder.display().to_string(),
        None => "127.0.0.1".to_owned(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let user = config.get_user().unwrap_or_else(|| panic!("the address for PgBouncer names no user"));
    let quoted = |value: &str| format!("'{}'", value.replace('\'', "''"));
    let mut line = format!("host={} port={port} user={}", quoted(&host), quoted(user));
    if let Some(password) = config.get_password() {
        line.push_str(&format!(" password={}", quoted(&String::from_utf8_lossy(password))));
    }
    line
}

/// "PgBouncer 1.18.0" and further lines.
fn version(program: &Path) -> (u32, u32) {
    let output = Command::new(program).arg("--version").output();
    let output = output.unwrap_or_else(|error| panic!("{} can't be run: {error}", program.display())).stdout;
    let text = String::from_utf8_lossy(&output);
    let number = text.split_ascii_whitespace().nth(1).unwrap_or_default();
    let mut parts = number.split('.').map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => panic!("{} says of its version: {text}", program.display()),
    }
}
