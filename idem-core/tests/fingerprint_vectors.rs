//! The shared vectors of canonical JSON, and the cases in which fingerprints went wrong elsewhere.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic as tests do")]

use idem_core::{Differences, FieldSelector, Fingerprint, canonical_json};
use serde_json::Value;

const VECTORS: &str = include_str!("vectors/fingerprint_json.json");

fn json(document: &str) -> Fingerprint {
    Fingerprint::builder().json("body", document).build().unwrap()
}

fn raw(document: &str) -> Fingerprint {
    Fingerprint::builder().part("body", document).build().unwrap()
}

fn selected(document: &str, pointers: &[&str]) -> Fingerprint {
    let selector = FieldSelector::new(pointers).unwrap();
    Fingerprint::builder().selected("body", document, &selector).build().unwrap()
}

/// Runs `check` on every vector of a list, and fails if the list is shorter than when it was written.
fn each(list: &str, at_least: usize, check: impl Fn(&str, &Value)) {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let vectors = vectors[list].as_array().unwrap();
    assert!(vectors.len() >= at_least, "{list}: {}", vectors.len());
    for vector in vectors {
        check(vector["name"].as_str().unwrap(), vector);
    }
}

fn pair(vector: &Value) -> (&str, &str) {
    let side = |side: &str| vector[side].as_str().unwrap();
    (side("left"), side("right"))
}

#[test]
fn equal_documents_have_one_fingerprint() {
    each("equal", 13, |name, vector| {
        let (left, right) = pair(vector);
        assert!(canonical_json(left.as_bytes()).is_ok(), "{name}");
        assert!(json(left).matches(&json(right)), "{name}");
    });
}

#[test]
fn different_documents_have_two_fingerprints() {
    each("different", 17, |name, vector| {
        let (left, right) = pair(vector);
        assert!(canonical_json(left.as_bytes()).is_ok(), "{name}");
        assert!(canonical_json(right.as_bytes()).is_ok(), "{name}");
        assert!(!json(left).matches(&json(right)), "{name}");
    });
}

#[test]
fn what_is_not_canonical_counts_byte_by_byte() {
    each("not_canonical", 13, |name, vector| {
        let document = vector["document"].as_str().unwrap();
        assert!(canonical_json(document.as_bytes()).is_err(), "{name}");
        assert!(json(document).matches(&json(document)), "{name}");
        assert!(!json(document).matches(&json(&format!("{document} "))), "{name}");
        assert!(!json(document).matches(&raw(document)), "{name}");
    });
}

