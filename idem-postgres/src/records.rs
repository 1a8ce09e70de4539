//! Records as rows.

use std::time::Duration;

use bytes::Bytes;
use idem_core::{
    AttemptId, Claim, DecodeError, Fingerprint, InvalidFingerprint, Key, OnLapse, Origin, Owner, Record, Response,
    Scope, State, StoreError, StoreErrorKind, Timestamp, Token, machine,
};
use tokio_postgres::{
    Row,
    types::{FromSql, ToSql},
};

use crate::error::{BACKEND, postgres_error, store_error};

/// The newest format of a row that this code reads, and the one that it writes.
const FORMAT: i16 = 1;

/// The first column behind those of the record.
pub(crate) const AFTER_RECORD: usize = 19;

/// Reads a row of a claim: what it found, or nothing where it wrote the row of a first claim; and when.
pub(crate) fn given(row: &Row, operation: &'static str) -> Result<(Option<Record>, Timestamp), StoreError> {
    let at = seen_at(row, operation)?;
    let found = if column(row, 0, operation)? { None } else { Some(record(row, operation)?) };
    Ok((found, at))
}

/// When what is in the row was seen.
pub(crate) fn seen_at(row: &Row, operation: &'static str) -> Result<Timestamp, StoreError> {
    Ok(Timestamp::from_millis(column(row, 1, operation)?))
}

/// Reads the record, whose columns begin with the third.
pub(crate) fn record(row: &Row, operation: &'static str) -> Result<Record, StoreError> {
    let mut next = 2;
    let mut columns = Columns { row, next: &mut next, operation };
    let format: i16 = columns.take()?;
    if format > FORMAT {
        let (found, known) = (u8::try_from(format).unwrap_or(u8::MAX), FORMAT.unsigned_abs() as u8);
        return Err(undecodable(operation, DecodeError::Newer { what: "a stored record", found, known }));
    }
    let state: i16 = columns.take()?;
    let token: &[u8] = columns.take()?;
    let number: i64 = columns.take()?;
    let origin: i16 = columns.take()?;
    let repeat = columns.take()?;
    let lapses: i64 = columns.take()?;
    let fingerprint: Option<&[u8]> = columns.take()?;
    let lease_end = Timestamp::from_millis(columns.take()?);
    let claimed = Timestamp::from_millis(columns.take()?);
    let settled: Option<i64> = columns.take()?;
    let expiry = Timestamp::from_millis(columns.take()?);
    let on_lapse: i16 = columns.take()?;
    let started = columns.take()?;
    let names: Vec<String> = columns.take()?;
    let values: Vec<&[u8]> = columns.take()?;
    let response: Option<&[u8]> = columns.take()?;

    let damaged = |problem: &str| {
        undecodable(operation, DecodeError::Corrupt { what: "a stored record", problem: problem.into() })
    };
    let state = match (state, response) {
        (0, _) => State::InProgress,
        (1, _) => State::Released,
        (2, _) => State::Held,
        (3, Some(response)) => {
            let response = Response::decode(Bytes::copy_from_slice(response));
            State::Done(response.map_err(|error| undecodable(operation, error))?)
        }
        _ => return Err(damaged("its state is none that there is")),
    };
    Ok(Record {
        state,
        token: Token::from_bytes(token.try_into().map_err(|_| damaged("its token has not 16 bytes"))?),
        number: u32::try_from(number).map_err(|_| damaged("its number is out of range"))?,
        origin: match origin {
            0 => Origin::First,
            1 => Origin::Release,
            2 => Origin::Takeover,
            3 => Origin::Resolved,
            _ => return Err(damaged("its origin is none that there is")),
        },
        repeat,
        lapses: u32::try_from(lapses).map_err(|_| damaged("its lapses are out of range"))?,
        fingerprint: fingerprint.map(|stored| parse_fingerprint(stored, operation)).transpose()?,
        lease_end,
        claimed,
        settled: settled.map(Timestamp::from_millis),
        expiry,
        on_lapse: match on_lapse {
            0 => OnLapse::TakeOver,
            1 => OnLapse::Hold,
            _ => return Err(damaged("its on-lapse rule is none that there is")),
        },
        started,
        checkpoints: match names.len() == values.len() {
            true => names.into_iter().zip(values.into_iter().map(Bytes::copy_from_slice)).collect(),
            false => return Err(damaged("its checkpoints do not match their names")),
        },
    })
}

