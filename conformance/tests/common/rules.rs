//! The rules of the reference store, one method each. A wrong store overrides one.

use std::time::Duration;

use idem_core::{
    Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Key, ManualClock, Owner, Record, Resolve, Response, Retention,
    Scope, StoreError, Timestamp, TokenReused,
    machine::{self, Decision},
};

/// See [`Rules::GAP`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gap {
    None,
    Always,
    /// Only where a lapsed record is found.
    OnLapse,
    /// Only where a claim finds a live lease, which goes on if it is the claim's own.
    OnRepeat,
    /// Only in the operation of this name.
    In(&'static str),
    /// Always, and without waiting for anything: only another thread comes in between.
    Short,
    /// Between the owner's part of a record and the rest of it, which are written one after the other.
    Torn,
}

/// See [`Rules::MARKS`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marks {
    None,
    /// A mark goes with the operation, however it ends. A claim that finds one answers Busy.
    Guarded,
    /// A mark stays when its operation is dropped.
    Leaky,
}

/// Where the record of a scope and key is, or is to be.
pub(crate) type Slot = Option<Record>;

pub(crate) trait Rules: Default + Send + Sync + 'static {
    /// Whether a handle keeps what it has read, until it writes itself.
    const CACHES: bool = false;
    /// Whether the store lets others in between finding a record and writing it.
    const GAP: Gap = Gap::None;
    /// Whether the last write is still on its way when it is answered, and lost in a restart.
    const LAZY: bool = false;
    /// Whether the sweep removes what it found expired without looking again.
    const SWEEPS_LATE: bool = false;
    /// Whether a wait looks first, and then asks to be woken.
    const MISSES_WAKE_UPS: bool = false;
    /// Whether a purge leaves what was written since it looked.
    const PURGES_WHAT_IT_SAW: bool = false;
    /// How often each operation lets others go first, before and after its step.
    const YIELDS: usize = 0;
    /// Whether records are kept as bytes, in two pieces.
    const PIECES: bool = false;
    /// Whether an operation marks the record that it works on.
    const MARKS: Marks = Marks::None;
    /// Whether the store goes by the host's clock, ahead by what the place's clock was moved.
    const RUNS: bool = false;

    fn now(&self, clock: &ManualClock) -> Timestamp {
        clock.now()
    }

    fn id(&self, scope: &Scope, key: &Key) -> (Scope, Key) {
        (scope.clone(), key.clone())
    }

    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        right_claim(slot, claim, now)
    }

    fn complete(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        response: &Response,
        retention: Retention,
        now: Timestamp,
    ) -> Fenced<Response> {
        apply(slot, |found| machine::complete(found, owner, response, retention, now))
    }

    fn release(&self, slot: &mut Slot, owner: &Owner, now: Timestamp) -> Fenced<()> {
        apply(slot, |found| machine::release(found, owner, now))
    }

    fn forget(&self, slot: &mut Slot, owner: &Owner, now: Timestamp) -> Fenced<()> {
        apply(slot, |found| machine::forget(found, owner, now))
    }

    fn hold(&self, slot: &mut Slot, owner: &Owner, retention: Retention, now: Timestamp) -> Fenced<()> {
        apply(slot, |found| machine::hold(found, owner, retention, now))
    }

    fn renew(&self, slot: &mut Slot, owner: &Owner, lease: Duration, now: Timestamp) -> Fenced<()> {
        apply(slot, |found| machine::renew(found, owner, lease, now))
    }

    fn checkpoint(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        checkpoint: &Checkpoint,
        now: Timestamp,
    ) -> Fenced<Checkpointed> {
        apply(slot, |found| machine::checkpoint(found, owner, checkpoint, now))
    }

    fn resolve(&self, slot: &mut Slot, resolve: &Resolve, now: Timestamp) -> Fenced<Record> {
        match (apply(slot, |found| machine::resolve(found, resolve, now)), slot) {
            (Fenced::Written(()), Some(record)) => Fenced::Written(record.clone()),
            _ => Fenced::Superseded,
        }
    }

    fn is_swept(&self, record: &Record, now: Timestamp) -> bool {
        !record.is_live(now)
    }

    /// Whether a wait for the attempt that is in progress on this record goes on.
    fn is_waited_for(&self, record: &Record, now: Timestamp) -> bool {
        let _ = (record, now);
        true
    }

    /// In which order waiting records are listed.
    fn rank(&self, id: &(Scope, Key)) -> (String, String) {
        (id.0.as_str().into(), id.1.as_str().into())
    }

    fn is_purged(&self, scope: &Scope, purged: &Scope) -> bool {
        scope == purged
    }
}

/// No rule is broken.
#[derive(Default)]
pub(crate) struct Right;

impl Rules for Right {}

pub(crate) fn right_claim(slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
    match machine::claim(slot.as_ref(), claim, now) {
        Err(TokenReused) => Err(StoreError::token_reused("reference")),
        Ok(Decision { write: Some(record), .. }) => {
            *slot = Some(record.clone());
            Ok(ClaimRow::Written(record))
        }
        Ok(Decision { write: None, .. }) => {
            let record = slot.clone().expect("only a record that was found is left as it is");
            Ok(ClaimRow::Found { record, now: Some(now) })
        }
    }
}

pub(crate) fn apply<A>(slot: &mut Slot, decide: impl FnOnce(Option<&Record>) -> Decision<A>) -> A {
    let Decision { answer, write } = decide(slot.as_ref());
    if write.is_some() {
        *slot = write;
    }
    answer
}
