//! What the program prints.

use std::process::Output;

use test_servers::{PrivateRedis, RedisCluster, RedisSentinel, RedisSettings};
use tokio::process::Command;

use crate::server::{LIMIT, Place};

async fn payments(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
    let output = command.args(arguments).kill_on_drop(true).output();
    tokio::time::timeout(LIMIT, output).await.expect("it ends").unwrap()
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8(output.stdout.clone()).unwrap().lines().map(str::to_owned).collect()
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn assert_is_the_documented_run(output: &Output, scenario_6: &str) {
    assert_eq!((output.status.code(), errors(output)), (Some(0), String::new()));
    let lines = lines(output);
    let expected = [
        ("1  ", "  201       not replayed  ", r#"{"id":"1","chargeId":"ch_"#),
        ("2  ", "  201       replayed      ", r#"{"id":"1","chargeId":"ch_"#),
        ("3  ", "  422       not replayed  ", r#""code":"idempotency-key-reused""#),
        ("4  ", "  201       not replayed  ", r#"{"id":"2","chargeId":"ch_"#),
        ("5  ", "  201, 409  not replayed  ", r#"{"id":"3","chargeId":"ch_"#),
        ("6  ", "  none      no answer     ", scenario_6),
        ("7  ", "  409       not replayed  ", r#""code":"request-in-progress""#),
        ("8  ", "  201       not replayed  ", r#"{"id":"4","chargeId":"ch_"#),
    ];
    for (number, status, body) in expected {
        let of_scenario: Vec<_> = lines.iter().filter(|line| line.starts_with(number)).collect();
        assert_eq!(of_scenario.len(), 1, "scenario {number}: {lines:#?}");
        assert!(of_scenario[0].contains(status) && of_scenario[0].contains(body), "{}", of_scenario[0]);
    }
    for total in ["provider calls = 5", "distinct charges = 4", "payment rows = 4"] {
        assert!(lines.iter().any(|line| line == total), "{total}: {lines:#?}");
    }
    let records = &lines[lines.len() - 4..];
    for (record, name) in records.iter().zip([["7", "k-1"], ["7", "k-2"], ["7", "k-3"], ["8", "k-1"]]) {
        let words: Vec<_> = record.split_whitespace().collect();
        assert_eq!(words[..4], [name[0], name[1], "done", "201"], "{record}");
    }
}

#[tokio::test]
async fn the_demo_on_a_temporary_sqlite_file_kills_its_server_and_the_totals_come_out() {
    assert_is_the_documented_run(&payments(&[]).await, "killed (SIGKILL) after the provider charged");
}

#[tokio::test]
async fn the_demo_on_a_sqlite_file_leaves_the_file_and_refuses_to_begin_on_one_that_is_there() {
    let place = Place::sqlite();
    let first = payments(&["demo", "--store", &place.store]).await;
    assert_is_the_documented_run(&first, "killed (SIGKILL) after the provider charged");
    let second = payments(&["demo", "--store", &place.store]).await;
    assert_eq!(second.status.code(), Some(2));
    assert!(errors(&second).contains("is there already"), "{}", errors(&second));
}

#[tokio::test]
async fn the_demo_in_memory_abandons_the_attempt_and_says_so() {
    assert_is_the_documented_run(&payments(&["demo", "--store", "memory:"]).await, "abandoned, not killed");
}

#[tokio::test]
async fn the_demo_on_an_empty_postgres_database_leaves_its_tables_and_refuses_to_begin_on_them() {
    let place = Place::postgres();
    let first = payments(&["demo", "--store", &place.store]).await;
    assert_is_the_documented_run(&first, "killed (SIGKILL) after the provider charged");
    assert!(lines(&first)[0].contains("a PostgreSQL database"), "{:?}", lines(&first)[0]);
    let rows = |table: &str| test_servers::query_value(&place.store, &format!("SELECT count(*) FROM {table}"));
    let second = payments(&["--store", &place.store]).await;
    assert_eq!((second.status.code(), lines(&second)), (Some(2), vec![]));
    let problem = errors(&second);
    assert!(problem.contains("has rows already") && problem.contains("CREATE DATABASE"), "{problem}");
    assert_eq!((rows("payments"), rows("idem_records")), ("4".into(), "4".into()), "nothing was deleted");
}

#[tokio::test]
async fn the_demo_on_redis_keeps_its_payments_in_a_file_and_refuses_to_begin_on_its_own_records() {
    let place = Place::redis();
    let first = payments(&["demo", "--store", &place.store]).await;
    assert_is_the_documented_run(&first, "killed (SIGKILL) after the provider charged");
    assert!(lines(&first)[0].contains("a redis store (records) and sqlite:"), "{:?}", lines(&first)[0]);
    let second = payments(&["demo", "--store", &place.store]).await;
    assert_eq!((second.status.code(), lines(&second)), (Some(2), vec![]));
    assert!(errors(&second).contains("?prefix=NAME"), "{}", errors(&second));

    // In a ledger that is named, the payments stay.
    let (place, ledger) = (Place::redis(), Place::postgres().store);
    let named = payments(&["demo", "--store", &place.store, "--ledger", &ledger]).await;
    assert_is_the_documented_run(&named, "killed (SIGKILL) after the provider charged");
    assert_eq!(test_servers::query_value(&ledger, "SELECT count(*) FROM payments"), "4");
    let fresh = Place::redis();
    for (ledger, part) in [(&*ledger, "--ledger: the table payments"), ("memory:", "--ledger: the demo kills")] {
        let refused = payments(&["demo", "--store", &fresh.store, "--ledger", ledger]).await;
        assert_eq!(refused.status.code(), Some(2));
        assert!(errors(&refused).contains(part), "{}", errors(&refused));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_on_a_redis_cluster_on_one_that_sentinels_watch_and_through_tls_comes_out() {
    let cluster = RedisCluster::start(3, 0);
    let watched = RedisSentinel::start();
    let with_tls = PrivateRedis::start(RedisSettings::new().password("hunter2").tls("localhost"));
    let tls_url = format!("{}?sslrootcert={}", with_tls.localhost_tls_url(), with_tls.ca_file().display());
    for url in [cluster.url(), watched.url(), tls_url] {
        let output = payments(&["demo", "--store", &url]).await;
        assert_is_the_documented_run(&output, "killed (SIGKILL) after the provider charged");
    }
}

#[tokio::test]
async fn the_demo_refuses_a_database_that_has_records_or_payments_of_any_kind() {
    for (table, columns) in [("idem_records", "scope text"), ("payments", "of_another_program text")] {
        let place = Place::postgres();
        let made = format!("CREATE TABLE {table} ({columns}); INSERT INTO {table} VALUES ('mine')");
        test_servers::query(&place.store, &made);
        let refused = payments(&["demo", "--store", &place.store]).await;
        assert_eq!(refused.status.code(), Some(2));
        assert!(errors(&refused).contains(table), "{}", errors(&refused));
        assert_eq!(test_servers::query_value(&place.store, &format!("SELECT count(*) FROM {table}")), "1");
    }
}

#[tokio::test]
async fn a_mistake_in_the_command_line_is_told_and_ends_with_2() {
    for (arguments, part) in [
        (&["pay"][..], "there is no command \"pay\""),
        (&["serve", "--listen", "127.0.0.1:0"], "serve needs --store URL"),
        (&["serve", "--listen", "127.0.0.1:0", "--store", "mysql://u:secret@h/db"], "no store for mysql: URLs"),
        (&["serve", "--listen", "127.0.0.1:0", "--store", "redis://u:secret@h"], "--ledger sqlite:PATH"),
        (&["demo", "--store", "redis://u:secret@h:port"], "the Redis URL can't be read"),
        (&["demo", "--store", "redis://u:secret@h", "--ledger", "redis://u:secret@h"], "--ledger: "),
        (&["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--lease", "0s"], "lease is 0ns"),
        (&["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--max-run", "1s"], "max_run"),
        (&["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--retention", "1s"], "retention"),
        (&["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--provider", "ftp://x"], "--provider"),
        (&["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--provider", "http://"], "--provider"),
        (&["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--provider", "http://u:secret@h"], "--provider"),
    ] {
        let output = payments(arguments).await;
        let errors = errors(&output);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.starts_with("payments: ") && errors.contains(part) && !errors.contains("secret"), "{errors}");
        assert!(output.stdout.is_empty());
    }
}

#[tokio::test]
async fn what_can_not_be_opened_or_listened_on_is_named_and_ends_with_1() {
    let file = Place::sqlite().store; // its folder is gone
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("postgres://app:secret@{free}/idem");
    let read_only = test_servers::postgres().create_database(&[("default_transaction_read_only", "on")]);
    let foreign = Place::postgres().store;
    test_servers::query(&foreign, "CREATE TABLE payments (of_another_program text)");
    for (listen, store, part) in [
        ("127.0.0.1:0", &*file, "payments.db"),
        ("127.0.0.1:0", &nobody, "--store: "),
        ("127.0.0.1:0", &read_only, "read-only"),
        ("127.0.0.1:0", &foreign, "the ledger: column \"tenant\" does not exist"),
        ("203.0.113.1:1", "memory:", "203.0.113.1:1"),
    ] {
        let output = payments(&["serve", "--listen", listen, "--store", store]).await;
        let errors = errors(&output);
        assert_eq!((output.status.code(), lines(&output)), (Some(1), vec![]), "{errors}");
        assert!(errors.contains(part) && !errors.contains("secret"), "{errors}");
    }
    for store in [nobody, format!("redis://app:secret@{free}")] {
        let output = payments(&["demo", "--store", &store]).await;
        assert_eq!(output.status.code(), Some(1));
        assert!(errors(&output).contains("--store: ") && !errors(&output).contains("secret"), "{}", errors(&output));
    }
}

#[tokio::test]
async fn help_shows_every_command() {
    let output = payments(&["--help"]).await;
    let help = lines(&output).join("\n");
    assert_eq!(output.status.code(), Some(0));
    assert!(
        ["demo", "serve", "provider"]
            .iter()
            .all(|command| help.contains(&format!("payments {command}")) || help.contains(&format!("[{command}]"))),
        "{help}"
    );
}
