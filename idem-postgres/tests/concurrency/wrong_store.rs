//! A store that looks up, decides, and then writes, as one would write it first: the suite's concurrent checks must
//! catch it, every time, or they prove nothing about the right one.

use std::{
    any::Any,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use idem_conformance::{Harness, Place, concurrency, run};
use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Key, Lapsed, ManualClock, Owner, Record, Resolve,
    Response, Retention, Scope, Snapshot, State, Store, StoreError, StoreErrorKind, Timestamp, TokenReused,
    async_trait,
    machine::{self, Decision},
};
use idem_postgres::{
    deadpool_postgres::{Manager, Pool},
    tokio_postgres::NoTls,
};
use test_servers::postgres;

use crate::common::rounds;

const BACKEND: &str = "wrong";

/// The machine, and nothing that keeps others out between the look and the write.
struct LooksUpDecidesUpserts {
    pool: Pool,
    table: String,
    clock: ManualClock,
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, BACKEND, "step", error.to_string()).with_source(error)
}

impl LooksUpDecidesUpserts {
    async fn open(place: &Place) -> Result<Self, StoreError> {
        let config = postgres().url().parse().map_err(failed)?;
        let pool = Pool::builder(Manager::new(config, NoTls)).max_size(8).build().map_err(failed)?;
        let table = format!("wrong_{}", place.name());
        let make = format!(
            "CREATE TABLE IF NOT EXISTS {table} (
                scope TEXT COLLATE \"C\", key TEXT COLLATE \"C\", record BYTEA NOT NULL, PRIMARY KEY (scope, key))"
        );
        // Two that make it at once are no part of what is wrong here.
        static MAKING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let _making = MAKING.lock().await;
        pool.get().await.map_err(failed)?.batch_execute(&make).await.map_err(failed)?;
        Ok(Self { pool, table, clock: place.clock() })
    }

    /// Looks up, decides, upserts: in three steps.
    async fn step<A>(
        &self,
        (scope, key): (&Scope, &Key),
        decide: impl FnOnce(Option<&Record>, Timestamp) -> Decision<A>,
    ) -> Result<(A, Option<Record>), StoreError> {
        let client = self.pool.get().await.map_err(failed)?;
        let select = format!("SELECT record FROM {} WHERE scope = $1 AND key = $2", self.table);
        let found = client.query_opt(&select, &[&scope.as_str(), &key.as_str()]).await.map_err(failed)?;
        let found = match found {
            Some(row) => {
                let bytes: Vec<u8> = row.try_get(0).map_err(failed)?;
                Some(Record::decode(bytes).map_err(|error| StoreError::undecodable(BACKEND, "step", error))?)
            }
            None => None,
        };
        let Decision { answer, write } = decide(found.as_ref(), self.clock.now());
        let Some(record) = write else { return Ok((answer, found)) };
        let upsert = format!(
            "INSERT INTO {} VALUES ($1, $2, $3) ON CONFLICT (scope, key) DO UPDATE SET record = EXCLUDED.record",
            self.table
        );
        client.execute(&upsert, &[&scope.as_str(), &key.as_str(), &record.encode()]).await.map_err(failed)?;
        Ok((answer, Some(record)))
    }

    /// All records, in their order.
    async fn all(&self) -> Result<Vec<Lapsed>, StoreError> {
        let client = self.pool.get().await.map_err(failed)?;
        let select = format!("SELECT scope, key, record FROM {} ORDER BY scope, key", self.table);
        let rows = client.query(&select, &[]).await.map_err(failed)?;
        let records = rows.iter().map(|row| {
            Ok(Lapsed {
                scope: Scope::from_stored(row.get(0)).map_err(failed)?,
                key: Key::new(row.get::<_, &str>(1)).map_err(failed)?,
                record: Record::decode(row.get::<_, Vec<u8>>(2)).map_err(failed)?,
            })
        });
        records.collect()
    }

    async fn remove(&self, found: impl Iterator<Item = Lapsed>, limit: NonZeroUsize) -> Result<usize, StoreError> {
        let client = self.pool.get().await.map_err(failed)?;
        let delete = format!("DELETE FROM {} WHERE scope = $1 AND key = $2", self.table);
        let mut removed = 0;
        for Lapsed { scope, key, .. } in found.take(limit.get()) {
            removed += client.execute(&delete, &[&scope.as_str(), &key.as_str()]).await.map_err(failed)?;
        }
        usize::try_from(removed).map_err(failed)
    }

    async fn write<A>(
        &self,
        owner: &Owner,
        decide: impl FnOnce(Option<&Record>, Timestamp) -> Decision<A>,
    ) -> Result<A, StoreError> {
        Ok(self.step((owner.scope(), owner.key()), decide).await?.0)
    }
}

