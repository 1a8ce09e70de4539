use std::time::Duration;

use idem_core::{
    Answer, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Owner, Record, Response, Retention, Snapshot, State,
    Timestamp, Token, machine,
};

use super::{
    clock::{Clock, Reading},
    history::{Operation, Reply},
    *,
};
use crate::{
    common::{Reference, Right, Rules},
    world::{fingerprint, key, scope},
};

mod orders;
mod words;

/// Where the clocks of places start.
const START: Timestamp = Timestamp::from_millis(1_764_547_200_123);
const LEASE: Duration = Duration::from_secs(30);

/// A history that is written by hand, on a clock that stands still.
struct Script(History);

impl Script {
    fn new() -> Self {
        Self::with_clock(Clock::new(true, Duration::ZERO, vec![Reading { begun: 0, ended: 1, now: START }]))
    }

    /// The clock moves by `by` between these moments.
    fn with_move((begun, ended): (u64, u64), by: Duration) -> Self {
        let moved = Reading { begun, ended, now: START.after(by) };
        let first = Reading { begun: 0, ended: 1, now: START };
        Self::with_clock(Clock::new(true, Duration::ZERO, vec![first, moved]))
    }

    /// The clock runs from one reading to the next.
    fn running(readings: &[(u64, u64)]) -> Self {
        let reading = |(at, ms): &(u64, u64)| Reading { begun: *at, ended: *at, now: at_ms(*ms) };
        Self::with_clock(Clock::new(false, Duration::ZERO, readings.iter().map(reading).collect()))
    }

    fn with_clock(clock: Clock) -> Self {
        Self(History { calls: Vec::new(), clock })
    }

    fn answered(self, task: &'static str, (invoked, at): (u64, u64), operation: Operation, reply: Reply) -> Self {
        self.call(Call { task, invoked, operation, end: End::Answered { at, reply: Box::new(reply) } })
    }

    fn dropped(self, task: &'static str, invoked: u64, operation: Operation) -> Self {
        self.call(Call { task, invoked, operation, end: End::Dropped })
    }

    fn failed(self, task: &'static str, (invoked, at): (u64, u64), operation: Operation) -> Self {
        self.call(Call { task, invoked, operation, end: End::Failed { at } })
    }

    fn call(mut self, call: Call) -> Self {
        self.0.calls.push(call);
        self
    }

    #[track_caller]
    fn has_an_order(&self) {
        let found = search::search(&self.0, |_| Part::Full);
        assert!(matches!(found, Found::Order), "there must be an order, and there is {found:?}");
    }

    #[track_caller]
    fn has_none(&self) {
        assert!(search::has_none(&self.0, |_| Part::Full), "there must be no order: {:?}", self.0);
    }

    /// The calls that a finding shows.
    fn shown(&self) -> Vec<usize> {
        let parts = shrink::shrink(&self.0);
        (0..parts.len()).filter(|call| parts[*call] == Part::Full).collect()
    }
}

fn at_ms(ms: u64) -> Timestamp {
    START.after(Duration::from_millis(ms))
}

/// An attempt that claimed an unused key.
struct First {
    claim: Claim,
    record: Record,
    owner: Owner,
}

/// The one whose token is made of this byte.
fn first(token: u8) -> First {
    let claim = Claim::new(scope("tenant"), key("k"), Token::from_bytes([token; 16]), fingerprint("A"));
    let (sender, granted) = std::sync::mpsc::channel();
    let asked = claim.clone();
    crate::run("first", Reference::<Right>::harness(), async move |harness: &Harness| {
        let world = World::new(harness).await;
        let Ok(Answer::Claimed(grant)) = world.ask(&asked).await else { panic!("an unused key is claimed") };
        let read = world.store().read(asked.scope(), asked.key()).await.unwrap().unwrap();
        sender.send((grant.owner().clone(), read.record)).unwrap();
    });
    let (owner, record) = granted.recv().unwrap();
    First { claim, record, owner }
}

impl First {
    fn claims(&self) -> Operation {
        Operation::Claim(self.claim.clone())
    }

    fn written(&self) -> Reply {
        Reply::Row(ClaimRow::Written(self.record.clone()))
    }

    fn found(&self) -> Reply {
        Reply::Row(ClaimRow::Found { record: self.record.clone(), now: Some(START) })
    }

    fn completes(&self) -> Operation {
        Operation::Complete(self.owner.clone(), done(), Retention::default())
    }

    fn completed(&self) -> Record {
        machine::complete(Some(&self.record), &self.owner, &done(), Retention::default(), START).write.unwrap()
    }

    fn keeps(&self, name: &str) -> Operation {
        Operation::Checkpoint(self.owner.clone(), Checkpoint::new(name, name.to_uppercase()).unwrap())
    }
}

fn done() -> Response {
    Response::new(201).with_body("done")
}

fn kept(name: &str) -> Reply {
    Reply::Kept(Fenced::Written(Checkpointed::Kept(name.to_uppercase().into())))
}

fn read(record: &Record) -> Reply {
    Reply::Found(Some(Snapshot { record: record.clone(), now: START }))
}

fn nothing() -> Reply {
    Reply::Found(None)
}
