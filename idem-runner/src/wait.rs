//! Waiting for another attempt to end: one subscription of the store for all who wait for it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use idem_core::{AttemptId, Key, Scope, State, Store};
use tokio::{
    runtime::{Handle, Id as RuntimeId},
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use crate::{
    call,
    counters::Counting,
    meter::{self, Gauge, WAIT_SECONDS},
};

/// Who waits, and for what.
pub(crate) struct Waits {
    seats: Semaphore,
    counting: Arc<Counting>,
    subscriptions: Mutex<Subscriptions>,
}

#[derive(Default)]
struct Subscriptions {
    running: HashMap<Name, Entry>,
    last: u64,
}

/// What is waited for: the end of this attempt on this record. And by which runtime: another one may end, or stand still, while
/// this one's waiters go on.
type Name = (Scope, Key, AttemptId, RuntimeId);

struct Entry {
    /// Tells this subscription from a later one to the same.
    id: u64,
    waiters: usize,
    wait: Wait,
}

/// One wait of the store's, polled by those who wait on it. It ends with the last of them.
type Wait = Shared<BoxFuture<'static, Waited>>;

/// What a wait of the store's came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The attempt is not in progress any more.
    Ended,
    /// It is, and its lease goes on for this long: not at all if it lapsed.
    Running { left: Duration },
    /// The store could not say.
    Failed,
}

/// A place for one that waits, free again when it is dropped.
pub(crate) struct Seat<'a> {
    counting: &'a Counting,
    since: Instant,
    _permit: SemaphorePermit<'a>,
    _waiting: Gauge,
}

/// A waiter's part in a subscription, given back when it is dropped.
struct Part<'a> {
    waits: &'a Waits,
    name: Name,
    id: u64,
}

impl Waits {
    /// Room for so many waiters at a time.
    pub(crate) fn new(seats: usize, counting: Arc<Counting>) -> Self {
        let seats = Semaphore::new(seats.min(Semaphore::MAX_PERMITS));
        Self { seats, counting, subscriptions: Mutex::default() }
    }

    /// A seat for one that waits, unless all are taken.
    pub(crate) fn seat(&self) -> Option<Seat<'_>> {
        let permit = self.seats.try_acquire().ok()?;
        let waiting = Gauge::waiting(self.counting.backend());
        Some(Seat { counting: &self.counting, since: Instant::now(), _permit: permit, _waiting: waiting })
    }

    /// Waits until the attempt ended, for `at_most`, together with whoever waits for it already: then as long as that
    /// one does. Longer than the store should take by `grace` it waits for no answer.
    ///
    /// # Cancellation safety
    ///
    /// A wait that is dropped leaves nothing behind; the last one ends the store's.
    pub(crate) async fn wait(
        &self,
        store: &Arc<dyn Store>,
        (scope, key): (&Scope, &Key),
        attempt: AttemptId,
        at_most: Duration,
        grace: Duration,
    ) -> Waited {
        let name = (scope.clone(), key.clone(), attempt, Handle::current().id());
        let (wait, _part) = self.join(name, |(scope, key, attempt, _)| {
            let counting = Arc::clone(&self.counting);
            subscribe(Arc::clone(store), counting, scope, key, attempt, at_most, grace).boxed().shared()
        });
        wait.await
    }

    /// Joins the subscription, or starts it.
    fn join(&self, name: Name, start: impl FnOnce(Name) -> Wait) -> (Wait, Part<'_>) {
        let mut subscriptions = self.subscriptions();
        let Subscriptions { running, last } = &mut *subscriptions;
        // One that has its answer is over, although not all of its waiters have taken that yet.
        let found = running.get_mut(&name).filter(|entry| entry.wait.peek().is_none());
        let (id, wait) = match found {
            Some(entry) => {
                entry.waiters += 1;
                (entry.id, entry.wait.clone())
            }
            None => {
                *last += 1;
                let wait = start(name.clone());
                running.insert(name.clone(), Entry { id: *last, waiters: 1, wait: wait.clone() });
                (*last, wait)
            }
        };
        (wait, Part { waits: self, name, id })
    }

    fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn counts(&self) -> (usize, usize) {
        let running = &self.subscriptions().running;
        (running.len(), running.values().map(|entry| entry.waiters).sum())
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        meter::seconds(WAIT_SECONDS, &[("backend", self.counting.backend())], self.since.elapsed());
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        let mut subscriptions = self.waits.subscriptions();
        let Some(entry) = subscriptions.running.get_mut(&self.name).filter(|entry| entry.id == self.id) else {
            return; // its place was taken by a later one
        };
        entry.waiters -= 1;
        if entry.waiters == 0 {
            let ended = subscriptions.running.remove(&self.name);
            // What a store's future does when it is dropped is not known here.
            drop(subscriptions);
            drop(ended);
        }
    }
}

