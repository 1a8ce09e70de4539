//! Many keys, and then all of them again.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use idem::{Idempotency, Outcome, Retention, Sweep};
use tokio::task::JoinSet;

use crate::place::{Ended, LEASE, Place, counting, request};

/// How many requests are under way at a time.
const AT_ONCE: usize = 32;

async fn all(runner: &Idempotency, keys: usize, runs: &Arc<AtomicUsize>) -> (usize, usize) {
    let next = Arc::new(AtomicUsize::new(0));
    let (mut clients, mut ran, mut replayed) = (JoinSet::new(), 0, 0);
    for _ in 0..AT_ONCE {
        let (runner, next, runs) = (runner.clone(), Arc::clone(&next), Arc::clone(runs));
        clients.spawn(async move {
            let (mut ran, mut replayed) = (0, 0);
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= keys {
                    return (ran, replayed);
                }
                let outcome: Ended = runner.run(request(&n.to_string()), counting(&runs, 201)).await;
                match outcome {
                    Outcome::Ran { stored: true, .. } => ran += 1,
                    Outcome::Replay { .. } => replayed += 1,
                    other => panic!("{n}: {other:?}"),
                }
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        let (more_ran, more_replayed) = client.unwrap();
        (ran, replayed) = (ran + more_ran, replayed + more_replayed);
    }
    (ran, replayed)
}

// case 124
pub(crate) async fn many_keys_and_then_all_of_them_again_run_once_each_and_leave_nothing_behind(place: Place) {
    let (short, full) = place.many();
    let keys = if test_servers::full(&format!("{full} keys and then all of them again")) { full } else { short };
    let retention = Retention::new(LEASE * 2).with_held(LEASE * 2);
    let (runner, _) = place.runner(|builder| builder.retention(retention).sweep(Sweep::Off)).await;
    let runs = Arc::new(AtomicUsize::new(0));
    assert_eq!(all(&runner, keys, &runs).await, (keys, 0));
    assert_eq!(all(&runner, keys, &runs).await, (0, keys));
    assert_eq!(runs.load(Ordering::SeqCst), keys);
    let counters = runner.counters();
    assert_eq!((counters.claimed, counters.completed, counters.replayed), (keys as u64, keys as u64, keys as u64));
    assert_eq!((counters.conflict, counters.superseded, counters.store_errors), (0, 0, 0));

    // Nothing of them stays: every record is swept once it expired, and with the runner its last task ends.
    place.clock.advance(LEASE * 2);
    let (mut swept, batch) = (0, std::num::NonZeroUsize::new(1_000).unwrap());
    loop {
        match runner.store().sweep(batch).await.unwrap() {
            0 => break,
            removed => swept += removed,
        }
    }
    assert!(swept == keys || place.sweeps_by_itself(), "{swept} of {keys}");
    assert_eq!(all(&runner, 10, &runs).await, (10, 0), "absent");
}
