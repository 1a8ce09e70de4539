//! The search for an order of a history that the machine explains.
//!
//! Depth first, over what has been ordered and the record that it led to; no such pair is looked at twice. A call can
//! come next if no call that is not ordered yet returned before it was invoked.

use std::collections::{HashMap, HashSet};

use idem_core::{Record, Timestamp};

use super::{
    clock,
    explain::{self, Effect},
    history::{Call, End, History, Operation, Reply},
};

/// How many pairs are looked at before the search gives up.
const LIMIT: usize = 400_000;

/// What part a call has in a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The order must have it, and explain its answer; without an answer it may be in the order.
    Full,
    /// It may be in the order, at its time; whatever it was answered.
    Maybe,
    /// It is left out.
    None,
}

/// What became of a search.
#[derive(Debug)]
pub(super) enum Found {
    /// There is an order.
    Order,
    /// There is none. One that explains as many answers as possible ends like this.
    None(Box<Stuck>),
    /// The search was given up.
    Undecided,
}

/// Where no order goes on.
#[derive(Clone, Debug, Default)]
pub(super) struct Stuck {
    /// The calls up to there, by their place in the history.
    pub(super) order: Vec<usize>,
    /// The record that they lead to.
    pub(super) record: Option<Record>,
    /// The calls of which one would have to come next.
    pub(super) next: Vec<usize>,
}

/// Looks for an order of the calls, in which each has the part that `part` gives it.
pub(super) fn search(history: &History, part: impl Fn(usize) -> Part) -> Found {
    let items = items(history, part);
    if items.len() > 128 {
        return Found::Undecided;
    }
    let mut search = Search::new(items);
    let mut order = Vec::new();
    if search.goes_on(0, ABSENT, &mut order) {
        return Found::Order;
    }
    if search.visited.len() >= LIMIT { Found::Undecided } else { Found::None(Box::new(search.stuck)) }
}

/// Whether it is certain that there is no order.
pub(super) fn has_none(history: &History, part: impl Fn(usize) -> Part) -> bool {
    matches!(search(history, part), Found::None(_))
}

/// The number of the record that is not there.
const ABSENT: usize = 0;

/// A call as the search sees it.
struct Item<'a> {
    /// Its place in the history.
    call: usize,
    operation: &'a Operation,
    /// What it must be answered; none if that does not count.
    reply: Option<&'a Reply>,
    invoked: u64,
    /// Until when it has happened, if it does.
    until: u64,
    is_optional: bool,
    is_look: bool,
    /// It was told Busy, and rightly so.
    is_busy: bool,
    instants: Vec<Timestamp>,
    /// The last instant that the store's clock may have shown meanwhile.
    latest: Timestamp,
}

fn items(history: &History, part: impl Fn(usize) -> Part) -> Vec<Item<'_>> {
    let told = clock::told(&history.calls);
    let mut items = Vec::new();
    for (number, call) in history.calls.iter().enumerate() {
        let part = part(number);
        let counts = part == Part::Full && call.answered().is_some();
        let never_matters = !counts && matches!(call.operation, Operation::Read);
        if part == Part::None || never_matters {
            continue;
        }
        // A driver that resends may do twice what it then calls unavailable.
        let times = if matches!(call.end, End::Failed { .. }) { 2 } else { 1 };
        for _ in 0..times {
            let instants = match counts {
                true => history.clock.instants(call, &told),
                false => history.clock.instants(&without_reply(call), &told),
            };
            items.push(Item {
                call: number,
                operation: &call.operation,
                reply: call.reply().filter(|_| counts),
                invoked: call.invoked,
                until: call.answered().unwrap_or(u64::MAX),
                is_optional: !counts,
                is_look: counts && call.is_look(),
                is_busy: call.reply().is_some_and(Reply::is_busy) && call.meets_a_write(&history.calls),
                instants,
                latest: history.clock.span(call).1,
            });
        }
    }
    items.sort_by_key(|item| item.until);
    items
}

/// The same call with an answer that tells no instant: its time bounds it all the same.
fn without_reply(call: &Call) -> Call {
    let end = match call.end {
        End::Answered { at, .. } => End::Answered { at, reply: Box::new(Reply::Removed(0)) },
        End::Failed { .. } | End::Dropped => End::Dropped,
    };
    Call { end, ..call.clone() }
}

struct Search<'a> {
    items: Vec<Item<'a>>,
    /// The items that the order must have.
    required: u128,
    /// Every record that was come to, by its number.
    records: Vec<Option<Record>>,
    numbers: HashMap<Vec<u8>, usize>,
    /// What an item makes of a record.
    effects: HashMap<(usize, usize), Vec<usize>>,
    visited: HashSet<(u128, usize)>,
    stuck: Stuck,
    most: usize,
}

