//! The store of the guide that compares and swaps passes the suite, and the guide shows its step.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use idem_conformance::{Harness, Place, Shared};
use idem_core::{machine::Decision, *};

/// What the database offers.
trait Conditional {
    /// The stored bytes, from where writes are decided (no replica, no cache), and the database's clock, read before them.
    async fn find(&self, name: &str) -> Result<(Option<Vec<u8>>, Timestamp), StoreError>;

    /// Writes `new` if what is stored is exactly `old`, in one atomic step. Says whether it was.
    async fn swap(&self, name: &str, old: Option<&[u8]>, new: &[u8]) -> Result<bool, StoreError>;
}

/// Looks, lets the machine decide, and writes if nobody wrote in between; else it looks again.
async fn step<A>(
    database: &impl Conditional,
    operation: &'static str,
    name: &str,
    decide: impl Fn(Option<&Record>, Timestamp) -> Result<Decision<A>, StoreError>,
) -> Result<(Option<Record>, Decision<A>, Timestamp), StoreError> {
    for _ in 0..64 {
        let (bytes, now) = database.find(name).await?;
        let found = bytes.clone().map(Record::decode).transpose();
        let found = found.map_err(|error| StoreError::undecodable("mine", operation, error))?;
        let decision = decide(found.as_ref(), now)?;
        let is_done = match &decision.write {
            Some(record) => database.swap(name, bytes.as_deref(), &record.encode()).await?,
            None => true,
        };
        if is_done {
            return Ok((found, decision, now));
        }
    }
    let message = "others kept writing this record in between; try again";
    Err(StoreError::new(StoreErrorKind::Unavailable, "mine", operation, message))
}

async fn claim(database: &impl Conditional, name: &str, claim: &Claim) -> Result<ClaimRow, StoreError> {
    let decide = |found: Option<&Record>, now| {
        machine::claim(found, claim, now).map_err(|TokenReused| StoreError::token_reused("mine"))
    };
    let (found, decision, now) = step(database, "claim", name, decide).await?;
    Ok(ClaimRow::decided(found, decision, now))
}

/// A database whose every call is one step, and which has no lock that a caller could hold.
#[derive(Default)]
struct Rows(Mutex<BTreeMap<String, Vec<u8>>>);

impl Rows {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove_if(&self, name: &str, old: &[u8]) -> bool {
        let mut rows = self.lock();
        let is_same = rows.get(name).is_some_and(|stored| stored == old);
        if is_same {
            rows.remove(name);
        }
        is_same
    }
}

struct Swapping {
    rows: Shared<Rows>,
    clock: ManualClock,
}

impl Conditional for Swapping {
    async fn find(&self, name: &str) -> Result<(Option<Vec<u8>>, Timestamp), StoreError> {
        let now = self.clock.now();
        let found = self.rows.lock().get(name).cloned();
        tokio::task::yield_now().await; // the way back: others write meanwhile
        Ok((found, now))
    }

    async fn swap(&self, name: &str, old: Option<&[u8]>, new: &[u8]) -> Result<bool, StoreError> {
        tokio::task::yield_now().await; // the way there
        let mut rows = self.rows.lock();
        let is_same = rows.get(name).map(Vec::as_slice) == old;
        if is_same {
            rows.insert(name.to_owned(), new.to_vec());
        }
        Ok(is_same)
    }
}

/// Neither may hold a control character, and this one sorts before all that they may hold.
fn name(scope: &Scope, key: &Key) -> String {
    format!("{}\0{}", scope.as_str(), key.as_str())
}

fn decode(operation: &'static str, bytes: &[u8]) -> Result<Record, StoreError> {
    Record::decode(bytes.to_vec()).map_err(|error| StoreError::undecodable("mine", operation, error))
}

impl Swapping {
    async fn settle<A>(
        &self,
        operation: &'static str,
        owner: &Owner,
        decide: impl Fn(Option<&Record>, Timestamp) -> Decision<A>,
    ) -> Result<A, StoreError> {
        let name = name(owner.scope(), owner.key());
        Ok(step(self, operation, &name, |found, now| Ok(decide(found, now))).await?.1.answer)
    }

    /// Removes the first `limit` rows that are doomed, each if it is still what was looked at.
    fn remove(&self, limit: NonZeroUsize, is_doomed: impl Fn(&str, &[u8]) -> bool) -> usize {
        let rows = self.rows.lock().clone();
        let doomed = rows.iter().filter(|(name, bytes)| is_doomed(name, bytes));
        doomed.filter(|(name, bytes)| self.rows.remove_if(name, bytes)).take(limit.get()).count()
    }
}

