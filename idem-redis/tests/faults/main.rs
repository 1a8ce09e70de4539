//! What goes wrong between a store and its server: real servers, and connections that are really cut.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod cut;
mod memory;
mod nodes;
mod recovery;
mod scripts;
mod stopped;
mod values;
