use std::num::NonZeroU32;

use bytes::Bytes;

use super::*;
use crate::{Fingerprint, Key, Scope, Token};

const LEASE: Duration = Duration::from_millis(30_000);
const DAY: Duration = Duration::from_secs(86_400);
const MONTH: Duration = Duration::from_secs(30 * 86_400);
const START: Timestamp = Timestamp::from_millis(1_000_000);

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(START.as_millis() + millis)
}

fn token(n: u8) -> Token {
    Token::from_bytes([n; 16])
}

fn fingerprint(body: &str) -> Fingerprint {
    Fingerprint::builder().part("body", body).build().unwrap()
}

fn claim_of(n: u8, body: &str) -> Claim {
    Claim::new(Scope::global(), Key::new("k").unwrap(), token(n), fingerprint(body)).with_lease(LEASE)
}

fn owner_of(record: &Record) -> Owner {
    Owner::of(&Scope::global(), &Key::new("k").unwrap(), record)
}

fn ok() -> Response {
    Response::new(201).with_body("ok")
}

/// The record that a first claim with token 1 and body "a" writes.
fn in_progress() -> Record {
    claim(None, &claim_of(1, "a"), START).unwrap().write.unwrap()
}

fn in_progress_under_hold() -> Record {
    let under_hold = claim_of(1, "a").with_on_lapse(OnLapse::Hold);
    claim(None, &under_hold, START).unwrap().write.unwrap()
}

fn released() -> Record {
    let record = in_progress();
    release(Some(&record), &owner_of(&record), at(10)).write.unwrap()
}

fn held() -> Record {
    let record = in_progress();
    hold(Some(&record), &owner_of(&record), Retention::default(), at(10)).write.unwrap()
}

fn done() -> Record {
    let record = in_progress();
    complete(Some(&record), &owner_of(&record), &ok(), Retention::default(), at(10)).write.unwrap()
}

fn decide(found: &Record, by: &Claim, now: Timestamp) -> Decision<Verdict> {
    claim(Some(found), by, now).unwrap()
}

fn verdict(found: &Record, by: &Claim, now: Timestamp) -> Verdict {
    let decision = decide(found, by, now);
    let writes = matches!(decision.answer, Verdict::Claimed | Verdict::TakenOver);
    assert_eq!(decision.write.is_some(), writes, "{:?} and what it writes", decision.answer);
    decision.answer
}

// Claim, row by row.

#[test]
fn a_claim_on_nothing_is_claimed_with_number_1_and_no_repeat() {
    let decision = claim(None, &claim_of(1, "a"), START).unwrap();
    assert_eq!(decision.answer, Verdict::Claimed);
    let expected = Record {
        state: State::InProgress,
        token: token(1),
        number: 1,
        origin: Origin::First,
        repeat: false,
        lapses: 0,
        fingerprint: Some(fingerprint("a")),
        lease_end: START.after(LEASE),
        claimed: START,
        settled: None,
        expiry: START.after(DAY),
        on_lapse: OnLapse::TakeOver,
        started: false,
        checkpoints: Checkpoints::default(),
    };
    assert_eq!(decision.write, Some(expected));
}

// cases 087, 090
#[test]
fn a_record_past_its_retention_is_absent_from_that_very_millisecond() {
    for record in [done(), released(), held(), in_progress()] {
        let end = record.expiry;
        let last = Timestamp::from_millis(end.as_millis() - 1);
        let before = claim(Some(&record), &claim_of(2, "b"), last).unwrap();
        assert!(matches!(before.answer, Verdict::Reuse { .. }), "{before:?}");
        let from = claim(Some(&record), &claim_of(2, "b"), end).unwrap();
        assert_eq!((from.answer, from.write.unwrap().number), (Verdict::Claimed, 1));
    }
}

#[test]
fn a_token_that_comes_with_another_fingerprint_was_used_for_two_operations() {
    for record in [in_progress(), released(), held(), done()] {
        assert_eq!(claim(Some(&record), &claim_of(1, "b"), at(20)), Err(TokenReused));
    }
}

