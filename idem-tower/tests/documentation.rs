//! `docs/problems.md` has what a client needs to know of every problem, and of nothing else.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use idem_tower::Code;

/// The page that clients read.
const PAGE: &str = include_str!("../../docs/problems.md");

/// What each section answers, in this order.
const QUESTIONS: [&str; 3] = ["**What happened:**", "**Is a new key safe?**", "**What to do:**"];

/// Heading and text of each section.
fn sections() -> Vec<(&'static str, &'static str)> {
    PAGE.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap()).collect()
}

#[test]
fn every_code_has_its_section_and_nothing_else_has_one() {
    let headings: Vec<_> = sections().into_iter().map(|(heading, _)| heading).collect();
    let codes: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(headings, codes, "the sections of docs/problems.md are the codes, in their order");
}

#[test]
fn every_section_says_what_happened_whether_a_new_key_is_safe_and_what_to_do() {
    for (heading, text) in sections() {
        let mut rest = text;
        for question in QUESTIONS {
            let (_, after) = rest.split_once(question).unwrap_or_else(|| panic!("{heading} does not say {question}"));
            let answer = after.split("\n\n").next().unwrap().trim();
            assert!(answer.len() > 20, "{heading}: {question} {answer}");
            rest = after;
        }
    }
}

#[test]
fn every_section_tells_the_statuses_that_the_code_has() {
    for (code, (heading, text)) in Code::ALL.iter().copied().zip(sections()) {
        let status = format!("Status {}.", code.status().as_u16());
        assert!(text.trim_start().starts_with(&status), "{heading} does not begin with {status}");
        let first_line = text.trim_start().lines().next().unwrap();
        assert!(first_line.ends_with(&format!("gRPC: {}.", grpc_name(code.grpc_code()))), "{heading}: {first_line}");
    }
}

/// When to retry, of the problems that say so.
const TIMES: [(Code, &str); 3] = [
    (Code::RequestInProgress, "1 to 5 seconds"),
    (Code::StoreUnavailable, "5 seconds, if waiting may help"),
    (Code::ShuttingDown, "1 second"),
];

fn time_of(code: Code) -> Option<&'static str> {
    TIMES.into_iter().find(|(timed, _)| *timed == code).map(|(_, time)| time)
}

#[test]
fn sections_tell_when_to_retry_where_the_problem_does() {
    for (code, (heading, text)) in Code::ALL.iter().copied().zip(sections()) {
        let first_line = text.trim_start().lines().next().unwrap();
        let told = first_line.split_once("`Retry-After`: ").map(|(_, told)| told.split_once('.').unwrap().0);
        assert_eq!(told, time_of(code), "{heading}: {first_line}");
    }
}

#[test]
fn the_table_of_the_crates_documentation_has_the_same_statuses_and_times() {
    let rows: Vec<Vec<&str>> = include_str!("../src/lib.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `")?.strip_suffix('|'))
        .map(|row| row.split('|').map(str::trim).collect())
        .collect();
    for &code in Code::ALL {
        let is_of_code = |row: &&Vec<&str>| row[0].split(", ").any(|name| name.trim_matches('`') == code.as_str());
        let row = rows.iter().find(is_of_code).unwrap_or_else(|| panic!("{} has no row", code.as_str()));
        assert_eq!(row[1..], [code.status().as_str(), time_of(code).unwrap_or("")], "{}", code.as_str());
    }
}

fn grpc_name(code: u16) -> &'static str {
    let names = [
        (3, "INVALID_ARGUMENT"),
        (6, "ALREADY_EXISTS"),
        (8, "RESOURCE_EXHAUSTED"),
        (9, "FAILED_PRECONDITION"),
        (10, "ABORTED"),
        (13, "INTERNAL"),
        (14, "UNAVAILABLE"),
        (16, "UNAUTHENTICATED"),
    ];
    names.into_iter().find(|(number, _)| *number == code).unwrap().1
}

#[test]
fn the_headings_are_what_a_base_that_leads_to_the_page_is_followed_by() {
    for &code in Code::ALL {
        // Markdown makes an anchor of a heading by lowering it and leaving out everything but letters, digits and hyphens.
        let is_anchor = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
        assert!(code.as_str().bytes().all(is_anchor), "{}", code.as_str());
    }
}
