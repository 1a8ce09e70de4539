//! The server that all tests of a process share.

use test_servers::{PrivatePostgres, Settings, postgres, query, query_value};

#[test]
fn the_server_starts_and_everyone_gets_the_same() {
    let first = postgres().url();
    let second = std::thread::spawn(|| postgres().url()).join().unwrap();
    assert_eq!(first, second);
    assert!(
        query_value(&first, "SELECT current_database()").starts_with(&format!("idem_test_{}_", std::process::id()))
    );
    assert_eq!(query_value(&first, "SHOW server_encoding"), "UTF8");
}

#[test]
fn two_databases_are_separate() {
    let (first, second) = (postgres().create_database(&[]), postgres().create_database(&[]));
    query(&first, "CREATE TABLE only_here (id int)");
    assert_eq!(query_value(&first, "SELECT to_regclass('only_here') IS NULL"), "f");
    assert_eq!(query_value(&second, "SELECT to_regclass('only_here') IS NULL"), "t");
}

#[test]
fn options_of_a_database_hold_for_its_connections_alone() {
    let options = [("default_transaction_isolation", "serializable"), ("idem.word", "it's")];
    let serializable = postgres().create_database(&options);
    assert_eq!(query_value(&serializable, "SHOW transaction_isolation"), "serializable");
    assert_eq!(query_value(&serializable, "SHOW idem.word"), "it's");
    assert_eq!(query_value(&postgres().url(), "SHOW transaction_isolation"), "read committed");
}

#[tokio::test]
async fn it_can_be_asked_for_within_an_async_runtime() {
    assert_eq!(query_value(&postgres().create_database(&[]), "SELECT 1 + 1"), "2");
}

#[test]
fn a_private_server_is_reached_through_the_loopback_interface_only() {
    let server = PrivatePostgres::start(Settings::new());
    assert_eq!(query_value(&server.url(), "SHOW listen_addresses"), "127.0.0.1");
    assert_eq!(query_value(&server.url(), "SHOW unix_socket_directories"), "");
    assert_eq!(query_value(&server.url(), "SHOW max_connections"), "300");
}
