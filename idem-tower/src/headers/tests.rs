use http_body::Body as _;
use http_body_util::BodyExt;
use idem_core::NotRetained;

use super::*;

fn response(status: u16, headers: &[(&'static str, &'static [u8])]) -> Parts {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        let value = HeaderValue::from_bytes(value).unwrap();
        response.headers_mut().append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value);
    }
    response.into_parts().0
}

fn names(recorded: &Recorded) -> Vec<&str> {
    recorded.headers().iter().map(|(name, _)| std::str::from_utf8(name).unwrap()).collect()
}

fn post(rules: &HeaderRules, parts: &Parts) -> Recorded {
    rules.record(&Method::POST, parts, Kept::Kept(Bytes::new()), None)
}

// cases 092, 095
#[test]
fn what_was_right_for_the_first_exchange_only_is_not_recorded() {
    let never = [
        "Set-Cookie",
        "WWW-Authenticate",
        "Proxy-Authenticate",
        "Proxy-Authentication-Info",
        "Authentication-Info",
        "Set-Cookie2",
        "Date",
        "Connection",
        "Keep-Alive",
        "Proxy-Connection",
        "TE",
        "Transfer-Encoding",
        "Content-Length",
        "Upgrade",
        "X-Request-Id",
        "Request-Id",
        "X-Correlation-Id",
        "Correlation-Id",
        "X-Trace-Id",
        "traceparent",
        "tracestate",
        "RateLimit",
        "RateLimit-Remaining",
        "X-RateLimit-Remaining-Tokens",
        "X-Rate-Limit-Reset",
        "Idempotent-Replayed",
        "Idempotency-Stored",
    ];
    for name in never {
        assert_eq!(names(&post(&HeaderRules::default(), &response(201, &[(name, b"1")]))), [""; 0], "{name}");
    }
    for name in ["Location", "ETag", "Content-Type", "Retry-After", "Trailer", "X-Anything", "Link"] {
        let recorded = post(&HeaderRules::default(), &response(201, &[(name, b"1")]));
        assert_eq!(names(&recorded), [name.to_ascii_lowercase()], "{name}");
    }
}

#[test]
fn headers_that_the_connection_header_names_are_hop_by_hop_too() {
    let connection: [(&str, &[u8]); 2] = [("connection", b"close, X-Hop"), ("connection", b"x-second\t,x-third")];
    let others: [(&str, &[u8]); 4] = [("x-hop", b"1"), ("x-end", b"1"), ("x-second", b"1"), ("x-third", b"1")];
    let parts = response(200, &[&connection[..], &others[..]].concat());
    assert_eq!(names(&post(&HeaderRules::default(), &parts)), ["x-end"]);
}

#[test]
fn the_list_can_be_changed_but_not_for_framing() {
    let rules = HeaderRules {
        added: vec![header::LOCATION, header::SET_COOKIE],
        kept: vec![header::DATE, header::TRANSFER_ENCODING, header::SET_COOKIE],
        ..HeaderRules::default()
    };
    let parts = response(200, &[("location", b"/"), ("date", b"today"), ("transfer-encoding", b"chunked")]);
    assert_eq!(names(&post(&rules, &parts)), ["date"]);
    // What is on both lists is not recorded: the careful one counts.
    assert_eq!(names(&post(&rules, &response(200, &[("set-cookie", b"a=1")]))), [""; 0]);
}

#[test]
fn a_mark_of_another_name_is_not_recorded_and_the_usual_one_is_then_a_header_like_any_other() {
    let rules = HeaderRules { marker: HeaderName::from_static("x-replayed"), ..HeaderRules::default() };
    let parts = response(200, &[("x-replayed", b"true"), ("idempotent-replayed", b"true")]);
    assert_eq!(names(&post(&rules, &parts)), ["idempotent-replayed"]);
}

// case 095
#[test]
fn what_a_handler_records_for_its_own_transaction_has_no_framing_and_its_status() {
    let response = Response::builder().status(201).header("content-length", "4").header("etag", "\"1\"");
    let recorded = record(&response.body(Bytes::from_static(b"paid")).unwrap());
    assert_eq!(recorded, Recorded::new(201).with_header("etag", "\"1\"").with_body("paid"));
}

