//! At which instants of the store's clock a call may have been judged.

use std::time::Duration;

use idem_core::{ClaimRow, Fenced, Timestamp};

use super::history::{Call, End, Operation, Reply};
use crate::world::shifted;

/// What was seen of the store's clock, in the order in which it was.
#[derive(Debug)]
pub(super) struct Clock {
    /// It stands still but for the moves that were read.
    stands: bool,
    /// By how much instants that the store tells may differ.
    slack: Duration,
    readings: Vec<Reading>,
}

/// The clock stood at `now` at some moment from `begun` to `ended`, which are numbers of the calls' counter. Of a clock
/// that stands still each reading but the first takes in the move that led to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) now: Timestamp,
}

impl Clock {
    pub(super) fn new(stands: bool, slack: Duration, readings: Vec<Reading>) -> Self {
        Self { stands, slack, readings }
    }

    /// Where the clock stood at first.
    pub(super) fn start(&self) -> Timestamp {
        self.readings.first().map_or(Timestamp::from_millis(0), |reading| reading.now)
    }

    pub(super) fn readings(&self) -> &[Reading] {
        &self.readings
    }

    /// The earliest and the latest instant at which the store may have judged the call.
    pub(super) fn span(&self, call: &Call) -> (Timestamp, Timestamp) {
        if self.stands {
            let stood = self.stood(call);
            let start = self.start();
            return (stood.first().copied().unwrap_or(start), stood.last().copied().unwrap_or(start));
        }
        // A call without an answer may happen until the end.
        let returned = call.answered().unwrap_or(u64::MAX);
        let from = self.readings.iter().rfind(|reading| reading.ended < call.invoked);
        let to = self.readings.iter().find(|reading| reading.begun > returned).or(self.readings.last());
        let from = from.map_or(self.start(), |reading| reading.now);
        let to = to.map_or(self.start(), |reading| reading.now);
        (shifted(from, self.slack, -1), shifted(to, self.slack, 1))
    }

    /// The instants at which a clock that stands still stood during the call.
    fn stood(&self, call: &Call) -> Vec<Timestamp> {
        let returned = call.answered().unwrap_or(u64::MAX);
        let next = self.readings.iter().skip(1).map(|next| next.ended).chain([u64::MAX]);
        let stood = self.readings.iter().zip(next);
        let during = stood.filter(|(reading, left)| returned > reading.begun && call.invoked < *left);
        during.map(|(reading, _)| reading.now).collect()
    }

    /// The instants at which the call may have been judged, as far as it makes a difference: those that its answer
    /// tells, or the ends of its span and in between where something that anybody was `told` begins or ends.
    pub(super) fn instants(&self, call: &Call, told: &[Timestamp]) -> Vec<Timestamp> {
        if self.stands {
            return self.stood(call);
        }
        let (from, to) = self.span(call);
        let mut instants = match (&call.operation, call.reply()) {
            (Operation::Claim(claim), Some(Reply::Row(ClaimRow::Written(record)))) => {
                vec![record.claimed, shifted_up(record.lease_end, claim.lease())]
            }
            (Operation::Resolve(resolve), Some(Reply::Resolved(Fenced::Written(record)))) => {
                vec![record.claimed, shifted_up(record.lease_end, resolve.lease())]
            }
            (_, Some(Reply::Row(ClaimRow::Found { now: Some(now), .. }))) => vec![*now],
            (_, Some(Reply::Found(Some(snapshot)))) => vec![snapshot.now],
            _ => {
                let mut instants = vec![from, to];
                for told in told {
                    instants.extend([*told, Timestamp::from_millis(told.as_millis().saturating_sub(1))]);
                    instants.extend(call.operation.durations().into_iter().map(|by| shifted_up(*told, by)));
                }
                instants
            }
        };
        instants.retain(|instant| from <= *instant && *instant <= to);
        instants.sort_unstable();
        instants.dedup();
        instants
    }
}

/// Every instant that the answers tell.
pub(super) fn told(calls: &[Call]) -> Vec<Timestamp> {
    let mut told = Vec::new();
    for call in calls {
        let End::Answered { reply, .. } = &call.end else { continue };
        if let Some(record) = reply.record() {
            told.extend([record.claimed, record.lease_end, record.expiry]);
            told.extend(record.settled);
        }
    }
    told.sort_unstable();
    told.dedup();
    told
}

/// The instant from which `by`, rounded up, leads to `end`.
fn shifted_up(end: Timestamp, by: Duration) -> Timestamp {
    let by = Timestamp::from_millis(0).after(by).as_millis();
    Timestamp::from_millis(end.as_millis().saturating_sub(by))
}
