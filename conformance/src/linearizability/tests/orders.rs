//! Which histories have an order, and what of one that has none is shown.

use super::*;

#[test]
fn one_of_two_claims_at_once_comes_first_whichever_returns_first() {
    let (a, b) = (first(1), first(2));
    for (of_a, of_b) in [((2, 5), (3, 4)), ((3, 4), (2, 5)), ((2, 4), (3, 5)), ((2, 3), (4, 5))] {
        let script = Script::new().answered("A", of_a, a.claims(), a.written());
        script.answered("B", of_b, b.claims(), a.found()).has_an_order();
    }
}

#[test]
fn two_claims_that_both_wrote_the_first_attempt_have_no_order() {
    let (a, b) = (first(1), first(2));
    for of_b in [(3, 4), (6, 7)] {
        let script = Script::new().answered("A", (2, 5), a.claims(), a.written());
        script.answered("B", of_b, b.claims(), b.written()).has_none();
    }
}

#[test]
fn a_claim_that_found_what_was_claimed_only_later_has_no_order() {
    let (a, b) = (first(1), first(2));
    let script = Script::new().answered("B", (2, 3), b.claims(), a.found());
    script.answered("A", (4, 5), a.claims(), a.written()).has_none();
}

#[test]
fn a_read_may_miss_a_write_in_flight_and_not_one_that_was_answered() {
    let a = first(1);
    let script = |of_read| {
        let script = Script::new().answered("A", (2, 5), a.claims(), a.written());
        script.answered("B", of_read, Operation::Read, nothing())
    };
    script((3, 4)).has_an_order();
    script((4, 9)).has_an_order();
    script((6, 7)).has_none();
}

#[test]
fn reads_that_see_a_write_and_then_miss_it_have_no_order_while_it_is_in_flight_either() {
    let a = first(1);
    let script = Script::new().answered("A", (2, 9), a.claims(), a.written());
    let script = script.answered("B", (3, 4), Operation::Read, read(&a.record));
    script.has_an_order();
    script.answered("C", (5, 6), Operation::Read, nothing()).has_none();
}

#[test]
fn a_dropped_call_has_happened_at_any_later_moment_or_not_at_all_and_stays_so() {
    let a = first(1);
    let script = |reads: &[&Record]| {
        let mut script = Script::new().answered("A", (2, 3), a.claims(), a.written()).dropped("A", 4, a.completes());
        for (number, record) in (0_u64..).zip(reads) {
            script = script.answered("B", (5 + 2 * number, 6 + 2 * number), Operation::Read, read(record));
        }
        script
    };
    let (before, after) = (a.record.clone(), a.completed());
    script(&[&before, &before]).has_an_order();
    script(&[&after, &after]).has_an_order();
    script(&[&before, &after]).has_an_order();
    script(&[&after, &before]).has_none();
}

#[test]
fn a_dropped_call_has_not_happened_before_it_was_made() {
    let a = first(1);
    let script = Script::new().answered("A", (2, 3), a.claims(), a.written());
    let script = script.answered("B", (4, 5), Operation::Read, read(&a.completed()));
    script.dropped("A", 6, a.completes()).has_none();
}

#[test]
fn a_call_that_failed_may_happen_twice_and_one_that_was_dropped_only_once() {
    let a = first(1);
    let seen_twice = |script: Script| {
        let script = script.answered("B", (4, 5), Operation::Read, read(&a.record));
        let script = script.answered("B", (6, 7), Operation::Purge, Reply::Removed(1));
        script.answered("B", (8, 9), Operation::Read, read(&a.record))
    };
    seen_twice(Script::new().failed("A", (2, 3), a.claims())).has_an_order();
    seen_twice(Script::new().dropped("A", 2, a.claims())).has_none();
}

#[test]
fn busy_is_right_only_beside_another_call_that_may_write() {
    let (a, b) = (first(1), first(2));
    let busy = Reply::Row(ClaimRow::Busy { seen: None });
    let script = |beside: (u64, u64)| {
        let script = Script::new().answered("A", (2, 3), a.claims(), a.written());
        let complete = Reply::Completed(Fenced::Written(done()));
        let script = script.answered("A", beside, a.completes(), complete);
        script.answered("B", (6, 9), b.claims(), busy.clone())
    };
    script((5, 7)).has_an_order();
    script((4, 5)).has_none();
    script((10, 11)).has_none();
    let script = Script::new().answered("B", (6, 9), b.claims(), busy.clone());
    script.answered("A", (7, 8), Operation::Read, nothing()).has_none();
    let script = Script::new().dropped("A", 2, a.claims());
    script.answered("B", (6, 9), b.claims(), busy).has_an_order();
}

