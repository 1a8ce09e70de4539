//! The connection dies at each point of each operation: before a request, when it was executed and its reply is lost,
//! within the reply.
//!
//! The points are all commands of the conversation: those of a store that has yet to connect, and of one whose connection
//! is there. The client sends a command again whose reply was lost, so most are applied twice; where it does not, the
//! caller is told, and repeats the operation.

use std::time::Duration;

use bytes::Bytes;
use idem_core::{
    Checkpoint, Checkpointed, Claim, Fenced, Owner, Resolve, Response, State, Store, StoreError, StoreErrorKind,
};
use idem_redis::RedisStore;
use test_servers::{Cut, Fault, Proxy, redis};
use tokio::time::sleep;

use crate::common::{
    LEASE, Place, assert_unavailable, claim, claim_of, complete, eventually, granted, key, own, record, response,
    retention, scope, token, word,
};

const CUTS: [Cut; 4] = [Cut::BeforeRequest, Cut::AfterRequest, Cut::BeforeReply, Cut::WithinReply];

/// For what can't be answered.
const LIMIT: Duration = Duration::from_millis(700);

/// More commands than any operation takes, to connect included.
const MANY: u64 = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    FirstClaim,
    RepeatedClaim,
    Replay,
    Conflict,
    Takeover,
    ClaimAfterRelease,
    Complete,
    Release,
    Forget,
    Hold,
    Renew,
    Checkpoint,
    Resolve,
    Read,
    Wait,
}

/// A key in the state that an operation finds, and what the operation needs.
struct Subject {
    claim: Claim,
    owner: Option<Owner>,
    resolve: Option<Resolve>,
}

impl Operation {
    async fn prepare(self, store: &RedisStore, name: &str) -> Subject {
        let claim = match self {
            Self::Takeover => claim_of(name).with_lease(Duration::from_millis(1)),
            _ => claim_of(name),
        };
        let mut subject = Subject { claim: claim_of(name), owner: None, resolve: None };
        match self {
            Self::FirstClaim => return subject,
            Self::RepeatedClaim => subject.claim = claim.clone(),
            _ => {}
        }
        let owner = own(store, &claim).await;
        match self {
            Self::Replay | Self::Wait => complete(store, &owner).await,
            // The server's clock is not the test's.
            Self::Takeover => while !is_lapsed(store, name).await {},
            Self::ClaimAfterRelease => assert_eq!(store.release(&owner).await.unwrap(), Fenced::Written(())),
            Self::Resolve => {
                assert_eq!(store.hold(&owner, retention()).await.unwrap(), Fenced::Written(()));
                subject.resolve = Some(Resolve::new(scope(), key(name), owner.attempt(), token()));
            }
            _ => {}
        }
        subject.owner = Some(owner);
        subject
    }

    async fn run(self, store: &RedisStore, subject: &Subject) -> Result<String, StoreError> {
        let owner = || subject.owner.as_ref().unwrap();
        let name = || subject.claim.key();
        Ok(match self {
            Self::FirstClaim
            | Self::RepeatedClaim
            | Self::Replay
            | Self::Conflict
            | Self::Takeover
            | Self::ClaimAfterRelease => word(&idem_core::claim(store, &subject.claim).await?).into(),
            Self::Complete => format!("{:?}", store.complete(owner(), &response(), retention()).await?),
            Self::Release => format!("{:?}", store.release(owner()).await?),
            Self::Forget => format!("{:?}", store.forget(owner()).await?),
            Self::Hold => format!("{:?}", store.hold(owner(), retention()).await?),
            Self::Renew => format!("{:?}", store.renew(owner(), LEASE).await?),
            Self::Checkpoint => {
                format!("{:?}", store.checkpoint(owner(), &Checkpoint::new("charge", "ch-1").unwrap()).await?)
            }
            Self::Resolve => match idem_core::resolve(store, subject.resolve.as_ref().unwrap()).await? {
                Fenced::Written(grant) => format!("Written({})", grant.number()),
                Fenced::Superseded => "Superseded".into(),
            },
            Self::Read => format!("{:?}", store.read(&scope(), name()).await?.unwrap().record.state),
            Self::Wait => {
                let found = store.wait(&scope(), name(), owner().attempt(), Duration::from_secs(5)).await?;
                format!("{:?}", found.unwrap().record.state)
            }
        })
    }

