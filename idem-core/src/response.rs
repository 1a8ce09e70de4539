//! The answer that is recorded and replayed.

use std::fmt;

use bytes::Bytes;

use crate::codec::{DecodeError, Reader, Writer};

/// The newest response format that this code reads, and the one that it writes.
const FORMAT: u8 = 1;

/// The recorded answer of an operation: a status, ordered headers, a body and trailers, all kept as bytes, so that a
/// replay equals the first answer to the byte.
///
/// Outside HTTP the status is still what tells kinds of outcome apart; use 200 where nothing better fits.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    status: u16,
    headers: Vec<(Bytes, Bytes)>,
    body: Body,
    trailers: Vec<(Bytes, Bytes)>,
}

/// What is kept of a body.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Body {
    /// All of it.
    Kept(Bytes),
    /// All of it, encrypted under the named key. What is sealed, and how, is the sealer's business.
    Sealed {
        /// Names the key that opens it, 1 to 255 bytes.
        key_id: String,
        /// The sealed bytes.
        bytes: Bytes,
    },
    /// Nothing: the operation was done and its answer can't be replayed.
    NotRetained(NotRetained),
}

/// Why a body was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotRetained {
    /// It was larger than the limit for stored responses.
    TooLarge,
    /// It holds something that must not be stored, such as a one-time secret.
    Secret,
}

impl Response {
    /// An answer with this status, no headers, an empty body and no trailers.
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Body::Kept(Bytes::new()), trailers: Vec::new() }
    }

    /// The same with one more header, behind those it has. A name may repeat.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The same with this body, kept whole.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Body::Kept(body.into());
        self
    }

    /// The same with what is kept of its body.
    #[must_use]
    pub fn with_kept(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    /// The same with one more trailer, behind those it has.
    #[must_use]
    pub fn with_trailer(mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.trailers.push((name.into(), value.into()));
        self
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Names and values of the headers, in order.
    pub fn headers(&self) -> &[(Bytes, Bytes)] {
        &self.headers
    }

    /// What is kept of the body.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Names and values of the trailers, in order.
    pub fn trailers(&self) -> &[(Bytes, Bytes)] {
        &self.trailers
    }

    /// The bytes that every store keeps: a format number (1), the status, headers, body and trailers.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(FORMAT);
        out.u16(self.status);
        write_fields(&mut out, &self.headers);
        match &self.body {
            Body::Kept(bytes) => {
                out.u8(0);
                out.bytes(bytes);
            }
            Body::Sealed { key_id, bytes } => {
                out.u8(1);
                out.bytes(key_id.as_bytes());
                out.bytes(bytes);
            }
            Body::NotRetained(NotRetained::TooLarge) => out.u8(2),
            Body::NotRetained(NotRetained::Secret) => out.u8(3),
        }
        write_fields(&mut out, &self.trailers);
        out.0
    }

    /// Reads what [`Response::encode`] wrote. The bytes are shared, not copied.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Newer`] for a format that this version does not know, [`DecodeError::Corrupt`] for anything that
    /// is not an encoded response, to the last byte.
    pub fn decode(bytes: impl Into<Bytes>) -> Result<Self, DecodeError> {
        let mut input = Reader::new("a stored response", bytes.into());
        input.format(FORMAT)?;
        let status = input.u16()?;
        let headers = read_fields(&mut input)?;
        let body = match input.u8()? {
            0 => Body::Kept(input.bytes()?),
            1 => Body::Sealed { key_id: input.string()?, bytes: input.bytes()? },
            2 => Body::NotRetained(NotRetained::TooLarge),
            3 => Body::NotRetained(NotRetained::Secret),
            other => return Err(input.corrupt(format!("there is no body of kind {other}"))),
        };
        let trailers = read_fields(&mut input)?;
        input.end()?;
        Ok(Self { status, headers, body, trailers })
    }
}

fn write_fields(out: &mut Writer, fields: &[(Bytes, Bytes)]) {
    out.len(fields.len());
    for (name, value) in fields {
        out.bytes(name);
        out.bytes(value);
    }
}

fn read_fields(input: &mut Reader) -> Result<Vec<(Bytes, Bytes)>, DecodeError> {
    // The count is not trusted with an allocation: each field read takes at least eight bytes of the input.
    (0..input.len()?).map(|_| Ok((input.bytes()?, input.bytes()?))).collect()
}

impl fmt::Debug for Response {
    /// Status and sizes; never what it says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response({}, {} headers, {:?}", self.status, self.headers.len(), self.body)?;
        if !self.trailers.is_empty() {
            write!(f, ", {} trailers", self.trailers.len())?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::Sealed { key_id, bytes } => write!(f, "{} bytes sealed under {key_id:?}", bytes.len()),
            Self::NotRetained(reason) => write!(f, "not retained: {reason:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn full() -> Response {
        Response::new(201)
            .with_header("location", "/payments/1")
            .with_header("x-twice", "1")
            .with_header("x-twice", &b"\xff\xfe"[..])
            .with_body(&b"{ \"b\":1.0, \"a\":1e2, \"a\":3, \"nul\":\"\0\xff\" }"[..])
            .with_trailer("grpc-status", "0")
    }

    // cases 080, 082, 097
    #[test]
    fn a_response_comes_back_byte_for_byte_with_its_headers_in_order() {
        assert_eq!(Response::decode(full().encode()).unwrap(), full());
    }

    // case 079
    #[test]
    fn an_empty_body_is_a_body() {
        let empty = Response::new(202);
        assert_eq!(Response::decode(empty.encode()).unwrap().body(), &Body::Kept(Bytes::new()));
    }

    #[test]
    fn every_kind_of_body_is_told_apart() {
        let sealed = Body::Sealed { key_id: "2026-11".into(), bytes: Bytes::from_static(b"\x01") };
        for body in [sealed, Body::NotRetained(NotRetained::TooLarge), Body::NotRetained(NotRetained::Secret)] {
            let response = Response::new(200).with_kept(body);
            assert_eq!(Response::decode(response.encode()).unwrap(), response);
        }
    }

    #[test]
    fn format_1_stays_readable_for_ever() {
        let stored = b"\x01\x00\xc9\
            \0\0\0\x01\0\0\0\x08location\0\0\0\x02/1\
            \0\0\0\0\x02ok\
            \0\0\0\0";
        let response = Response::new(201).with_header("location", "/1").with_body("ok");
        assert_eq!(Response::decode(&stored[..]).unwrap(), response);
        assert_eq!(response.encode(), stored);
    }

    #[test]
    fn a_newer_format_is_refused_and_not_guessed() {
        let mut bytes = full().encode();
        bytes[0] = 2;
        let error = Response::decode(bytes).unwrap_err();
        assert_eq!(error, DecodeError::Newer { what: "a stored response", found: 2, known: 1 });
    }

    #[test]
    fn a_response_cut_short_or_followed_by_more_is_refused() {
        let bytes = full().encode();
        for end in 0..bytes.len() {
            assert!(Response::decode(bytes[..end].to_vec()).is_err(), "cut at {end}");
        }
        assert!(Response::decode([&bytes[..], b"x"].concat()).is_err());
    }

    #[test]
    fn debug_never_shows_the_body() {
        let shown = format!("{:?}", Response::new(200).with_body("secret"));
        assert_eq!(shown, "Response(200, 0 headers, 6 bytes)");
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Response::decode(bytes);
        }
    }
}
