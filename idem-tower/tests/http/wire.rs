//! Replays on the wire: framing belongs to the connection, over HTTP/1.1 and HTTP/2, with axum and with hyper alone.

use std::{convert::Infallible, net::SocketAddr, sync::atomic::Ordering};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
    routing::{any, post as on_post},
};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::Full;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use idem_core::Scope;
use idem_tower::IdempotencyLayer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower::{Layer, service_fn};

use crate::support::{Answer, Chunks, Count, Server, Setup, within};

/// Sends one HTTP/1.1 request on a connection of its own and gives what came back, as it came.
async fn raw(server: &Server, method: &str, key: &str, more: &str) -> String {
    String::from_utf8(raw_bytes(server, method, key, more).await).unwrap()
}

async fn raw_bytes(server: &Server, method: &str, key: &str, more: &str) -> Vec<u8> {
    let mut client = TcpStream::connect(server.address).await.unwrap();
    let request = format!(
        "{method} / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-api-key: tenant-7\r\nidempotency-key: {key}\r\n{more}"
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    within(client.read_to_end(&mut answer)).await.unwrap();
    answer
}

const EMPTY: &str = "content-length: 0\r\n\r\n";

async fn http2(server: &Server, key: &str) -> Answer {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut client, connection) = handshake.await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::post(format!("http://{}/", server.address))
        .header("x-api-key", "tenant-7")
        .header("idempotency-key", key)
        .body(Full::new(Bytes::new()))
        .unwrap();
    let answer = Answer::of(within(client.send_request(request)).await.unwrap()).await;
    connection.abort();
    answer
}

// case 095
#[tokio::test]
async fn an_answer_that_was_chunked_is_replayed_with_framing_of_its_own() {
    let setup = Setup::new();
    let handler = || async {
        let body = Body::new(Chunks::of(&["one ", "two ", "three"]));
        Response::builder().status(201).header("location", "/1").header("keep-alive", "timeout=5").body(body).unwrap()
    };
    let server = Server::of(setup.app(on_post(handler))).await;
    let first = raw(&server, "POST", "k", EMPTY).await;
    assert!(first.starts_with("HTTP/1.1 201 Created\r\n") && first.contains("keep-alive: timeout=5"), "{first}");

    let again = raw(&server, "POST", "k", EMPTY).await;
    let (head, body) = again.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 201 Created\r\n"), "{head}");
    for line in ["location: /1", "idempotent-replayed: true", "content-length: 13"] {
        assert_eq!(head.lines().filter(|found| *found == line).count(), 1, "{line} in {head}");
    }
    assert!(!head.contains("transfer-encoding") && !head.contains("keep-alive"), "{head}");
    assert_eq!(body, "one two three");

    let over_http2 = http2(&server, "k").await;
    assert_eq!((over_http2.status, over_http2.text(), over_http2.is_replay()), (201, "one two three", true));
    assert_eq!(over_http2.header("content-length"), Some("13"));
}

// case 095
#[tokio::test]
async fn trailers_are_sent_again_over_http_1_and_http_2() {
    let setup = Setup::new();
    let handler = || async {
        let trailers = HeaderMap::from_iter([(http::HeaderName::from_static("checksum"), "9".parse().unwrap())]);
        let body = Body::new(Chunks::of(&["body"]).then_trailers(trailers));
        Response::builder().header("trailer", "checksum").body(body).unwrap()
    };
    let server = Server::of(setup.app(on_post(handler))).await;
    let wants_trailers = format!("te: trailers\r\n{EMPTY}");
    for is_replay in [false, true] {
        let answer = raw(&server, "POST", "k", &wants_trailers).await;
        assert_eq!(answer.contains("idempotent-replayed"), is_replay);
        assert!(answer.ends_with("4\r\nbody\r\n0\r\nchecksum: 9\r\n\r\n"), "{answer}");
    }
    let over_http2 = http2(&server, "k").await;
    assert_eq!(over_http2.trailers.unwrap()["checksum"], "9");
}

