//! The record, the actors, what is on its way between them, and what has happened.

use std::{num::NonZeroU32, time::Duration};

use bytes::Bytes;

use super::{
    actor::{Actor, Attempt, Command, Phase, Run, Sent, Write},
    rules::Rules,
};
use crate::{
    AttemptId, Body, Checkpoint, Claim, Fenced, Fingerprint, Key, OnLapse, Owner, Record, Resolve, Response, Retention,
    Scope, State, Timestamp, Token, machine::Verdict,
};

/// How much of everything there is.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// What the actors ask for: two requests, under one key.
    pub(super) requests: [Fingerprint; 2],
    /// Which of the requests each actor sends.
    pub(super) asks_for: [usize; 3],
    /// Which actors claim under hold.
    pub(super) holds: [bool; 3],
    /// How many claims and resolves each begins.
    pub(super) begins: [u8; 3],
    /// Whether they resolve, and what attempts write.
    pub(super) resolves: bool,
    pub(super) writes: &'static [Write],
    pub(super) lapse_limit: Option<NonZeroU32>,
    /// The last instant.
    pub(super) end: i64,
    pub(super) lease: i64,
    pub(super) retention: i64,
    /// For how long a command may be on its way: less than the retention.
    pub(super) delay: i64,
    /// How many may be on their way at a time.
    pub(super) in_flight: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        let request =
            |body: &str| Fingerprint::builder().part("body", body).build().expect("one part makes a fingerprint");
        Self {
            requests: [request("one"), request("another")],
            asks_for: [0, 0, 0],
            holds: [false; 3],
            begins: [1, 1, 1],
            resolves: false,
            writes: &[Write::Complete, Write::Release],
            lapse_limit: None,
            end: 4,
            lease: 1,
            retention: 3,
            delay: 1,
            in_flight: 2,
        }
    }
}

/// How the promise is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    TwoOwners,
    CreatedByAWrite,
    WroteOverAnother,
    DoneWasChanged,
    TwoOutcomes,
    ReplayedAnother,
    AttemptTwice,
    EffectsWereDenied,
    StuckForEver,
    ExpiresBeforeItsLease,
    TakenWhileLeased,
    AnsweredAnotherRequest,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) now: i64,
    record: Option<Record>,
    pub(super) actors: [Actor; 3],
    pub(super) network: Vec<Sent>,
    pub(super) life: Life,
}

/// What has happened since the record came to be.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    pub(super) number: u8,
    /// Whether the attempt that has the record had effects, and whether those before it had.
    pub(super) effects: bool,
    pub(super) effects_of_others: bool,
    /// The token of the attempt whose response was recorded.
    outcome: Option<u8>,
    /// The number of the last attempt.
    last: u32,
}

type Next = (String, Result<World, Fault>);

impl World {
    pub(super) fn new(bounds: &Bounds) -> Self {
        let actors = [0, 1, 2].map(|number| Actor::new(number, bounds.begins[number]));
        Self { now: 0, record: None, actors, network: Vec::new(), life: Life::default() }
    }

    /// What can happen next, and what that comes to.
    pub(super) fn nexts(&self, rules: &impl Rules, bounds: &Bounds) -> Vec<Next> {
        let mut nexts = Vec::new();
        if self.now < bounds.end {
            nexts.push(("time passes".into(), Ok(self.later())));
        }
        for actor in 0..self.actors.len() {
            self.acts(actor, bounds, &mut nexts);
        }
        for index in 0..self.network.len() {
            self.applies(index, rules, bounds, &mut nexts);
        }
        nexts
    }

    fn later(&self) -> Self {
        let mut next = self.clone();
        next.now += 1;
        next.network.retain(|sent| sent.until >= next.now);
        // Absent, swept or not; what is never seen again need not be told apart.
        next.record = next.live().cloned();
        next
    }

    pub(super) fn live(&self) -> Option<&Record> {
        self.record.as_ref().filter(|record| record.is_live(at(self.now)))
    }

