//! The smallest part of a history that no order explains.
//!
//! Nothing that matters is taken away. A call that wrote, or may have, is left out only if no order explains the others
//! *whatever it did*, within its time; one that was told that it wrote nothing, only if none does even if that is not
//! true. So what is left is a finding by itself, and no effect of what was left out can excuse it.

use idem_core::{AttemptId, Checkpointed, Fenced, Record, State};

use super::{
    history::{Call, History, Operation, Reply},
    search::{self, Part},
};

/// The part that each call has in the finding. [`Part::Full`] is what to show.
pub(super) fn shrink(history: &History) -> Vec<Part> {
    let mut parts = until_it_fails(history);
    // From the end of the history, since what comes first explains the rest.
    loop {
        let mut is_smaller = false;
        for call in by_return(history).into_iter().rev() {
            if parts[call] != Part::Full {
                continue;
            }
            parts[call] = left_out(&history.calls[call]);
            let still_fails = search::has_none(history, |call| parts[call]);
            if still_fails { is_smaller = true } else { parts[call] = Part::Full }
        }
        if !is_smaller {
            break;
        }
    }
    with_doubtful_looks(history, &mut parts);
    with_causes(history, &mut parts);
    parts
}

/// The part of a call whose answer does not count: it may have done what it was for, unless it was told that it did not.
fn left_out(call: &Call) -> Part {
    if call.is_look() { Part::None } else { Part::Maybe }
}

/// Shows again the calls that were told that they wrote nothing, where that is what makes the finding.
fn with_doubtful_looks(history: &History, parts: &mut [Part]) {
    let shown = (0..parts.len()).filter(|call| parts[*call] == Part::Full);
    let last = shown.filter_map(|call| history.calls[call].answered()).max().unwrap_or(0);
    for (number, call) in history.calls.iter().enumerate() {
        if parts[number] == Part::None && call.is_look() && call.invoked < last {
            parts[number] = Part::Maybe;
            let still_fails = search::has_none(history, |call| parts[call]);
            parts[number] = if still_fails { Part::None } else { Part::Full };
        }
    }
}

/// Leaves out what came after the first answer that no order explains. What was in flight then may have happened.
fn until_it_fails(history: &History) -> Vec<Part> {
    let order = by_return(history);
    let parts_of_first = |count: usize| -> Vec<Part> {
        let full = &order[..count];
        let last = full.last().and_then(|call| history.calls[*call].answered()).unwrap_or(0);
        let part = |number: usize, call: &Call| match full.contains(&number) {
            true => Part::Full,
            false if call.invoked < last => left_out(call),
            false => Part::None,
        };
        history.calls.iter().enumerate().map(|(number, call)| part(number, call)).collect()
    };
    // The beginnings of a history that has an order have one too, so the first that has none can be found by halving.
    let (mut has_order, mut has_none) = (0, order.len());
    while has_none - has_order > 1 {
        let middle = usize::midpoint(has_order, has_none);
        let parts = parts_of_first(middle);
        if search::has_none(history, |call| parts[call]) { has_none = middle } else { has_order = middle }
    }
    parts_of_first(has_none)
}

/// The calls that were answered, in the order in which they were.
fn by_return(history: &History) -> Vec<usize> {
    let answered = history.calls.iter().enumerate().filter(|(_, call)| call.answered().is_some());
    let mut calls: Vec<usize> = answered.map(|(number, _)| number).collect();
    calls.sort_by_key(|number| history.calls[*number].answered());
    calls
}

/// Shows again what the shown answers tell of: a reader wants to know where it comes from.
fn with_causes(history: &History, parts: &mut [Part]) {
    loop {
        let mut order: Vec<usize> = (0..parts.len()).filter(|call| parts[*call] == Part::Maybe).collect();
        order.sort_by_key(|call| history.calls[*call].invoked);
        let shown = |call: &usize| parts[*call] == Part::Full;
        let shown: Vec<&Call> = (0..parts.len()).filter(shown).map(|call| &history.calls[call]).collect();
        let cause = order.into_iter().find(|call| is_told_of(&history.calls[*call], &shown));
        match cause {
            Some(cause) => parts[cause] = Part::Full,
            None => return,
        }
    }
}

/// Whether an answer that is shown tells of what this call did, and no other call is shown that did it.
fn is_told_of(call: &Call, shown: &[&Call]) -> bool {
    let told = || shown.iter().filter_map(|shown| shown.reply());
    let records = || told().filter_map(Reply::record);
    let began = |call: &Call, attempt: AttemptId| match (call.reply(), &call.operation) {
        (Some(reply), Operation::Claim(_) | Operation::Resolve(_)) => {
            !call.is_look() && reply.record().is_some_and(|record| record.attempt() == attempt)
        }
        (None, Operation::Claim(claim)) => claim.token() == attempt.token,
        (None, Operation::Resolve(resolve)) => resolve.token() == attempt.token,
        _ => false,
    };
    let is_in = |of: &Record, attempt: AttemptId, state: &State| of.attempt() == attempt && of.state == *state;
    let is_new =
        |does: &dyn Fn(&Operation) -> bool| !shown.iter().any(|shown| !shown.is_look() && does(&shown.operation));
    match &call.operation {
        _ if call.is_look() => false,
        Operation::Claim(_) | Operation::Resolve(_) => {
            let attempts =
                records().map(Record::attempt).chain(shown.iter().filter_map(|shown| shown.operation.attempt()));
            let mut unexplained = attempts.filter(|attempt| !shown.iter().any(|shown| began(shown, *attempt)));
            unexplained.any(|attempt| began(call, attempt))
        }
        Operation::Complete(_, response, _) => {
            let is_told = told()
                .any(|reply| matches!(reply, Reply::Completed(Fenced::Written(told)) if told == response))
                || records().any(|record| record.state == State::Done(response.clone()));
            is_told && is_new(&|other| matches!(other, Operation::Complete(_, other, _) if other == response))
        }
        Operation::Release(owner) | Operation::Forget(owner) => {
            let ends =
                |other: &Operation| matches!(other, Operation::Release(by) | Operation::Forget(by) if by == owner);
            records().any(|record| is_in(record, owner.attempt(), &State::Released)) && is_new(&ends)
        }
        Operation::Hold(owner, _) => {
            let ends = |other: &Operation| matches!(other, Operation::Hold(by, _) if by == owner);
            records().any(|record| is_in(record, owner.attempt(), &State::Held)) && is_new(&ends)
        }
        Operation::Checkpoint(_, checkpoint) => {
            let (name, value) = (checkpoint.name(), checkpoint.value());
            let keeps = |other: &Operation| matches!(other, Operation::Checkpoint(_, other) if other.name() == name && other.value() == value);
            let is_kept = |reply: &Reply| {
                matches!(reply, Reply::Kept(Fenced::Written(Checkpointed::Kept(kept))) if kept == value)
                    || reply.record().is_some_and(|record| record.checkpoints.find(name) == Some(value))
            };
            told().any(is_kept) && is_new(&keeps)
        }
        Operation::Renew(..) | Operation::Read | Operation::Purge => false,
    }
}
