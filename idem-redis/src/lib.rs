//! The Redis store of idem.

mod check;
mod clock;
mod error;
mod link;
mod listen;
mod listing;
mod names;
mod options;
mod records;
mod replicas;
mod scripts;
mod store;
mod tls;
mod url;
mod wait;

pub use crate::{
    options::{Builder, OpenError},
    store::RedisStore,
};
