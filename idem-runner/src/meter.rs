//! Numbers for the `metrics` facade, where the feature of its name is on. `docs/observability.md` lists them.
//!
//! Labels are words of this crate and of the store's code: never a scope, a key, or anything else that a client chose.

#[cfg(feature = "metrics")]
use metrics::{Label, counter, gauge, histogram};

/// A name and its values, both written in code.
pub(crate) type Labels<'a> = &'a [(&'static str, &'static str)];

/// How long requests took to be answered or to own their key.
pub(crate) const CLAIM_SECONDS: &str = "idem_claim_seconds";
/// How long operations ran.
pub(crate) const OPERATION_SECONDS: &str = "idem_operation_seconds";
/// How long requests waited for another attempt.
pub(crate) const WAIT_SECONDS: &str = "idem_wait_seconds";
/// What was left of the lease when the response was recorded.
pub(crate) const LEASE_LEFT_SECONDS: &str = "idem_lease_left_seconds";
const RUNNING: &str = "idem_running";
const WAITING: &str = "idem_waiting";

#[cfg(feature = "metrics")]
fn labels(labels: Labels<'_>) -> Vec<Label> {
    labels.iter().map(|(name, value)| Label::from_static_parts(name, value)).collect()
}

pub(crate) fn count(name: &'static str, with: Labels<'_>, n: u64) {
    #[cfg(feature = "metrics")]
    counter!(name, labels(with)).increment(n);
    #[cfg(not(feature = "metrics"))]
    let _ = (name, with, n);
}

pub(crate) fn seconds(name: &'static str, with: Labels<'_>, took: std::time::Duration) {
    #[cfg(feature = "metrics")]
    histogram!(name, labels(with)).record(took);
    #[cfg(not(feature = "metrics"))]
    let _ = (name, with, took);
}

/// Counts as one for as long as it lives.
pub(crate) struct Gauge {
    #[cfg(feature = "metrics")]
    name: &'static str,
    #[cfg(feature = "metrics")]
    backend: &'static str,
}

impl Gauge {
    /// An attempt that runs.
    pub(crate) fn running(backend: &'static str) -> Self {
        Self::raised(RUNNING, backend)
    }

    /// A request that waits.
    pub(crate) fn waiting(backend: &'static str) -> Self {
        Self::raised(WAITING, backend)
    }

    #[cfg(feature = "metrics")]
    fn raised(name: &'static str, backend: &'static str) -> Self {
        gauge!(name, labels(&[("backend", backend)])).increment(1);
        Self { name, backend }
    }

    #[cfg(not(feature = "metrics"))]
    fn raised(_: &'static str, _: &'static str) -> Self {
        Self {}
    }
}

#[cfg(feature = "metrics")]
impl Drop for Gauge {
    fn drop(&mut self) {
        gauge!(self.name, labels(&[("backend", self.backend)])).decrement(1);
    }
}

/// Tells the recorder that is installed what the names mean.
pub(crate) fn describe() {
    #[cfg(feature = "metrics")]
    {
        use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
        for (name, description) in crate::counters::DESCRIPTIONS {
            describe_counter!(*name, description.trim());
        }
        describe_gauge!(RUNNING, "Attempts that run now.");
        describe_gauge!(WAITING, "Requests that wait for another attempt now.");
        let histograms = [
            (CLAIM_SECONDS, "From a request to the ownership of its key, or to its answer; with the waiting."),
            (OPERATION_SECONDS, "How long an operation ran."),
            (WAIT_SECONDS, "How long a request waited for another attempt."),
            (LEASE_LEFT_SECONDS, "What was left of the lease when the response was recorded."),
        ];
        for (name, description) in histograms {
            describe_histogram!(name, Unit::Seconds, description);
        }
    }
}
