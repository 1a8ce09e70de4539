//! What the machine says to one call.

use idem_core::{
    Claim, ClaimRow, Fenced, Record, Snapshot, State, StoreErrorKind, Timestamp, TokenReused,
    machine::{self, Decision},
};

use super::history::{Operation, Reply};

/// What the machine says to a call.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) reply: Reply,
    pub(super) effect: Effect,
}

/// What becomes of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Nothing,
    Written(Box<Record>),
    Removed,
}

impl Effect {
    fn of(write: Option<Record>) -> Self {
        write.map_or(Self::Nothing, |record| Self::Written(Box::new(record)))
    }
}

/// The machine's answer, on the record that is found at this instant.
pub(super) fn says(operation: &Operation, found: Option<&Record>, now: Timestamp) -> Said {
    fn said<A>(decision: Decision<A>, reply: impl FnOnce(A) -> Reply) -> Said {
        Said { reply: reply(decision.answer), effect: Effect::of(decision.write) }
    }
    let live = found.filter(|record| record.is_live(now));
    match operation {
        Operation::Claim(claim) => claimed(claim, found, now),
        Operation::Complete(owner, response, retention) => {
            said(machine::complete(found, owner, response, *retention, now), Reply::Completed)
        }
        Operation::Release(owner) => said(machine::release(found, owner, now), Reply::Ended),
        Operation::Forget(owner) => said(machine::forget(found, owner, now), Reply::Ended),
        Operation::Hold(owner, retention) => said(machine::hold(found, owner, *retention, now), Reply::Ended),
        Operation::Renew(owner, lease) => said(machine::renew(found, owner, *lease, now), Reply::Ended),
        Operation::Checkpoint(owner, checkpoint) => {
            said(machine::checkpoint(found, owner, checkpoint, now), Reply::Kept)
        }
        Operation::Resolve(resolve) => {
            let write = machine::resolve(found, resolve, now).write;
            let reply = Reply::Resolved(write.clone().map_or(Fenced::Superseded, Fenced::Written));
            Said { reply, effect: Effect::of(write) }
        }
        Operation::Read => {
            let snapshot = live.map(|record| Snapshot { record: record.clone(), now });
            Said { reply: Reply::Found(snapshot), effect: Effect::Nothing }
        }
        Operation::Purge => match found {
            Some(_) => Said { reply: Reply::Removed(usize::from(live.is_some())), effect: Effect::Removed },
            None => Said { reply: Reply::Removed(0), effect: Effect::Nothing },
        },
    }
}

fn claimed(claim: &Claim, found: Option<&Record>, now: Timestamp) -> Said {
    let (reply, write) = match (machine::claim(found, claim, now), found) {
        (Err(TokenReused), _) => (refused(TokenReused), None),
        (Ok(Decision { write: Some(record), .. }), _) => (Reply::Row(ClaimRow::Written(record.clone())), Some(record)),
        (Ok(_), Some(record)) => (Reply::Row(ClaimRow::Found { record: record.clone(), now: Some(now) }), None),
        // The machine claims whatever is absent.
        (Ok(_), None) => (Reply::Row(ClaimRow::Busy { seen: None }), None),
    };
    Said { reply, effect: Effect::of(write) }
}

fn refused(error: TokenReused) -> Reply {
    Reply::Refused(StoreErrorKind::Contract, error.to_string())
}

/// What the call has done if it was answered so, on the record that was found at this instant: none if the machine
/// answers otherwise. Without an answer it is what the machine does.
pub(super) fn effect(
    operation: &Operation,
    reply: Option<&Reply>,
    found: Option<&Record>,
    now: Timestamp,
) -> Option<Effect> {
    let said = says(operation, found, now);
    let Some(reply) = reply else { return Some(said.effect) };
    match (operation, reply, &said.reply) {
        // A claim that finds its own record may leave it to the renewal that the core makes of it, and one that finds
        // its token used for another request may leave it to the core to see.
        (Operation::Claim(claim), Reply::Row(ClaimRow::Found { record, now: told }), _) => {
            let is_own = record.token == claim.token();
            let leaves = is_own || matches!(said.reply, Reply::Row(ClaimRow::Found { .. }));
            let is_judged = told.map_or(is_own || !needs_now(claim, record), |told| told == now);
            let is_found = found.is_some_and(|found| found == record && found.is_live(now));
            (leaves && is_judged && is_found).then_some(Effect::Nothing)
        }
        // What has expired may be stored or not, and be counted when it is removed.
        (Operation::Purge, Reply::Removed(1), Reply::Removed(0)) => found.map(|_| Effect::Removed),
        (Operation::Purge, Reply::Removed(0), Reply::Removed(0)) => Some(Effect::Nothing),
        (_, reply, said_reply) => is_same(reply, said_reply).then_some(said.effect),
    }
}

/// Whether the clock decides a claim of this record by another attempt.
fn needs_now(claim: &Claim, record: &Record) -> bool {
    let is_retry = record.fingerprint.as_ref().is_none_or(|stored| claim.accepts(stored));
    record.state == State::InProgress && is_retry
}

fn is_same(one: &Reply, other: &Reply) -> bool {
    match (one, other) {
        (Reply::Row(ClaimRow::Written(one)), Reply::Row(ClaimRow::Written(other))) => one == other,
        (Reply::Completed(one), Reply::Completed(other)) => one == other,
        (Reply::Ended(one), Reply::Ended(other)) => one == other,
        (Reply::Kept(one), Reply::Kept(other)) => one == other,
        (Reply::Resolved(one), Reply::Resolved(other)) => one == other,
        (Reply::Found(one), Reply::Found(other)) => one == other,
        (Reply::Removed(one), Reply::Removed(other)) => one == other,
        (Reply::Refused(one, _), Reply::Refused(other, _)) => one == other,
        _ => false,
    }
}
