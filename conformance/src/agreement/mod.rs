//! Agreement: whatever is asked of a store, it answers and keeps what the [machine] says.

mod choose;
mod model;
mod step;

use std::{
    collections::{BTreeSet, VecDeque},
    env,
    fmt::Debug,
    sync::Arc,
    time::{Duration, Instant},
};

use idem_core::{Fenced, Key, Record, Scope, State, Store, StoreError, Timestamp, machine};

use self::{
    choose::Chooser,
    model::{Judged, Model, Span},
    step::Step,
};
use crate::{Harness, rng, shared::Spy, world::World};

pub(crate) use self::model::differences;

type Id = (Scope, Key);

/// How many sequences are played at least where no seed is set, and at most, if the store is fast.
const SEQUENCES: (u64, u64) = (4, 60);
/// Until when another sequence is begun.
const ENOUGH: Duration = Duration::from_secs(3);
/// How many steps a sequence has, unless `IDEM_CONFORMANCE_STEPS` says otherwise.
const STEPS: usize = 400;
/// How many of the last steps are shown when a store disagrees, and how many before them on the same record.
const SHOWN: usize = 12;

/// Random sequences of every operation, through two handles, with the clock moved to where leases and retentions end.
/// Each answer and each stored record is compared with the machine's.
///
/// The seed is part of the message of a failure, and `IDEM_CONFORMANCE_SEED` plays the sequence of one seed again;
/// `IDEM_CONFORMANCE_STEPS` sets how long a sequence is. With a clock that runs, any instant between the call and its
/// return may explain an answer.
pub async fn any_sequence_of_operations_is_answered_and_kept_as_the_machine_says(harness: &Harness) {
    let steps = setting("IDEM_CONFORMANCE_STEPS").map_or(STEPS, |steps| usize::try_from(steps).unwrap_or(usize::MAX));
    match setting("IDEM_CONFORMANCE_SEED") {
        Some(seed) => play(harness, seed, steps).await,
        None => {
            let (first, begun) = (rng::fresh_seed(), Instant::now());
            for sequence in 0..SEQUENCES.1 {
                let is_enough = sequence >= SEQUENCES.0 || (sequence > 0 && harness.waits());
                if is_enough && begun.elapsed() > ENOUGH {
                    return;
                }
                play(harness, first.wrapping_add(sequence), steps).await;
            }
        }
    }
}

/// The whole number that an environment variable is set to.
pub(crate) fn setting(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.trim().parse().unwrap_or_else(|_| panic!("{name} must be a whole number and is {value:?}")))
}

async fn play(harness: &Harness, seed: u64, steps: usize) {
    harness.notes().note_seed(seed);
    let mut sequence = Sequence::new(harness, seed).await;
    for number in 1..=steps {
        let step = sequence.chooser.next(&sequence.model, sequence.world.now().await);
        if let Err(finding) = sequence.take(&step).await {
            let history = sequence.history();
            panic!(
                "The store disagrees with the machine at step {number} of seed {seed}: {step}\n\n{finding}\n\n{history}\n\
                 IDEM_CONFORMANCE_SEED={seed} plays this sequence again."
            );
        }
    }
    if let Err(finding) = sequence.audit().await {
        panic!("The store disagrees with the machine after {steps} steps of seed {seed}: {finding}");
    }
}

struct Sequence<'a> {
    world: World<'a>,
    /// Through which handles the store is used.
    handles: Vec<Arc<dyn Store>>,
    chooser: Chooser,
    model: Model,
    /// Records that are absent to everybody and may still be stored: until they are swept, a sweep or purge counts them.
    leftovers: BTreeSet<Id>,
    past: VecDeque<(Option<Id>, String)>,
    start: Timestamp,
}

impl<'a> Sequence<'a> {
    async fn new(harness: &'a Harness, seed: u64) -> Self {
        let world = World::new(harness).await;
        let handles = vec![Arc::clone(world.store()), world.open().await];
        let chooser = Chooser::new(seed, harness);
        let start = world.now().await;
        let (model, leftovers, past) = (Model::new(), BTreeSet::new(), VecDeque::new());
        Self { world, handles, chooser, model, leftovers, past, start }
    }

    fn handle(&mut self) -> Arc<dyn Store> {
        let index = self.chooser.handle(self.handles.len());
        Arc::clone(&self.handles[index])
    }

