//! Keeping leases alive while operations run.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{
    StreamExt,
    future::{Either, select},
    stream::FuturesUnordered,
};
use idem_core::{Fenced, Key, Scope, State as RecordState, Store, StoreError};
use tokio::{
    runtime::{Handle, Id as RuntimeId},
    task::{self, JoinHandle},
    time::{self, Instant},
};

use crate::{Attempt, call, counters::Counting, event::event, meter::Gauge, outage::Outages};

/// Renewals of one runtime that are under way at once.
const AT_ONCE: usize = 1024;

/// Renews the leases of all running attempts of a runtime from one task: a timer or a task for each would cost every request,
/// and a handler that blocks its thread must not stop its own renewals. The task is there only while attempts are. Each
/// runtime has its own: another one may end, or stand still, while the attempts go on.
pub(crate) struct Renewer {
    store: Arc<dyn Store>,
    lease: Duration,
    counting: Arc<Counting>,
    outages: Arc<Outages>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: HashMap<u64, Entry>,
    last: u64,
    tasks: HashMap<RuntimeId, JoinHandle<()>>,
}

#[derive(Clone)]
struct Entry {
    attempt: Attempt,
    runtime: RuntimeId,
    next: Instant,
    /// Whether it is being renewed, or looked at, right now.
    is_attended: bool,
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
    pub(crate) fn new(
        store: Arc<dyn Store>,
        lease: Duration,
        counting: Arc<Counting>,
        outages: Arc<Outages>,
    ) -> Arc<Self> {
        Arc::new(Self { store, lease, counting, outages, state: Mutex::default() })
    }

    /// Renews the attempt's lease, which began at `leased`, from now on, for `max_run` at most.
    pub(crate) async fn register(self: &Arc<Self>, attempt: &Attempt, leased: Instant, max_run: Duration) -> Renewal {
        let (id, is_new) = self.enter(attempt, leased, max_run);
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
    fn enter(self: &Arc<Self>, attempt: &Attempt, leased: Instant, max_run: Duration) -> (u64, bool) {
        let runtime = Handle::current().id();
        let entry = Entry {
            attempt: attempt.clone(),
            runtime,
            is_attended: false,
            next: leased + self.interval(),
            until: Instant::now() + max_run,
            is_watched: false,
            lease_end: leased + self.lease,
            is_settling: false,
        };
        let mut state = self.state();
        state.last += 1;
        let id = state.last;
        state.running.insert(id, entry);
        // Those of runtimes that ended, ended with them; one that panicked left what it was at.
        state.tasks.retain(|_, task| !task.is_finished());
        let is_new = !state.tasks.contains_key(&runtime);
        if is_new {
            for entry in state.running.values_mut().filter(|entry| entry.runtime == runtime) {
                entry.is_attended = false;
            }
            state.tasks.insert(runtime, tokio::spawn(Arc::clone(self).keep_renewing(runtime)));
        }
        (id, is_new)
    }

    /// Whether an attempt on this key runs here, as far as is known.
    pub(crate) fn runs(&self, scope: &Scope, key: &Key) -> bool {
        self.state().running.values().any(|entry| entry.attempt.key() == key && entry.attempt.scope() == scope)
    }

    /// Whether the outcome of an attempt on this key waits here to be stored.
    pub(crate) fn is_settling(&self, scope: &Scope, key: &Key) -> bool {
        let is_it = |entry: &Entry| entry.is_settling && entry.attempt.key() == key && entry.attempt.scope() == scope;
        self.state().running.values().any(is_it)
    }

    async fn keep_renewing(self: Arc<Self>, runtime: RuntimeId) {
        let mut attended = FuturesUnordered::new();
        let mut tick = Box::pin(time::sleep(self.tick()));
        loop {
            // One that is slow holds up no other.
            if attended.is_empty() {
                (&mut tick).await;
            } else if let Either::Right(_) = select(&mut tick, attended.next()).await {
                continue;
            }
            tick.set(time::sleep(self.tick()));
            let Some(due) = self.due(runtime, AT_ONCE - attended.len()) else {
                return;
            };
            attended.extend(due.into_iter().map(|(id, entry)| self.attend(id, entry)));
        }
    }

    /// So many of the attempts that are due, the longest overdue first; none, and no task any more, if nothing runs.
    fn due(&self, runtime: RuntimeId, room: usize) -> Option<Vec<(u64, Entry)>> {
        let mut state = self.state();
        if !state.running.values().any(|entry| entry.runtime == runtime) {
            state.tasks.remove(&runtime);
            return None;
        }
        let now = Instant::now();
        let is_due = |entry: &Entry| entry.runtime == runtime && !entry.is_attended && entry.next <= now;
        let mut due: Vec<_> = state.running.iter_mut().filter(|(_, entry)| is_due(entry)).collect();
        due.sort_unstable_by_key(|(_, entry)| entry.next);
        due.truncate(room);
        let attend = |(id, entry): (&u64, &mut Entry)| {
            let has_overrun = entry.until <= now && !entry.is_settling;
            if has_overrun && !entry.is_watched {
                self.counting.overran.one();
                event!(
                    WARN,
                    "overran",
                    attempt = ?entry.attempt,
                    "an attempt ran longer than max_run: its lease is left to lapse"
                );
            }
            entry.is_watched = has_overrun;
            entry.is_attended = true;
            (*id, entry.clone())
        };
        Some(due.into_iter().map(attend).collect())
    }

    async fn attend(&self, id: u64, entry: Entry) {
        let asked = Instant::now();
        let (is_done, pause) = match entry.is_watched {
            // What a failed look did not see, the next one sees.
            true => {
                self.look(id, &entry).await;
                (true, self.lease)
            }
            false => (self.renew(id, &entry, asked).await, self.interval()),
        };
        if let Some(entry) = self.state().running.get_mut(&id) {
            entry.is_attended = false;
            // What failed is due again at once.
            entry.next = if is_done { asked + pause } else { Instant::now() };
        }
    }

    /// False if the store did not say whether it did.
    async fn renew(&self, id: u64, entry: &Entry, asked: Instant) -> bool {
        let renew = async { self.store.renew(entry.attempt.owner(), self.lease).await };
        match self.answer("renew", renew).await {
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
                true
            }
            // One that may have committed by itself may have ended its record: the record tells.
            Ok(Fenced::Superseded) if entry.attempt.used_transaction() => self.look(id, entry).await,
            Ok(Fenced::Superseded) => {
                self.lost(id, entry);
                true
            }
            Err(error) => {
                self.counting.renewal_failures.one();
                self.counting.store_error("renew", &error);
                false
            }
        }
    }

