//! What befalls which calls.

use std::{
    collections::VecDeque,
    fmt,
    num::NonZeroU64,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_core::{Store, StoreErrorKind};
use tokio::sync::watch;

use super::{STORM_DELAY, calls::Call};
use crate::rng::Rng;

/// An operation of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the method of Store of its name; Any is all of them")]
pub enum Operation {
    Any,
    Claim,
    Complete,
    Release,
    Forget,
    Hold,
    Renew,
    Checkpoint,
    Resolve,
    Read,
    Wait,
    Sweep,
    Lapsed,
    Purge,
    Check,
}

/// What befalls a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The request never arrives: nothing is done, and the caller can't know that.
    LoseRequest,
    /// It is done, and the caller is told that it may not be.
    LoseReply,
    /// The caller is told that it may not be done; it is done later, when [`Faults::deliver`] is called.
    Late,
    /// It is done twice, as by a driver that sends again. The caller gets the second answer.
    Repeat,
    /// It is done this much later.
    Delay(Duration),
    /// Nothing is done, and the caller gets an error of this kind.
    Fail(StoreErrorKind),
}

/// What befalls a call of [`Faulty`](super::Faulty), said by the test while calls go on. Clones are the same handle.
#[derive(Clone)]
pub struct Faults(Arc<Shared>);

struct Shared {
    store: Arc<dyn Store>,
    plan: Mutex<Plan>,
    paused: watch::Sender<bool>,
}

#[derive(Default)]
struct Plan {
    armed: VecDeque<Armed>,
    storm: Option<Storm>,
    late: Vec<LateCall>,
    struck: u64,
    calls: Vec<Operation>,
}

struct Armed {
    fault: Fault,
    operation: Operation,
    skip: u64,
    left: u64,
}

struct Storm {
    rng: Rng,
    one_in: u64,
}

/// A call that arrives late.
type LateCall = Box<dyn FnOnce(Arc<dyn Store>) -> Call<()> + Send>;

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Claim => "claim",
            Self::Complete => "complete",
            Self::Release => "release",
            Self::Forget => "forget",
            Self::Hold => "hold",
            Self::Renew => "renew",
            Self::Checkpoint => "checkpoint",
            Self::Resolve => "resolve",
            Self::Read => "read",
            Self::Wait => "wait",
            Self::Sweep => "sweep",
            Self::Lapsed => "lapsed",
            Self::Purge => "purge",
            Self::Check => "check",
        }
    }

    fn covers(self, operation: Self) -> bool {
        self == Self::Any || self == operation
    }
}

impl Faults {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self(Arc::new(Shared { store, plan: Mutex::default(), paused: watch::Sender::new(false) }))
    }

    /// Strikes the next call of the operation. Faults that are armed for the same one strike one after the other.
    pub fn arm(&self, fault: Fault, operation: Operation) {
        self.arm_times(fault, operation, 0, 1);
    }

    /// Leaves out the first `skip` calls of the operation, and strikes `times` calls from then on.
    pub fn arm_times(&self, fault: Fault, operation: Operation, skip: u64, times: u64) {
        self.plan().armed.push_back(Armed { fault, operation, skip, left: times });
    }

    /// Strikes one in so many calls at random, until it is disarmed: requests and replies get lost, calls are repeated or
    /// late by up to 2 ms. The same seed gives the same sequence. What is armed besides goes first.
    pub fn storm(&self, seed: u64, one_in: NonZeroU64) {
        self.plan().storm = Some(Storm { rng: Rng::from_seed(seed), one_in: one_in.get() });
    }

    /// Strikes nothing any more. Calls that are late stay so until they are delivered.
    pub fn disarm(&self) {
        let mut plan = self.plan();
        plan.armed.clear();
        plan.storm = None;
    }

    /// Lets no call begin until [`Faults::resume`], as a process that is stopped or a network that swallows everything:
    /// give each owner a [`Faulty`](super::Faulty) of its own, and one can be paused past its lease.
    pub fn pause(&self) {
        self.0.paused.send_replace(true);
    }

    /// Ends a pause. Calls that waited go on.
    pub fn resume(&self) {
        self.0.paused.send_replace(false);
    }

    /// Does the calls that are late, in the order in which they were made, and gives how many there were. What they are
    /// answered interests nobody.
    pub async fn deliver(&self) -> usize {
        let late = std::mem::take(&mut self.plan().late);
        let count = late.len();
        for call in late {
            let _ = call(Arc::clone(&self.0.store)).await;
        }
        count
    }

    /// How many calls were struck.
    pub fn struck(&self) -> u64 {
        self.plan().struck
    }

    /// How many calls of the operation there were, struck or not.
    pub fn calls(&self, operation: Operation) -> usize {
        self.plan().calls.iter().filter(|call| operation.covers(**call)).count()
    }

    pub(super) async fn passable(&self) {
        // The sender is here, so this can't fail.
        let _ = self.0.paused.subscribe().wait_for(|paused| !paused).await;
    }

    pub(super) fn strike(&self, operation: Operation) -> Option<Fault> {
        let mut plan = self.plan();
        plan.calls.push(operation);
        let struck = plan.next_armed(operation).or_else(|| plan.next_of_storm());
        plan.struck += u64::from(struck.is_some());
        struck
    }

    pub(super) fn keep(&self, call: LateCall) {
        self.plan().late.push(call);
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plan {
    fn next_armed(&mut self, operation: Operation) -> Option<Fault> {
        let at = self.armed.iter().position(|armed| armed.operation.covers(operation))?;
        let armed = &mut self.armed[at];
        if armed.skip > 0 {
            armed.skip -= 1;
            return None;
        }
        let fault = armed.fault;
        armed.left = armed.left.saturating_sub(1);
        if armed.left == 0 {
            self.armed.remove(at);
        }
        Some(fault)
    }

    fn next_of_storm(&mut self) -> Option<Fault> {
        let storm = self.storm.as_mut()?;
        if storm.rng.next() % storm.one_in != 0 {
            return None;
        }
        Some(match storm.rng.below(4) {
            0 => Fault::LoseRequest,
            1 => Fault::LoseReply,
            2 => Fault::Repeat,
            _ => Fault::Delay(STORM_DELAY.mul_f64(storm.rng.below(100) as f64 / 100.0)),
        })
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("struck", &self.struck()).finish_non_exhaustive()
    }
}