impl<'a> Search<'a> {
    fn new(items: Vec<Item<'a>>) -> Self {
        let required = items.iter().enumerate().filter(|(_, item)| !item.is_optional);
        let required = required.fold(0, |required, (at, _)| required | 1 << at);
        Self {
            items,
            required,
            records: vec![None],
            numbers: HashMap::new(),
            effects: HashMap::new(),
            visited: HashSet::new(),
            stuck: Stuck::default(),
            most: 0,
        }
    }

    /// Whether an order that has come to `record` by the items in `done` can be completed.
    fn goes_on(&mut self, mut done: u128, record: usize, order: &mut Vec<usize>) -> bool {
        let begun = order.len();
        // What wrote nothing can come at once, wherever else it might: nothing after it changes by that.
        while let Some(look) = self.look(done, record) {
            done |= 1 << look;
            order.push(look);
        }
        let first_return = self.first_return(done);
        if first_return.is_none() {
            return true;
        }
        if self.visited.len() < LIMIT && self.visited.insert((done, record)) {
            self.note(done, record, order);
            for item in 0..self.items.len() {
                if self.items[item].is_look || !self.can_be_next(done, first_return, item) {
                    continue;
                }
                for after in self.effect(item, record) {
                    if self.items[item].is_optional && after == record {
                        continue;
                    }
                    order.push(item);
                    if self.goes_on(done | 1 << item, after, order) {
                        return true;
                    }
                    order.pop();
                }
            }
        }
        order.truncate(begun);
        false
    }

    /// A look that can come next and is explained.
    fn look(&mut self, done: u128, record: usize) -> Option<usize> {
        let first_return = self.first_return(done);
        let is_next = |item: &usize| self.items[*item].is_look && self.can_be_next(done, first_return, *item);
        let next: Vec<usize> = (0..self.items.len()).filter(is_next).collect();
        next.into_iter().find(|item| self.fits(*item, record))
    }

    fn fits(&mut self, item: usize, record: usize) -> bool {
        self.items[item].is_busy || !self.effect(item, record).is_empty()
    }

    /// When the first of the items returned that must be in the order and are not yet; none if there are none.
    fn first_return(&self, done: u128) -> Option<u64> {
        // They are in the order in which they returned.
        let left = self.required & !done;
        (left != 0).then(|| self.items[left.trailing_zeros() as usize].until)
    }

    fn can_be_next(&self, done: u128, first_return: Option<u64>, item: usize) -> bool {
        if done >> item & 1 == 1 {
            return false;
        }
        let Item { invoked, until, is_optional, .. } = self.items[item];
        let is_late = || self.items.iter().enumerate().any(|(at, other)| done >> at & 1 == 1 && other.invoked > until);
        first_return.is_none_or(|first| invoked < first) && !(is_optional && is_late())
    }

    /// The records that the item may lead to from `record`.
    fn effect(&mut self, item: usize, record: usize) -> Vec<usize> {
        if let Some(known) = self.effects.get(&(item, record)) {
            return known.clone();
        }
        let Item { operation, reply, ref instants, latest, .. } = self.items[item];
        let found = self.records[record].clone();
        // A record that may have expired may be gone, whatever instant the call itself was judged at.
        let may_be_gone = found.as_ref().is_some_and(|found| !found.is_live(latest));
        let founds = [found.clone(), None];
        let founds = if may_be_gone { &founds[..] } else { &founds[..1] };
        let mut effects = Vec::new();
        for found in founds {
            for now in instants {
                let effect = explain::effect(operation, reply, found.as_ref(), *now);
                effects.extend(effect.filter(|effect| !effects.contains(effect)));
            }
        }
        let afters: Vec<usize> = effects
            .into_iter()
            .map(|effect| match effect {
                Effect::Nothing => record,
                Effect::Written(written) => self.number(*written),
                Effect::Removed => ABSENT,
            })
            .collect();
        self.effects.insert((item, record), afters.clone());
        afters
    }

    fn number(&mut self, record: Record) -> usize {
        let records = &mut self.records;
        *self.numbers.entry(record.encode()).or_insert_with(|| {
            records.push(Some(record));
            records.len() - 1
        })
    }

    fn calls(&self, order: &[usize]) -> Vec<usize> {
        order.iter().map(|item| self.items[*item].call).collect()
    }

    /// Remembers where most answers were explained.
    fn note(&mut self, done: u128, record: usize, order: &[usize]) {
        let explained = order.iter().filter(|item| !self.items[**item].is_optional).count();
        if explained < self.most || (explained == self.most && !self.stuck.next.is_empty()) {
            return;
        }
        let first_return = self.first_return(done);
        let required = (0..self.items.len()).filter(|item| !self.items[*item].is_optional);
        let next: Vec<usize> = required.filter(|item| self.can_be_next(done, first_return, *item)).collect();
        let next = self.calls(&next);
        self.most = explained;
        self.stuck = Stuck { order: self.calls(order), record: self.records[record].clone(), next };
    }
}
