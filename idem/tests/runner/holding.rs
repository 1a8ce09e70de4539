//! Hold instead of take over, for operations that must not run twice.

use std::time::Duration;

use idem::{Builder, Claimed, OnLapse, Outcome, Resolution, Resolved, Response, State, StoreErrorKind};
use idem_conformance::faulty::{Fault, Operation};

use crate::place::{
    Ended, LEASE, Place, answering, assert_ran, assert_replays, eventually, key, never, record, request, scope,
};

fn hold(builder: Builder) -> Builder {
    builder.on_lapse(OnLapse::Hold)
}

pub(crate) async fn what_did_not_come_to_an_end_is_unknown_until_it_is_resolved(place: Place) {
    let (runner, _) = place.runner(hold).await;
    let failures = [("status", Some(Ok(Response::new(503)))), ("error", Some(Err("broken"))), ("panic", None)];
    for (name, failure) in failures {
        let _ = runner.run(request(name), |_| async { failure.expect("a panic as planned") }).await;
        let retry: Ended = runner.run(request(name), never).await;
        assert!(matches!(retry, Outcome::Unknown), "{name}: {retry:?}");
        let seen = record(&runner, name).await.unwrap().attempt();

        // Not done after all, and so it runs again, and fails again.
        let resolved = runner.resolve(scope(), key(name), seen, Resolution::Released).await.unwrap();
        assert_eq!(resolved, Resolved::Released, "{name}");
        let again: Ended = runner
            .run(request(name), |attempt| async move {
                assert!(attempt.is_repeat());
                Err("again")
            })
            .await;
        assert!(matches!(again, Outcome::Failed("again")), "{name}: {again:?}");
        let late = runner.resolve(scope(), key(name), seen, Resolution::Released).await.unwrap();
        assert_eq!(late, Resolved::Superseded, "{name}: that attempt is not the one whose outcome is unknown now");

        // Found to be done.
        let seen = record(&runner, name).await.unwrap().attempt();
        let done = Response::new(201).with_body("found out");
        let resolved = runner.resolve(scope(), key(name), seen, Resolution::Done(done.clone())).await.unwrap();
        assert_eq!(resolved, Resolved::Done(done));
        let (other, _) = place.runner(hold).await;
        assert_replays(&other.run(request(name), never).await, 201);
    }
}

// case 017
pub(crate) async fn an_attempt_that_started_and_died_is_never_taken_over(place: Place) {
    let (runner, _) = place.runner(hold).await;
    let Claimed::Run(running) = runner.claim(request("k")).await else { panic!() };
    assert!(record(&runner, "k").await.unwrap().started, "it said that it starts before it does");
    drop(running);
    let (other, _) = place.runner(|builder| builder).await; // whatever the one that comes would do
    for later in [LEASE, Duration::from_secs(60 * 60), Duration::from_secs(29 * 24 * 60 * 60)] {
        place.clock.advance(later);
        let retry: Ended = other.run(request("k"), never).await;
        assert!(matches!(retry, Outcome::Unknown), "{later:?}: {retry:?}");
    }
    let waiting = runner.store().lapsed(None, std::num::NonZeroUsize::MIN).await.unwrap().remove(0);
    assert_eq!((&waiting.scope, &waiting.key), (&scope(), &key("k")));
    let seen = waiting.record.attempt();
    let done = runner.resolve(waiting.scope, waiting.key, seen, Resolution::Done(Response::new(201))).await;
    assert_eq!(done.unwrap(), Resolved::Done(Response::new(201)));
    assert_replays(&other.run(request("k"), never).await, 201);
}

pub(crate) async fn an_attempt_that_can_not_say_that_it_starts_does_not_start(place: Place) {
    let (runner, faults) = place.runner(|builder| hold(builder).store_timeout(Duration::from_secs(2))).await;
    faults.arm_times(Fault::Fail(StoreErrorKind::Unavailable), Operation::Renew, 0, u64::MAX);
    let refused: Ended = runner.run(request("k"), never).await;
    assert!(matches!(refused, Outcome::Store(_)), "{refused:?}");
    faults.disarm();
    eventually("the key is given back", || async { record(&runner, "k").await.unwrap().state == State::Released })
        .await;
    assert_ran(&runner.run(request("k"), answering(201)).await, 201);

    // A reply that is lost is asked for again.
    faults.arm_times(Fault::LoseReply, Operation::Renew, 0, 2);
    assert_ran(&runner.run(request("l"), answering(201)).await, 201);
}
