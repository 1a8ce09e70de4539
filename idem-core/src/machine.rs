//! The state machine: the only place that knows the rules.
//!
//! Pure functions: the record that was found and the store's `now` go in, the answer and what to write come out. No
//! I/O, no clock, no randomness. A store that holds a lock (or a write transaction) around *find, decide, write* can
//! call them as they are; one that can't restates them in its own language, and the conformance suite checks that it
//! agrees with this module, answer by answer and field by field.
//!
//! # Claim
//!
//! The first row that fits ([`claim`] has them in this order):
//!
//! | record | answer | written |
//! |---|---|---|
//! | absent, or past its retention | **Claimed**, number 1, no repeat | in progress |
//! | same token, a fingerprint that no form of the claim's equals | [`TokenReused`] | nothing |
//! | same token, in progress | **Claimed** again (the first reply was lost) | lease end moves, expiry never before it |
//! | same token, done | **Replay** | nothing |
//! | same token, released or held | **Superseded** (a late duplicate of a claim that is over) | nothing |
//! | a fingerprint that no form of the claim's equals | **Reuse**, with what differs | nothing |
//! | done | **Replay** of the recorded response | nothing |
//! | held | **Unknown** | nothing |
//! | released | **Claimed**, number n+1; a repeat unless the last attempt forgot | in progress |
//! | in progress, lease live | **Conflict**, with the time left | nothing |
//! | lapsed; under hold and started, or only the claim says hold, or the lapse limit is reached | **Unknown** | nothing |
//! | lapsed otherwise | **TakenOver**, number n+1, lapses+1, a repeat | in progress |
//!
//! A written claim stores its own on-lapse rule, clears *started*, keeps the checkpoints, and keeps the record's
//! fingerprint where it has one. A claim repeated under its own token only moves the lease.
//!
//! # Writes of an attempt
//!
//! Unless the record is in progress under the attempt's token **and** number, nothing is written and the answer is
//! [`Fenced::Superseded`], save that an attempt repeating the write that ended it gets that write's answer again. A
//! lapsed attempt that nobody took over may still write. Only a claim creates a record.

use std::time::Duration;

use crate::{
    Checkpoint, Checkpointed, Checkpoints, Claim, Differences, Fenced, MAX_CHECKPOINT_BYTES, OnLapse, Origin, Owner,
    Record, Resolve, Response, Retention, State, Timestamp,
};

/// What a decision comes to: the answer, and the record to write. Nothing is written where there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<A> {
    /// The answer.
    pub answer: A,
    /// The record as it is from now on.
    pub write: Option<Record>,
}

impl<A> Decision<A> {
    fn nothing(answer: A) -> Self {
        Self { answer, write: None }
    }

    fn write(answer: A, record: Record) -> Self {
        Self { answer, write: Some(record) }
    }
}

/// What a claim comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The claim's attempt owns the record.
    Claimed,
    /// The claim's attempt owns the record, and the one before it ended silently.
    TakenOver,
    /// The operation is done: the record's response is the answer.
    Replay,
    /// Another attempt owns the record, for this much longer unless it renews.
    Conflict {
        /// The time left of its lease.
        left: Duration,
    },
    /// The key was used for another request.
    Reuse {
        /// What differs from it.
        differences: Differences,
    },
    /// The outcome of an earlier attempt is unknown and waits for someone to resolve it.
    Unknown,
    /// The claim is a late duplicate of one that is over.
    Superseded,
}

/// The refusal of a claim whose token was used for a request with another fingerprint: a bug of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token of this claim was used for two operations")]
pub struct TokenReused;

/// Decides a claim.
///
/// # Errors
///
/// [`TokenReused`] if the record has the claim's token and a fingerprint that no form of the claim's equals.
pub fn claim(found: Option<&Record>, claim: &Claim, now: Timestamp) -> Result<Decision<Verdict>, TokenReused> {
    let Some(record) = live(found, now) else {
        return Ok(Decision::write(Verdict::Claimed, first(claim, now)));
    };
    let own = record.token == claim.token();
    let other_request = record.fingerprint.as_ref().filter(|stored| !claim.accepts(stored));
    Ok(match (&record.state, other_request) {
        (_, Some(_)) if own => return Err(TokenReused),
        (State::InProgress, _) if own => {
            Decision::write(Verdict::Claimed, with_lease(record.clone(), now.after(claim.lease())))
        }
        (State::Done(_), _) if own => Decision::nothing(Verdict::Replay),
        (State::Released | State::Held, _) if own => Decision::nothing(Verdict::Superseded),
        (_, Some(stored)) => Decision::nothing(Verdict::Reuse { differences: claim.differences(stored) }),
        (State::Done(_), _) => Decision::nothing(Verdict::Replay),
        (State::Held, _) => Decision::nothing(Verdict::Unknown),
        (State::Released, _) => Decision::write(Verdict::Claimed, next(record, claim, now)),
        (State::InProgress, _) if now < record.lease_end => {
            Decision::nothing(Verdict::Conflict { left: record.lease_end.since(now) })
        }
        (State::InProgress, _) if is_unknown_when_lapsed(record, claim) => Decision::nothing(Verdict::Unknown),
        (State::InProgress, _) => Decision::write(Verdict::TakenOver, next(record, claim, now)),
    })
}