    /// The one right answer, the first time and each time after that.
    fn answer(self) -> String {
        match self {
            Self::FirstClaim | Self::RepeatedClaim | Self::ClaimAfterRelease => "Claimed".into(),
            Self::Replay => "Replay".into(),
            Self::Conflict => "Conflict".into(),
            Self::Takeover => "TakenOver".into(),
            Self::Complete => format!("{:?}", Fenced::Written(response())),
            Self::Release | Self::Forget | Self::Hold | Self::Renew => "Written(())".into(),
            Self::Checkpoint => format!("{:?}", Fenced::Written(Checkpointed::Kept(Bytes::from("ch-1")))),
            Self::Resolve => "Written(2)".into(),
            Self::Read => format!("{:?}", State::InProgress),
            Self::Wait => format!("{:?}", State::Done(response())),
        }
    }

    /// The record in the end: its state and number.
    fn left(self) -> (State, u32) {
        match self {
            Self::Replay | Self::Complete | Self::Wait => (State::Done(response()), 1),
            Self::Takeover | Self::ClaimAfterRelease | Self::Resolve => (State::InProgress, 2),
            Self::Release | Self::Forget => (State::Released, 1),
            Self::Hold => (State::Held, 1),
            _ => (State::InProgress, 1),
        }
    }
}

async fn is_lapsed(store: &RedisStore, name: &str) -> bool {
    let found = store.read(&scope(), &key(name)).await.unwrap().unwrap();
    found.record.is_lapsed(found.now)
}

/// Cuts the operation at each command of the conversation, in each way, with a client that sends a command so often.
async fn cut_at_each_point(operation: Operation, attempts: u32) {
    let place = Place::new(&format!("cut_{operation:?}_{attempts}").to_lowercase());
    let direct = place.open().await;
    let proxy = Proxy::start(&place.url);
    let url = proxy.url_through(&place.url);
    let (mut struck, mut told) = (0, 0);
    for is_warm in [false, true] {
        for cut in CUTS {
            let mut struck_at = 0;
            for point in 0..MANY {
                let at = format!("{operation:?}, {cut:?} of command {point}, warm: {is_warm}");
                let name = format!("{cut:?} {point} {is_warm}");
                let subject = operation.prepare(&direct, &name).await;
                let store = place.builder_through(&url).attempts(attempts).build().unwrap();
                if is_warm {
                    let warming = operation.prepare(&direct, &format!("{name} warm")).await;
                    operation.run(&store, &warming).await.unwrap();
                }
                proxy.arm(Fault::new(cut).after(point));
                let answer = operation.run(&store, &subject).await;
                let strikes = proxy.strikes();
                proxy.disarm();
                match answer {
                    Ok(answer) => assert_eq!(answer, operation.answer(), "{at}"),
                    Err(error) => {
                        assert!(attempts == 1, "a second try must have answered: {at}: {error}");
                        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{at}: {error}");
                        told += 1;
                    }
                }
                struck += strikes;
                // No second time. A client that sends nothing twice fails until it has connected again.
                let mut again = operation.run(&store, &subject).await;
                while attempts == 1 && again.is_err() {
                    sleep(Duration::from_millis(5)).await;
                    again = operation.run(&store, &subject).await;
                }
                assert_eq!(again.unwrap(), operation.answer(), "again, {at}");
                let left = record(&direct, &name).await.unwrap();
                assert_eq!((left.state, left.number), operation.left(), "{at}");
                // case 038
                assert!(redis().command(&["PTTL", &place.name(&name)]).integer() > 0, "{at}");
                if strikes == 0 {
                    break;
                }
                struck_at += 1;
            }
            assert!((1..MANY).contains(&struck_at), "{operation:?}, {cut:?}: struck at {struck_at} points");
        }
    }
    assert!(struck >= CUTS.len() as u64, "{operation:?}: {struck} cuts");
    assert_eq!(told > 0, attempts == 1, "{operation:?}: {told} of {struck} were told");
}

