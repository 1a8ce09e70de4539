//! Bodies in several frames.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;

use super::Count;

/// Gives way before each of its frames, as a body does that comes over a network.
pub(crate) struct Chunks {
    frames: VecDeque<Result<Frame<Bytes>, std::io::Error>>,
    is_ready: bool,
    taken: Count,
}

impl Chunks {
    pub(crate) fn of(chunks: &[&'static str]) -> Self {
        let frames = chunks.iter().map(|chunk| Ok(Frame::data(Bytes::from_static(chunk.as_bytes())))).collect();
        Self { frames, is_ready: false, taken: Count::default() }
    }

    pub(crate) fn then_trailers(mut self, trailers: HeaderMap) -> Self {
        self.frames.push_back(Ok(Frame::trailers(trailers)));
        self
    }

    pub(crate) fn then_break_off(mut self) -> Self {
        self.frames.push_back(Err(std::io::ErrorKind::ConnectionReset.into()));
        self
    }

    /// Counts the frames that are taken.
    pub(crate) fn counted(mut self, taken: &Count) -> Self {
        self.taken = taken.clone();
        self
    }
}

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        self.is_ready = !self.is_ready;
        if self.is_ready {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.taken.up();
        Poll::Ready(self.frames.pop_front())
    }
}
