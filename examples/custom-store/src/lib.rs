//! A store of idem that is not one of its own: records in a file of [redb], an embedded key-value store.
//!
//! It is written as a third party would write it, on `idem-core` alone and tested by `idem-conformance`, and it is the
//! example of the guide [Write your own store]. Its files are named as in idem's own stores.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//!
//! use custom_store::RedbStore;
//! use idem_core::Store;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("idem.redb");
//! let store: Arc<dyn Store> = Arc::new(RedbStore::builder(&path).timeout(Duration::from_secs(2)).open()?);
//! assert_eq!(store.backend(), "redb");
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! - Of any number of claims on one key, from any tasks and handles, exactly one owns it: every operation finds, decides
//!   and writes inside the one write transaction that redb allows at a time.
//! - What was answered is durable: answers are given after a commit that is synced, in two phases. A crash or a loss of
//!   power undoes nothing that was answered, as far as the disk keeps what it says it synced.
//! - One process at a time has the file open, which redb's lock sees to. Within it, every opening is a handle on the same
//!   store.
//! - Every call ends within a time limit ([`Builder::timeout`]), and a fixed number of operations may be queued.
//! - A write that fails (a full disk) is an error of kind unavailable, and the next one begins with the file opened anew: the
//!   store works again as soon as the disk does. Until then reads may fail too.
//! - A claim whose caller left before it began is not done, so that it locks no key; a completion is done all the same.
//!
//! Time is the host's clock, in milliseconds. Setting it forward ends leases early, and setting it back makes those that
//! run last longer by as much. Let it be slewed, not stepped.
//!
//! # How it works
//!
//! A thread makes all write transactions. It takes what waits, up to 64 operations, into one of them, so that throughput
//! grows with what is in flight while a lone operation waits for nobody. It is a thread and not a task for each write on the
//! runtime's pool for blocking work, because these would all wait for one lock, fill the pool, and could be given no time
//! limit. Reads do go to that pool: they see the last commit and wait for no lock.
//!
//! Several processes could share a file in redb's `MultiWriter` mode. It is new (redb 4.5), and each commit costs more in
//! it; a store that money depends on can wait until others have lived with it.
//!
//! # What is in the file
//!
//! `idem_records` has what counts: under scope and key the expiry and the encoded record. `idem_expiries` and `idem_open`
//! repeat parts of it, for sweeping in the order of expiries and for listing what waits; they are changed in the same
//! transaction. `idem_format` has the version of all this. A file is read whole when it is opened, and its checksums are
//! verified.
//!
//! [Write your own store]: https://github.com/idem-rs/idem/blob/main/docs/write-your-own-store.md

mod check;
mod clock;
mod error;
mod file;
mod handles;
mod listing;
mod live;
mod options;
mod queue;
mod records;
mod schema;
mod store;
mod wait;
mod writer;

/// Compiles the code of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/write-your-own-store.md")]
struct Guide;

pub use options::{Builder, OpenError};
pub use store::RedbStore;
