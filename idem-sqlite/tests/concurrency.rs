//! Many callers at once: tasks, handles, processes, groups in which something fails, callers that leave.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::{
    collections::BTreeMap,
    future::poll_fn,
    num::NonZeroUsize,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use common::{
    Place, another_process, claim_of, key, open_by_host_clock, own, part, record, response, retention, said, say, scope,
};
use idem_core::{ClaimRow, Fenced, State, Store, StoreErrorKind};
use idem_sqlite::{SqliteStore, rusqlite::TransactionBehavior};
use tokio::{sync::Barrier, task::JoinSet};

const TASKS: usize = 64;

/// Eight keys at a time, each claimed by 64 tasks that start together, spread over these handles: of each key one claim
/// is written and 63 find it.
async fn race_for_eight_keys(stores: &[SqliteStore], round: usize) {
    let barrier = Arc::new(Barrier::new(8 * TASKS));
    let mut claims = JoinSet::new();
    for (number, task) in (0..8).flat_map(|number| (0..TASKS).map(move |task| (number, task))) {
        let (store, barrier) = (stores[task % stores.len()].clone(), barrier.clone());
        let claim = claim_of(&format!("k-{round}-{number}"));
        claims.spawn(async move {
            barrier.wait().await;
            (number, store.claim(&claim).await.unwrap())
        });
    }
    let mut counts = [(0, 0); 8];
    for (number, row) in claims.join_all().await {
        match row {
            ClaimRow::Written(_) => counts[number].0 += 1,
            ClaimRow::Found { .. } => counts[number].1 += 1,
            ClaimRow::Busy { .. } => panic!("no owner is finishing"),
        }
    }
    assert_eq!(counts, [(1, TASKS - 1); 8], "round {round}");
}