#[test]
fn a_claim_repeated_with_its_token_is_claimed_again_and_moves_only_the_lease() {
    let record = Record { started: true, ..in_progress() };
    // Also when it lapsed and nobody took over, and whatever the repeated claim says of lapses.
    for now in [at(1), at(29_999), at(30_000), at(50_000)] {
        let decision = decide(&record, &claim_of(1, "a").with_on_lapse(OnLapse::Hold), now);
        assert_eq!(decision.answer, Verdict::Claimed);
        assert_eq!(decision.write, Some(Record { lease_end: now.after(LEASE), ..record.clone() }));
    }
}

#[test]
fn a_repeated_claim_keeps_the_expiry_at_or_after_the_lease_end() {
    let record = Record { expiry: at(40_000), ..in_progress() };
    let written = decide(&record, &claim_of(1, "a"), at(20_000)).write.unwrap();
    assert_eq!((written.lease_end, written.expiry), (at(50_000), at(50_000)));
}

#[test]
fn a_late_duplicate_of_a_claim_that_is_over_gets_the_replay_or_superseded() {
    assert_eq!(verdict(&done(), &claim_of(1, "a"), at(20)), Verdict::Replay);
    assert_eq!(verdict(&released(), &claim_of(1, "a"), at(20)), Verdict::Superseded);
    assert_eq!(verdict(&held(), &claim_of(1, "a"), at(20)), Verdict::Superseded);
    let forgotten = Record { fingerprint: None, ..released() };
    assert_eq!(verdict(&forgotten, &claim_of(1, "b"), at(20)), Verdict::Superseded);
}

// cases 056, 060
#[test]
fn another_request_under_the_key_is_reuse_in_every_state() {
    let lapsed = at(30_000);
    for (record, now) in
        [(in_progress(), at(1)), (in_progress(), lapsed), (released(), lapsed), (held(), lapsed), (done(), lapsed)]
    {
        let Verdict::Reuse { differences } = verdict(&record, &claim_of(2, "longer"), now) else {
            panic!("{record:?}");
        };
        assert_eq!(differences.to_string(), "body length differs: 1 -> 6");
    }
}

#[test]
fn a_done_record_is_replayed_and_a_held_one_unknown() {
    assert_eq!(verdict(&done(), &claim_of(2, "a"), at(20)), Verdict::Replay);
    assert_eq!(verdict(&held(), &claim_of(2, "a"), at(20)), Verdict::Unknown);
}

// case 046
#[test]
fn a_released_record_goes_to_the_next_attempt_as_a_repeat_with_the_checkpoints() {
    let kept = Checkpoints::default().with("charge", &Bytes::from_static(b"ch_1"));
    let record = Record { checkpoints: kept.clone(), lapses: 2, started: true, ..released() };
    let decision = decide(&record, &claim_of(2, "a"), at(20));
    assert_eq!(decision.answer, Verdict::Claimed);
    let expected = Record {
        token: token(2),
        number: 2,
        origin: Origin::Release,
        repeat: true,
        lapses: 2,
        lease_end: at(20).after(LEASE),
        claimed: at(20),
        expiry: at(20).after(DAY),
        checkpoints: kept,
        ..in_progress()
    };
    assert_eq!(decision.write, Some(expected));
}

// case 101
#[test]
fn after_a_forget_a_corrected_request_may_use_the_key_and_is_no_repeat() {
    let record = in_progress();
    let forgotten = forget(Some(&record), &owner_of(&record), at(10)).write.unwrap();
    assert_eq!(forgotten.fingerprint, None);
    let next = decide(&forgotten, &claim_of(2, "corrected"), at(20)).write.unwrap();
    assert_eq!((next.number, next.repeat, next.origin), (2, false, Origin::Release));
    assert_eq!(next.fingerprint, Some(fingerprint("corrected")));
}

#[test]
fn a_live_lease_is_a_conflict_until_the_millisecond_it_ends() {
    let record = in_progress();
    assert_eq!(verdict(&record, &claim_of(2, "a"), START), Verdict::Conflict { left: LEASE });
    let last = verdict(&record, &claim_of(2, "a"), at(29_999));
    assert_eq!(last, Verdict::Conflict { left: Duration::from_millis(1) });
    assert_eq!(verdict(&record, &claim_of(2, "a"), at(30_000)), Verdict::TakenOver);
}

