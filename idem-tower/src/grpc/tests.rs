#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use idem_core::Differences;
use idem_runner::{Settle, SettlePolicy};

use super::*;

#[test]
fn every_code_settles_as_its_meaning_says_and_no_code_as_a_failure() {
    let policy = SettlePolicy::default();
    for code in 0..=17 {
        let expected = match code {
            0 | 5 | 6 | 9 => Settle::Complete,
            3 | 7 | 11 | 12 | 16 => Settle::Forget,
            _ => Settle::Release,
        };
        assert_eq!(policy.of(settles_as(Some(code))), expected, "{code}");
    }
    assert_eq!(policy.of(settles_as(None)), Settle::Release);
}

#[test]
fn the_code_is_that_of_the_trailers_and_of_headers_where_there_are_only_those() {
    let map = |value: &'static str| HeaderMap::from_iter([(STATUS, HeaderValue::from_static(value))]);
    assert_eq!(code_of(&HeaderMap::new(), Some(&map("9"))), Some(9));
    assert_eq!(code_of(&map("5"), None), Some(5));
    assert_eq!(code_of(&map("0"), Some(&map("13"))), Some(13));
    assert_eq!(code_of(&HeaderMap::new(), Some(&map("OK"))), None);
    assert_eq!(code_of(&HeaderMap::new(), None), None);
}

#[test]
fn bytes_are_written_in_the_alphabet_of_base64_without_padding() {
    // RFC 4648, section 10.
    for (plain, encoded) in
        [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg"), ("fooba", "Zm9vYmE")]
    {
        assert_eq!(base64(plain.as_bytes()), encoded);
    }
    assert_eq!(base64(&[0xfb, 0xff, 0xbf]), "+/+/");
}

#[test]
fn messages_keep_visible_ascii_and_escape_the_rest() {
    assert_eq!(percent_encoded("100 % of \u{e9}\n"), "100 %25 of %C3%A9%0A");
}

#[test]
fn a_problem_has_only_headers_with_code_message_and_time_to_retry() {
    let response = response(&Problem::in_progress(std::time::Duration::from_millis(2_100)), "urn:x");
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap());
    assert_eq!(response.status(), 200);
    assert_eq!(header("content-type"), Some("application/grpc"));
    assert_eq!((header("grpc-status"), header("grpc-retry-pushback-ms")), (Some("10"), Some("3000")));
    assert!(header("grpc-message").unwrap().starts_with("a request with this key is in progress"));
    assert!(http_body::Body::is_end_stream(response.body()));
    assert!(!super::response(&Problem::reused(Differences::Incomparable), "urn:x").headers().contains_key(PUSHBACK));
}

#[test]
fn lengths_of_more_than_a_byte_are_written_as_varints() {
    assert_eq!(field(1, &[7; 300])[..3], [0x0a, 0xac, 0x02]);
    assert_eq!(number(1, 16_384), [0x08, 0x80, 0x80, 0x01]);
}
