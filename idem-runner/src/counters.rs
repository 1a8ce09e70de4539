//! What happened so far, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What happened since the [`Idempotency`](crate::Idempotency) was built.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counting {
            $(pub(crate) $name: Count,)*
        }

        impl Counting {
            pub(crate) fn so_far(&self) -> Counters {
                Counters { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Attempts that were started: claimed or taken over.
    claimed,
    /// Of these, the ones that took over from an attempt that ended silently.
    taken_over,
    /// Requests that were answered with the recorded response.
    replayed,
    /// Requests that were refused because another attempt was at it.
    conflict,
    /// Of these, the ones that would have waited and found every place for waiters taken.
    waits_refused,
    /// Requests whose callers left while they waited for another attempt. They did nothing.
    waits_abandoned,
    /// Requests that were refused because their key was used for another request.
    reused,
    /// Requests that were refused because the outcome of an earlier attempt is unknown.
    unknown,
    /// Attempts that lost their key while they ran, or before they could begin.
    superseded,
    /// Leases that were renewed while their operations ran.
    renewed,
    /// Of these, the ones that had lapsed before: nobody took over, by luck. The store was away, or a handler blocks the
    /// threads of its runtime.
    renewed_late,
    /// Renewals that failed, or came to no answer in time.
    renewal_failures,
    /// Attempts that ran longer than `max_run`: their leases are left to lapse.
    overran,
    /// Attempts that ended with a recorded response.
    completed,
    /// Attempts that ended without one: released, forgotten or held.
    released,
    /// Calls of the store that failed.
    store_errors,
    /// Calls that were made again because the store could not end an attempt.
    completion_retries,
    /// Attempts that the store never let end: their keys are left to their leases.
    completion_failures,
    /// Operations that ran without protection.
    unprotected,
    /// Expired records that were removed in the background.
    swept,
}

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }
}
