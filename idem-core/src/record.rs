//! What a store keeps for one scope and key.

use std::fmt;

use bytes::Bytes;

use crate::{
    AttemptId, DecodeError, Fingerprint, InvalidFingerprint, Response, Timestamp, Token,
    codec::{Reader, Writer},
};

/// The newest record format that this code reads, and the one that it writes.
const FORMAT: u8 = 1;

/// What a store keeps for one scope and key.
///
/// Only the [machine](crate::machine) decides what is in a record; a store keeps it, whole, through [`Record::encode`]
/// and [`Record::decode`] or field by field. A field more is a breaking change on purpose: a store that keeps fields
/// must not lose one unnoticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// How far the operation is.
    pub state: State,
    /// The token of the attempt that owns the record, or owned it last.
    pub token: Token,
    /// The number of that attempt, from 1, one more with each new attempt.
    pub number: u32,
    /// How that attempt came to own the record.
    pub origin: Origin,
    /// Whether an attempt before that one may have had effects.
    pub repeat: bool,
    /// How many attempts ended silently and were taken over.
    pub lapses: u32,
    /// The fingerprint of the request; none once an attempt that did nothing was forgotten.
    pub fingerprint: Option<Fingerprint>,
    /// The end of the lease: from this instant on the attempt may be taken over.
    pub lease_end: Timestamp,
    /// When the attempt claimed the record.
    pub claimed: Timestamp,
    /// When the attempt settled it; none while it is in progress.
    pub settled: Option<Timestamp>,
    /// The end of retention: from this instant on the record is absent, swept or not.
    pub expiry: Timestamp,
    /// What a later claim does when the lease lapses.
    pub on_lapse: OnLapse,
    /// Whether the attempt has renewed: under [`OnLapse::Hold`] its handler may have started.
    pub started: bool,
    /// Results that attempts left for those after them.
    pub checkpoints: Checkpoints,
}

/// How far an operation is. Only a done record has a response, so a marker can't be taken for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// An attempt owns the record.
    InProgress,
    /// The last attempt gave it back: the next one may start at once.
    Released,
    /// The outcome is unknown and waits for someone to resolve it.
    Held,
    /// The operation ended with this response.
    Done(Response),
}

/// How an attempt came to own its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// There was no record.
    First,
    /// The attempt before it was released.
    Release,
    /// The attempt before it ended silently.
    Takeover,
    /// Somebody resolved an unknown outcome.
    Resolved,
}

/// What a claim does with an attempt whose lease lapsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnLapse {
    /// Starts the next attempt.
    #[default]
    TakeOver,
    /// Answers Unknown, if the attempt had started: somebody has to find out what it did.
    Hold,
}

impl Record {
    /// The attempt that owns the record, or owned it last.
    pub fn attempt(&self) -> AttemptId {
        AttemptId { token: self.token, number: self.number }
    }

    /// Whether the record still exists at `now`: a record past its retention is absent, swept or not.
    pub fn is_live(&self, now: Timestamp) -> bool {
        now < self.expiry
    }

    /// Whether it is in progress and its lease is over at `now`.
    pub fn is_lapsed(&self, now: Timestamp) -> bool {
        self.state == State::InProgress && now >= self.lease_end
    }

