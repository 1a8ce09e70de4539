//! Lost, repeated and delayed calls of the store while leases lapse all the time.

use std::{
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem::{Attempt, Body, Builder, Idempotency, OnLapse, Outcome, Response};
use idem_conformance::faulty::Faults;
use tokio::{
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use crate::place::{Ended, LEASE, LIMIT, Place, never, request};

const KEYS: usize = 40;

/// Two servers on the place, on which every third call of the store is struck.
async fn servers(place: &Place, set: impl Fn(Builder) -> Builder) -> Vec<(Idempotency, Faults)> {
    let mut servers = Vec::new();
    for seed in 1..=2 {
        let (runner, faults) = place.runner(&set).await;
        faults.storm(seed, NonZeroU64::new(3).unwrap());
        servers.push((runner, faults));
    }
    servers
}

/// Moves the clock on, so that each lease has lapsed after a few moments, until it is told to stop.
fn hasten(place: &Arc<Place>, is_over: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (place, is_over) = (Arc::clone(place), Arc::clone(is_over));
    tokio::spawn(async move {
        while !is_over.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(40)).await;
            place.clock.advance(LEASE / 2);
        }
    })
}

/// An operation that takes long enough to be overtaken now and then, and says in which attempt it was done.
async fn work(attempt: Attempt, runs: Arc<AtomicUsize>, takes: Duration) -> Result<Response, &'static str> {
    runs.fetch_add(1, Ordering::SeqCst);
    sleep(takes).await;
    Ok(Response::new(201).with_body(format!("by attempt {}", attempt.number())))
}

fn body(response: &Response) -> String {
    let Body::Kept(body) = response.body() else { panic!("{response:?}") };
    String::from_utf8(body.to_vec()).unwrap()
}

// case 001
pub(crate) async fn whatever_is_lost_and_whoever_is_overtaken_all_clients_of_a_key_get_one_answer(place: Place) {
    let (place, is_over) = (Arc::new(place), Arc::default());
    let servers = servers(&place, |builder| builder).await;
    let time = hasten(&place, &is_over);
    let (runs, overtaken) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let mut clients = JoinSet::new();
    for key in 0..KEYS {
        for (runner, _) in &servers {
            let (runner, runs, overtaken) = (runner.clone(), Arc::clone(&runs), Arc::clone(&overtaken));
            clients.spawn(async move {
                for tried in 0_u64.. {
                    // Quicker and quicker, so that it comes to an end.
                    let takes = Duration::from_millis(100_u64.saturating_sub(tried * 10));
                    let (runs, overtaken) = (Arc::clone(&runs), Arc::clone(&overtaken));
                    let operation = move |attempt: Attempt| async move {
                        // One at least is overtaken: it goes on until another has run.
                        while key == 0 && attempt.number() == 1 && overtaken.load(Ordering::SeqCst) == 0 {
                            sleep(Duration::from_millis(5)).await;
                        }
                        overtaken.fetch_add(usize::from(key == 0 && attempt.number() > 1), Ordering::SeqCst);
                        work(attempt, runs, takes).await
                    };
                    let outcome = runner.run(request(&key.to_string()), operation).await;
                    match outcome {
                        Outcome::Ran { reply: response, stored: true } | Outcome::Replay { response, .. } => {
                            return (key, body(&response));
                        }
                        // It is not known to be the recorded one.
                        Outcome::Ran { stored: false, .. } | Outcome::Superseded => {}
                        Outcome::Conflict { .. } | Outcome::Store(_) => sleep(Duration::from_millis(20)).await,
                        other => panic!("{key}: {other:?}"),
                    }
                }
                unreachable!()
            });
        }
    }
    let answers = tokio::time::timeout(LIMIT, clients.join_all()).await.expect("all are answered");
    is_over.store(true, Ordering::SeqCst);
    time.await.unwrap();
    for (runner, faults) in &servers {
        assert!(runner.shutdown(LIMIT).await);
        assert!(faults.struck() > 20, "there was trouble");
    }
    let (calm, _) = place.runner(|builder| builder).await;
    for (key, answer) in answers {
        let replay: Ended = calm.run(request(&key.to_string()), never).await;
        let Outcome::Replay { response, .. } = replay else { panic!("{key}: {replay:?}") };
        assert_eq!(answer, body(&response), "key {key}");
    }
    assert!(overtaken.load(Ordering::SeqCst) > 0, "some were overtaken");
}

// case 017
pub(crate) async fn under_hold_nothing_runs_twice_whatever_is_lost_and_lapses(place: Place) {
    let (place, is_over) = (Arc::new(place), Arc::default());
    let servers = servers(&place, |builder| builder.on_lapse(OnLapse::Hold)).await;
    let time = hasten(&place, &is_over);
    let runs: Vec<Arc<AtomicUsize>> = (0..KEYS).map(|_| Arc::default()).collect();
    let mut clients = JoinSet::new();
    for (key, runs) in runs.iter().enumerate() {
        for (runner, _) in &servers {
            let (runner, runs) = (runner.clone(), Arc::clone(runs));
            clients.spawn(async move {
                // Each goes on for a while after it is answered: it is what comes late that could do harm.
                let (mut is_answered, mut is_unknown) = (false, false);
                for tried in 0..60 {
                    let (runs, takes) = (Arc::clone(&runs), Duration::from_millis(key as u64 * 3));
                    let operation = move |attempt: Attempt| work(attempt, runs, takes);
                    match runner.run(request(&key.to_string()), operation).await {
                        Outcome::Ran { .. } | Outcome::Replay { .. } => is_answered = true,
                        Outcome::Unknown => is_unknown = true,
                        Outcome::Superseded | Outcome::Conflict { .. } | Outcome::Store(_) => {}
                        other => panic!("{key}: {other:?}"),
                    }
                    if (is_answered || is_unknown) && tried > 10 {
                        break;
                    }
                    sleep(Duration::from_millis(10)).await;
                }
            });
        }
    }
    tokio::time::timeout(LIMIT, clients.join_all()).await.expect("it comes to an end");
    is_over.store(true, Ordering::SeqCst);
    time.await.unwrap();
    for (runner, _) in &servers {
        assert!(runner.shutdown(LIMIT).await);
    }
    for (key, runs) in runs.iter().enumerate() {
        assert!(runs.load(Ordering::SeqCst) <= 1, "key {key} ran {runs:?} times");
    }
    let ran = runs.iter().filter(|runs| runs.load(Ordering::SeqCst) == 1).count();
    assert!(ran > KEYS / 2, "{ran} of {KEYS} ran at all");
}
