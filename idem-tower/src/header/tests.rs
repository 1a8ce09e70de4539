use proptest::prelude::*;
use serde_json::Value;

use super::*;

const VECTORS: &str = include_str!("../../tests/vectors/key_header.json");

fn one(line: &str, mode: Mode) -> Result<String, KeyError> {
    parse([line.as_bytes()], mode).map(|key| key.as_str().to_owned())
}

// cases 107, 110, 111
#[test]
fn every_case_of_the_vectors_is_answered_as_written_in_both_modes() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let cases = vectors["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 50);
    for case in cases {
        let lines: Vec<&str> = case["lines"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
        for (mode, name) in [(Mode::Strict, "strict"), (Mode::Lenient, "lenient")] {
            let given = match parse(lines.iter().map(|line| line.as_bytes()), mode) {
                Ok(key) => format!("key {}", key.as_str()),
                Err(KeyError::Missing) => "error missing".into(),
                Err(KeyError::Malformed { .. }) => "error malformed".into(),
                Err(KeyError::TooLong { .. }) => "error length".into(),
            };
            let (kind, value) = case[name].as_object().unwrap().iter().next().unwrap();
            assert_eq!(given, format!("{kind} {}", value.as_str().unwrap()), "{} ({name})", case["name"]);
        }
    }
}

#[test]
fn parameters_of_every_type_are_ignored_and_broken_ones_are_refused() {
    for good in [
        "a",
        "a;b;c",
        "*x_-.*9=1",
        "a=-12.5",
        "a=999999999999999",
        "a=tok:en/*",
        "a=*t",
        "a=123456789012.125",
        "a=Tok!#$%&'*+-.^_`|~:/0",
        "a=\"q\\\"\"",
        "a=:aGk=:",
        "a=:+/0Z:",
        "a=?1",
        "a=?0",
        "a=@1659578233",
        "a=@-1",
        "a=%\"f%c3%bc\"",
        "a=%\"a b%4a~\"",
    ] {
        assert_eq!(one(&format!("\"k\";{good}"), Mode::Strict), Ok("k".into()), "{good}");
    }
    for bad in [
        "",
        "A=1",
        "1=a",
        "a=",
        "a=-",
        "a=1.",
        "a=1.2345",
        "a=1234567890123456",
        "a=1234567890123.1",
        "a=\"x",
        "a=:!:",
        "a=:aGk",
        "a=?2",
        "a=@1.5",
        "a=@",
        "a=%\"f%C3\"",
        "a=%\"%ff\"",
        "a=%\"%4A\"",
        "a=%\"%4g\"",
        "a=%\"é\"",
        "a=%\"a\tb\"",
        "a=%x",
        "a=%xa\"",
        "a=tok,en",
        "a=:a-_:",
        "a=\"q\\n\"",
        "a=\"a\tb\"",
        "a=\"a\u{7f}\"",
        "a=\"é\"",
        "\ta",
        "_a",
        "aB",
        "a =1",
        "a= 1",
        "a,b",
        "a=(1)",
    ] {
        assert!(matches!(one(&format!("\"k\";{bad}"), Mode::Strict), Err(KeyError::Malformed { .. })), "{bad}");
    }
}

// case 110
#[test]
fn a_key_that_is_too_long_is_told_its_length_in_bytes() {
    assert_eq!(one(&"k".repeat(65_536), Mode::Lenient), Err(KeyError::TooLong { bytes: 65_536 }));
    assert_eq!(
        KeyError::TooLong { bytes: 256 }.to_string(),
        "is too long: it names a key of 256 bytes, and the limit is 255"
    );
}

#[test]
fn in_a_quoted_key_only_quote_and_backslash_are_escaped_and_only_spaces_are_around_it() {
    assert_eq!(one(r#"  "a\\b\"c ~" "#, Mode::Strict), Ok(r#"a\b"c ~"#.into()));
    for bad in [r#""a\nb""#, r#""a\/b""#, "\"a\\", "\t\"a\"", "\"a\"\t", "\"a\" ;b", "\"a\" \"b\""] {
        for mode in [Mode::Strict, Mode::Lenient] {
            assert!(matches!(one(bad, mode), Err(KeyError::Malformed { .. })), "{bad}");
        }
    }
}

// case 113
#[test]
fn control_characters_and_bytes_beyond_ascii_never_make_a_key() {
    for bad in [&b"a\nb"[..], b"a\0", b"\x1b[31m", b"a\x7f", b"\xff", "\u{1f602}".as_bytes()] {
        for line in [bad.to_vec(), [b"\"", bad, b"\""].concat()] {
            for mode in [Mode::Strict, Mode::Lenient] {
                assert!(matches!(parse([&line[..]], mode), Err(KeyError::Malformed { .. })), "{line:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(
        lines in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..3),
    ) {
        for mode in [Mode::Strict, Mode::Lenient] {
            let _ = parse(lines.iter().map(Vec::as_slice), mode);
        }
    }

    #[test]
    fn nothing_near_a_quoted_key_makes_the_parser_panic(line in "[ \t]?\"[a\\\\\" ]{0,6}\"?[;=a-zA:?@%\"*.0-9 -]{0,20}") {
        for mode in [Mode::Strict, Mode::Lenient] {
            let _ = parse([line.as_bytes()], mode);
        }
    }

    #[test]
    fn what_is_accepted_strictly_is_accepted_leniently_as_the_same_key(line in "[ \t]?\"[a\\\\\" ]{0,6}\"[;=ab1 ]{0,5}") {
        if let Ok(key) = parse([line.as_bytes()], Mode::Strict) {
            prop_assert_eq!(parse([line.as_bytes()], Mode::Lenient), Ok(key));
        }
    }

    #[test]
    fn every_printable_key_survives_quoting(name in "[ -~]{1,127}") {
        let line = format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
        prop_assert_eq!(one(&line, Mode::Strict), Ok(name));
    }
}
