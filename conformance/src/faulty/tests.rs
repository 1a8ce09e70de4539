use std::num::NonZeroU64;

use idem_core::{Answer, Claim, Fenced, Fingerprint, Key, Response, Retention, Scope, State, Token};

use super::*;
use crate::{
    Place,
    common::{Reference, Right},
};

/// A store in memory that is right, wrapped; and the same without.
fn stores() -> (Arc<dyn Store>, Arc<dyn Store>, Faults) {
    let inner: Arc<dyn Store> = Arc::new(Reference::<Right>::open(&Place::new()));
    let (store, faults) = Faulty::wrap(Arc::clone(&inner));
    (store, inner, faults)
}

fn claim(token: u8) -> Claim {
    let fingerprint = Fingerprint::builder().part("body", "b").build().unwrap();
    Claim::new(Scope::global(), Key::new("k").unwrap(), Token::from_bytes([token; 16]), fingerprint)
}

async fn state(store: &dyn Store) -> Option<State> {
    let found = store.read(&Scope::global(), &Key::new("k").unwrap()).await.unwrap();
    found.map(|found| found.record.state)
}

fn unavailable<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Unavailable);
}

#[tokio::test]
async fn without_a_fault_nothing_is_different_and_calls_are_counted() {
    let (store, inner, faults) = stores();
    let Answer::Claimed(grant) = idem_core::claim(&*store, &claim(1)).await.unwrap() else { panic!() };
    store.complete(grant.owner(), &Response::new(201), Retention::default()).await.unwrap();
    assert_eq!(state(&*inner).await, Some(State::Done(Response::new(201))));
    assert_eq!((faults.calls(Operation::Claim), faults.calls(Operation::Any), faults.struck()), (1, 2, 0));
    assert_eq!(store.backend(), inner.backend());
}

#[tokio::test]
async fn a_request_that_is_lost_does_nothing_and_a_reply_that_is_lost_hides_what_was_done() {
    let (store, inner, faults) = stores();
    faults.arm(Fault::LoseRequest, Operation::Claim);
    unavailable(store.claim(&claim(1)).await);
    assert_eq!(state(&*inner).await, None);
    faults.arm(Fault::LoseReply, Operation::Claim);
    unavailable(store.claim(&claim(1)).await);
    assert_eq!(state(&*inner).await, Some(State::InProgress));
    let Answer::Claimed(grant) = idem_core::claim(&*store, &claim(1)).await.unwrap() else { panic!() };
    assert_eq!((grant.number(), faults.struck()), (1, 2));
}

#[tokio::test]
async fn a_late_call_is_done_when_it_is_delivered() {
    let (store, inner, faults) = stores();
    let Answer::Claimed(grant) = idem_core::claim(&*store, &claim(1)).await.unwrap() else { panic!() };
    faults.arm(Fault::Late, Operation::Release);
    unavailable(store.release(grant.owner()).await);
    assert_eq!(state(&*inner).await, Some(State::InProgress));
    assert_eq!(faults.deliver().await, 1);
    assert_eq!(state(&*inner).await, Some(State::Released));
    assert_eq!(faults.deliver().await, 0);
}

#[tokio::test]
async fn a_call_that_is_repeated_gives_the_second_answer() {
    let (store, _, faults) = stores();
    faults.arm(Fault::Repeat, Operation::Any);
    let row = store.claim(&claim(1)).await.unwrap();
    // The second finds what the first wrote, under its own token.
    let answer = idem_core::answer(&*store, &claim(1), row).await.unwrap();
    assert!(matches!(answer, Answer::Claimed(grant) if grant.number() == 1));
    assert_eq!(faults.calls(Operation::Claim), 1);
}

#[tokio::test]
async fn an_error_has_the_kind_that_was_asked_for_and_strikes_as_often_and_as_late_as_was_asked_for() {
    let (store, _, faults) = stores();
    faults.arm_times(Fault::Fail(StoreErrorKind::Corrupt), Operation::Read, 1, 2);
    let read = async || store.read(&Scope::global(), &Key::new("k").unwrap()).await;
    assert!(read().await.is_ok());
    for _ in 0..2 {
        assert_eq!(read().await.unwrap_err().kind(), StoreErrorKind::Corrupt);
    }
    assert!(read().await.is_ok());
    faults.arm_times(Fault::LoseRequest, Operation::Any, 0, u64::MAX);
    unavailable(read().await);
    faults.disarm();
    assert!(read().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_delayed_is_done_later_and_a_paused_store_does_nothing_until_it_goes_on() {
    let (store, inner, faults) = stores();
    let hour = Duration::from_secs(60 * 60);
    faults.arm(Fault::Delay(hour), Operation::Claim);
    let begun = tokio::time::Instant::now();
    store.claim(&claim(1)).await.unwrap();
    assert!(begun.elapsed() >= hour);
    faults.pause();
    let waits = tokio::spawn(async move { store.purge(&Scope::global(), std::num::NonZeroUsize::MIN).await });
    sleep(hour).await;
    assert!(!waits.is_finished() && state(&*inner).await.is_some());
    faults.resume();
    assert_eq!(waits.await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn a_storm_of_one_seed_strikes_the_same_calls_each_time() {
    let strikes = async || {
        let (store, _, faults) = stores();
        faults.storm(7, NonZeroU64::new(3).unwrap());
        let mut failed = Vec::new();
        for _ in 0..200 {
            failed.push(store.check().await.is_err());
        }
        (failed, faults.struck())
    };
    let (first, struck) = strikes().await;
    assert_eq!((first.clone(), struck), strikes().await);
    assert!((30..120).contains(&struck), "{struck}");
    assert!(first.iter().any(|failed| *failed) && first.iter().any(|failed| !failed));
}

#[tokio::test]
async fn a_future_is_dropped_after_its_polls() {
    let yields = async |times: usize| {
        for _ in 0..times {
            tokio::task::yield_now().await;
        }
        times
    };
    assert_eq!(drop_after(0, yields(0)).await, None);
    assert_eq!(drop_after(1, yields(0)).await, Some(0));
    assert_eq!(drop_after(2, yields(2)).await, None);
    assert_eq!(drop_after(3, yields(2)).await, Some(2));
    let fenced: Fenced<()> = Fenced::Superseded;
    assert_eq!(drop_after(1, async { fenced }).await, Some(Fenced::Superseded));
}