#[test]
fn a_takeover_is_a_repeat_with_the_next_number_one_more_lapse_and_the_checkpoints() {
    let kept = Checkpoints::default().with("charge", &Bytes::from_static(b"ch_1"));
    let record = Record { checkpoints: kept.clone(), started: true, ..in_progress() };
    let decision = decide(&record, &claim_of(2, "a"), at(30_000));
    assert_eq!(decision.answer, Verdict::TakenOver);
    let expected = Record {
        token: token(2),
        number: 2,
        origin: Origin::Takeover,
        repeat: true,
        lapses: 1,
        lease_end: at(60_000),
        claimed: at(30_000),
        expiry: at(30_000).after(DAY),
        checkpoints: kept,
        ..in_progress()
    };
    assert_eq!(decision.write, Some(expected));
}

// case 017
#[test]
fn what_a_lapse_comes_to_depends_on_both_rules_and_on_whether_the_attempt_started() {
    let by = claim_of(2, "a");
    let by_hold = claim_of(2, "a").with_on_lapse(OnLapse::Hold);
    let open = in_progress();
    let under_hold = in_progress_under_hold();
    let started = |record: &Record| Record { started: true, ..record.clone() };
    let lapsed = at(30_000);
    for (record, by, expected) in [
        (&open, &by, Verdict::TakenOver),
        (&started(&open), &by, Verdict::TakenOver),
        (&open, &by_hold, Verdict::Unknown),
        (&started(&open), &by_hold, Verdict::Unknown),
        (&under_hold, &by, Verdict::TakenOver),
        (&under_hold, &by_hold, Verdict::TakenOver),
        (&started(&under_hold), &by, Verdict::Unknown),
        (&started(&under_hold), &by_hold, Verdict::Unknown),
    ] {
        assert_eq!(
            verdict(record, by, lapsed),
            expected,
            "{:?} {} by {:?}",
            record.on_lapse,
            record.started,
            by.on_lapse()
        );
        let much_later = at(3_600_000);
        assert_eq!(verdict(record, by, much_later), expected);
    }
}

#[test]
fn a_lapse_limit_is_how_many_attempts_may_end_silently() {
    let limit = |n| claim_of(9, "a").with_lapse_limit(NonZeroU32::new(n));
    let lapsed_before = |lapses| Record { lapses, ..in_progress() };
    let lapsed = at(30_000);
    assert_eq!(verdict(&lapsed_before(0), &limit(1), lapsed), Verdict::Unknown);
    assert_eq!(verdict(&lapsed_before(0), &limit(2), lapsed), Verdict::TakenOver);
    assert_eq!(verdict(&lapsed_before(1), &limit(2), lapsed), Verdict::Unknown);
    assert_eq!(verdict(&lapsed_before(2), &limit(2), lapsed), Verdict::Unknown);
    assert_eq!(verdict(&lapsed_before(u32::MAX), &limit(0), lapsed), Verdict::TakenOver, "no limit");
    let live = verdict(&lapsed_before(5), &limit(1), at(29_999));
    assert!(matches!(live, Verdict::Conflict { .. }), "a limit does not end a live lease");
}

#[test]
fn an_older_form_of_the_fingerprint_is_accepted_and_the_stored_one_kept() {
    let by = claim_of(2, "new form").accepting(fingerprint("other")).accepting(fingerprint("a"));
    assert_eq!(verdict(&done(), &by, at(20)), Verdict::Replay);
    let next = decide(&released(), &by, at(20)).write.unwrap();
    assert_eq!(next.fingerprint, Some(fingerprint("a")));
    let own = claim_of(1, "new form").accepting(fingerprint("a"));
    assert_eq!(verdict(&in_progress(), &own, at(20)), Verdict::Claimed);
}

#[test]
fn a_claim_under_hold_keeps_the_record_for_the_longer_of_the_retentions() {
    assert_eq!(in_progress_under_hold().expiry, START.after(MONTH));
    let long = Retention::new(MONTH * 2).with_held(MONTH);
    let by = claim_of(1, "a").with_on_lapse(OnLapse::Hold).with_retention(long);
    assert_eq!(claim(None, &by, START).unwrap().write.unwrap().expiry, START.after(MONTH * 2));
}

