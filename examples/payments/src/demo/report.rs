//! What the demo prints, and what it finds wrong.

use crate::{Failure, client::Reply, model::Payment, server::RecordLine};

/// Collects what differs from what must be.
#[derive(Default)]
pub(super) struct Report {
    mismatches: Vec<String>,
}

/// What an answer must be.
pub(super) struct Expected {
    status: u16,
    replayed: bool,
    answer: Answer,
}

enum Answer {
    /// A payment with this id.
    Payment(&'static str),
    /// These bytes.
    Bytes(bytes::Bytes),
    /// The problem with this code, with `Retry-After` or without.
    Problem { code: &'static str, retry_after: bool },
}

impl Expected {
    pub(super) fn payment(id: &'static str) -> Self {
        Self { status: 201, replayed: false, answer: Answer::Payment(id) }
    }

    pub(super) fn replay_of(first: &Reply) -> Self {
        Self { status: first.status.as_u16(), replayed: true, answer: Answer::Bytes(first.body.clone()) }
    }

    pub(super) fn problem(status: u16, code: &'static str) -> Self {
        Self { status, replayed: false, answer: Answer::Problem { code, retry_after: false } }
    }

    pub(super) fn in_progress() -> Self {
        let answer = Answer::Problem { code: "request-in-progress", retry_after: true };
        Self { status: 409, replayed: false, answer }
    }

    /// What is wrong with the answer.
    fn differences(&self, reply: &Reply) -> Vec<String> {
        let mut found = Vec::new();
        if reply.status != self.status {
            found.push(format!("the status is {} and must be {}", reply.status.as_u16(), self.status));
        }
        if is_replayed(reply) != self.replayed {
            found.push(if self.replayed { "it must be a replay" } else { "it must not be a replay" }.into());
        }
        match &self.answer {
            Answer::Payment(id) => match serde_json::from_slice::<Payment>(&reply.body) {
                Ok(payment) if payment.id == *id => {}
                Ok(payment) => found.push(format!("the payment's id is {} and must be {id}", payment.id)),
                Err(error) => found.push(format!("the body is no payment: {error}")),
            },
            Answer::Bytes(bytes) if reply.body == bytes => {}
            Answer::Bytes(_) => found.push("the body is not, byte for byte, what the first answer was".into()),
            Answer::Problem { code, retry_after } => {
                let problem: serde_json::Value = serde_json::from_slice(&reply.body).unwrap_or_default();
                if problem["code"] != *code {
                    found.push(format!("the problem is {} and must be {code}", problem["code"]));
                }
                let seconds = reply.header("retry-after").map(|seconds| seconds.parse::<u64>().unwrap_or(0));
                if seconds.is_some_and(|seconds| !(1..=5).contains(&seconds)) || seconds.is_some() != *retry_after {
                    found.push(format!("Retry-After is {:?}", reply.header("retry-after")));
                }
            }
        }
        found
    }
}

impl Report {
    /// Prints a scenario's line, and checks its answer.
    pub(super) fn scenario(&mut self, number: u8, what: &str, reply: &Reply, expected: Expected) -> Result<(), String> {
        line(number, what, reply.status.as_str(), replayed(reply), &reply.text())?;
        self.check(number, what, reply, &expected);
        Ok(())
    }

    /// Prints the line of a scenario that has two answers.
    pub(super) fn both(&self, number: u8, what: &str, one: &Reply, other: &Reply) -> Result<(), String> {
        let status = format!("{}, {}", one.status.as_str(), other.status.as_str());
        let replayed = if replayed(one) == replayed(other) { replayed(one) } else { "one replayed" };
        line(number, what, &status, replayed, &format!("{}, {}", one.text(), other.text()))
    }

    /// Prints the line of a scenario that has no answer.
    pub(super) fn no_answer(&self, number: u8, what: &str, why: &str) -> Result<(), String> {
        line(number, what, "none", "no answer", &format!("({why})"))
    }

    /// Checks an answer that has no line of its own.
    pub(super) fn check(&mut self, number: u8, what: &str, reply: &Reply, expected: &Expected) {
        for difference in expected.differences(reply) {
            self.mismatch(number, &format!("{what}: {difference}"));
        }
    }

    /// Checks that two answers have one and that they differ in it.
    pub(super) fn differ(&mut self, number: u8, what: &str, one: Option<String>, other: Option<String>) {
        if one.is_none() || one == other {
            self.mismatch(number, &format!("the {what} must be another one"));
        }
    }

    pub(super) fn mismatch(&mut self, number: u8, what: &str) {
        self.mismatches.push(format!("scenario {number}: {what}"));
    }

    /// Checks a total.
    pub(super) fn total(&mut self, name: &str, seen: u64, expected: u64) {
        if seen != expected {
            self.mismatches.push(format!("{name} = {seen} and must be {expected}"));
        }
    }

    /// Checks a record that must be done.
    pub(super) fn record(&mut self, tenant: u64, key: &str, record: Option<&RecordLine>, attempt: u32) {
        let is_right = record.is_some_and(|record| {
            let RecordLine { state, status, attempt: seen, takeovers } = record;
            state == "done" && *status == Some(201) && *seen == attempt && *takeovers + 1 == attempt
        });
        if !is_right {
            let wanted = format!("done, with status 201, by attempt {attempt}");
            self.mismatches.push(format!("the record of tenant {tenant}, key {key} must be {wanted}"));
        }
    }

    /// Everything that differs, as the demo's error.
    pub(super) fn end(self) -> Result<(), Failure> {
        if self.mismatches.is_empty() {
            return Ok(());
        }
        Err(Failure::Run(format!("the demo differs from what must be:\n  {}", self.mismatches.join("\n  "))))
    }
}

fn is_replayed(reply: &Reply) -> bool {
    reply.header("idempotent-replayed") == Some("true")
}

fn replayed(reply: &Reply) -> &'static str {
    if is_replayed(reply) { "replayed" } else { "not replayed" }
}

fn line(number: u8, what: &str, status: &str, replayed: &str, body: &str) -> Result<(), String> {
    crate::say(&format!("{number}  {what:<33}  {status:<8}  {replayed:<12}  {body}"))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderName, StatusCode};

