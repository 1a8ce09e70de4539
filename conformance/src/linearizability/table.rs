//! How a finding reads.

use std::{collections::BTreeSet, fmt::Write, time::Duration};

use idem_core::{
    AttemptId, Body, Checkpointed, Claim, ClaimRow, Fenced, Fingerprint, OnLapse, Origin, Record, Response, Retention,
    State, Timestamp, Token,
};

use super::{
    choose::REQUESTS,
    explain,
    history::{Call, End, History, Operation, Reply},
    search::{self, Found, Part},
};
use crate::world::fingerprint;

/// The calls that have the part [`Part::Full`], as a table, and where every order of them gets stuck.
pub(super) fn finding(history: &History, parts: &[Part]) -> String {
    let mut shown: Vec<usize> = (0..parts.len()).filter(|call| parts[*call] == Part::Full).collect();
    shown.sort_by_key(|call| history.calls[*call].invoked);
    let words = Words::new(history, &shown);
    let row = |call: usize| shown.iter().position(|shown| *shown == call).map_or(0, |row| row + 1);
    let mut told = words.table(history, &shown);

    let left_out = history.calls.len() - shown.len();
    if left_out > 0 {
        let calls = if left_out == 1 { "call" } else { "calls" };
        let _ = writeln!(told, "\nLeft out: {left_out} other {calls} on the key, which cannot excuse these.");
    }
    let only_shown = |call: usize| if parts[call] == Part::Full { Part::Full } else { Part::None };
    if let Found::None(stuck) = search::search(history, only_shown) {
        let order: Vec<String> = stuck.order.iter().map(|call| row(*call).to_string()).collect();
        let longest = if order.is_empty() { "none at all".to_owned() } else { order.join(", ") };
        let record = words.slot(stuck.record.as_ref());
        let _ = write!(
            told,
            "\nThe longest order that the machine explains: {longest}. It leads to\n  {record}\nand there the machine says\n"
        );
        for next in stuck.next {
            let call = &history.calls[next];
            let mut instants = history.clock.instants(call, &[]);
            instants.dedup();
            let said = instants.iter().map(|now| explain::says(&call.operation, stuck.record.as_ref(), *now).reply);
            let mut said: Vec<String> = said.map(|reply| words.reply(&reply)).collect();
            said.dedup();
            if call.reply().is_some_and(Reply::is_busy) {
                said = vec!["not Busy: no other call was at work on the key".to_owned()];
            } else if said.is_empty() {
                said = vec!["nothing that has these instants: its clock did not show them meanwhile".to_owned()];
            }
            let _ = writeln!(told, "  to {}: {}", row(next), said.join(", or "));
        }
    }
    told
}

/// Short names for what calls and answers are about.
struct Words {
    tokens: Vec<Token>,
    start: Timestamp,
}

impl Words {
    fn new(history: &History, shown: &[usize]) -> Self {
        let mut words = Self { tokens: Vec::new(), start: history.clock.start() };
        for call in shown {
            let call = &history.calls[*call];
            let asked = match &call.operation {
                Operation::Claim(claim) => vec![claim.token()],
                Operation::Resolve(resolve) => vec![resolve.seen().token, resolve.token()],
                other => other.attempt().map(|attempt| attempt.token).into_iter().collect(),
            };
            let told = call.reply().and_then(Reply::record).map(|record| record.token);
            for token in asked.into_iter().chain(told) {
                if !words.tokens.contains(&token) {
                    words.tokens.push(token);
                }
            }
        }
        words
    }

