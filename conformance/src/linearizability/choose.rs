//! What the tasks of a round do: anything, but mostly what meets the others.

use std::{
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use idem_core::{AttemptId, Checkpoint, Claim, Key, OnLapse, Owner, Resolve, Response, Retention, Scope, Token};

use crate::{
    Harness,
    rng::Rng,
    world::{fingerprint, key, scope},
};

/// What the fingerprints of the requests are made of.
pub(super) const REQUESTS: [&str; 2] = ["A", "B"];

/// How the record is when the tasks start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Absent,
    InProgress,
    /// In progress with a checkpoint, until its lease is over.
    Lapsed,
    /// The same under hold, and started.
    LapsedUnderHold,
    Released,
    Forgotten,
    Held,
    Done,
    /// Its retention is over.
    Expired,
}

const STARTS: [Start; 13] = [
    Start::Absent,
    Start::Absent,
    Start::InProgress,
    Start::InProgress,
    Start::Lapsed,
    Start::Lapsed,
    Start::LapsedUnderHold,
    Start::Released,
    Start::Forgotten,
    Start::Held,
    Start::Done,
    Start::Expired,
    Start::Expired,
];

impl Start {
    pub(super) fn choose(rng: &mut Rng, harness: &Harness) -> Self {
        match *rng.pick(&STARTS) {
            // Where the clock runs, retentions are long: what ends meanwhile is not to be told from what must not.
            Self::Expired if !harness.is_frozen() => Self::Absent,
            start => start,
        }
    }

    pub(super) fn waits_for_the_clock(self) -> bool {
        matches!(self, Self::Lapsed | Self::LapsedUnderHold | Self::Expired)
    }
}

/// How long things last in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    /// The lease of what lapses before the tasks start, and of some that lapse while the clock moves.
    pub(super) short: Duration,
    pub(super) long: Duration,
    /// The shortest retention of what is to last.
    retention: Duration,
    /// Whether short leases are given while the tasks work.
    lapses: bool,
}

impl Lengths {
    pub(super) fn new(harness: &Harness, clock_moves: bool) -> Self {
        let hour = Duration::from_secs(60 * 60);
        let (short, long) = match harness.waits() {
            true => (Duration::from_millis(3), hour),
            false => (Duration::from_secs(1), Duration::from_secs(30)),
        };
        let retention = if harness.is_frozen() && clock_moves { 2 * long } else { 24 * hour };
        Self { short, long, retention, lapses: clock_moves }
    }

    /// By how much to move the clock: to where something ends, and a little before and after.
    pub(super) fn step(&self, rng: &mut Rng, harness: &Harness) -> Duration {
        let little = Duration::from_millis(1);
        if harness.waits() {
            return little * (1 + rng.below(3) as u32);
        }
        let steps = [little, self.short - little, self.short, self.long - self.short, self.long];
        *rng.pick(&steps)
    }
}

/// What the tasks on one key know of it.
pub(super) struct Board {
    pub(super) scope: Scope,
    pub(super) key: Key,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Every attempt that was told that it owns the record, oldest first.
    owners: Vec<Owner>,
    tokens: Vec<Token>,
}

impl Board {
    /// Of a key that is the only one of its scope.
    pub(super) fn new(round: usize, number: usize) -> Self {
        Self { scope: scope(&format!("round-{round}-{number}")), key: key("k"), known: Mutex::default() }
    }

