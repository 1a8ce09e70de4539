//! What a state is told from others by.
//!
//! Only what can make a difference from now on: time left instead of instants, tokens by the order in which they appear,
//! and actors who are alike in any order. States that differ in nothing else are one, and are visited once.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{
    actor::{Attempt, Command, Phase, Sent},
    world::{Bounds, World, attempt_of, author, first_byte},
};
use crate::{OnLapse, Origin, Record, State};

const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

impl World {
    /// 128 bits of what it is: among some millions no two are alike.
    pub(super) fn mark(&self, bounds: &Bounds) -> u128 {
        let alike = |order: &&[usize; 3]| order.iter().enumerate().all(|(at, actor)| bounds.are_alike(at, *actor));
        let marks = ORDERS.iter().filter(alike).map(|order| Writer { world: self, order, ..Writer::new(self) }.write());
        let least = marks.min().unwrap_or_default();
        let half = |seed: u8| {
            let mut hasher = DefaultHasher::new();
            (seed, &least).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        half(1) << 64 | half(2)
    }
}

struct Writer<'a> {
    world: &'a World,
    order: &'a [usize; 3],
    /// Tokens in the order in which they appeared.
    tokens: Vec<u8>,
    out: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(world: &'a World) -> Self {
        Self { world, order: &ORDERS[0], tokens: Vec::new(), out: Vec::with_capacity(64) }
    }

    fn write(mut self) -> Vec<u8> {
        let world = self.world;
        self.out.extend([world.now as u8, u8::from(world.life.effects_of_others), u8::from(world.life.effects)]);
        match world.live() {
            None => self.out.push(b'-'),
            Some(record) => self.record(record),
        }
        for actor in *self.order {
            let actor = &world.actors[actor];
            self.out.push(actor.left);
            match &actor.phase {
                Phase::Idle => self.out.push(b'i'),
                Phase::Waiting(command) => {
                    self.out.push(b'w');
                    self.command(command);
                }
                Phase::Running(run) => {
                    let is_of_this_life = run.life == world.life.number;
                    self.out.extend([b'r', u8::from(is_of_this_life), u8::from(run.has_effects)]);
                    self.left(run.lease_end);
                    self.attempt(run.attempt);
                }
            }
        }
        let mut sent: Vec<(Vec<u8>, &Sent)> = world.network.iter().map(|sent| (self.rough(sent), sent)).collect();
        sent.sort_by(|one, other| one.0.cmp(&other.0));
        for (rough, sent) in sent {
            self.out.extend(rough);
            self.command(&sent.command);
        }
        self.out
    }

    fn record(&mut self, record: &Record) {
        let state = match &record.state {
            State::InProgress => b'p',
            State::Released => b'r',
            State::Held => b'h',
            State::Done(_) => b'd',
        };
        self.out.push(state);
        self.attempt(attempt_of(record));
        self.out.extend([u8::from(record.repeat), record.lapses as u8, u8::from(record.origin == Origin::Resolved)]);
        self.out.extend([u8::from(record.on_lapse == OnLapse::Hold), u8::from(record.started)]);
        self.out.push(record.fingerprint.as_ref().map_or(0, |stored| stored.as_bytes().last().copied().unwrap_or(1)));
        self.left(record.lease_end.as_millis());
        self.left(record.expiry.as_millis());
        if let State::Done(response) = &record.state {
            self.token(author(response).unwrap_or(0));
        }
        if let Some(kept) = record.checkpoints.find("step") {
            self.token(first_byte(kept).unwrap_or(0));
        }
    }

    /// What does not hang on tokens.
    fn rough(&self, sent: &Sent) -> Vec<u8> {
        let at = self.order.iter().position(|actor| *actor == sent.actor).unwrap_or(9);
        let kind = match sent.command {
            Command::Claim { .. } => 10,
            Command::Resolve { seen, .. } => 20 + seen.number as u8,
            Command::Write(write, attempt) => 30 + 10 * write as u8 + attempt.number as u8,
        };
        vec![kind, at as u8, (sent.until - self.world.now) as u8, sent.times]
    }

    fn command(&mut self, command: &Command) {
        match command {
            Command::Claim { token } => {
                self.out.push(b'c');
                self.token(*token);
            }
            Command::Resolve { token, seen } => {
                self.out.push(b's');
                self.token(*token);
                self.attempt(*seen);
            }
            Command::Write(write, attempt) => {
                self.out.push(*write as u8);
                self.attempt(*attempt);
            }
        }
    }

    fn attempt(&mut self, attempt: Attempt) {
        self.out.push(attempt.number as u8);
        self.token(attempt.token);
    }

    fn token(&mut self, token: u8) {
        let at = self.tokens.iter().position(|known| *known == token).unwrap_or_else(|| {
            self.tokens.push(token);
            self.tokens.len() - 1
        });
        self.out.push(at as u8);
    }

    /// How long it is until an end; what is over is over.
    fn left(&mut self, end: i64) {
        self.out.push((end - self.world.now).max(0) as u8);
    }
}