#[test]
fn a_call_is_judged_at_an_instant_that_the_clock_showed_meanwhile() {
    let (a, b) = (first(1), first(2));
    let taken = machine::claim(Some(&a.record), &b.claim, START.after(LEASE)).unwrap().write.unwrap();
    let script = |of_b| {
        let script = Script::with_move((5, 8), LEASE).answered("A", (2, 3), a.claims(), a.written());
        script.answered("B", of_b, b.claims(), Reply::Row(ClaimRow::Written(taken.clone())))
    };
    script((4, 6)).has_an_order();
    script((7, 10)).has_an_order();
    script((9, 10)).has_an_order();
    // It returned before the clock moved.
    script((3, 4)).has_none();
    let too_early = |of_b| {
        let script = Script::with_move((5, 8), LEASE).answered("A", (2, 3), a.claims(), a.written());
        script.answered("B", of_b, b.claims(), a.found())
    };
    too_early((6, 7)).has_an_order();
    // It was made after the clock had moved.
    too_early((9, 10)).has_none();
}

#[test]
fn what_may_have_expired_may_be_gone_and_what_has_not_may_not() {
    let (a, b) = (first(1), first(2));
    let kept = a.record.expiry.since(START);
    // Judged before the expiry, it found nothing: something that came after the expiry had removed it.
    let script = |by: Duration| {
        let script = Script::with_move((5, 8), by).answered("A", (2, 3), a.claims(), a.written());
        script.answered("B", (6, 9), b.claims(), b.written())
    };
    script(kept).has_an_order();
    script(kept - Duration::from_millis(1)).has_none();
}

#[test]
fn of_a_clock_that_runs_an_instant_between_two_readings_counts_also_where_only_a_later_answer_tells_it() {
    let a = first(1);
    let renewed = |ms| machine::renew(Some(&a.record), &a.owner, LEASE, at_ms(ms)).write.unwrap();
    let script = |seen: &Record| {
        let script = Script::running(&[(0, 0), (5, 100), (9, 200), (20, 300)]);
        let script = script.answered("A", (2, 3), a.claims(), a.written());
        let renew = Operation::Renew(a.owner.clone(), LEASE);
        let script = script.answered("A", (6, 7), renew, Reply::Ended(Fenced::Written(())));
        let snapshot = Snapshot { record: seen.clone(), now: at_ms(250) };
        script.answered("B", (10, 11), Operation::Read, Reply::Found(Some(snapshot)))
    };
    for ms in [100, 142, 200] {
        script(&renewed(ms)).has_an_order();
    }
    for ms in [99, 201] {
        script(&renewed(ms)).has_none();
    }
}

#[test]
fn an_error_that_repeating_does_not_cure_has_no_order_unless_the_machine_refuses_too() {
    let a = first(1);
    let other = Claim::new(scope("tenant"), key("k"), a.claim.token(), fingerprint("B"));
    let refused = Reply::Refused(idem_core::StoreErrorKind::Contract, "reused".into());
    let script = |claim: &Claim| {
        let script = Script::new().answered("A", (2, 3), a.claims(), a.written());
        script.answered("B", (4, 5), Operation::Claim(claim.clone()), refused.clone())
    };
    script(&other).has_an_order();
    script(&a.claim).has_none();
}

#[test]
fn a_write_without_effect_may_be_needed_later_where_it_has_one() {
    // Once released, and again after the key was purged and claimed by the same token: the release that was invoked
    // first may be the last.
    let a = first(1);
    let release = || Operation::Release(a.owner.clone());
    let ended = || Reply::Ended(Fenced::Written(()));
    let released = machine::release(Some(&a.record), &a.owner, START).write.unwrap();
    let script = Script::new().answered("A", (2, 3), a.claims(), a.written());
    let script = script.answered("B", (4, 20), release(), ended()).answered("C", (5, 6), release(), ended());
    let script = script.answered("C", (7, 8), Operation::Purge, Reply::Removed(1));
    let script = script.answered("C", (9, 10), a.claims(), a.written());
    script.answered("C", (11, 12), Operation::Read, read(&released)).has_an_order();
}

#[test]
fn a_finding_is_what_has_no_order_whatever_the_others_did() {
    let (a, b, c) = (first(1), first(2), first(3));
    let script = Script::new()
        .answered("A", (2, 6), a.claims(), a.written())
        .answered("B", (3, 7), b.claims(), b.written())
        .answered("C", (4, 9), c.claims(), a.found())
        .answered("D", (5, 8), Operation::Read, read(&a.record))
        .dropped("D", 10, Operation::Read)
        .answered("A", (11, 12), a.keeps("x"), kept("x"))
        .answered("E", (13, 14), Operation::Read, read(&a.record));
    script.has_none();
    assert_eq!(script.shown(), [0, 1]);
}

#[test]
fn a_call_whose_effect_may_excuse_the_others_is_never_left_out() {
    // The release of another attempt would have been needed for the second claim.
    let (a, b) = (first(1), first(2));
    let released = machine::release(Some(&a.record), &a.owner, START).write.unwrap();
    let second = machine::claim(Some(&released), &b.claim, START).unwrap().write.unwrap();
    let release = Operation::Release(a.owner.clone());
    let script = |answer: Fenced<()>| {
        let script = Script::new().answered("A", (2, 3), a.claims(), a.written());
        let script = script.answered("C", (4, 7), release.clone(), Reply::Ended(answer));
        script.answered("B", (5, 6), b.claims(), Reply::Row(ClaimRow::Written(second.clone())))
    };
    script(Fenced::Written(())).has_an_order();
    script(Fenced::Superseded).has_none();
    assert_eq!(script(Fenced::Superseded).shown(), [0, 1, 2]);
}

