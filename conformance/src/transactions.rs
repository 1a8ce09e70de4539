//! Transactions of the caller's: a business row and "this key is done" are stored together or not at all.

use std::time::{Duration, Instant};

use idem_core::{Completion, Fenced, Grant, Response, Retention, State};

use crate::{
    End, Harness, Transactions,
    expect::{absent, claimed, conflict, ok, present, replayed, superseded, taken_over, written},
    processes::{Others, killed_again_and_again, payments, rows_and_completions_agree},
    world::{World, key, scope},
};

/// A commit stores the row and the completion, and a retry is the replay of what was committed.
// case 037
pub async fn a_commit_stores_the_row_and_the_completion(harness: &Harness) {
    let Some(hook) = claimed_by(harness, "a_commit_stores_the_row_and_the_completion") else { return };
    let world = World::new(harness).await;
    let grant =
        claimed(world.ask(&world.claim(&scope("tenant"), &key("k"))).await, "A claim of an unused key must be Claimed");
    let answer = hook.complete_in(&world.place, &completion(&grant), "payment 1", End::Commit).await;
    assert_eq!(written(answer, "A completion in a transaction by the owner must be Written"), response());
    assert_eq!(hook.rows(&world.place).await, ["payment 1"], "A commit must store the row");
    let replay = world.ask(&world.claim(&scope("tenant"), &key("k"))).await;
    assert_eq!(replayed(replay, "A committed completion must be Replay"), response(), "A replay must be the response");
    let done = present(world.store().read(&scope("tenant"), &key("k")).await, "A done record must be there");
    let settled = done.settled.expect("A done record must say when it was completed");
    assert_eq!(done.expiry, settled.after(RETENTION), "A completion in a transaction must carry its retention");
}

/// A rollback stores neither: the record is in progress as before, and its owner may try again.
// case 037
pub async fn a_rollback_stores_neither_and_leaves_the_record_in_progress(harness: &Harness) {
    let Some(hook) = claimed_by(harness, "a_rollback_stores_neither_and_leaves_the_record_in_progress") else { return };
    let world = World::new(harness).await;
    let claim = world.claim(&scope("tenant"), &key("k"));
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    let known = present(world.store().read(claim.scope(), claim.key()).await, "A claimed record must be there");
    let answer = hook.complete_in(&world.place, &completion(&grant), "payment 1", End::Rollback).await;
    written(answer, "A completion in a transaction by the owner must be Written until it is rolled back");
    let rows = hook.rows(&world.place).await;
    assert!(rows.is_empty(), "A rollback must not store the row: {rows:?}");
    let stored = present(world.store().read(claim.scope(), claim.key()).await, "A rollback must leave the record");
    assert_eq!(stored, known, "A rollback must leave the record as it was");
    conflict(world.ask(&world.claim(claim.scope(), claim.key())).await, "After a rollback the record must be Conflict");
    let answer = hook.complete_in(&world.place, &completion(&grant), "payment 2", End::Commit).await;
    written(answer, "After a rollback the owner must be able to complete");
    assert_eq!(hook.rows(&world.place).await, ["payment 2"], "Only what was committed must be stored");
}

/// An attempt that lost its key stores neither, while its successor runs and after, and the row that its transaction
/// wrote is rolled back.
pub async fn a_superseded_commit_stores_neither(harness: &Harness) {
    let Some(hook) = claimed_by(harness, "a_superseded_commit_stores_neither") else { return };
    let world = World::new(harness).await;
    let claim = world.claim(&scope("tenant"), &key("k")).with_lease(world.lease());
    let old = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    world.advance_to(old.lease_end()).await;
    let new = world.ask(&world.claim(claim.scope(), claim.key())).await;
    let new = taken_over(new, "A lapsed record must be TakenOver");
    let rule = "A completion in a transaction by an attempt that lost its key must be Superseded";
    superseded(hook.complete_in(&world.place, &completion(&old), "late", End::Commit).await, rule);
    let rows = hook.rows(&world.place).await;
    assert!(rows.is_empty(), "A superseded transaction must be rolled back: {rows:?}");
    let record = present(world.store().read(claim.scope(), claim.key()).await, "The record must be there");
    assert_eq!((record.state, record.number), (State::InProgress, 2), "The record must be its successor's");
    let answer = hook.complete_in(&world.place, &completion(&new), "payment", End::Commit).await;
    written(answer, "The successor must be able to commit");
    superseded(hook.complete_in(&world.place, &completion(&old), "later", End::Commit).await, rule);
    assert_eq!(hook.rows(&world.place).await, ["payment"], "Only the owner's row must be stored");
}

/// Released, held, expired and purged records are not completed in a transaction either, and none is brought back.
// case 003
pub async fn a_commit_by_an_attempt_that_ended_stores_neither(harness: &Harness) {
    let Some(hook) = claimed_by(harness, "a_commit_by_an_attempt_that_ended_stores_neither") else { return };
    let world = World::new(harness).await;
    for end in ["released", "held", "purged", "expired"] {
        let (tenant, key) = (scope(end), key("k"));
        let claim = if end == "expired" { world.short_claim(&tenant, &key) } else { world.claim(&tenant, &key) };
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        let rule = "A write by the owner must be Written";
        match end {
            "released" => written(world.store().release(grant.owner()).await, rule),
            "held" => written(world.store().hold(grant.owner(), Retention::default()).await, rule),
            "purged" => drop(ok(world.store().purge(&tenant, std::num::NonZeroUsize::MIN).await)),
            _ => {
                let record = present(world.store().read(&tenant, &key).await, "A claimed record must be there");
                world.advance_to(record.expiry).await;
            }
        }
        let rule = format!("A completion in a transaction must be Superseded once its record is {end}");
        superseded(hook.complete_in(&world.place, &completion(&grant), end, End::Commit).await, &rule);
        if ["purged", "expired"].contains(&end) {
            absent(world.store().read(&tenant, &key).await, "A transaction must not bring a record back");
        }
    }
    let rows = hook.rows(&world.place).await;
    assert!(rows.is_empty(), "Superseded transactions must be rolled back: {rows:?}");
}

