//! How the suite gets at a store.

use std::{
    ffi::OsString,
    fmt::{self, Display},
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use idem_core::{Store, Timestamp};

use crate::{Capability, Place, Transactions, notes::Notes, processes::Others};

// The names of capabilities, the same in all that the suite says.
pub(crate) const DURABLE: &str = "durable";
pub(crate) const SHARED: &str = "shared between processes";
pub(crate) const TRANSACTIONAL: &str = "transactional completion";

type Ends<T> = Pin<Box<dyn Future<Output = T>>>;
type Open = dyn Fn(Place) -> Ends<Arc<dyn Store>> + Send + Sync;
type Now = dyn Fn(Place) -> Ends<Timestamp> + Send + Sync;
type Advance = dyn Fn(Place, Duration) -> Ends<()> + Send + Sync;

/// How the suite opens a store, moves its clock, and what the store claims to be beyond the contract.
///
/// The contract of [`Store`] is never optional. What a harness does not declare is not checked, and the tests of it say
/// so in their output.
#[derive(Clone)]
pub struct Harness {
    open: Arc<Open>,
    clock: Clock,
    durable: bool,
    resolution: Duration,
    checkpoint_overhead: usize,
    transactions: Option<Arc<dyn Transactions>>,
    /// What other processes get into their environment, where they share the records.
    shared_between_processes: Option<Vec<(OsString, OsString)>>,
    /// The test that runs, by its whole name.
    test: Option<&'static str>,
    notes: Arc<Notes>,
}

#[derive(Clone)]
enum Clock {
    Place,
    Hooks { now: Arc<Now>, advance: Arc<Advance> },
    Host,
}

impl Harness {
    /// A store that `open` opens at a place. Called again for the same place it gives another handle on the same
    /// records. The store judges time by the place's [clock](Place::clock), unless one of [`Harness::clock_hooks`] and
    /// [`Harness::real_time`] says otherwise.
    ///
    /// Handles should be as far apart as they are in production: a connection of its own for each, where there are
    /// connections. What can be open only once in a process is shared by its handles, in the store's own code or by
    /// [`Place::shared`]. A store that is [`durable`](Harness::durable) must let go of it with the last handle.
    ///
    /// A check whose store can't be opened fails with the error's text.
    pub fn new<S, E>(open: impl AsyncFn(Place) -> Result<S, E> + Send + Sync + 'static) -> Self
    where
        S: Store + 'static,
        E: Display,
    {
        let open = Arc::new(open);
        let open = move |place: Place| -> Ends<Arc<dyn Store>> {
            let open = Arc::clone(&open);
            Box::pin(async move {
                match open(place).await {
                    Ok(store) => Arc::new(store) as Arc<dyn Store>,
                    Err(error) => panic!("the store could not be opened: {error}"),
                }
            })
        };
        Self {
            open: Arc::new(open),
            clock: Clock::Place,
            durable: false,
            resolution: Duration::ZERO,
            checkpoint_overhead: 0,
            transactions: None,
            shared_between_processes: None,
            test: None,
            notes: Arc::default(),
        }
    }

    /// Declares that records outlive every handle: once all are dropped, opening the place again finds them.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Declares that the instants which the store tells may differ by up to this from the clock that the harness tells,
    /// because it can't always ask its clock. How long leases and retentions last is not excused by it. Nothing if the
    /// clock stands still.
    #[must_use]
    pub fn resolution(mut self, resolution: Duration) -> Self {
        self.resolution = resolution;
        self
    }

    /// Declares that the store adds up to so many bytes to the value of each checkpoint, because it encrypts it, and that
    /// these count for the limit of [64 KiB](idem_core::MAX_CHECKPOINT_BYTES). Nothing by default.
    #[must_use]
    pub fn checkpoint_overhead(mut self, bytes: usize) -> Self {
        self.checkpoint_overhead = bytes;
        self
    }

    /// Declares that a record can be completed in a transaction of the caller's, and how.
    #[must_use]
    pub fn transactions(mut self, hook: impl Transactions + 'static) -> Self {
        self.transactions = Some(Arc::new(hook));
        self
    }

    /// Declares that whoever opens the place in another process works on the same records.
    ///
    /// The checks of it start the test program again, with the one test that runs and with `environment` besides what
    /// this process has: it is for what that process can't find out from the place, such as the address of a server
    /// that this process started. Its harness has the same place, with the name and the directory, and a clock of its
    /// own that begins where this one's stands. Only the tests of [`suite!`](crate::suite) can start themselves again; a
    /// [`report`](crate::report()) says that these checks were left to them.
    #[must_use]
    pub fn shared_between_processes<N, V>(mut self, environment: impl IntoIterator<Item = (N, V)>) -> Self
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let environment = environment.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.shared_between_processes = Some(environment.collect());
        self
    }

    /// For stores that judge time by a clock of their own, such as a database server's, that runs and can be moved:
    /// `now` tells that clock as the store at the place sees it, `advance` moves it forward by at least the duration,
    /// for every handle at the place.
    #[must_use]
    pub fn clock_hooks(
        mut self,
        now: impl AsyncFn(Place) -> Timestamp + Send + Sync + 'static,
        advance: impl AsyncFn(Place, Duration) + Send + Sync + 'static,
    ) -> Self {
        let (now, advance) = (Arc::new(now), Arc::new(advance));
        self.clock = Clock::Hooks {
            now: Arc::new(move |place| {
                let now = Arc::clone(&now);
                Box::pin(async move { now(place).await })
            }),
            advance: Arc::new(move |place, by| {
                let advance = Arc::clone(&advance);
                Box::pin(async move { advance(place, by).await })
            }),
        };
        self
    }

    /// For stores that judge time by the host's clock, which nobody can move: the suite waits in real time, with short
    /// leases.
    #[must_use]
    pub fn real_time(mut self) -> Self {
        self.clock = Clock::Host;
        self
    }

    pub(crate) async fn open(&self, place: &Place) -> Arc<dyn Store> {
        let store = (self.open)(place.clone()).await;
        self.notes.note_backend(store.backend());
        store
    }

    /// What is declared and what is not.
    pub(crate) fn capabilities(&self) -> Vec<Capability> {
        let claimed = |is_claimed| if is_claimed { "claimed" } else { "not claimed" }.to_owned();
        let resolution = match (self.is_frozen(), self.resolution) {
            (true, _) => "to the millisecond, by a clock that stands still".to_owned(),
            (false, Duration::ZERO) => "to the millisecond, by a clock that runs".to_owned(),
            (false, resolution) => format!("{resolution:?}"),
        };
        let overhead = format!("{} bytes", self.checkpoint_overhead);
        vec![
            Capability { name: DURABLE, declared: claimed(self.durable) },
            Capability { name: SHARED, declared: claimed(self.shared_between_processes.is_some()) },
            Capability { name: TRANSACTIONAL, declared: claimed(self.transactions.is_some()) },
            Capability { name: "resolution of its clock", declared: resolution },
            Capability { name: "overhead of a checkpoint", declared: overhead },
        ]
    }

    /// What checks take note of beside passing or failing.
    pub(crate) fn notes(&self) -> Arc<Notes> {
        Arc::clone(&self.notes)
    }

    /// What the store adds to the value of each checkpoint, in bytes.
    pub(crate) fn added_to_checkpoints(&self) -> usize {
        self.checkpoint_overhead
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.durable
    }

    pub(crate) fn transactional(&self) -> Option<&dyn Transactions> {
        self.transactions.as_deref()
    }

    /// The same in a test of this path, which begins with the crate.
    #[doc(hidden)]
    #[must_use]
    pub fn __in_test(mut self, path: &'static str) -> Self {
        self.test = path.split_once("::").map(|(_, name)| name);
        self
    }

    /// How other processes that share the records are started, or what is missing for that.
    pub(crate) fn others(&self) -> Result<Others, &'static str> {
        let environment = self.shared_between_processes.clone().ok_or(SHARED)?;
        let test = self
            .test
            .ok_or("shared between processes (a report can't start itself again: the tests of suite! check it)")?;
        Ok(Others { test: test.to_owned(), environment })
    }

    /// Whether the clock stands still between two calls of [`Harness::advance`].
    pub(crate) fn is_frozen(&self) -> bool {
        matches!(self.clock, Clock::Place)
    }

    /// Whether moving the clock means waiting.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.clock, Clock::Host)
    }

    /// By how much the store's instants may differ from [`Harness::now`].
    pub(crate) fn slack(&self) -> Duration {
        if self.is_frozen() { Duration::ZERO } else { self.resolution }
    }

    pub(crate) async fn now(&self, place: &Place) -> Timestamp {
        match &self.clock {
            Clock::Place => place.clock().now(),
            Clock::Hooks { now, .. } => now(place.clone()).await,
            Clock::Host => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
            }
        }
    }

    pub(crate) async fn advance(&self, place: &Place, by: Duration) {
        match &self.clock {
            Clock::Place => place.clock().advance(by),
            Clock::Hooks { advance, .. } => advance(place.clone(), by).await,
            Clock::Host => tokio::time::sleep(by).await,
        }
    }
}

impl fmt::Debug for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clock = match self.clock {
            Clock::Place => "the place's",
            Clock::Hooks { .. } => "moved by hooks",
            Clock::Host => "the host's",
        };
        f.debug_struct("Harness")
            .field("durable", &self.durable)
            .field("shared_between_processes", &self.shared_between_processes.is_some())
            .field("transactions", &self.transactions.is_some())
            .field("clock", &clock)
            .finish_non_exhaustive()
    }
}