/// Decides a completion. The answer is the response that the record has from now on, which is what the client must
/// get: if this attempt completed before, that is the response it recorded then.
pub fn complete(
    found: Option<&Record>,
    owner: &Owner,
    response: &Response,
    retention: Retention,
    now: Timestamp,
) -> Decision<Fenced<Response>> {
    match owned(found, owner, now) {
        Some(record) => match &record.state {
            State::InProgress => {
                let done = Record {
                    checkpoints: Checkpoints::default(),
                    expiry: now.after(retention.standard()).max(record.lease_end),
                    ..settled(record, State::Done(response.clone()), now)
                };
                Decision::write(Fenced::Written(response.clone()), done)
            }
            State::Done(recorded) => Decision::nothing(Fenced::Written(recorded.clone())),
            State::Released | State::Held => Decision::nothing(Fenced::Superseded),
        },
        None => Decision::nothing(Fenced::Superseded),
    }
}

/// Decides a release: the next attempt may start at once, and is a repeat.
pub fn release(found: Option<&Record>, owner: &Owner, now: Timestamp) -> Decision<Fenced<()>> {
    end(found, owner, now, &State::Released, |released| released)
}

/// Decides a forget, for an attempt known to have done nothing: if nobody before it did anything either, the
/// fingerprint goes, so that a corrected request may use the key. Otherwise it is a release.
pub fn forget(found: Option<&Record>, owner: &Owner, now: Timestamp) -> Decision<Fenced<()>> {
    end(found, owner, now, &State::Released, |mut released| {
        if !released.repeat && released.checkpoints.is_empty() {
            released.fingerprint = None;
        }
        released
    })
}

/// Decides a hold: the outcome is unknown, and waits for someone to resolve it.
pub fn hold(found: Option<&Record>, owner: &Owner, retention: Retention, now: Timestamp) -> Decision<Fenced<()>> {
    end(found, owner, now, &State::Held, |held| Record { expiry: now.after(retention.held()), ..held })
}

/// Decides a renewal: the lease ends `lease` from now.
pub fn renew(found: Option<&Record>, owner: &Owner, lease: Duration, now: Timestamp) -> Decision<Fenced<()>> {
    match in_progress(found, owner, now) {
        Some(record) => {
            let renewed = with_lease(Record { started: true, ..record.clone() }, now.after(lease));
            Decision::write(Fenced::Written(()), renewed)
        }
        None => Decision::nothing(Fenced::Superseded),
    }
}

/// Decides a checkpoint. The first value of a name stays, and is the answer.
pub fn checkpoint(
    found: Option<&Record>,
    owner: &Owner,
    checkpoint: &Checkpoint,
    now: Timestamp,
) -> Decision<Fenced<Checkpointed>> {
    let Some(record) = in_progress(found, owner, now) else {
        return Decision::nothing(Fenced::Superseded);
    };
    if let Some(kept) = record.checkpoints.find(checkpoint.name()) {
        return Decision::nothing(Fenced::Written(Checkpointed::Kept(kept.clone())));
    }
    let checkpoints = record.checkpoints.with(checkpoint.name(), checkpoint.value());
    if checkpoints.size() > MAX_CHECKPOINT_BYTES {
        return Decision::nothing(Fenced::Written(Checkpointed::Full));
    }
    let kept = Checkpointed::Kept(checkpoint.value().clone());
    Decision::write(Fenced::Written(kept), Record { checkpoints, ..record.clone() })
}