/// The record that a first claim wrote at `now`.
pub(crate) fn first(claim: &Claim, now: Timestamp, operation: &'static str) -> Result<Record, StoreError> {
    let decision = machine::claim(None, claim, now).map_err(|_| StoreError::token_reused(BACKEND))?;
    decision.write.ok_or_else(|| {
        let message = "the machine left a record that is absent as it is; this is a bug in idem";
        store_error(StoreErrorKind::Contract, operation, message)
    })
}

/// A row that can't be read: of kind configuration if a newer version wrote it, else corrupt.
fn undecodable(operation: &'static str, error: DecodeError) -> StoreError {
    StoreError::undecodable(BACKEND, operation, error)
}

fn parse_fingerprint(stored: &[u8], operation: &'static str) -> Result<Fingerprint, StoreError> {
    Fingerprint::from_bytes(stored).map_err(|error| {
        let what = "a stored fingerprint";
        undecodable(
            operation,
            match error {
                InvalidFingerprint::UnknownScheme { scheme } if scheme > Fingerprint::SCHEME => {
                    DecodeError::Newer { what, found: scheme, known: Fingerprint::SCHEME }
                }
                error => DecodeError::Corrupt { what, problem: error.to_string() },
            },
        )
    })
}

struct Columns<'r> {
    row: &'r Row,
    next: &'r mut usize,
    operation: &'static str,
}

impl<'r> Columns<'r> {
    fn take<T: FromSql<'r>>(&mut self) -> Result<T, StoreError> {
        let value = column(self.row, *self.next, self.operation);
        *self.next += 1;
        value
    }
}

pub(crate) fn column<'r, T: FromSql<'r>>(row: &'r Row, index: usize, operation: &'static str) -> Result<T, StoreError> {
    row.try_get(index).map_err(|error| postgres_error(operation, error))
}

/// What names an owner's row: the first values of every statement of an owner's.
pub(crate) struct OwnerColumns<'a> {
    scope: &'a str,
    key: &'a str,
    token: Vec<u8>,
    number: i64,
}

impl<'a> OwnerColumns<'a> {
    pub(crate) fn of(owner: &'a Owner) -> Self {
        Self::seen(owner.scope(), owner.key(), owner.attempt())
    }

    pub(crate) fn seen(scope: &'a Scope, key: &'a Key, attempt: AttemptId) -> Self {
        let AttemptId { token, number } = attempt;
        Self { scope: scope.as_str(), key: key.as_str(), token: token.as_bytes().to_vec(), number: number.into() }
    }

    /// These and the values behind them.
    pub(crate) fn and<'v>(&'v self, others: &[&'v (dyn ToSql + Sync)]) -> Vec<&'v (dyn ToSql + Sync)> {
        let Self { scope, key, token, number } = self;
        let own: [&(dyn ToSql + Sync); 4] = [scope, key, token, number];
        [&own, others].concat()
    }
}

/// The number of a state's column.
pub(crate) fn state_number(state: &State) -> i16 {
    match state {
        State::InProgress => 0,
        State::Released => 1,
        State::Held => 2,
        State::Done(_) => 3,
    }
}

pub(crate) fn origin_number(origin: Origin) -> i16 {
    match origin {
        Origin::First => 0,
        Origin::Release => 1,
        Origin::Takeover => 2,
        Origin::Resolved => 3,
    }
}

pub(crate) fn on_lapse_number(on_lapse: OnLapse) -> i16 {
    match on_lapse {
        OnLapse::TakeOver => 0,
        OnLapse::Hold => 1,
    }
}

/// A claim as the values of its first row.
pub(crate) struct ClaimColumns<'a> {
    pub(crate) scope: &'a str,
    pub(crate) key: &'a str,
    pub(crate) token: [u8; 16],
    pub(crate) fingerprint: &'a [u8],
    pub(crate) on_lapse: i16,
    pub(crate) lease: i64,
    /// How long it stays.
    pub(crate) kept: i64,
}

