//! Another process of this program.

use std::{process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout, Command},
};

const START_LIMIT: Duration = Duration::from_secs(60);

/// A server or provider that listens. It is killed when this is dropped.
pub(super) struct Process {
    child: Child,
    url: String,
    /// Kept open: a line that it writes must not end it.
    _output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts this program with other arguments and waits until it listens.
    pub(super) async fn start(arguments: &[&str]) -> Result<Self, String> {
        let name = arguments.first().copied().unwrap_or_default();
        let program = std::env::current_exe().map_err(|error| format!("this program can't be found: {error}"))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        if std::env::var_os("RUST_LOG").is_none() {
            // The demo brings about what a server rightly warns of.
            command.env("RUST_LOG", "error");
        }
        let mut child = command.spawn().map_err(|error| format!("{name} can't be started: {error}"))?;
        let output = child.stdout.take().ok_or_else(|| format!("{name} has no output"))?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        match tokio::time::timeout(START_LIMIT, output.read_line(&mut line)).await {
            Err(_) => return Err(format!("{name} did not listen within {START_LIMIT:?}")),
            Ok(Err(error)) => return Err(format!("{name}'s output: {error}")),
            Ok(Ok(_)) => {}
        }
        match line.trim_end().strip_prefix("listening on ") {
            Some(url) => Ok(Self { child, url: url.to_owned(), _output: output }),
            None => Err(format!("{name} ended before it listened; what it says is above")),
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub(super) async fn kill(&mut self) -> Result<(), String> {
        self.child.kill().await.map_err(|error| format!("a process can't be killed: {error}"))
    }
}