// case 013
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_claims_at_once_exactly_one_is_written_and_the_others_find_it() {
    let place = Place::new();
    let stores = [place.open()];
    for round in 0..125 {
        race_for_eight_keys(&stores, round).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_handles_on_one_file_give_a_key_to_one_claim_only() {
    let place = Place::new();
    let stores = [place.open(), place.open()];
    for round in 0..25 {
        race_for_eight_keys(&stores, round).await;
    }
}

const PROCESSES: usize = 3;
const ROUNDS: usize = 50;

// cases 013, 068, 091
#[test]
fn several_processes_on_one_file_give_each_key_to_one_claim_only() {
    if let Some(part) = part() {
        let (process, file) = part.split_once(' ').unwrap();
        return race_against_other_processes(process.parse().unwrap(), file);
    }
    let place = Place::new();
    // A file that is not there yet: all of them make it at once.
    let start = |process| {
        let part = format!("{process} {}", place.file().to_str().unwrap());
        another_process("several_processes_on_one_file_give_each_key_to_one_claim_only", &part).spawn().unwrap()
    };
    let children: Vec<_> = (0..PROCESSES).map(start).collect();
    let mut rounds = BTreeMap::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        for line in String::from_utf8(output.stdout).unwrap().lines().filter_map(said) {
            let (name, written) = line.split_once(' ').unwrap();
            rounds.entry(name.to_owned()).or_insert_with(Vec::new).push(written == "written");
        }
    }
    assert_eq!(rounds.len(), ROUNDS);
    for (name, claims) in rounds {
        let written = claims.iter().filter(|written| **written).count();
        assert_eq!((written, claims.len()), (1, 4 * PROCESSES), "{name}");
    }
}

/// The part of another process: in each round, once all processes are in it, four claims of its key at once.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn race_against_other_processes(process: usize, file: &str) {
    let store = open_by_host_clock(file);
    for round in 0..ROUNDS {
        let arrival = |process| format!("process-{process}-in-{round}");
        own(&store, &claim_of(&arrival(process))).await;
        for other in 0..PROCESSES {
            while record(&store, &arrival(other)).await.is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let name = format!("k-{round}");
        let mut claims = JoinSet::new();
        for claim in [(); 4].map(|()| claim_of(&name)) {
            let store = store.clone();
            claims.spawn(async move { store.claim(&claim).await.unwrap() });
        }
        for row in claims.join_all().await {
            let written = matches!(row, ClaimRow::Written(_));
            say(&format!("{name} {}", if written { "written" } else { "found" }));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_fails_by_itself_leaves_the_others_of_its_group_alone() {
    let place = Place::new();
    let store = place.open();
    own(&store, &claim_of("k-0")).await;
    place.connect().execute("UPDATE idem_records SET record = x'01ff'", ()).unwrap();

    let rows = claim_all_in_one_group(&place, &store).await;
    for (number, row) in rows.into_iter().enumerate() {
        match number {
            0 => assert_eq!(row.unwrap_err().kind(), StoreErrorKind::Corrupt),
            _ => assert!(matches!(row.unwrap(), ClaimRow::Written(_)), "{number}"),
        }
    }
}

/// Claims of k-0 to k-63 that wait while a caller's transaction is open, so that they form one group.
async fn claim_all_in_one_group(place: &Place, store: &SqliteStore) -> Vec<Result<ClaimRow, idem_core::StoreError>> {
    let mut caller = place.connect();
    let open = caller.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let claims: Vec<_> = (0..TASKS).map(|number| claim_of(&format!("k-{number}"))).collect();
    let mut waiting: Vec<_> = claims.iter().map(|claim| store.claim(claim)).collect();
    for claim in &mut waiting {
        poll_once(claim).await; // puts it into the queue
    }
    open.commit().unwrap();
    let mut rows = Vec::new();
    for claim in waiting {
        rows.push(claim.await);
    }
    rows
}

/// Whether what was answered as written is there, and what was not is not.
async fn assert_answers_are_true(store: &SqliteStore, rows: &[Result<ClaimRow, idem_core::StoreError>]) {
    for (number, row) in rows.iter().enumerate() {
        let stored = record(store, &format!("k-{number}")).await;
        match row {
            Ok(ClaimRow::Written(record)) => assert_eq!(stored.as_ref(), Some(record)),
            Ok(other) => panic!("{other:?}"),
            Err(_) => assert_eq!(stored, None),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_answered_as_written_whose_commit_fails() {
    let place = Place::new();
    let store = place.open();
    // A constraint that SQLite checks at the commit.
    place
        .connect()
        .execute_batch(
            "CREATE TABLE parent (id INTEGER PRIMARY KEY);
             CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
             CREATE TRIGGER orphan AFTER INSERT ON idem_records BEGIN INSERT INTO child VALUES (1); END;",
        )
        .unwrap();
    let rows = claim_all_in_one_group(&place, &store).await;
    for row in &rows {
        assert_eq!(row.as_ref().unwrap_err().kind(), StoreErrorKind::Unavailable);
    }
    assert_answers_are_true(&store, &rows).await;

    place.connect().execute_batch("DROP TRIGGER orphan").unwrap();
    own(&store, &claim_of("k-0")).await;
}

#[tokio::test]
async fn operations_that_wait_share_a_transaction_and_a_rollback_half_way_is_answered_to_all_of_them() {
    let place = Place::new();
    let store = place.open();
    place
        .connect()
        .execute_batch(
            "CREATE TRIGGER rollback BEFORE INSERT ON idem_records WHEN NEW.key = 'k-31'
             BEGIN SELECT RAISE(ROLLBACK, 'no'); END;",
        )
        .unwrap();
    let rows = claim_all_in_one_group(&place, &store).await;
    for (number, row) in rows.iter().enumerate() {
        // Those before it were undone, and those behind it were not begun.
        assert_eq!(row.as_ref().unwrap_err().kind() == StoreErrorKind::Unavailable, number != 31, "{number}");
    }
    assert_answers_are_true(&store, &rows).await;
}

#[tokio::test]
async fn a_write_that_changes_no_row_is_an_error_and_not_an_answer() {
    let place = Place::new();
    let store = place.open();
    let owner = own(&store, &claim_of("k-0")).await;
    place
        .connect()
        .execute_batch(
            "CREATE TRIGGER no_insert BEFORE INSERT ON idem_records BEGIN SELECT RAISE(IGNORE); END;
             CREATE TRIGGER no_update BEFORE UPDATE ON idem_records BEGIN SELECT RAISE(IGNORE); END;",
        )
        .unwrap();
    for error in [
        store.claim(&claim_of("k-1")).await.unwrap_err(),
        store.complete(&owner, &response(), retention()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        assert!(error.to_string().contains("changed 0 rows"), "{error}");
    }
}

// case 068
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_busy_error_reaches_a_claim_beside_other_writers() {
    let place = Place::new();
    let mut claims = JoinSet::new();
    for handle in 0..2 {
        let store = place.open();
        claims.spawn(async move {
            for number in 0..500 {
                own(&store, &claim_of(&format!("{handle}-{number}"))).await;
            }
        });
    }
    claims.join_all().await;
    let count: i64 = place.connect().query_row("SELECT count(*) FROM idem_records", (), |row| row.get(0)).unwrap();
    assert_eq!(count, 1000);
}

#[tokio::test]
async fn while_a_caller_holds_the_write_lock_claims_wait_for_their_time_limit_and_reads_do_not() {
    let place = Place::new();
    let (store, impatient) = (place.open(), place.open_impatient());
    own(&store, &claim_of("k-1")).await;
    let mut caller = place.connect();
    let open = caller.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    for _ in 0..3 {
        let error = impatient.claim(&claim_of("k-2")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    }
    assert!(record(&store, "k-1").await.is_some());
    assert_eq!(store.lapsed(None, NonZeroUsize::MIN).await.unwrap(), []);
    open.rollback().unwrap();
    assert_eq!(record(&store, "k-2").await, None);
    own(&store, &claim_of("k-2")).await;
}

#[tokio::test]
async fn a_write_that_could_not_be_begun_within_its_time_limit_is_not_made_later() {
    let place = Place::new();
    let (store, impatient) = (place.open(), place.open_impatient());
    let owner = own(&store, &claim_of("k")).await;
    let mut caller = place.connect();
    let open = caller.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    for _ in 0..2 {
        assert_eq!(impatient.release(&owner).await.unwrap_err().kind(), StoreErrorKind::Unavailable);
    }
    open.rollback().unwrap();
    // Behind them in the same queue. Within its time limit the disk may be too slow for it.
    let next = claim_of("next");
    while impatient.claim(&next).await.is_err() {}
    assert_eq!(record(&store, "k").await.unwrap().state, State::InProgress);
}

#[tokio::test]
async fn a_claim_that_waits_for_a_callers_transaction_is_written_once_it_ends() {
    let place = Place::new();
    let store = place.open();
    let mut caller = place.connect();
    let open = caller.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let claim = claim_of("k-1");
    let mut waiting = pin!(store.claim(&claim));
    // Far longer than SQLite itself is asked to be patient, and far shorter than the store is.
    tokio::time::timeout(Duration::from_millis(200), &mut waiting).await.unwrap_err();
    open.rollback().unwrap();
    assert!(matches!(waiting.await.unwrap(), ClaimRow::Written(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_operations_than_the_queue_takes_end_in_time_and_the_store_works_on() {
    let place = Place::new();
    let impatient = place.open_impatient();
    let mut caller = place.connect();
    let open = caller.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let mut claims = JoinSet::new();
    for number in 0..3000 {
        let impatient = impatient.clone();
        claims.spawn(async move { impatient.claim(&claim_of(&format!("k-{number}"))).await.unwrap_err().kind() });
    }
    assert!(claims.join_all().await.into_iter().all(|kind| kind == StoreErrorKind::Unavailable));
    open.rollback().unwrap();
    // Within its time limit the disk may be too slow for it; the claim is repeated as any caller would.
    let claim = claim_of("k-0");
    while impatient.claim(&claim).await.is_err() {}
}

#[tokio::test]
async fn a_claim_whose_caller_left_before_it_began_locks_no_key_and_a_completion_is_kept() {
    let place = Place::new();
    let store = place.open();
    let owner = own(&store, &claim_of("k-1")).await;
    let mut caller = place.connect();
    let open = caller.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let soon = Duration::from_millis(20);
    // Two claims, since the writer takes the first one off the queue and may be about to begin.
    for _ in 0..2 {
        tokio::time::timeout(soon, store.claim(&claim_of("k-2"))).await.unwrap_err();
    }
    tokio::time::timeout(soon, store.complete(&owner, &response(), retention())).await.unwrap_err();
    open.rollback().unwrap();
    // Behind those in the queue, and so after them.
    own(&store, &claim_of("k-3")).await;
    assert_eq!(record(&store, "k-2").await, None);
    assert_eq!(record(&store, "k-1").await.unwrap().state, State::Done(response()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_are_dropped_at_any_point_disturb_nobody() {
    let place = Place::new();
    let store = place.open();
    let mut claims = JoinSet::new();
    for number in 0..2000_u64 {
        let store = store.clone();
        claims.spawn(async move {
            let claim = claim_of(&format!("k-{number}"));
            if number % 3 == 0 {
                let after = Duration::from_micros(number % 400);
                let _ = tokio::time::timeout(after, store.claim(&claim)).await;
            } else {
                let owner = own(&store, &claim).await;
                let done = store.complete(&owner, &response(), retention()).await.unwrap();
                assert_eq!(done, Fenced::Written(response()));
            }
        });
    }
    claims.join_all().await;
    for number in (0..2000).filter(|number| number % 3 != 0) {
        assert_eq!(record(&store, &format!("k-{number}")).await.unwrap().state, State::Done(response()), "{number}");
    }
}

#[tokio::test]
async fn dropping_a_store_finishes_what_is_queued_and_leaves_no_lock() {
    let place = Place::new();
    for round in 0..50 {
        let store = place.open();
        let name = format!("k-{round}");
        let owner = own(&store, &claim_of(&name)).await;
        // Polled once, so that it is queued, and dropped.
        let response = response();
        let mut completion = Box::pin(store.complete(&owner, &response, retention()));
        poll_once(&mut completion).await;
        drop(completion);
        drop(store);
        let store = place.open();
        assert_eq!(record(&store, &name).await.unwrap().state, State::Done(response), "round {round}");
        own(&store, &claim_of(&format!("again-{round}"))).await;
    }
}

async fn poll_once(future: &mut (impl Future + Unpin)) {
    poll_fn(|context| {
        let _ = Pin::new(&mut *future).poll(context);
        Poll::Ready(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_when_the_attempt_settles_through_this_handle_or_another() {
    let place = Place::new();
    let (store, other) = (place.open(), place.open());
    for (name, settling) in [("same", &store), ("other", &other)] {
        let owner = own(&store, &claim_of(name)).await;
        let mut waits = JoinSet::new();
        for _ in 0..50 {
            let (store, seen, key) = (store.clone(), owner.attempt(), key(name));
            waits.spawn(async move { store.wait(&scope(), &key, seen, Duration::from_secs(60)).await.unwrap() });
        }
        settling.complete(&owner, &response(), retention()).await.unwrap();
        for found in waits.join_all().await {
            assert_eq!(found.unwrap().record.state, State::Done(response()));
        }
    }
}

#[tokio::test]
async fn a_wait_ends_at_once_where_the_attempt_is_over_and_otherwise_at_its_limit() {
    let place = Place::new();
    let store = place.open();
    let owner = own(&store, &claim_of("k-1").with_lease(Duration::from_millis(1))).await;
    let (scope, key) = (scope(), key("k-1"));
    let wait = |seen, at_most| store.wait(&scope, &key, seen, at_most);
    place.clock.advance(Duration::from_secs(1));
    // A lapse alone does not end it.
    let found = wait(owner.attempt(), Duration::from_millis(120)).await.unwrap().unwrap();
    assert_eq!(found.record.state, State::InProgress);
    assert_eq!(wait(owner.attempt(), Duration::ZERO).await.unwrap().unwrap().record, found.record);
    own(&store, &claim_of("k-1")).await;
    assert_eq!(wait(owner.attempt(), Duration::MAX).await.unwrap().unwrap().record.number, 2);
    store.purge(&scope, NonZeroUsize::MAX).await.unwrap();
    assert_eq!(wait(owner.attempt(), Duration::MAX).await.unwrap(), None);
}
