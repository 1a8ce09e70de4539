//! Callers leave in the middle of what they asked for.

use std::{future::poll_fn, num::NonZeroUsize, pin::pin, task::Poll, time::Duration};

use futures_util::future::join_all;
use idem_core::{Answer, Fenced, Store};
use idem_postgres::tokio_postgres::Client;
use tokio::{task::JoinSet, time::timeout};

use crate::common::{
    PATIENCE, Place, Random, claim, claim_of, complete, connect, eventually, number, own, record, response, retention,
    rounds, word,
};

/// Polls a future as often as that, and gives its output if it has come by then.
async fn polled<F: Future>(times: u64, future: F) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), times);
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Nobody of that name stays within a transaction.
async fn assert_no_transaction_is_open(watcher: &Client, application: &str) {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity
        WHERE application_name = '{application}' AND state LIKE 'idle in transaction%'"
    );
    eventually("no transaction stays open", async || number(watcher, &sql).await == 0).await;
}

// case 048
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_dropped_after_any_number_of_polls_leaves_the_connections_usable() {
    let place = Place::new("polled");
    let url = format!("{}?application_name=polled", place.url);
    let watcher = connect(&place.url).await;
    let mut finished = 0;
    for is_warm in [false, true] {
        let open = async || {
            let builder = place.builder_through(&url).max_connections(NonZeroUsize::MIN);
            if is_warm { builder.connect().await } else { builder.build() }
        };
        let mut store = open().await.unwrap();
        for polls in 1.. {
            let name = |what: &str| format!("{what} {is_warm} {polls}");
            let dropped = claim_of(&name("dropped"));
            let answer = polled(polls, idem_core::claim(&store, &dropped)).await;
            assert_no_transaction_is_open(&watcher, "polled").await;

            let next = claim_of(&name("next"));
            assert_eq!(word(&claim(&store, &next).await), "Claimed");
            let sql = format!("SELECT count(*) FROM {} WHERE key = $1", place.table);
            let seen: i64 = watcher.query_one(&sql, &[&next.key().as_str()]).await.unwrap().get(0);
            assert_eq!(seen, 1, "{polls} polls");
            // It happened or not, and its token finds out.
            assert_eq!(word(&claim(&store, &dropped).await), "Claimed");
            assert_eq!(record(&store, dropped.key().as_str()).await.unwrap().number, 1);
            let owner = own(&store, &dropped).await;
            if polled(polls, store.complete(&owner, &response(), retention())).await.is_none() {
                assert_no_transaction_is_open(&watcher, "polled").await;
                complete(&store, &owner).await;
            }
            if answer.is_some() {
                finished += 1;
                break;
            }
            if !is_warm {
                store = open().await.unwrap();
            }
        }
    }
    assert_eq!(finished, 2);
}

