//! Bodies: the one type that requests and responses have inside and outside of the layer, and how they are collected
//! without ever holding more than a limit.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};

/// An error of a body that is not the layer's own.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of requests that the layer passes on and of responses that it gives: bytes at hand, with trailers or
/// without, or a stream.
///
/// Bytes at hand have a known length, from which the server makes the framing; a body with trailers has none, since
/// HTTP/1.1 sends trailers only after a chunked body.
#[derive(Default)]
pub struct Body {
    /// What comes first. Empty chunks are never kept.
    data: Option<Bytes>,
    rest: Rest,
}

#[derive(Default)]
enum Rest {
    #[default]
    None,
    Trailers(HeaderMap),
    Stream(UnsyncBoxBody<Bytes, BoxError>),
}

impl Body {
    /// No bytes.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Streams another body.
    pub fn new<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self { data: None, rest: Rest::Stream(body.map_err(Into::into).boxed_unsync()) }
    }

    /// The bytes that need not be waited for.
    pub(crate) fn at_hand(&self) -> Bytes {
        self.data.clone().unwrap_or_default()
    }

    pub(crate) fn buffered(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        let rest = trailers.filter(|trailers| !trailers.is_empty()).map_or(Rest::None, Rest::Trailers);
        Self { data: Some(data).filter(|data| !data.is_empty()), rest }
    }
}

impl From<Bytes> for Body {
    fn from(data: Bytes) -> Self {
        Self::buffered(data, None)
    }
}

impl From<String> for Body {
    fn from(data: String) -> Self {
        Self::from(Bytes::from(data))
    }
}

impl From<&'static str> for Body {
    fn from(data: &'static str) -> Self {
        Self::from(Bytes::from_static(data.as_bytes()))
    }
}

impl From<Vec<u8>> for Body {
    fn from(data: Vec<u8>) -> Self {
        Self::from(Bytes::from(data))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(data) = self.data.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match &mut self.rest {
            Rest::None => Poll::Ready(None),
            Rest::Stream(stream) => Pin::new(stream).poll_frame(cx),
            Rest::Trailers(trailers) => {
                let trailers = std::mem::take(trailers);
                self.rest = Rest::None;
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none()
            && match &self.rest {
                Rest::None => true,
                Rest::Trailers(_) => false,
                Rest::Stream(stream) => stream.is_end_stream(),
            }
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.data.as_ref().map_or(0, Bytes::len) as u64;
        let rest = match &self.rest {
            Rest::None => SizeHint::with_exact(0),
            Rest::Trailers(_) => SizeHint::default(),
            Rest::Stream(stream) => stream.size_hint(),
        };
        let mut hint = SizeHint::default();
        hint.set_lower(rest.lower().saturating_add(length));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(length)) {
            hint.set_upper(upper);
        }
        hint
    }
}

impl fmt::Debug for Body {
    /// Sizes; never what it says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes at hand", self.data.as_ref().map_or(0, Bytes::len))?;
        f.write_str(match &self.rest {
            Rest::None => ")",
            Rest::Trailers(_) => ", and trailers)",
            Rest::Stream(_) => ", and a stream)",
        })
    }
}

/// A body that was read as far as a limit allows.
pub(crate) enum Collected {
    /// All of it.
    Whole { data: Bytes, trailers: Option<HeaderMap> },
    /// More than the limit: what was read, and the rest still to come.
    TooLarge(Body),
}

/// Reads a body until it ends or has more than `limit` bytes, holding at most the limit and one frame.
///
/// # Errors
///
/// The body's own, where it breaks off.
pub(crate) async fn collect<B>(body: B, limit: usize) -> Result<Collected, B::Error>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let mut body = Box::pin(body);
    let mut read = Chunks::default();
    let mut trailers: Option<HeaderMap> = None;
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => {
                let fits = data.len() <= limit - read.len();
                read.push(data);
                if !fits {
                    return Ok(Collected::TooLarge(Body { data: Some(read.joined()), ..Body::new(body) }));
                }
            }
            Err(frame) => {
                if let Ok(more) = frame.into_trailers() {
                    trailers.get_or_insert_default().extend(more);
                }
            }
        }
    }
    Ok(Collected::Whole { data: read.joined(), trailers })
}

/// Joins chunks. A single one is kept as it is; from the second on they are copied, since a small chunk may keep a
/// large buffer alive.
#[derive(Default)]
struct Chunks {
    first: Bytes,
    all: BytesMut,
}

impl Chunks {
    fn len(&self) -> usize {
        self.first.len() + self.all.len()
    }

    fn push(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        if !self.first.is_empty() {
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.all.extend_from_slice(&data);
    }

    fn joined(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.freeze() }
    }
}

#[cfg(test)]
mod tests;