    /// Does one step, compares, and follows in the model. The error is what the machine says instead.
    async fn take(&mut self, step: &Step) -> Result<(), String> {
        let store = self.handle();
        let from = self.world.earliest_now().await;
        match step {
            Step::Advance(by) => {
                self.note(None, step, from, &"");
                self.world.advance(*by).await;
                Ok(())
            }
            Step::Reopen => {
                self.note(None, step, from, &"");
                drop(store);
                self.reopen().await;
                self.audit().await
            }
            Step::Claim(claim) => {
                let spy = Spy::on(&*store);
                let answered = idem_core::claim(&spy, claim).await;
                let row = spy.row();
                let id = (claim.scope().clone(), claim.key().clone());
                if let Some(owner) = answered.as_ref().ok().and_then(model::owner_of) {
                    self.chooser.granted(owner);
                }
                let judge = |found: Option<&Record>, now| model::claim(found, claim, &answered, row.as_ref(), now);
                self.judge(step, &id, from, &(&answered, &row), judge).await
            }
            Step::Complete(owner, response, retention) => {
                let id = (owner.scope().clone(), owner.key().clone());
                let answered = store.complete(owner, response, *retention).await;
                let decide = |found: Option<&Record>, now| machine::complete(found, owner, response, *retention, now);
                self.judge_write(step, &id, from, &answered, decide).await
            }
            Step::Release(owner) => {
                let id = (owner.scope().clone(), owner.key().clone());
                let answered = store.release(owner).await;
                self.judge_write(step, &id, from, &answered, |found, now| machine::release(found, owner, now)).await
            }
            Step::Forget(owner) => {
                let id = (owner.scope().clone(), owner.key().clone());
                let answered = store.forget(owner).await;
                self.judge_write(step, &id, from, &answered, |found, now| machine::forget(found, owner, now)).await
            }
            Step::Hold(owner, retention) => {
                let id = (owner.scope().clone(), owner.key().clone());
                let answered = store.hold(owner, *retention).await;
                let decide = |found: Option<&Record>, now| machine::hold(found, owner, *retention, now);
                self.judge_write(step, &id, from, &answered, decide).await
            }
            Step::Renew(owner, lease) => {
                let id = (owner.scope().clone(), owner.key().clone());
                let answered = store.renew(owner, *lease).await;
                let decide = |found: Option<&Record>, now| machine::renew(found, owner, *lease, now);
                self.judge_write(step, &id, from, &answered, decide).await
            }
            Step::Checkpoint(owner, checkpoint) => {
                let id = (owner.scope().clone(), owner.key().clone());
                let answered = store.checkpoint(owner, checkpoint).await;
                let decide = |found: Option<&Record>, now| machine::checkpoint(found, owner, checkpoint, now);
                self.judge_write(step, &id, from, &answered, decide).await
            }
            Step::Resolve(resolve) => {
                let id = (resolve.scope().clone(), resolve.key().clone());
                let answered = idem_core::resolve(&*store, resolve).await;
                if let Ok(Fenced::Written(grant)) = &answered {
                    self.chooser.granted(grant.owner());
                }
                let judge = |found: Option<&Record>, now| {
                    let decision = machine::resolve(found, resolve, now);
                    let fits = match (&answered, &decision.write) {
                        (Ok(Fenced::Written(grant)), Some(record)) => {
                            grant.owner().attempt() == record.attempt()
                                && grant.is_repeat()
                                && grant.lease_end() == record.lease_end
                                && *grant.checkpoints() == record.checkpoints
                        }
                        (Ok(Fenced::Superseded), None) => true,
                        _ => false,
                    };
                    let after = decision.write.or_else(|| found.cloned());
                    Judged { fits, after, expected: format!("{:?}", decision.answer) }
                };
                self.judge(step, &id, from, &answered, judge).await
            }
            Step::Read(id) => {
                self.note(Some(id), step, from, &"");
                let known = self.model.get(id).cloned();
                self.settle(id, vec![known]).await
            }
            Step::Wait(id, seen) => {
                let waited = store.wait(&id.0, &id.1, *seen, Duration::ZERO).await;
                let span = self.since(from).await;
                self.note(Some(id), step, from, &waited);
                let snapshot = waited.map_err(|error| format!("The wait failed: {error}"))?;
                let known = self.model.get(id).cloned();
                self.check_read(known.as_ref(), snapshot.as_ref().map(|s| (&s.record, s.now)), span)
            }
            Step::Sweep(limit) => {
                let swept = store.sweep(*limit).await;
                let span = self.since(from).await;
                self.note(None, step, from, &swept);
                let swept = swept.map_err(|error| format!("The sweep failed: {error}"))?;
                let expired = self.model.values().filter(|record| !record.is_live(span.to)).count();
                let expired = expired + self.leftovers(None);
                if swept > expired.min(limit.get()) {
                    return Err(format!("{swept} were swept, but {expired} are expired and the limit is {limit}."));
                }
                if swept < limit.get() {
                    self.model.retain(|_, record| record.is_live(span.from));
                    self.leftovers.clear();
                }
                self.audit().await
            }
            Step::Lapsed(after, limit) => {
                let lapsed = store.lapsed(after.as_ref().map(|(scope, key)| (scope, key)), *limit).await;
                let span = self.since(from).await;
                self.note(None, step, from, &lapsed);
                let lapsed = lapsed.map_err(|error| format!("It failed: {error}"))?;
                let given: Vec<_> = lapsed.into_iter().map(|one| ((one.scope, one.key), one.record)).collect();
                let expected = |now: Timestamp| {
                    let behind = self.model.iter().filter(|(id, _)| after.as_ref().is_none_or(|after| *id > after));
                    let waiting = behind.filter(|(_, record)| {
                        record.is_live(now) && (record.state == State::Held || record.is_lapsed(now))
                    });
                    waiting.take(limit.get()).map(|(id, record)| (id.clone(), record.clone())).collect::<Vec<_>>()
                };
                if span.instants().any(|now| expected(now) == given) {
                    return Ok(());
                }
                Err(format!("These wait for someone, in this order: {:#?}", expected(span.from)))
            }
            Step::Purge(scope, limit) => {
                let purged = store.purge(scope, *limit).await;
                let span = self.since(from).await;
                self.note(None, step, from, &purged);
                let purged = purged.map_err(|error| format!("The purge failed: {error}"))?;
                self.follow_purge(scope, limit.get(), purged, span).await
            }
        }
    }

