//! What is refused before anything is claimed.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    client::Reply,
    server::{BODY, LIMIT, Place, Process, code},
};

async fn post(server: &Process, headers: &[(&str, &str)], body: impl Into<bytes::Bytes>) -> Reply {
    server.client().post("/payments", headers, body, LIMIT).await.unwrap()
}

#[tokio::test]
async fn without_an_api_key_the_answer_is_401_before_all_else() {
    let server = Process::serve("memory:", &[]).await;
    assert_eq!(server.pay("k-1", BODY, &[]).await.status, 201);
    for api_key in [&[][..], &["7"], &["tenant-"], &["tenant-07"], &["tenant-x"], &["tenant-7", "tenant-8"]] {
        let credentials: Vec<_> = api_key.iter().map(|key| ("x-api-key", *key)).collect();
        for (key, body) in [(&[("idempotency-key", "k-1")][..], BODY), (&[], BODY), (&[("idempotency-key", "\"")], "{")]
        {
            let refused = post(&server, &[&credentials, key].concat(), body).await;
            assert_eq!((refused.status.as_u16(), code(&refused)), (401, "unauthorized".into()), "{api_key:?}");
        }
        let listed = server.client().get("/payments", &credentials, LIMIT).await.unwrap();
        assert_eq!(listed.status, 401);
    }
    assert_eq!(server.totals().await, [1, 1, 1]);
}

#[tokio::test]
async fn a_missing_or_malformed_key_is_a_400_that_says_which() {
    let server = Process::serve("memory:", &[]).await;
    let too_long = "k".repeat(256);
    for (keys, expected) in [
        (&[][..], "idempotency-key-missing"),
        (&[""], "idempotency-key-malformed"),
        (&["\"k-1"], "idempotency-key-malformed"),
        (&["k-1", "k-1"], "idempotency-key-malformed"),
        (&[&*too_long], "idempotency-key-too-long"),
    ] {
        let mut headers = vec![("x-api-key", "tenant-7")];
        headers.extend(keys.iter().map(|key| ("idempotency-key", *key)));
        let refused = post(&server, &headers, BODY).await;
        assert_eq!((refused.status.as_u16(), code(&refused)), (400, expected.into()), "{keys:?}");
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    }
    assert_eq!(server.totals().await, [0, 0, 0]);
}

#[tokio::test]
async fn a_malformed_payment_is_refused_before_the_claim_and_may_be_corrected_under_its_key() {
    let server = Process::serve("memory:", &[]).await;
    let malformed = [
        "",
        "{",
        "null",
        "[]",
        "\u{feff}{}",
        r#"{"amountMinor":250000}"#,
        r#"{"currency":"VND"}"#,
        r#"{"amountMinor":0,"currency":"VND"}"#,
        r#"{"amountMinor":-250000,"currency":"VND"}"#,
        r#"{"amountMinor":2.5,"currency":"VND"}"#,
        r#"{"amountMinor":"250000","currency":"VND"}"#,
        r#"{"amountMinor":1e400,"currency":"VND"}"#,
        r#"{"amountMinor":1,"amountMinor":2,"currency":"VND"}"#,
        r#"{"amountMinor":250000,"currency":""}"#,
        r#"{"amountMinor":250000,"currency":"VND","cartId":7}"#,
    ];
    let deep = "[".repeat(200_000);
    for body in malformed.into_iter().chain([&*deep]) {
        let refused = server.pay("k-1", body, &[]).await;
        let shown: String = body.chars().take(60).collect();
        assert_eq!((refused.status.as_u16(), code(&refused)), (400, "invalid-payment".into()), "{shown}");
        assert_eq!(server.record("k-1").await, None, "{shown}");
    }
    let not_utf8 = [&b"{\"amountMinor\":1,\"currency\":\"VN\xff\"}"[..]].concat();
    let headers = [("x-api-key", "tenant-7"), ("idempotency-key", "k-1")];
    assert_eq!(post(&server, &headers, not_utf8).await.status, 400);
    assert_eq!(server.pay("k-1", BODY, &[("x-delay-ms", "soon")]).await.status, 400);
    assert_eq!(server.record("k-1").await, None);
    assert_eq!(server.pay("k-1", BODY, &[]).await.status, 201);
    assert_eq!(server.totals().await, [1, 1, 1]);
}

// case 126
#[tokio::test]
async fn a_body_over_a_mebibyte_is_refused_and_leaves_no_record() {
    const MEBIBYTE: usize = 1024 * 1024;
    let server = Process::serve("memory:", &[]).await;
    let announced = format!("Content-Length: {}\r\n\r\n", MEBIBYTE + 1);
    let sent = format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{}", MEBIBYTE + 1, " ".repeat(MEBIBYTE + 1));
    for rest in [announced, sent] {
        let mut connection = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
        let head = "POST /payments HTTP/1.1\r\nHost: payments\r\nX-Api-Key: tenant-7\r\nIdempotency-Key: k-1\r\n";
        connection.write_all(format!("{head}{rest}").as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(LIMIT, connection.read_to_string(&mut answer)).await.expect("it is answered").unwrap();
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("request-too-large"), "{answer}");
        assert_eq!(server.record("k-1").await, None);
    }
    let largest = format!("{BODY}{}", " ".repeat(MEBIBYTE - BODY.len()));
    assert_eq!(server.pay("k-1", &largest, &[]).await.status, 201);
}

/// The record of the first payment has expired; the ledger and the provider keep their own, and refuse the key for another
/// order.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_paid_for_another_payment_is_refused_for_good_and_still_pays_the_first_one_again() {
    let place = Place::sqlite();
    let server = place.serve(&["--retention", "1s", "--lease", "500ms"]).await;
    let first = server.pay("k-1", BODY, &[]).await;
    assert_eq!(first.status, 201);
    let other = r#"{"amountMinor":1,"currency":"VND"}"#;
    let expired = async {
        loop {
            let reply = server.pay("k-1", other, &[]).await;
            if code(&reply) != "idempotency-key-reused" {
                return reply;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let refused = tokio::time::timeout(LIMIT, expired).await.expect("the retention ends");
    assert_eq!((refused.status.as_u16(), &*code(&refused)), (422, "key-charged-otherwise"));
    assert_eq!(server.pay("k-1", other, &[]).await.status, 422);
    let again = server.pay("k-1", BODY, &[]).await;
    assert_eq!((again.status, &again.body), (first.status, &first.body), "the same charge and the same row");
    assert_eq!(server.totals().await[1..], [1, 1]);
}
