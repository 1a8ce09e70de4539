//! The connection dies at each point of each operation: before a request, when it was executed and its reply is lost,
//! within the reply.
//!
//! The points are all requests of the conversation: those of a store that has yet to connect and to prepare, and of one
//! whose connections are there.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use idem_core::{
    Checkpoint, Checkpointed, Claim, Fenced, Owner, Resolve, Response, State, Store, StoreError, StoreErrorKind,
};
use idem_postgres::PostgresStore;
use test_servers::{Cut, Fault, Proxy};

use crate::common::{
    LEASE, Place, assert_unavailable, claim, claim_of, complete, granted, is_full, key, own, record, response,
    retention, scope, token, word,
};

const CUTS: [Cut; 4] = [Cut::BeforeRequest, Cut::AfterRequest, Cut::BeforeReply, Cut::WithinReply];

/// More requests than any operation takes, to connect, make the table and prepare included.
const MANY: u64 = 40;

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
    async fn prepare(self, place: &Place, store: &PostgresStore, name: &str) -> Subject {
        let claim = claim_of(name);
        let mut subject = Subject { claim: claim_of(name), owner: None, resolve: None };
        match self {
            Self::FirstClaim => return subject,
            Self::RepeatedClaim => subject.claim = claim.clone(),
            _ => {}
        }
        let owner = own(store, &claim).await;
        match self {
            Self::Replay | Self::Wait => complete(store, &owner).await,
            Self::Takeover => {
                place.clock.advance(LEASE);
            }
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

    async fn run(self, store: &PostgresStore, subject: &Subject) -> Result<String, StoreError> {
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

/// Cuts the operation at each request of the conversation, in each way.
async fn cut_at_each_point(operation: Operation) {
    let place = Place::new(&format!("cut_{operation:?}").to_lowercase());
    let direct = place.open().await;
    let proxy = Proxy::start(&place.url);
    let url = proxy.url_through(&place.url);
    let mut cured = 0;
    // Statements without names are conversations of their own.
    let modes: &[bool] = if is_full() || operation == Operation::Takeover { &[false, true] } else { &[false] };
    for (is_warm, is_unnamed) in [false, true].into_iter().flat_map(|warm| modes.iter().map(move |mode| (warm, *mode)))
    {
        let url = if is_unnamed { format!("{url}?pgbouncer=true") } else { url.clone() };
        for cut in CUTS {
            let mut struck_at = 0;
            for point in 0..MANY {
                let at = format!("{operation:?}, {cut:?} of request {point}, warm: {is_warm}, unnamed: {is_unnamed}");
                let name = format!("{cut:?} {point} {is_warm} {is_unnamed}");
                let subject = operation.prepare(&place, &direct, &name).await;
                let store = place.builder_through(&url).build().unwrap();
                if is_warm {
                    let warming = operation.prepare(&place, &direct, &format!("{name} warm")).await;
                    operation.run(&store, &warming).await.unwrap();
                }
                proxy.arm(Fault::new(cut).after(point));
                let answer = operation.run(&store, &subject).await;
                let strikes = proxy.strikes();
                proxy.disarm();
                match answer {
                    Ok(answer) => {
                        assert_eq!(answer, operation.answer(), "{at}");
                        cured += strikes;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{at}: {error}");
                        assert_eq!(strikes, 1, "{at}: {error}");
                        assert!(!is_warm, "a second try must have answered: {at}: {error}");
                    }
                }
                // Without a restart, and no second time.
                assert_eq!(operation.run(&store, &subject).await.unwrap(), operation.answer(), "again, {at}");
                let left = record(&direct, &name).await.unwrap();
                assert_eq!((left.state, left.number), operation.left(), "{at}");
                if strikes == 0 {
                    break;
                }
                struck_at += 1;
            }
            assert!((1..MANY).contains(&struck_at), "{operation:?}, {cut:?}: struck at {struck_at} points");
        }
    }
    assert!(cured >= CUTS.len() as u64, "{operation:?}: {cured} cuts were made good by the store itself");
}

macro_rules! cut {
    ($($test:ident: $operation:ident,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            cut_at_each_point(Operation::$operation).await;
        }
    )*};
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

/// Claims of a group: new keys, keys that are done, and keys whose lease lapsed.
struct Group {
    claims: Vec<Claim>,
    answers: Vec<(&'static str, u32)>,
}

impl Group {
    async fn prepare(place: &Place, store: &PostgresStore, name: &str) -> Self {
        let mut lapsed = Vec::new();
        for number in 0..3 {
            let name = format!("{name} lapsed {number}");
            own(store, &claim_of(&name)).await;
            lapsed.push(claim_of(&name));
        }
        place.clock.advance(LEASE);
        let mut group = Self { claims: Vec::new(), answers: Vec::new() };
        for (number, lapsed) in lapsed.into_iter().enumerate() {
            let done = format!("{name} done {number}");
            let owner = own(store, &claim_of(&done)).await;
            complete(store, &owner).await;
            for (claim, answer) in [
                (claim_of(&format!("{name} new {number}")), ("Claimed", 1)),
                (claim_of(&done), ("Replay", 1)),
                (lapsed, ("TakenOver", 2)),
            ] {
                group.claims.push(claim);
                group.answers.push(answer);
            }
        }
        group
    }

    async fn run(&self, store: &PostgresStore) -> Vec<Result<&'static str, StoreError>> {
        let claims = self.claims.iter().map(async |claim| idem_core::claim(store, claim).await);
        join_all(claims).await.into_iter().map(|answer| answer.map(|answer| word(&answer))).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_claims_that_is_cut_anywhere_is_answered_claim_by_claim() {
    let place = Place::new("cut_group");
    let direct = place.open().await;
    let proxy = Proxy::start(&place.url);
    let store = place.builder_through(&proxy.url_through(&place.url)).connect().await.unwrap();
    let mut grouped = 0;
    for cut in CUTS {
        for point in 0..MANY {
            let at = format!("{cut:?} of request {point}");
            let group = Group::prepare(&place, &direct, &at).await;
            // Its connection is there, so that what is cut is the claims.
            own(&store, &claim_of(&format!("{at} warm"))).await;
            proxy.take_requests();
            proxy.arm(Fault::new(cut).after(point));
            let answers = group.run(&store).await;
            let strikes = proxy.strikes();
            proxy.disarm();
            let is_group = |request: &test_servers::Request| request.runs.iter().any(|sql| sql.contains("unnest("));
            grouped += proxy.take_requests().iter().filter(|request| is_group(request)).count();
            for (answer, (expected, _)) in answers.into_iter().zip(&group.answers) {
                // One cut is made good by the second try.
                assert_eq!(answer.expect(&at), *expected, "{at}");
            }
            for (claim, (expected, number)) in group.claims.iter().zip(&group.answers) {
                let answer = self::claim(&store, claim).await;
                assert_eq!(word(&answer), *expected, "again, {at}");
                let left = record(&direct, claim.key().as_str()).await.unwrap();
                assert_eq!(left.number, *number, "{at}");
            }
            if strikes == 0 {
                assert!(point >= 2, "{at}: a first claim and a group were cut");
                break;
            }
        }
    }
    assert!(grouped > 8, "{grouped} groups");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_again_and_again_is_unavailable_and_works_when_that_ends() {
    let place = Place::new("cut_always");
    let direct = place.open().await;
    let proxy = Proxy::start(&place.url);
    let store = place.builder_through(&proxy.url_through(&place.url)).connect().await.unwrap();
    for cut in CUTS {
        let name = |what: &str| format!("{cut:?} {what}");
        let owner = own(&direct, &claim_of(&name("done"))).await;
        let group = Group::prepare(&place, &direct, &name("group")).await;
        let first = claim_of(&name("first"));

        proxy.arm(Fault::new(cut).always());
        assert_unavailable(store.claim(&first).await);
        assert_unavailable(store.complete(&owner, &Response::new(200), retention()).await);
        assert_unavailable(store.renew(&owner, LEASE).await);
        assert_unavailable(store.read(&scope(), &key("k")).await);
        for answer in group.run(&store).await {
            assert_unavailable(answer);
        }
        assert!(proxy.strikes() > 0);
        proxy.disarm();

        assert_eq!(granted(claim(&store, &first).await).number(), 1);
        match store.complete(&owner, &response(), retention()).await.unwrap() {
            Fenced::Written(recorded) => assert!([Response::new(200), response()].contains(&recorded)),
            Fenced::Superseded => panic!("nobody else owned the key"),
        }
        let answers = group.run(&store).await.into_iter().map(Result::unwrap);
        assert!(answers.eq(group.answers.iter().map(|(expected, _)| *expected)), "{cut:?}");
    }
}

#[tokio::test]
async fn a_server_that_refuses_connections_for_a_while_is_unavailable_and_then_is_not() {
    let place = Place::new("cut_refused");
    place.open().await;
    let proxy = Proxy::start(&place.url);
    let store = place.builder_through(&proxy.url_through(&place.url)).build().unwrap();
    proxy.refuse_connections();
    let first = claim_of("k-1");
    assert_unavailable(store.claim(&first).await);
    proxy.accept_connections();
    let owner = own(&store, &first).await;
    proxy.refuse_connections();
    proxy.cut_connections();
    assert_unavailable(store.claim(&claim_of("k-2")).await);
    assert_unavailable(store.complete(&owner, &response(), retention()).await);
    proxy.accept_connections();
    complete(&store, &owner).await;
    assert_eq!(word(&claim(&store, &claim_of("k-1")).await), "Replay");
}