    /// What the actor may do of its own accord.
    fn acts(&self, actor: usize, bounds: &Bounds, nexts: &mut Vec<Next>) {
        let mut go = |event: &str, next: Result<Self, Fault>| nexts.push((format!("{actor} {event}"), next));
        let may_send = self.network.len() < bounds.in_flight;
        match &self.actors[actor].phase {
            Phase::Idle if self.actors[actor].left > 0 && may_send => {
                let mut next = self.clone();
                let token = next.actors[actor].begin();
                go("claims", Ok(next.sending(actor, Command::Claim { token }, bounds)));
                if let Some(record) = self.live().filter(|_| bounds.resolves) {
                    let mut next = self.clone();
                    let token = next.actors[actor].begin();
                    let seen = attempt_of(record);
                    go("resolves", Ok(next.sending(actor, Command::Resolve { token, seen }, bounds)));
                }
            }
            Phase::Idle => {}
            Phase::Waiting(_) => {
                let mut next = self.clone();
                next.actors[actor].phase = Phase::Idle;
                go("gives up", Ok(next));
            }
            Phase::Running(run) => {
                let mut next = self.clone();
                next.actors[actor].phase = Phase::Idle;
                go("crashes", Ok(next));
                if !run.has_effects {
                    go("has an effect", self.with_effect(actor, run));
                }
                // Whoever forgets says that it did nothing.
                let honest = |write: &&Write| !(run.has_effects && **write == Write::Forget);
                for write in bounds.writes.iter().filter(honest).filter(|_| may_send) {
                    let command = Command::Write(*write, run.attempt);
                    go(&format!("sends {command:?}"), Ok(self.clone().sending(actor, command, bounds)));
                }
            }
        }
    }

    fn with_effect(&self, actor: usize, run: &Run) -> Result<Self, Fault> {
        let mut next = self.clone();
        next.actors[actor].phase = Phase::Running(Run { has_effects: true, ..run.clone() });
        if run.life == self.life.number
            && let Some(record) = self.live()
        {
            let is_of_another = attempt_of(record) != run.attempt;
            if is_of_another && !record.repeat {
                return Err(Fault::EffectsWereDenied);
            }
            next.life.effects |= !is_of_another;
            next.life.effects_of_others |= is_of_another;
        }
        Ok(next)
    }

    fn sending(mut self, actor: usize, command: Command, bounds: &Bounds) -> Self {
        if !matches!(command, Command::Write(write, _) if write.lets_run()) {
            self.actors[actor].phase = Phase::Waiting(command);
        }
        self.network.push(Sent { command, actor, until: self.now + bounds.delay, times: 2 });
        self
    }

    /// A command reaches the store; its answer arrives, or is lost.
    fn applies(&self, index: usize, rules: &impl Rules, bounds: &Bounds, nexts: &mut Vec<Next>) {
        let mut next = self.clone();
        let sent = &mut next.network[index];
        let Sent { command, actor, .. } = *sent;
        sent.times -= 1;
        if sent.times == 0 {
            next.network.remove(index);
        }
        let event = format!("{command:?} of {actor} is applied");
        let granted = match next.apply(command, actor, rules, bounds) {
            Ok(granted) => granted,
            Err(fault) => return nexts.push((event, Err(fault))),
        };
        let waits = match &next.actors[actor].phase {
            Phase::Waiting(awaited) => *awaited == command,
            Phase::Running(run) => command == Command::Write(Write::Renew, run.attempt),
            Phase::Idle => false,
        };
        if waits {
            let mut heard = next.clone();
            heard.actors[actor].phase = match (granted, &next.actors[actor].phase) {
                (Some(run), Phase::Running(running)) => Phase::Running(Run { has_effects: running.has_effects, ..run }),
                (Some(run), _) => Phase::Running(run),
                (None, _) => Phase::Idle,
            };
            nexts.push((format!("{event}, and answered"), Ok(heard)));
        }
        nexts.push((format!("{event}, and the answer is lost"), Ok(next)));
    }

