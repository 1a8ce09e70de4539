//! Whether the store was away just now.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_core::{StoreError, StoreErrorKind};
use tokio::time::Instant;

/// While a store is away nobody can renew a lease, so afterwards leases of attempts have lapsed that go on all the same. Whoever
/// saw that it was away gives them the time to renew before it takes over from them.
#[derive(Debug)]
pub(crate) struct Outages {
    /// How long nothing is answered in an outage, at least, and how long it is waited for owners after one.
    span: Duration,
    /// Whether the last call failed: what each call looks at, so that it is cheap.
    is_failing: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Since when every call failed.
    failing_since: Option<Instant>,
    /// When the last outage was over.
    back_since: Option<Instant>,
}

impl Outages {
    pub(crate) fn new(span: Duration) -> Self {
        Self { span, is_failing: AtomicBool::new(false), seen: Mutex::default() }
    }

    /// Takes note of what a call came to.
    pub(crate) fn note<T>(&self, result: &Result<T, StoreError>) {
        match result {
            Err(error) if error.kind() == StoreErrorKind::Unavailable => {
                let mut seen = self.seen();
                seen.failing_since.get_or_insert_with(Instant::now);
                self.is_failing.store(true, Ordering::Relaxed);
            }
            _ if self.is_failing.load(Ordering::Relaxed) => {
                let mut seen = self.seen();
                self.is_failing.store(false, Ordering::Relaxed);
                if seen.failing_since.take().is_some_and(|since| since.elapsed() >= self.span) {
                    seen.back_since = Some(Instant::now());
                }
            }
            _ => {}
        }
    }

    /// Whether an outage was over so short a while ago that owners may not have renewed their leases yet.
    pub(crate) fn was_just_now(&self) -> bool {
        self.seen().back_since.is_some_and(|since| since.elapsed() < self.span)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_a_time_without_any_answer_and_owners_have_as_long_after_it() {
        let span = Duration::from_secs(10);
        let moment = Duration::from_millis(1);
        let outages = Outages::new(span);
        let failed = || Err::<(), _>(StoreError::new(StoreErrorKind::Unavailable, "test", "claim", "away"));
        outages.note(&failed());
        tokio::time::advance(span - moment).await;
        outages.note(&failed());
        outages.note(&Ok(()));
        assert!(!outages.was_just_now(), "that was too short a while");
        outages.note(&failed());
        tokio::time::advance(span).await;
        assert!(!outages.was_just_now(), "it is not over");
        // Any other answer is one.
        outages.note(&Err::<(), _>(StoreError::new(StoreErrorKind::Corrupt, "test", "claim", "unreadable")));
        assert!(outages.was_just_now());
        tokio::time::advance(span - moment).await;
        outages.note(&failed());
        outages.note(&Ok(()));
        assert!(outages.was_just_now());
        tokio::time::advance(moment).await;
        assert!(!outages.was_just_now());
    }
}
