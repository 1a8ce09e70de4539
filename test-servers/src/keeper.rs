//! A server's keeper: a small shell process that ends the server and removes its folder when this process ends.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::folder::Folder;
use crate::user;

const SCRIPT: &str = include_str!("keeper.sh");

/// Owns a folder and at most one server. Dropping it, or the end of this process in any way, ends both.
pub(crate) struct Keeper {
    shell: Child,
    /// Taken when the keeper is dropped.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    name: &'static str,
}

impl Keeper {
    /// Takes over `folder`. `ending` lists signals, each followed by the tenths of a second that it gets to work.
    pub(crate) fn new(name: &'static str, folder: &mut Folder, ending: &str) -> Self {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "keeper", folder.as_str(), ending]);
        command.current_dir("/").env("LC_ALL", "C").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Settings of the person who runs the tests must not reach the server.
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("PG") {
                command.env_remove(variable);
            }
        }
        // Ctrl-C ends the tests; the keeper must survive them.
        command.process_group(0);
        if let Some(user) = user::unprivileged() {
            command.uid(user.uid).gid(user.gid);
        }
        let mut shell = command.spawn().unwrap_or_else(|error| panic!("/bin/sh can't be started: {error}"));
        folder.handed_over();
        let requests = shell.stdin.take();
        let answers = BufReader::new(shell.stdout.take().expect("standard output is piped"));
        Self { shell, requests, answers, name }
    }

    /// Runs a command to its end and says whether it succeeded. Its output is appended to `log`.
    pub(crate) fn run(&mut self, log: &Path, command: &[&str]) -> bool {
        self.ask("run", log, command) == "0"
    }

    /// Starts the server and gives its process id. Its output is appended to `log`.
    pub(crate) fn start(&mut self, log: &Path, command: &[&str]) -> u32 {
        let answer = self.ask("start", log, command);
        answer.parse().unwrap_or_else(|_| panic!("the keeper of {} answered {answer:?} to a start", self.name))
    }

    /// Ends the server with the signals listed, as in [`Keeper::new`]; true when it is gone.
    pub(crate) fn stop(&mut self, signals: &str) -> bool {
        self.send(&format!("stop {signals}")) == "gone"
    }

    fn ask(&mut self, function: &str, log: &Path, command: &[&str]) -> String {
        let mut line = format!("{function} {}", quote(&log.to_string_lossy()));
        for word in command {
            line.push(' ');
            line.push_str(&quote(word));
        }
        self.send(&line)
    }

    fn send(&mut self, line: &str) -> String {
        let name = self.name;
        let lost = |error: std::io::Error| -> ! { panic!("the keeper of {name} is gone: {error}") };
        let requests = self.requests.as_mut().expect("the keeper is not dropped");
        writeln!(requests, "{line}").unwrap_or_else(|error| lost(error));
        let mut answer = String::new();
        match self.answers.read_line(&mut answer) {
            Ok(0) => lost(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => answer.trim_end().to_owned(),
            Err(error) => lost(error),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The end of its input is the sign to end; waiting for it makes sure that server and folder are gone.
        drop(self.requests.take());
        let _ = self.shell.wait();
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("name", &self.name).field("shell", &self.shell.id()).finish_non_exhaustive()
    }
}

/// One word of a shell command.
fn quote(word: &str) -> String {
    assert!(!word.contains('\n'), "a path or an argument holds a line break: {word:?}");
    format!("'{}'", word.replace('\'', r"'\''"))
}
