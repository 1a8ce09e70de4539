use idem_core::Fingerprint;
use serde_json::{Value, json};

use super::*;

fn json_of(style: &ProblemStyle, problem: &Problem) -> Value {
    let status = style.status(problem.code);
    serde_json::from_str(&style.json(problem, status)).unwrap()
}

fn store_error(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "postgres", "claim", "password authentication failed for user app")
}

// case 118
#[test]
fn each_row_of_the_table_is_told_apart_by_code_and_status_and_only_some_say_when_to_retry() {
    let malformed = KeyError::Malformed { problem: "it is empty" };
    let differences = Differences::Incomparable;
    let unavailable = store_error(StoreErrorKind::Unavailable);
    let table = [
        (Problem::key("idempotency-key", KeyError::Missing), "idempotency-key-missing", 400, None),
        (Problem::key("idempotency-key", malformed), "idempotency-key-malformed", 400, None),
        (Problem::key("idempotency-key", KeyError::TooLong { bytes: 256 }), "idempotency-key-too-long", 400, None),
        (Problem::reused(differences), "idempotency-key-reused", 422, None),
        (Problem::in_progress(Duration::from_secs(3)), "request-in-progress", 409, Some("3")),
        (Problem::superseded(), "request-in-progress", 409, Some("1")),
        (Problem::outcome_unknown(), "outcome-unknown", 409, None),
        (Problem::not_retained(), "response-not-retained", 409, None),
        (Problem::request_too_large(7), "request-too-large", 413, None),
        (Problem::request_incomplete(), "request-incomplete", 400, None),
        (Problem::principal_missing(), "principal-missing", 401, None),
        (Problem::store(&unavailable), "store-unavailable", 503, Some("5")),
        (Problem::store(&store_error(StoreErrorKind::Corrupt)), "store-unavailable", 503, None),
        (Problem::store(&store_error(StoreErrorKind::Configuration)), "store-unavailable", 503, None),
        (Problem::store(&store_error(StoreErrorKind::Contract)), "store-unavailable", 503, None),
        (Problem::shutting_down(), "shutting-down", 503, Some("1")),
        (Problem::operation_failed(), "operation-failed", 500, None),
    ];
    for &code in Code::ALL {
        assert!(table.iter().any(|(problem, ..)| problem.code == code), "{code:?} has no row");
    }
    let style = ProblemStyle::default();
    for (problem, code, status, retry_after) in table {
        let response = style.response(&problem);
        assert_eq!(response.status(), status, "{code}");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert_eq!(response.headers()["cache-control"], "no-store");
        assert_eq!(response.headers().get("retry-after").map(|value| value.to_str().unwrap()), retry_after, "{code}");
        let json = json_of(&style, &problem);
        assert_eq!(json["type"], format!("urn:idem:problem:{code}"));
        assert_eq!(json["code"], code);
        assert_eq!(json["status"], status);
        assert_eq!(json["title"], problem.code.title());
        assert_eq!(json["detail"], problem.detail);
        assert!(!json.to_string().contains("password"), "{json}");
    }
}

// case 118
#[test]
fn every_detail_says_whether_the_request_was_processed_or_what_to_send_next() {
    let unavailable = store_error(StoreErrorKind::Unavailable);
    let malformed = KeyError::Malformed { problem: "it is empty" };
    let same_key = "retry it with the same key";
    for (problem, said) in [
        (Problem::key("x-key", KeyError::Missing), "the header x-key is missing; send a key that is unique"),
        (Problem::key("x-key", malformed), "the header x-key is malformed: it is empty"),
        (Problem::principal_missing(), "this request has none"),
        (Problem::request_too_large(7), "may have 7 bytes at most"),
        (Problem::request_incomplete(), "nothing was done"),
        (Problem::reused(Differences::Incomparable), "use a new key for this one"),
        (Problem::incomparable(), "send the request again later with the same key, and not under a new one"),
        (Problem::not_begun(), "nothing was done; retry it with the same key"),
        (Problem::in_progress(Duration::ZERO), same_key),
        (Problem::superseded(), "retry with the same key"),
        (Problem::outcome_unknown(), "do not send it under a new key"),
        (Problem::not_retained(), "was done once and will not be done again"),
        (Problem::store(&unavailable), "was not processed"),
        (Problem::shutting_down(), "did not process the request; retry it with the same key"),
        (Problem::operation_failed(), same_key),
    ] {
        assert!(problem.detail.contains(said), "{}", problem.detail);
    }
    #[cfg(feature = "axum")]
    {
        // The handler ran, so that nobody may take it for a request that was not processed.
        let failed = Problem::commit_failed(&unavailable).detail;
        assert!(failed.contains(same_key) && !failed.contains("not processed"), "{failed}");
        assert!(Problem::set_up_wrongly().detail.ends_with("nothing was done"));
    }
}