#[async_trait]
impl Store for LooksUpDecidesUpserts {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        let decide = |found: Option<&Record>, now| match machine::claim(found, claim, now) {
            Ok(Decision { write, .. }) => Decision { answer: Ok((write.is_some(), now)), write },
            Err(TokenReused) => Decision { answer: Err(StoreError::token_reused(BACKEND)), write: None },
        };
        let (answer, record) = self.step((claim.scope(), claim.key()), decide).await?;
        let (is_written, now) = answer?;
        Ok(match record {
            Some(record) if is_written => ClaimRow::Written(record),
            Some(record) => ClaimRow::Found { record, now: Some(now) },
            None => ClaimRow::Busy { seen: None },
        })
    }

    async fn complete(&self, owner: &Owner, with: &Response, keep: Retention) -> Result<Fenced<Response>, StoreError> {
        self.write(owner, |found, now| machine::complete(found, owner, with, keep, now)).await
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.write(owner, |found, now| machine::release(found, owner, now)).await
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.write(owner, |found, now| machine::forget(found, owner, now)).await
    }

    async fn hold(&self, owner: &Owner, keep: Retention) -> Result<Fenced<()>, StoreError> {
        self.write(owner, |found, now| machine::hold(found, owner, keep, now)).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        self.write(owner, |found, now| machine::renew(found, owner, lease, now)).await
    }

    async fn checkpoint(&self, owner: &Owner, note: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        self.write(owner, |found, now| machine::checkpoint(found, owner, note, now)).await
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        let place = (resolve.scope(), resolve.key());
        Ok(match self.step(place, |found, now| machine::resolve(found, resolve, now)).await? {
            (Fenced::Written(()), Some(record)) => Fenced::Written(record),
            _ => Fenced::Superseded,
        })
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        let (now, found) = self.step((scope, key), |_, now| Decision { answer: now, write: None }).await?;
        Ok(found.filter(|record| record.is_live(now)).map(|record| Snapshot { record, now }))
    }

    async fn wait(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
    ) -> Result<Option<Snapshot>, StoreError> {
        let end = tokio::time::Instant::now() + at_most;
        loop {
            let found = self.read(scope, key).await?;
            let goes_on = found
                .as_ref()
                .is_some_and(|Snapshot { record, .. }| record.attempt() == seen && record.state == State::InProgress);
            if !goes_on || tokio::time::Instant::now() >= end {
                return Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        let now = self.clock.now();
        self.remove(self.all().await?.into_iter().filter(|found| !found.record.is_live(now)), limit).await
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        let now = self.clock.now();
        let waits = |record: &Record| record.state == State::Held || record.is_lapsed(now);
        let waiting = self.all().await?.into_iter().filter(|Lapsed { scope, key, record }| {
            record.is_live(now) && waits(record) && after.is_none_or(|after| (scope, key) > after)
        });
        Ok(waiting.take(limit.get()).collect())
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.remove(self.all().await?.into_iter().filter(|found| found.scope == *scope), limit).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// What a check says about the store. Fails if it says nothing.
fn finding(name: &str, check: impl AsyncFnOnce(&Harness) + Send + 'static) -> String {
    let harness = Harness::new(async |place: Place| LooksUpDecidesUpserts::open(&place).await).durable();
    let caught = catch_unwind(AssertUnwindSafe(|| run(name, harness, check)));
    let panicked: Box<dyn Any + Send> = caught.expect_err("the check must catch the wrong store, and did not");
    let text = panicked.downcast_ref::<String>().cloned();
    text.or_else(|| panicked.downcast_ref::<&str>().map(|text| (*text).to_owned())).expect("a panic has a message")
}

/// The words are what it says, one of these.
macro_rules! caught {
    ($($check:ident: $words:literal,)*) => {
        /// One test for each check that must catch it, every time.
        mod caught {$(
            #[test]
            fn $check() {
                for round in 0..super::rounds(4, 20) {
                    let finding = super::finding(stringify!($check), async |harness: &super::Harness| {
                        super::concurrency::$check(harness).await;
                    });
                    let said = $words.split('|').any(|words| finding.contains(words));
                    assert!(said, "round {round}: caught, but not for its mistake:\n{finding}");
                }
            }
        )*}
    };
}
caught! {
    of_many_claims_of_one_key_at_once_exactly_one_is_claimed: "exactly one must be Claimed",
    of_many_requests_under_one_key_at_once_exactly_one_is_claimed_and_the_others_are_reuse: "one must be Claimed",
    of_many_claims_of_a_lapsed_record_at_once_exactly_one_takes_it_over: "exactly one must be TakenOver",
    of_many_claims_of_a_released_record_at_once_exactly_one_is_claimed: "exactly one must be Claimed",
    of_many_resolvers_of_one_record_at_once_exactly_one_gets_it: "exactly one must get it",
    of_many_completions_by_one_attempt_one_is_recorded_and_all_are_answered_with_it: "the one that was recorded",
    of_many_checkpoints_of_one_name_at_once_one_is_kept_and_all_are_answered_with_it: "kept first",
    a_completion_that_meets_takeovers_is_stored_or_superseded_and_never_both: "must be stored and replayed to all, or superseded",
    a_key_that_is_claimed_and_released_at_once_has_one_owner_at_a_time_and_no_gap_in_its_numbers:
        "Nobody may be told Claimed while another|A release by the owner must be Written",
}

/// What is not concurrent it does right: it is caught for its gap alone.
#[test]
fn the_wrong_store_does_right_what_is_not_concurrent() {
    let harness = || Harness::new(async |place: Place| LooksUpDecidesUpserts::open(&place).await).durable();
    run("agreement", harness(), async |harness: &Harness| {
        idem_conformance::agreement::any_sequence_of_operations_is_answered_and_kept_as_the_machine_says(harness).await;
    });
    run("different keys", harness(), async |harness: &Harness| {
        concurrency::claims_of_different_keys_at_once_are_all_claimed(harness).await;
    });
}