// cases 038, 063
macro_rules! cut {
    ($($test:ident: $operation:ident,)*) => {
        mod and_sent_again_by_the_client {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    cut_at_each_point(Operation::$operation, 3).await;
                }
            )*
        }

        mod and_repeated_by_the_caller {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    cut_at_each_point(Operation::$operation, 1).await;
                }
            )*
        }
    };
}
cut! {
    a_first_claim_that_is_cut_anywhere_is_claimed_once: FirstClaim,
    a_repeated_claim_that_is_cut_anywhere_is_claimed_again: RepeatedClaim,
    a_replay_that_is_cut_anywhere_is_a_replay: Replay,
    a_conflict_that_is_cut_anywhere_is_a_conflict: Conflict,
    a_takeover_that_is_cut_anywhere_happens_once: Takeover,
    a_claim_after_a_release_that_is_cut_anywhere_happens_once: ClaimAfterRelease,
    a_completion_that_is_cut_anywhere_is_recorded_once: Complete,
    a_release_that_is_cut_anywhere_is_a_release: Release,
    a_forget_that_is_cut_anywhere_is_a_forget: Forget,
    a_hold_that_is_cut_anywhere_is_a_hold: Hold,
    a_renewal_that_is_cut_anywhere_is_a_renewal: Renew,
    a_checkpoint_that_is_cut_anywhere_keeps_its_first_value: Checkpoint,
    a_resolve_that_is_cut_anywhere_happens_once: Resolve,
    a_read_that_is_cut_anywhere_is_a_read: Read,
    a_wait_that_is_cut_anywhere_ends: Wait,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_again_and_again_is_unavailable_and_works_when_that_ends() {
    let place = Place::new("cut_always");
    let direct = place.open().await;
    let proxy = Proxy::start(&place.url);
    let store = place.builder_through(&proxy.url_through(&place.url)).timeout(LIMIT).build().unwrap();
    for cut in CUTS {
        let name = |what: &str| format!("{cut:?} {what}");
        let owner = own(&direct, &claim_of(&name("done"))).await;
        let first = claim_of(&name("first"));

        proxy.arm(Fault::new(cut).always());
        assert_unavailable(store.claim(&first).await);
        assert_unavailable(store.complete(&owner, &Response::new(200), retention()).await);
        assert_unavailable(store.renew(&owner, LEASE).await);
        assert_unavailable(store.read(&scope(), &key("k")).await);
        assert!(proxy.strikes() > 0);
        proxy.disarm();

        // It connects again by itself.
        eventually("it works again", async || store.read(&scope(), &key("k")).await.is_ok()).await;
        assert_eq!(granted(claim(&store, &first).await).number(), 1);
        match store.complete(&owner, &response(), retention()).await.unwrap() {
            Fenced::Written(recorded) => assert!([Response::new(200), response()].contains(&recorded)),
            Fenced::Superseded => panic!("nobody else owned the key"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_connections_for_a_while_is_unavailable_and_then_is_not() {
    let place = Place::new("cut_refused");
    let proxy = Proxy::start(&place.url);
    let store = place.builder_through(&proxy.url_through(&place.url)).timeout(LIMIT).build().unwrap();
    proxy.refuse_connections();
    let first = claim_of("k-1");
    let error = assert_unavailable(store.claim(&first).await);
    assert!(error.to_string().to_lowercase().contains("refused"), "it says why: {error}");
    proxy.accept_connections();
    eventually("it is reached", async || store.claim(&first).await.is_ok()).await;
    let owner = own(&store, &first).await;
    proxy.refuse_connections();
    proxy.cut_connections();
    assert_unavailable(store.claim(&claim_of("k-2")).await);
    assert_unavailable(store.complete(&owner, &response(), retention()).await);
    proxy.accept_connections();
    eventually("it is reached", async || store.read(&scope(), &key("k")).await.is_ok()).await;
    complete(&store, &owner).await;
    assert_eq!(word(&claim(&store, &claim_of("k-1")).await), "Replay");
}
