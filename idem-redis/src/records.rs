//! Records as values.
//!
//! Format 1, big endian; scripts read and write it too. Instants are milliseconds by the server's clock, as the client
//! that began the record could tell it. How they are judged does not hang on that: `base` is the instant at which the
//! value's time to live was `ttl`, so now is `base + ttl - PTTL`, and every difference is the server's.
//!
//! | bytes | what |
//! |---|---|
//! | 2 | `i`, format |
//! | 1 | state: `p` in progress, `r` released, `h` held, `d` done |
//! | 1 | flags: 1 started, 2 repeat, 4 under hold; origin in the upper four bits |
//! | 4, 4 | number, lapses |
//! | 16 | token |
//! | 6 × 8 | base, ttl, lease end, claimed, settled, expiry |
//! | 4 + n | fingerprint |
//! | rest | done: the response; else 2: how many checkpoints, and for each 2 + n name, 4 + n value |

use bytes::{Buf, BufMut, Bytes, BytesMut};
use idem_core::{
    Checkpoints, DecodeError, Fingerprint, InvalidFingerprint, OnLapse, Origin, Record, Response, State, Timestamp,
    Token,
};

const MAGIC: u8 = b'i';
const FORMAT: u8 = 1;
const HEAD: usize = 28 + 6 * 8;

/// The end of time, in milliseconds: a script's numbers are exact up to twice this.
const FOREVER: i64 = 1 << 52;

const WHAT: &str = "a stored record";

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) record: Record,
    /// When its time to live was `ttl`.
    pub(crate) base: Timestamp,
    pub(crate) ttl: i64,
}

/// A record as a value that is written at `now`, and for how long.
pub(crate) fn encode(record: &Record, now: Timestamp, ttl: i64) -> Bytes {
    let fingerprint = record.fingerprint.as_ref().map_or(&[][..], Fingerprint::as_bytes);
    let mut out = BytesMut::with_capacity(HEAD + 4 + fingerprint.len() + 64);
    out.put_slice(&[MAGIC, FORMAT]);
    out.put_u8(match record.state {
        State::InProgress => b'p',
        State::Released => b'r',
        State::Held => b'h',
        State::Done(_) => b'd',
    });
    let origin = match record.origin {
        Origin::First => 0,
        Origin::Release => 1,
        Origin::Takeover => 2,
        Origin::Resolved => 3,
    };
    let flags = u8::from(record.started)
        | u8::from(record.repeat) << 1
        | u8::from(record.on_lapse == OnLapse::Hold) << 2
        | origin << 4;
    out.put_u8(flags);
    out.put_u32(record.number);
    out.put_u32(record.lapses);
    out.put_slice(record.token.as_bytes());
    out.put_i64(clamped(now));
    out.put_i64(ttl);
    for instant in
        [record.lease_end, record.claimed, record.settled.unwrap_or(Timestamp::from_millis(0)), record.expiry]
    {
        out.put_i64(clamped(instant));
    }
    out.put_u32(u32::try_from(fingerprint.len()).unwrap_or(u32::MAX));
    out.put_slice(fingerprint);
    match &record.state {
        State::Done(response) => out.put_slice(&response.encode()),
        _ => put_checkpoints(&record.checkpoints, &mut out),
    }
    out.freeze()
}

fn put_checkpoints(checkpoints: &Checkpoints, out: &mut BytesMut) {
    out.put_u16(u16::try_from(checkpoints.iter().count()).unwrap_or(u16::MAX));
    for (name, value) in checkpoints.iter() {
        out.put_u16(u16::try_from(name.len()).unwrap_or(u16::MAX));
        out.put_slice(name.as_bytes());
        out.put_u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        out.put_slice(value);
    }
}

/// For how long a value stays that is written at `now`, in milliseconds; at least one. The server shows it for the
/// millisecond in which nothing is left too, which would be one too many.
pub(crate) fn time_to_live(record: &Record, now: Timestamp) -> i64 {
    (clamped(record.expiry) - clamped(now) - 1).clamp(1, FOREVER)
}

pub(crate) fn clamped(instant: Timestamp) -> i64 {
    instant.as_millis().clamp(-FOREVER, FOREVER)
}

/// An instant as it was stored: the end of time is the core's again.
pub(crate) fn instant(millis: i64) -> Timestamp {
    Timestamp::from_millis(if millis >= FOREVER { i64::MAX } else { millis })
}