    /// Applies a command. Gives the run that the answer begins or prolongs.
    fn apply(
        &mut self,
        command: Command,
        actor: usize,
        rules: &impl Rules,
        bounds: &Bounds,
    ) -> Result<Option<Run>, Fault> {
        let found = self.live().cloned();
        let (found, now) = (found.as_ref(), at(self.now));
        let (written, owns, answered) = match command {
            Command::Claim { token } => {
                let claim = bounds.claim(actor, token);
                let Ok(decision) = rules.claim(found, &claim, now) else { return Ok(None) };
                let owns = matches!(decision.answer, Verdict::Claimed | Verdict::TakenOver);
                let replays = decision.answer == Verdict::Replay;
                let another = found
                    .is_some_and(|record| record.fingerprint.as_ref().is_some_and(|stored| !claim.accepts(stored)));
                if another && !matches!(decision.answer, Verdict::Reuse { .. }) {
                    return Err(Fault::AnsweredAnotherRequest);
                }
                let is_own = found.is_some_and(|record| record.token == claim.token());
                let is_leased = found.is_some_and(|record| record.state == State::InProgress && !record.is_lapsed(now));
                if owns && is_leased && !is_own {
                    return Err(Fault::TakenWhileLeased);
                }
                let replayed = found.filter(|_| replays).and_then(response_of);
                (decision.write, owns, replayed)
            }
            Command::Resolve { token, seen } => {
                let resolve = bounds.resolve(token, seen);
                let decision = rules.resolve(found, &resolve, now);
                (decision.write, decision.answer == Fenced::Written(()), None)
            }
            Command::Write(write, attempt) => self.write(write, attempt, found, rules, bounds)?,
        };
        if answered.is_some() && answered != self.life.outcome {
            return Err(Fault::ReplayedAnother);
        }
        if let Some(next) = &written {
            self.check_write(command, found, next)?;
            self.record = written;
        }
        let record = self.record.as_ref().filter(|_| owns);
        if matches!(command, Command::Claim { .. })
            && record.is_some_and(|record| !record.repeat && self.life.effects_of_others)
        {
            return Err(Fault::EffectsWereDenied);
        }
        Ok(record.map(|record| Run {
            attempt: attempt_of(record),
            life: self.life.number,
            lease_end: record.lease_end.as_millis(),
            has_effects: false,
        }))
    }

    /// What an attempt writes: what is written, whether it goes on to own the record, and the response that it is answered.
    fn write(
        &mut self,
        write: Write,
        attempt: Attempt,
        found: Option<&Record>,
        rules: &impl Rules,
        bounds: &Bounds,
    ) -> Result<(Option<Record>, bool, Option<u8>), Fault> {
        let (owner, now, kept) = (owner(attempt), at(self.now), bounds.kept());
        Ok(match write {
            Write::Complete => {
                let response = Response::new(200).with_body(vec![attempt.token]);
                let decision = rules.complete(found, &owner, &response, kept, now);
                let recorded = match &decision.answer {
                    Fenced::Written(recorded) => author(recorded),
                    Fenced::Superseded => None,
                };
                if decision.write.is_some() && self.life.outcome.replace(attempt.token).is_some() {
                    return Err(Fault::TwoOutcomes);
                }
                (decision.write, false, recorded)
            }
            Write::Release => (rules.release(found, &owner, now).write, false, None),
            Write::Forget => (rules.forget(found, &owner, now).write, false, None),
            Write::Hold => (rules.hold(found, &owner, kept, now).write, false, None),
            Write::Renew => {
                let decision = rules.renew(found, &owner, Duration::from_millis(bounds.lease as u64), now);
                (decision.write, decision.answer == Fenced::Written(()), None)
            }
            Write::Checkpoint => {
                let step = Checkpoint::new("step", vec![attempt.token]).expect("a valid name");
                (rules.checkpoint(found, &owner, &step, now).write, false, None)
            }
        })
    }

