//! One process of a Redis server or a Sentinel.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::client::{RedisConnection, Reply, info_value};
use super::program::Program;
use crate::folder::{self, Folder};
use crate::keeper::Keeper;
use crate::private::{log_since, log_tail};
use crate::url::RedisAddress;
use crate::{port, process};

/// How long a server may take to answer commands, and a topology to become what it is to be.
pub(super) const START: Duration = Duration::from_secs(60);
/// A shutdown in good order. A primary waits up to 10 s for replicas that lag.
const STOP: &str = "TERM 300 KILL 100";
/// Nobody needs the data afterwards.
const END: &str = "TERM 20 KILL 100";
/// The settings, in the server's folder. The server rewrites them when it is told to, and Sentinels do always.
const SETTINGS_FILE: &str = "redis.conf";

/// The user that this crate's own commands, replicas and Sentinels log in as, whatever a test does to the others.
pub(super) const ADMIN: (&str, &str) = ("idem-admin", "of-a-test");

/// The loopback ports that a process may listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ports {
    pub(super) plain: u16,
    pub(super) tls: u16,
    pub(super) bus: u16,
}

impl Ports {
    fn free() -> Self {
        loop {
            let ports = Self { plain: port::free(), tls: port::free(), bus: port::free() };
            if ports.plain != ports.tls && ports.tls != ports.bus && ports.plain != ports.bus {
                return ports;
            }
        }
    }
}

/// A running, stopped or paused process, its folder and its ports.
#[derive(Debug)]
pub(super) struct Server {
    inner: Mutex<Inner>,
    folder: PathBuf,
    ports: Ports,
    role: Role,
    program: &'static Program,
}

/// What the program is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Data,
    Sentinel,
}

#[derive(Debug)]
struct Inner {
    keeper: Keeper,
    /// The process id, while it runs.
    process: Option<u32>,
    /// The process and its children, while they are paused.
    paused: Vec<u32>,
}

impl Server {
    /// Starts a process on free ports and waits until it answers. `files` are put into its folder first; `settings`
    /// gives what is in its settings file.
    pub(super) fn start(
        program: &'static Program,
        role: Role,
        files: &[(&str, &str)],
        settings: impl Fn(&Path, Ports) -> String,
    ) -> Self {
        let mut folder = Folder::new("idem-redis-");
        let path = folder.path().to_path_buf();
        let mut keeper = Keeper::new("Redis", &mut folder, END);
        for (name, content) in files {
            folder::write_private(&path.join(name), content);
        }
        // Another process may take a port between the look and the start.
        for _ in 0..20 {
            let ports = Ports::free();
            folder::write_private(&path.join(SETTINGS_FILE), &settings(&path, ports));
            match run(program, &mut keeper, &path, ports.plain, role) {
                Ok(process) => {
                    let inner = Mutex::new(Inner { keeper, process: Some(process), paused: Vec::new() });
                    return Self { inner, folder: path, ports, role, program };
                }
                Err(Failure::PortTaken) => {}
                Err(Failure::Other(what)) => {
                    panic!("{} does not start: {what}\n{}", program.path.display(), log_tail(&path))
                }
            }
        }
        panic!("Redis finds no free port:\n{}", log_tail(&path));
    }

    pub(super) fn ports(&self) -> Ports {
        self.ports
    }

