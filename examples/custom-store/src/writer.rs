//! The thread that makes every write transaction.
//!
//! It takes what waits, up to [`GROUP`] operations, into one transaction, and answers after the commit. So groups grow by
//! themselves while the disk is slow, and a lone operation never waits for company.

use std::{io, sync::Arc, thread};

use tokio::sync::mpsc::Receiver;

use crate::{
    error::Failure,
    live::Live,
    queue::{Job, Lost},
    records::{Changes, Tables},
    wait::Bells,
};

/// The most operations in a transaction.
const GROUP: usize = 64;

/// What the thread works with.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) database: Arc<Live>,
    pub(crate) jobs: Receiver<Box<dyn Job>>,
    pub(crate) bells: Arc<Bells>,
}

impl Writer {
    /// Starts the thread. It ends, and closes the file, when the queue's other end is gone and the queue is empty.
    pub(crate) fn start(self) -> io::Result<thread::JoinHandle<()>> {
        thread::Builder::new().name("redb-store-write".into()).spawn(move || self.run())
    }

    fn run(mut self) {
        while let Some(first) = self.jobs.blocking_recv() {
            let mut group = vec![first];
            while group.len() < GROUP
                && let Ok(next) = self.jobs.try_recv()
            {
                group.push(next);
            }
            let committed = self.commit(&mut group);
            match &committed {
                Ok(changes) => changes.bells.iter().for_each(|bell| self.bells.ring(*bell)),
                // Whatever it was: the next transaction begins with the file opened anew.
                Err(_) => self.database.close(),
            }
            // Only now: what is answered must be durable.
            for job in group {
                job.answer(committed.as_ref().map(|_| ()));
            }
        }
        self.database.close();
    }

    /// Runs the group in one transaction and commits it, if it changed anything.
    fn commit(&self, group: &mut [Box<dyn Job>]) -> Result<Changes, Lost> {
        let transaction = self.database.begin_write().map_err(lost)?;
        let changes = {
            let mut tables = Tables::of(&transaction, &self.bells).map_err(lost)?;
            for job in group {
                if job.is_wanted() {
                    job.run(&mut tables)?;
                }
            }
            tables.close()
        };
        if changes.any {
            transaction.commit().map_err(|error| lost(error.into()))?;
        } else {
            transaction.abort().map_err(|error| lost(error.into()))?;
        }
        Ok(changes)
    }
}

fn lost(failure: Failure) -> Lost {
    let error = failure.into_store_error("commit");
    Lost { kind: error.kind(), reason: error.message().to_owned() }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use idem_core::{Claim, Fingerprint, Key, Scope, Store, Token};

    use crate::RedbStore;

    #[tokio::test]
    async fn the_bell_of_a_record_is_rung_by_the_time_its_write_is_answered_and_not_by_what_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = RedbStore::open(dir.path().join("idem.redb")).unwrap();
        let (scope, key) = (Scope::global(), Key::new("k").unwrap());
        let fingerprint = Fingerprint::builder().part("body", "the request").build().unwrap();
        for (token, changes) in [(1, true), (2, false)] {
            let rung = store.parts().1.listen(&scope, &key);
            let token = Token::from_bytes([token; 16]);
            store.claim(&Claim::new(scope.clone(), key.clone(), token, fingerprint.clone())).await.unwrap();
            assert_eq!(pin!(rung).poll(&mut Context::from_waker(Waker::noop())).is_ready(), changes);
        }
    }
}
