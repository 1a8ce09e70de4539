//! The server goes away, comes back, or stands still.

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::{BoxFuture, join_all};
use idem_core::{Answer, Checkpoint, Claim, Fenced, Resolve, State, Store, StoreError};
use test_servers::{PrivatePostgres, Proxy, Settings};

use crate::{
    common::{
        LEASE, PATIENCE, Place, assert_unavailable, claim, claim_of, complete, connect, eventually, key, number, own,
        record, response, retention, rounds, scope, token, word,
    },
    rivals::Rivals,
};

/// A time limit that a server which answers keeps, and one that does not oversteps soon.
const LIMIT: Duration = Duration::from_millis(800);

/// What a busy machine may add to it.
const SLACK: Duration = Duration::from_secs(3);

async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_under_load_costs_no_answer_and_makes_no_second_owner() {
    let server = Arc::new(in_background(|| PrivatePostgres::start(Settings::new())).await);
    let place = Place::at(&server.url(), "killed");
    let open = || place.builder().timeout(LIMIT);
    let stores = [open().connect().await.unwrap(), open().build().unwrap()];
    let rivals = Rivals::start(&stores);
    for round in 0..rounds(3, 10) {
        let grows = place.count().await;
        eventually("claims go on", async || place.count().await > grows + 20).await;
        let (server, by_stop) = (Arc::clone(&server), round % 3 == 1);
        in_background(move || {
            if by_stop {
                server.stop()
            } else {
                server.kill()
            };
            server.start_again();
        })
        .await;
    }
    rivals.assert_each_key_has_one_owner(&place.open().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_is_unavailable_in_time_and_nothing_is_owned_twice_afterwards() {
    let server = in_background(|| PrivatePostgres::start(Settings::new())).await;
    let place = Place::at(&server.url(), "paused");
    let store = place.builder().timeout(LIMIT).connect().await.unwrap();
    let patient = place.open().await;
    // Four connections that lie idle.
    join_all((0..4).map(async |_| store.read(&scope(), &key("k")).await.unwrap())).await;
    let owner = own(&store, &claim_of("owned")).await;
    let held = own(&store, &claim_of("held")).await;
    assert_eq!(store.hold(&held, retention()).await.unwrap(), Fenced::Written(()));
    let claims: Vec<Claim> = (0..100).map(|number| claim_of(&format!("k-{number}"))).collect();
    // This one has made no connection yet, nor looked for its table.
    let new = place.builder().timeout(LIMIT).build().unwrap();

    server.pause();
    let (checkpoint, one) = (Checkpoint::new("step", "done").unwrap(), NonZeroUsize::MIN);
    let resolve = Resolve::new(scope(), key("held"), held.attempt(), token());
    let completed = response();
    fn unit<T>(answer: Result<T, StoreError>) -> Result<(), StoreError> {
        answer.map(|_| ())
    }
    let mut operations: Vec<(&str, BoxFuture<'_, Result<(), StoreError>>)> = vec![
        ("complete", Box::pin(async { unit(store.complete(&owner, &completed, retention()).await) })),
        ("renew", Box::pin(async { unit(store.renew(&owner, LEASE).await) })),
        ("checkpoint", Box::pin(async { unit(store.checkpoint(&owner, &checkpoint).await) })),
        ("resolve", Box::pin(async { unit(store.resolve(&resolve).await) })),
        ("read", Box::pin(async { unit(store.read(&scope(), &key("owned")).await) })),
        ("wait", Box::pin(async { unit(store.wait(&scope(), &key("owned"), owner.attempt(), PATIENCE).await) })),
        ("sweep", Box::pin(async { unit(store.sweep(one).await) })),
        ("lapsed", Box::pin(async { unit(store.lapsed(None, one).await) })),
        ("purge", Box::pin(async { unit(store.purge(&scope(), one).await) })),
        ("check", Box::pin(async { unit(store.check().await) })),
        ("migrate", Box::pin(async { store.migrate().await })),
        ("check of a new store", Box::pin(async { unit(new.check().await) })),
    ];
    for claim in &claims {
        operations.push(("claim", Box::pin(async { unit(store.claim(claim).await) })));
    }
    for claim in &claims[..20] {
        operations.push(("claim through a new store", Box::pin(async { unit(new.claim(claim).await) })));
    }
    let begun = Instant::now();
    let operations = operations.into_iter().map(async |(what, operation)| {
        let error = assert_unavailable(operation.await);
        let took = begun.elapsed();
        assert!(took < 2 * LIMIT + SLACK, "{what} took {took:?}: {error}");
    });
    join_all(operations).await;
    server.resume();

    // What was sent may still be applied, before or after these.
    for abandoned in &claims {
        let rival = claim_of(abandoned.key().as_str());
        let (rivals, owns) = (claim(&patient, &rival).await, claim(&store, abandoned).await);
        let owners = (word(&rivals), word(&owns));
        assert!([("Claimed", "Conflict"), ("Conflict", "Claimed")].contains(&owners), "{owners:?}");
        assert_eq!(record(&patient, abandoned.key().as_str()).await.unwrap().number, 1);
    }
    own(&new, &claim_of("another")).await;
    complete(&store, &owner).await;
    store.check().await.unwrap();
}

// case 072
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_dead_without_a_word_are_replaced() {
    let server = in_background(|| PrivatePostgres::start(Settings::new())).await;
    let place = Place::at(&server.url(), "dead");
    let url = format!("{}?application_name=dies", server.url());
    let store = place.builder_through(&url).timeout(2 * LIMIT).connect().await.unwrap();
    let other = place.open().await;
    let watcher = connect(&server.url()).await;
    for round in 0..rounds(2, 20) {
        // Some connections that lie idle, and the one for claims.
        join_all((0..4).map(async |_| store.read(&scope(), &key("k")).await.unwrap())).await;
        let owner = own(&store, &claim_of(&format!("owned {round}"))).await;
        // Their servers stand still: nothing comes back on them, and new connections are served.
        let sql = "SELECT pid::int8 FROM pg_stat_activity WHERE application_name = 'dies'";
        let dead: Vec<i64> = watcher.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
        assert!(dead.len() >= 2, "{dead:?}");
        signal("STOP", &dead).await;

        let first = claim_of(&format!("first {round}"));
        assert_eq!(word(&claim(&store, &first).await), "Claimed");
        complete(&store, &owner).await;
        // The dead ones come to life, and what was sent to them is done late.
        signal("CONT", &dead).await;
        eventually("the connections are closed", async || {
            let gone = format!("SELECT count(*) FROM pg_stat_activity WHERE pid IN ({})", list(&dead));
            number(&watcher, &gone).await <= 3
        })
        .await;
        assert_eq!(word(&claim(&other, &claim_of(&format!("first {round}"))).await), "Conflict");
        assert_eq!(word(&claim(&store, &first).await), "Claimed");
        assert_eq!(record(&other, &format!("first {round}")).await.unwrap().number, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_connection_is_found_out_also_by_callers_who_leave_early() {
    let server = in_background(|| PrivatePostgres::start(Settings::new())).await;
    let place = Place::at(&server.url(), "impatient");
    let url = format!("{}?application_name=dies", server.url());
    let store = place.builder_through(&url).timeout(2 * LIMIT).connect().await.unwrap();
    let watcher = connect(&server.url()).await;
    own(&store, &claim_of("k")).await;
    store.read(&scope(), &key("k")).await.unwrap();
    let sql = "SELECT pid::int8 FROM pg_stat_activity WHERE application_name = 'dies'";
    let dead: Vec<i64> = watcher.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    signal("STOP", &dead).await;
    // Nobody stays for as long as the store would.
    let begun = Instant::now();
    let mut round = 0;
    loop {
        round += 1;
        let (name, patience) = (format!("k-{round}"), LIMIT / 4);
        let claimed = tokio::time::timeout(patience, store.claim(&claim_of(&name))).await.is_ok_and(|row| row.is_ok());
        let read = tokio::time::timeout(patience, store.read(&scope(), &key("k"))).await.is_ok_and(|row| row.is_ok());
        if claimed && read {
            break;
        }
        assert!(begun.elapsed() < 4 * LIMIT + SLACK, "claims work: {claimed}, reads work: {read}");
    }
    signal("CONT", &dead).await;
}

fn list(pids: &[i64]) -> String {
    pids.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
}

async fn signal(name: &'static str, pids: &[i64]) {
    let pids: Vec<String> = pids.iter().map(i64::to_string).collect();
    let status = in_background(move || std::process::Command::new("kill").arg(format!("-{name}")).args(pids).status());
    assert!(status.await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_one_whose_record_is_locked_serves_the_others_and_recovers() {
    let place = Place::new("pool_of_one");
    let store = place.builder().timeout(2 * LIMIT).max_connections(NonZeroUsize::MIN).connect().await.unwrap();
    let (locked, free) = (own(&store, &claim_of("locked")).await, own(&store, &claim_of("free")).await);
    let mut other = place.connect().await;
    let transaction = other.transaction().await.unwrap();
    let lock = format!("SELECT 1 FROM {} WHERE key = 'locked' FOR UPDATE", place.table);
    transaction.execute(&lock, &[]).await.unwrap();

    let begun = Instant::now();
    let stuck = async {
        let error = assert_unavailable(store.complete(&locked, &response(), retention()).await);
        assert!(begun.elapsed() < 4 * LIMIT + SLACK, "{:?}: {error}", begun.elapsed());
    };
    let others = async {
        complete(&store, &free).await;
        for number in 0..20 {
            own(&store, &claim_of(&format!("k-{number}"))).await;
        }
        assert_eq!(word(&claim(&store, &claim_of("free")).await), "Replay");
        assert_eq!(word(&claim(&store, &claim_of("locked")).await), "Conflict");
    };
    futures_util::future::join(stuck, others).await;
    transaction.rollback().await.unwrap();
    complete(&store, &locked).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_slow_and_in_demand_is_not_taken_for_a_dead_one() {
    let place = Place::new("slow");
    let proxy = Proxy::start(&place.url);
    let builder = place.builder_through(&proxy.url_through(&place.url)).timeout(4 * LIMIT);
    let store = builder.max_connections(NonZeroUsize::MIN).connect().await.unwrap();
    store.read(&scope(), &key("k")).await.unwrap();
    let connections = proxy.connections();
    // Whoever comes last has waited for longer than half of the time limit when its turn comes, and is answered.
    proxy.delay_replies(4 * LIMIT / 10);
    let reads = join_all((0..8).map(async |_| store.read(&scope(), &key("k")).await));
    let answered = reads.await.into_iter().filter(Result::is_ok).count();
    proxy.delay_replies(Duration::ZERO);
    assert!(answered >= 7, "{answered} of 8 were answered");
    assert_eq!(proxy.connections(), connections, "none was replaced");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_locked_is_unavailable_in_time_and_then_is_not() {
    let place = Place::new("locked_table");
    let store = place.builder().timeout(LIMIT).max_connections(NonZeroUsize::MIN).connect().await.unwrap();
    let owner = own(&store, &claim_of("owned")).await;
    let mut other = place.connect().await;
    let transaction = other.transaction().await.unwrap();
    transaction.execute(&format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", place.table), &[]).await.unwrap();

    let begun = Instant::now();
    let claims: Vec<Claim> = (0..70).map(|number| claim_of(&format!("k-{number}"))).collect();
    let claiming = join_all(claims.iter().map(async |claim| idem_core::claim(&store, claim).await));
    let (response, scope, name) = (response(), scope(), key("owned"));
    let completing = store.complete(&owner, &response, retention());
    let (renewing, reading) = (store.renew(&owner, LEASE), store.read(&scope, &name));
    let (claimed, completed, renewed, read) =
        futures_util::future::join4(claiming, completing, renewing, reading).await;
    for answer in claimed {
        // Busy, or not in time: nothing was claimed either way.
        if !matches!(answer, Ok(Answer::Conflict { .. })) {
            assert_unavailable(answer);
        }
    }
    assert_unavailable(completed);
    assert_unavailable(renewed);
    assert_unavailable(read);
    assert!(begun.elapsed() < 2 * LIMIT + SLACK, "{:?}", begun.elapsed());
    transaction.rollback().await.unwrap();
    for claim in &claims {
        assert_eq!(word(&self::claim(&store, claim).await), "Claimed");
    }
    complete(&store, &owner).await;
}

/// Whoever gives up must not leave a session behind that waits on: they would be all that the server has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_stays_locked_does_not_cost_session_after_session() {
    let place = Place::new("locked_for_long");
    let most = 4;
    let builder = place.builder().timeout(LIMIT).max_connections(NonZeroUsize::new(most).unwrap());
    let store = builder.connect().await.unwrap();
    let mut other = place.connect().await;
    let watcher = place.connect().await;
    let transaction = other.transaction().await.unwrap();
    transaction.execute(&format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", place.table), &[]).await.unwrap();
    // Those that have nothing but this table to wait for.
    let waiting = format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{}'::regclass", place.table);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let callers = (0..20).map(|caller| {
        let (store, stop) = (store.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let _ = idem_core::claim(&store, &claim_of(&format!("k-{caller}"))).await;
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    let mut worst = 0;
    let begun = Instant::now();
    while begun.elapsed() < 8 * LIMIT {
        worst = worst.max(number(&watcher, &waiting).await);
        tokio::time::sleep(LIMIT / 8).await;
    }
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    transaction.rollback().await.unwrap();
    for caller in callers {
        caller.await.unwrap();
    }
    // The claims' own, those that relieved it within half the time limit, and the pool's.
    let bound = i64::try_from(1 + 4 + most).unwrap();
    assert!((1..=bound).contains(&worst), "{worst} sessions waited at once, and {bound} may");
    assert_eq!(word(&claim(&store, &claim_of("afterwards")).await), "Claimed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_loses_everything_for_a_while_is_unavailable_in_time_and_then_is_not() {
    let place = Place::new("black_hole");
    let direct = place.open().await;
    let proxy = Proxy::start(&place.url);
    let store = place.builder_through(&proxy.url_through(&place.url)).timeout(LIMIT).connect().await.unwrap();
    for is_cut in [false, true] {
        let name = |what: &str, number: usize| format!("{what} {is_cut} {number}");
        let owners: Vec<_> = join_all((0..10).map(|number| {
            let store = store.clone();
            let claim = claim_of(&name("owned", number));
            async move { own(&store, &claim).await }
        }))
        .await;
        let claims: Vec<_> = (0..70).map(|number| claim_of(&name("k", number))).collect();
        proxy.black_hole();
        let begun = Instant::now();
        let (response, keep) = (response(), retention());
        let claiming = join_all(claims.iter().map(|claim| idem_core::claim(&store, claim)));
        let completing = join_all(owners.iter().map(|owner| store.complete(owner, &response, keep)));
        let releasing = join_all(owners.iter().map(|owner| store.release(owner)));
        let (claimed, completed, released) = futures_util::future::join3(claiming, completing, releasing).await;
        claimed.into_iter().for_each(|answer| drop(assert_unavailable(answer)));
        completed.into_iter().for_each(|answer| drop(assert_unavailable(answer)));
        released.into_iter().for_each(|answer| drop(assert_unavailable(answer)));
        assert!(begun.elapsed() < 2 * LIMIT + SLACK, "{:?}", begun.elapsed());
        if is_cut {
            proxy.cut_connections();
        }
        // Unless it was cut, what was sent meanwhile arrives now: before, between and after these.
        proxy.lift();
        for claim in &claims {
            let rival = claim_of(claim.key().as_str());
            let answers = (word(&self::claim(&direct, &rival).await), word(&self::claim(&store, claim).await));
            assert!([("Claimed", "Conflict"), ("Conflict", "Claimed")].contains(&answers), "{answers:?}");
            assert_eq!(record(&direct, claim.key().as_str()).await.unwrap().number, 1);
        }
        for owner in &owners {
            // A release or a completion of this attempt, whichever came first; never both.
            let (completed, released) =
                (store.complete(owner, &response, keep).await.unwrap(), store.release(owner).await.unwrap());
            match record(&direct, owner.key().as_str()).await.unwrap().state {
                State::Done(_) => {
                    assert_eq!((completed, released), (Fenced::Written(response.clone()), Fenced::Superseded))
                }
                State::Released => assert_eq!((completed, released), (Fenced::Superseded, Fenced::Written(()))),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_statement_stays_behind_to_wait_for_a_record_that_is_locked() {
    let place = Place::new("left_behind");
    let url = format!("{}?application_name=left_behind", place.url);
    let patient = place.open().await;
    let store = place.builder_through(&url).timeout(2 * LIMIT).build().unwrap();
    let mut owners = Vec::new();
    for name in ["complete", "release", "forget", "hold", "checkpoint"] {
        owners.push(own(&patient, &claim_of(name)).await);
    }
    let (mut stranger, watcher) = (place.connect().await, place.connect().await);
    let transaction = stranger.transaction().await.unwrap();
    transaction.batch_execute("SELECT FROM left_behind FOR UPDATE").await.unwrap();
    let note = Checkpoint::new("charge", "ch_1").unwrap();
    let writes: [BoxFuture<'_, StoreError>; 6] = [
        Box::pin(async { assert_unavailable(store.complete(&owners[0], &response(), retention()).await) }),
        Box::pin(async { assert_unavailable(store.release(&owners[1]).await) }),
        Box::pin(async { assert_unavailable(store.forget(&owners[2]).await) }),
        Box::pin(async { assert_unavailable(store.hold(&owners[3], retention()).await) }),
        Box::pin(async { assert_unavailable(store.checkpoint(&owners[4], &note).await) }),
        Box::pin(async { assert_unavailable(store.purge(&scope(), NonZeroUsize::MAX).await) }),
    ];
    join_all(writes).await;
    // The row is still locked, and the server has given up too: nothing is written when it no longer is.
    let waiting = "SELECT count(*) FROM pg_stat_activity
        WHERE application_name = 'left_behind' AND wait_event_type = 'Lock'";
    eventually("no statement waits for a lock", async || number(&watcher, waiting).await == 0).await;
    transaction.rollback().await.unwrap();
    for owner in &owners {
        assert_eq!(record(&patient, owner.key().as_str()).await.unwrap().state, State::InProgress);
    }
}
