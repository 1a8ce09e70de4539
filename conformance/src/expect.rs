//! Assertions on answers. They point at the line of the check that makes them.

use std::{fmt::Debug, time::Duration};

use idem_core::{Answer, Fenced, Grant, Record, Response, Snapshot, StoreError};

type Answered = Result<Answer, StoreError>;

/// The value of a call that may not fail here.
#[track_caller]
pub(crate) fn ok<T>(result: Result<T, StoreError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("The store failed where it must not: {error}"),
    }
}

/// The answer to a call of which `rule` says what it must be.
#[track_caller]
fn answer<T>(result: Result<T, StoreError>, rule: &str) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{rule}; the store failed: {error}"),
    }
}

#[track_caller]
fn wrong(rule: &str, answered: &impl Debug) -> ! {
    panic!("{rule}; the store answered {answered:?}")
}

#[track_caller]
pub(crate) fn claimed(answered: Answered, rule: &str) -> Grant {
    match answer(answered, rule) {
        Answer::Claimed(grant) => grant,
        other => wrong(rule, &other),
    }
}

#[track_caller]
pub(crate) fn taken_over(answered: Answered, rule: &str) -> Grant {
    match answer(answered, rule) {
        Answer::TakenOver(grant) => grant,
        other => wrong(rule, &other),
    }
}

#[track_caller]
pub(crate) fn replayed(answered: Answered, rule: &str) -> Response {
    match answer(answered, rule) {
        Answer::Replay { response, .. } => response,
        other => wrong(rule, &other),
    }
}

/// The time left, where the store told it.
#[track_caller]
pub(crate) fn conflict(answered: Answered, rule: &str) -> Option<Duration> {
    match answer(answered, rule) {
        Answer::Conflict { left, .. } => left,
        other => wrong(rule, &other),
    }
}

#[track_caller]
pub(crate) fn reused(answered: Answered, rule: &str) {
    match answer(answered, rule) {
        Answer::Reuse { .. } => {}
        other => wrong(rule, &other),
    }
}

#[track_caller]
pub(crate) fn unknown(answered: Answered, rule: &str) {
    match answer(answered, rule) {
        Answer::Unknown => {}
        other => wrong(rule, &other),
    }
}

#[track_caller]
pub(crate) fn late(answered: Answered, rule: &str) {
    match answer(answered, rule) {
        Answer::Superseded => {}
        other => wrong(rule, &other),
    }
}

#[track_caller]
pub(crate) fn written<T: Debug>(answered: Result<Fenced<T>, StoreError>, rule: &str) -> T {
    match answer(answered, rule) {
        Fenced::Written(value) => value,
        Fenced::Superseded => wrong(rule, &Fenced::<T>::Superseded),
    }
}

#[track_caller]
pub(crate) fn superseded<T: Debug>(answered: Result<Fenced<T>, StoreError>, rule: &str) {
    match answer(answered, rule) {
        Fenced::Superseded => {}
        written => wrong(rule, &written),
    }
}

/// The record that a read found.
#[track_caller]
pub(crate) fn present(read: Result<Option<Snapshot>, StoreError>, rule: &str) -> Record {
    match answer(read, rule) {
        Some(snapshot) => snapshot.record,
        None => panic!("{rule}; the store has no record"),
    }
}

#[track_caller]
pub(crate) fn absent(read: Result<Option<Snapshot>, StoreError>, rule: &str) {
    if let Some(snapshot) = answer(read, rule) {
        panic!("{rule}; the store has {:?}", snapshot.record)
    }
}
