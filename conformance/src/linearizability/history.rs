//! What was asked of a store about one key, and what it answered.

use std::time::Duration;

use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Owner, Record, Resolve, Response, Retention,
    Snapshot, StoreErrorKind,
};

use super::clock::Clock;

/// All calls on one key, from before it was used to the last read, in no particular order.
#[derive(Debug)]
pub(super) struct History {
    pub(super) calls: Vec<Call>,
    pub(super) clock: Clock,
}

/// One call. Its moments are numbers of a counter that all tasks share: of two calls one came first if it returned
/// before the other was invoked.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// Who made it. A task makes one call at a time.
    pub(super) task: &'static str,
    pub(super) invoked: u64,
    pub(super) operation: Operation,
    pub(super) end: End,
}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    Claim(Claim),
    Complete(Owner, Response, Retention),
    Release(Owner),
    Forget(Owner),
    Hold(Owner, Retention),
    Renew(Owner, Duration),
    Checkpoint(Owner, Checkpoint),
    Resolve(Resolve),
    Read,
    /// Of a scope that has no other key.
    Purge,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub(super) enum End {
    Answered {
        at: u64,
        reply: Box<Reply>,
    },
    /// With an error of kind unavailable: it has happened, or happens later, or twice, or never.
    Failed {
        at: u64,
    },
    /// Its future was dropped: it has happened, or happens later, or never.
    Dropped,
}

/// What a store answers, or what the machine would.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Row(ClaimRow),
    Completed(Fenced<Response>),
    Ended(Fenced<()>),
    Kept(Fenced<Checkpointed>),
    Resolved(Fenced<Record>),
    Found(Option<Snapshot>),
    Removed(usize),
    /// An error of a kind that repeating does not cure, with its message.
    Refused(StoreErrorKind, String),
}

impl Call {
    pub(super) fn reply(&self) -> Option<&Reply> {
        match &self.end {
            End::Answered { reply, .. } => Some(reply),
            End::Failed { .. } | End::Dropped => None,
        }
    }

    /// When it was answered.
    pub(super) fn answered(&self) -> Option<u64> {
        match self.end {
            End::Answered { at, .. } => Some(at),
            End::Failed { .. } | End::Dropped => None,
        }
    }

    /// Whether its answer says that it wrote nothing, wherever in the order it stands. Without an answer only a read is
    /// sure to have written nothing.
    pub(super) fn is_look(&self) -> bool {
        match (&self.operation, self.reply()) {
            (Operation::Read, _) => true,
            (_, None) => false,
            (Operation::Complete(_, asked, _), Some(Reply::Completed(Fenced::Written(recorded)))) => recorded != asked,
            (Operation::Checkpoint(_, asked), Some(Reply::Kept(Fenced::Written(Checkpointed::Kept(kept))))) => {
                kept != asked.value()
            }
            (_, Some(reply)) => match reply {
                Reply::Row(row) => !matches!(row, ClaimRow::Written(_)),
                Reply::Completed(answer) => *answer == Fenced::Superseded,
                Reply::Ended(answer) => *answer == Fenced::Superseded,
                Reply::Kept(answer) => !matches!(answer, Fenced::Written(Checkpointed::Kept(_))),
                Reply::Resolved(answer) => *answer == Fenced::Superseded,
                Reply::Removed(count) => *count == 0,
                Reply::Found(_) | Reply::Refused(..) => true,
            },
        }
    }

    /// Whether another call was in flight at the same time, and may have been at work on the record: what Busy says.
    pub(super) fn meets_a_write(&self, calls: &[Self]) -> bool {
        let returned = self.answered().unwrap_or(u64::MAX);
        let meets = |other: &&Self| {
            other.invoked != self.invoked
                && !matches!(other.operation, Operation::Read)
                && other.invoked < returned
                && other.answered().unwrap_or(u64::MAX) > self.invoked
        };
        calls.iter().find(meets).is_some()
    }
}

impl Operation {
    /// The attempt that writes.
    pub(super) fn attempt(&self) -> Option<AttemptId> {
        match self {
            Self::Complete(owner, ..)
            | Self::Release(owner)
            | Self::Forget(owner)
            | Self::Hold(owner, _)
            | Self::Renew(owner, _)
            | Self::Checkpoint(owner, _) => Some(owner.attempt()),
            Self::Claim(_) | Self::Resolve(_) | Self::Read | Self::Purge => None,
        }
    }

    /// The durations that it brings with it.
    pub(super) fn durations(&self) -> Vec<Duration> {
        let of = |retention: Retention| [retention.standard(), retention.held()];
        match self {
            Self::Claim(claim) => [vec![claim.lease()], of(claim.retention()).to_vec()].concat(),
            Self::Resolve(resolve) => [vec![resolve.lease()], of(resolve.retention()).to_vec()].concat(),
            Self::Complete(_, _, retention) | Self::Hold(_, retention) => of(*retention).to_vec(),
            Self::Renew(_, lease) => vec![*lease],
            Self::Release(_) | Self::Forget(_) | Self::Checkpoint(..) | Self::Read | Self::Purge => Vec::new(),
        }
    }
}

impl Reply {
    /// The record that the answer tells.
    pub(super) fn record(&self) -> Option<&Record> {
        match self {
            Self::Row(ClaimRow::Written(record) | ClaimRow::Found { record, .. })
            | Self::Resolved(Fenced::Written(record)) => Some(record),
            Self::Found(found) => found.as_ref().map(|snapshot| &snapshot.record),
            _ => None,
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Row(ClaimRow::Busy { .. }))
    }
}