/// The store's wait. Nothing that it does harms those who wait: an error, a panic or silence is an answer that says
/// nothing.
async fn subscribe(
    store: Arc<dyn Store>,
    counting: Arc<Counting>,
    scope: Scope,
    key: Key,
    attempt: AttemptId,
    at_most: Duration,
    grace: Duration,
) -> Waited {
    let wait = async { store.wait(&scope, &key, attempt, at_most).await };
    let limit_name = "its limit and the setting store_timeout";
    match call::answer((store.backend(), "wait"), at_most.saturating_add(grace), limit_name, wait).await {
        Ok(None) => Waited::Ended,
        Ok(Some(found)) if found.record.attempt() != attempt => Waited::Ended,
        Ok(Some(found)) => match found.record.state {
            State::InProgress => Waited::Running { left: found.record.lease_end.since(found.now) },
            State::Released | State::Held | State::Done(_) => Waited::Ended,
        },
        Err(error) => {
            counting.store_error("wait", &error);
            Waited::Failed
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, poll_fn, ready},
        task::Poll,
    };

    use idem_core::Token;

    use super::*;

    fn waits(seats: usize) -> Waits {
        Waits::new(seats, Arc::new(Counting::new("test")))
    }

    fn name(key: &str) -> Name {
        let token = Token::from_bytes([7; 16]);
        (Scope::global(), Key::new(key).unwrap(), AttemptId { token, number: 1 }, Handle::current().id())
    }

    /// Says when it is dropped.
    struct Says(Arc<Mutex<usize>>);

    impl Drop for Says {
        fn drop(&mut self) {
            *self.0.lock().unwrap() += 1;
        }
    }

    #[tokio::test]
    async fn those_who_wait_for_one_attempt_share_a_subscription_and_the_last_one_ends_it() {
        let (waits, dropped) = (waits(10), Arc::new(Mutex::new(0)));
        let join = |key: &str| {
            let says = Says(dropped.clone());
            waits.join(name(key), |_| {
                async move {
                    let _says = says;
                    pending().await
                }
                .boxed()
                .shared()
            })
        };
        let (one, other, apart) = (join("k"), join("k"), join("l"));
        assert_eq!(waits.counts(), (2, 3));
        *dropped.lock().unwrap() = 0; // what the second had with it was not needed
        drop(one);
        assert_eq!((waits.counts(), *dropped.lock().unwrap()), ((2, 2), 0));
        drop(other);
        assert_eq!((waits.counts(), *dropped.lock().unwrap()), ((1, 1), 1));
        drop(apart);
        assert_eq!((waits.counts(), *dropped.lock().unwrap()), ((0, 0), 2));
    }

    #[tokio::test]
    async fn one_that_comes_when_the_answer_is_there_starts_anew_and_nothing_is_left_of_either() {
        let waits = waits(10);
        let (first, part) = waits.join(name("k"), |_| ready(Waited::Ended).boxed().shared());
        assert_eq!(first.clone().await, Waited::Ended);
        let left = Duration::from_secs(1);
        let (second, other_part) = waits.join(name("k"), |_| ready(Waited::Running { left }).boxed().shared());
        assert_eq!(second.await, Waited::Running { left });
        drop(part);
        assert_eq!(waits.counts(), (1, 1), "the first did not end the second");
        drop(other_part);
        assert_eq!(waits.counts(), (0, 0));
    }

    #[tokio::test]
    async fn a_waiter_that_leaves_does_not_keep_the_others_from_being_woken() {
        let waits = waits(10);
        let (send, receive) = tokio::sync::oneshot::channel();
        let (first, part) = waits.join(name("k"), |_| receive.map(|_| Waited::Ended).boxed().shared());
        let (second, other_part) = waits.join(name("k"), |_| unreachable!());
        // The first one polled last, so it is the one that the channel would wake.
        let waiting = tokio::spawn(second);
        tokio::task::yield_now().await;
        let mut first = Box::pin(first);
        assert!(poll_fn(|context| Poll::Ready(first.as_mut().poll(context))).await.is_pending());
        drop((first, part));
        send.send(()).unwrap();
        assert_eq!(waiting.await.unwrap(), Waited::Ended);
        drop(other_part);
        assert_eq!(waits.counts(), (0, 0));
    }

    #[tokio::test]
    async fn seats_are_given_back() {
        let waits = waits(1);
        let seat = waits.seat();
        assert!(seat.is_some() && waits.seat().is_none());
        drop(seat);
        assert!(waits.seat().is_some());
    }
}
