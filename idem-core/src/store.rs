//! The contract between idem and whatever keeps its records.

use std::{num::NonZeroUsize, time::Duration};

use async_trait::async_trait;

use crate::{
    AttemptId, Checkpoint, Checkpointed, Claim, Fenced, Key, Lapsed, Owner, Record, Resolve, Response, Retention,
    Scope, Snapshot, StoreError, Timestamp,
    machine::{Decision, Verdict},
};

/// Keeps records and lets one attempt at a time own each.
///
/// Conflict, Reuse, Replay, Unknown and Superseded are answers; errors are failures of the store. Callers use
/// [`claim`](crate::claim) and [`resolve`](crate::resolve), which turn rows into answers, and the other methods as they
/// are.
///
/// # To ensure correctness
///
/// - **Atomic.** Each method that writes is one atomic step per record: find, decide as [`machine`](crate::machine)
///   does, write. No other operation on that record, from any handle or process, comes in between. A look-up followed
///   by an insert is the bug that this project exists to prevent.
/// - **Durable before it is answered**, as far as the store keeps anything: an answer that a write happened means that
///   a crash right after it does not undo it.
/// - **One record, one place.** Where a record lives is a pure function of scope and key: two handles of one store that
///   look in different places are two stores.
/// - **The store's time.** Leases and retentions are judged by one clock, the store's, in whole milliseconds; an
///   interval is live while `now < end`. An expired record is absent, swept or not.
/// - **Whole.** Every field of a [`Record`] is kept, with exactly its bytes. A record of a newer format is an error of
///   kind configuration.
/// - **Late and twice.** A future that is dropped may leave its operation applied, not applied, or applied later; an
///   operation may be repeated after an error. Neither may disturb another operation or record, and no resource may be
///   left taken.
/// - **Bounded.** Each method ends by itself, within a time limit of the store's own, with an error of kind unavailable
///   where it can't answer.
///
/// # A whole store
///
/// One lock around *find, decide, write* is all that atomic asks for. It keeps records in memory, as bytes, and judges
/// by a clock that its test moves; the crate `idem-conformance` has the suite that it must pass. How to get from here to
/// a store of your own, step by step, is in [Write your own store], with a store on a file as its example.
///
/// [Write your own store]: https://github.com/idem-rs/idem/blob/main/docs/write-your-own-store.md
///
/// ```
/// use std::{
///     collections::BTreeMap,
///     num::NonZeroUsize,
///     sync::{Mutex, MutexGuard, PoisonError},
///     time::Duration,
/// };
///
/// use idem_core::{machine::{self, Decision}, *};
///
/// type Records = BTreeMap<(Scope, Key), Vec<u8>>;
///
/// struct TinyStore {
///     records: Mutex<Records>,
///     clock: ManualClock,
/// }
///
/// impl TinyStore {
///     fn lock(&self) -> MutexGuard<'_, Records> {
///         self.records.lock().unwrap_or_else(PoisonError::into_inner)
///     }
///
///     /// Finds, decides and writes under the lock.
///     fn step<A>(
///         &self,
///         operation: &'static str,
///         (scope, key): (&Scope, &Key),
///         decide: impl FnOnce(Option<&Record>, Timestamp) -> Decision<A>,
///     ) -> Result<Decision<A>, StoreError> {
///         let mut records = self.lock();
///         let place = (scope.clone(), key.clone());
///         let found = match records.get(&place) {
///             Some(bytes) => Some(decode(operation, bytes)?),
///             None => None,
///         };
///         let decision = decide(found.as_ref(), self.clock.now());
///         if let Some(record) = &decision.write {
///             records.insert(place, record.encode());
///         }
///         Ok(decision)
///     }
/// }
///
/// fn decode(operation: &'static str, bytes: &[u8]) -> Result<Record, StoreError> {
///     Record::decode(bytes.to_vec()).map_err(|error| StoreError::undecodable("tiny", operation, error))
/// }
///
/// fn of(owner: &Owner) -> (&Scope, &Key) {
///     (owner.scope(), owner.key())
/// }
///
/// #[async_trait]
/// impl Store for TinyStore {
///     fn backend(&self) -> &'static str {
///         "tiny"
///     }
///
///     async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
///         let mut records = self.lock();
///         let (place, now) = ((claim.scope().clone(), claim.key().clone()), self.clock.now());
///         let found = match records.get(&place) {
///             Some(bytes) => Some(decode("claim", bytes)?),
///             None => None,
///         };
///         let decision = machine::claim(found.as_ref(), claim, now)
///             .map_err(|TokenReused| StoreError::token_reused("tiny"))?;
///         if let Some(record) = &decision.write {
///             records.insert(place, record.encode());
///         }
///         Ok(ClaimRow::decided(found, decision, now))
///     }
///
///     async fn complete(&self, owner: &Owner, with: &Response, keep: Retention) -> Result<Fenced<Response>, StoreError> {
///         Ok(self.step("complete", of(owner), |found, now| machine::complete(found, owner, with, keep, now))?.answer)
///     }
///
///     async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
///         Ok(self.step("release", of(owner), |found, now| machine::release(found, owner, now))?.answer)
///     }
///
///     async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
///         Ok(self.step("forget", of(owner), |found, now| machine::forget(found, owner, now))?.answer)
///     }
///
///     async fn hold(&self, owner: &Owner, keep: Retention) -> Result<Fenced<()>, StoreError> {
///         Ok(self.step("hold", of(owner), |found, now| machine::hold(found, owner, keep, now))?.answer)
///     }
///
///     async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
///         Ok(self.step("renew", of(owner), |found, now| machine::renew(found, owner, lease, now))?.answer)
///     }
///
///     async fn checkpoint(&self, owner: &Owner, note: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
///         Ok(self.step("checkpoint", of(owner), |found, now| machine::checkpoint(found, owner, note, now))?.answer)
///     }
///
///     async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
///         let place = (resolve.scope(), resolve.key());
///         let decision = self.step("resolve", place, |found, now| machine::resolve(found, resolve, now))?;
///         Ok(decision.write.map_or(Fenced::Superseded, Fenced::Written))
///     }
///
///     async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
///         let (records, now) = (self.lock(), self.clock.now());
///         let Some(bytes) = records.get(&(scope.clone(), key.clone())) else { return Ok(None) };
///         let record = decode("read", bytes)?;
///         Ok(record.is_live(now).then_some(Snapshot { record, now }))
///     }
///
///     async fn wait(
///         &self,
///         scope: &Scope,
///         key: &Key,
///         seen: AttemptId,
///         at_most: Duration,
///     ) -> Result<Option<Snapshot>, StoreError> {
///         let mut polls_left = at_most.as_millis() / 10;
///         loop {
///             let found = self.read(scope, key).await?;
///             let goes_on = found.as_ref().is_some_and(|found| {
///                 found.record.attempt() == seen && found.record.state == State::InProgress
///             });
///             if !goes_on || polls_left == 0 {
///                 return Ok(found);
///             }
///             polls_left -= 1;
///             tokio::time::sleep(Duration::from_millis(10)).await;
///         }
///     }
///
///     async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
///         let (mut records, now) = (self.lock(), self.clock.now());
///         let expired = |bytes: &Vec<u8>| decode("sweep", bytes).is_ok_and(|record| !record.is_live(now));
///         let places: Vec<_> = records.iter().filter(|(_, bytes)| expired(bytes)).map(|(place, _)| place.clone()).collect();
///         Ok(places.iter().take(limit.get()).filter_map(|place| records.remove(place)).count())
///     }
///
///     async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
///         let (records, now) = (self.lock(), self.clock.now());
///         let mut lapsed = Vec::new();
///         for ((scope, key), bytes) in records.iter() {
///             let record = decode("lapsed", bytes)?;
///             let waits = record.state == State::Held || record.is_lapsed(now);
///             if waits && record.is_live(now) && after.is_none_or(|after| (scope, key) > after) {
///                 lapsed.push(Lapsed { scope: scope.clone(), key: key.clone(), record });
///             }
///         }
///         lapsed.truncate(limit.get());
///         Ok(lapsed)
///     }
///
///     async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
///         let mut records = self.lock();
///         let places: Vec<_> = records.keys().filter(|(of, _)| of == scope).take(limit.get()).cloned().collect();
///         Ok(places.iter().filter_map(|place| records.remove(place)).count())
///     }
///
///     async fn check(&self) -> Result<(), StoreError> {
///         Ok(()) // memory is always there
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = ManualClock::starting_at(Timestamp::from_millis(0));
/// let store = TinyStore { records: Mutex::default(), clock };
/// let fingerprint = Fingerprint::builder().part("body", "x").build()?;
/// let claim = |token| Claim::new(Scope::global(), Key::new("k").unwrap(), Token::from_bytes([token; 16]), fingerprint.clone());
///
/// let Answer::Claimed(grant) = idem_core::claim(&store, &claim(1)).await? else { panic!() };
/// assert!(matches!(idem_core::claim(&store, &claim(2)).await?, Answer::Conflict { .. }));
/// store.complete(grant.owner(), &Response::new(201), Retention::default()).await?;
/// assert!(matches!(idem_core::claim(&store, &claim(3)).await?, Answer::Replay { .. }));
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Store: Send + Sync {
    /// A short name for errors and logs, such as `sqlite`.
    fn backend(&self) -> &'static str;

    /// Decides a claim and writes what it decides: [`machine::claim`](crate::machine::claim).
    ///
    /// # To ensure correctness
    ///
    /// - Of any number of claims on one absent record exactly one is answered with a row that it wrote.
    /// - [`ClaimRow::Written`] only for a row that this call wrote; the record in it is what is stored now.
    /// - A claim that writes nothing changes nothing: not the expiry, not the owner.
    /// - A row in progress that is found comes with the instant it was judged at.
    /// - How long a lease and a retention last is exact by the store's clock. A store that writes a first claim without
    ///   asking its clock may tell the instants of that row (claimed, lease end, expiry) as near as it can, never later
    ///   than they are, and judges the row by them from then on.
    ///
    /// # Errors
    ///
    /// Of kind contract if the token was used for another fingerprint; any kind if the store fails.
    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError>;

    /// Records the response: [`machine::complete`](crate::machine::complete). Ending the attempt and recording its
    /// response are one step. The answer is the recorded response, which is an earlier one if this attempt completed
    /// before.
    ///
    /// # To ensure correctness
    ///
    /// - The record must be in progress under the owner's token **and** number; nothing else is checked. In
    ///   particular a lapsed lease does not matter while nobody took over.
    /// - It never creates a record: one that expired, or was purged, stays absent.
    async fn complete(
        &self,
        owner: &Owner,
        response: &Response,
        retention: Retention,
    ) -> Result<Fenced<Response>, StoreError>;

    /// Gives the record back, so that the next attempt may start at once: [`machine::release`](crate::machine::release).
    ///
    /// # To ensure correctness
    ///
    /// Fenced as [`complete`](Store::complete). The record stays, with its number, fingerprint and checkpoints.
    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError>;

    /// Gives the record back after an attempt that did nothing: [`machine::forget`](crate::machine::forget).
    ///
    /// # To ensure correctness
    ///
    /// Fenced as [`complete`](Store::complete). The record stays, with its number; the fingerprint goes only if the
    /// attempt was no repeat and there are no checkpoints.
    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError>;

    /// Leaves the outcome unknown until someone resolves it: [`machine::hold`](crate::machine::hold).
    ///
    /// # To ensure correctness
    ///
    /// Fenced as [`complete`](Store::complete).
    async fn hold(&self, owner: &Owner, retention: Retention) -> Result<Fenced<()>, StoreError>;

    /// Moves the end of the lease to `lease` from now: [`machine::renew`](crate::machine::renew). A lease that lapsed is
    /// renewed too while nobody took over.
    ///
    /// # To ensure correctness
    ///
    /// Fenced as [`complete`](Store::complete): that the key exists, or is in progress, is not enough.
    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError>;

    /// Keeps a named result for later attempts: [`machine::checkpoint`](crate::machine::checkpoint).
    ///
    /// # To ensure correctness
    ///
    /// Fenced as [`complete`](Store::complete). The first value of a name stays, also against the same attempt.
    async fn checkpoint(&self, owner: &Owner, checkpoint: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError>;

    /// Takes a record whose outcome is unknown: [`machine::resolve`](crate::machine::resolve). The answer is the row as
    /// it was written.
    ///
    /// # To ensure correctness
    ///
    /// Only a record that is held, or in progress and lapsed, under exactly the attempt that was seen.
    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError>;

    /// The record, if it has not expired, and the instant at which it was judged.
    ///
    /// # To ensure correctness
    ///
    /// It sees every write that was answered before it began, through any handle.
    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError>;

    /// Waits until the attempt that was `seen` is no longer in progress on the record (it settled, another attempt took
    /// over, the record is gone), for `at_most` of real time; then reads the record. A lapse alone does not end the
    /// wait.
    ///
    /// # To ensure correctness
    ///
    /// - A change between the caller's look and this call is noticed at once.
    /// - A dropped wait leaves nothing behind.
    async fn wait(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
    ) -> Result<Option<Snapshot>, StoreError>;

    /// Removes expired records, at most `limit`, and says how many. Call again while it says `limit`.
    ///
    /// # To ensure correctness
    ///
    /// A record that is not expired at the moment of its removal is never removed.
    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError>;

    /// Live records that wait for someone (held, or in progress with a lapsed lease), in the order of the bytes of
    /// scope, then key, behind `after`, at most `limit`.
    ///
    /// # To ensure correctness
    ///
    /// Going from page to page, no record that waits throughout is left out or listed twice. Nothing is changed.
    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError>;

    /// Removes records of one scope whatever their state, at most `limit`, and says how many: for leaving tenants. An
    /// attempt that runs meanwhile is superseded. Expired records that it comes across may be removed and counted too.
    /// Call again while it says `limit`.
    ///
    /// # To ensure correctness
    ///
    /// Records of other scopes are never touched, whatever the names have in common.
    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError>;

    /// Whether this store can keep its promise: run at start-up.
    ///
    /// # To ensure correctness
    ///
    /// It looks at what the promise hangs on as it is now (modes, rights, schema, the role of the server), and changes
    /// no record.
    ///
    /// # Errors
    ///
    /// Of kind configuration, naming what to change; of kind unavailable if it could not find out.
    async fn check(&self) -> Result<(), StoreError>;
}

/// What a store gives for a claim. [`claim`](crate::claim) turns it into an answer.
///
/// A store that calls [`machine::claim`](crate::machine::claim) makes it by [`ClaimRow::decided`].
#[derive(Clone, Debug)]
pub enum ClaimRow {
    /// The row that this claim wrote.
    Written(Record),
    /// The row that this claim found and left as it is.
    Found {
        /// The row.
        record: Record,
        /// When it was judged, by the store's clock. May be left out where no clock decides: the record is done,
        /// released or held, or under the claim's own token, or of another fingerprint.
        now: Option<Timestamp>,
    },
    /// Its owner is finishing it at this moment, in a transaction that has not ended: Conflict.
    Busy {
        /// The owner, where the store can tell: what a waiting claim waits for.
        seen: Option<AttemptId>,
    },
}

impl ClaimRow {
    /// The row for what [`machine::claim`](crate::machine::claim) decided about `found` at `now`, once the store has
    /// written the record that it decided on, if it did.
    pub fn decided(found: Option<Record>, decision: Decision<Verdict>, now: Timestamp) -> Self {
        match (decision.write, found) {
            (Some(written), _) => Self::Written(written),
            (None, Some(record)) => Self::Found { record, now: Some(now) },
            // The machine claims whatever is absent. Should the two not belong together, nobody gets the key.
            (None, None) => Self::Busy { seen: None },
        }
    }
}