impl<'a> ClaimColumns<'a> {
    pub(crate) fn of(claim: &'a Claim) -> Self {
        Self {
            scope: claim.scope().as_str(),
            key: claim.key().as_str(),
            token: *claim.token().as_bytes(),
            fingerprint: claim.fingerprint().as_bytes(),
            on_lapse: on_lapse_number(claim.on_lapse()),
            lease: millis(claim.lease()),
            kept: millis(match claim.on_lapse() {
                OnLapse::TakeOver => claim.retention().standard(),
                OnLapse::Hold => claim.retention().held(),
            }),
        }
    }
}

/// A duration in milliseconds, rounded up as the core does it.
pub(crate) fn millis(duration: Duration) -> i64 {
    Timestamp::from_millis(0).after(duration).as_millis()
}

/// Whose claim of a group a row answers.
pub(crate) fn token_of(row: &Row) -> Result<Token, StoreError> {
    let bytes: &[u8] = column(row, AFTER_RECORD, "claim")?;
    let bytes = bytes.try_into().map_err(|_| {
        store_error(StoreErrorKind::Corrupt, "claim", "a token that the server gave back has not 16 bytes")
    })?;
    Ok(Token::from_bytes(bytes))
}

/// The values of a swap: the row that was judged, and the record that it becomes.
pub(crate) struct Swap<'a> {
    scope: &'a str,
    key: &'a str,
    seen: Identity<'a>,
    judged_at: i64,
    next: Next<'a>,
    now: Option<i64>,
}

struct Identity<'a> {
    token: &'a [u8],
    number: i64,
    state: i16,
    lease_end: i64,
    expiry: i64,
    checkpoints: i32,
    started: bool,
}

struct Next<'a> {
    token: &'a [u8],
    number: i64,
    origin: i16,
    repeat: bool,
    lapses: i64,
    fingerprint: Option<&'a [u8]>,
    lease_end: i64,
    claimed: i64,
    expiry: i64,
    on_lapse: i16,
    started: bool,
    keeps_checkpoints: bool,
}

impl<'a> Swap<'a> {
    pub(crate) fn of(
        scope: &'a Scope,
        key: &'a Key,
        (seen, judged_at): (&'a Record, Timestamp),
        next: &'a Record,
        now: Option<i64>,
    ) -> Self {
        Self {
            scope: scope.as_str(),
            key: key.as_str(),
            seen: Identity {
                token: seen.token.as_bytes(),
                number: seen.number.into(),
                state: state_number(&seen.state),
                lease_end: seen.lease_end.as_millis(),
                expiry: seen.expiry.as_millis(),
                // An attempt's checkpoints only grow.
                checkpoints: i32::try_from(seen.checkpoints.iter().count()).unwrap_or(i32::MAX),
                started: seen.started,
            },
            judged_at: judged_at.as_millis(),
            next: Next {
                token: next.token.as_bytes(),
                number: next.number.into(),
                origin: origin_number(next.origin),
                repeat: next.repeat,
                lapses: next.lapses.into(),
                fingerprint: next.fingerprint.as_ref().map(Fingerprint::as_bytes),
                lease_end: next.lease_end.as_millis(),
                claimed: next.claimed.as_millis(),
                expiry: next.expiry.as_millis(),
                on_lapse: on_lapse_number(next.on_lapse),
                started: next.started,
                // The machine keeps all of them, or begins anew where the record had expired.
                keeps_checkpoints: seen.is_live(judged_at),
            },
            now,
        }
    }

    /// In the order of the statement's parameters.
    pub(crate) fn values(&self) -> [&(dyn ToSql + Sync); 23] {
        let Self { scope, key, seen, judged_at, next, now } = self;
        [
            scope,
            key,
            &seen.token,
            &seen.number,
            &seen.state,
            &seen.lease_end,
            &seen.expiry,
            judged_at,
            &next.token,
            &next.number,
            &next.origin,
            &next.repeat,
            &next.lapses,
            &next.fingerprint,
            &next.lease_end,
            &next.claimed,
            &next.expiry,
            &next.on_lapse,
            &next.started,
            &next.keeps_checkpoints,
            now,
            &seen.checkpoints,
            &seen.started,
        ]
    }
}