#[test]
fn a_claim_never_expires_before_its_lease_ends() {
    let by = claim_of(1, "a").with_retention(Retention::new(LEASE / 2).with_held(Duration::ZERO));
    assert_eq!(claim(None, &by, START).unwrap().write.unwrap().expiry, START.after(LEASE));
}

// Writes of an attempt.

#[test]
fn a_completion_records_the_response_and_drops_the_checkpoints() {
    let kept = Checkpoints::default().with("charge", &Bytes::from_static(b"ch_1"));
    let record = Record { checkpoints: kept, ..in_progress() };
    let decision = complete(Some(&record), &owner_of(&record), &ok(), Retention::default(), at(10));
    assert_eq!(decision.answer, Fenced::Written(ok()));
    let expected =
        Record { state: State::Done(ok()), settled: Some(at(10)), expiry: at(10).after(DAY), ..in_progress() };
    assert_eq!(decision.write, Some(expected));
}

#[test]
fn a_completion_never_expires_before_the_lease_end() {
    let record = in_progress();
    let decision = complete(Some(&record), &owner_of(&record), &ok(), Retention::new(Duration::ZERO), at(10));
    assert_eq!(decision.write.unwrap().expiry, record.lease_end);
}

#[test]
fn a_repeated_completion_answers_with_the_response_that_was_recorded_first() {
    let record = done();
    let other = Response::new(500);
    let decision = complete(Some(&record), &owner_of(&record), &other, Retention::default(), at(20));
    assert_eq!(decision, Decision { answer: Fenced::Written(ok()), write: None });
}

/// Every write, by its name, with whether it was written and whether it was answered Superseded.
fn writes(found: Option<&Record>, owner: &Owner, now: Timestamp) -> Vec<(&'static str, bool, bool)> {
    let retention = Retention::default();
    let note = Checkpoint::new("n", "v").unwrap();
    let completed = complete(found, owner, &ok(), retention, now);
    let released = release(found, owner, now);
    let forgotten = forget(found, owner, now);
    let held = hold(found, owner, retention, now);
    let renewed = renew(found, owner, LEASE, now);
    let noted = checkpoint(found, owner, &note, now);
    vec![
        ("complete", completed.write.is_some(), completed.answer == Fenced::Superseded),
        ("release", released.write.is_some(), released.answer == Fenced::Superseded),
        ("forget", forgotten.write.is_some(), forgotten.answer == Fenced::Superseded),
        ("hold", held.write.is_some(), held.answer == Fenced::Superseded),
        ("renew", renewed.write.is_some(), renewed.answer == Fenced::Superseded),
        ("checkpoint", noted.write.is_some(), noted.answer == Fenced::Superseded),
    ]
}

// cases 001, 021, 022
#[test]
fn no_write_passes_without_both_the_token_and_the_number_of_the_owner() {
    let record = Record { number: 3, ..in_progress() };
    let stale_number = owner_of(&Record { number: 2, ..record.clone() });
    let other_token = owner_of(&Record { token: token(2), ..record.clone() });
    for owner in [stale_number, other_token, Owner::nobody(Scope::global(), Key::new("k").unwrap())] {
        for (write, written, superseded) in writes(Some(&record), &owner, at(10)) {
            assert!(!written && superseded, "{write} by {owner:?}");
        }
    }
}

// case 003
#[test]
fn no_write_creates_or_revives_a_record() {
    let record = in_progress();
    let owner = owner_of(&record);
    for found in [None, Some(&record)] {
        for (write, written, superseded) in writes(found, &owner, record.expiry) {
            assert!(!written && superseded, "{write} on {found:?}");
        }
    }
}

#[test]
fn an_attempt_whose_lease_lapsed_may_still_write_while_nobody_took_over() {
    let record = in_progress();
    for (write, written, _) in writes(Some(&record), &owner_of(&record), at(3_600_000)) {
        assert!(written, "{write}");
    }
}