    /// What must hold of every write, and takes note of the attempt that it begins.
    fn check_write(&mut self, command: Command, found: Option<&Record>, next: &Record) -> Result<(), Fault> {
        let by = match command {
            Command::Claim { .. } | Command::Resolve { .. } => None,
            Command::Write(_, attempt) => Some(attempt),
        };
        match found {
            None if !matches!(command, Command::Claim { .. }) => return Err(Fault::CreatedByAWrite),
            None => self.life = Life { number: self.life.number + 1, ..Life::default() },
            Some(record) if matches!(record.state, State::Done(_)) => return Err(Fault::DoneWasChanged),
            Some(record) if by.is_some_and(|by| by != attempt_of(record)) => return Err(Fault::WroteOverAnother),
            Some(record) if by.is_some() && record.state != State::InProgress => {
                return Err(Fault::WroteOverAnother);
            }
            Some(_) => {}
        }
        let attempt = attempt_of(next);
        if found.map(attempt_of) == Some(attempt) {
            return Ok(());
        }
        if by.is_some() || attempt.number != self.life.last + 1 {
            return Err(Fault::AttemptTwice);
        }
        self.life.last = attempt.number;
        self.life.effects_of_others |= self.life.effects;
        self.life.effects = false;
        Ok(())
    }

    /// What must hold at every moment.
    pub(super) fn check(&self, rules: &impl Rules, bounds: &Bounds) -> Result<(), Fault> {
        let believes = |actor: &&Actor| matches!(&actor.phase, Phase::Running(run) if self.now < run.lease_end);
        if self.actors.iter().filter(believes).count() > 1 {
            return Err(Fault::TwoOwners);
        }
        let Some(record) = self.live() else { return Ok(()) };
        if record.state == State::InProgress {
            if record.expiry < record.lease_end {
                return Err(Fault::ExpiresBeforeItsLease);
            }
            // Somebody comes when the lease is over.
            let later = record.lease_end.max(at(self.now));
            let claim = bounds.claim(0, 1);
            if let Ok(decision) = rules.claim(Some(record), &claim, later)
                && matches!(decision.answer, Verdict::Conflict { .. })
            {
                return Err(Fault::StuckForEver);
            }
        }
        Ok(())
    }
}

impl Bounds {
    /// Whether nobody could tell two actors from each other.
    pub(super) fn are_alike(&self, one: usize, other: usize) -> bool {
        self.asks_for[one] == self.asks_for[other]
            && self.holds[one] == self.holds[other]
            && self.begins[one] == self.begins[other]
    }

    fn kept(&self) -> Retention {
        let stay = Duration::from_millis(self.retention as u64);
        Retention::new(stay).with_held(stay)
    }

    fn claim(&self, actor: usize, token: u8) -> Claim {
        let request = self.requests[self.asks_for[actor]].clone();
        Claim::new(Scope::global(), key(), Token::from_bytes([token; 16]), request)
            .with_lease(Duration::from_millis(self.lease as u64))
            .with_retention(self.kept())
            .with_on_lapse(if self.holds[actor] { OnLapse::Hold } else { OnLapse::TakeOver })
            .with_lapse_limit(self.lapse_limit)
    }

    fn resolve(&self, token: u8, seen: Attempt) -> Resolve {
        Resolve::new(Scope::global(), key(), owner(seen).attempt(), Token::from_bytes([token; 16]))
            .with_lease(Duration::from_millis(self.lease as u64))
            .with_retention(self.kept())
    }
}

fn at(instant: i64) -> Timestamp {
    Timestamp::from_millis(instant)
}

fn key() -> Key {
    Key::new("k").expect("a valid key")
}

fn owner(attempt: Attempt) -> Owner {
    Owner::of_attempt(
        Scope::global(),
        key(),
        AttemptId { token: Token::from_bytes([attempt.token; 16]), number: attempt.number },
    )
}

pub(super) fn attempt_of(record: &Record) -> Attempt {
    Attempt { token: record.token.as_bytes()[0], number: record.number }
}

/// The token of the attempt whose response it has.
fn response_of(record: &Record) -> Option<u8> {
    match &record.state {
        State::Done(response) => author(response),
        _ => None,
    }
}

/// The token of the attempt whose response it is.
pub(super) fn author(response: &Response) -> Option<u8> {
    match response.body() {
        Body::Kept(body) => first_byte(body),
        _ => None,
    }
}

pub(super) fn first_byte(bytes: &Bytes) -> Option<u8> {
    bytes.first().copied()
}
