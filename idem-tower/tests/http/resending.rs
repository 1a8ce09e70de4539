//! A client that sends a POST again when its connection breaks, and what it gets, wherever that happens.

use std::{net::SocketAddr, time::Duration};

use axum::{extract::State, routing::post as on_post};
use http::StatusCode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::support::{Count, Gate, Server, Setup, within};

/// Where a connection breaks.
#[derive(Clone, Copy, Debug)]
enum Break {
    /// The request is not passed on.
    Before,
    /// Half of the request is passed on.
    InTheRequest,
    /// The request is passed on whole, and the connection to the server is closed once its handler runs.
    WhileItRuns,
    /// The answer came, and nothing of it is passed on.
    BeforeTheAnswer,
    /// So many bytes of the answer are passed on.
    InTheAnswer(usize),
}

/// Between a client and a server: breaks the first connections as planned, and passes on what comes then.
struct Network {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Network {
    async fn to(server: &Server, runs: Gate, plan: &'static [Break]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, server) = (listener.local_addr().unwrap(), server.address);
        let task = tokio::spawn(async move {
            let mut plan = plan.iter();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                pass(client, server, plan.next().copied(), &runs).await;
            }
        });
        Self { address, task }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Passes one request on, and its answer.
async fn pass(mut client: TcpStream, server: SocketAddr, broken: Option<Break>, runs: &Gate) {
    let mut request = vec![0; REQUEST.len()];
    client.read_exact(&mut request).await.unwrap();
    let request = match broken {
        Some(Break::Before) => return,
        Some(Break::InTheRequest) => &request[..request.len() - 3],
        _ => &request,
    };
    let mut upstream = TcpStream::connect(server).await.unwrap();
    upstream.write_all(request).await.unwrap();
    match broken {
        Some(Break::InTheRequest) => return,
        Some(Break::WhileItRuns) => return runs.pass().await,
        _ => {}
    }
    let mut answer = Vec::new();
    within(upstream.read_to_end(&mut answer)).await.unwrap();
    let passed = match broken {
        Some(Break::BeforeTheAnswer) => 0,
        Some(Break::InTheAnswer(bytes)) => bytes,
        _ => answer.len(),
    };
    client.write_all(&answer[..passed]).await.unwrap();
}

const REQUEST: &str = "POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-api-key: tenant-7\r\nidempotency-key: k\r\n\
                       content-type: application/json\r\ncontent-length: 17\r\n\r\n{\"amount\":250000}";

/// Sends the same bytes on a new connection until an answer came whole. Gives it, and how often it was sent.
async fn send(address: SocketAddr) -> (String, usize) {
    for sent in 1..=5 {
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(REQUEST.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = within(connection.read_to_end(&mut answer)).await; // a reset is a break like any other
        let answer = String::from_utf8(answer).unwrap();
        if is_whole(&answer) {
            return (answer, sent);
        }
    }
    panic!("no answer came");
}

fn is_whole(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.is_some_and(|length| length.parse() == Ok(body.len()))
}

/// A handler that says when it runs, and waits to be let go on.
#[derive(Clone)]
struct Handler {
    count: Count,
    runs: Gate,
    go_on: Gate,
}

async fn handle(State(handler): State<Handler>) -> (StatusCode, String) {
    handler.runs.open();
    handler.go_on.pass().await;
    (StatusCode::CREATED, format!("paid {}", handler.count.up()))
}

async fn served(setup: &Setup) -> (Server, Handler) {
    let handler = Handler { count: Count::default(), runs: Gate::new(), go_on: Gate::new() };
    let server = Server::of(setup.app(on_post(handle).with_state(handler.clone()))).await;
    (server, handler)
}

// case 119
#[tokio::test]
async fn wherever_the_connection_breaks_before_the_answer_is_there_one_run_answers_every_sending() {
    let plans: [(&'static [Break], bool); 5] = [
        (&[Break::Before, Break::Before], false),
        (&[Break::InTheRequest], false),
        (&[Break::BeforeTheAnswer, Break::BeforeTheAnswer], true),
        (&[Break::InTheAnswer(9), Break::InTheAnswer(60)], true),
        (&[Break::InTheRequest, Break::Before, Break::InTheAnswer(100), Break::BeforeTheAnswer], true),
    ];
    for (plan, is_replay) in plans {
        let setup = Setup::new();
        let (server, handler) = served(&setup).await;
        handler.go_on.open();
        let network = Network::to(&server, handler.runs.clone(), plan).await;
        let (answer, sent) = send(network.address).await;
        assert!(answer.starts_with("HTTP/1.1 201 ") && answer.ends_with("\r\n\r\npaid 1"), "{plan:?}: {answer}");
        assert_eq!((sent, answer.contains("idempotent-replayed: true")), (plan.len() + 1, is_replay), "{plan:?}");
        assert_eq!(handler.count.now(), 1, "{plan:?}");
    }
}

// case 119
#[tokio::test]
async fn what_is_sent_again_while_the_first_runs_on_a_dead_connection_waits_its_turn_and_gets_that_answer() {
    let setup = Setup::new();
    let (server, handler) = served(&setup).await;
    let network = Network::to(&server, handler.runs.clone(), &[Break::WhileItRuns]).await;
    let (conflict, sent) = send(network.address).await;
    assert_eq!(sent, 2);
    assert!(conflict.starts_with("HTTP/1.1 409 ") && conflict.contains("request-in-progress"), "{conflict}");
    assert!(conflict.contains("\r\nretry-after: 5\r\n"), "{conflict}");
    // The server knows that the first connection is dead, and the run goes on all the same.
    server.dropped.pass().await;
    assert_eq!(handler.count.now(), 0);
    handler.go_on.open();
    let answer = within(async {
        loop {
            let (answer, _) = send(network.address).await;
            if !answer.starts_with("HTTP/1.1 409 ") {
                return answer;
            }
        }
    });
    let answer = answer.await;
    assert!(answer.ends_with("\r\n\r\npaid 1") && answer.contains("idempotent-replayed: true"), "{answer}");
    assert_eq!(handler.count.now(), 1);
}

// case 119
#[tokio::test]
async fn where_a_conflict_waits_the_sending_after_a_break_gets_the_answer_at_once() {
    let wait = idem_runner::OnConflict::Wait { at_most: Duration::from_secs(20) };
    let setup = Setup::with(|builder| builder.on_conflict(wait));
    let (server, handler) = served(&setup).await;
    let network = Network::to(&server, handler.runs.clone(), &[Break::WhileItRuns]).await;
    let address = network.address;
    let sending = tokio::spawn(send(address));
    server.dropped.pass().await;
    handler.go_on.open();
    let (answer, sent) = within(sending).await.unwrap();
    assert!(answer.ends_with("\r\n\r\npaid 1") && answer.contains("idempotent-replayed: true"), "{answer}");
    assert_eq!((sent, handler.count.now()), (2, 1));
}
