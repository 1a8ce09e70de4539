//! What a store of idem must do, as tests that a store crate runs in five lines.
//!
//! A store that passes is one that [`idem_core::Store`] describes: of any number of claims on one key one owns it, only
//! the owner writes, what was answered is kept to the byte, and time is judged as the
//! [machine](idem_core::machine) judges it. A store that is subtly wrong fails, in a test whose name says what must hold
//! and whose message says what the store did.
//!
//! # Wiring
//!
//! The five lines, in `tests/conformance.rs` of the store's own crate. (The guide [Write your own store] goes there step by
//! step, and tells how to read a check that fails and what the suite can't see.)
//!
//! [Write your own store]: https://github.com/idem-rs/idem/blob/main/docs/write-your-own-store.md
//!
//! ```
//! use std::{collections::BTreeMap, num::NonZeroUsize, sync::Mutex, time::Duration};
//!
//! use idem_conformance::{Harness, Place};
//! use idem_core::{machine::{self, Decision}, *};
//!
//! fn harness() -> Harness {
//!     Harness::new(async |place: Place| TinyStore::open(&place))
//! }
//! idem_conformance::suite!(harness());
//!
//! // And this is a store that passes it: the machine under a lock.
//! struct TinyStore {
//!     records: idem_conformance::Shared<Mutex<BTreeMap<(Scope, Key), Record>>>,
//!     clock: ManualClock,
//! }
//!
//! impl TinyStore {
//!     fn open(place: &Place) -> Result<Self, String> {
//!         // A store in memory shares its records between the handles of a place. One with a file opens it in place.dir().
//!         Ok(Self { records: place.shared(Default::default), clock: place.clock() })
//!     }
//!
//!     /// Finds, decides and writes under the lock.
//!     fn step<A>(
//!         &self,
//!         scope: &Scope,
//!         key: &Key,
//!         decide: impl FnOnce(Option<&Record>, Timestamp) -> Decision<A>,
//!     ) -> Result<(A, Option<Record>), StoreError> {
//!         let broken = |_| StoreError::new(StoreErrorKind::Unavailable, "tiny", "step", "a thread panicked; restart");
//!         let mut records = self.records.lock().map_err(broken)?;
//!         let id = (scope.clone(), key.clone());
//!         let decision = decide(records.get(&id), self.clock.now());
//!         if let Some(record) = decision.write {
//!             records.insert(id.clone(), record);
//!         }
//!         Ok((decision.answer, records.get(&id).cloned()))
//!     }
//!
//!     fn live(&self) -> Result<Vec<((Scope, Key), Record)>, StoreError> {
//!         let broken = |_| StoreError::new(StoreErrorKind::Unavailable, "tiny", "list", "a thread panicked; restart");
//!         let (records, now) = (self.records.lock().map_err(broken)?, self.clock.now());
//!         let live = records.iter().filter(|(_, record)| record.is_live(now));
//!         Ok(live.map(|(id, record)| (id.clone(), record.clone())).collect())
//!     }
//! }
//!
//! #[async_trait]
//! impl Store for TinyStore {
//!     fn backend(&self) -> &'static str {
//!         "tiny"
//!     }
//!
//!     async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
//!         let mut written = None;
//!         let (answer, record) = self.step(claim.scope(), claim.key(), |found, now| {
//!             match machine::claim(found, claim, now) {
//!                 Ok(decision) => {
//!                     written = decision.write.clone();
//!                     Decision { answer: Ok(now), write: decision.write }
//!                 }
//!                 Err(reused) => Decision { answer: Err(reused), write: None },
//!             }
//!         })?;
//!         let now = answer.map_err(|TokenReused| StoreError::token_reused("tiny"))?;
//!         Ok(match (written, record) {
//!             (Some(record), _) => ClaimRow::Written(record),
//!             (None, Some(record)) => ClaimRow::Found { record, now: Some(now) },
//!             (None, None) => ClaimRow::Busy { seen: None }, // the machine claims whatever is absent
//!         })
//!     }
//!
//!     async fn complete(&self, by: &Owner, with: &Response, keep: Retention) -> Result<Fenced<Response>, StoreError> {
//!         Ok(self.step(by.scope(), by.key(), |found, now| machine::complete(found, by, with, keep, now))?.0)
//!     }
//!
//!     async fn release(&self, by: &Owner) -> Result<Fenced<()>, StoreError> {
//!         Ok(self.step(by.scope(), by.key(), |found, now| machine::release(found, by, now))?.0)
//!     }
//!
//!     async fn forget(&self, by: &Owner) -> Result<Fenced<()>, StoreError> {
//!         Ok(self.step(by.scope(), by.key(), |found, now| machine::forget(found, by, now))?.0)
//!     }
//!
//!     async fn hold(&self, by: &Owner, keep: Retention) -> Result<Fenced<()>, StoreError> {
//!         Ok(self.step(by.scope(), by.key(), |found, now| machine::hold(found, by, keep, now))?.0)
//!     }
//!
//!     async fn renew(&self, by: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
//!         Ok(self.step(by.scope(), by.key(), |found, now| machine::renew(found, by, lease, now))?.0)
//!     }
//!
//!     async fn checkpoint(&self, by: &Owner, note: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
//!         Ok(self.step(by.scope(), by.key(), |found, now| machine::checkpoint(found, by, note, now))?.0)
//!     }
//!
//!     async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
//!         let step = self.step(resolve.scope(), resolve.key(), |found, now| machine::resolve(found, resolve, now))?;
//!         Ok(match step {
//!             (Fenced::Written(()), Some(record)) => Fenced::Written(record),
//!             _ => Fenced::Superseded,
//!         })
//!     }
//!
//!     async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
//!         let (now, record) = self.step(scope, key, |_, now| Decision { answer: now, write: None })?;
//!         Ok(record.filter(|record| record.is_live(now)).map(|record| Snapshot { record, now }))
//!     }
//!
//!     async fn wait(
//!         &self,
//!         scope: &Scope,
//!         key: &Key,
//!         seen: AttemptId,
//!         at_most: Duration,
//!     ) -> Result<Option<Snapshot>, StoreError> {
//!         let begun = std::time::Instant::now();
//!         loop {
//!             let found = self.read(scope, key).await?;
//!             let unchanged = |s: &Snapshot| s.record.attempt() == seen && s.record.state == State::InProgress;
//!             if !found.as_ref().is_some_and(unchanged) || begun.elapsed() >= at_most {
//!                 return Ok(found);
//!             }
//!             tokio::time::sleep(Duration::from_millis(1)).await;
//!         }
//!     }
//!
//!     async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
//!         let _ = limit;
//!         Ok(0) // it keeps what expired: that is absent, swept or not
//!     }
//!
//!     async fn lapsed(
//!         &self,
//!         after: Option<(&Scope, &Key)>,
//!         limit: NonZeroUsize,
//!     ) -> Result<Vec<Lapsed>, StoreError> {
//!         let now = self.clock.now();
//!         let behind = self.live()?.into_iter().filter(|((scope, key), _)| after.is_none_or(|a| (scope, key) > a));
//!         let waits = |record: &Record| record.state == State::Held || record.is_lapsed(now);
//!         let waiting = behind.filter(|(_, record)| waits(record)).take(limit.get());
//!         Ok(waiting.map(|((scope, key), record)| Lapsed { scope, key, record }).collect())
//!     }
//!
//!     async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
//!         let purged: Vec<_> = self.live()?.into_iter().filter(|(id, _)| id.0 == *scope).take(limit.get()).collect();
//!         let broken = |_| StoreError::new(StoreErrorKind::Unavailable, "tiny", "purge", "a thread panicked; restart");
//!         let mut records = self.records.lock().map_err(broken)?;
//!         Ok(purged.iter().filter_map(|(id, _)| records.remove(id)).count())
//!     }
//!
//!     async fn check(&self) -> Result<(), StoreError> {
//!         Ok(())
//!     }
//! }
//! # idem_conformance::run("agreement", harness(), async |harness: &Harness| {
//! #     use idem_conformance::*;
//! #     agreement::any_sequence_of_operations_is_answered_and_kept_as_the_machine_says(harness).await;
//! #     housekeeping::a_wait_is_ended_by_the_completion_through_another_handle(harness).await;
//! #     housekeeping::records_that_wait_for_someone_are_listed_in_order_page_by_page(harness).await;
//! #     housekeeping::a_purge_removes_at_most_its_limit(harness).await;
//! #     scenarios::scenario_8_a_retry_after_the_lease_takes_over_and_gets_the_same_charge(harness).await;
//! # });
//! ```
//!
//! Every check is a `#[test]` of its own with a fresh [`Place`], so they run side by side, and one can be run by its name.
//! The suite brings its own runtime. A check is an ordinary function of the modules below, with its documentation, and can
//! be called by itself with [`run`].
//!
//! # What a harness declares
//!
//! The contract of [`idem_core::Store`] is never optional. What some stores have and others do not is declared, and what
//! is not declared is not checked: its tests print a line `not claimed: …`.
//!
//! | declared by | what it says |
//! |---|---|
//! | [`Harness::durable`] | records outlive every handle |
//! | [`Harness::shared_between_processes`] | other processes work on the same records |
//! | [`Harness::transactions`] | a record can be completed in a transaction of the caller's |
//! | [`Harness::clock_hooks`] | the store goes by a clock of its own, which the hooks tell and move |
//! | [`Harness::real_time`] | the store goes by the host's clock: the suite waits |
//! | [`Harness::resolution`] | the instants that the store tells are only so near to its clock |
//! | [`Harness::checkpoint_overhead`] | the store encrypts, so that its checkpoints have less room |
//!
//! Without hooks and real time a store goes by [`Place::clock`], which stands still unless a check moves it: then boundaries are
//! tried to the millisecond, and nothing waits. With a clock that runs, an answer is right if the machine gives it at any
//! instant between the call and its return.
//!
//! # Faults
//!
//! [`faulty`] wraps any store in faults: lost requests and replies, late and repeated calls, delays, storms, pauses. The
//! suite uses it, and it is there for tests of handlers, adapters and consumers.
//!
//! # A report
//!
//! Besides the tests, [`report`] runs the suite from a program, and gives what passed, with which seed and which version of
//! the suite, as text and as JSON: to publish with a release of a store.
//!
//! # Seeds
//!
//! [`agreement`] plays random sequences. A failure tells its seed; `IDEM_CONFORMANCE_SEED=…` plays that sequence again, and
//! `IDEM_CONFORMANCE_STEPS=…` makes sequences longer (400 steps by default). [`linearizability`] makes random calls at once;
//! with the seed set it makes the same calls in every round, and how they meet still differs.
//!
//! # Findings
//!
//! What [`linearizability`] finds is the smallest part of a history that no order of its calls explains. This is what it
//! says of a store that looks up, and then inserts:
//!
//! ```text
//! #  task  invoked  returned  clock  operation                                                   answer
//! 1  A     1        4         +0     claim a for request A, lease 30s, retention 24h (held 48h)  Written a#1 in progress, …
//! 2  B     2        3         +0     claim b for request A, lease 30s, retention 24h (held 48h)  Written b#1 in progress, …
//!
//! Left out: 30 other calls on the key, which cannot excuse these.
//!
//! The longest order that the machine explains: 2. It leads to
//!   b#1 in progress, for request A, claimed +0, lease +30000, expiry +86400000
//! and there the machine says
//!   to 1: Found b#1 in progress, for request A, claimed +0, lease +30000, expiry +86400000, judged at +0
//! ```
#![doc = include_str!("../docs/wrong_stores.md")]
#![doc = include_str!("../docs/mutations.md")]
// A check that fails is a panic: that is what this crate is for.
#![allow(clippy::panic)]

pub mod agreement;
pub mod cancellation;
pub mod claims;
pub mod concurrency;
pub mod durability;
mod expect;
pub mod expiry;
pub mod extremes;
pub mod faults;
pub mod faulty;
pub mod fencing;
pub mod fidelity;
mod harness;
pub mod housekeeping;
pub mod linearizability;
mod notes;
mod place;
pub mod processes;
mod report;
mod rng;
mod run;
pub mod scenarios;
mod shared;
mod suite;
mod transaction_hook;
pub mod transactions;
pub mod waits;
mod world;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
#[cfg(test)]
extern crate self as idem_conformance;

pub use async_trait::async_trait;

pub use self::{
    harness::Harness,
    place::Place,
    report::{Capability, Checked, Report, Verdict, report},
    run::run,
    shared::Shared,
    transaction_hook::{End, Transactions},
};
