use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use bytes::Bytes;

use super::*;
use crate::{Checkpoint, Checkpointed, Fingerprint, Key, Lapsed, Retention, Scope, Snapshot, Token};

const NOW: Timestamp = Timestamp::from_millis(1_000);

/// A store that gives the rows that a test wants to see judged, right or wrong, and counts renewals.
struct Giving {
    claim: ClaimRow,
    resolve: Fenced<Record>,
    renew: Fenced<()>,
    renewals: Arc<Mutex<Vec<Owner>>>,
}

fn giving(claim: ClaimRow) -> Giving {
    Giving { claim, resolve: Fenced::Superseded, renew: Fenced::Written(()), renewals: Arc::default() }
}

fn not_asked<T>() -> Result<T, StoreError> {
    Err(StoreError::new(StoreErrorKind::Unavailable, "giving", "other", "no test asks for this"))
}

#[async_trait]
impl Store for Giving {
    fn backend(&self) -> &'static str {
        "giving"
    }

    async fn claim(&self, _: &Claim) -> Result<ClaimRow, StoreError> {
        Ok(self.claim.clone())
    }

    async fn complete(&self, _: &Owner, _: &Response, _: Retention) -> Result<Fenced<Response>, StoreError> {
        not_asked()
    }

    async fn release(&self, _: &Owner) -> Result<Fenced<()>, StoreError> {
        not_asked()
    }

    async fn forget(&self, _: &Owner) -> Result<Fenced<()>, StoreError> {
        not_asked()
    }

    async fn hold(&self, _: &Owner, _: Retention) -> Result<Fenced<()>, StoreError> {
        not_asked()
    }

    async fn renew(&self, owner: &Owner, _: Duration) -> Result<Fenced<()>, StoreError> {
        self.renewals.lock().unwrap().push(owner.clone());
        Ok(self.renew.clone())
    }

    async fn checkpoint(&self, _: &Owner, _: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        not_asked()
    }

    async fn resolve(&self, _: &Resolve) -> Result<Fenced<Record>, StoreError> {
        Ok(self.resolve.clone())
    }

    async fn read(&self, _: &Scope, _: &Key) -> Result<Option<Snapshot>, StoreError> {
        not_asked()
    }

    async fn wait(&self, _: &Scope, _: &Key, _: AttemptId, _: Duration) -> Result<Option<Snapshot>, StoreError> {
        not_asked()
    }

    async fn sweep(&self, _: NonZeroUsize) -> Result<usize, StoreError> {
        not_asked()
    }

    async fn lapsed(&self, _: Option<(&Scope, &Key)>, _: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        not_asked()
    }

    async fn purge(&self, _: &Scope, _: NonZeroUsize) -> Result<usize, StoreError> {
        not_asked()
    }

    async fn check(&self) -> Result<(), StoreError> {
        not_asked()
    }
}

fn token(n: u8) -> Token {
    Token::from_bytes([n; 16])
}

fn claim_of(n: u8) -> Claim {
    let fingerprint = Fingerprint::builder().part("body", "a").build().unwrap();
    Claim::new(Scope::global(), Key::new("k").unwrap(), token(n), fingerprint)
}

/// What attempt 3, under token 1, took over, with a checkpoint.
fn taken_over() -> Record {
    let first = machine::claim(None, &claim_of(1), NOW).unwrap().write.unwrap();
    let checkpoints = Checkpoints::default().with("charge", &Bytes::from_static(b"ch_1"));
    Record { number: 3, origin: Origin::Takeover, repeat: true, checkpoints, ..first }
}

fn done() -> Record {
    Record { state: State::Done(Response::new(201)), settled: Some(Timestamp::from_millis(900)), ..taken_over() }
}

fn found(record: Record) -> ClaimRow {
    ClaimRow::Found { record, now: Some(NOW) }
}

async fn refused(store: &Giving, by: &Claim) -> StoreErrorKind {
    claim(store, by).await.unwrap_err().kind()
}

#[tokio::test]
async fn a_written_row_grants_the_attempt_that_it_names() {
    let answer = claim(&giving(ClaimRow::Written(taken_over())), &claim_of(1)).await.unwrap();
    let Answer::TakenOver(grant) = answer else { panic!("{answer:?}") };
    assert_eq!(grant.owner().attempt(), AttemptId { token: token(1), number: 3 });
    assert_eq!((grant.owner().scope(), grant.owner().key().as_str()), (&Scope::global(), "k"));
    assert_eq!((grant.number(), grant.origin(), grant.is_repeat()), (3, Origin::Takeover, true));
    assert_eq!(grant.checkpoints().find("charge").unwrap(), "ch_1");
    assert_eq!(grant.lease_end(), taken_over().lease_end);

    let first = Record { number: 1, origin: Origin::First, repeat: false, ..taken_over() };
    let answer = claim(&giving(ClaimRow::Written(first)), &claim_of(1)).await.unwrap();
    let Answer::Claimed(grant) = answer else { panic!("{answer:?}") };
    assert_eq!((grant.number(), grant.is_repeat()), (1, false));
}

