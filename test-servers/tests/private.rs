//! Servers that a test stops, kills, pauses and replicates.

use std::time::{Duration, Instant};

use test_servers::{PrivatePostgres, Settings, is_running, query, query_value};
use tokio_postgres::NoTls;

#[test]
fn a_restart_keeps_data_and_address() {
    let server = PrivatePostgres::start(Settings::new());
    let url = server.url();
    query(&url, "CREATE TABLE kept (id int); INSERT INTO kept VALUES (7)");
    let first = server.process_id().unwrap();
    server.restart();
    assert_eq!(server.url(), url);
    assert!(!is_running(first));
    assert_eq!(query_value(&url, "SELECT id FROM kept"), "7");
}

#[test]
fn a_kill_loses_no_commit_and_leaves_no_process() {
    let server = PrivatePostgres::start(Settings::new());
    query(&server.url(), "CREATE TABLE kept (id int)");
    for round in 0..3 {
        query(&server.url(), &format!("INSERT INTO kept VALUES ({round})"));
        let backends = query(&server.url(), "SELECT pid FROM pg_stat_activity");
        let process = server.process_id().unwrap();
        server.kill();
        assert_eq!(server.process_id(), None);
        for id in backends.iter().map(|row| row[0].as_ref().unwrap().parse().unwrap()).chain([process]) {
            assert!(!is_running(id), "process {id} outlives the kill");
        }
        server.start_again();
    }
    assert_eq!(query_value(&server.url(), "SELECT count(*) FROM kept"), "3");
    assert!(server.log().contains("automatic recovery"), "the server was not killed but stopped: {}", server.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_takes_a_server_that_is_busy() {
    let server = PrivatePostgres::start(Settings::new());
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    // Counts without ever looking whether its server still lives.
    let busy = tokio::spawn(async move { client.simple_query("SELECT count(*) FROM generate_series(1, 1e12)").await });
    let running = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%1e12%' AND pid <> pg_backend_pid()";
    let deadline = Instant::now() + Duration::from_secs(60);
    let backend = loop {
        if let Some(row) = query(&server.url(), running).first() {
            break row[0].as_ref().unwrap().parse().unwrap();
        }
        assert!(Instant::now() < deadline, "the statement never ran");
    };
    server.kill();
    assert!(!is_running(backend));
    assert!(busy.await.unwrap().is_err());
}

#[tokio::test]
async fn a_pause_answers_nothing_and_loses_nothing() {
    let server = PrivatePostgres::start(Settings::new());
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.simple_query("SELECT 1").await.unwrap();
    server.pause();
    let mut answer = Box::pin(client.simple_query("SELECT 2"));
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut answer).await.is_err());
    server.resume();
    answer.await.unwrap();
}

#[test]
fn a_server_can_be_stopped_while_it_is_paused() {
    let server = PrivatePostgres::start(Settings::new());
    server.pause();
    server.kill();
    server.start_again();
    server.pause();
    server.stop();
    server.start_again();
    assert_eq!(query_value(&server.url(), "SELECT 1"), "1");
}

#[test]
fn settings_reach_the_server() {
    let server = PrivatePostgres::start(Settings::new().fsync(true).set("max_connections", "17"));
    assert_eq!(query_value(&server.url(), "SHOW fsync"), "on");
    assert_eq!(query_value(&server.url(), "SHOW max_connections"), "17");
}

#[test]
fn rules_of_access_come_before_the_open_door() {
    let server = PrivatePostgres::start(Settings::new().access("host all guarded 127.0.0.1/32 scram-sha-256"));
    query(&server.url(), "CREATE ROLE guarded LOGIN PASSWORD 'secret'");
    let by = |user: &str| server.url().replace("postgres@", user);
    assert_eq!(query_value(&by("guarded:secret@"), "SELECT current_user"), "guarded");
    let refused = std::panic::catch_unwind(|| query(&by("guarded:wrong@"), "SELECT 1"));
    let message = refused.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("password authentication failed"), "{message}");
}

#[test]
fn a_setting_that_the_server_refuses_fails_with_its_log() {
    let started = std::panic::catch_unwind(|| PrivatePostgres::start(Settings::new().set("no_such_setting", "1")));
    let message = started.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("unrecognized configuration parameter \"no_such_setting\""), "{message}");
}

#[test]
fn a_standby_is_read_only_and_follows() {
    let primary = PrivatePostgres::start(Settings::new());
    query(&primary.url(), "CREATE TABLE copied (id int)");
    let standby = primary.standby();
    query(&primary.url(), "INSERT INTO copied VALUES (7)");
    let deadline = Instant::now() + Duration::from_secs(60);
    while query(&standby.url(), "SELECT id FROM copied").is_empty() {
        assert!(Instant::now() < deadline, "the standby does not follow: {}", standby.log());
    }
    assert_eq!(query_value(&standby.url(), "SELECT pg_is_in_recovery()"), "t");
    assert_eq!(query_value(&standby.url(), "SHOW transaction_read_only"), "on");
}

#[test]
fn a_server_that_is_dropped_is_gone_with_its_folder() {
    let server = PrivatePostgres::start(Settings::new());
    let (process, folder) = (server.process_id().unwrap(), server.folder().to_path_buf());
    drop(server);
    assert!(!is_running(process));
    assert!(!folder.exists());
}