    /// Whether an attempt that is not renewed any more still has its key. False if the store did not say.
    async fn look(&self, id: u64, entry: &Entry) -> bool {
        let owner = entry.attempt.owner();
        let read = async { self.store.read(owner.scope(), owner.key()).await };
        match self.answer("read", read).await {
            Ok(found) => {
                let own = found.map(|found| found.record).filter(|record| record.attempt() == owner.attempt());
                match own.map(|record| record.state) {
                    Some(RecordState::InProgress) => {}
                    // It committed by itself: there is nothing to renew any more, and nobody took it.
                    Some(RecordState::Done(_)) if entry.attempt.used_transaction() => {
                        self.forget(id);
                    }
                    _ => self.lost(id, entry),
                }
                true
            }
            Err(error) => {
                self.counting.store_error("read", &error);
                false
            }
        }
    }

    /// The store says that another attempt has the key, or nobody. Of one that is being settled its own write tells.
    fn lost(&self, id: u64, entry: &Entry) {
        if self.forget(id) {
            entry.attempt.mark_lost();
        }
    }

    /// Renews and watches the attempt no more, unless it is being settled. Whether it was.
    fn forget(&self, id: u64) -> bool {
        let mut state = self.state();
        let is_running = state.running.get(&id).is_some_and(|entry| !entry.is_settling);
        if is_running {
            state.running.remove(&id);
        }
        is_running
    }

    async fn answer<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let (limit, name) = (self.lease / 6, "a sixth of the lease");
        let result = call::answer((self.store.backend(), operation), limit, name, call).await;
        self.outages.note(&result);
        result
    }

    /// How often it is looked what is due: a renewal that takes its whole time and fails leaves time for two more.
    fn tick(&self) -> Duration {
        self.lease / 12
    }

    /// After a third of the lease it is renewed: two renewals may fail.
    pub(crate) fn interval(&self) -> Duration {
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
