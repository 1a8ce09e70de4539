//! What happened so far, in numbers.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use idem_core::{StoreError, StoreErrorKind};

use crate::{event::event, meter};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// What happened since the [`Idempotency`](crate::Idempotency) was built.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Names and values, for services that export them in a way of their own. The name of each is that of its
            /// field.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        /// The name of each as a metric, and what it counts.
        #[cfg(feature = "metrics")]
        pub(crate) const DESCRIPTIONS: &[(&str, &str)] = &[$((metric!($name), concat!($($doc),*)),)*];

        #[derive(Debug)]
        pub(crate) struct Counting {
            backend: &'static str,
            $(pub(crate) $name: Count,)*
        }

        impl Counting {
            pub(crate) fn new(backend: &'static str) -> Self {
                // What has not happened yet is there as 0, so that its first time can be seen. Errors have more labels.
                $(if stringify!($name) != "store_errors" {
                    meter::count(metric!($name), &[("backend", backend)], 0);
                })*
                Self { backend, $($name: Count { metric: metric!($name), backend, value: AtomicU64::new(0) },)* }
            }

            pub(crate) fn so_far(&self) -> Counters {
                Counters { $($name: self.$name.value.load(Ordering::Relaxed),)* }
            }
        }
    };
}

macro_rules! metric {
    ($name:ident) => {
        concat!("idem_", stringify!($name), "_total")
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
    /// Records of unknown outcome that someone resolved.
    resolved,
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
    /// Of these, the ones whose body was not kept: too large, or a secret.
    not_retained,
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

#[derive(Debug)]
pub(crate) struct Count {
    metric: &'static str,
    backend: &'static str,
    value: AtomicU64,
}

impl Count {
    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, n: usize) {
        self.value.fetch_add(n as u64, Ordering::Relaxed);
        meter::count(self.metric, &[("backend", self.backend)], n as u64);
    }
}

impl Counting {
    pub(crate) fn backend(&self) -> &'static str {
        self.backend
    }

    /// A call of the store failed: `operation` is the method of [`Store`](idem_core::Store).
    pub(crate) fn store_error(&self, operation: &'static str, error: &StoreError) {
        let Count { metric, backend, value } = &self.store_errors;
        value.fetch_add(1, Ordering::Relaxed);
        let kind = match error.kind() {
            StoreErrorKind::Unavailable => "unavailable",
            StoreErrorKind::Corrupt => "corrupt",
            StoreErrorKind::Configuration => "configuration",
            StoreErrorKind::Contract => "contract",
            _ => "other",
        };
        meter::count(metric, &[("backend", backend), ("operation", operation), ("kind", kind)], 1);
        event!(WARN, "store_error", %error, operation, kind, "a call of the store failed");
    }

    pub(crate) fn seconds(&self, name: &'static str, outcome: &'static str, took: Duration) {
        meter::seconds(name, &[("backend", self.backend), ("outcome", outcome)], took);
    }
}
