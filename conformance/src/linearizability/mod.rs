//! Linearizability: calls made at once are answered as if one came after another.
//!
//! Tasks on handles of their own start together and ask a store anything about one key. Every call is recorded: when it
//! was invoked, when it returned, and what it was answered, with the rows. Then an order of the calls is looked for in
//! which whatever returned before another call was invoked comes before it, and which the [machine](idem_core::machine)
//! explains answer by answer, from no record to the last read. A store whose operations are atomic has such an order; where
//! there is none, the check fails with the smallest part of the history that has none, as a table.
//!
//! - **Calls that are not answered**, because their future was dropped or the store was unavailable, may have happened
//!   at any moment from their invocation to the end of the round, or not at all.
//! - **Busy** is what a claim may be told while another call is at work on the key, and nothing is written by it.
//! - **Time.** A call may have been judged at any instant that the store's clock showed from its invocation to its return.
//!   A clock that stands still shows few, and every instant in an answer is compared. Of a clock that runs, all instants
//!   between two readings count; leases lapse meanwhile, but retentions outlast a round.
//!
//! The seed decides which calls are made. How they meet is up to the machine that they run on, so a seed that failed may
//! have to be played a few times: `IDEM_CONFORMANCE_SEED` plays it in every round.

mod choose;
mod clock;
mod explain;
mod history;
mod recording;
mod round;
mod search;
mod shrink;
mod table;

use std::time::{Duration, Instant};

use self::{
    history::{Call, End, History},
    round::Kind,
    search::{Found, Part},
};
use crate::{Harness, agreement::setting, concurrency::warmed_handles, rng, world::World};

/// How many rounds a check plays at least.
const ROUNDS: usize = 30;
/// It goes on until so many calls have met another one, for so many rounds at most. On a machine that is busy with other
/// work, or has one processor, calls that never wait meet seldom: then few have to do, after more rounds.
const ENOUGH: [(usize, usize); 2] = [(1_500, 200), (300, 400)];
/// How long it goes on, with more than the least of rounds or for the first two calls that meet.
const LONGEST: Duration = Duration::from_secs(20);
/// How long tasks are patient with each other, on a machine where so few of their calls have met.
const PATIENT: (usize, Duration) = (30, Duration::from_secs(8));
/// On how many handles.
const HANDLES: usize = 4;

/// Whatever is asked about one key at once, by tasks on different handles, is answered and kept as if one call came
/// after another.
pub async fn calls_on_one_key_at_once_are_answered_as_if_one_came_after_another(harness: &Harness) {
    let check = "calls_on_one_key_at_once_are_answered_as_if_one_came_after_another";
    play(harness, check, Kind { clock_moves: false, drops: false }).await;
}

/// The same while the clock moves to where leases and retentions end, and the store is swept.
pub async fn calls_on_one_key_while_leases_end_are_answered_as_if_one_came_after_another(harness: &Harness) {
    let check = "calls_on_one_key_while_leases_end_are_answered_as_if_one_came_after_another";
    play(harness, check, Kind { clock_moves: true, drops: false }).await;
}

/// The same where some calls are dropped before they have ended: each of them has happened once, perhaps late, or not.
pub async fn calls_on_one_key_beside_dropped_ones_are_answered_as_if_one_came_after_another(harness: &Harness) {
    let check = "calls_on_one_key_beside_dropped_ones_are_answered_as_if_one_came_after_another";
    play(harness, check, Kind { clock_moves: false, drops: true }).await;
}

async fn play(harness: &Harness, check: &str, kind: Kind) {
    let world = World::new(harness).await;
    let handles = warmed_handles(&world, HANDLES).await;
    let set = setting("IDEM_CONFORMANCE_SEED");
    let first = rng::fresh_seed();
    let (mut total, begun) = (Total::default(), Instant::now());
    for round in 0.. {
        let is_enough = ENOUGH.iter().all(|(met, rounds)| total.met >= *met || round >= *rounds);
        if round >= ROUNDS && ((is_enough && total.met > 0) || begun.elapsed() > LONGEST) {
            break;
        }
        let is_patient = total.met < PATIENT.0 && begun.elapsed() < PATIENT.1;
        let seed = set.unwrap_or_else(|| first.wrapping_add(round as u64));
        harness.notes().note_seed(seed);
        for history in round::play(&world, &handles, (kind, is_patient), (round, seed)).await {
            total.add(&history);
            match search::search(&history, |_| Part::Full) {
                Found::Order => {}
                Found::Undecided => total.undecided += 1,
                Found::None(_) => panic!("{}", finding(&history, seed, round)),
            }
        }
    }
    if total.met == 0 {
        let what = "calls that meet, on a machine with one processor or too much other work: run it again";
        return harness.notes().note_not_seen(check, what);
    }
    total.assert_that_it_proves_something();
}

fn finding(history: &History, seed: u64, round: usize) -> String {
    let table = table::finding(history, &shrink::shrink(history));
    format!(
        "These calls on one key have no order that the machine explains (round {round}, seed {seed}):\n\n{table}\n\
         invoked and returned are moments in their order; clock and instants are ms from the start of the round; a, b … \
         are tokens, a#1 an attempt.\nIDEM_CONFORMANCE_SEED={seed} makes the same calls again, in every round."
    )
}

/// What all rounds together were.
#[derive(Debug, Default)]
struct Total {
    histories: usize,
    calls: usize,
    failed: usize,
    /// Calls that were invoked before another one on the key had returned.
    met: usize,
    undecided: usize,
}

impl Total {
    fn add(&mut self, history: &History) {
        self.histories += 1;
        self.calls += history.calls.len();
        self.failed += history.calls.iter().filter(|call| matches!(call.end, End::Failed { .. })).count();
        let mut calls: Vec<&Call> = history.calls.iter().collect();
        calls.sort_by_key(|call| call.invoked);
        let meets = |two: &&[&Call]| two[0].answered().is_none_or(|at| at > two[1].invoked);
        self.met += calls.windows(2).filter(meets).count();
    }

    fn assert_that_it_proves_something(&self) {
        assert!(
            self.failed * 10 <= self.calls,
            "The store was unavailable for {} of {} calls, where nothing kept it from answering",
            self.failed,
            self.calls
        );
        assert!(
            self.undecided * 20 <= self.histories,
            "{} of {} histories were too long to search: a call may have been left unanswered too often",
            self.undecided,
            self.histories
        );
    }
}

#[cfg(test)]
mod tests;
