//! How outcomes settle: forgotten, kept, not retained, unprotected.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem::{Attempt, Body, NotRetained, OnUnavailable, Outcome, Response, SettlePolicy, StoreErrorKind};
use idem_conformance::faulty::{Fault, Operation};

use crate::place::{Ended, Place, answering, assert_ran, assert_replays, counting, never, request, request_of};

// cases 101, 102
pub(crate) async fn a_refused_request_may_be_corrected_and_a_preset_keeps_everything(place: Place) {
    let (runner, _) = place.runner(|builder| builder).await;
    let _: Ended = runner.run(request_of("k", "wrong"), answering(422)).await;
    let corrected = |attempt: Attempt| async move {
        assert!(!attempt.is_repeat(), "nothing was done before");
        Ok(Response::new(201))
    };
    assert_ran(&runner.run(request_of("k", "right"), corrected).await, 201);

    let (keeping, _) = place.runner(|builder| builder.settle(SettlePolicy::keep_everything())).await;
    for status in [422, 403, 409, 500] {
        let name = format!("kept {status}");
        let _: Ended = keeping.run(request(&name), answering(status)).await;
        assert_replays(&keeping.run(request(&name), never).await, status);
    }
}

// cases 036, 125
pub(crate) async fn a_response_that_is_not_retained_spends_its_key(place: Place) {
    let (runner, _) = place.runner(|builder| builder.max_response(256 * 1024)).await;
    let (other, _) = place.runner(|builder| builder).await;
    let large = Response::new(201).with_header("location", "/1").with_body(vec![7; 5 * 1024 * 1024]);
    let secret = Response::new(201).with_header("x-token", "t").with_body("shown once");
    for (name, response, reason) in [("large", large, NotRetained::TooLarge), ("secret", secret, NotRetained::Secret)] {
        let given = response.clone();
        let operation = move |attempt: Attempt| async move {
            if reason == NotRetained::Secret {
                attempt.do_not_retain();
            }
            Ok::<_, &'static str>(given)
        };
        let first = runner.run(request(name), operation).await;
        assert!(matches!(first, Outcome::Ran { reply, stored: true } if reply == response), "it goes out whole");
        for runner in [&runner, &other] {
            let retry: Ended = runner.run(request(name), never).await;
            let Outcome::Replay { response, .. } = retry else { panic!("{name}: {retry:?}") };
            assert_eq!((response.status(), response.body()), (201, &Body::NotRetained(reason)));
        }
    }
}

// case 075
pub(crate) async fn running_unprotected_is_an_explicit_choice_and_counted(place: Place) {
    let quick = Duration::from_millis(200);
    let (closed, closed_faults) = place.runner(|builder| builder.store_timeout(quick)).await;
    let (open, open_faults) =
        place.runner(|builder| builder.store_timeout(quick).on_unavailable(OnUnavailable::RunUnprotected)).await;
    for faults in [&closed_faults, &open_faults] {
        faults.arm_times(Fault::Fail(StoreErrorKind::Unavailable), Operation::Claim, 0, u64::MAX);
    }
    let runs = Arc::new(AtomicUsize::new(0));
    for n in 1..=2 {
        let refused: Ended = closed.run(request("k"), never).await;
        assert!(matches!(refused, Outcome::Store(_)), "{refused:?}");
        let unprotected: Ended = open.run(request("k"), counting(&runs, 201)).await;
        assert!(matches!(unprotected, Outcome::Ran { stored: false, .. }), "{unprotected:?}");
        assert_eq!((runs.load(Ordering::SeqCst), open.counters().unprotected), (n, n as u64));
    }
    assert_eq!(closed.counters().unprotected, 0);
}
