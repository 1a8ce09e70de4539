//! A payments service that a client can retry against, and the eight scenarios over real HTTP.
//!
//! Where to begin: `server/pay.rs` is the handler, `server.rs` puts it behind the idempotency layer, `demo.rs` plays the
//! scenarios against it.

mod cli;
mod client;
mod demo;
mod ledger;
mod model;
mod problem;
mod provider;
mod server;
mod storage;

use std::{
    future::Future,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::cli::Command;

/// Why the program ends with something else than 0.
enum Failure {
    /// The command line, or a setting in it, can't be: exit code 2.
    Usage(String),
    /// Something went wrong: exit code 1.
    Run(String),
}

impl From<String> for Failure {
    fn from(problem: String) -> Self {
        Self::Run(problem)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    let (problem, code) = match run().await {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Usage(problem)) => (problem, 2),
        Err(Failure::Run(problem)) => (problem, 1),
    };
    let _ = writeln!(io::stderr(), "payments: {problem}"); // nobody is left to tell if this fails
    code.into()
}

async fn run() -> Result<(), Failure> {
    let command = cli::parse(std::env::args_os().skip(1)).map_err(|error| Failure::Usage(error.to_string()))?;
    match command {
        Command::Help => Ok(say(cli::USAGE.trim_end())?),
        Command::Demo(options) => demo::run(options).await,
        Command::Serve(options) => server::serve(options, stop()?).await,
        Command::Provider { listen } => provider::serve(listen, stop()?).await,
    }
}

/// Writes a line to standard output.
fn say(line: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| format!("standard output: {error}"))
}

/// Ends on SIGTERM and on SIGINT, from now on.
fn stop() -> Result<impl Future<Output = ()>, String> {
    let listen = |kind| signal(kind).map_err(|error| format!("signals can't be listened to: {error}"));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
