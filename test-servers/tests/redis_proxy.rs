//! Each fault of the proxy, in front of a Redis server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use test_servers::{Cut, Fault, Proxy, RedisCommand, RedisConnection, redis};

/// A proxy in front of the shared server, a client, and a counter of its own.
struct Setup {
    proxy: Proxy,
    client: RedisConnection,
    counter: String,
}

fn setup() -> Setup {
    let proxy = Proxy::start(redis().url());
    let mut client = connect(&proxy);
    // Now it has a connection to the server as well.
    client.command(&["PING"]);
    Setup { proxy, client, counter: format!("{}counter", redis().prefix()) }
}

fn connect(proxy: &Proxy) -> RedisConnection {
    RedisConnection::open(&proxy.url_through(redis().url()))
}

/// What has been counted, as the server says without the proxy.
fn counted(counter: &str) -> i64 {
    let value = redis().command(&["GET", counter]);
    if value.is_nil() { 0 } else { value.integer() }
}

fn command(name: &str, arguments: &[&str]) -> RedisCommand {
    RedisCommand { name: name.to_owned(), arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect() }
}

#[test]
fn without_a_fault_everything_passes_and_is_counted_but_for_housekeeping() {
    let Setup { proxy, mut client, counter } = setup();
    client.command(&["CLIENT", "SETNAME", "counted"]);
    client.command(&["PING"]);
    assert_eq!(client.command(&["incr", &counter]).integer(), 1);
    assert_eq!(client.command(&["GET", &counter]).integer(), 1);
    assert_eq!((proxy.requests(), proxy.connections(), proxy.strikes()), (2, 1, 0));
    assert_eq!(proxy.take_commands(), [command("INCR", &[&counter]), command("GET", &[&counter])]);
    assert_eq!(proxy.take_commands(), []);
    assert_eq!(counted(&counter), 1);
}

#[test]
fn large_commands_and_replies_pass_whole_and_are_remembered_in_part() {
    let Setup { proxy, mut client, counter } = setup();
    let large = "\r\n$1\r\n".repeat(500_000);
    assert_eq!(client.command(&["SET", &counter, &large, "PX", "60000"]).text(), "OK");
    assert_eq!(client.command(&["GET", &counter]).text(), large);
    assert_eq!(proxy.take_commands()[0].arguments[1].len(), 1024);
}

#[test]
fn a_cut_before_the_command_means_that_it_is_never_executed() {
    let Setup { proxy, mut client, counter } = setup();
    proxy.arm(Fault::new(Cut::BeforeRequest));
    assert!(client.try_command(&["INCR", &counter]).is_err());
    assert_eq!(proxy.strikes(), 1);
    assert_eq!(counted(&counter), 0);
    assert_eq!(connect(&proxy).command(&["INCR", &counter]).integer(), 1);
}