// case 095
#[test]
fn a_length_is_recorded_only_where_it_is_not_that_of_the_body() {
    let length: &[(&str, &[u8])] = &[("content-length", b"42")];
    let kept = || Kept::Kept(Bytes::new());
    let rules = HeaderRules::default();
    assert_eq!(names(&rules.record(&Method::HEAD, &response(200, length), kept(), None)), ["content-length"]);
    assert_eq!(names(&rules.record(&Method::POST, &response(304, length), kept(), None)), ["content-length"]);
    assert_eq!(names(&rules.record(&Method::POST, &response(200, length), kept(), None)), [""; 0]);
}

// cases 082, 097
#[tokio::test]
async fn a_response_comes_back_with_its_status_headers_bytes_and_trailers_in_order() {
    let headers: &[(&str, &[u8])] =
        &[("location", b"/1"), ("link", b"<a>"), ("link", b"<b>"), ("etag", b"\"\xff\""), ("x-empty", b"")];
    let parts = response(201, headers);
    let trailers = HeaderMap::from_iter([(HeaderName::from_static("checksum"), HeaderValue::from_static("9"))]);
    let body = Kept::Kept(Bytes::from_static(b"{ \"b\":1.0,\0\xff"));
    let recorded = HeaderRules::default().record(&Method::POST, &parts, body, Some(&trailers));

    let again = respond(&recorded);
    assert_eq!(again.status(), 201);
    let sent: Vec<_> = again.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    assert_eq!(sent, headers);
    let collected = again.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers(), Some(&trailers));
    assert_eq!(collected.to_bytes(), &b"{ \"b\":1.0,\0\xff"[..]);
}

#[test]
fn a_status_without_a_body_gets_none() {
    for status in [100, 103, 204, 304] {
        let again = respond(&Recorded::new(status).with_body("stray"));
        assert!(again.body().is_end_stream(), "{status}");
    }
    assert_eq!(respond(&Recorded::new(202)).body().size_hint().exact(), Some(0));
}

// cases 036, 125
#[test]
fn a_response_that_was_not_kept_is_never_an_empty_success() {
    for reason in [NotRetained::TooLarge, NotRetained::Secret] {
        let again = respond(&Recorded::new(201).with_kept(Kept::NotRetained(reason)));
        assert_eq!(again.status(), 409);
        assert!(!again.headers().contains_key("retry-after"));
    }
    let sealed = Kept::Sealed { key_id: "k".into(), bytes: Bytes::from_static(b"x") };
    assert_eq!(respond(&Recorded::new(201).with_kept(sealed)).status(), 409);
}

// case 095
#[tokio::test]
async fn framing_that_was_recorded_by_other_means_is_not_sent() {
    let by_hand = Recorded::new(200)
        .with_header("content-length", "2")
        .with_header("transfer-encoding", "chunked")
        .with_header("connection", "close")
        .with_header("set-cookie", "a=1")
        .with_trailer("content-length", "2")
        .with_body("paid");
    let sent = respond(&by_hand);
    assert_eq!(sent.headers().keys().collect::<Vec<_>>(), ["set-cookie"]);
    assert_eq!(sent.body().size_hint().exact(), Some(4));
    assert_eq!(sent.into_body().collect().await.unwrap().trailers(), None);
    // Beside no body it may be the length of what GET would send.
    assert_eq!(respond(&Recorded::new(200).with_header("content-length", "42")).headers()["content-length"], "42");
}

#[test]
fn what_http_can_not_send_does_not_panic() {
    for status in [0, 99, 1000, u16::MAX] {
        assert_eq!(respond(&Recorded::new(status)).status(), 500);
    }
    let odd = Recorded::new(200).with_header("a b", "1").with_header("ok", "a\r\nx: 1").with_header("fine", "1");
    let again = respond(&odd);
    assert_eq!(again.headers().len(), 1);
    assert_eq!(again.headers()["fine"], "1");
}
