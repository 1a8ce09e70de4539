//! What the program prints.

use std::process::Output;

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
async fn a_mistake_in_the_command_line_is_told_and_ends_with_2() {
    for (arguments, part) in [
        (&["pay"][..], "there is no command \"pay\""),
        (&["serve", "--listen", "127.0.0.1:0"], "serve needs --store URL"),
        (&["serve", "--listen", "127.0.0.1:0", "--store", "mysql://u:secret@h/db"], "no store for mysql: URLs"),
        (&["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--lease", "0s"], "lease is zero"),
        (&["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--provider", "ftp://x"], "--provider"),
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
    for (listen, store, part) in [("127.0.0.1:0", &*file, "payments.db"), ("203.0.113.1:1", "memory:", "203.0.113.1:1")]
    {
        let output = payments(&["serve", "--listen", listen, "--store", store]).await;
        assert_eq!(output.status.code(), Some(1));
        assert!(errors(&output).contains(part), "{}", errors(&output));
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
