//! The model: the machine over a map.

use std::collections::BTreeMap;

use idem_core::{
    Answer, Claim, ClaimRow, Fenced, Owner, Record, State, StoreError, StoreErrorKind, Timestamp, TokenReused,
    machine::{self, Decision, Verdict},
};

use super::Id;

/// What the machine has made of every record so far. Records past their retention may still be in it.
pub(super) type Model = BTreeMap<Id, Record>;

/// The instants at which the store may have judged a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
}

impl Span {
    pub(super) fn instants(self) -> impl Iterator<Item = Timestamp> {
        (self.from.as_millis()..=self.to.as_millis()).map(Timestamp::from_millis)
    }

    pub(super) fn contains(self, instant: Timestamp) -> bool {
        self.from <= instant && instant <= self.to
    }
}

/// What the machine says to one call at one instant.
pub(super) struct Judged {
    /// Whether the store's answer is the machine's.
    pub(super) fits: bool,
    /// The record from then on.
    pub(super) after: Option<Record>,
    /// The machine's answer, in words.
    pub(super) expected: String,
}

/// Judges a write of an attempt.
pub(super) fn write<T: PartialEq + std::fmt::Debug>(
    found: Option<&Record>,
    answered: &Result<Fenced<T>, StoreError>,
    decision: Decision<Fenced<T>>,
) -> Judged {
    Judged {
        fits: answered.as_ref().is_ok_and(|answered| *answered == decision.answer),
        expected: format!("{:?}", decision.answer),
        after: decision.write.or_else(|| found.cloned()),
    }
}

/// Judges a claim by the row that the store gave and by the answer that the core made of it.
pub(super) fn claim(
    found: Option<&Record>,
    claim: &Claim,
    answered: &Result<Answer, StoreError>,
    row: Option<&ClaimRow>,
    now: Timestamp,
) -> Judged {
    let decision = match machine::claim(found, claim, now) {
        Ok(decision) => decision,
        Err(TokenReused) => {
            let refused = matches!(answered, Err(error) if error.kind() == StoreErrorKind::Contract);
            return Judged {
                fits: refused && row.is_none_or(|row| leaves(row, found, false, now)),
                after: found.cloned(),
                expected: "an error of kind contract: the token was used for two operations".into(),
            };
        }
    };
    let Ok(answer) = answered else {
        let expected = format!("{:?}", decision.answer);
        return Judged { fits: false, after: None, expected };
    };
    let Some(row) = row else {
        return Judged { fits: false, after: None, expected: "a row".into() };
    };
    let answer_fits = fits(answer, &decision, found);
    match (&decision.write, found) {
        // A claim found under its own token may be left to the renewal that the core makes of it.
        (Some(write), Some(found)) if is_own(claim, found) && matches!(row, ClaimRow::Found { .. }) => {
            let owner = owner_of(answer);
            let renewed = owner.map(|owner| machine::renew(Some(found), owner, claim.lease(), now));
            Judged {
                fits: answer_fits && matches!(row, ClaimRow::Found { record, .. } if record == found),
                after: renewed.and_then(|decision| decision.write),
                expected: format!("{:?}, with {write:?}", decision.answer),
            }
        }
        (Some(write), _) => Judged {
            fits: answer_fits && matches!(row, ClaimRow::Written(record) if record == write),
            after: Some(write.clone()),
            expected: format!("{:?}, and that it wrote {write:?}", decision.answer),
        },
        (None, _) => {
            let needs_now = !matches!(decision.answer, Verdict::Replay | Verdict::Superseded | Verdict::Reuse { .. })
                && found.is_some_and(|found| found.state == State::InProgress);
            Judged {
                fits: answer_fits && leaves(row, found, needs_now, now),
                after: found.cloned(),
                expected: format!("{:?}, and that it found {found:?}", decision.answer),
            }
        }
    }
}

/// Whether the row says that this record was found, and judged at this instant.
fn leaves(row: &ClaimRow, found: Option<&Record>, needs_now: bool, judged_at: Timestamp) -> bool {
    match row {
        ClaimRow::Found { record, now: None } => Some(record) == found && !needs_now,
        ClaimRow::Found { record, now: Some(now) } => Some(record) == found && *now == judged_at,
        ClaimRow::Written(_) | ClaimRow::Busy { .. } => false,
    }
}

fn is_own(claim: &Claim, found: &Record) -> bool {
    found.token == claim.token() && found.state == State::InProgress
}

pub(super) fn owner_of(answer: &Answer) -> Option<&Owner> {
    match answer {
        Answer::Claimed(grant) | Answer::TakenOver(grant) => Some(grant.owner()),
        _ => None,
    }
}

fn fits(answer: &Answer, decision: &Decision<Verdict>, found: Option<&Record>) -> bool {
    match (answer, &decision.answer) {
        (Answer::Claimed(grant) | Answer::TakenOver(grant), Verdict::Claimed | Verdict::TakenOver) => {
            let taken_over = matches!(answer, Answer::TakenOver(_));
            decision.write.as_ref().is_some_and(|record| {
                // A repeated claim of an attempt that took over is answered TakenOver again.
                taken_over == (record.origin == idem_core::Origin::Takeover)
                    && grant.owner().attempt() == record.attempt()
                    && grant.is_repeat() == record.repeat
                    && *grant.checkpoints() == record.checkpoints
            })
        }
        (Answer::Replay { response, stored_at }, Verdict::Replay) => found.is_some_and(|record| {
            matches!(&record.state, State::Done(recorded) if recorded == response) && record.settled == Some(*stored_at)
        }),
        (Answer::Conflict { left: Some(answered), seen }, Verdict::Conflict { left }) => {
            answered == left && *seen == found.map(Record::attempt)
        }
        (Answer::Reuse { differences: answered }, Verdict::Reuse { differences }) => answered == differences,
        (Answer::Unknown, Verdict::Unknown) | (Answer::Superseded, Verdict::Superseded) => true,
        _ => false,
    }
}

/// Where two records differ, in words.
pub(crate) fn differences(expected: &Record, stored: &Record) -> String {
    let mut told = Vec::new();
    macro_rules! compare {
        ($($field:ident),*) => {$(
            if expected.$field != stored.$field {
                let name = stringify!($field);
                told.push(format!("{name} must be {:?} and is {:?}", expected.$field, stored.$field));
            }
        )*};
    }
    compare!(state, token, number, origin, repeat, lapses, fingerprint, lease_end, claimed, settled, expiry);
    compare!(on_lapse, started, checkpoints);
    told.join("; ")
}