#[test]
fn the_row_for_a_decision_is_what_was_written_or_what_was_found_and_when_it_was_judged() {
    let row = |found: Option<Record>, by: u8| {
        let decision = machine::claim(found.as_ref(), &claim_of(by), NOW).unwrap();
        ClaimRow::decided(found, decision, NOW)
    };
    let expired = Record { expiry: NOW, ..taken_over() };
    for found in [None, Some(expired)] {
        assert!(matches!(row(found, 2), ClaimRow::Written(record) if record.attempt().number == 1));
    }
    for found in [taken_over(), done()] {
        match row(Some(found.clone()), 2) {
            ClaimRow::Found { record, now } => assert_eq!((record, now), (found, Some(NOW))),
            other => panic!("{other:?}"),
        }
    }
    // A decision that belongs to another record.
    let of_another = machine::claim(Some(&done()), &claim_of(2), NOW).unwrap();
    assert!(matches!(ClaimRow::decided(None, of_another, NOW), ClaimRow::Busy { seen: None }));
}

#[tokio::test]
async fn a_written_row_that_is_not_the_claims_is_refused() {
    for row in [Record { token: token(2), ..taken_over() }, Record { state: State::Released, ..taken_over() }, done()] {
        assert_eq!(refused(&giving(ClaimRow::Written(row)), &claim_of(1)).await, StoreErrorKind::Contract);
    }
}

#[tokio::test]
async fn a_row_in_progress_under_the_claims_own_token_is_owned_only_once_it_is_renewed() {
    let store = giving(found(taken_over()));
    let answer = claim(&store, &claim_of(1)).await.unwrap();
    let Answer::TakenOver(grant) = answer else { panic!("{answer:?}") };
    assert_eq!(*store.renewals.lock().unwrap(), [grant.owner().clone()]);

    let lost = Giving { renew: Fenced::Superseded, ..giving(found(taken_over())) };
    assert!(matches!(claim(&lost, &claim_of(1)).await.unwrap(), Answer::Superseded));

    let without_now = giving(ClaimRow::Found { record: taken_over(), now: None });
    assert!(matches!(claim(&without_now, &claim_of(1)).await.unwrap(), Answer::TakenOver(_)));
}

#[tokio::test]
async fn a_found_row_is_judged_by_the_machine() {
    let answer = claim(&giving(found(done())), &claim_of(2)).await.unwrap();
    let Answer::Replay { response, stored_at } = answer else { panic!("{answer:?}") };
    assert_eq!((response, stored_at.as_millis()), (Response::new(201), 900));

    let answer = claim(&giving(found(taken_over())), &claim_of(2)).await.unwrap();
    let Answer::Conflict { left: Some(left), seen: Some(seen) } = answer else { panic!("{answer:?}") };
    assert_eq!((left, seen), (Duration::from_secs(30), taken_over().attempt()));

    let held = Record { state: State::Held, ..taken_over() };
    assert!(matches!(claim(&giving(found(held.clone())), &claim_of(2)).await.unwrap(), Answer::Unknown));
    assert!(matches!(claim(&giving(found(held)), &claim_of(1)).await.unwrap(), Answer::Superseded));

    let other = Fingerprint::builder().part("body", "other").build().unwrap();
    let by = Claim::new(Scope::global(), Key::new("k").unwrap(), token(2), other.clone());
    let answer = claim(&giving(found(taken_over())), &by).await.unwrap();
    let Answer::Reuse { differences } = answer else { panic!("{answer:?}") };
    assert_eq!(differences.to_string(), "body length differs: 1 -> 5");

    let by = Claim::new(Scope::global(), Key::new("k").unwrap(), token(1), other);
    assert_eq!(refused(&giving(found(taken_over())), &by).await, StoreErrorKind::Contract);
}

#[tokio::test]
async fn a_record_that_no_clock_decides_may_come_without_an_instant_and_one_in_progress_may_not() {
    let without_now = |record| giving(ClaimRow::Found { record, now: None });
    assert!(matches!(claim(&without_now(done()), &claim_of(2)).await.unwrap(), Answer::Replay { .. }));
    assert_eq!(refused(&without_now(taken_over()), &claim_of(2)).await, StoreErrorKind::Contract);
}

#[tokio::test]
async fn a_found_row_that_had_to_be_written_is_refused() {
    let released = Record { state: State::Released, ..taken_over() };
    let lapsed = Record { lease_end: NOW, ..taken_over() };
    let expired = Record { expiry: NOW, ..done() };
    for row in [released, lapsed, expired] {
        assert_eq!(refused(&giving(found(row)), &claim_of(2)).await, StoreErrorKind::Contract);
    }
}

#[tokio::test]
async fn a_busy_row_is_a_conflict_of_unknown_length() {
    let answer = claim(&giving(ClaimRow::Busy { seen: None }), &claim_of(2)).await.unwrap();
    assert!(matches!(answer, Answer::Conflict { left: None, seen: None }), "{answer:?}");
}

#[tokio::test]
async fn a_resolved_row_grants_the_resolver_and_no_other_row_does() {
    let by = Resolve::new(Scope::global(), Key::new("k").unwrap(), taken_over().attempt(), token(1));
    let with = |row| Giving { resolve: row, ..giving(ClaimRow::Busy { seen: None }) };
    let Fenced::Written(grant) = resolve(&with(Fenced::Written(taken_over())), &by).await.unwrap() else { panic!() };
    assert_eq!(grant.owner().attempt(), taken_over().attempt());
    assert!(matches!(resolve(&with(Fenced::Superseded), &by).await.unwrap(), Fenced::Superseded));
    for row in [Record { token: token(2), ..taken_over() }, done()] {
        let error = resolve(&with(Fenced::Written(row)), &by).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Contract);
    }
}