// case 041
#[test]
fn the_time_to_retry_after_is_the_time_left_rounded_up_within_1_to_5_seconds() {
    for (left, seconds) in [(0, 1), (1, 1), (999, 1), (1_000, 1), (1_001, 2), (5_000, 5), (5_001, 5), (900_000, 5)] {
        let problem = Problem::in_progress(Duration::from_millis(left));
        assert_eq!(problem.retry_after, Some(seconds), "{left} ms");
    }
}

// case 132
#[test]
fn a_reused_key_is_told_which_parts_differ_with_their_lengths_and_nothing_of_what_they_hold() {
    let fingerprint = |body: &str, more: Option<&str>| {
        let parts = Fingerprint::builder().part("method", "POST").part("body", body);
        more.iter().fold(parts, |parts, more| parts.part("content-type", more)).build().unwrap()
    };
    let stored = fingerprint("secret-of-the-first", None);
    let problem = Problem::reused(stored.differences(&fingerprint("", Some("text/plain"))));
    let json = json_of(&ProblemStyle::default(), &problem);
    assert_eq!(
        json["differences"],
        json!([
            { "part": "body", "storedLength": 19, "givenLength": 0 },
            { "part": "content-type", "storedLength": null, "givenLength": 10 },
        ])
    );
    assert_eq!(
        json["detail"],
        "this key was used for another request: body length differs: 19 -> 0, content-type was absent before; use a \
         new key for this one"
    );
    assert!(!json.to_string().contains("secret"));
}

#[test]
fn names_of_parts_are_written_as_json_whatever_they_are() {
    let fingerprint = |body: &str| Fingerprint::builder().part("the \"order\"", body).build().unwrap();
    let problem = Problem::reused(fingerprint("1").differences(&fingerprint("2")));
    let json = json_of(&ProblemStyle::default(), &problem);
    assert_eq!(json["differences"][0]["part"], "the \"order\"");
}

// case 110
#[test]
fn a_key_that_is_too_long_is_told_the_limit() {
    let problem = Problem::key("idempotency-key", KeyError::TooLong { bytes: 300 });
    let detail = "the header idempotency-key is too long: it names a key of 300 bytes, and the limit is 255";
    assert_eq!(problem.detail, detail);
}

#[test]
fn base_and_statuses_can_be_changed() {
    let style = ProblemStyle {
        base: "https://errors.example/\"".into(),
        statuses: vec![(Code::KeyReused, StatusCode::CONFLICT), (Code::KeyReused, StatusCode::BAD_REQUEST)],
        is_grpc: false,
    };
    let problem = Problem::reused(Differences::Incomparable);
    assert_eq!(style.response(&problem).status(), 400);
    let json = json_of(&style, &problem);
    assert_eq!(json["type"], "https://errors.example/\"idempotency-key-reused");
    assert_eq!(json["status"], 400);
    assert_eq!(style.status(Code::KeyMissing), 400);
}

#[test]
fn a_problem_is_a_body_of_known_length() {
    let response = ProblemStyle::default().response(&Problem::outcome_unknown());
    let length = http_body::Body::size_hint(response.body()).exact();
    assert!(length.is_some_and(|length| length > 100), "{length:?}");
}