/// Reads a value.
pub(crate) fn decode(value: Bytes) -> Result<Stored, DecodeError> {
    let corrupt = |problem: &str| DecodeError::Corrupt { what: WHAT, problem: problem.into() };
    let mut rest = Input(value);
    match (rest.u8()?, rest.u8()?) {
        (MAGIC, FORMAT) => {}
        (MAGIC, found) if found > FORMAT => return Err(DecodeError::Newer { what: WHAT, found, known: FORMAT }),
        _ => return Err(corrupt("it does not begin as a record does")),
    }
    let state = rest.u8()?;
    let flags = rest.u8()?;
    let number = rest.u32()?;
    let lapses = rest.u32()?;
    let token = rest.token()?;
    let base = instant(rest.i64()?);
    let ttl = rest.i64()?;
    let lease_end = instant(rest.i64()?);
    let claimed = instant(rest.i64()?);
    let settled = instant(rest.i64()?);
    let expiry = instant(rest.i64()?);
    let length = usize::try_from(rest.u32()?).unwrap_or(usize::MAX);
    let fingerprint = match rest.checked(length)? {
        [] => None,
        stored => Some(Fingerprint::from_bytes(stored).map_err(|error| match error {
            InvalidFingerprint::UnknownScheme { scheme } if scheme > Fingerprint::SCHEME => {
                DecodeError::Newer { what: "a stored fingerprint", found: scheme, known: Fingerprint::SCHEME }
            }
            error => corrupt(&error.to_string()),
        })?),
    };
    rest.0.advance(length);
    let origin = match flags >> 4 {
        0 => Origin::First,
        1 => Origin::Release,
        2 => Origin::Takeover,
        3 => Origin::Resolved,
        _ => return Err(corrupt("its origin is none that there is")),
    };
    let (state, checkpoints) = match state {
        b'd' => (State::Done(Response::decode(rest.0)?), Checkpoints::default()),
        b'p' | b'r' | b'h' => {
            let checkpoints = rest.checkpoints()?;
            let state = match state {
                b'p' => State::InProgress,
                b'r' => State::Released,
                _ => State::Held,
            };
            (state, checkpoints)
        }
        _ => return Err(corrupt("its state is none that there is")),
    };
    let record = Record {
        settled: (state != State::InProgress).then_some(settled),
        state,
        token,
        number,
        origin,
        repeat: flags & 2 != 0,
        lapses,
        fingerprint,
        lease_end,
        claimed,
        expiry,
        on_lapse: if flags & 4 != 0 { OnLapse::Hold } else { OnLapse::TakeOver },
        started: flags & 1 != 0,
        checkpoints,
    };
    Ok(Stored { record, base, ttl })
}

struct Input(Bytes);

impl Input {
    /// The next bytes, if there are so many.
    fn checked(&self, length: usize) -> Result<&[u8], DecodeError> {
        self.0.get(..length).ok_or_else(|| {
            let problem = format!("it ends {} bytes early", length - self.0.len());
            DecodeError::Corrupt { what: WHAT, problem }
        })
    }

    fn take(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        self.checked(length)?;
        Ok(self.0.split_to(length))
    }

    /// A field of a fixed length, copied: who shares bytes is counted, which takes longer.
    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], DecodeError> {
        let mut array = [0; LENGTH];
        array.copy_from_slice(self.checked(LENGTH)?);
        self.0.advance(LENGTH);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn i64(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    fn token(&mut self) -> Result<Token, DecodeError> {
        Ok(Token::from_bytes(self.array()?))
    }

    fn checkpoints(&mut self) -> Result<Checkpoints, DecodeError> {
        let mut kept = Vec::new();
        for _ in 0..self.u16()? {
            let length = usize::from(self.u16()?);
            let name = String::from_utf8(self.take(length)?.to_vec()).map_err(|_| DecodeError::Corrupt {
                what: WHAT,
                problem: "the name of a checkpoint is not UTF-8".into(),
            })?;
            let length = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
            kept.push((name, self.take(length)?));
        }
        if !self.0.is_empty() {
            let problem = format!("it goes on for {} bytes behind its end", self.0.len());
            return Err(DecodeError::Corrupt { what: WHAT, problem });
        }
        Ok(kept.into_iter().collect())
    }
}

#[cfg(test)]
mod tests;
