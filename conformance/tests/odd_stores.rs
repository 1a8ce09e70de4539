//! Odd but right stores: each does something that no backend of idem does, keeps the contract, and passes the suite.

mod common;

use std::time::Duration;

use common::{FileStore, Hook, Marks, Reference, RightWays, Rules, Slot, right_claim};
use idem_conformance::{Harness, Place};
use idem_core::{Claim, ClaimRow, State, StoreError, Timestamp};

/// Answers slowly: others go first many times before and after each step.
#[derive(Default)]
struct Slow;
impl Rules for Slow {
    const YIELDS: usize = 7;
}

mod slow {
    use super::*;
    idem_conformance::suite!(Reference::<Slow>::harness().transactions(Hook::<Slow>::new()));
}

/// Keeps each record as bytes, in two pieces in two places, under one lock.
#[derive(Default)]
struct TwoPieces;
impl Rules for TwoPieces {
    const PIECES: bool = true;
}

mod two_pieces {
    use super::*;
    idem_conformance::suite!(Reference::<TwoPieces>::harness().transactions(Hook::<TwoPieces>::new()));
}

/// Leaves what it finds under the claim's own token as it is, and tells no instant where no clock decides: the core
/// makes a second trip of it.
#[derive(Default)]
struct FindsItsOwn;
impl Rules for FindsItsOwn {
    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        let mut tried = slot.clone();
        let own = slot.as_ref().filter(|record| record.is_live(now) && record.token == claim.token());
        let own = own.filter(|record| record.state == State::InProgress).cloned();
        match (right_claim(&mut tried, claim, now)?, own) {
            (ClaimRow::Written(_), Some(record)) => Ok(ClaimRow::Found { record, now: None }),
            (ClaimRow::Found { record, .. }, _) if record.state != State::InProgress => {
                Ok(ClaimRow::Found { record, now: None })
            }
            (row, _) => {
                *slot = tried;
                Ok(row)
            }
        }
    }
}

mod finds_its_own {
    use super::*;
    idem_conformance::suite!(Reference::<FindsItsOwn>::harness());
}

/// Answers a claim Busy while another operation works on the same record, without looking at it.
#[derive(Default)]
struct Busy;
impl Rules for Busy {
    const MARKS: Marks = Marks::Guarded;
}

mod busy {
    use super::*;
    idem_conformance::suite!(Reference::<Busy>::harness().transactions(Hook::<Busy>::new()));
}

/// Goes by a clock that runs, and that can be moved, as a database server with an offset does.
#[derive(Default)]
struct Runs;
impl Rules for Runs {
    const RUNS: bool = true;
}

mod runs {
    use super::*;
    idem_conformance::suite!(Reference::<Runs>::harness().transactions(Hook::<Runs>::new()).clock_hooks(
        async |place: Place| Reference::<Runs>::clock_at(&place),
        async |place: Place, by: Duration| place.clock().advance(by),
    ));
}

/// Goes by the host's clock, which nobody can move: the suite waits. It is not durable either.
mod real_time {
    use super::*;

    fn harness() -> Harness {
        let open = async |place: Place| Ok::<_, String>(Reference::<Runs>::open(&place));
        Harness::new(open).real_time()
    }

    idem_conformance::suite!(harness());
}

/// Keeps everything in one file, which processes share, and writes the whole of it each time: too slow for the rest of the
/// suite, which it passes.
mod in_a_file {
    use idem_conformance::{processes, run, transactions};

    use super::*;

    macro_rules! passes {
        ($($group:ident::$check:ident,)*) => {$(
            #[test]
            fn $check() {
                let harness = FileStore::<RightWays>::harness();
                let harness = harness.__in_test(concat!(module_path!(), "::", stringify!($check)));
                run(stringify!($check), harness, async |harness: &Harness| $group::$check(harness).await);
            }
        )*};
    }

    passes! {
        processes::what_one_process_wrote_another_sees_at_once,
        processes::of_claims_by_several_processes_at_once_exactly_one_is_claimed,
        processes::a_killed_process_leaves_its_claim_until_the_lease_ends_and_its_checkpoints,
        processes::a_process_that_is_killed_amid_its_writes_leaves_no_record_half_written,
        transactions::a_process_that_is_killed_leaves_the_row_and_the_completion_or_neither,
        transactions::racing_commits_and_takeovers_leave_as_many_rows_as_completions,
    }
}
