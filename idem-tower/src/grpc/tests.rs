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
    assert_eq!(percent_encoded("100 % of \u{e9}\n~\u{7f}"), "100 %25 of %C3%A9%0A~%7F");
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

/// The fields of a message: their numbers, and the number or the bytes that they hold.
fn fields(mut message: &[u8]) -> Vec<(u8, Result<u64, &[u8]>)> {
    fn varint(message: &mut &[u8]) -> u64 {
        let end = message.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let (taken, rest) = message.split_at(end);
        *message = rest;
        taken.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
    }
    let mut fields = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let value = varint(&mut message);
        let value = match tag & 7 {
            0 => Ok(value),
            _ => {
                let (taken, rest) = message.split_at(value as usize);
                message = rest;
                Err(taken)
            }
        };
        fields.push(((tag >> 3) as u8, value));
    }
    fields
}

// case 118
#[test]
fn the_details_are_a_status_with_the_reason_its_domain_and_type_and_the_time_to_retry() {
    let problem = Problem::in_progress(std::time::Duration::from_secs(3));
    let message = status_message(&problem, "urn:x:request-in-progress");
    let status = fields(&message);
    assert_eq!(status[..2], [(1, Ok(10)), (2, Err(problem.detail().as_bytes()))]);
    let [(3, Err(info)), (3, Err(retry))] = status[2..] else { panic!("{status:?}") };

    let [(1, Err(name)), (2, Err(info))] = fields(info)[..] else { panic!("{info:?}") };
    assert_eq!(name, b"type.googleapis.com/google.rpc.ErrorInfo");
    let [(1, Err(reason)), (2, Err(domain)), (3, Err(metadata))] = fields(info)[..] else { panic!("{info:?}") };
    assert_eq!((reason, domain), (&b"REQUEST_IN_PROGRESS"[..], &b"idem"[..]));
    assert_eq!(fields(metadata), [(1, Err(&b"type"[..])), (2, Err(&b"urn:x:request-in-progress"[..]))]);

    let [(1, Err(name)), (2, Err(retry))] = fields(retry)[..] else { panic!("{retry:?}") };
    assert_eq!(name, b"type.googleapis.com/google.rpc.RetryInfo");
    let [(1, Err(delay))] = fields(retry)[..] else { panic!("{retry:?}") };
    assert_eq!(fields(delay), [(1, Ok(3))], "seconds of google.protobuf.Duration");

    let reused = status_message(&Problem::reused(Differences::Incomparable), "urn:x");
    assert_eq!(fields(&reused).len(), 3, "where waiting does not help, no time is told");
    let sent = response(&problem, "urn:x:request-in-progress");
    assert_eq!(sent.headers()["grpc-status-details-bin"], base64(&message));
}

#[test]
fn codes_are_judged_as_the_statuses_that_a_policy_may_name() {
    let statuses = [200, 408, 500, 400, 504, 404, 409, 403, 429, 412, 503, 400, 405, 500, 503, 500, 401, 500];
    assert_eq!(
        [(); 18].iter().enumerate().map(|(code, ())| settles_as(Some(code as u16))).collect::<Vec<_>>(),
        statuses
    );
}

#[test]
fn lengths_of_more_than_a_byte_are_written_as_varints() {
    assert_eq!([number(1, 127), number(1, 128)], [vec![0x08, 0x7f], vec![0x08, 0x80, 0x01]]);
    assert_eq!(field(1, &[7; 300])[..3], [0x0a, 0xac, 0x02]);
    assert_eq!(number(1, 16_384), [0x08, 0x80, 0x80, 0x01]);
}
