//! Results of steps, for the attempts that come after.

use bytes::Bytes;
use idem::{Claimed, Response, Settled, StepError};
use idem_conformance::faulty::{Fault, Operation};

use crate::place::{LEASE, Place, record, request};

async fn done(result: &'static str) -> Result<Bytes, &'static str> {
    Ok(Bytes::from_static(result.as_bytes()))
}

async fn not_again() -> Result<Bytes, &'static str> {
    panic!("it must not be done again")
}

pub(crate) async fn a_takeover_resumes_behind_the_steps_that_were_done(place: Place) {
    let (first, _) = place.runner(|builder| builder).await;
    let (second, _) = place.runner(|builder| builder).await;
    let Claimed::Run(running) = first.claim(request("k")).await else { panic!() };
    assert_eq!(running.attempt().step("reserve", || done("cart 1")).await.unwrap(), "cart 1");
    assert_eq!(running.attempt().step("charge", || done("ch_1\0\u{ff}")).await.unwrap(), "ch_1\0\u{ff}");
    let stalled = running.attempt().clone();
    drop(running);
    place.clock.advance(LEASE);

    let Claimed::Run(running) = second.claim(request("k")).await else { panic!() };
    let attempt = running.attempt();
    assert_eq!((attempt.number(), attempt.is_repeat()), (2, true));
    assert_eq!(attempt.downstream_key("charge"), stalled.downstream_key("charge"));
    assert_ne!(attempt.downstream_key("charge"), attempt.downstream_key("reserve"));
    assert_eq!(attempt.step("charge", not_again).await.unwrap(), "ch_1\0\u{ff}");
    assert_eq!(attempt.step("reserve", not_again).await.unwrap(), "cart 1");
    assert_eq!(attempt.step("mail", || done("sent")).await.unwrap(), "sent");

    // The one that stalled is told at its next step, and begins none after that.
    assert!(matches!(stalled.step("mail", || done("sent twice")).await, Err(StepError::Superseded)));
    assert!(stalled.is_superseded());
    assert!(matches!(stalled.step("bill", not_again).await, Err(StepError::Superseded)));
    assert_eq!(first.counters().superseded, 1);

    let size = 64 * 1024;
    let big = attempt.step("big", || async { Ok::<_, &str>(Bytes::from(vec![0; size])) }).await;
    assert!(matches!(big, Err(StepError::Full)), "{big:?}");
    assert_eq!(running.complete(Response::new(201)).await, Settled::Completed(Response::new(201)));
    assert!(record(&second, "k").await.unwrap().checkpoints.is_empty(), "dropped with the completion");
}

pub(crate) async fn a_step_whose_reply_is_lost_is_kept_once(place: Place) {
    let (runner, faults) = place.runner(|builder| builder).await;
    let Claimed::Run(running) = runner.claim(request("k")).await else { panic!() };
    for (name, fault) in [("a", Fault::LoseReply), ("b", Fault::LoseRequest), ("c", Fault::Repeat)] {
        faults.arm(fault, Operation::Checkpoint);
        assert_eq!(running.attempt().step(name, || done("result")).await.unwrap(), "result");
        assert_eq!(running.attempt().step(name, not_again).await.unwrap(), "result");
    }
    let kept = record(&runner, "k").await.unwrap().checkpoints;
    assert_eq!(kept.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b", "c"]);
}