#[test]
fn what_a_shown_answer_tells_of_is_shown_too() {
    let a = first(1);
    let with_y = Record { checkpoints: [("y".to_owned(), "Y".into())].into_iter().collect(), ..a.record.clone() };
    let script = Script::new()
        .answered("A", (2, 3), a.claims(), a.written())
        .answered("B", (4, 7), a.keeps("x"), kept("x"))
        .answered("C", (5, 6), a.keeps("y"), kept("y"))
        .answered("D", (8, 9), Operation::Read, read(&with_y))
        .answered("D", (10, 11), Operation::Purge, Reply::Removed(1));
    script.has_none();
    assert_eq!(script.shown(), [0, 1, 2, 3]);
}

#[test]
fn the_history_of_a_real_round_has_an_order_and_a_wrong_answer_in_it_is_found() {
    crate::run("round", Reference::<Right>::harness(), async |harness: &Harness| {
        let world = World::new(harness).await;
        let handles = warmed_handles(&world, HANDLES).await;
        let mut wrong = 0;
        for round in 0..20 {
            let kind = Kind { clock_moves: round % 2 == 0, drops: false };
            for mut history in round::play(&world, &handles, (kind, false), (round, 7 + round as u64)).await {
                assert!(matches!(search::search(&history, |_| Part::Full), Found::Order));
                // The last read says that nothing is there, or that something is.
                let last = history.calls.iter_mut().max_by_key(|call| call.invoked).unwrap();
                let End::Answered { reply, .. } = &mut last.end else { panic!("it is answered") };
                let Reply::Found(found) = &mut **reply else { panic!("it is a read") };
                if found.take().is_some_and(|found| found.record.state != State::Released) {
                    wrong += 1;
                    assert!(search::has_none(&history, |_| Part::Full));
                }
            }
        }
        assert!(wrong > 10, "the rounds must leave records behind: {wrong}");
    });
}

/// Lets others go first, so that calls meet and can be dropped.
#[derive(Default)]
struct Yields;

impl Rules for Yields {
    const YIELDS: usize = 2;
}

#[test]
fn rounds_reach_every_answer_of_every_operation_and_drop_some() {
    const ANSWERS: [(&str, &[&str]); 10] = [
        ("Claim", &["Row(Written", "Row(Found", "Refused(Contract", "Dropped"]),
        ("Complete", &["Written", "Superseded", "Dropped"]),
        ("Release", &["Written", "Superseded", "Dropped"]),
        ("Forget", &["Written", "Superseded", "Dropped"]),
        ("Hold", &["Written", "Superseded", "Dropped"]),
        ("Renew", &["Written", "Superseded", "Dropped"]),
        ("Checkpoint", &["Written(Kept", "Superseded", "Dropped"]),
        ("Resolve", &["Written", "Superseded", "Dropped"]),
        ("Read", &["Some", "None", "Dropped"]),
        ("Purge", &["Removed(0", "Removed(1"]),
    ];
    crate::run("rounds", Reference::<Yields>::harness(), async |harness: &Harness| {
        let world = World::new(harness).await;
        let handles = warmed_handles(&world, HANDLES).await;
        let mut missing: Vec<(&str, &str)> =
            ANSWERS.iter().flat_map(|(call, answers)| answers.iter().map(|answer| (*call, *answer))).collect();
        let mut moves = 0;
        for round in 0..ROUNDS {
            let kind = Kind { clock_moves: true, drops: true };
            for history in round::play(&world, &handles, (kind, false), (round, round as u64)).await {
                for call in &history.calls {
                    let (operation, end) = (format!("{:?}", call.operation), format!("{:?}", call.end));
                    missing.retain(|(name, answer)| !(operation.starts_with(name) && end.contains(answer)));
                }
                moves += history.clock.readings().len() - 1;
            }
        }
        assert_eq!(missing, [], "the fewest rounds that are ever played must reach these too");
        assert!(moves > ROUNDS, "the clock must have moved: {moves}");
    });
}

#[test]
fn one_seed_is_one_plan() {
    let calls = |seed: u64| {
        let (sender, calls) = std::sync::mpsc::channel();
        crate::run("rounds", Reference::<Right>::harness(), async move |harness: &Harness| {
            let world = World::new(harness).await;
            let handles = warmed_handles(&world, HANDLES).await;
            let kind = Kind { clock_moves: false, drops: false };
            for history in round::play(&world, &handles, (kind, false), (0, seed)).await {
                let first = history.calls.iter().filter(|call| call.task == "start");
                sender.send(first.map(|call| format!("{:?}", call.operation)).collect::<Vec<_>>()).unwrap();
            }
        });
        calls.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(calls(7), calls(7));
    assert_ne!(calls(7), calls(8));
}
