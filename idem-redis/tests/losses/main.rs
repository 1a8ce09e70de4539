//! What replicas are good for: claims that wait for them, and what a failover loses all the same.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod failover;
mod load;
mod min_replicas;
mod moved;