// case 095
#[tokio::test]
async fn replays_without_a_body_are_valid() {
    let setup = Setup::new();
    for (key, status) in [("204", StatusCode::NO_CONTENT), ("304", StatusCode::NOT_MODIFIED)] {
        let server = Server::of(setup.app(on_post(move || async move { status }))).await;
        raw(&server, "POST", key, EMPTY).await;
        let again = raw(&server, "POST", key, EMPTY).await;
        let (head, body) = again.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {key} ")) && head.contains("idempotent-replayed"), "{head}");
        assert!(body.is_empty() && !head.contains("transfer-encoding") && !head.contains("content-length"), "{again}");
        assert_eq!(http2(&server, key).await.status, status.as_u16());
    }

    let layer = setup.layer().methods([Method::HEAD]);
    let get = any(|| async { ([("content-length", "42")], ()).into_response() });
    let server = Server::of(setup.app_under(layer, get)).await;
    for is_replay in [false, true] {
        let answer = raw(&server, "HEAD", "head", "\r\n").await;
        assert!(answer.contains("content-length: 42\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
        assert_eq!(answer.contains("idempotent-replayed"), is_replay);
    }
}

/// Sends chunk after chunk, a gibibyte if it is let. How much was sent, and what was answered.
async fn flood(address: SocketAddr, key: &str) -> (usize, String) {
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\nx-api-key: tenant-7\r\nidempotency-key: {key}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    let (mut from, mut to) = client.split();
    let chunk = [b"10000\r\n".as_slice(), &[b'a'; 0x10000], b"\r\n"].concat();
    let mut sent = 0;
    let sending = async {
        while sent < 1 << 30 && to.write_all(&chunk).await.is_ok() {
            sent += 0x10000;
        }
        std::future::pending::<()>().await;
    };
    let mut answer = vec![0; 4096];
    let read = tokio::select! {
        read = from.read(&mut answer) => read.unwrap(),
        () = sending => 0,
    };
    (sent, String::from_utf8_lossy(&answer[..read]).into_owned())
}

// case 126
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_endless_uploads_at_once_are_each_refused_near_the_limit_and_claim_nothing() {
    let (setup, count) = (Setup::new(), Count::default());
    let runs = count.clone();
    let server = Server::of(setup.app(on_post(move || async move { runs.up().to_string() }))).await;
    let address = server.address;
    let uploads: Vec<_> =
        (0..20).map(|n| tokio::spawn(async move { flood(address, &format!("k-{n}")).await })).collect();
    for upload in uploads {
        let (sent, answer) = within(upload).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("request-too-large"), "{answer}");
        // The limit, and what the buffers of two sockets may hold.
        assert!(sent < 16 << 20, "{sent} bytes were taken");
    }
    assert_eq!((count.now(), setup.store.calls.load(Ordering::SeqCst)), (0, 0));
}

// cases 080, 097
#[tokio::test]
async fn repeated_header_values_and_bytes_that_are_not_ascii_come_back_on_the_wire_as_they_were() {
    let setup = Setup::new();
    let handler = || async {
        let mut response = Response::new(Body::from("done"));
        for value in [&b"caf\xe9"[..], b"second; \"quoted, comma\"", b"\xf0\x9f\x92\xb3"] {
            response.headers_mut().append("x-note", http::HeaderValue::from_bytes(value).unwrap());
        }
        response
    };
    let server = Server::of(setup.app(on_post(handler))).await;
    for is_replay in [false, true] {
        let answer = raw_bytes(&server, "POST", "k", EMPTY).await;
        let lines: Vec<_> =
            answer.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"x-note: ")).collect();
        assert_eq!(lines, [&b"caf\xe9\r"[..], b"second; \"quoted, comma\"\r", b"\xf0\x9f\x92\xb3\r"], "{is_replay}");
    }
    let over_http2 = http2(&server, "k").await;
    let values: Vec<_> = over_http2.headers.get_all("x-note").iter().map(|value| value.as_bytes()).collect();
    assert_eq!(values, [&b"caf\xe9"[..], b"second; \"quoted, comma\"", b"\xf0\x9f\x92\xb3"]);
    assert!(over_http2.is_replay());
}

// case 126
#[tokio::test]
async fn a_client_that_asks_before_it_sends_too_much_is_refused_without_being_told_to_go_on() {
    let (setup, count) = (Setup::new(), Count::default());
    let server = Server::of(setup.app(on_post(move || async move { count.up().to_string() }))).await;
    let answer = raw(&server, "POST", "k", "expect: 100-continue\r\ncontent-length: 1073741824\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("request-too-large"), "{answer}");
}

#[tokio::test]
async fn hyper_alone_can_serve_it() {
    let (setup, count) = (Setup::new(), Count::default());
    let handler = service_fn(move |request: Request<idem_tower::Body>| {
        let run = count.up();
        async move {
            let answer = format!("{} {run}", request.method());
            Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from(answer))))
        }
    });
    let layer = IdempotencyLayer::builder(setup.idempotency.clone(), |_| Some(Scope::global())).build().unwrap();
    let service = TowerToHyperService::new(layer.layer(handler));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            builder.serve_connection(TokioIo::new(stream), service.clone()).await.unwrap();
        }
    });
    for (method, is_replay, body) in
        [("POST", false, "POST 1"), ("POST", true, "POST 1"), ("GET", false, "GET 2"), ("GET", false, "GET 3")]
    {
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = format!(
            "{method} / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nidempotency-key: k\r\ncontent-length: 0\r\n\r\n"
        );
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        within(client.read_to_string(&mut answer)).await.unwrap();
        assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{answer}");
        assert_eq!(answer.contains("idempotent-replayed: true"), is_replay);
    }
    server.abort();
}
