//! What goes wrong between a store and its server: real servers, and connections that are really cut.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod cancelled;
#[path = "../common/mod.rs"]
mod common;
mod cut;
mod dropped;
mod rivals;
mod stopped;
