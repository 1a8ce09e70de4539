//! Building an [`Idempotency`]: every setting, and what is wrong with them.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use idem_core::{DEFAULT_LEASE, OnLapse, Retention, Store};

use crate::{Idempotency, OnConflict, OnUnavailable, Seal, SettlePolicy, Sweep, event::event, seal::Sealing};

const DEFAULT_MAX_RUN: Duration = Duration::from_secs(15 * 60);
const DEFAULT_COMPLETION_LIMIT: Duration = Duration::from_secs(15 * 60);
const DEFAULT_COMPLETION_PATIENCE: Duration = Duration::from_secs(1);
const DEFAULT_MAX_WAITERS: usize = 1024;
const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// In what stores count.
const MILLISECOND: Duration = Duration::from_millis(1);

/// What stands for every longer time, since clocks can't be asked for what lies beyond their ends: a hundred years.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The settings of an [`Idempotency`]. Each has a default.
#[derive(Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    store: Arc<dyn Store>,
    lease: Duration,
    max_run: Duration,
    retention: Retention,
    on_lapse: OnLapse,
    lapse_limit: Option<NonZeroU32>,
    settle: SettlePolicy,
    max_response: Option<usize>,
    on_conflict: OnConflict,
    max_waiters: usize,
    on_unavailable: OnUnavailable,
    store_timeout: Duration,
    completion_patience: Option<Duration>,
    completion_limit: Option<Duration>,
    sweep: Sweep,
    seal: Option<Sealing>,
}

/// The settings, checked.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) lease: Duration,
    pub(crate) max_run: Duration,
    pub(crate) retention: Retention,
    pub(crate) on_lapse: OnLapse,
    pub(crate) lapse_limit: Option<NonZeroU32>,
    pub(crate) settle: SettlePolicy,
    pub(crate) max_response: Option<usize>,
    pub(crate) on_conflict: OnConflict,
    pub(crate) max_waiters: usize,
    pub(crate) on_unavailable: OnUnavailable,
    pub(crate) store_timeout: Duration,
    pub(crate) completion_patience: Duration,
    pub(crate) completion_limit: Duration,
    pub(crate) sweep: Sweep,
}

/// A setting that can't be. Found when built, never per request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A duration that must be a millisecond at least.
    #[error("{setting} is {value:?}; give it at least a millisecond")]
    TooShort {
        /// The setting.
        setting: &'static str,
        /// What it is set to.
        value: Duration,
    },
    /// Operations that must not run twice would run unprotected.
    #[error(
        "on_lapse is Hold, for operations that must not run twice, and on_unavailable lets them run unprotected; choose one"
    )]
    HoldUnprotected,
    /// A duration that must not be longer than another.
    #[error("{setting} ({value:?}) is longer than {limit_name} ({limit:?}); shorten the one or lengthen the other")]
    TooLong {
        /// The setting that is too long.
        setting: &'static str,
        /// What it is set to.
        value: Duration,
        /// The setting that bounds it.
        limit_name: &'static str,
        /// What that is set to.
        limit: Duration,
    },
}