#[test]
fn an_attempt_that_repeats_the_write_that_ended_it_gets_the_same_answer_and_any_other_superseded() {
    for (record, ended_by) in [(done(), &["complete"][..]), (released(), &["release", "forget"]), (held(), &["hold"])] {
        for (write, written, superseded) in writes(Some(&record), &owner_of(&record), at(20)) {
            assert!(!written, "{write}");
            assert_eq!(superseded, !ended_by.contains(&write), "{write} after {ended_by:?}");
        }
    }
}

#[test]
fn a_release_keeps_everything_but_the_ownership() {
    let kept = Checkpoints::default().with("charge", &Bytes::new());
    let record = Record { checkpoints: kept, ..in_progress() };
    let written = release(Some(&record), &owner_of(&record), at(10)).write.unwrap();
    assert_eq!(written, Record { state: State::Released, settled: Some(at(10)), ..record });
}

#[test]
fn a_forget_by_a_repeat_or_with_checkpoints_is_a_release() {
    let kept = Checkpoints::default().with("charge", &Bytes::new());
    for record in [Record { repeat: true, ..in_progress() }, Record { checkpoints: kept, ..in_progress() }] {
        let forgotten = forget(Some(&record), &owner_of(&record), at(10));
        assert_eq!(forgotten, release(Some(&record), &owner_of(&record), at(10)));
    }
}

#[test]
fn a_held_record_stays_for_the_longer_of_the_retentions() {
    assert_eq!(
        held(),
        Record { state: State::Held, settled: Some(at(10)), expiry: at(10).after(MONTH), ..in_progress() }
    );
}

#[test]
fn a_renewal_moves_the_lease_sets_started_and_keeps_the_expiry_at_or_after_it() {
    let record = Record { expiry: at(40_000), ..in_progress() };
    let early = renew(Some(&record), &owner_of(&record), LEASE, at(5_000)).write.unwrap();
    assert_eq!(early, Record { lease_end: at(35_000), started: true, ..record.clone() });
    let late = renew(Some(&record), &owner_of(&record), LEASE, at(20_000)).write.unwrap();
    assert_eq!((late.lease_end, late.expiry), (at(50_000), at(50_000)));
}

#[test]
fn the_first_value_of_a_checkpoint_stays_and_is_the_answer() {
    let record = in_progress();
    let owner = owner_of(&record);
    let first = checkpoint(Some(&record), &owner, &Checkpoint::new("charge", "ch_1").unwrap(), at(1));
    assert_eq!(first.answer, Fenced::Written(Checkpointed::Kept("ch_1".into())));
    let record = first.write.unwrap();
    let second = checkpoint(Some(&record), &owner, &Checkpoint::new("charge", "ch_2").unwrap(), at(2));
    assert_eq!(second, Decision { answer: Fenced::Written(Checkpointed::Kept("ch_1".into())), write: None });
}

#[test]
fn checkpoints_have_64_kib_in_all_names_included() {
    let record = in_progress();
    let owner = owner_of(&record);
    let of = |name: &str, len: usize| Checkpoint::new(name, vec![7; len]).unwrap();
    let exactly = checkpoint(Some(&record), &owner, &of("n", 65_535), at(1));
    let record = exactly.write.unwrap();
    assert_eq!(record.checkpoints.size(), 65_536);
    for one_more in [of("m", 0), of("m", 65_536)] {
        let full = checkpoint(Some(&record), &owner, &one_more, at(2));
        assert_eq!(full, Decision { answer: Fenced::Written(Checkpointed::Full), write: None });
    }
    let kept = checkpoint(Some(&record), &owner, &of("n", 1), at(2));
    assert!(matches!(kept.answer, Fenced::Written(Checkpointed::Kept(value)) if value.len() == 65_535));
}

// Resolve.

fn resolve_of(record: &Record, n: u8) -> Resolve {
    let key = Key::new("k").unwrap();
    Resolve::new(Scope::global(), key, record.attempt(), token(n)).with_lease(LEASE)
}

