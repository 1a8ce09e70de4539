//! Waiting until an attempt is no longer in progress.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use idem_core::{AttemptId, Key, Scope, Snapshot, State, StoreError};
use tokio::{
    sync::{Notify, futures::Notified},
    time::{Instant, timeout},
};

/// How often a wait looks by itself. Writes ring; what nobody rings for is a record that expires.
const POLL: Duration = Duration::from_millis(100);

/// More than there will be busy records at a time. Records that share a bell wake each other's waits, which then look and
/// go on waiting.
const BELLS: usize = 512;

/// Rung after each commit for the records that it changed. A fixed number of them, so that a wait that is dropped leaves
/// nothing behind.
#[derive(Debug)]
pub(crate) struct Bells {
    bells: Box<[Notify]>,
    hasher: RandomState,
}

/// Which bell is a record's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bell(usize);

impl Bells {
    pub(crate) fn new() -> Self {
        Self { bells: (0..BELLS).map(|_| Notify::new()).collect(), hasher: RandomState::new() }
    }

    pub(crate) fn of(&self, scope: &str, key: &str) -> Bell {
        Bell((self.hasher.hash_one((scope, key)) % BELLS as u64) as usize) // below 512: nothing is lost
    }

    pub(crate) fn ring(&self, bell: Bell) {
        self.bells[bell.0].notify_waiters();
    }

    pub(crate) fn listen(&self, scope: &Scope, key: &Key) -> Notified<'_> {
        self.bells[self.of(scope.as_str(), key.as_str()).0].notified()
    }

    /// Waits until the `seen` attempt is not in progress on the record, for `at_most`; `read` reads it.
    pub(crate) async fn wait<R>(
        &self,
        (scope, key): (&Scope, &Key),
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
            let rung = self.listen(scope, key);
            let found = read().await?;
            let left = end.map_or(POLL, |end| end.saturating_duration_since(Instant::now()));
            if !is_in_progress(found.as_ref(), seen) || left.is_zero() {
                return Ok(found);
            }
            // Either way the next step is to look.
            let _ = timeout(left.min(POLL), rung).await;
        }
    }
}

fn is_in_progress(found: Option<&Snapshot>, seen: AttemptId) -> bool {
    found.is_some_and(|found| found.record.state == State::InProgress && found.record.attempt() == seen)
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

    use idem_core::{Claim, Fingerprint, Timestamp, Token, machine};

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
        let record = machine::claim(None, &claim, now).unwrap().write.unwrap();
        (scope, key, Snapshot { record, now })
    }

    #[tokio::test]
    async fn a_write_wakes_the_wait_itself_long_before_it_looks_again() {
        let (scope, key, found) = in_progress();
        let (bells, seen) = (Bells::new(), found.record.attempt());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let read = || ready(Ok(Some(found.clone())));
        let mut wait = pin!(bells.wait((&scope, &key), seen, Duration::MAX, read));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(!woken.0.load(Ordering::SeqCst));
        bells.ring(bells.of(scope.as_str(), key.as_str()));
        assert!(woken.0.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_write_between_the_look_and_the_wait_is_not_missed() {
        let (scope, key, found) = in_progress();
        let (bells, seen) = (Bells::new(), found.record.attempt());
        let done = AtomicBool::new(false);
        let read = || {
            // The first look still finds it in progress; the write comes before the wait.
            let found = (!done.swap(true, Ordering::SeqCst)).then(|| found.clone());
            bells.ring(bells.of(scope.as_str(), key.as_str()));
            ready(Ok(found))
        };
        let mut wait = pin!(bells.wait((&scope, &key), seen, Duration::MAX, read));
        let poll = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(poll, Poll::Ready(Ok(None))), "{poll:?}");
    }
}
