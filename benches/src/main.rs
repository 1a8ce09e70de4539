//! What idem costs, against the bare statement through the same driver. `README.md` says how to read the results.
//!
//! A backend, or the HTTP layer, is a module with a `run`. What all share: `rounds.rs` (how two things are compared),
//! `operations.rs` (what is done to a store), `trips.rs` and `report.rs` (how the results are told).

mod cli;
mod http;
mod input;
mod operations;
mod postgres;
mod redis;
mod report;
mod rounds;
mod trips;

use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

use crate::cli::Command;

/// Why there are no results.
type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    let done = match cli::parse(std::env::args_os().skip(1)) {
        Ok(Command::Help) => report::say(cli::USAGE.trim_end()),
        Ok(Command::Postgres(options)) => postgres::run(options).await,
        Ok(Command::Redis(options)) => redis::run(options).await,
        Ok(Command::Http(options)) => http::run(options).await,
        Err(error) => {
            complain(&error);
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&*error);
            ExitCode::FAILURE
        }
    }
}

fn complain(error: &(dyn Error + 'static)) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    let _ = writeln!(io::stderr(), "idem-benches: {text}"); // nobody is left to tell if this fails
}
