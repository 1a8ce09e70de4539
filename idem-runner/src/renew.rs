//! Keeping leases alive while operations run.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream};
use idem_core::{Fenced, State as RecordState, Store, StoreError, StoreErrorKind};
use tokio::{
    task::{self, JoinHandle},
    time::{self, Instant},
};

use crate::{Attempt, counters::Counting, event::event, meter::Gauge};

/// Renewals that are under way at once.
const AT_ONCE: usize = 64;

/// Renews the leases of all running attempts from one task: a timer or a task for each would cost every request, and a
/// handler that blocks its thread must not stop its own renewals. The task is there only while attempts are.
pub(crate) struct Renewer {
    store: Arc<dyn Store>,
    lease: Duration,
    counting: Arc<Counting>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: HashMap<u64, Entry>,
    last: u64,
    task: Option<JoinHandle<()>>,
}

#[derive(Clone)]
struct Entry {
    attempt: Attempt,
    next: Instant,
    /// When `max_run` is over. From then on it is only watched, so that it can still be told that its key is lost.
    until: Instant,
    is_watched: bool,
    /// When its lease ends, as far as this process knows.
    lease_end: Instant,
    is_settling: bool,
}

/// Keeps one lease alive until it is dropped.
pub(crate) struct Renewal {
    renewer: Arc<Renewer>,
    id: u64,
    _running: Gauge,
}

impl Renewer {
    pub(crate) fn new(store: Arc<dyn Store>, lease: Duration, counting: Arc<Counting>) -> Arc<Self> {
        Arc::new(Self { store, lease, counting, state: Mutex::default() })
    }

    /// Renews the attempt's lease from now on, for `max_run` at most.
    pub(crate) async fn register(self: &Arc<Self>, attempt: &Attempt, max_run: Duration) -> Renewal {
        let (id, is_new) = self.enter(attempt, max_run);
        let running = Gauge::running(self.counting.backend());
        let renewal = Renewal { renewer: Arc::clone(self), id, _running: running };
        if is_new {
            // A task that was just started stands behind this one on this thread alone: it must begin before a handler
            // that blocks the thread does.
            task::yield_now().await;
        }
        renewal
    }

    /// Puts the attempt on the list. Says under which number, and whether the task had to be started for it.
    fn enter(self: &Arc<Self>, attempt: &Attempt, max_run: Duration) -> (u64, bool) {
        let now = Instant::now();
        let entry = Entry {
            attempt: attempt.clone(),
            next: now + self.interval(),
            until: now + max_run,
            is_watched: false,
            lease_end: now + self.lease,
            is_settling: false,
        };
        let mut state = self.state();
        state.last += 1;
        let id = state.last;
        state.running.insert(id, entry);
        // A task ends with its runtime, so one that ended is replaced.
        let is_new = state.task.as_ref().is_none_or(JoinHandle::is_finished);
        if is_new {
            state.task = Some(tokio::spawn(Arc::clone(self).keep_renewing()));
        }
        (id, is_new)
    }

    async fn keep_renewing(self: Arc<Self>) {
        loop {
            time::sleep(self.interval() / 4).await;
            let Some(due) = self.due() else {
                return;
            };
            stream::iter(due).for_each_concurrent(AT_ONCE, |(id, entry)| self.attend(id, entry)).await;
        }
    }

    /// The attempts that are due; none, and no task any more, if nothing runs.
    fn due(&self) -> Option<Vec<(u64, Entry)>> {
        let mut state = self.state();
        if state.running.is_empty() {
            state.task = None;
            return None;
        }
        let now = Instant::now();
        let due = state.running.iter_mut().filter(|(_, entry)| entry.next <= now);
        Some(
            due.map(|(id, entry)| {
                if entry.until <= now && !entry.is_watched {
                    entry.is_watched = true;
                    self.counting.overran.one();
                    event!(
                        WARN,
                        "overran",
                        attempt = ?entry.attempt,
                        "an attempt ran longer than max_run: its lease is left to lapse"
                    );
                }
                entry.next = now + if entry.is_watched { self.lease } else { self.interval() };
                (*id, entry.clone())
            })
            .collect(),
        )
    }

    async fn attend(&self, id: u64, entry: Entry) {
        if entry.is_watched { self.look(id, entry).await } else { self.renew(id, entry).await }
    }

    async fn renew(&self, id: u64, entry: Entry) {
        let asked = Instant::now();
        // A failed renewal is tried again at the next interval, while there is still a lease to renew.
        match self.ask("renew", async { self.store.renew(entry.attempt.owner(), self.lease).await }).await {
            Ok(Fenced::Written(())) => {
                self.counting.renewed.one();
                if asked > entry.lease_end {
                    self.counting.renewed_late.one();
                    event!(
                        WARN,
                        "renewed_late",
                        attempt = ?entry.attempt,
                        "a lease had lapsed before it was renewed: the store was away, or a handler blocks its runtime"
                    );
                }
                if let Some(entry) = self.state().running.get_mut(&id) {
                    entry.lease_end = asked + self.lease;
                }
            }
            Ok(Fenced::Superseded) => self.lost(id, &entry),
            Err(error) => {
                self.counting.renewal_failures.one();
                self.counting.store_error("renew", &error);
            }
        }
    }

    /// Whether an attempt that is not renewed any more still has its key.
    async fn look(&self, id: u64, entry: Entry) {
        let owner = entry.attempt.owner();
        match self.ask("read", async { self.store.read(owner.scope(), owner.key()).await }).await {
            Ok(found) => {
                let is_owner = found.is_some_and(|found| {
                    found.record.attempt() == owner.attempt() && found.record.state == RecordState::InProgress
                });
                if !is_owner {
                    self.lost(id, &entry);
                }
            }
            // What a failed look did not see, the next one sees.
            Err(error) => self.counting.store_error("read", &error),
        }
    }

    /// Asks the store. Whatever becomes of it, a panic included, the others are renewed.
    async fn ask<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match time::timeout(self.interval(), AssertUnwindSafe(call).catch_unwind()).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => {
                let message = "it gave no answer within a third of the lease, or panicked";
                Err(StoreError::new(StoreErrorKind::Unavailable, self.store.backend(), operation, message))
            }
        }
    }

    /// The store says that the attempt is not the owner. One that is being settled, or that committed by itself, may have
    /// ended its record: its own write tells.
    fn lost(&self, id: u64, entry: &Entry) {
        let was_running = self.state().running.remove(&id).is_some_and(|entry| !entry.is_settling);
        if was_running && !entry.attempt.used_transaction() {
            entry.attempt.mark_lost();
        }
    }

    /// Three renewals in a lease: two may fail.
    fn interval(&self) -> Duration {
        self.lease / 3
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Renewal {
    /// From now on a renewal that is answered Superseded does not mean that the key was lost.
    pub(crate) fn settling(&self) {
        if let Some(entry) = self.renewer.state().running.get_mut(&self.id) {
            entry.is_settling = true;
        }
    }

    /// What is left of the lease, as far as this process knows. None if it is not renewed any more, since the store said
    /// that the attempt is not the owner: it committed by itself, or lost its key.
    pub(crate) fn lease_left(&self) -> Option<Duration> {
        let lease_end = self.renewer.state().running.get(&self.id).map(|entry| entry.lease_end);
        lease_end.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.renewer.state().running.remove(&self.id);
    }
}
