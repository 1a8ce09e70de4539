//! What a store of idem must do, as tests that a store crate runs in five lines.

// A check that fails is a panic: that is what this crate is for.
#![allow(clippy::panic)]

pub mod agreement;
pub mod concurrency;
mod expect;
mod harness;
mod place;
mod rng;
mod run;
mod shared;
mod suite;
mod transaction_hook;
mod world;

pub use async_trait::async_trait;

pub use self::{
    harness::Harness,
    place::Place,
    run::run,
    shared::Shared,
    transaction_hook::{End, Transactions},
};