#[test]
fn a_cut_before_or_within_the_reply_means_that_it_is_executed() {
    for (cut, expected) in [(Cut::BeforeReply, ""), (Cut::WithinReply, "$5\r\na")] {
        let Setup { proxy, counter, .. } = setup();
        redis().command(&["SET", &counter, "abcde", "PX", "60000"]);
        let address = proxy.url_through(redis().url());
        let mut client = TcpStream::connect(address.strip_prefix("redis://").unwrap()).unwrap();
        proxy.arm(Fault::new(cut));
        client.write_all(format!("GETDEL {counter}\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = client.read_to_string(&mut answer);
        // Half of $5\r\nabcde\r\n.
        assert_eq!(answer, expected, "{cut:?}");
        assert_eq!(proxy.strikes(), 1);
        assert!(redis().command(&["GET", &counter]).is_nil(), "{cut:?}");
    }
}

#[test]
fn a_cut_after_the_command_leaves_the_server_alone_with_it() {
    let Setup { proxy, mut client, counter } = setup();
    proxy.arm(Fault::new(Cut::AfterRequest));
    assert!(client.try_command(&["INCR", &counter]).is_err());
    assert_eq!(proxy.strikes(), 1);
    // Executed or not, but not twice.
    assert!((0..=1).contains(&counted(&counter)));
}

#[test]
fn each_of_several_commands_that_are_sent_at_once_can_be_struck() {
    for cut in [Cut::BeforeRequest, Cut::BeforeReply] {
        for struck in 0..5 {
            let Setup { proxy, mut client, counter } = setup();
            proxy.arm(Fault::new(cut).after(struck));
            for _ in 0..5 {
                client.send(&["INCR", &counter]);
            }
            let answers = std::iter::from_fn(|| client.next_reply().ok()).count() as u64;
            assert_eq!(answers, struck, "{cut:?}: those before it are answered");
            assert_eq!(proxy.strikes(), 1);
            let executed = struck + u64::from(cut == Cut::BeforeReply);
            assert_eq!(counted(&counter), executed as i64, "{cut:?}: those behind it are not executed");
        }
    }
}

#[test]
fn a_fault_of_a_name_lets_others_pass() {
    let Setup { proxy, mut client, counter } = setup();
    proxy.arm(Fault::new(Cut::BeforeRequest).of("INCR").after(1));
    client.command(&["INCR", &counter]);
    client.command(&["GET", &counter]);
    // Not by a part of the name.
    client.command(&["INCRBY", &counter, "1"]);
    assert_eq!(proxy.strikes(), 0);
    assert!(client.try_command(&["INCR", &counter]).is_err());
    assert_eq!(proxy.strikes(), 1);
    assert_eq!(counted(&counter), 2);
}

#[test]
fn housekeeping_is_struck_by_name_only() {
    let Setup { proxy, mut client, .. } = setup();
    proxy.arm(Fault::new(Cut::BeforeReply));
    client.command(&["PING"]);
    assert_eq!(proxy.strikes(), 0);
    proxy.arm(Fault::new(Cut::BeforeReply).of("PING"));
    assert!(client.try_command(&["PING"]).is_err());
    assert_eq!(proxy.strikes(), 1);
}

#[test]
fn a_fault_strikes_as_often_as_it_says_or_until_it_is_disarmed() {
    let Setup { proxy, .. } = setup();
    proxy.arm(Fault::new(Cut::BeforeRequest).times(2));
    for expected in [false, false, true] {
        assert_eq!(connect(&proxy).try_command(&["ECHO", "x"]).is_ok(), expected);
    }
    assert_eq!(proxy.strikes(), 2);
    proxy.arm(Fault::new(Cut::BeforeRequest).always());
    for _ in 0..3 {
        assert!(connect(&proxy).try_command(&["ECHO", "x"]).is_err());
    }
    proxy.disarm();
    connect(&proxy).command(&["ECHO", "x"]);
    assert_eq!(proxy.strikes(), 3);
}

#[test]
fn a_script_and_a_transaction_are_commands_like_others() {
    let Setup { proxy, mut client, counter } = setup();
    proxy.arm(Fault::new(Cut::BeforeReply).of("EVAL"));
    assert!(client.try_command(&["EVAL", "return redis.call('INCR', KEYS[1])", "1", &counter]).is_err());
    assert_eq!(counted(&counter), 1);
    let mut client = connect(&proxy);
    proxy.arm(Fault::new(Cut::BeforeRequest).of("EXEC"));
    client.command(&["MULTI"]);
    client.command(&["INCR", &counter]);
    assert!(client.try_command(&["EXEC"]).is_err());
    assert_eq!(counted(&counter), 1);
}

#[test]
fn messages_of_a_subscription_pass_and_do_not_count_as_replies() {
    let Setup { proxy, mut client, counter } = setup();
    client.send(&["SUBSCRIBE", &counter, "other"]);
    for channel in [counter.as_str(), "other"] {
        assert_eq!(client.next_reply().unwrap().list()[1].text(), channel);
    }
    for word in ["one", "two"] {
        redis().command(&["PUBLISH", &counter, word]);
        assert_eq!(client.next_reply().unwrap().list()[2].text(), word);
    }
    proxy.arm(Fault::new(Cut::BeforeReply).of("UNSUBSCRIBE"));
    redis().command(&["PUBLISH", &counter, "three"]);
    assert_eq!(client.next_reply().unwrap().list()[2].text(), "three");
    assert!(client.try_command(&["UNSUBSCRIBE"]).is_err());
    assert_eq!(proxy.strikes(), 1);
}

#[test]
fn in_version_3_what_comes_unasked_does_not_count_as_a_reply() {
    let Setup { proxy, counter, .. } = setup();
    let address = proxy.url_through(redis().url());
    let mut client = TcpStream::connect(address.strip_prefix("redis://").unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // What arrives up to these bytes, or up to the end of the connection.
    let mut until = |command: &str, end: &str| {
        client.write_all(command.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let mut byte = [0];
        while !answer.ends_with(end.as_bytes()) && client.read(&mut byte).unwrap() == 1 {
            answer.push(byte[0]);
        }
        String::from_utf8(answer).unwrap()
    };
    assert!(until("HELLO 3\r\nECHO greeted\r\n", "greeted\r\n").starts_with('%'));
    assert!(until(&format!("SUBSCRIBE {counter}\r\n"), ":1\r\n").starts_with(">3\r\n"));
    redis().command(&["PUBLISH", &counter, "news"]);
    assert!(until("", "news\r\n").starts_with(">3\r\n$7\r\nmessage"));
    assert_eq!(until(&format!("INCR {counter}\r\n"), "\r\n"), ":1\r\n");
    proxy.arm(Fault::new(Cut::BeforeReply));
    // The message comes before the reply, and passes.
    let answer = until(&format!("PUBLISH {counter} more\r\n"), "\r\n:1\r\n");
    assert!(answer.is_empty() || answer.starts_with(">3"), "{answer}");
    assert_eq!(proxy.strikes(), 1);
    assert_eq!(counted(&counter), 1);
}

#[test]
fn a_black_hole_answers_nobody_and_what_was_sent_into_it_arrives_later() {
    let Setup { proxy, mut client, counter } = setup();
    proxy.black_hole();
    client.send(&["INCR", &counter]);
    let (answer, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || answer.send(client.next_reply().map(|reply| reply.integer())));
    assert!(answered.recv_timeout(Duration::from_millis(300)).is_err(), "an answer came through");
    assert_eq!(counted(&counter), 0);
    proxy.lift();
    assert_eq!(answered.recv_timeout(Duration::from_secs(60)).unwrap(), Ok(1));
    assert_eq!(counted(&counter), 1);
}

#[test]
fn what_was_sent_into_a_black_hole_arrives_even_from_those_who_have_given_up() {
    let Setup { proxy, mut client, counter } = setup();
    proxy.black_hole();
    client.send(&["INCR", &counter]);
    await_arrival(&proxy, 1);
    drop(client);
    proxy.lift();
    let deadline = Instant::now() + Duration::from_secs(60);
    while counted(&counter) != 1 {
        assert!(Instant::now() < deadline, "what was sent never arrived");
    }
}

#[test]
fn connections_that_are_cut_in_a_black_hole_take_with_them_what_was_sent() {
    let Setup { proxy, mut client, counter } = setup();
    proxy.black_hole();
    client.send(&["INCR", &counter]);
    await_arrival(&proxy, 1);
    proxy.cut_connections();
    assert!(client.next_reply().is_err());
    proxy.lift();
    connect(&proxy).command(&["ECHO", "x"]);
    assert_eq!(counted(&counter), 0);
}

#[test]
fn new_connections_can_be_refused_while_old_ones_go_on() {
    let Setup { proxy, mut client, counter } = setup();
    proxy.refuse_connections();
    let address = proxy.url_through(redis().url());
    let refused = TcpStream::connect(address.strip_prefix("redis://").unwrap()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    client.command(&["INCR", &counter]);
    proxy.accept_connections();
    connect(&proxy).command(&["INCR", &counter]);
    assert_eq!(counted(&counter), 2);
}

#[test]
fn replies_can_be_delayed_and_delays_do_not_add_up() {
    let Setup { proxy, mut client, counter } = setup();
    let delay = Duration::from_secs(2);
    proxy.delay_replies(delay);
    let before = Instant::now();
    for _ in 0..100 {
        client.send(&["INCR", &counter]);
    }
    for expected in 1..=100 {
        assert_eq!(client.next_reply().unwrap().integer(), expected);
    }
    assert!(before.elapsed() >= delay);
    assert!(before.elapsed() < delay * 50);
    proxy.delay_replies(Duration::ZERO);
    client.command(&["INCR", &counter]);
}

#[test]
fn a_login_passes_and_stands_in_the_address() {
    let server = test_servers::PrivateRedis::start(test_servers::RedisSettings::new().password("secret"));
    let proxy = Proxy::start(&server.url());
    let url = proxy.url_through(&server.url());
    assert!(url.starts_with("redis://default:secret@127.0.0.1:"), "{url}");
    assert_eq!(RedisConnection::open(&url).command(&["ECHO", "x"]).text(), "x");
    assert_eq!(proxy.take_commands(), [command("ECHO", &["x"])]);
}

#[test]
fn a_proxy_refuses_tls() {
    let started = std::panic::catch_unwind(|| Proxy::start("rediss://127.0.0.1:1"));
    let message = started.unwrap_err().downcast::<&str>().unwrap();
    assert!(message.contains("must be redis://"), "{message}");
}

/// Waits until so many commands have arrived at the proxy.
fn await_arrival(proxy: &Proxy, commands: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while proxy.requests() < commands {
        assert!(Instant::now() < deadline, "the command never arrived");
        std::thread::sleep(Duration::from_millis(1));
    }
}
