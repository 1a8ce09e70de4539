//! The SQLite store of idem: durable, safe between processes, and in the caller's own transaction.
//!
//! # When to use it
//!
//! For services on one machine whose retries must be safe across crashes and restarts, with nothing to install. Several
//! processes may share a file on one local file system. If the business data is in SQLite too, give the store the same
//! file: business rows and "this key is done" can then be committed together.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//!
//! use idem_core::Store;
//! use idem_sqlite::SqliteStore;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("payments.db");
//! let store: Arc<dyn Store> = Arc::new(SqliteStore::builder(&path).timeout(Duration::from_secs(2)).open()?);
//! assert_eq!(store.backend(), "sqlite");
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! - Of any number of claims on one key, from any tasks, handles and processes, exactly one owns it: every operation
//!   finds, decides and writes inside a transaction that took the file's one write lock first (`BEGIN IMMEDIATE`).
//! - What was answered is durable: answers are given after the commit, in WAL mode with `synchronous = FULL`. A crash
//!   or a loss of power undoes nothing that was answered, as far as the disk keeps what it says it synced; what was not
//!   answered yet is there or is not. Opening reads the modes back and refuses a file where they can't be had.
//! - One operation that fails does not disturb those that share its transaction, and no busy error reaches a caller
//!   before its time limit ([`Builder::timeout`], 5 seconds).
//! - Memory is bounded: a fixed number of operations may be queued, and others wait for room within their time limit.
//! - A claim whose caller left before it began is not done, so that it locks no key; a completion is done all the same.
//!
//! Time is the host's clock, in milliseconds. Processes on one file are on one host and share it; setting that clock
//! forward ends leases early, as it does everything else on the host, and setting it back makes those that run last longer
//! by as much: a key whose process crashed stays locked for that time and a lease. Let the clock be slewed, not stepped.
//!
//! **Not on a network file system** (NFS, SMB, most container volumes that span hosts): WAL needs memory that is shared
//! between the processes, and locks that hold. Opening notices only some of these.
//!
//! # What it costs
//!
//! A claim and a completion are a synced commit each. Operations that wait at the same time share one: up to 64 in a
//! transaction, so throughput under load is many times that of single commits, while a lone operation waits for nobody.
//! A replay, a conflict or a reuse writes nothing and needs no sync, but takes its turn for the write lock. Reads and
//! waits have a thread and a connection of their own, and never wait for the lock.
//!
//! A handle has two threads and two connections; its clones share them. The log beside the file (`-wal`) grows to about
//! 32 MiB before it is folded back. Expired records stay until they are claimed again or swept
//! ([`Store::sweep`](idem_core::Store::sweep), 256 rows a transaction), and SQLite re-uses their room within the file.
//!
//! # In the caller's transaction
//!
//! [`SqliteStore::in_transaction`] wraps a transaction on a connection of the caller's own to the store's file; with
//! the runner it is what `attempt.commit` takes. [`SqliteStore::complete_in`] is for code that commits by itself.
//!
//! ```
//! use idem_core::{Answer, Claim, Completion, Fingerprint, Key, Response, Retention, Scope, Token, Transaction};
//! use idem_sqlite::{SqliteStore, rusqlite::{Connection, TransactionBehavior}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("payments.db");
//! # Connection::open(&path)?.execute_batch("CREATE TABLE payments (amount INTEGER)")?;
//! let store = SqliteStore::open(&path)?;
//! let request = Fingerprint::builder().part("body", r#"{"amountMinor":250000}"#).build()?;
//! let token = Token::from_bytes(*b"16 random bytes!");
//! let claim = Claim::new(Scope::new("tenant-7")?, Key::new("k-1")?, token, request);
//! let Answer::Claimed(grant) = idem_core::claim(&store, &claim).await? else { panic!("the key is free") };
//!
//! // Charge the card and so on first: while the transaction is open, no key of this file can be claimed.
//! let mut connection = Connection::open(store.path())?;
//! let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
//! transaction.execute("INSERT INTO payments (amount) VALUES (?1)", [250_000])?;
//! let completion = Completion::new(grant.owner().clone(), Response::new(201).with_body("{}"), Retention::default());
//! let response = store.in_transaction(transaction).commit_with(completion)?;
//! // The row and the completion are committed: this is what the client must get.
//! assert_eq!(response.status(), 201);
//! # Ok(()) }
//! ```
//!
//! The transaction must hold the write lock already, so begin it `Immediate`. One that began deferred and has only read
//! is refused: another attempt could take the key over between its check and its commit. All of it is synchronous, and
//! a transaction can't be held across an `await`: begin, write and commit it in one go. The versions of rusqlite must be
//! the same, so use [`rusqlite`] as this crate exports it.
//!
//! # What is in the file
//!
//! A table `idem_records`, a row per record, and a table `idem_schema` with the version of the schema. Other tables,
//! `user_version` and `application_id` are the caller's. In `idem_records` the column `record` is what counts; `state`
//! (0 in progress, 1 released, 2 held, 3 done), `number`, `lease_end` and `expiry` (milliseconds since the Unix epoch)
//! repeat parts of it for indexes and for people. Look, and change nothing by hand.
//!
//! Never copy, move or replace the file while a process has it open, and never without its `-wal`; take a backup with
//! SQLite's own means (`VACUUM INTO`, `.backup`).

mod check;
mod clock;
mod error;
mod listing;
mod options;
mod queue;
mod records;
mod schema;
mod store;
mod transaction;
mod wait;
mod writer;

pub use options::{Builder, OpenError};
pub use rusqlite;
pub use store::SqliteStore;
pub use transaction::SqliteTransaction;
