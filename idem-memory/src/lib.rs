//! The in-memory store of idem: the [state machine](idem_core::machine) under sharded locks.
//!
//! # When to use it
//!
//! For one process whose records may die with it: tests, development, jobs whose effects live in the same process, and
//! services in which a retry after a restart is harmless. Two processes do not see each other's records, and a restart
//! forgets all of them: a payment that was answered before it runs again when it is retried after it. Where that must not
//! happen, use a store that is durable.
//!
//! # What it promises
//!
//! - Of any number of claims on one key, from any number of threads, exactly one owns it: every operation finds, decides
//!   and writes under one lock.
//! - It is bounded by a number of records. A live record is never evicted: once all are live, a claim of a new key is
//!   refused with an error of kind unavailable, and the keys that are there work on.
//! - An expired record leaves without being asked for again: each claim of a new key takes a few of them along, a claim
//!   that finds the store full takes all of them, and [`sweep`](idem_core::Store::sweep) removes them on request.
//! - Its clock never goes back or jumps: setting the host's clock ends no lease.
//! - Nothing waits for anything but a lock that is held for one operation, except [`wait`](idem_core::Store::wait).
//!
//! ```
//! use std::{num::NonZeroUsize, sync::Arc};
//!
//! use idem_core::Store;
//! use idem_memory::MemoryStore;
//!
//! let limit = NonZeroUsize::new(50_000).unwrap();
//! let store: Arc<dyn Store> = Arc::new(MemoryStore::builder().max_records(limit).build());
//! assert_eq!(store.backend(), "memory");
//! ```

mod clock;
mod options;
mod records;
mod store;
mod wait;

pub use options::{Builder, DEFAULT_MAX_RECORDS};
pub use store::MemoryStore;

#[cfg(test)]
mod tests;
