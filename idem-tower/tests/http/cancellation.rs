//! From the claim on nothing is cancelled, however the client leaves.

use std::{
    pin::pin,
    sync::atomic::Ordering,
    task::{Context, Waker},
};

use axum::{body::Body, routing::post as on_post};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tower::ServiceExt;

use crate::support::{Answer, App, Chunks, Count, Gate, Server, Setup, post, within};

const HEAD: &str = "POST / HTTP/1.1\r\nhost: localhost\r\nx-api-key: tenant-7\r\nidempotency-key: k\r\n\
                    content-type: application/json\r\n";

/// A served handler that says when it starts and when it has finished, and waits in between.
struct Service {
    setup: Setup,
    app: App,
    server: Server,
    started: Gate,
    go: Gate,
    finished: Gate,
    runs: Count,
}

impl Service {
    async fn new() -> Self {
        let (setup, runs) = (Setup::new(), Count::default());
        let (started, go, finished) = (Gate::new(), Gate::new(), Gate::new());
        let handler = {
            let (started, go, finished, runs) = (started.clone(), go.clone(), finished.clone(), runs.clone());
            move || async move {
                let run = runs.up();
                started.open();
                go.pass().await;
                finished.open();
                (StatusCode::CREATED, format!("paid in run {run}"))
            }
        };
        let app = setup.app(on_post(handler));
        let server = Server::of(app.clone()).await;
        Self { setup, app, server, started, go, finished, runs }
    }

    /// The client has left: a retry meanwhile is told to wait, the handler finishes, and then it gets the replay.
    async fn finishes_without_its_client(self) {
        self.server.dropped.pass().await;
        let refused = self.app.send(post("k", "{}")).await;
        refused.problem("request-in-progress");
        assert!(refused.headers.contains_key("retry-after"));
        self.go.open();
        self.finished.pass().await;
        let replay = until_settled(&self.app).await;
        assert_eq!((replay.status, replay.text(), replay.is_replay()), (201, "paid in run 1", true));
        assert_eq!(self.runs.now(), 1);
    }
}

/// The answer once the attempt is settled that a request would conflict with.
async fn until_settled(app: &App) -> Answer {
    within(async {
        loop {
            let answer = app.send(post("k", "{}")).await;
            if answer.status != 409 {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

// cases 047, 051, 119
#[tokio::test]
async fn the_handler_finishes_when_an_http_1_connection_is_closed() {
    let service = Service::new().await;
    let mut client = TcpStream::connect(service.server.address).await.unwrap();
    client.write_all(format!("{HEAD}content-length: 2\r\n\r\n{{}}").as_bytes()).await.unwrap();
    service.started.pass().await;
    drop(client);
    service.finishes_without_its_client().await;
}

// case 047
#[tokio::test]
async fn the_handler_finishes_when_the_client_closes_its_half_and_still_reads() {
    let service = Service::new().await;
    let mut client = TcpStream::connect(service.server.address).await.unwrap();
    client.write_all(format!("{HEAD}content-length: 2\r\n\r\n{{}}").as_bytes()).await.unwrap();
    service.started.pass().await;
    client.shutdown().await.unwrap();
    service.finishes_without_its_client().await;
    drop(client);
}

// case 047
#[tokio::test]
async fn the_handler_finishes_when_an_http_2_stream_is_reset() {
    let service = Service::new().await;
    let stream = TcpStream::connect(service.server.address).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut client, connection) = handshake.await.unwrap();
    let connection = tokio::spawn(connection);
    let (parts, _) = post("k", Body::empty()).into_parts();
    let mut request = Request::from_parts(parts, Full::new(Bytes::from_static(b"{}")));
    *request.uri_mut() = format!("http://{}/", service.server.address).parse().unwrap();
    let response = tokio::spawn(client.send_request(request));
    service.started.pass().await;
    response.abort();
    assert!(response.await.unwrap_err().is_cancelled());
    service.finishes_without_its_client().await;
    connection.abort();
}

// case 126
#[tokio::test]
async fn an_upload_whose_connection_breaks_claims_nothing() {
    let service = Service::new().await;
    let mut client = TcpStream::connect(service.server.address).await.unwrap();
    client.write_all(format!("{HEAD}content-length: 100\r\n\r\n{{\"amount\"").as_bytes()).await.unwrap();
    drop(client);
    // The server notices it either way: as a dropped request, or as a body that ends early.
    let mut client = TcpStream::connect(service.server.address).await.unwrap();
    client.write_all(format!("{HEAD}transfer-encoding: chunked\r\n\r\n5\r\n{{\"amo").as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    let mut answer = Vec::new();
    within(client.read_to_end(&mut answer)).await.unwrap();
    assert_eq!((service.runs.now(), service.setup.records.record_count()), (0, 0));
    assert_eq!(service.setup.store.calls.load(Ordering::SeqCst), 0);
}

// cases 047, 051
#[tokio::test]
async fn wherever_the_response_future_is_dropped_the_handler_has_run_wholly_once_or_not_at_all() {
    let (mut cancelled_before, mut finished_without) = (0, 0);
    for polls in 0..200 {
        let (setup, begun, ended) = (Setup::new(), Count::default(), Count::default());
        setup.store.yields.store(2, Ordering::SeqCst);
        let app = setup.app({
            let (begun, ended) = (begun.clone(), ended.clone());
            on_post(move |body: Bytes| async move {
                begun.up();
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                ended.up();
                body
            })
        });
        let answered = {
            let upload = Body::new(Chunks::of(&["{\"a\":", "1}"]));
            let mut response = pin!(app.0.clone().oneshot(post("k", upload)));
            let mut cx = Context::from_waker(Waker::noop());
            let mut answered = false;
            for _ in 0..polls {
                answered = response.as_mut().poll(&mut cx).is_ready();
                if answered {
                    break;
                }
            }
            answered
        };
        let retry = || async { app.send(post("k", "{\"a\":1}")).await };
        let answer = within(async {
            loop {
                let answer = retry().await;
                if answer.status != 409 {
                    return answer;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!((answer.status, answer.text()), (200, "{\"a\":1}"), "after {polls} polls");
        assert_eq!((begun.now(), ended.now()), (1, 1), "after {polls} polls");
        match (answered, answer.is_replay()) {
            (true, is_replay) => {
                assert!(is_replay);
                assert!(cancelled_before > 2 && finished_without > 5, "{cancelled_before} {finished_without}");
                return;
            }
            (false, true) => finished_without += 1,
            (false, false) => cancelled_before += 1,
        }
    }
    panic!("the request was never answered");
}