/// A transaction that is done again, because the reply to the commit of the first was lost, stores no second row: the
/// completion in it is Superseded, even for the attempt that completed. Outside of transactions the same completion is
/// answered with the recorded response.
pub async fn a_transaction_that_is_done_again_stores_no_second_row(harness: &Harness) {
    let Some(hook) = claimed_by(harness, "a_transaction_that_is_done_again_stores_no_second_row") else { return };
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let grant = claimed(world.ask(&world.claim(&tenant, &key)).await, "A claim of an unused key must be Claimed");
    let answer = hook.complete_in(&world.place, &completion(&grant), "payment", End::Commit).await;
    written(answer, "A completion in a transaction by the owner must be Written");
    let again = hook.complete_in(&world.place, &completion(&grant), "payment again", End::Commit).await;
    superseded(
        again,
        "A completion in a transaction must be Superseded once another transaction has completed the record",
    );
    assert_eq!(hook.rows(&world.place).await, ["payment"], "Only the first transaction's row must be stored");
    let outside = world.store().complete(grant.owner(), &Response::new(500), Retention::default()).await;
    let outside = written(outside, "A completion repeated outside a transaction must be Written");
    assert_eq!(outside, response(), "A repeated completion must be answered with the response that is recorded");
}

/// Commits that race with takeovers of the same lapsed record store row and completion, or neither: in the end there
/// are exactly as many rows as completions.
pub async fn racing_commits_and_takeovers_leave_as_many_rows_as_completions(harness: &Harness) {
    let check = "racing_commits_and_takeovers_leave_as_many_rows_as_completions";
    let Some(hook) = claimed_by(harness, check) else { return };
    let world = World::new(harness).await;
    let tenant = scope("tenant");
    let mut grants = Vec::new();
    let mut end = world.now().await;
    for number in 0..20 {
        let claim = world.claim(&tenant, &key(&format!("k-{number}"))).with_lease(world.lease());
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        end = end.max(grant.lease_end());
        grants.push(grant);
    }
    world.advance_to(end).await;
    let (mut committed, mut taken) = (0, 0);
    for (number, grant) in grants.iter().enumerate() {
        let owner = grant.owner();
        let store = world.open().await;
        let claim = world.claim(owner.scope(), owner.key());
        let rival = tokio::spawn(async move {
            // Before, amid and after the transaction, over the rounds.
            tokio::time::sleep(Duration::from_micros(100 * number as u64)).await;
            idem_core::claim(&*store, &claim).await
        });
        let row = format!("payment {number}");
        let answer = ok(hook.complete_in(&world.place, &completion(grant), &row, End::Commit).await);
        committed += usize::from(matches!(answer, Fenced::Written(_)));
        match rival.await {
            Ok(answer) => taken += usize::from(matches!(ok(answer), idem_core::Answer::TakenOver(_))),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    assert_eq!(committed + taken, grants.len(), "Every record must be committed or taken over, and never both");
    let rows = hook.rows(&world.place).await;
    assert_eq!(rows.len(), committed, "There must be as many rows as completions; the rows are {rows:?}");
}

/// A process that is killed amid its transactions leaves, for each key, the row and the completion, or neither; and
/// what those after it do again makes no second row.
// case 037
pub async fn a_process_that_is_killed_leaves_the_row_and_the_completion_or_neither(harness: &Harness) {
    let check = "a_process_that_is_killed_leaves_the_row_and_the_completion_or_neither";
    // Also in the other processes that it starts.
    let (others, hook) = (Others::of(harness, check).await, claimed_by(harness, check));
    let (Some(others), Some(hook)) = (others, hook) else { return };
    let world = World::new(harness).await;
    let told = killed_again_and_again(&others, &world, "pay").await;
    let begun = Instant::now();
    loop {
        let rows = hook.rows(&world.place).await;
        match rows_and_completions_agree(&world, &rows, told + 2).await {
            Ok(()) => break,
            // A commit that was on its way may take a moment to be seen.
            Err(_) if begun.elapsed() < Duration::from_secs(5) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(found) => panic!(
                "A process that is killed must leave the row and the completion, or neither; {found}, after {told} that \
                 it was told are done"
            ),
        }
    }
    let rows = hook.rows(&world.place).await;
    for name in payments().take(told) {
        assert!(rows.contains(&name), "What a process was told is committed must be there; {name} has no row");
    }
}

const RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

fn response() -> Response {
    Response::new(201).with_header("location", "/payments/1").with_body(&b"\0\xff"[..])
}

fn completion(grant: &Grant) -> Completion {
    Completion::new(grant.owner().clone(), response(), Retention::new(RETENTION))
}

fn claimed_by<'a>(harness: &'a Harness, check: &str) -> Option<&'a dyn Transactions> {
    let hook = harness.transactional();
    if hook.is_none() {
        harness.notes().note_not_claimed(check, crate::harness::TRANSACTIONAL, "transactions");
    }
    hook
}
