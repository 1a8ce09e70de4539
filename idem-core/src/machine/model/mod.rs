//! A model check: every way in which a few actors, a network and a clock can meet on one record.
//!
//! Three actors claim, run, settle and resolve. They crash, pause past their leases and go on, and give up waiting for
//! an answer. What they send is applied at once or later, once, twice or never, and what is answered may be lost. Of all
//! that, within bounds that are told by [`Bounds`], every state is visited, and in each the promise must hold:
//!
//! - at most one actor has been told that it owns the record and may still believe it;
//! - only a claim creates a record, and no write reaches a record of another attempt;
//! - done is final, one outcome is recorded, and every replay is what was completed;
//! - token and number name one attempt, and numbers only grow;
//! - nobody is told that it is no repeat after an attempt that may have had effects in the record's life;
//! - no record is in progress for ever: once its lease is over, a claim is answered otherwise than Conflict.
//!
//! That the check can fail is checked too: [`wrong`] has machines with one rule broken each.

mod actor;
mod rules;
mod search;
mod world;
mod wrong;

use self::{
    rules::TheMachine,
    search::search,
    world::{Bounds, Fault},
};

/// Actors who retry one request, and take over from each other.
fn takeovers() -> Bounds {
    Bounds::default()
}

#[test]
fn no_order_of_events_breaks_the_promise_where_lapsed_attempts_are_taken_over() {
    let visited = search(&TheMachine, &takeovers()).unwrap_or_else(|found| panic!("{found}"));
    println!("{visited}");
    assert!(visited > 10_000, "{visited} states are too few to prove anything");
}
