//! Leases are kept alive whatever happens to others.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{sync::Arc, time::Duration};

use idem_core::{Response, StoreErrorKind};
use idem_runner::Outcome;
use support::{Ended, Fault, LEASE, answering, eventually, request, world, world_with};
use tokio::{runtime, sync::Notify};

// case 018
#[tokio::test(start_paused = true)]
async fn two_renewals_in_a_row_may_fail_or_hang() {
    for fault in [Fault::Hangs, Fault::Refused(StoreErrorKind::Unavailable), Fault::Panics] {
        let world = world();
        let finish = Arc::new(Notify::new());
        let first = world.spawn("k", &finish);
        tokio::task::yield_now().await;
        for _ in 0..3 {
            world.store.plan("renew", fault, 2);
            world.advance(LEASE).await;
        }
        let counters = world.idempotency.counters();
        assert_eq!((counters.renewal_failures, counters.renewed_late), (6, 0), "{fault:?}: {counters:?}");
        let rival: Ended = world.another(|builder| builder).run(request("k"), answering(500)).await;
        assert!(matches!(rival, Outcome::Conflict { .. }), "{fault:?}: {rival:?}");
        finish.notify_one();
        assert!(matches!(first.await.unwrap(), Outcome::Ran { stored: true, .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_that_hang_hold_up_no_others() {
    let world = world();
    let finish = Arc::new(Notify::new());
    let keys: Vec<&'static str> = (0..200).map(|n| &*format!("k{n}").leak()).collect();
    let running: Vec<_> = keys.iter().map(|key| world.spawn(key, &finish)).collect();
    tokio::task::yield_now().await;
    // The first two hundred hang; whatever is asked for beside them is answered.
    world.store.plan("renew", Fault::Hangs, keys.len());
    world.advance(LEASE / 3 + LEASE / 12).await;
    let last = world.spawn("last", &finish);
    tokio::task::yield_now().await;
    world.advance(LEASE * 2).await;
    let counters = world.idempotency.counters();
    assert_eq!((counters.renewal_failures, counters.renewed_late), (200, 0), "{counters:?}");
    for operation in running.into_iter().chain([last]) {
        finish.notify_waiters();
        assert!(matches!(operation.await.unwrap(), Outcome::Ran { stored: true, .. }));
    }
}

// case 019
#[test]
fn each_runtime_renews_its_own_leases_so_that_another_one_may_end_or_stand_still() {
    let lease = Duration::from_millis(300);
    let world = world_with(|builder| builder.lease(lease).max_run(Duration::from_secs(60)));
    let current_thread = || runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let once = |key: &'static str| world.idempotency.run(request(key), answering(201));
    // Both were the first one that the runner saw, and are not driven from then on.
    let stands_still = current_thread();
    let _: Ended = stands_still.block_on(once("a"));
    let ends = current_thread();
    let _: Ended = ends.block_on(once("b"));
    drop(ends);
    let idempotency = world.idempotency.clone();
    let outcome: Ended = current_thread().block_on(async {
        let operation = move |_| async move {
            eventually("its lease is renewed", || async { idempotency.counters().renewed >= 3 }).await;
            Ok(Response::new(201))
        };
        world.idempotency.run(request("c"), operation).await
    });
    assert!(matches!(outcome, Outcome::Ran { stored: true, .. }), "{outcome:?}");
}

// case 076
#[tokio::test(start_paused = true)]
async fn a_completion_that_is_tried_again_is_renewed_past_max_run_and_has_not_overrun() {
    let world = world_with(|builder| builder.max_run(LEASE));
    world.store.plan("complete", Fault::Refused(StoreErrorKind::Unavailable), usize::MAX);
    let outcome: Ended = world.idempotency.run(request("k"), answering(201)).await;
    assert!(matches!(outcome, Outcome::Ran { stored: false, .. }), "{outcome:?}");
    world.advance(LEASE * 4).await;
    let rival: Ended = world.another(|builder| builder).run(request("k"), answering(500)).await;
    assert!(matches!(rival, Outcome::Conflict { .. }), "{rival:?}");
    assert_eq!(world.idempotency.counters().overran, 0);
    world.store.heal();
    world.advance(Duration::from_secs(6)).await;
    let retry: Ended = world.idempotency.run(request("k"), answering(500)).await;
    assert!(matches!(retry, Outcome::Replay { .. }), "{retry:?}");
}
