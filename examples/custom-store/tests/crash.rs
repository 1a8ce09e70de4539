//! What a process that is killed leaves behind. The suite can't see that: it drops handles, and never kills.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader},
    time::Duration,
};

use common::{Place, another_process, claim_of, open_by_host_clock, own, part, record, response, retention, said, say};
use custom_store::RedbStore;
use idem_core::{Answer, ManualClock, State, Store};
use tokio::task::JoinSet;

const ROUNDS: usize = 5;

// case 037
#[tokio::test]
async fn everything_that_was_answered_is_there_after_a_kill_in_the_middle_of_commits() {
    if let Some(file) = part() {
        return claim_and_complete_until_killed(&file).await;
    }
    let place = Place::new();
    let test = "everything_that_was_answered_is_there_after_a_kill_in_the_middle_of_commits";
    let mut answered = BTreeSet::new();
    for round in 0..ROUNDS {
        let mut child = another_process(test, &place.file()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let enough = answered.len() + 150 * (round + 1);
        while answered.len() < enough {
            answered.extend(lines.next().unwrap().ok().as_deref().and_then(said).map(str::to_owned));
        }
        child.kill().unwrap(); // SIGKILL
        // What it said before it died, but for a last line that it could not finish.
        let mut rest: Vec<String> = lines.map_while(Result::ok).collect();
        rest.pop();
        answered.extend(rest.iter().filter_map(|line| said(line)).map(str::to_owned));
        child.wait().unwrap();

        let store = open_by_host_clock(place.file());
        store.check().await.unwrap();
        for said in &answered {
            let (what, name) = said.split_at(1);
            let record = record(&store, name).await.unwrap_or_else(|| panic!("{name} is lost"));
            assert!(what == "c" || record.state == State::Done(response()), "the completion of {name} is lost");
        }
    }
    assert!(answered.iter().any(|said| said.starts_with('d')));
}

/// The part of another process: many tasks claim and complete, and say so once they are answered.
async fn claim_and_complete_until_killed(file: &str) {
    let store = open_by_host_clock(file);
    let process = std::process::id();
    let mut tasks = JoinSet::new();
    for task in 0..32 {
        let store = store.clone();
        tasks.spawn(async move {
            for number in 0.. {
                let name = format!("{process}-{task}-{number}");
                let owner = own(&store, &claim_of(&name)).await;
                say(&format!("c{name}"));
                store.complete(&owner, &response(), retention()).await.unwrap();
                say(&format!("d{name}"));
            }
        });
    }
    tasks.join_all().await;
}

// cases 041, 043
#[tokio::test]
async fn the_key_of_a_killed_process_is_free_when_its_lease_ends_and_the_next_attempt_knows() {
    const LEASE: Duration = Duration::from_secs(2);
    if let Some(file) = part() {
        let store = open_by_host_clock(file);
        own(&store, &claim_of("k-1").with_lease(LEASE)).await;
        say("claimed");
        return std::future::pending().await; // until it is killed
    }
    let place = Place::new();
    let test = "the_key_of_a_killed_process_is_free_when_its_lease_ends_and_the_next_attempt_knows";
    let mut child = another_process(test, &place.file()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| said(&line.unwrap()) == Some("claimed")));
    child.kill().unwrap();
    child.wait().unwrap();

    let claimed = record(&open_by_host_clock(place.file()), "k-1").await.unwrap().claimed;
    let clock = ManualClock::starting_at(claimed);
    let store = RedbStore::builder(place.file()).clock(clock.clone()).open().unwrap();
    clock.advance(Duration::from_secs(1));
    match idem_core::claim(&store, &claim_of("k-1")).await.unwrap() {
        Answer::Conflict { left, .. } => assert_eq!(left, Some(Duration::from_secs(1))),
        other => panic!("{other:?}"),
    }
    clock.advance(Duration::from_secs(1));
    match idem_core::claim(&store, &claim_of("k-1")).await.unwrap() {
        Answer::TakenOver(grant) => assert!(grant.number() == 2 && grant.is_repeat()),
        other => panic!("{other:?}"),
    }
}