    fn table(&self, history: &History, shown: &[usize]) -> String {
        let calls = || shown.iter().map(|call| &history.calls[*call]);
        // Moments are counted anew, so that they go up by one.
        let first = calls().map(|call| call.invoked).min().unwrap_or(0);
        let last = calls().filter_map(returned).max().unwrap_or(u64::MAX);
        let moves: Vec<_> = history.clock.readings().windows(2).filter(|two| two[0].now != two[1].now).collect();
        let moves = moves.iter().filter(|two| two[1].ended > first && two[1].begun < last);
        let moves: Vec<_> = moves.map(|two| (two[0].now, two[1])).collect();
        let mut moments: BTreeSet<u64> =
            calls().flat_map(|call| [Some(call.invoked), returned(call)]).flatten().collect();
        moments.extend(moves.iter().flat_map(|(_, to)| [to.begun, to.ended]));
        let moments: Vec<u64> = moments.into_iter().collect();
        let moment = |at: u64| moments.iter().position(|moment| *moment == at).map_or(0, |at| at + 1).to_string();

        let head = ["#", "task", "invoked", "returned", "clock", "operation", "answer"].map(str::to_owned);
        let mut rows: Vec<(u64, [String; 7])> = Vec::new();
        for (number, call) in calls().enumerate() {
            let (from, to) = history.clock.span(call);
            let at = if from == to { self.at(from) } else { format!("{} to {}", self.at(from), self.at(to)) };
            let ended = returned(call).map_or("never".to_owned(), moment);
            let number = (number + 1).to_string();
            let row = [
                number,
                call.task.into(),
                moment(call.invoked),
                ended,
                at,
                self.operation(&call.operation),
                self.answer(call),
            ];
            rows.push((call.invoked, row));
        }
        for (from, to) in moves {
            let moved = format!("{} to {}", self.at(from), self.at(to.now));
            let row =
                ["".into(), "".into(), moment(to.begun), moment(to.ended), moved, "the clock moves".into(), "".into()];
            rows.push((to.begun, row));
        }
        rows.sort_by_key(|(at, _)| *at);
        let rows: Vec<_> = std::iter::once(head).chain(rows.into_iter().map(|(_, row)| row)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..7).map(width).collect();
        let mut table = String::new();
        for row in &rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            table.push_str(line.trim_end());
            table.push('\n');
        }
        table
    }

    fn operation(&self, operation: &Operation) -> String {
        let by = |owner: &idem_core::Owner| self.attempt(owner.attempt());
        match operation {
            Operation::Claim(claim) => self.claim(claim),
            Operation::Complete(owner, with, keep) => {
                format!("complete {} with {}, {}", by(owner), response(with), retention(*keep))
            }
            Operation::Release(owner) => format!("release {}", by(owner)),
            Operation::Forget(owner) => format!("forget {}", by(owner)),
            Operation::Hold(owner, keep) => format!("hold {}, {}", by(owner), retention(*keep)),
            Operation::Renew(owner, lease) => format!("renew {} for {lease:?}", by(owner)),
            Operation::Checkpoint(owner, note) => {
                format!("checkpoint {}={} by {}", note.name(), text(note.value()), by(owner))
            }
            Operation::Resolve(resolve) => format!(
                "resolve {} as {}, lease {:?}, {}",
                self.attempt(resolve.seen()),
                self.token(resolve.token()),
                resolve.lease(),
                retention(resolve.retention())
            ),
            Operation::Read => "read".to_owned(),
            Operation::Purge => "purge".to_owned(),
        }
    }

    fn claim(&self, claim: &Claim) -> String {
        let mut told = format!(
            "claim {} for {}, lease {:?}, {}",
            self.token(claim.token()),
            request(claim.fingerprint()),
            claim.lease(),
            retention(claim.retention())
        );
        if claim.on_lapse() == OnLapse::Hold {
            told.push_str(", under hold");
        }
        if let Some(limit) = claim.lapse_limit() {
            let _ = write!(told, ", lapse limit {limit}");
        }
        told
    }

    fn answer(&self, call: &Call) -> String {
        match &call.end {
            End::Answered { reply, .. } => self.reply(reply),
            End::Failed { .. } => "an error: unavailable".to_owned(),
            End::Dropped => "(dropped)".to_owned(),
        }
    }

    fn reply(&self, reply: &Reply) -> String {
        match reply {
            Reply::Row(ClaimRow::Written(record)) => format!("Written {}", self.record(record)),
            Reply::Row(ClaimRow::Found { record, now: Some(now) }) => {
                format!("Found {}, judged at {}", self.record(record), self.at(*now))
            }
            Reply::Row(ClaimRow::Found { record, now: None }) => format!("Found {}", self.record(record)),
            Reply::Row(ClaimRow::Busy { .. }) => "Busy".to_owned(),
            Reply::Completed(Fenced::Written(with)) => format!("Written {}", response(with)),
            Reply::Ended(Fenced::Written(())) => "Written".to_owned(),
            Reply::Kept(Fenced::Written(Checkpointed::Kept(value))) => format!("Kept {}", text(value)),
            Reply::Kept(Fenced::Written(Checkpointed::Full)) => "Full".to_owned(),
            Reply::Resolved(Fenced::Written(record)) => format!("Written {}", self.record(record)),
            Reply::Completed(Fenced::Superseded)
            | Reply::Ended(Fenced::Superseded)
            | Reply::Kept(Fenced::Superseded)
            | Reply::Resolved(Fenced::Superseded) => "Superseded".to_owned(),
            Reply::Found(None) => "no record".to_owned(),
            Reply::Found(Some(found)) => format!("{}, read at {}", self.record(&found.record), self.at(found.now)),
            Reply::Removed(count) => format!("{count} removed"),
            Reply::Refused(kind, message) => format!("an error of kind {kind:?}: {message}"),
        }
    }

    fn slot(&self, slot: Option<&Record>) -> String {
        slot.map_or("no record".to_owned(), |record| self.record(record))
    }

    /// The record with every field, but those that are as in a fresh one.
    fn record(&self, record: &Record) -> String {
        let mut told = match &record.state {
            State::InProgress => format!("{} in progress", self.attempt(record.attempt())),
            State::Released => format!("{} released", self.attempt(record.attempt())),
            State::Held => format!("{} held", self.attempt(record.attempt())),
            State::Done(with) => format!("{} done with {}", self.attempt(record.attempt()), response(with)),
        };
        let origin = match record.origin {
            Origin::First => "",
            Origin::Release => " after a release",
            Origin::Takeover => " by takeover",
            Origin::Resolved => " by resolve",
        };
        told.push_str(origin);
        if record.repeat {
            told.push_str(", a repeat");
        }
        if record.lapses > 0 {
            let _ = write!(told, ", lapses {}", record.lapses);
        }
        let for_request = record.fingerprint.as_ref().map_or("no request", request);
        let [claimed, lease, expiry] = [record.claimed, record.lease_end, record.expiry].map(|at| self.at(at));
        let _ = write!(told, ", for {for_request}, claimed {claimed}, lease {lease}, expiry {expiry}");
        if let Some(settled) = record.settled {
            let _ = write!(told, ", settled {}", self.at(settled));
        }
        if record.on_lapse == OnLapse::Hold {
            told.push_str(", under hold");
        }
        if record.started {
            told.push_str(", started");
        }
        for (name, value) in record.checkpoints.iter() {
            let _ = write!(told, ", {name}={}", text(value));
        }
        told
    }

    fn attempt(&self, attempt: AttemptId) -> String {
        format!("{}#{}", self.token(attempt.token), attempt.number)
    }

    /// a, b, … z, a1, b1 …, in the order in which tokens are shown first.
    fn token(&self, token: Token) -> String {
        let Some(place) = self.tokens.iter().position(|known| *known == token) else {
            return format!("{token:?}");
        };
        let letter = char::from(b'a' + (place % 26) as u8);
        if place < 26 { letter.to_string() } else { format!("{letter}{}", place / 26) }
    }

    /// Milliseconds since the clock was first read.
    fn at(&self, instant: Timestamp) -> String {
        format!("{:+}", instant.as_millis().saturating_sub(self.start.as_millis()))
    }
}

fn returned(call: &Call) -> Option<u64> {
    match call.end {
        End::Answered { at, .. } | End::Failed { at } => Some(at),
        End::Dropped => None,
    }
}

fn request(of: &Fingerprint) -> &'static str {
    let known = REQUESTS.iter().find(|request| fingerprint(request) == *of);
    known.map_or("another request", |request| match *request {
        "A" => "request A",
        _ => "request B",
    })
}

fn retention(keep: Retention) -> String {
    let [standard, held] = [keep.standard(), keep.held()].map(whole);
    format!("retention {standard} (held {held})")
}

fn whole(duration: Duration) -> String {
    match duration.as_secs() {
        hours if hours > 0 && hours % 3600 == 0 => format!("{}h", hours / 3600),
        _ => format!("{duration:?}"),
    }
}

fn response(of: &Response) -> String {
    match of.body() {
        Body::Kept(body) if of.headers().is_empty() && of.trailers().is_empty() => {
            format!("{} {}", of.status(), text(body))
        }
        _ => format!("{of:?}"),
    }
}

fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.len() <= 24 => text.to_owned(),
        _ => format!("({} bytes)", bytes.len()),
    }
}