    /// The whole record as bytes, behind a format number (1).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(FORMAT);
        out.u8(match self.state {
            State::InProgress => 0,
            State::Released => 1,
            State::Held => 2,
            State::Done(_) => 3,
        });
        out.raw(self.token.as_bytes());
        out.u32(self.number);
        out.u8(match self.origin {
            Origin::First => 0,
            Origin::Release => 1,
            Origin::Takeover => 2,
            Origin::Resolved => 3,
        });
        out.u8(u8::from(self.repeat));
        out.u32(self.lapses);
        out.u8(match self.on_lapse {
            OnLapse::TakeOver => 0,
            OnLapse::Hold => 1,
        });
        out.u8(u8::from(self.started));
        for instant in [self.lease_end, self.claimed, self.expiry] {
            out.i64(instant.as_millis());
        }
        out.u8(u8::from(self.settled.is_some()));
        out.i64(self.settled.map_or(0, Timestamp::as_millis));
        out.bytes(self.fingerprint.as_ref().map_or(&[][..], Fingerprint::as_bytes)); // none is empty: one never is
        self.checkpoints.write(&mut out);
        if let State::Done(response) = &self.state {
            out.bytes(&response.encode());
        }
        out.0
    }

    /// Reads what [`Record::encode`] wrote. Bodies are shared with `bytes`, not copied.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Newer`] for a format that this version does not know, [`DecodeError::Corrupt`] for anything that
    /// is not an encoded record, to the last byte.
    pub fn decode(bytes: impl Into<Bytes>) -> Result<Self, DecodeError> {
        let mut input = Reader::new("a stored record", bytes.into());
        input.format(FORMAT)?;
        let state = input.u8()?;
        let token = Token::from_bytes(input.array()?);
        let number = input.u32()?;
        let origin = match input.u8()? {
            0 => Origin::First,
            1 => Origin::Release,
            2 => Origin::Takeover,
            3 => Origin::Resolved,
            other => return Err(input.corrupt(format!("there is no origin {other}"))),
        };
        let repeat = input.bool()?;
        let lapses = input.u32()?;
        let on_lapse = match input.u8()? {
            0 => OnLapse::TakeOver,
            1 => OnLapse::Hold,
            other => return Err(input.corrupt(format!("there is no on-lapse rule {other}"))),
        };
        let started = input.bool()?;
        let lease_end = Timestamp::from_millis(input.i64()?);
        let claimed = Timestamp::from_millis(input.i64()?);
        let expiry = Timestamp::from_millis(input.i64()?);
        let settled = match (input.bool()?, input.i64()?) {
            (true, instant) => Some(Timestamp::from_millis(instant)),
            (false, 0) => None,
            (false, _) => return Err(input.corrupt("it has an instant at which it was not settled")),
        };
        let fingerprint = match input.bytes()? {
            none if none.is_empty() => None,
            bytes => Some(Fingerprint::from_bytes(&bytes).map_err(|error| match error {
                InvalidFingerprint::UnknownScheme { scheme } if scheme > Fingerprint::SCHEME => {
                    DecodeError::Newer { what: "a stored fingerprint", found: scheme, known: Fingerprint::SCHEME }
                }
                error => input.corrupt(error.to_string()),
            })?),
        };
        let checkpoints = Checkpoints::read(&mut input)?;
        let state = match state {
            0 => State::InProgress,
            1 => State::Released,
            2 => State::Held,
            3 => State::Done(Response::decode(input.bytes()?)?),
            other => return Err(input.corrupt(format!("there is no state {other}"))),
        };
        input.end()?;
        Ok(Self {
            state,
            token,
            number,
            origin,
            repeat,
            lapses,
            fingerprint,
            lease_end,
            claimed,
            settled,
            expiry,
            on_lapse,
            started,
            checkpoints,
        })
    }
}

/// The most bytes that the checkpoints of one record may have, names and values together: 64 KiB.
pub const MAX_CHECKPOINT_BYTES: usize = 64 * 1024;

/// Named results that attempts left for those after them. The first value of a name stays.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Checkpoints(Vec<(Box<str>, Bytes)>);

impl Checkpoints {
    /// The value kept under `name`.
    pub fn find(&self, name: &str) -> Option<&Bytes> {
        self.0.iter().find(|(kept, _)| **kept == *name).map(|(_, value)| value)
    }

    /// Names and values, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of all names and values together.
    pub fn size(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    pub(crate) fn with(&self, name: &str, value: &Bytes) -> Self {
        let mut more = self.clone();
        more.0.push((name.into(), value.clone()));
        more
    }

    fn write(&self, out: &mut Writer) {
        out.len(self.0.len());
        for (name, value) in &self.0 {
            out.bytes(name.as_bytes());
            out.bytes(value);
        }
    }

    fn read(input: &mut Reader) -> Result<Self, DecodeError> {
        (0..input.len()?).map(|_| Ok((input.string()?.into(), input.bytes()?))).collect::<Result<_, _>>().map(Self)
    }
}

/// For stores that keep them in a form of their own. Of two values of one name the first stays.
impl FromIterator<(String, Bytes)> for Checkpoints {
    fn from_iter<I: IntoIterator<Item = (String, Bytes)>>(checkpoints: I) -> Self {
        checkpoints.into_iter().fold(Self::default(), |kept, (name, value)| match kept.find(&name) {
            Some(_) => kept,
            None => kept.with(&name, &value),
        })
    }
}

impl fmt::Debug for Checkpoints {
    /// Names and sizes; never the values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, value)| (name, value.len()))).finish()
    }
}

#[cfg(test)]
mod tests;