    use super::*;

    fn reply(status: u16, headers: &[(&'static str, &'static str)], body: &'static str) -> Reply {
        let headers = headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        Reply {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::from_iter(headers),
            body: body.into(),
        }
    }

    fn paid() -> Reply {
        reply(201, &[], r#"{"id":"1","chargeId":"ch_1","amountMinor":250000,"status":"succeeded"}"#)
    }

    #[test]
    fn a_run_without_differences_ends_well() {
        let mut report = Report::default();
        report.check(1, "first", &paid(), &Expected::payment("1"));
        let mut again = paid();
        again.headers.insert("idempotent-replayed", "true".parse().unwrap());
        report.check(2, "retry", &again, &Expected::replay_of(&paid()));
        let in_progress = r#"{"code":"request-in-progress"}"#;
        report.check(7, "early", &reply(409, &[("retry-after", "2")], in_progress), &Expected::in_progress());
        report.differ(4, "charge", Some("a".into()), Some("b".into()));
        assert!(report.end().is_ok());
    }

    #[test]
    fn whatever_differs_is_told_with_its_scenario() {
        let in_progress = r#"{"code":"request-in-progress"}"#;
        let marked = [("idempotent-replayed", "true")];
        let other = r#"{"id":"2","chargeId":"ch_1","amountMinor":250000,"status":"succeeded"}"#;
        for (reply, expected, part) in [
            (reply(500, &[], ""), Expected::payment("1"), "the status is 500 and must be 201"),
            (reply(201, &[], other), Expected::payment("1"), "the payment's id is 2 and must be 1"),
            (reply(201, &[], "{}"), Expected::payment("1"), "the body is no payment"),
            (paid(), Expected::replay_of(&paid()), "it must be a replay"),
            (reply(201, &marked, other), Expected::replay_of(&paid()), "not, byte for byte"),
            (reply(201, &marked, other), Expected::payment("2"), "it must not be a replay"),
            (reply(422, &[], "{}"), Expected::problem(422, "x"), "the problem is null and must be x"),
            (reply(409, &[], in_progress), Expected::in_progress(), "Retry-After is None"),
            (reply(409, &[("retry-after", "9")], in_progress), Expected::in_progress(), "Retry-After is Some(\"9\")"),
        ] {
            let mut report = Report::default();
            report.check(3, "it", &reply, &expected);
            let Err(Failure::Run(problem)) = report.end() else { panic!("{part} was not noticed") };
            assert!(problem.contains("scenario 3: it: ") && problem.contains(part), "{problem}");
        }
    }

    #[test]
    fn a_total_or_a_record_that_differs_fails_the_run() {
        let record = |status, attempt| Some(RecordLine { state: "done".into(), status, attempt, takeovers: 0 });
        for (rows, record) in [
            (5, record(Some(201), 1)),
            (4, None),
            (4, record(Some(200), 1)),
            (4, record(None, 1)),
            (4, record(Some(201), 2)),
        ] {
            let mut report = Report::default();
            report.total("payment rows", rows, 4);
            report.record(7, "k-1", record.as_ref(), 1);
            assert!(matches!(report.end(), Err(Failure::Run(_))));
        }
    }
}