/// Decides a resolve: a held record, or a lapsed one in progress, goes to the resolver, who competes by the same rules
/// as every attempt. Repeated under its own token it only moves the lease.
pub fn resolve(found: Option<&Record>, resolve: &Resolve, now: Timestamp) -> Decision<Fenced<()>> {
    let Some(record) = live(found, now) else {
        return Decision::nothing(Fenced::Superseded);
    };
    let lease_end = now.after(resolve.lease());
    let is_repeated = record.origin == Origin::Resolved
        && record.token == resolve.token()
        && record.number == resolve.seen().number.saturating_add(1);
    if record.state == State::InProgress && is_repeated {
        return Decision::write(Fenced::Written(()), with_lease(record.clone(), lease_end));
    }
    let open = record.state == State::Held || record.is_lapsed(now);
    if !open || record.attempt() != resolve.seen() {
        return Decision::nothing(Fenced::Superseded);
    }
    let taken = Record {
        state: State::InProgress,
        token: resolve.token(),
        number: record.number.saturating_add(1),
        origin: Origin::Resolved,
        repeat: true,
        lease_end,
        claimed: now,
        settled: None,
        expiry: now.after(resolve.retention().held()).max(lease_end),
        on_lapse: OnLapse::Hold,
        started: true,
        ..record.clone()
    };
    Decision::write(Fenced::Written(()), taken)
}

fn live(found: Option<&Record>, now: Timestamp) -> Option<&Record> {
    found.filter(|record| record.is_live(now))
}

/// The live record, if `owner` owns it or owned it last.
fn owned<'a>(found: Option<&'a Record>, owner: &Owner, now: Timestamp) -> Option<&'a Record> {
    live(found, now).filter(|record| record.attempt() == owner.attempt())
}

/// The live record, if `owner` owns it.
fn in_progress<'a>(found: Option<&'a Record>, owner: &Owner, now: Timestamp) -> Option<&'a Record> {
    owned(found, owner, now).filter(|record| record.state == State::InProgress)
}

/// The record of the first attempt.
fn first(claim: &Claim, now: Timestamp) -> Record {
    let lease_end = now.after(claim.lease());
    Record {
        state: State::InProgress,
        token: claim.token(),
        number: 1,
        origin: Origin::First,
        repeat: false,
        lapses: 0,
        fingerprint: Some(claim.fingerprint().clone()),
        lease_end,
        claimed: now,
        settled: None,
        expiry: claim_expiry(claim, lease_end, now),
        on_lapse: claim.on_lapse(),
        started: false,
        checkpoints: Checkpoints::default(),
    }
}

/// The record of the attempt after the one that released it or lapsed on it.
fn next(record: &Record, claim: &Claim, now: Timestamp) -> Record {
    let lapsed = record.state == State::InProgress;
    Record {
        number: record.number.saturating_add(1),
        origin: if lapsed { Origin::Takeover } else { Origin::Release },
        // Only a forget takes the fingerprint away, and it does so only if nobody had done anything.
        repeat: record.fingerprint.is_some(),
        lapses: record.lapses.saturating_add(u32::from(lapsed)),
        fingerprint: record.fingerprint.clone().or_else(|| Some(claim.fingerprint().clone())),
        checkpoints: record.checkpoints.clone(),
        ..first(claim, now)
    }
}

fn claim_expiry(claim: &Claim, lease_end: Timestamp, now: Timestamp) -> Timestamp {
    let stay = match claim.on_lapse() {
        OnLapse::Hold => claim.retention().held(),
        OnLapse::TakeOver => claim.retention().standard(),
    };
    now.after(stay).max(lease_end)
}

fn is_unknown_when_lapsed(record: &Record, claim: &Claim) -> bool {
    let held = match record.on_lapse {
        OnLapse::Hold => record.started,
        OnLapse::TakeOver => claim.on_lapse() == OnLapse::Hold,
    };
    held || claim.lapse_limit().is_some_and(|limit| record.lapses.saturating_add(1) >= limit.get())
}

fn with_lease(record: Record, lease_end: Timestamp) -> Record {
    Record { lease_end, expiry: record.expiry.max(lease_end), ..record }
}

fn settled(record: &Record, state: State, now: Timestamp) -> Record {
    Record { state, settled: Some(now), ..record.clone() }
}

/// Ends an attempt in `state`, as changed by `change`; again, if it ended in that state before.
fn end(
    found: Option<&Record>,
    owner: &Owner,
    now: Timestamp,
    state: &State,
    change: impl FnOnce(Record) -> Record,
) -> Decision<Fenced<()>> {
    match owned(found, owner, now) {
        Some(record) if record.state == State::InProgress => {
            Decision::write(Fenced::Written(()), change(settled(record, state.clone(), now)))
        }
        Some(record) if record.state == *state => Decision::nothing(Fenced::Written(())),
        _ => Decision::nothing(Fenced::Superseded),
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
