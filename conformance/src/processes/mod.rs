//! Several processes: each sees what the others wrote, one wins, and one that is killed leaves nothing half done.
//!
//! A check starts the test program again, with the one test that it is, as another process: this opens the same place
//! and does what the check tells it.

mod child;
mod process;

use std::{
    ffi::OsString,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use idem_core::{Answer, Response, Retention, Scope, State};

pub(crate) use self::process::Process;
use crate::{
    Harness,
    expect::{claimed, conflict, ok, present, replayed, taken_over, written},
    rng,
    world::{World, key, scope},
};

// What another process is told when it starts.
const PLACE: &str = "IDEM_CONFORMANCE_PLACE";
const DIR: &str = "IDEM_CONFORMANCE_DIR";
const NOW: &str = "IDEM_CONFORMANCE_NOW";

/// What begins a line that it says, among those of the test runner.
const SAYS: &str = "idem-conformance says: ";

/// How often a process is killed amid its work.
const KILLS: usize = 8;

/// How many keys a process may come to before it is killed.
const KEYS: usize = 10_000;

/// How other processes are started.
#[derive(Clone, Debug)]
pub(crate) struct Others {
    /// The test that they run, by its whole name.
    pub(crate) test: String,
    pub(crate) environment: Vec<(OsString, OsString)>,
}

impl Others {
    /// How a check starts other processes; none if they share nothing, as far as the harness says. In such another
    /// process this does what it is told, and never returns.
    pub(crate) async fn of(harness: &Harness, check: &str) -> Option<Self> {
        if child::is_asked_for() {
            child::serve(harness).await
        }
        let others = harness.others();
        if let Err(why) = &others {
            harness.notes().note_not_claimed(check, why, "shared_between_processes");
        }
        others.ok()
    }

    pub(crate) async fn start(&self, world: &World<'_>) -> Process {
        Process::start(self, world).await
    }
}

/// What one process wrote another sees at once.
pub async fn what_one_process_wrote_another_sees_at_once(harness: &Harness) {
    let check = "what_one_process_wrote_another_sees_at_once";
    let Some(others) = Others::of(harness, check).await else { return };
    let world = World::new(harness).await;
    let mut other = others.start(&world).await;

    let rule = "A claim of an unused key must be Claimed";
    assert_eq!(other.ask("claim theirs").await, "owns it", "{rule}, in another process");
    let here = world.ask(&world.claim(&tenant(), &key("theirs"))).await;
    conflict(here, "What another process has claimed must be Conflict");
    assert_eq!(other.ask("complete theirs done").await, "written", "The owner must be able to complete");
    let replay = replayed(
        world.ask(&world.claim(&tenant(), &key("theirs"))).await,
        "What another process has completed must be Replay",
    );
    assert_eq!(replay, Response::new(201).with_body("done"), "A replay must be the recorded response");

    let ours = claimed(world.ask(&world.claim(&tenant(), &key("ours"))).await, rule);
    let rule = "What this process has claimed must be Conflict to another process";
    assert_eq!(other.ask("claim ours").await, "conflict", "{rule}");
    let completed = world.store().complete(ours.owner(), &payment("ours"), Retention::default()).await;
    written(completed, "A completion by the owner must be Written");
    let rule = "What this process has completed must be Replay to another process";
    assert_eq!(other.ask("claim ours").await, "replay ours", "{rule}");
}

/// Of claims of one unused key by several processes at once exactly one is Claimed.
// case 004
pub async fn of_claims_by_several_processes_at_once_exactly_one_is_claimed(harness: &Harness) {
    const ROUNDS: usize = 60;
    let check = "of_claims_by_several_processes_at_once_exactly_one_is_claimed";
    let Some(others) = Others::of(harness, check).await else { return };
    let world = World::new(harness).await;
    let mut racers = Vec::new();
    for number in 0..3 {
        let mut racer = others.start(&world).await;
        let warm_up = racer.ask(&format!("claim warm-up-{number}")).await;
        assert_eq!(warm_up, "owns it", "A claim of an unused key must be Claimed");
        racers.push(racer);
    }
    let start = (SystemTime::now() + Duration::from_millis(50)).duration_since(UNIX_EPOCH).unwrap_or_default();
    for racer in &mut racers {
        racer.tell(&format!("race {ROUNDS} {} 4000", start.as_micros()));
    }
    let mut winners = vec![Vec::new(); ROUNDS];
    for (number, racer) in racers.iter_mut().enumerate() {
        let won = racer.next().await;
        let won = won.strip_prefix("won ").expect("a racer says what it has won");
        for round in won.split(',').filter_map(|round| round.parse::<usize>().ok()) {
            winners[round].push(number);
        }
    }
    for (round, winners) in winners.iter().enumerate() {
        let rule = "Of the claims of one unused key by several processes exactly one must be Claimed";
        assert_eq!(winners.len(), 1, "{rule}; in round {round} these of 3 processes were: {winners:?}");
        let stored = world.store().read(&tenant(), &key(&format!("race-{round}"))).await;
        assert_eq!(present(stored, "A claimed record must be there").number, 1);
    }
}

/// What a process was told before it was killed holds: its claim until the lease ends, and its checkpoint for whoever
/// takes over.
// case 021
pub async fn a_killed_process_leaves_its_claim_until_the_lease_ends_and_its_checkpoints(harness: &Harness) {
    let check = "a_killed_process_leaves_its_claim_until_the_lease_ends_and_its_checkpoints";
    let Some(others) = Others::of(harness, check).await else { return };
    let world = World::new(harness).await;
    let mut other = others.start(&world).await;
    assert_eq!(other.ask("claim k").await, "owns it", "A claim of an unused key must be Claimed");
    let kept = other.ask("checkpoint k ch_1").await;
    assert!(kept.starts_with("Written(Kept"), "A checkpoint by the owner must be Kept; the store answered {kept}");
    other.kill().await;

    let k = key("k");
    let record = present(world.store().read(&tenant(), &k).await, "A killed process must leave its record");
    let early = world.ask(&world.claim(&tenant(), &k)).await;
    if world.is_before(record.lease_end).await {
        conflict(early, "The claim of a killed process must be Conflict until its lease ends");
    }
    world.advance_to(record.lease_end).await;
    let next = world.ask(&world.claim(&tenant(), &k)).await;
    let next = taken_over(next, "The claim of a killed process must be TakenOver once its lease has ended");
    let charge = next.checkpoints().find("charge").map(|charge| &charge[..]);
    assert_eq!(charge, Some(&b"ch_1"[..]), "A takeover must get what the killed process was told is kept");
}

/// A process that is killed amid its writes leaves no record half written: whatever it was told holds, and what it was
/// not told has happened or not.
// case 016
pub async fn a_process_that_is_killed_amid_its_writes_leaves_no_record_half_written(harness: &Harness) {
    let check = "a_process_that_is_killed_amid_its_writes_leaves_no_record_half_written";
    let Some(others) = Others::of(harness, check).await else { return };
    let world = World::new(harness).await;
    let told = killed_again_and_again(&others, &world, "work").await;
    for (number, name) in payments().enumerate().take(told + 2) {
        let answer = ok(world.ask(&world.claim(&tenant(), &key(&name))).await);
        match answer {
            Answer::Replay { response, .. } => {
                assert_eq!(response, payment(&name), "What a killed process completed must be as it was recorded");
            }
            other if number < told => panic!(
                "What a process was told is completed must be Replay after it was killed; the store answered {other:?}"
            ),
            Answer::Claimed(_) | Answer::TakenOver(_) | Answer::Conflict { .. } => {}
            other => panic!("What a killed process was not told has happened or not; the store answered {other:?}"),
        }
    }
}

/// Kills a process that does `what`, key after key, and starts another that goes on, at moments that differ. Gives how
/// many keys it was told are done.
pub(crate) async fn killed_again_and_again(others: &Others, world: &World<'_>, what: &str) -> usize {
    let mut moments = rng::Rng::from_seed(rng::fresh_seed());
    let mut told = 0;
    for _ in 0..KILLS {
        let mut other = others.start(world).await;
        other.tell(what);
        // It comes to where the one before it got, and some keys further.
        let mut done = Vec::new();
        while done.len() < told + 1 + moments.below(6) {
            done.push(other.next().await);
        }
        tokio::time::sleep(Duration::from_micros(moments.below(4_000) as u64)).await;
        done.extend(other.kill().await);
        told = told.max(done.len());
        // What was in its hands is free for the next one.
        world.advance(world.lease()).await;
    }
    told
}

/// The rows of the business must be those of the keys that are done; the last may still be on its way.
pub(crate) async fn rows_and_completions_agree(world: &World<'_>, rows: &[String], until: usize) -> Result<(), String> {
    for name in payments().take(until) {
        let found = ok(world.store().read(&tenant(), &key(&name)).await);
        let is_done = found.is_some_and(|found| matches!(found.record.state, State::Done(_)));
        let count = rows.iter().filter(|row| **row == name).count();
        if count != usize::from(is_done) {
            return Err(format!(
                "{name} has {count} rows, and its record is {}done",
                if is_done { "" } else { "not " }
            ));
        }
    }
    Ok(())
}

pub(crate) fn tenant() -> Scope {
    scope("tenant")
}

/// The keys of payments, in their order.
pub(crate) fn payments() -> impl Iterator<Item = String> {
    (0..KEYS).map(|number| format!("payment-{number}"))
}

/// The response to a payment: none is like another.
pub(crate) fn payment(name: &str) -> Response {
    Response::new(201).with_body(name.to_owned())
}
