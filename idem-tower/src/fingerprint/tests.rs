use http::Request;
use idem_core::Differences;
use proptest::prelude::*;

use super::*;

fn parts(method: &str, uri: &str, content_type: Option<&str>) -> Parts {
    let mut request = Request::builder().method(method).uri(uri);
    if let Some(content_type) = content_type {
        request = request.header("content-type", content_type);
    }
    request.body(()).unwrap().into_parts().0
}

fn of(rule: Rule, parts: &Parts, body: &'static str) -> Fingerprint {
    let fingerprints = Fingerprints { rule, ..Fingerprints::default() };
    fingerprints.of(parts, &Bytes::from_static(body.as_bytes())).unwrap().0
}

fn differing(left: &Fingerprint, right: &Fingerprint) -> Vec<String> {
    let Differences::Parts(parts) = left.differences(right) else { panic!("incomparable") };
    assert_eq!(parts.is_empty(), left.matches(right));
    parts.iter().map(|part| part.name().to_owned()).collect()
}

// cases 032, 132
#[test]
fn method_target_content_type_and_body_count() {
    let stored = of(Rule::Meaning, &parts("POST", "/a?x=1", Some("text/plain")), "body");
    for (method, uri, content_type, body, differs) in [
        ("POST", "/a?x=1", Some("text/plain"), "body", &[][..]),
        ("POST", "https://host.example/a?x=1", Some("text/plain"), "body", &[]),
        ("PATCH", "/a?x=1", Some("text/plain"), "body", &["method"]),
        ("POST", "/b?x=1", Some("text/plain"), "body", &["target"]),
        ("POST", "/a?x=2", Some("text/plain"), "body", &["target"]),
        ("POST", "/a", Some("text/plain"), "body", &["target"]),
        ("POST", "/a?x=1", Some("text/html"), "body", &["content-type"]),
        ("POST", "/a?x=1", Some("text/plain;charset=utf-16"), "body", &["content-type"]),
        ("POST", "/a?x=1", Some("text/plain;boundary=x"), "body", &[]),
        ("POST", "/a?x=1", None, "body", &["content-type"]),
        ("POST", "/a?x=1", Some("text/plain"), "", &["body"]),
        ("DELETE", "/a/7", None, "", &["body", "content-type", "method", "target"]),
    ] {
        let given = of(Rule::Meaning, &parts(method, uri, content_type), body);
        assert_eq!(differing(&stored, &given), differs, "{method} {uri} {content_type:?} {body}");
    }
}

#[test]
fn of_a_content_type_only_essence_and_charset_count() {
    let normalized = |value: &str| {
        let content_type = ContentType::of(&parts("POST", "/", Some(value)).headers).unwrap();
        (String::from_utf8(content_type.normalized.clone()).unwrap(), content_type.is_json())
    };
    for (value, expected, is_json) in [
        ("application/json", "application/json", true),
        ("Application/JSON ; Charset=\"UTF-8\"", "application/json;charset=utf-8", true),
        ("application/vnd.api+json;profile=x;charset=utf-8", "application/vnd.api+json;charset=utf-8", true),
        ("multipart/form-data; boundary=\"a;charset=b\\\";charset=c\"", "multipart/form-data", false),
        ("text/plain;charset", "text/plain", false),
        ("text/plain; charset = UTF-8 ;charset=b", "text/plain;charset=utf-8", false),
        ("text/plain;a=\\\";charset=b\"", "text/plain", false),
        ("text/plain;charset=\"utf-8", "text/plain;charset=\"utf-8", false),
        ("text/json", "text/json", false),
        (";charset=utf-8", ";charset=utf-8", false),
        ("application/jsonp", "application/jsonp", false),
        ("", "", false),
    ] {
        assert_eq!(normalized(value), (expected.to_owned(), is_json), "{value}");
    }
}

