//! The Redis server that all tests of a process share.

use std::process::{Command, Output, Stdio};

use test_servers::{PrivateRedis, RedisConnection, RedisSettings, Reply, redis, redis_command};

#[test]
fn the_server_starts_and_everyone_gets_the_same() {
    let first = redis().url();
    let second = std::thread::spawn(|| redis().url()).join().unwrap();
    assert_eq!(first, second);
    assert_eq!(redis_command(first, &["PING"]).text(), "PONG");
}

#[test]
fn it_says_whose_it_is_and_which_version() {
    assert!(["Redis", "Valkey"].contains(&redis().server_name()), "{}", redis().server_name());
    assert!(redis().version() >= (7, 0, 0), "{:?}", redis().version());
}

#[test]
fn every_prefix_is_another() {
    let (first, second) = (redis().prefix(), redis().prefix());
    assert_ne!(first, second);
    redis().command(&["SET", &format!("{first}key"), "1", "PX", "60000"]);
    assert!(redis().command(&["GET", &format!("{second}key")]).is_nil());
}

#[test]
fn answers_of_all_kinds_are_told_apart() {
    let key = format!("{}key", redis().prefix());
    let mut connection = RedisConnection::open(redis().url());
    let bytes = b"\x00\xff\r\n".as_slice();
    assert_eq!(connection.command(&[b"SET".as_slice(), key.as_bytes(), bytes, b"PX", b"60000"]).text(), "OK");
    assert_eq!(connection.command(&["GET", &key]).bytes(), bytes);
    assert_eq!(connection.command(&["STRLEN", &key]).integer(), 4);
    let list = connection.command(&["MGET", &key, &format!("{key}2")]);
    assert_eq!(list.list(), [Reply::Bytes(bytes.to_vec()), Reply::Nil]);
    let refused = connection.try_command(&["INCR", &key]).unwrap_err();
    assert_eq!(refused, "ERR value is not an integer or out of range");
    assert_eq!(connection.command(&["GET", &key]).bytes(), bytes);
}

#[test]
fn messages_of_a_subscription_arrive() {
    let channel = format!("{}news", redis().prefix());
    let mut connection = RedisConnection::open(redis().url());
    connection.command(&["SUBSCRIBE", &channel]);
    redis().command(&["PUBLISH", &channel, "arrived"]);
    assert_eq!(connection.next_reply().unwrap().list()[2].text(), "arrived");
}

#[tokio::test]
async fn it_can_be_asked_for_within_an_async_runtime() {
    assert_eq!(redis().command(&["ECHO", "here"]).text(), "here");
}

#[test]
fn a_private_server_keeps_everything_that_it_answers_and_evicts_nothing() {
    let server = PrivateRedis::start(RedisSettings::new());
    let setting = |name: &str| server.command(&["CONFIG", "GET", name]).list()[1].text();
    assert_eq!(setting("bind"), "127.0.0.1");
    assert_eq!(setting("unixsocket"), "");
    assert_eq!(setting("appendonly"), "yes");
    assert_eq!(setting("save"), "");
    assert_eq!(setting("maxmemory-policy"), "noeviction");
}

/// Asks a process with this environment variable which server it shares.
fn shared_with(variable: &str, value: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hold-servers"));
    command.arg("shared-redis").env_remove("IDEM_TEST_REDIS_URL").env_remove("IDEM_TEST_REDIS_SERVER");
    command.env(variable, value).stdin(Stdio::null()).output().expect("the program was built for this test")
}

#[test]
fn a_server_that_is_named_is_used_and_none_is_started() {
    let server = PrivateRedis::start(RedisSettings::new().password("secret"));
    let url = format!("{}/1", server.url());
    let output = shared_with("IDEM_TEST_REDIS_URL", &url);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, format!("named\n{}\n{url}\nready\n", server.server_name()));
}

#[test]
fn a_server_that_is_named_and_not_there_is_a_failure_that_does_not_tell_its_password() {
    let server = PrivateRedis::start(RedisSettings::new());
    let url = format!("redis://default:secret@127.0.0.1:{}", server.port());
    server.stop();
    let output = shared_with("IDEM_TEST_REDIS_URL", &url);
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("the server at 127.0.0.1:{} can't be used: ", server.port())), "{said}");
    assert!(!said.contains("secret"), "{said}");
}

#[test]
fn a_program_that_is_named_is_run_and_one_that_is_missing_or_too_old_is_refused() {
    let output = shared_with("IDEM_TEST_REDIS_SERVER", "/no/such/valkey-server");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("IDEM_TEST_REDIS_SERVER is /no/such/valkey-server, and there is no such program"), "{said}");

    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("redis-server");
    // Written by another process: a file that this one still has open for writing can't be run.
    let write = r#"printf '%s\n' '#!/bin/sh' 'echo "Redis server v=6.2.14 sha=00000000:0"' >"$0" && chmod +x "$0""#;
    assert!(Command::new("/bin/sh").args(["-c", write]).arg(&program).status().unwrap().success());
    let output = shared_with("IDEM_TEST_REDIS_SERVER", program.to_str().unwrap());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("redis-server is Redis 6.2.14, and idem needs Redis 7.0 or newer"), "{said}");
}
