use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http_body::Body as _;
use http_body_util::Full;

use super::*;

/// Gives its frames one by one, and counts how many were taken.
struct Frames<E> {
    frames: VecDeque<Result<Frame<Bytes>, E>>,
    taken: Arc<AtomicUsize>,
}

impl<E: Unpin> http_body::Body for Frames<E> {
    type Data = Bytes;
    type Error = E;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(self.frames.pop_front())
    }
}

fn frames(chunks: &[&'static str]) -> Frames<Infallible> {
    let frames = chunks.iter().map(|chunk| Ok(Frame::data(Bytes::from_static(chunk.as_bytes())))).collect();
    Frames { frames, taken: Arc::default() }
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), http::HeaderValue::from_static("0"))])
}

#[tokio::test]
async fn a_body_of_several_frames_is_joined_and_keeps_its_trailers() {
    let mut body = frames(&["one ", "", "two ", "three"]);
    body.frames.push_back(Ok(Frame::trailers(trailers())));
    let Ok(Collected::Whole { data, trailers: Some(kept) }) = collect(body, 13).await else { panic!("not whole") };
    assert_eq!((&data[..], kept), (&b"one two three"[..], trailers()));
}

#[tokio::test]
async fn a_single_frame_is_kept_without_a_copy() {
    let chunk = Bytes::from(vec![7; 100]);
    let body = Frames::<Infallible> { frames: [Ok(Frame::data(chunk.clone()))].into(), taken: Arc::default() };
    let Ok(Collected::Whole { data, trailers: None }) = collect(body, 100).await else { panic!("not whole") };
    assert_eq!(data.as_ptr(), chunk.as_ptr());
}

// case 126
#[tokio::test]
async fn nothing_is_read_behind_the_frame_that_passes_the_limit() {
    let body = frames(&["1234", "5678", "9", "never", "read"]);
    let taken = body.taken.clone();
    let Ok(Collected::TooLarge(body)) = collect(body, 8).await else { panic!("not too large") };
    assert_eq!(taken.load(Ordering::Relaxed), 3);
    assert_eq!(body.size_hint().lower(), 9);
    assert_eq!(body.collect().await.unwrap().to_bytes(), "123456789neverread");
}

#[tokio::test]
async fn a_body_of_exactly_the_limit_is_whole_and_one_byte_more_is_not() {
    assert!(matches!(collect(frames(&["1234", "5678"]), 8).await, Ok(Collected::Whole { .. })));
    assert!(matches!(collect(frames(&["1234", "56789"]), 8).await, Ok(Collected::TooLarge(_))));
    assert!(matches!(collect(frames(&["123456789"]), 8).await, Ok(Collected::TooLarge(_))));
    assert!(matches!(collect(frames(&[]), 8).await, Ok(Collected::Whole { .. })));
}

#[tokio::test]
async fn a_body_that_breaks_off_is_an_error_and_never_a_shorter_body() {
    let broken = io::Error::from(io::ErrorKind::ConnectionReset);
    let frames = [Ok(Frame::data(Bytes::from_static(b"half"))), Err(broken)].into();
    assert!(collect(Frames { frames, taken: Arc::default() }, 100).await.is_err());
}

#[tokio::test]
async fn bytes_have_a_known_length_and_bytes_with_trailers_have_none() {
    let plain = Body::from("12345");
    assert_eq!(plain.size_hint().exact(), Some(5));
    assert!(!plain.is_end_stream());
    assert!(Body::from("").is_end_stream() && Body::empty().is_end_stream());
    assert_eq!(Body::empty().size_hint().exact(), Some(0));

    let with_trailers = Body::buffered(Bytes::from_static(b"12345"), Some(trailers()));
    assert_eq!((with_trailers.size_hint().lower(), with_trailers.size_hint().exact()), (5, None));
    let collected = with_trailers.collect().await.unwrap();
    assert_eq!(collected.trailers(), Some(&trailers()));
    assert_eq!(collected.to_bytes(), "12345");
}

#[test]
fn a_stream_tells_its_length_and_its_end_and_what_was_read_of_it_counts() {
    let full = || Full::new(Bytes::from_static(b"567"));
    assert_eq!(Body::new(full()).size_hint().exact(), Some(3));
    let begun = Body { data: Some(Bytes::from_static(b"1234")), ..Body::new(full()) };
    assert_eq!((begun.size_hint().exact(), begun.is_end_stream()), (Some(7), false));
    assert!(Body::new(Full::new(Bytes::new())).is_end_stream());
    assert_eq!(Body::new(frames(&["a"])).size_hint().exact(), None);
}

#[tokio::test]
async fn trailers_in_two_frames_are_all_kept() {
    let more = HeaderMap::from_iter([(http::HeaderName::from_static("checksum"), http::HeaderValue::from_static("9"))]);
    let mut body = frames(&["one"]);
    body.frames.extend([Ok(Frame::trailers(trailers())), Ok(Frame::trailers(more))]);
    let Ok(Collected::Whole { trailers: Some(kept), .. }) = collect(body, 3).await else { panic!("not whole") };
    assert_eq!(
        (&kept["grpc-status"], &kept["checksum"], kept.len()),
        (&"0".parse().unwrap(), &"9".parse().unwrap(), 2)
    );
}

#[test]
fn debug_shows_sizes_only() {
    assert_eq!(format!("{:?}", Body::from("secret")), "Body(6 bytes at hand)");
    let with_trailers = Body::buffered(Bytes::from_static(b"secret"), Some(trailers()));
    assert_eq!(format!("{with_trailers:?}"), "Body(6 bytes at hand, and trailers)");
    assert_eq!(format!("{:?}", Body::new(frames(&["secret"]))), "Body(0 bytes at hand, and a stream)");
}