impl Builder {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            lease: DEFAULT_LEASE,
            max_run: DEFAULT_MAX_RUN,
            retention: Retention::default(),
            on_lapse: OnLapse::default(),
            lapse_limit: None,
            settle: SettlePolicy::default(),
            max_response: None,
            on_conflict: OnConflict::default(),
            max_waiters: DEFAULT_MAX_WAITERS,
            on_unavailable: OnUnavailable::default(),
            store_timeout: DEFAULT_STORE_TIMEOUT,
            completion_patience: None,
            completion_limit: None,
            sweep: Sweep::default(),
            seal: None,
        }
    }

    /// How long an attempt may stay silent before another may take over: the time for which a crash locks its key. The
    /// runner renews it while the operation runs, three times in a lease. 30 seconds by default.
    ///
    /// After an outage of the store, leases of attempts that go on have lapsed. Every runner that saw the outage gives them a
    /// third of the lease to renew before it takes over from them; one that did not takes over at once. A runner that holds an
    /// outcome which it could not store yet never runs that operation again meanwhile.
    ///
    /// An operation that blocks its thread is renewed from another one of its runtime. Where it blocks all of them, nothing
    /// is renewed: after a lease another process may take over, the operation's outcome is then
    /// [`Outcome::Superseded`](crate::Outcome::Superseded), and the loss is counted. Use `spawn_blocking`.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long one attempt's lease is renewed at most. 15 minutes by default. It may be longer than the retention: a
    /// record never expires before its lease ends.
    pub fn max_run(mut self, max_run: Duration) -> Self {
        self.max_run = max_run;
        self
    }

    /// How long a record stays: longer than the longest time between a first request and its last retry. 24 hours by
    /// default, and 30 days where the outcome waits for someone.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// What happens to a key whose attempt ended silently. Taken over by default.
    pub fn on_lapse(mut self, on_lapse: OnLapse) -> Self {
        self.on_lapse = on_lapse;
        self
    }

    /// After how many silent ends a key is answered Unknown instead of being taken over again. Never by default.
    pub fn lapse_limit(mut self, limit: Option<NonZeroU32>) -> Self {
        self.lapse_limit = limit;
        self
    }

    /// Which outcomes are final.
    pub fn settle(mut self, policy: SettlePolicy) -> Self {
        self.settle = policy;
        self
    }

    /// The most bytes of a response's body that are recorded. A larger one goes out whole, and is recorded without its
    /// body: a retry gets [`Outcome::Replay`](crate::Outcome::Replay) of a response that is
    /// [not retained](idem_core::Body::NotRetained), and never runs. No limit by default: the HTTP layer has one of its own, and
    /// what an operation commits in a transaction of its own is its own choice.
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = Some(bytes);
        self
    }

    /// What a request gets while another attempt runs. Refused by default.
    pub fn on_conflict(mut self, on_conflict: OnConflict) -> Self {
        self.on_conflict = on_conflict;
        self
    }

    /// How many requests may [wait](OnConflict::Wait) at a time, each with what it holds (a body, a connection). One more is
    /// refused at once, and counted. 1024 by default; with 0 none waits.
    pub fn max_waiters(mut self, max_waiters: usize) -> Self {
        self.max_waiters = max_waiters;
        self
    }

    /// What a request gets when the store is unavailable. Refused by default.
    pub fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.on_unavailable = on_unavailable;
        self
    }

    /// How long one call of the store may take before it counts as unavailable. 5 seconds by default.
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.store_timeout = timeout;
        self
    }

    /// How long a client waits for its response to be stored. After that it gets its answer all the same, which says that
    /// it is [not stored](crate::Outcome::Ran), and storing it goes on in the background. 1 second by default, or
    /// `store_timeout` if that is shorter; with 0 nobody waits.
    pub fn completion_patience(mut self, patience: Duration) -> Self {
        self.completion_patience = Some(patience);
        self
    }

    /// How long a response that could not be stored is tried again, past the lapse too. 15 minutes by default, or the
    /// retention if that is shorter.
    pub fn completion_limit(mut self, limit: Duration) -> Self {
        self.completion_limit = Some(limit);
        self
    }

    /// Whether, and how often, expired records are removed in the background. Every minute by default.
    pub fn sweep(mut self, sweep: Sweep) -> Self {
        self.sweep = sweep;
        self
    }

    /// Seals every response and every result of a step before it is stored, and opens it for replays, also those that are
    /// completed in a transaction of the caller's. In clear remain scope, key, fingerprint (see
    /// [`FingerprintKey`](idem_core::FingerprintKey)), the names of steps, and statuses. What was stored before is
    /// replayed as it is. Not sealed by default.
    ///
    /// Results of steps take some 60 bytes more of their 64 KiB, and the length of the key's id.
    ///
    /// Whatever reads the store beside this runner reads it sealed; [`Idempotency::store`] gives it opened. A response that
    /// can't be opened is an error of the store, and its operation does not run. Sealing hides what answers say, apart from
    /// their length; who can write to the store can still put an answer in clear there, or an earlier one of the same record.
    ///
    /// Where several services share the store, let all of them open ([`open_sealed`](Builder::open_sealed)) before the first
    /// one seals.
    pub fn seal(mut self, seal: Arc<dyn Seal>) -> Self {
        self.seal = Some(Sealing { seal, seals: true });
        self
    }

    /// Opens what others [sealed](Builder::seal), and seals nothing: for services that are to seal, until all that share the
    /// store can open. One that can't open answers with an error of kind configuration, or gets replays that are sealed.
    pub fn open_sealed(mut self, seal: Arc<dyn Seal>) -> Self {
        self.seal = Some(Sealing { seal, seals: false });
        self
    }

    /// The runner with these settings. Background work starts with the first request.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if a duration is shorter than a millisecond, [`OnLapse::Hold`] comes with
    /// [`OnUnavailable::RunUnprotected`], the lease is longer than `max_run` or the retention, or the completion
    /// limit is longer than the retention (a late completion must not outlive the record that it completes).
    pub fn build(self) -> Result<Idempotency, ConfigError> {
        let retention = self.retention.standard();
        let settings = Settings {
            lease: self.lease.min(FOR_EVER),
            max_run: self.max_run.min(FOR_EVER),
            retention: self.retention,
            on_lapse: self.on_lapse,
            lapse_limit: self.lapse_limit,
            settle: self.settle,
            max_response: self.max_response,
            on_conflict: match self.on_conflict {
                OnConflict::Refuse => OnConflict::Refuse,
                OnConflict::Wait { at_most } => OnConflict::Wait { at_most: at_most.min(FOR_EVER) },
            },
            max_waiters: self.max_waiters,
            on_unavailable: self.on_unavailable,
            store_timeout: self.store_timeout.min(FOR_EVER),
            completion_patience: self
                .completion_patience
                .unwrap_or(DEFAULT_COMPLETION_PATIENCE.min(self.store_timeout))
                .min(FOR_EVER),
            completion_limit: self.completion_limit.unwrap_or(DEFAULT_COMPLETION_LIMIT.min(retention)).min(FOR_EVER),
            sweep: match self.sweep {
                Sweep::Every(interval) => Sweep::Every(interval.min(FOR_EVER)),
                Sweep::Off => Sweep::Off,
            },
        };
        settings.check()?;
        if settings.sweep == Sweep::Off {
            event!(
                INFO,
                "sweep_off",
                "expired records are not removed from here; something else has to, unless the store does"
            );
        }
        Ok(Idempotency::new(self.store, self.seal, settings))
    }
}

