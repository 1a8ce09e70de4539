//! What is left of a process that is killed: nothing of its own servers, and its databases on one that is not its own only
//! until the next process comes.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use test_servers::{PrivatePostgres, Settings, is_running, query, query_value};

/// A process that holds servers, and what it says of them.
struct Holder {
    process: Child,
    said: Vec<String>,
}

impl Holder {
    fn new(mode: &str, server: Option<&str>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hold-servers"));
        command
            .arg(mode)
            .env_remove("IDEM_TEST_POSTGRES_URL")
            .env_remove("IDEM_TEST_REDIS_URL")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(url) = server {
            command.env("IDEM_TEST_POSTGRES_URL", url);
        }
        let mut process = command.spawn().expect("the program was built for this test");
        let output = process.stdout.take().expect("its output is piped");
        let lines = BufReader::new(output).lines().map(|line| line.expect("its output is text"));
        let said = lines.take_while(|line| line != "ready").collect();
        Self { process, said }
    }

    /// SIGKILL: nothing in that process can tidy up.
    fn kill(mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
    }
}

#[test]
fn its_own_servers_end_with_it_and_leave_no_folder() {
    let holder = Holder::new("private", None);
    let servers: Vec<(u32, String)> = holder
        .said
        .iter()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(id, folder)| (id.parse().unwrap(), folder.to_owned()))
        .collect();
    assert_eq!(servers.len(), 9, "{servers:?}");
    for (process, folder) in &servers {
        assert!((*process == 0 || is_running(*process)) && Path::new(folder).exists());
    }

    holder.kill();
    let deadline = Instant::now() + Duration::from_secs(60);
    for (process, folder) in &servers {
        while (*process != 0 && is_running(*process)) || Path::new(folder).exists() {
            assert!(Instant::now() < deadline, "process {process} or folder {folder} is left");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn its_databases_on_another_server_are_dropped_by_the_next_process_and_those_of_the_living_stay() {
    let server = PrivatePostgres::start(Settings::new());
    // Of the same form but nobody's, and close to it: not ours to drop or ours.
    query(&server.url(), "CREATE DATABASE idem_test_of_a_person");
    let names = || {
        let found = query(&server.url(), "SELECT datname FROM pg_database WHERE datname LIKE 'idem%' ORDER BY 1");
        found.into_iter().map(|row| row[0].clone().unwrap()).collect::<Vec<_>>()
    };
    let name_of = |holder: &Holder| query_value(&holder.said[0], "SELECT current_database()");
    let left_by = |holder: Holder| {
        let name = name_of(&holder);
        let lock = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        let before = query_value(&server.url(), lock);
        holder.kill();
        let deadline = Instant::now() + Duration::from_secs(60);
        while query_value(&server.url(), lock) == before {
            assert!(Instant::now() < deadline, "its connection outlives it");
        }
        name
    };

    let living = Holder::new("shared", Some(&server.url()));
    let dead = left_by(Holder::new("shared", Some(&server.url())));
    assert!(names().contains(&dead));
    let next = Holder::new("shared", Some(&server.url()));
    let mut expected = ["idem_test_of_a_person".to_owned(), name_of(&living), name_of(&next)];
    expected.sort();
    let mut left = names();
    left.sort();
    assert_eq!(left, expected);
    living.kill();
    next.kill();
}
