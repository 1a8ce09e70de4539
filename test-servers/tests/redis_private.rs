//! Redis servers that a test stops, kills, pauses and replicates.

use std::time::{Duration, Instant};

use test_servers::{PrivateRedis, RedisConnection, RedisSettings, is_running, redis_command};

fn running() -> PrivateRedis {
    PrivateRedis::start(RedisSettings::new())
}

#[test]
fn a_restart_keeps_data_and_address() {
    let server = running();
    let url = server.url();
    redis_command(&url, &["SET", "kept", "7"]);
    let first = server.process_id().unwrap();
    server.restart();
    assert_eq!(server.url(), url);
    assert!(!is_running(first));
    assert_eq!(redis_command(&url, &["GET", "kept"]).text(), "7");
}

#[test]
fn a_kill_loses_nothing_that_was_answered_and_forgets_scripts() {
    let server = running();
    let hash = server.command(&["SCRIPT", "LOAD", "return 1"]).text();
    for round in 1..=3 {
        // The last of many answers is the one that a server which writes late would lose.
        let mut connection = server.connect();
        for _ in 0..1000 {
            connection.command(&["INCR", "counted"]);
        }
        let process = server.process_id().unwrap();
        server.kill();
        assert_eq!(server.process_id(), None);
        assert!(!is_running(process));
        assert!(connection.try_command(&["PING"]).is_err());
        server.start_again();
        assert_eq!(server.command(&["GET", "counted"]).integer(), round * 1000);
    }
    assert_eq!(server.command(&["SCRIPT", "EXISTS", &hash]).list()[0].integer(), 0);
    assert!(!server.log().contains("User requested shutdown"), "the server was stopped, not killed: {}", server.log());
}

#[test]
fn a_stopped_server_refuses_connections() {
    let server = running();
    server.stop();
    let refused = server.try_command(&["PING"]).unwrap_err();
    assert!(refused.contains("refused"), "{refused}");
    server.start_again();
    assert_eq!(server.command(&["PING"]).text(), "PONG");
}

#[test]
fn a_pause_answers_nothing_and_loses_nothing() {
    let server = running();
    let mut connection = server.connect();
    server.pause();
    let (answer, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || answer.send(connection.command(&["INCR", "counted"]).integer()));
    assert!(answered.recv_timeout(Duration::from_millis(300)).is_err());
    server.resume();
    assert_eq!(answered.recv_timeout(Duration::from_secs(30)).unwrap(), 1);
}

#[test]
fn a_server_can_be_stopped_while_it_is_paused() {
    let server = running();
    server.pause();
    server.kill();
    server.start_again();
    server.pause();
    server.stop();
    server.start_again();
    assert_eq!(server.command(&["PING"]).text(), "PONG");
}

#[test]
fn settings_reach_the_server_and_survive_a_restart() {
    let settings = RedisSettings::new().set("maxmemory", "3mb").set("maxmemory-policy", "allkeys-lru").set("save", "");
    let server = PrivateRedis::start(settings);
    for _ in 0..2 {
        assert_eq!(server.command(&["CONFIG", "GET", "maxmemory"]).list()[1].integer(), 3 * 1024 * 1024);
        assert_eq!(server.command(&["CONFIG", "GET", "maxmemory-policy"]).list()[1].text(), "allkeys-lru");
        server.restart();
    }
}

#[test]
fn a_full_server_refuses_writes() {
    let server = PrivateRedis::start(RedisSettings::new().set("maxmemory", "1mb"));
    let refused = server.try_command(&["SET", "large", &"x".repeat(2_000_000)]);
    let refused = refused.and_then(|_| server.try_command(&["SET", "small", "x"])).unwrap_err();
    assert!(refused.starts_with("OOM "), "{refused}");
}

#[test]
fn a_password_is_demanded_and_stands_in_the_address() {
    let server = PrivateRedis::start(RedisSettings::new().password("it's \"50\" @home"));
    assert_eq!(redis_command(&server.url(), &["ACL", "WHOAMI"]).text(), "default");
    let mut stranger = RedisConnection::open(&format!("redis://127.0.0.1:{}", server.port()));
    let refused = stranger.try_command(&["PING"]).unwrap_err();
    assert!(refused.starts_with("NOAUTH "), "{refused}");
    assert_eq!(server.command(&["PING"]).text(), "PONG");
}

#[test]
fn a_user_may_do_what_its_rules_say() {
    let server = PrivateRedis::start(RedisSettings::new().user("app", "secret", "~app:* +get +set"));
    let mut app = RedisConnection::open(&format!("redis://app:secret@127.0.0.1:{}", server.port()));
    app.command(&["SET", "app:key", "1"]);
    assert!(app.try_command(&["SET", "other", "1"]).unwrap_err().starts_with("NOPERM "));
    assert!(app.try_command(&["DEL", "app:key"]).unwrap_err().starts_with("NOPERM "));
}

#[test]
fn a_setting_that_the_server_refuses_fails_with_its_log() {
    let started = std::panic::catch_unwind(|| PrivateRedis::start(RedisSettings::new().set("no-such-setting", "1")));
    let message = started.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("Bad directive or wrong number of arguments"), "{message}");
}

#[test]
fn a_replica_follows_and_refuses_writes() {
    let primary = PrivateRedis::start(RedisSettings::new().password("secret"));
    primary.command(&["SET", "before", "1"]);
    let replica = primary.replica();
    assert_eq!(replica.command(&["GET", "before"]).text(), "1");
    primary.command(&["SET", "after", "2"]);
    primary.await_replica(&replica);
    assert_eq!(replica.command(&["GET", "after"]).text(), "2");
    let refused = replica.try_command(&["SET", "own", "1"]).unwrap_err();
    assert!(refused.starts_with("READONLY "), "{refused}");
    let mut writer = primary.connect();
    writer.command(&["SET", "acknowledged", "3"]);
    assert_eq!(writer.command(&["WAIT", "1", "30000"]).integer(), 1);
}

#[test]
fn a_promoted_replica_has_what_reached_it_and_lacks_what_did_not() {
    let primary = running();
    let replica = primary.replica();
    primary.command(&["SET", "reached", "1"]);
    primary.await_replica(&replica);
    replica.pause();
    primary.command(&["SET", "lost", "1"]);
    // What is on its way to the paused replica goes with the primary's host.
    drop(primary);
    replica.kill();
    replica.start_again();
    replica.promote();
    replica.restart();
    assert_eq!(replica.command(&["ROLE"]).list()[0].text(), "master");
    assert_eq!(replica.command(&["GET", "reached"]).text(), "1");
    assert!(replica.command(&["GET", "lost"]).is_nil());
    replica.command(&["SET", "own", "1"]);
}

#[test]
fn a_primary_that_comes_back_can_follow_the_one_that_replaced_it() {
    let old = running();
    let new = old.replica();
    old.kill();
    new.promote();
    new.command(&["SET", "written", "after"]);
    old.start_again();
    old.follow(&new);
    assert_eq!(old.command(&["GET", "written"]).text(), "after");
    old.restart();
    assert_eq!(old.command(&["ROLE"]).list()[0].text(), "slave");
}

#[test]
fn a_server_that_is_dropped_is_gone_with_its_folder() {
    let server = running();
    let (process, folder) = (server.process_id().unwrap(), server.folder().to_path_buf());
    let before = Instant::now();
    drop(server);
    assert!(!is_running(process));
    assert!(!folder.exists());
    // Not by the signal that is sent when the first one does nothing.
    assert!(before.elapsed() < Duration::from_secs(30));
}
