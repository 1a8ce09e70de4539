//! What a store of idem must do, as tests that a store crate runs in five lines.

// A check that fails is a panic: that is what this crate is for.
#![allow(clippy::panic)]

pub mod agreement;
pub mod cancellation;
pub mod claims;
pub mod concurrency;
pub mod durability;
mod expect;
pub mod expiry;
pub mod fencing;
pub mod fidelity;
mod harness;
pub mod housekeeping;
mod place;
mod rng;
mod run;
pub mod scenarios;
mod shared;
mod suite;
mod transaction_hook;
pub mod transactions;
mod world;

pub use async_trait::async_trait;

pub use self::{
    harness::Harness,
    place::Place,
    run::run,
    shared::Shared,
    transaction_hook::{End, Transactions},
};
