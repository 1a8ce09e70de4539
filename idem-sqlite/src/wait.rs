//! Waiting until an attempt is no longer in progress.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use idem_core::{AttemptId, Key, Scope, Snapshot, State, StoreError};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

/// How often a wait looks by itself, for what other handles, other processes and callers' transactions wrote.
const POLL: Duration = Duration::from_millis(50);

/// Bells, more than there will be busy records at a time. Records that share one wake each other's waits, which then
/// look and go on waiting.
const BELLS: usize = 1024;

/// Who waits for the writes of one handle. A fixed number of bells, so a wait that is dropped leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Waiters {
    bells: Box<[Notify]>,
    hasher: RandomState,
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Self { bells: (0..BELLS).map(|_| Notify::new()).collect(), hasher: RandomState::new() }
    }

    pub(crate) fn wake(&self, scope: &Scope, key: &Key) {
        self.bell(scope, key).notify_waiters();
    }

    pub(crate) fn wake_everybody(&self) {
        self.bells.iter().for_each(Notify::notify_waiters);
    }

    fn bell(&self, scope: &Scope, key: &Key) -> &Notify {
        let hash = self.hasher.hash_one((scope, key));
        &self.bells[(hash % BELLS as u64) as usize]
    }

    /// Waits until the `seen` attempt is not in progress on the record, for `at_most`; `read` reads it.
    pub(crate) async fn wait<R>(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
        read: impl Fn() -> R,
    ) -> Result<Option<Snapshot>, StoreError>
    where
        R: Future<Output = Result<Option<Snapshot>, StoreError>>,
    {
        let end = Instant::now().checked_add(at_most);
        loop {
            // Listens first (from here on, awaited or not) and looks then, or what happens in between would be missed.
            let woken = self.bell(scope, key).notified();
            let snapshot = read().await?;
            let left = end.map_or(POLL, |end| end.saturating_duration_since(Instant::now()));
            if !is_in_progress(snapshot.as_ref(), seen) || left.is_zero() {
                return Ok(snapshot);
            }
            // Either way the next step is to look.
            let _ = timeout(left.min(POLL), woken).await;
        }
    }
}

fn is_in_progress(snapshot: Option<&Snapshot>, seen: AttemptId) -> bool {
    snapshot.is_some_and(|found| found.record.state == State::InProgress && found.record.attempt() == seen)
}

#[cfg(test)]
mod tests {
    use std::{
        future::ready,
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        task::{Context, Poll, Wake, Waker},
    };

    use idem_core::{
        Claim, Fingerprint, Timestamp, Token,
        machine::{self, Decision},
    };

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn in_progress() -> (Scope, Key, Snapshot) {
        let (scope, key) = (Scope::new("s").unwrap(), Key::new("k").unwrap());
        let fingerprint = Fingerprint::builder().part("body", "b").build().unwrap();
        let claim = Claim::new(scope.clone(), key.clone(), Token::from_bytes([7; 16]), fingerprint);
        let now = Timestamp::from_millis(0);
        let Decision { write, .. } = machine::claim(None, &claim, now).unwrap();
        (scope, key, Snapshot { record: write.unwrap(), now })
    }

    #[tokio::test]
    async fn a_write_wakes_the_wait_itself_long_before_it_looks_again() {
        let (scope, key, snapshot) = in_progress();
        let (waiters, seen) = (Waiters::new(), snapshot.record.attempt());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let read = || ready(Ok(Some(snapshot.clone())));
        let mut wait = pin!(waiters.wait(&scope, &key, seen, Duration::MAX, read));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(!woken.0.load(Ordering::SeqCst));
        waiters.wake(&scope, &key);
        assert!(woken.0.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_write_between_the_look_and_the_wait_is_not_missed() {
        let (scope, key, snapshot) = in_progress();
        let (waiters, seen) = (Waiters::new(), snapshot.record.attempt());
        let done = AtomicBool::new(false);
        let read = || {
            // The first look still finds it in progress; the write comes before the wait.
            let found = (!done.swap(true, Ordering::SeqCst)).then(|| snapshot.clone());
            waiters.wake(&scope, &key);
            ready(Ok(found))
        };
        let mut wait = pin!(waiters.wait(&scope, &key, seen, Duration::MAX, read));
        let poll = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(poll, Poll::Ready(Ok(None))), "{poll:?}");
    }
}
