//! The threads that own the store's connections.
//!
//! The writer takes the file's write lock first and then everything that waits, up to [`GROUP`] operations, into the
//! one transaction. So groups grow by themselves while the lock or the disk is slow, and a lone operation never waits
//! for company.

use std::{io, sync::Arc, thread};

use idem_core::StoreErrorKind;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::mpsc::Receiver;

use crate::{
    clock::Clock,
    error::{is_busy, judge},
    queue::{Failure, Job},
    wait::Waiters,
};

/// The most operations in a transaction.
const GROUP: usize = 64;

/// What a thread works with.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) connection: Connection,
    pub(crate) jobs: Receiver<Box<dyn Job>>,
    pub(crate) clock: Clock,
    pub(crate) waiters: Arc<Waiters>,
}

impl Worker {
    /// Starts the thread that writes. It ends when the queue's other end is gone and the queue is empty.
    pub(crate) fn write(self) -> io::Result<thread::JoinHandle<()>> {
        thread::Builder::new().name("idem-sqlite-write".into()).spawn(move || self.write_until_closed())
    }

    /// Starts the thread that reads, which no write lock holds up.
    pub(crate) fn read(self) -> io::Result<thread::JoinHandle<()>> {
        thread::Builder::new().name("idem-sqlite-read".into()).spawn(move || self.read_until_closed())
    }

    fn write_until_closed(mut self) {
        while let Some(first) = self.jobs.blocking_recv() {
            if let Some((first, transaction)) = begin(&self.connection, first) {
                let mut group = vec![first];
                while group.len() < GROUP
                    && let Ok(next) = self.jobs.try_recv()
                {
                    group.push(next);
                }
                let outcome = run(&mut group, &self.clock, transaction);
                if let Err(reason) = &outcome {
                    tracing::warn!(operations = group.len(), reason, "a group of operations was not committed");
                }
                // Only now: what is answered must be durable.
                for job in group {
                    job.answer(
                        outcome
                            .as_ref()
                            .map(|()| &*self.waiters)
                            .map_err(|reason| Failure::Group(StoreErrorKind::Unavailable, reason)),
                    );
                }
            }
        }
    }

    fn read_until_closed(mut self) {
        while let Some(mut job) = self.jobs.blocking_recv() {
            if job.is_wanted() {
                // Each statement is a transaction of its own, so it sees everything that was committed before.
                job.run(&self.connection, &self.clock);
            }
            job.answer(Ok(&self.waiters));
        }
    }
}

/// Takes the write lock on behalf of `first`, however busy the file is, until `first` is no longer wanted. Those behind
/// it have later deadlines.
fn begin(connection: &Connection, first: Box<dyn Job>) -> Option<(Box<dyn Job>, Transaction<'_>)> {
    loop {
        if !first.is_wanted() {
            first.answer(Err(Failure::Late));
            return None;
        }
        match Transaction::new_unchecked(connection, TransactionBehavior::Immediate) {
            Ok(transaction) => return Some((first, transaction)),
            Err(error) if is_busy(&error) => {}
            Err(error) => {
                let (kind, advice) = judge(&error);
                first.answer(Err(Failure::Group(kind, &format!("{advice} (SQLite: {error})"))));
                return None;
            }
        }
    }
}

/// Runs a group and commits it.
fn run(group: &mut [Box<dyn Job>], clock: &Clock, transaction: Transaction<'_>) -> Result<(), String> {
    for job in group {
        if job.is_wanted() {
            job.run(&transaction, clock);
        }
        // Some failures (a full disk, a trigger's RAISE(ROLLBACK)) end the transaction of the whole group; what would
        // follow would run without the lock.
        if transaction.is_autocommit() {
            return Err("another operation of its group failed so that SQLite rolled back the transaction".into());
        }
    }
    transaction.commit().map_err(|error| format!("the transaction that it was part of could not be committed: {error}"))
}
