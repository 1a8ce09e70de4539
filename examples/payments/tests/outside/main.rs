//! The program from outside: its processes over HTTP, and what they print.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "everything here is a test")]

mod cart;
mod crash;
mod demo;
mod load;
mod metrics;
mod redis;
mod refusals;
mod retries;
mod server;
mod shutdown;

// The program's own client: a part of its source, since a program has no library to import.
#[allow(dead_code, reason = "the tests need less of it than the program")]
#[path = "../../src/client.rs"]
mod client;