    async fn judge_write<T: PartialEq + Debug>(
        &mut self,
        step: &Step,
        id: &Id,
        from: Timestamp,
        answered: &Result<Fenced<T>, StoreError>,
        decide: impl Fn(Option<&Record>, Timestamp) -> machine::Decision<Fenced<T>>,
    ) -> Result<(), String> {
        let judge = |found: Option<&Record>, now| model::write(found, answered, decide(found, now));
        self.judge(step, id, from, answered, judge).await
    }

    /// Accepts the answer if the machine gives it at an instant since `from`, and then the record that it leads to.
    async fn judge(
        &mut self,
        step: &Step,
        id: &Id,
        from: Timestamp,
        answered: &dyn Debug,
        judge: impl Fn(Option<&Record>, Timestamp) -> Judged,
    ) -> Result<(), String> {
        let span = self.since(from).await;
        self.note(Some(id), step, from, answered);
        let found = self.model.get(id);
        // A record that may have expired is absent, whatever instant the store tells for what it writes there.
        let founds = match found {
            Some(record) if self.world.has_slack() && !record.is_live(span.to) => vec![found, None],
            _ => vec![found],
        };
        let mut afters = Vec::new();
        for judged in founds.iter().flat_map(|found| span.instants().map(|now| judge(*found, now))) {
            if judged.fits && !afters.contains(&judged.after) {
                afters.push(judged.after);
            }
        }
        if afters.is_empty() {
            let expected = judge(found, span.from).expected;
            return Err(format!("The machine says: {expected}\nThe store said:   {answered:?}"));
        }
        self.settle(id, afters).await
    }

    /// Reads the record: it must be one of `candidates`, which is what the model has from then on.
    async fn settle(&mut self, id: &Id, candidates: Vec<Option<Record>>) -> Result<(), String> {
        let store = self.handle();
        let from = self.world.earliest_now().await;
        let read = store.read(&id.0, &id.1).await.map_err(|error| format!("The read after it failed: {error}"))?;
        let span = self.since(from).await;
        let read = read.as_ref().map(|snapshot| (&snapshot.record, snapshot.now));
        let mut finding = None;
        for candidate in candidates {
            match self.check_read(candidate.as_ref(), read, span) {
                Ok(()) => {
                    match candidate {
                        Some(record) => drop(self.model.insert(id.clone(), record)),
                        None => self.forget(id),
                    }
                    return Ok(());
                }
                Err(found) => finding = finding.or(Some(found)),
            }
        }
        Err(finding.unwrap_or_else(|| "No record explains it.".into()))
    }

    /// The record is absent from here on, and may still be stored.
    fn forget(&mut self, id: &Id) {
        if self.model.remove(id).is_some() {
            self.leftovers.insert(id.clone());
        }
    }

