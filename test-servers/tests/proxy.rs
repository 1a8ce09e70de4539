//! Each fault of the proxy, in front of the shared server.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::SinkExt;
use test_servers::{Cut, Fault, Proxy, Request, postgres, query, query_value};
use tokio_postgres::{Client, NoTls, Statement};

/// A table, a proxy in front of it, a client and its prepared insert.
struct Setup {
    database: String,
    proxy: Proxy,
    client: Client,
    insert: Statement,
}

const INSERT: &str = "INSERT INTO effects (id) VALUES ($1)";

async fn setup() -> Setup {
    let database = postgres().create_database(&[]);
    query(&database, "CREATE TABLE effects (id int PRIMARY KEY)");
    let proxy = Proxy::start(&database);
    let client = connect(&proxy, &database).await;
    let insert = client.prepare(INSERT).await.expect("the table is there");
    Setup { database, proxy, client, insert }
}

async fn connect(proxy: &Proxy, database: &str) -> Client {
    let (client, connection) =
        tokio_postgres::connect(&proxy.url_through(database), NoTls).await.expect("the proxy is there");
    tokio::spawn(connection);
    client
}

fn rows(database: &str) -> String {
    query_value(database, "SELECT count(*) FROM effects")
}

/// Waits until no backend but the asking one is left in a database: what was sent has been executed or never will be.
fn await_quiet(database: &str) {
    let others = "SELECT count(*) FROM pg_stat_activity \
                  WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let deadline = Instant::now() + Duration::from_secs(60);
    while query_value(database, others) != "0" {
        assert!(Instant::now() < deadline, "a connection stays open");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn without_a_fault_everything_passes_and_is_counted() {
    let Setup { database, proxy, client, insert } = setup().await;
    let prepared = Request { prepares: vec![INSERT.to_owned()], runs: vec![] };
    assert_eq!(proxy.take_requests(), [prepared]);
    assert_eq!(client.execute(&insert, &[&1]).await.unwrap(), 1);
    client.batch_execute("SELECT 1").await.unwrap();
    let runs = |sql: &str| Request { prepares: vec![], runs: vec![sql.to_owned()] };
    assert_eq!(proxy.take_requests(), [runs(INSERT), runs("SELECT 1")]);
    assert_eq!((proxy.requests(), proxy.connections(), proxy.strikes()), (3, 1, 0));
    assert_eq!(rows(&database), "1");
}

#[tokio::test]
async fn large_replies_and_requests_pass_whole() {
    let Setup { proxy: _proxy, client, .. } = setup().await;
    let large = vec![7_u8; 3_000_000];
    let row = client.query_one("SELECT $1::bytea, repeat('x', 1000000)", &[&large]).await.unwrap();
    assert_eq!(row.get::<_, Vec<u8>>(0), large);
    assert_eq!(row.get::<_, String>(1).len(), 1_000_000);
}

#[tokio::test]
async fn a_cut_before_the_request_means_that_it_is_never_executed() {
    let Setup { database, proxy, client, insert } = setup().await;
    proxy.arm(Fault::new(Cut::BeforeRequest));
    assert!(client.execute(&insert, &[&1]).await.unwrap_err().is_closed());
    assert_eq!(proxy.strikes(), 1);
    await_quiet(&database);
    assert_eq!(rows(&database), "0");
}

#[tokio::test]
async fn a_cut_before_or_within_the_reply_means_that_it_is_executed() {
    for cut in [Cut::BeforeReply, Cut::WithinReply] {
        let Setup { database, proxy, client, insert } = setup().await;
        proxy.arm(Fault::new(cut));
        assert!(client.execute(&insert, &[&1]).await.is_err(), "{cut:?}");
        assert_eq!(proxy.strikes(), 1);
        assert_eq!(rows(&database), "1", "{cut:?}");
    }
}

#[tokio::test]
async fn a_cut_after_the_request_leaves_the_server_alone_with_it() {
    let Setup { database, proxy, client, insert } = setup().await;
    proxy.arm(Fault::new(Cut::AfterRequest));
    assert!(client.execute(&insert, &[&1]).await.is_err());
    assert_eq!(proxy.strikes(), 1);
    await_quiet(&database);
    // Executed or not, but not twice.
    assert!(["0", "1"].contains(&rows(&database).as_str()));
}

#[tokio::test]
async fn a_commit_whose_reply_is_cut_is_committed_and_one_that_is_cut_before_is_not() {
    for (cut, expected) in [(Cut::BeforeRequest, "0"), (Cut::BeforeReply, "1")] {
        let Setup { database, proxy, mut client, insert } = setup().await;
        proxy.arm(Fault::new(cut).of("COMMIT"));
        let transaction = client.transaction().await.unwrap();
        transaction.execute(&insert, &[&1]).await.unwrap();
        assert_eq!(proxy.strikes(), 0);
        assert!(transaction.commit().await.is_err());
        assert_eq!(proxy.strikes(), 1);
        await_quiet(&database);
        assert_eq!(rows(&database), expected, "{cut:?}");
    }
}

#[tokio::test]
async fn a_loop_over_the_points_of_an_operation_ends_when_nothing_is_left_to_cut() {
    let mut outcomes = Vec::new();
    loop {
        let Setup { database, proxy, mut client, insert } = setup().await;
        proxy.arm(Fault::new(Cut::BeforeReply).after(outcomes.len() as u64));
        let done: Result<(), tokio_postgres::Error> = async {
            let transaction = client.transaction().await?;
            transaction.execute(&insert, &[&1]).await?;
            transaction.commit().await
        }
        .await;
        if proxy.strikes() == 0 {
            done.unwrap();
            break;
        }
        assert!(done.is_err());
        await_quiet(&database);
        outcomes.push(rows(&database));
    }
    // BEGIN, INSERT, COMMIT.
    assert_eq!(outcomes, ["0", "0", "1"]);
}

#[tokio::test]
async fn a_fault_of_a_statement_lets_others_pass_and_knows_prepared_ones() {
    let Setup { database, proxy, client, insert } = setup().await;
    proxy.arm(Fault::new(Cut::BeforeRequest).of("INSERT INTO effects").after(1));
    client.prepare(INSERT).await.unwrap();
    client.execute(&insert, &[&1]).await.unwrap();
    client.query("SELECT 1", &[]).await.unwrap();
    assert_eq!(proxy.strikes(), 0);
    assert!(client.execute(&insert, &[&2]).await.is_err());
    assert_eq!(proxy.strikes(), 1);
    assert_eq!(rows(&database), "1");
}

#[tokio::test]
async fn a_fault_strikes_as_often_as_it_says_or_until_it_is_disarmed() {
    let Setup { database, proxy, .. } = setup().await;
    proxy.arm(Fault::new(Cut::BeforeRequest).times(2));
    for expected in [false, false, true] {
        assert_eq!(connect(&proxy, &database).await.batch_execute("SELECT 1").await.is_ok(), expected);
    }
    assert_eq!(proxy.strikes(), 2);
    proxy.arm(Fault::new(Cut::BeforeRequest).always());
    for _ in 0..3 {
        assert!(connect(&proxy, &database).await.batch_execute("SELECT 1").await.is_err());
    }
    proxy.disarm();
    connect(&proxy, &database).await.batch_execute("SELECT 1").await.unwrap();
    assert_eq!(proxy.strikes(), 3);
}

#[tokio::test]
async fn a_black_hole_answers_nobody_and_what_was_sent_into_it_arrives_later() {
    let Setup { database, proxy, client, insert } = setup().await;
    proxy.black_hole();
    let patience = Duration::from_millis(300);
    let given_up = tokio::time::timeout(patience, client.execute(&insert, &[&1])).await;
    assert!(given_up.is_err(), "an answer came through");
    let address = proxy.url_through(&database);
    let waiting = tokio::time::timeout(patience, tokio_postgres::connect(&address, NoTls)).await;
    assert!(waiting.is_err(), "a login came through");
    assert_eq!(rows(&database), "0");
    drop(client);
    proxy.lift();
    let deadline = Instant::now() + Duration::from_secs(60);
    while rows(&database) != "1" {
        assert!(Instant::now() < deadline, "what was sent never arrived");
    }
    connect(&proxy, &database).await.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn connections_that_are_cut_in_a_black_hole_take_with_them_what_was_sent() {
    let Setup { database, proxy, client, insert } = setup().await;
    proxy.black_hole();
    let execute = client.execute(&insert, &[&1]);
    tokio::pin!(execute);
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut execute).await.is_err());
    proxy.cut_connections();
    assert!(execute.await.is_err());
    proxy.lift();
    await_quiet(&database);
    assert_eq!(rows(&database), "0");
}

#[tokio::test]
async fn new_connections_can_be_refused_while_old_ones_go_on() {
    let Setup { database, proxy, client, .. } = setup().await;
    proxy.refuse_connections();
    let refused = tokio_postgres::connect(&proxy.url_through(&database), NoTls).await.err().unwrap();
    assert!(format!("{refused:?}").contains("ConnectionRefused"), "{refused:?}");
    client.batch_execute("SELECT 1").await.unwrap();
    proxy.accept_connections();
    connect(&proxy, &database).await.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn replies_can_be_delayed() {
    let Setup { proxy, client, .. } = setup().await;
    let delay = Duration::from_millis(200);
    proxy.delay_replies(delay);
    let before = Instant::now();
    client.batch_execute("SELECT 1").await.unwrap();
    assert!(before.elapsed() >= delay);
    // Far longer than the test may take: only without it does an answer come.
    proxy.delay_replies(Duration::ZERO);
    client.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn cutting_all_connections_ends_each_and_new_ones_work() {
    let Setup { database, proxy, client, .. } = setup().await;
    proxy.cut_connections();
    assert!(client.batch_execute("SELECT 1").await.is_err());
    connect(&proxy, &database).await.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn the_count_of_replies_survives_a_copy() {
    let Setup { database, proxy, client, insert } = setup().await;
    // The server answers the two Syncs of a COPY by one reply.
    let sink = client.copy_in::<_, Bytes>("COPY effects FROM STDIN").await.unwrap();
    let mut sink = std::pin::pin!(sink);
    sink.send(Bytes::from_static(b"1\n2\n")).await.unwrap();
    assert_eq!(sink.finish().await.unwrap(), 2);
    proxy.arm(Fault::new(Cut::BeforeReply).after(1));
    client.execute(&insert, &[&3]).await.unwrap();
    assert!(client.execute(&insert, &[&4]).await.is_err());
    assert_eq!(rows(&database), "4");
}

#[tokio::test]
async fn notifications_pass_while_nothing_is_asked() {
    let Setup { database, proxy, .. } = setup().await;
    let config = proxy.url_through(&database);
    let (client, mut connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            let _ = sender.send(message);
        }
    });
    client.batch_execute("LISTEN news").await.unwrap();
    query(&database, "NOTIFY news, 'arrived'");
    let news = tokio::time::timeout(Duration::from_secs(30), received.recv()).await.unwrap();
    assert!(format!("{news:?}").contains("arrived"), "{news:?}");
}
