//! Graceful shutdown.

use std::{sync::Arc, time::Duration};

use idem::{Attempt, Claimed, Outcome, Response, Settled, State};
use tokio::sync::Notify;

use crate::place::{Ended, LEASE, LIMIT, Place, assert_ran, assert_replays, never, record, request};

pub(crate) async fn a_shutdown_finishes_what_is_claimed_and_leaves_the_rest_to_its_lease(place: Place) {
    let (runner, _) = place.runner(|builder| builder).await;
    let (other, _) = place.runner(|builder| builder).await;
    let (claimed, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (running, told, telling) = (runner.clone(), Arc::clone(&finish), Arc::clone(&claimed));
    let operation = move |_| async move {
        telling.notify_one();
        told.notified().await;
        Ok::<_, &'static str>(Response::new(201))
    };
    let first = tokio::spawn(async move { running.run(request("k"), operation).await });
    claimed.notified().await;
    let stuck = runner.claim(request("stuck")).await;
    assert!(matches!(stuck, Claimed::Run(_)));

    let stopping = runner.clone();
    let shutdown = tokio::spawn(async move { stopping.shutdown(Duration::from_millis(300)).await });
    while !shutdown.is_finished() {
        let refused = runner.claim(request("new")).await;
        if matches!(refused, Claimed::Answered(idem::Answered::ShuttingDown)) {
            break;
        }
        let Claimed::Run(running) = refused else { panic!("{refused:?}") };
        assert_eq!(running.forget().await, Settled::GivenBack); // it came before the shutdown began
    }
    finish.notify_one();
    assert_ran(&first.await.unwrap(), 201);
    assert!(!shutdown.await.unwrap(), "one is left over");

    assert_replays(&other.run(request("k"), never).await, 201);
    let refused: Ended = runner.run(request("newer"), never).await;
    assert!(matches!(refused, Outcome::ShuttingDown), "{refused:?}");
    assert_eq!(record(&other, "newer").await, None);
    assert_eq!(record(&other, "stuck").await.unwrap().state, State::InProgress, "not freed, what it did is not known");
    let early: Ended = other.run(request("stuck"), never).await;
    assert!(matches!(early, Outcome::Conflict { .. }), "{early:?}");
    drop(stuck);
    place.clock.advance(LEASE);
    let takeover = |attempt: Attempt| async move {
        assert!(attempt.is_repeat());
        Ok(Response::new(201))
    };
    assert_ran(&other.run(request("stuck"), takeover).await, 201);
    assert!(runner.shutdown(LIMIT).await);
}
