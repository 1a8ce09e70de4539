use std::{
    future::ready,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use idem_core::{Claim, Fingerprint, Timestamp, Token, machine};

use super::*;

/// A record that stays in progress, unless it is ended.
struct Fake {
    snapshot: Snapshot,
    reads: AtomicUsize,
    /// Rings, or ends the attempt, at the first time that the server is asked to say when it ends.
    at_listen: Box<dyn Fn() + Send + Sync>,
    has_ended: Arc<AtomicBool>,
}

impl Help for Fake {
    fn read(&self) -> impl Future<Output = Result<Option<Snapshot>, StoreError>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        ready(Ok((!self.has_ended.load(Ordering::SeqCst)).then(|| self.snapshot.clone())))
    }

    fn listen(&self) -> impl Future<Output = bool> {
        (self.at_listen)();
        ready(true)
    }
}

fn fake() -> Fake {
    let (scope, key) = place();
    let fingerprint = Fingerprint::builder().part("body", "b").build().unwrap();
    let claim = Claim::new(scope, key, Token::from_bytes([7; 16]), fingerprint);
    let now = Timestamp::from_millis(0);
    let record = machine::claim(None, &claim, now).unwrap().write.unwrap();
    let has_ended = Arc::new(AtomicBool::new(false));
    Fake { snapshot: Snapshot { record, now }, reads: AtomicUsize::new(0), at_listen: Box::new(|| {}), has_ended }
}

fn place() -> (Scope, Key) {
    (Scope::new("s").unwrap(), Key::new("k").unwrap())
}

fn ring() -> u64 {
    let (scope, key) = place();
    bell(&scope, &key)
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_ring_wakes_the_wait_itself_long_before_it_looks_again() {
    let (waiters, fake) = (Waiters::new(), fake());
    let seen = fake.snapshot.record.attempt();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut wait = pin!(waiters.wait(ring(), seen, Duration::MAX, &fake));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(!woken.0.load(Ordering::SeqCst));
    waiters.wake(ring());
    assert!(woken.0.load(Ordering::SeqCst));
}

#[tokio::test]
async fn an_end_between_the_look_and_the_servers_promise_to_tell_is_not_missed() {
    let (waiters, mut fake) = (Waiters::new(), fake());
    let seen = fake.snapshot.record.attempt();
    // The first look still finds it in progress; it ends before the server knows that someone listens.
    let has_ended = Arc::clone(&fake.has_ended);
    fake.at_listen = Box::new(move || has_ended.store(true, Ordering::SeqCst));
    let mut wait = pin!(waiters.wait(ring(), seen, Duration::MAX, &fake));
    let poll = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(poll, Poll::Ready(Ok(None))), "{poll:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_nobody_wakes_looks_by_itself_until_its_time_is_over() {
    let (waiters, fake) = (Waiters::new(), fake());
    let seen = fake.snapshot.record.attempt();
    let found = waiters.wait(ring(), seen, Duration::from_secs(5), &fake).await.unwrap();
    assert_eq!(found.map(|found| found.record), Some(fake.snapshot.record.clone()));
    let reads = fake.reads.load(Ordering::SeqCst);
    assert!((6..=8).contains(&reads), "one a second, and the two at the beginning; it was {reads}");
}

#[test]
fn names_that_run_together_have_bells_of_their_own() {
    let of = |scope: &str, key: &str| bell(&Scope::from_stored(scope).unwrap(), &Key::new(key).unwrap());
    assert_ne!(of("ab", "c"), of("a", "bc"));
    assert_ne!(of("", "a"), of("a", "a"));
}