    pub(super) fn program(&self) -> &'static Program {
        self.program
    }

    pub(super) fn process_id(&self) -> Option<u32> {
        self.lock().process
    }

    /// Whether it runs and is not paused.
    pub(super) fn is_answering(&self) -> bool {
        let inner = self.lock();
        inner.process.is_some() && inner.paused.is_empty()
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn log(&self) -> String {
        log_tail(&self.folder)
    }

    /// Connects, and logs in as this crate's own user.
    pub(super) fn connect(&self) -> io::Result<RedisConnection> {
        connect(self.ports.plain, self.role)
    }

    pub(super) fn try_command<W: AsRef<[u8]>>(&self, words: &[W]) -> io::Result<Reply> {
        self.connect()?.ask(words)
    }

    pub(super) fn command<W: AsRef<[u8]>>(&self, words: &[W]) -> Reply {
        let connection = self.connect();
        connection.unwrap_or_else(|error| panic!("port {}: {error}\n{}", self.ports.plain, self.log())).command(words)
    }

    /// Asks with `INFO` and gives the value of that name.
    pub(super) fn info(&self, section: &str, name: &str) -> io::Result<String> {
        let info = self.try_command(&["INFO", section])?.text();
        info_value(&info, name)
            .map(str::to_owned)
            .ok_or_else(|| io::Error::other(format!("INFO says nothing of {name}")))
    }

    pub(super) fn stop(&self) {
        let mut inner = self.lock();
        if inner.process.take().is_some() {
            process::signal("CONT", &std::mem::take(&mut inner.paused));
            assert!(inner.keeper.stop(STOP), "the server does not stop:\n{}", self.log());
        }
    }

    pub(super) fn kill(&self) {
        let mut inner = self.lock();
        let Some(server) = inner.process.take() else { return };
        inner.paused.clear();
        // The server is held still first, so that it starts no child that is missed.
        let children = process::freeze(server);
        process::signal("KILL", &children);
        assert!(inner.keeper.stop("KILL 300"), "process {server} outlives SIGKILL");
        process::await_end(&children, START);
    }

    pub(super) fn start_again(&self) {
        let mut inner = self.lock();
        if inner.process.is_some() {
            return;
        }
        let deadline = Instant::now() + START;
        let failure = loop {
            match run(self.program, &mut inner.keeper, &self.folder, self.ports.plain, self.role) {
                Ok(process) => {
                    inner.process = Some(process);
                    return;
                }
                Err(Failure::PortTaken) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
                Err(failure) => break failure,
            }
        };
        drop(inner);
        panic!("Redis does not start again on port {}: {failure:?}\n{}", self.ports.plain, self.log());
    }

    pub(super) fn pause(&self) {
        let mut inner = self.lock();
        if let Some(server) = inner.process {
            let children = process::freeze(server);
            process::signal("STOP", &children);
            inner.paused = children;
            inner.paused.push(server);
        }
    }

    pub(super) fn resume(&self) {
        process::signal("CONT", &std::mem::take(&mut self.lock().paused));
    }

    /// Waits until a question to this server, such as whether its link is up, is answered with yes.
    pub(super) fn wait_until(&self, what: &str, mut holds: impl FnMut(&Self) -> io::Result<bool>) {
        let deadline = Instant::now() + START;
        loop {
            let answer = holds(self);
            if matches!(answer, Ok(true)) {
                return;
            }
            assert!(Instant::now() < deadline, "not after {START:?}: {what} ({answer:?})\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A test that panicked in here must not keep the others from ending the server.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
enum Failure {
    PortTaken,
    Other(String),
}

/// Starts a process and waits until it answers commands and has read its data.
fn run(program: &Program, keeper: &mut Keeper, folder: &Path, port: u16, role: Role) -> Result<u32, Failure> {
    let log = folder.join("log");
    let before = std::fs::metadata(&log).map_or(0, |data| data.len());
    let (program, settings) = (program.path.to_string_lossy(), folder.join(SETTINGS_FILE));
    let settings = settings.to_string_lossy();
    let process = match role {
        Role::Data => keeper.start(&log, &[&program, &settings]),
        Role::Sentinel => keeper.start(&log, &[&program, &settings, "--sentinel"]),
    };
    let deadline = Instant::now() + START;
    while !is_ready(port, process, role) {
        if !process::is_running(process) {
            keeper.stop("KILL 10");
            let said = log_since(&log, before);
            return Err(if said.contains("Address already in use") {
                Failure::PortTaken
            } else {
                Failure::Other("it ended at once".to_owned())
            });
        }
        if Instant::now() > deadline {
            keeper.stop(END);
            return Err(Failure::Other(format!("it answers nothing after {START:?}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(process)
}

/// Whether the process with that id answers and has read its data. Another process could answer on that port.
fn is_ready(port: u16, process: u32, role: Role) -> bool {
    let info = connect(port, role).and_then(|mut connection| connection.ask(&["INFO"]));
    info.is_ok_and(|info| {
        let info = info.text();
        info_value(&info, "process_id") == Some(&process.to_string())
            && matches!(info_value(&info, "loading"), Some("0") | None)
    })
}

fn connect(port: u16, role: Role) -> io::Result<RedisConnection> {
    let login = (role == Role::Data).then(|| (ADMIN.0.to_owned(), ADMIN.1.to_owned()));
    RedisConnection::to(&RedisAddress { login, ..RedisAddress::loopback(port) })
}