    /// Remembers an attempt that owns, or owned, the record.
    pub(super) fn granted(&self, owner: &Owner) {
        let mut known = self.known();
        if !known.owners.contains(owner) {
            known.owners.push(owner.clone());
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Mostly the last owner that is known.
    fn owner(&self, rng: &mut Rng) -> Option<Owner> {
        let known = self.known();
        let last = known.owners.last()?;
        Some(if rng.chance(70) { last.clone() } else { rng.pick(&known.owners).clone() })
    }

    /// Mostly a fresh token; else one that was used before, the last more than others.
    fn token(&self, rng: &mut Rng) -> Token {
        let mut known = self.known();
        let token = match known.tokens.last() {
            Some(last) if rng.chance(15) => *last,
            Some(_) if rng.chance(10) => *rng.pick(&known.tokens),
            _ => rng.token(),
        };
        known.tokens.push(token);
        token
    }
}

/// What a task does next.
#[derive(Debug)]
pub(super) enum Action {
    Claim(Claim),
    Complete(Owner, Response, Retention),
    Release(Owner),
    Forget(Owner),
    Hold(Owner, Retention),
    Renew(Owner, Duration),
    Checkpoint(Owner, Checkpoint),
    Resolve(Resolve),
    Read,
    Purge,
}

/// The choices of one task. Which kinds of calls it makes is decided by its seed alone; for which attempts, also by how
/// the tasks meet.
pub(super) struct Chooser {
    rng: Rng,
    lengths: Lengths,
    /// Told apart from those of other tasks by this.
    name: &'static str,
    count: usize,
}

impl Chooser {
    pub(super) fn new(rng: Rng, lengths: Lengths, name: &'static str) -> Self {
        Self { rng, lengths, name, count: 0 }
    }

    pub(super) fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    pub(super) fn next(&mut self, board: &Board) -> Action {
        self.count += 1;
        let kind = self.rng.below(100);
        let owner = board.owner(&mut self.rng);
        match (kind, owner) {
            (0..10, _) => Action::Read,
            (10..12, _) => Action::Purge,
            (12..40, _) | (_, None) => Action::Claim(self.claim(board)),
            (40..52, Some(owner)) => Action::Complete(owner, self.response(), self.retention()),
            (52..60, Some(owner)) => Action::Release(owner),
            (60..66, Some(owner)) => Action::Forget(owner),
            (66..72, Some(owner)) => Action::Hold(owner, self.retention()),
            (72..79, Some(owner)) => Action::Renew(owner, self.lease()),
            (79..91, Some(owner)) => Action::Checkpoint(owner, self.checkpoint()),
            (_, Some(owner)) => Action::Resolve(self.resolve(board, owner.attempt())),
        }
    }

    /// The claim that makes a record which is to be as `start` says.
    pub(super) fn first_claim(&mut self, board: &Board, start: Start) -> Claim {
        let token = board.token(&mut self.rng);
        let claim = Claim::new(board.scope.clone(), board.key.clone(), token, fingerprint(REQUESTS[0]));
        let claim = claim.with_retention(Retention::new(self.lengths.retention));
        match start {
            Start::Lapsed => claim.with_lease(self.lengths.short),
            Start::LapsedUnderHold => claim.with_lease(self.lengths.short).with_on_lapse(OnLapse::Hold),
            Start::Expired => claim.with_lease(self.lengths.short).with_retention(Retention::new(self.lengths.short)),
            _ => claim.with_lease(self.lengths.long),
        }
    }

    fn claim(&mut self, board: &Board) -> Claim {
        let token = board.token(&mut self.rng);
        let request = fingerprint(REQUESTS[usize::from(self.rng.chance(10))]);
        Claim::new(board.scope.clone(), board.key.clone(), token, request)
            .with_lease(self.lease())
            .with_retention(self.retention())
            .with_on_lapse(if self.rng.chance(15) { OnLapse::Hold } else { OnLapse::TakeOver })
            .with_lapse_limit(if self.rng.chance(10) { NonZeroU32::new(2) } else { None })
    }

    fn resolve(&mut self, board: &Board, seen: AttemptId) -> Resolve {
        let resolve = Resolve::new(board.scope.clone(), board.key.clone(), seen, board.token(&mut self.rng));
        resolve.with_lease(self.lease()).with_retention(self.retention())
    }

    pub(super) fn response(&mut self) -> Response {
        Response::new(*self.rng.pick(&[200, 201, 404])).with_body(self.mark())
    }

    pub(super) fn checkpoint(&mut self) -> Checkpoint {
        let name = *self.rng.pick(&["x", "y", "z"]);
        Checkpoint::new(name, self.mark()).expect("the suite names checkpoints validly")
    }

    /// What no other call of the round brings.
    fn mark(&self) -> String {
        format!("{}{}", self.name, self.count)
    }

    fn lease(&mut self) -> Duration {
        if self.lengths.lapses && self.rng.chance(50) { self.lengths.short } else { self.lengths.long }
    }

    pub(super) fn retention(&mut self) -> Retention {
        let standard = self.lengths.retention * (1 + self.rng.below(2) as u32);
        Retention::new(standard).with_held(2 * standard)
    }
}
