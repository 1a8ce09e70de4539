//! How a finding reads.

use idem_core::{OnLapse, Resolve, StoreErrorKind};

use super::*;

fn finding(script: &Script) -> String {
    table::finding(&script.0, &shrink::shrink(&script.0))
}

#[test]
fn a_finding_is_a_table_and_where_every_order_gets_stuck() {
    let (a, b, c) = (first(1), first(2), first(3));
    let script = Script::new()
        .answered("A", (12, 17), a.claims(), a.written())
        .answered("B", (13, 16), b.claims(), b.written())
        .answered("C", (14, 19), c.claims(), a.found());
    let expected = "\
#  task  invoked  returned  clock  operation                                                    answer
1  A     1        4         +0     claim a for request A, lease 30s, retention 24h (held 720h)  Written a#1 in progress, for request A, claimed +0, lease +30000, expiry +86400000
2  B     2        3         +0     claim b for request A, lease 30s, retention 24h (held 720h)  Written b#1 in progress, for request A, claimed +0, lease +30000, expiry +86400000

Left out: 1 other call on the key, which cannot excuse these.

The longest order that the machine explains: 2. It leads to
  b#1 in progress, for request A, claimed +0, lease +30000, expiry +86400000
and there the machine says
  to 1: Found b#1 in progress, for request A, claimed +0, lease +30000, expiry +86400000, judged at +0
";
    assert_eq!(finding(&script), expected);
}

#[test]
fn a_finding_shows_dropped_calls_and_the_moves_of_the_clock() {
    let (a, b) = (first(1), first(2));
    let taken = machine::claim(Some(&a.record), &b.claim, START.after(LEASE)).unwrap().write.unwrap();
    let script = Script::with_move((5, 8), LEASE)
        .answered("A", (2, 3), a.claims(), a.written())
        .dropped("A", 4, a.completes())
        .answered("B", (6, 7), b.claims(), Reply::Row(ClaimRow::Written(taken)))
        .answered(
            "C",
            (9, 10),
            Operation::Read,
            Reply::Found(Some(Snapshot { record: a.completed(), now: START.after(LEASE) })),
        );
    let expected = "\
#  task  invoked  returned  clock         operation                                                    answer
1  A     1        2         +0            claim a for request A, lease 30s, retention 24h (held 720h)  Written a#1 in progress, for request A, claimed +0, lease +30000, expiry +86400000
2  A     3        never     +0 to +30000  complete a#1 with 201 done, retention 24h (held 720h)        (dropped)
         4        7         +0 to +30000  the clock moves
3  B     5        6         +0 to +30000  claim b for request A, lease 30s, retention 24h (held 720h)  Written b#2 in progress by takeover, a repeat, lapses 1, for request A, claimed +30000, lease +60000, expiry +86430000
4  C     8        9         +30000        read                                                         a#1 done with 201 done, for request A, claimed +0, lease +30000, expiry +86400000, settled +0, read at +30000

The longest order that the machine explains: 1, 3. It leads to
  b#2 in progress by takeover, a repeat, lapses 1, for request A, claimed +30000, lease +60000, expiry +86430000
and there the machine says
  to 4: b#2 in progress by takeover, a repeat, lapses 1, for request A, claimed +30000, lease +60000, expiry +86430000, read at +30000
";
    assert_eq!(finding(&script), expected);
}

#[test]
fn every_operation_and_every_answer_has_words() {
    let a = first(1);
    let owner = || a.owner.clone();
    let keep = Retention::new(Duration::from_secs(60)).with_held(Duration::from_secs(7200));
    let under_hold = a.claim.clone().with_on_lapse(OnLapse::Hold).with_lapse_limit(std::num::NonZeroU32::new(2));
    let resolve = Resolve::new(scope("tenant"), key("k"), a.owner.attempt(), Token::from_bytes([2; 16]));
    let held = machine::hold(Some(&a.record), &a.owner, keep, START).write.unwrap();
    let resolved = machine::resolve(Some(&held), &resolve, START).write.unwrap();
    let forgotten = machine::forget(Some(&a.record), &a.owner, START).write.unwrap();
    let noted = Record { checkpoints: [("x".to_owned(), "X".into())].into_iter().collect(), ..a.record.clone() };
    let busy = Reply::Row(ClaimRow::Busy { seen: None });
    let late = || Reply::Ended(Fenced::Superseded);
    let refused = Reply::Refused(StoreErrorKind::Corrupt, "a byte is missing".into());
    let big = Response::new(200).with_body(vec![0xff; 9]);
    let calls = [
        (Operation::Claim(under_hold), busy),
        (Operation::Complete(owner(), done(), keep), Reply::Completed(Fenced::Written(big))),
        (Operation::Release(owner()), Reply::Ended(Fenced::Written(()))),
        (Operation::Forget(owner()), late()),
        (Operation::Hold(owner(), keep), late()),
        (Operation::Renew(owner(), LEASE), late()),
        (a.keeps("x"), kept("x")),
        (a.keeps("y"), Reply::Kept(Fenced::Written(Checkpointed::Full))),
        (Operation::Resolve(resolve), Reply::Resolved(Fenced::Written(resolved))),
        (Operation::Read, read(&held)),
        (Operation::Read, read(&forgotten)),
        (Operation::Read, read(&noted)),
        (Operation::Read, nothing()),
        (Operation::Purge, Reply::Removed(1)),
        (Operation::Purge, refused),
    ];
    let mut script = Script::new();
    for (at, (operation, reply)) in (0_u64..).zip(calls) {
        script = script.answered("A", (2 * at + 2, 2 * at + 3), operation, reply);
    }
    let script = script.failed("B", (50, 51), Operation::Read);
    let all = vec![Part::Full; script.0.calls.len()];
    let text = table::finding(&script.0, &all);
    let columns = |line: &str| {
        line.split("  ").filter(|cell| !cell.is_empty()).skip(5).map(str::trim).collect::<Vec<_>>().join(" => ")
    };
    let words: Vec<String> = text.lines().skip(1).take(all.len()).map(columns).collect();
    let expected = [
        "claim a for request A, lease 30s, retention 24h (held 720h), under hold, lapse limit 2 => Busy",
        "complete a#1 with 201 done, retention 60s (held 2h) => Written 200 (9 bytes)",
        "release a#1 => Written",
        "forget a#1 => Superseded",
        "hold a#1, retention 60s (held 2h) => Superseded",
        "renew a#1 for 30s => Superseded",
        "checkpoint x=X by a#1 => Kept X",
        "checkpoint y=Y by a#1 => Full",
        "resolve a#1 as b, lease 30s, retention 24h (held 720h) => \
         Written b#2 in progress by resolve, a repeat, for request A, claimed +0, lease +30000, \
         expiry +2592000000, under hold, started",
        "read => a#1 held, for request A, claimed +0, lease +30000, expiry +7200000, settled +0, read at +0",
        "read => \
         a#1 released, for no request, claimed +0, lease +30000, expiry +86400000, settled +0, read at +0",
        "read => a#1 in progress, for request A, claimed +0, lease +30000, expiry +86400000, x=X, read at +0",
        "read => no record",
        "purge => 1 removed",
        "purge => an error of kind Corrupt: a byte is missing",
        "read => an error: unavailable",
    ];
    assert_eq!(words, expected);
}