    /// How many records may still be stored that the model does not have, of one scope or of all.
    fn leftovers(&self, of: Option<&Scope>) -> usize {
        let unknown = self.leftovers.iter().filter(|id| !self.model.contains_key(*id));
        unknown.filter(|id| of.is_none_or(|of| id.0 == *of)).count()
    }

    fn check_read(&self, known: Option<&Record>, read: Option<(&Record, Timestamp)>, span: Span) -> Result<(), String> {
        match (known, read) {
            (_, Some((_, now))) if !span.contains(now) => Err(format!(
                "The read was judged at {now:?}, but the store's clock went from {:?} to {:?}.",
                span.from, span.to
            )),
            (Some(known), Some((stored, now))) if !known.is_live(now) => Err(format!(
                "The record expired at {:?} and must be absent at {now:?}; the store has {stored:?}",
                known.expiry
            )),
            (Some(known), Some((stored, _))) if known == stored => Ok(()),
            (Some(known), Some((stored, _))) => Err(format!("In the stored record {}.", differences(known, stored))),
            (None, Some((stored, _))) => Err(format!("There must be no record; the store has {stored:?}")),
            (Some(known), None) if known.is_live(span.to) => Err(format!("The record is gone; it must be {known:?}")),
            (_, None) => Ok(()),
        }
    }

    async fn follow_purge(&mut self, scope: &Scope, limit: usize, purged: usize, span: Span) -> Result<(), String> {
        let ids: Vec<Id> = self.model.keys().filter(|id| id.0 == *scope).cloned().collect();
        let (mut gone, mut may_be_gone, mut left) = (0, self.leftovers(Some(scope)), 0);
        for id in ids {
            let read = self.handles[0].read(&id.0, &id.1).await.map_err(|error| format!("The read failed: {error}"))?;
            match (self.model.get(&id), read) {
                (_, Some(_)) => left += 1,
                (Some(record), None) if record.is_live(span.to) => {
                    gone += 1;
                    self.model.remove(&id);
                }
                (_, None) => {
                    may_be_gone += 1;
                    // Purged or expired, it is absent from here on; what is claimed next may begin before its expiry.
                    self.forget(&id);
                }
            }
        }
        if purged > limit || purged < gone || purged > gone + may_be_gone || (purged < limit && left > 0) {
            return Err(format!(
                "It says that it removed {purged} records of at most {limit}; {gone} are gone, {may_be_gone} had \
                 expired, and {left} are left."
            ));
        }
        if purged < limit {
            self.model.retain(|id, _| id.0 != *scope);
            self.leftovers.retain(|id| id.0 != *scope);
        }
        self.audit().await
    }

    /// Compares every record.
    async fn audit(&mut self) -> Result<(), String> {
        for id in self.chooser.ids().to_vec() {
            let known = self.model.get(&id).cloned();
            self.settle(&id, vec![known]).await.map_err(|finding| format!("{:?} {:?}: {finding}", id.0, id.1))?;
        }
        Ok(())
    }

    async fn reopen(&mut self) {
        self.handles.clear();
        self.world.reopen().await;
        self.handles = vec![Arc::clone(self.world.store()), self.world.open().await];
    }

    async fn since(&self, from: Timestamp) -> Span {
        Span { from, to: self.world.latest_now().await }
    }

    fn note(&mut self, id: Option<&Id>, step: &Step, at: Timestamp, answered: &dyn Debug) {
        let line = format!("  {:>12} ms  {step}\n                   -> {answered:?}", at.since(self.start).as_millis());
        self.past.push_back((id.cloned(), line));
        if self.past.len() > 2_000 {
            self.past.pop_front();
        }
    }

    /// The last steps, and before them those on the record that the last one was about.
    fn history(&self) -> String {
        let last = self.past.back().and_then(|(id, _)| id.as_ref());
        let older = self.past.len().saturating_sub(SHOWN);
        let on_record = self.past.iter().take(older).filter(|(id, _)| id.is_some() && id.as_ref() == last);
        let on_record: Vec<_> = on_record.map(|(_, line)| line.as_str()).collect();
        let on_record = &on_record[on_record.len().saturating_sub(SHOWN)..];
        let recent: Vec<_> = self.past.iter().skip(older).map(|(_, line)| line.as_str()).collect();
        format!(
            "Earlier steps on this record:\n{}\n\nThe last steps:\n{}\n",
            if on_record.is_empty() { "  (none)".into() } else { on_record.join("\n") },
            recent.join("\n")
        )
    }
}

#[cfg(test)]
mod tests;