#[test]
fn the_canonical_form_is_as_documented() {
    for (document, canonical) in [
        (" { \"b\" : 1 , \"a\" : [ ] } ", r#"{"a":[],"b":1}"#),
        (r#"["\u0041\/\"\\\b\t\n\f\r\u001F\u007f"]"#, "[\"A/\\\"\\\\\\b\\t\\n\\f\\r\\u001f\u{7f}\"]"),
        (r#""\ud800\udc00\ud83d\udfff\uDBFF\uDFFF""#, "\"\u{10000}\u{1f7ff}\u{10ffff}\""),
        ("\" \u{7f}~\"", "\" \u{7f}~\""),
        (r#"{"\n":1,"!":2,"":3,"a!":4,"a":5}"#, r#"{"":3,"!":2,"\n":1,"a":5,"a!":4}"#),
        ("[2.50, 100, 12, -0.0e9, 0.001, -1E+0003, 1e0005]", "[25e-1,1e2,12,0,1e-3,-1e3,1e5]"),
        // Exponents are exact, and bounded by the value alone, not by its spelling.
        ("1e9223372036854775807", "1e9223372036854775807"),
        ("0.1e9223372036854775808", "1e9223372036854775807"),
        ("1000.00e-9223372036854775811", "1e-9223372036854775808"),
        ("0e99999999999999999999999999999999999999999999999999", "0"),
        ("true", "true"),
    ] {
        let written = canonical_json(document.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), canonical);
    }
}

#[test]
fn a_refusal_says_what_and_where() {
    let control = "[\"\u{1}\"]";
    for (document, reason, offset) in [
        ("", "no value", 0),
        ("\u{feff}1", "no value", 0),
        ("[1,]", "no value", 3),
        ("[1 2]", "no comma or end of the array", 3),
        ("{\"a\" 1}", "no colon after a member name", 5),
        ("{a:1}", "no string", 1),
        ("{\"a\":1,}", "no string", 7),
        ("{\"b\":0,\"a\":1,\"\\u0062\":2}", "a member name that the object has already", 13),
        ("[1, 01]", "a number with a leading zero", 4),
        ("[-]", "no digit", 2),
        ("[1.e1]", "no digit", 3),
        ("[1e+]", "no digit", 4),
        ("[1e-+5]", "no digit", 4),
        ("[1e+-5]", "no digit", 4),
        ("[+1]", "no value", 1),
        ("[.5]", "no value", 1),
        ("\u{c}1", "no value", 0),
        ("1\u{b}", "data after the end", 1),
        ("[\u{a0}1]", "no value", 1),
        ("[1e9223372036854775808]", "a number whose exponent does not fit 64 bits", 1),
        ("[10e99999999999999999999999999999999999999999]", "a number whose exponent does not fit 64 bits", 1),
        // 5 more than what a number of 64 and one of 128 bits can hold: it must not come round to 5.
        ("[1e18446744073709551621]", "a number whose exponent does not fit 64 bits", 1),
        ("[1e340282366920938463463374607431768211461]", "a number whose exponent does not fit 64 bits", 1),
        ("[1e-340282366920938463463374607431768211461]", "a number whose exponent does not fit 64 bits", 1),
        ("[1e-9223372036854775809]", "a number whose exponent does not fit 64 bits", 1),
        ("[\"\\x\"]", "an unknown escape", 2),
        ("[\"\\u+123\"]", "an unknown escape", 2),
        ("[\"\\u12", "an unknown escape", 2),
        ("[\"\\", "an unknown escape", 2),
        ("[\"\\ude02\"]", "a lone surrogate", 2),
        ("[\"\\ud83dx\"]", "a lone surrogate", 2),
        ("[\"\\ud83d\\ud83d\"]", "a lone surrogate", 2),
        ("[\"\\ud800\\ue000\"]", "a lone surrogate", 2),
        ("[\"\\udbff\\uffff\"]", "a lone surrogate", 2),
        (control, "a control character in a string", 2),
        ("[\"\u{1f}\"]", "a control character in a string", 2),
        ("{\"\n\":1}", "a control character in a string", 2),
        ("[\"a", "an unfinished string", 3),
        ("1 1", "data after the end", 2),
        ("nul", "no value", 0),
        ("truer", "data after the end", 4),
    ] {
        let refused = canonical_json(document.as_bytes()).unwrap_err();
        assert_eq!((refused.reason(), refused.offset()), (reason, offset), "{document}");
    }
    let refused = canonical_json(b"[\"a\xff\"]").unwrap_err();
    assert_eq!(refused.to_string(), "the document has no canonical JSON form: invalid UTF-8 at byte 3");
}

#[test]
fn arrays_and_objects_may_be_nested_128_deep_and_what_is_deeper_is_refused_where_it_begins() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        for (other, end) in [("[", "]"), ("{\"a\":", "}")] {
            let nested = |depth: usize| [&open.repeat(depth - 1), other, "1", end, &close.repeat(depth - 1)].concat();
            assert!(canonical_json(nested(128).as_bytes()).is_ok(), "{open}{other}");
            let refused = canonical_json(nested(129).as_bytes()).unwrap_err();
            assert_eq!((refused.reason(), refused.offset()), ("nested too deep", 128 * open.len()), "{open}{other}");
        }
    }
}

// case 058
#[test]
fn only_members_are_sorted() {
    let left = json(r#"{"steps":["debit","credit"]}"#);
    assert!(!left.matches(&json(r#"{"steps":["credit","debit"]}"#)));
}

// case 129
#[test]
fn order_and_spelling_count_only_in_raw_mode() {
    let left = r#"{"a":1,"b":{"x":1,"y":2}}"#;
    let right = "{ \"b\": {\"y\": 2, \"x\": 1.0},\n \"\\u0061\": 1 }";
    assert!(json(left).matches(&json(right)));
    assert_ne!(json(left), json(right), "the lengths as given are kept");
    assert!(!raw(left).matches(&raw(right)));
}

// case 132
#[test]
fn an_emptied_body_is_told_by_its_length() {
    let body = format!("{{\"note\":\"{}\"}}", "x".repeat(109));
    for make in [json, raw] {
        let (stored, given) = (make(&body), make(""));
        assert!(!stored.matches(&given));
        let Differences::Parts(parts) = stored.differences(&given) else {
            panic!("comparable");
        };
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].name(), "body");
        assert_eq!((parts[0].stored_len(), parts[0].given_len()), (Some(120), Some(0)));
        assert_eq!(parts[0].to_string(), "body length differs: 120 -> 0");
    }
}

// cases 128 and 133
#[test]
fn only_the_selected_fields_count() {
    let amount = |amount: &str, time: u32| format!("{{\"client_ts\":{time},\"amount\":{amount}}}");
    let stored = selected(&amount("10", 1), &["/amount", "/currency"]);
    let loaded = Fingerprint::from_bytes(stored.as_bytes()).unwrap();
    assert!(loaded.matches(&selected(&amount("1e1", 2222), &["/currency", "/amount"])));
    assert!(!loaded.matches(&selected(&amount("11", 1), &["/amount", "/currency"])));
    assert!(!loaded.matches(&selected(&amount("10", 1), &["/amount"])));
    assert!(!loaded.matches(&json(&amount("10", 1))));
}

#[test]
fn null_is_not_absent_and_a_document_without_the_fields_counts_byte_by_byte() {
    let fields = ["/a", "/b"];
    let with_null = selected(r#"{"a":null,"b":1}"#, &fields);
    assert!(!with_null.matches(&selected(r#"{"b":1}"#, &fields)));

    let without = selected(r#"{"c":1}"#, &fields);
    assert!(without.matches(&selected(r#"{"c":1}"#, &fields)));
    assert!(!without.matches(&selected(r#"{"c":2}"#, &fields)));
    assert!(!without.matches(&raw(r#"{"c":1}"#)));
    assert!(!selected("oops", &fields).matches(&json("oops")));
}