// case 048
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_the_callers_that_is_dropped_after_any_number_of_polls_is_rolled_back() {
    let place = Place::new("polled_transaction");
    let store = place.open().await;
    let mut client = place.connect().await;
    let watcher = place.connect().await;
    for polls in 1.. {
        let dropped = claim_of(&format!("dropped {polls}"));
        let work = async {
            let transaction = client.transaction().await.unwrap();
            let grant = crate::common::granted(store.claim_in(&transaction, &dropped).await.unwrap());
            let completion = idem_core::Completion::new(grant.owner().clone(), response(), retention());
            assert_eq!(store.complete_in(&transaction, &completion).await.unwrap(), Fenced::Written(response()));
            // Not committed.
        };
        let ended = polled(polls, work).await;
        client.batch_execute("SELECT 1").await.unwrap();
        let mine: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {mine} AND state = 'idle'");
        eventually("the transaction is over", async || number(&watcher, &sql).await == 1).await;
        assert_eq!(record(&store, dropped.key().as_str()).await, None);
        assert_eq!(word(&claim(&store, &claim_of(dropped.key().as_str())).await), "Claimed");
        if ended.is_some() {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_are_dropped_out_of_their_groups_harm_no_other_claim() {
    let place = Place::new("dropped_groups");
    let (store, other) = (place.open().await, place.open().await);
    for round in 0..rounds(1, 10) {
        let mut random = Random(round as u64 + 1);
        let claims: Vec<_> = (0..2000).map(|number| claim_of(&format!("k-{round}-{number}"))).collect();
        let mut tasks = JoinSet::new();
        for (number, claim) in claims.iter().cloned().enumerate() {
            let store = store.clone();
            let polls = (random.below(3) == 0).then(|| 1 + random.below(2));
            tasks.spawn(async move {
                let claimed = idem_core::claim(&store, &claim);
                (number, polls.is_some(), polled(polls.unwrap_or(u64::MAX), claimed).await)
            });
        }
        let mut dropped = 0;
        let all = async {
            while let Some(ended) = tasks.join_next().await {
                match ended.unwrap() {
                    (_, true, None) => dropped += 1,
                    (number, _, answer) => {
                        let answer = answer.unwrap().unwrap();
                        assert!(matches!(answer, Answer::Claimed(_)), "{number}: {answer:?}");
                    }
                }
            }
        };
        timeout(PATIENCE, all).await.expect("nobody hangs");
        assert!(dropped > 200, "{dropped} were dropped");

        // Each is owned once, and those that stayed own theirs.
        let again = join_all(claims.iter().map(|claim| idem_core::claim(&store, claim))).await;
        for answer in again {
            let answer = answer.unwrap();
            assert!(matches!(&answer, Answer::Claimed(grant) if grant.number() == 1), "{answer:?}");
        }
        let rivals: Vec<_> = claims.iter().map(|claim| claim_of(claim.key().as_str())).collect();
        for answer in join_all(rivals.iter().map(|claim| idem_core::claim(&other, claim))).await {
            assert_eq!(word(&answer.unwrap()), "Conflict");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_at_the_head_of_the_line_may_leave_at_any_time() {
    let place = Place::new("dropped_head");
    let mut store = place.open().await;
    for round in 0..rounds(60, 1000) {
        if round % 4 == 0 {
            // The head leaves while it connects and prepares.
            store = place.open().await;
        }
        let (polls, leaves_late) = (2 + round as u64 % 7, round % 2 == 0);
        let head = claim_of(&format!("head {round}"));
        let others: Vec<_> = (0..20).map(|number| claim_of(&format!("k-{round}-{number}"))).collect();
        let mut leading = Box::pin(polled(polls, idem_core::claim(&store, &head)));
        // At the head of the line from its first poll on.
        let has_ended = polled(1, leading.as_mut()).await.is_some();
        let waiting = join_all(others.iter().map(|claim| idem_core::claim(&store, claim)));
        let leaving = async {
            if leaves_late && !has_ended {
                let _ = leading.await;
            } else {
                drop(leading);
            }
        };
        let both = futures_util::future::join(waiting, leaving);
        let (answers, ()) = timeout(PATIENCE, both).await.expect("nobody hangs");
        for answer in answers {
            assert_eq!(word(&answer.unwrap()), "Claimed");
        }
        assert_eq!(word(&claim(&store, &head).await), "Claimed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_ends_amid_claims_takes_nothing_from_another() {
    let place = Place::new("runtimes");
    let store = place.open().await;
    for round in 0..rounds(5, 50) {
        let inner = store.clone();
        let ends = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            for number in 0..100 {
                let store = inner.clone();
                runtime.spawn(async move {
                    let _ = idem_core::claim(&store, &claim_of(&format!("ends {round} {number}"))).await;
                });
            }
            runtime.block_on(async {
                let _ = timeout(Duration::from_millis(round as u64 % 5), std::future::pending::<()>()).await;
            });
            runtime.shutdown_background();
        });
        let mine: Vec<_> = (0..100).map(|number| claim_of(&format!("stays {round} {number}"))).collect();
        let answers = join_all(mine.iter().map(|claim| idem_core::claim(&store, claim)));
        let answers = timeout(PATIENCE, answers).await.expect("nobody hangs");
        ends.await.unwrap();
        for answer in answers {
            assert_eq!(word(&answer.unwrap()), "Claimed");
        }
    }
}

// On one thread, where nothing is answered while a future is polled.
#[tokio::test]
async fn a_claim_that_is_begun_and_not_awaited_holds_up_no_other_for_long() {
    let place = Place::new("not_awaited");
    let store = place.builder().timeout(Duration::from_secs(8)).connect().await.unwrap();
    for round in 0..3 {
        // At the head of the line, and alive.
        let forgotten = claim_of(&format!("forgotten {round}"));
        let mut leading = Box::pin(idem_core::claim(&store, &forgotten));
        assert!(polled(1, leading.as_mut()).await.is_none());

        let others: Vec<_> = (0..100).map(|number| claim_of(&format!("k-{round}-{number}"))).collect();
        for answer in join_all(others.iter().map(|claim| idem_core::claim(&store, claim))).await {
            assert_eq!(word(&answer.unwrap()), "Claimed");
        }
        // Whoever comes later does not wait at all.
        let begun = std::time::Instant::now();
        for number in 0..20 {
            own(&store, &claim_of(&format!("later {round} {number}"))).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
        assert_eq!(word(&leading.await.unwrap()), "Claimed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_stands_still_amid_claims_takes_nothing_from_another() {
    let place = Place::new("stands_still");
    let store = place.builder().timeout(Duration::from_secs(8)).connect().await.unwrap();
    let (begin, begun) = (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel::<()>());
    let still = std::thread::spawn({
        let (store, began, end) = (store.clone(), begun.0, begin.1);
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            // One is at the head of the line, others wait for it; the connection is of this runtime too.
            let claims: Vec<_> = (0..10).map(|number| claim_of(&format!("still {number}"))).collect();
            let mut claiming = Box::pin(join_all(claims.iter().map(|claim| idem_core::claim(&store, claim))));
            runtime.block_on(async { assert!(polled(2, claiming.as_mut()).await.is_none()) });
            began.send(()).unwrap();
            end.recv().unwrap();
            runtime.block_on(claiming).into_iter().map(|answer| word(&answer.unwrap())).collect::<Vec<_>>()
        }
    });
    begun.1.recv().unwrap();
    let others: Vec<_> = (0..100).map(|number| claim_of(&format!("k-{number}"))).collect();
    for answer in join_all(others.iter().map(|claim| idem_core::claim(&store, claim))).await {
        assert_eq!(word(&answer.unwrap()), "Claimed");
    }
    begin.0.send(()).unwrap();
    assert_eq!(still.join().unwrap(), ["Claimed"; 10]);
}

#[tokio::test]
async fn claims_whose_callers_have_left_the_line_lock_no_key() {
    let place = Place::new("left_the_line");
    let store = place.open().await;
    own(&store, &claim_of("first")).await;
    let mut stranger = place.connect().await;
    let transaction = stranger.transaction().await.unwrap();
    transaction.batch_execute("LOCK TABLE left_the_line IN EXCLUSIVE MODE").await.unwrap();
    let (head, last) = (claim_of("head"), claim_of("last"));
    let mut head = pin!(store.claim(&head));
    assert!(polled(1, &mut head).await.is_none(), "it waits for the table");
    for number in 0..10 {
        let claim = claim_of(&format!("left-{number}"));
        assert!(polled(1, store.claim(&claim)).await.is_none(), "it waits for the head of the line");
    }
    let mut last = pin!(store.claim(&last));
    assert!(polled(1, &mut last).await.is_none());
    transaction.rollback().await.unwrap();
    head.await.unwrap();
    last.await.unwrap();
    let left = number(&stranger, "SELECT count(*) FROM left_the_line WHERE key LIKE 'left-%'").await;
    assert_eq!(left, 0);
}
