//! PgBouncer in front of the shared server.

use test_servers::{PgBouncer, PgBouncerSettings, is_running, postgres, query, query_value};
use tokio_postgres::{Client, NoTls};

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server is there");
    tokio::spawn(connection);
    client
}

#[test]
fn every_database_of_the_server_is_reached_through_it() {
    let (first, second) = (postgres().create_database(&[]), postgres().create_database(&[]));
    let pooler = PgBouncer::start(&first, PgBouncerSettings::new());
    for database in [&first, &second] {
        query(&pooler.url_through(database), "CREATE TABLE through_the_pooler (id int)");
        assert_eq!(query_value(database, "SELECT to_regclass('through_the_pooler') IS NOT NULL"), "t");
    }
    assert_eq!(query_value(&pooler.console_url(), "SHOW VERSION").split(' ').next(), Some("PgBouncer"));
}

#[tokio::test]
async fn sessions_are_not_the_clients_own() {
    let database = postgres().create_database(&[]);
    let pooler = PgBouncer::start(&database, PgBouncerSettings::new().pool_size(1));
    let first = connect(&pooler.url_through(&database)).await;
    let second = connect(&pooler.url_through(&database)).await;
    // Transaction mode: a session's setting of the one shows up at the other.
    first.batch_execute("SET idem.word = 'leaked'").await.unwrap();
    let leaked = second.simple_query("SHOW idem.word").await.unwrap();
    assert!(format!("{leaked:?}").contains("leaked"), "{leaked:?}");
}

#[tokio::test]
async fn a_named_statement_is_missing_on_the_next_session() {
    let database = postgres().create_database(&[]);
    let pooler = PgBouncer::start(&database, PgBouncerSettings::new().pool_size(2));
    let first = connect(&pooler.url_through(&database)).await;
    let second = connect(&pooler.url_through(&database)).await;
    let prepared = first.prepare("SELECT 1").await.unwrap();
    // Takes the only session there is, so that the next transaction of the first client gets a new one.
    second.batch_execute("BEGIN").await.unwrap();
    let refused = first.query(&prepared, &[]).await.unwrap_err();
    let code = refused.code().expect("the server refused it").code();
    assert_eq!(code, "26000", "{refused:?}");
}

#[tokio::test]
async fn a_client_waits_while_another_holds_the_only_connection() {
    let database = postgres().create_database(&[]);
    let pooler = PgBouncer::start(&database, PgBouncerSettings::new().pool_size(1));
    let first = connect(&pooler.url_through(&database)).await;
    let second = connect(&pooler.url_through(&database)).await;
    first.batch_execute("BEGIN").await.unwrap();
    let mut answer = Box::pin(second.simple_query("SELECT 1"));
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), &mut answer).await;
    assert!(early.is_err(), "it did not wait");
    first.batch_execute("COMMIT").await.unwrap();
    answer.await.unwrap();
}

#[tokio::test]
async fn a_parameter_that_it_does_not_know_is_refused() {
    let database = postgres().create_database(&[]);
    let pooler = PgBouncer::start(&database, PgBouncerSettings::new());
    let config: tokio_postgres::Config = pooler.url_through(&database).parse().unwrap();
    let refused = config.clone().options("-c statement_timeout=1000").connect(NoTls).await.err().unwrap();
    assert!(format!("{refused:?}").contains("unsupported startup parameter"), "{refused:?}");
}

#[test]
fn a_pooler_that_is_dropped_is_gone_with_its_folder() {
    let pooler = PgBouncer::start(&postgres().url(), PgBouncerSettings::new());
    let (process, folder) = (pooler.process_id(), pooler.folder().to_path_buf());
    assert!(is_running(process));
    drop(pooler);
    assert!(!is_running(process));
    assert!(!folder.exists());
}