#[async_trait]
impl Store for Swapping {
    fn backend(&self) -> &'static str {
        "mine"
    }

    async fn claim(&self, asked: &Claim) -> Result<ClaimRow, StoreError> {
        claim(self, &name(asked.scope(), asked.key()), asked).await
    }

    async fn complete(&self, owner: &Owner, with: &Response, keep: Retention) -> Result<Fenced<Response>, StoreError> {
        self.settle("complete", owner, |found, now| machine::complete(found, owner, with, keep, now)).await
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.settle("release", owner, |found, now| machine::release(found, owner, now)).await
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.settle("forget", owner, |found, now| machine::forget(found, owner, now)).await
    }

    async fn hold(&self, owner: &Owner, keep: Retention) -> Result<Fenced<()>, StoreError> {
        self.settle("hold", owner, |found, now| machine::hold(found, owner, keep, now)).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        self.settle("renew", owner, |found, now| machine::renew(found, owner, lease, now)).await
    }

    async fn checkpoint(&self, owner: &Owner, note: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        self.settle("checkpoint", owner, |found, now| machine::checkpoint(found, owner, note, now)).await
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        let name = name(resolve.scope(), resolve.key());
        let decide = |found: Option<&Record>, now| Ok(machine::resolve(found, resolve, now));
        let (_, decision, _) = step(self, "resolve", &name, decide).await?;
        Ok(decision.write.map_or(Fenced::Superseded, Fenced::Written))
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        let (found, now) = self.find(&name(scope, key)).await?;
        let record = found.map(|bytes| decode("read", &bytes)).transpose()?;
        Ok(record.filter(|record| record.is_live(now)).map(|record| Snapshot { record, now }))
    }

    async fn wait(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
    ) -> Result<Option<Snapshot>, StoreError> {
        let begun = Instant::now();
        loop {
            let found = self.read(scope, key).await?;
            let goes_on =
                found.as_ref().is_some_and(|s| s.record.attempt() == seen && s.record.state == State::InProgress);
            if !goes_on || begun.elapsed() >= at_most {
                return Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        let now = self.clock.now();
        Ok(self.remove(limit, |_, bytes| decode("sweep", bytes).is_ok_and(|record| !record.is_live(now))))
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        let (now, rows) = (self.clock.now(), self.rows.lock().clone());
        let after = after.map(|(scope, key)| name(scope, key));
        let mut lapsed = Vec::new();
        for (name, bytes) in rows.iter().filter(|(name, _)| after.as_ref().is_none_or(|after| *name > after)) {
            let record = decode("lapsed", bytes)?;
            let waits = record.is_live(now) && (record.state == State::Held || record.is_lapsed(now));
            if let Some((scope, key)) = name.split_once('\0')
                && let (Ok(scope), Ok(key)) = (Scope::from_stored(scope), Key::new(key))
                && waits
                && lapsed.len() < limit.get()
            {
                lapsed.push(Lapsed { scope, key, record });
            }
        }
        Ok(lapsed)
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        let is_of = |name: &str| name.split_once('\0').is_some_and(|(of, _)| of == scope.as_str());
        let mut removed = 0;
        while let Some(left) = NonZeroUsize::new(limit.get() - removed)
            && self.rows.lock().keys().any(|name| is_of(name))
        {
            // A row that is written in between stays: it is the scope's all the same, and is looked at again.
            removed += self.remove(left, |name, _| is_of(name));
        }
        Ok(removed)
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn harness() -> Harness {
    Harness::new(async |place: Place| {
        Ok::<_, String>(Swapping { rows: place.shared(Rows::default), clock: place.clock() })
    })
}

idem_conformance::suite!(harness());

#[test]
fn the_guide_shows_this_step() {
    let (guide, this) = (include_str!("../../../docs/write-your-own-store.md"), include_str!("compare_and_swap.rs"));
    let shown =
        this.split_once("/// What the database offers.").and_then(|(_, rest)| rest.split_once("/// A database"));
    let (shown, _) = shown.expect("the step comes first");
    assert!(
        guide.contains(shown.trim()),
        "copy the step of tests/compare_and_swap.rs into docs/write-your-own-store.md"
    );
}