// cases 058, 129
#[test]
fn json_counts_by_its_meaning_and_by_its_bytes_where_that_is_chosen() {
    let json = parts("POST", "/", Some("application/json"));
    let stored = r#"{"a":1,"b":{"x":1,"y":2}}"#;
    let same = r#" {"b": {"y": 2, "x": 1.0}, "\u0061": 1} "#;
    assert!(of(Rule::Meaning, &json, stored).matches(&of(Rule::Meaning, &json, same)));
    assert!(!of(Rule::Raw, &json, stored).matches(&of(Rule::Raw, &json, same)));
    let text = parts("POST", "/", Some("text/plain"));
    assert!(!of(Rule::Meaning, &text, stored).matches(&of(Rule::Meaning, &text, same)));

    let steps = |body| of(Rule::Meaning, &json, body);
    assert!(!steps(r#"{"steps":["debit","credit"]}"#).matches(&steps(r#"{"steps":["credit","debit"]}"#)));
}

// cases 128, 133
#[test]
fn chosen_fields_are_the_ones_that_count() {
    let json = parts("POST", "/", Some("application/json"));
    let fields = || Rule::Fields(FieldSelector::new(&["/amount"]).unwrap());
    let stored = of(fields(), &json, r#"{"amount":1,"client_ts":17}"#);
    assert!(stored.matches(&of(fields(), &json, r#"{"client_ts":99,"amount":1.0}"#)));
    assert_eq!(differing(&stored, &of(fields(), &json, r#"{"amount":2,"client_ts":17}"#)), ["body"]);
    let elsewhere = parts("POST", "/other", Some("application/json"));
    assert_eq!(differing(&stored, &of(fields(), &elsewhere, r#"{"amount":1}"#)), ["target"]);
}

// case 133
#[test]
fn parts_of_ones_own_replace_all_others() {
    let custom = || Rule::Custom(Arc::new(|builder, parts, _| builder.part("order", parts.uri.path())));
    let stored = of(custom(), &parts("POST", "/orders/1", None), "x");
    assert!(stored.matches(&of(custom(), &parts("PATCH", "/orders/1?t=9", Some("text/plain")), "y")));
    assert_eq!(differing(&stored, &of(custom(), &parts("POST", "/orders/2", None), "x")), ["order"]);
}

// case 036
#[test]
fn parts_of_ones_own_are_keyed_too() {
    let rule = Rule::Custom(Arc::new(|builder, _, body| builder.part("pin", body)));
    let key = Some(FingerprintKey::new("new", &[7; 32]).unwrap());
    let fingerprints = Fingerprints { rule, key, older: vec![None], ..Fingerprints::default() };
    let (current, older) = fingerprints.of(&parts("POST", "/", None), &Bytes::from_static(b"1234")).unwrap();
    assert_eq!((current.key_id(), older[0].key_id()), (Some("new"), None));
}

#[test]
fn of_two_lines_the_first_content_type_counts_as_it_does_for_handlers() {
    let mut two = parts("POST", "/", Some("application/json"));
    two.headers.append("content-type", "text/plain".parse().unwrap());
    let one = parts("POST", "/", Some("application/json"));
    assert!(of(Rule::Meaning, &two, "[1]").matches(&of(Rule::Meaning, &one, "[ 1.0 ]")));
}

// case 036
#[test]
fn keyed_fingerprints_are_made_under_the_current_key_and_accepted_under_older_ones() {
    let key = |id| FingerprintKey::new(id, &[7; 32]).unwrap();
    let fingerprints =
        Fingerprints { key: Some(key("new")), older: vec![Some(key("old")), None], ..Fingerprints::default() };
    let (current, older) = fingerprints.of(&parts("POST", "/", None), &Bytes::new()).unwrap();
    let ids: Vec<_> = std::iter::once(&current).chain(&older).map(Fingerprint::key_id).collect();
    assert_eq!(ids, [Some("new"), Some("old"), None]);
    assert!(older[1].matches(&of(Rule::Meaning, &parts("POST", "/", None), "")));
}

// case 031
#[test]
fn an_anonymous_scope_is_one_for_each_meaning_of_a_request() {
    let json = parts("POST", "/", Some("application/json"));
    let scope = |body| anonymous_scope(&of(Rule::Meaning, &json, body)).unwrap();
    assert_eq!(scope(r#"{"a":1,"b":2}"#), scope(r#"{ "b": 2, "a": 1 }"#));
    assert_ne!(scope(r#"{"a":1}"#), scope(r#"{"a":2}"#));
    assert_ne!(scope("{}"), Scope::global());
    // Records are found by it, so it stays the same in every version.
    let fingerprint = Fingerprint::builder().part("body", "{}").build().unwrap();
    let named = anonymous_scope(&fingerprint).unwrap();
    assert_eq!(named.as_str(), "sha256-882a1cc3e7591f8ba44222001cdb074d1d9726dc4b1074acf5efb37b9e291a23");
}

#[cfg(feature = "axum")]
#[test]
fn the_target_is_the_one_that_the_client_sent_and_not_what_a_nested_router_left_of_it() {
    let mut nested = parts("POST", "/payments?x=1", None);
    nested.extensions.insert(axum::extract::OriginalUri(Uri::from_static("/v1/payments?x=1")));
    assert_eq!(target(&nested), "/v1/payments?x=1");
}

proptest! {
    #[test]
    fn no_content_type_makes_the_splitter_panic(value in proptest::collection::vec(32u8..=255, 0..60)) {
        let mut headers = HeaderMap::new();
        if let Ok(value) = http::HeaderValue::from_bytes(&value) {
            headers.insert(header::CONTENT_TYPE, value);
            let content_type = ContentType::of(&headers).unwrap();
            prop_assert!(content_type.essence_len <= content_type.normalized.len());
        }
    }
}