#[test]
fn a_held_record_and_a_lapsed_one_go_to_the_resolver() {
    let kept = Checkpoints::default().with("charge", &Bytes::new());
    for record in [held(), in_progress(), in_progress_under_hold()] {
        let record = Record { checkpoints: kept.clone(), lapses: 4, ..record };
        let decision = resolve(Some(&record), &resolve_of(&record, 5), at(30_000));
        assert_eq!(decision.answer, Fenced::Written(()));
        let expected = Record {
            token: token(5),
            number: 2,
            origin: Origin::Resolved,
            repeat: true,
            lapses: 4,
            lease_end: at(60_000),
            claimed: at(30_000),
            expiry: at(30_000).after(MONTH),
            on_lapse: OnLapse::Hold,
            started: true,
            checkpoints: kept.clone(),
            ..in_progress()
        };
        assert_eq!(decision.write, Some(expected));
    }
}

#[test]
fn a_resolver_brings_its_own_retention() {
    let by = resolve_of(&held(), 5).with_retention(Retention::new(DAY * 40));
    let taken = resolve(Some(&held()), &by, at(30_000)).write.unwrap();
    assert_eq!(taken.expiry, at(30_000).after(DAY * 40));
}

#[test]
fn nothing_else_can_be_resolved() {
    let superseded = Decision { answer: Fenced::Superseded, write: None };
    assert_eq!(resolve(None, &resolve_of(&held(), 5), at(30_000)), superseded);
    for record in [released(), done()] {
        assert_eq!(resolve(Some(&record), &resolve_of(&record, 5), at(30_000)), superseded, "{record:?}");
    }
    let live = in_progress();
    assert_eq!(resolve(Some(&live), &resolve_of(&live, 5), at(29_999)), superseded);
    let another = Record { number: 2, ..held() };
    assert_eq!(resolve(Some(&another), &resolve_of(&held(), 5), at(30_000)), superseded);
    let other_token = Record { token: token(7), ..held() };
    assert_eq!(resolve(Some(&other_token), &resolve_of(&held(), 5), at(30_000)), superseded);
    let expired = held();
    assert_eq!(resolve(Some(&expired), &resolve_of(&expired, 5), expired.expiry), superseded);
}

#[test]
fn a_resolve_repeated_under_its_token_gets_the_same_answer_and_moves_only_the_lease() {
    let again = resolve_of(&held(), 5);
    let taken = resolve(Some(&held()), &again, at(30_000)).write.unwrap();
    let decision = resolve(Some(&taken), &again, at(40_000));
    assert_eq!(decision.answer, Fenced::Written(()));
    assert_eq!(decision.write, Some(Record { lease_end: at(70_000), ..taken }));
}

#[test]
fn a_resolver_settles_like_any_attempt_and_the_old_one_is_superseded() {
    let old = held();
    let taken = resolve(Some(&old), &resolve_of(&old, 5), at(30_000)).write.unwrap();
    assert!(
        writes(Some(&taken), &owner_of(&old), at(31_000))
            .iter()
            .all(|(_, written, superseded)| !written && *superseded)
    );
    let completed = complete(Some(&taken), &owner_of(&taken), &ok(), Retention::default(), at(31_000));
    assert_eq!(completed.answer, Fenced::Written(ok()));
}

#[test]
fn a_resolver_that_lapses_leaves_the_outcome_unknown() {
    let taken = resolve(Some(&held()), &resolve_of(&held(), 5), at(30_000)).write.unwrap();
    assert_eq!(verdict(&taken, &claim_of(9, "a"), at(60_000)), Verdict::Unknown);
}

#[test]
fn a_live_attempt_is_the_resolvers_own_only_with_its_token_its_origin_and_the_next_number() {
    let again = resolve_of(&held(), 5);
    let taken = resolve(Some(&held()), &again, at(30_000)).write.unwrap();
    let superseded = Decision { answer: Fenced::Superseded, write: None };
    for other in [
        Record { token: token(6), ..taken.clone() },
        Record { origin: Origin::Release, ..taken.clone() },
        Record { number: 3, ..taken.clone() },
        Record { state: State::Released, ..taken },
    ] {
        assert_eq!(resolve(Some(&other), &again, at(30_001)), superseded, "{other:?}");
    }
}
