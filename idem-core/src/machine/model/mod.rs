//! A model check: every way in which a few actors, a network and a clock can meet on one record.
//!
//! Three actors claim, run, settle and resolve. They crash, pause past their leases and go on, and give up waiting for
//! an answer. What they send is applied at once or later, once, twice or never, and what is answered may be lost. Of all
//! that, within [`Bounds`], every state is visited, and in each the promise must hold:
//!
//! - at most one actor has been told that it owns the record and may still believe it;
//! - only a claim creates a record, and no write reaches a record of another attempt;
//! - done is final, one outcome is recorded, and every replay is what was completed;
//! - token and number name one attempt, and numbers only grow;
//! - another request is never answered, and a live lease is never taken;
//! - nobody is told that it is no repeat after an attempt that may have had effects in the record's life;
//! - no record is in progress for ever: once its lease is over, a claim is answered otherwise than Conflict.
//!
//! That the check can fail is checked too: [`wrong`] has machines with one rule broken each.

mod actor;
mod mark;
mod rules;
mod search;
mod world;
mod wrong;

use std::num::NonZeroU32;

use self::{
    actor::Write::{self, Checkpoint, Complete, Forget, Hold, Release, Renew},
    rules::TheMachine,
    search::search,
    world::Bounds,
};

/// Actors who retry one request and take over from each other, and a command on its way.
fn takeovers(writes: &'static [Write]) -> Bounds {
    Bounds { writes, end: 3, ..Bounds::default() }
}

/// The same under hold, with somebody who resolves.
fn holds() -> Bounds {
    Bounds { writes: &[Complete, Renew, Hold], holds: [true; 3], resolves: true, in_flight: 1, ..Bounds::default() }
}

/// Only one of them asks for hold.
fn mixed() -> Bounds {
    Bounds { holds: [false, false, true], ..holds() }
}

/// Two requests under one key, of which one may be forgotten.
fn requests() -> Bounds {
    Bounds { asks_for: [0, 0, 1], ..takeovers(&[Complete, Forget]) }
}

/// A key that ends its attempts silently.
fn lapses() -> Bounds {
    Bounds { lapse_limit: NonZeroU32::new(2), begins: [2, 2, 1], in_flight: 1, ..takeovers(&[Complete, Renew]) }
}

/// Long enough for records to expire, and for what was sent to their lives to arrive in later ones.
fn lives() -> Bounds {
    Bounds { end: 5, retention: 2, begins: [2, 1, 0], in_flight: 1, ..takeovers(&[Complete, Release]) }
}

fn holds_for(bounds: &Bounds) {
    let visited = search(&TheMachine, bounds).unwrap_or_else(|found| panic!("{found}"));
    println!("{visited} states");
    assert!(visited > 10_000, "{visited} states are too few to prove anything");
}

#[test]
fn the_promise_holds_in_every_order_of_takeovers_completions_and_releases() {
    holds_for(&takeovers(&[Complete, Release]));
}

#[test]
fn the_promise_holds_in_every_order_of_takeovers_renewals_and_checkpoints() {
    holds_for(&takeovers(&[Complete, Renew]));
    holds_for(&Bounds { in_flight: 1, ..takeovers(&[Complete, Checkpoint, Release, Forget]) });
}

#[test]
fn the_promise_holds_in_every_order_of_holds_and_resolves() {
    holds_for(&holds());
    holds_for(&Bounds { end: 3, ..mixed() });
}

#[test]
fn the_promise_holds_in_every_order_of_two_requests_under_one_key() {
    holds_for(&requests());
}

#[test]
fn the_promise_holds_in_every_order_of_attempts_that_end_silently() {
    holds_for(&lapses());
}

#[test]
fn the_promise_holds_in_every_order_of_lives_of_a_record() {
    holds_for(&lives());
}