impl Settings {
    fn check(&self) -> Result<(), ConfigError> {
        let retention = self.retention.standard();
        let mut durations = vec![
            ("lease", self.lease),
            ("retention", retention),
            ("max_run", self.max_run),
            ("store_timeout", self.store_timeout),
            ("completion_limit", self.completion_limit),
        ];
        if let OnConflict::Wait { at_most } = self.on_conflict {
            durations.push(("on_conflict: wait at most", at_most));
        }
        if let Sweep::Every(interval) = self.sweep {
            durations.push(("sweep: every", interval));
        }
        if let Some((setting, value)) = durations.into_iter().find(|(_, duration)| *duration < MILLISECOND) {
            return Err(ConfigError::TooShort { setting, value });
        }
        if self.on_lapse == OnLapse::Hold && self.on_unavailable == OnUnavailable::RunUnprotected {
            return Err(ConfigError::HoldUnprotected);
        }
        at_most("lease", self.lease, "retention", retention)?;
        at_most("lease", self.lease, "max_run", self.max_run)?;
        at_most("completion_limit", self.completion_limit, "retention", retention)
    }
}

fn at_most(
    setting: &'static str,
    value: Duration,
    limit_name: &'static str,
    limit: Duration,
) -> Result<(), ConfigError> {
    if value > limit { Err(ConfigError::TooLong { setting, value, limit_name, limit }) } else { Ok(()) }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("store", &self.store.backend()).finish_non_exhaustive()
    }
}
