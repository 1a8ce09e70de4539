//! Properties of canonical JSON and of the stored form, on random documents and bytes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic as tests do")]

use std::collections::BTreeMap;

use idem_core::{FieldSelector, Fingerprint, InvalidFingerprint, canonical_json};
use proptest::prelude::*;
use serde_json::Value;

fn json(document: &[u8]) -> Fingerprint {
    Fingerprint::builder().json("body", document).build().unwrap()
}

/// A document by its meaning. A number is `digits` · 10^`exponent`, its last digit is not 0.
#[derive(Debug, Clone, PartialEq)]
enum Doc {
    Null,
    Bool(bool),
    Number { negative: bool, digits: String, exponent: i32 },
    String(String),
    Array(Vec<Doc>),
    Object(BTreeMap<String, Doc>),
}

fn docs() -> impl Strategy<Value = Doc> {
    let leaf =
        prop_oneof![
            Just(Doc::Null),
            any::<bool>().prop_map(Doc::Bool),
            (any::<bool>(), "[1-9][0-9]{0,30}[1-9]|[1-9]", -40..40)
                .prop_map(|(negative, digits, exponent)| Doc::Number { negative, digits, exponent }),
            any::<String>().prop_map(Doc::String),
            "[a\"\\\\,\\]\\[{}:\n]{0,6}".prop_map(Doc::String),
        ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        let name = prop_oneof![any::<String>(), "[a-c\"\\\\!]{0,2}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Doc::Array),
            prop::collection::btree_map(name, inner, 0..6).prop_map(Doc::Object),
        ]
    })
}

/// Writes documents, each choice of spelling taken from a list of random numbers.
struct Speller {
    choices: Vec<u8>,
    next: usize,
}

impl Speller {
    fn spell(choices: &[u8], doc: &Doc) -> Vec<u8> {
        let mut speller = Speller { choices: choices.to_vec(), next: 0 };
        speller.doc(doc).into_bytes()
    }

    /// A number below `n`.
    fn choose(&mut self, n: usize) -> usize {
        self.next += 1;
        usize::from(self.choices[self.next % self.choices.len()]) % n
    }

    fn doc(&mut self, doc: &Doc) -> String {
        let inside = match doc {
            Doc::Null => "null".to_string(),
            Doc::Bool(value) => value.to_string(),
            Doc::Number { negative, digits, exponent } => {
                format!("{}{}", if *negative { "-" } else { "" }, self.number(digits, *exponent))
            }
            Doc::String(string) => self.string(string),
            Doc::Array(elements) => {
                let elements: Vec<_> = elements.iter().map(|element| self.doc(element)).collect();
                format!("[{}{}]", self.space(), elements.join(","))
            }
            Doc::Object(members) => {
                let mut written = Vec::new();
                for (name, value) in members {
                    let member = format!("{}{}{}:{}", self.space(), self.string(name), self.space(), self.doc(value));
                    let place = self.choose(written.len() + 1);
                    written.insert(place, member);
                }
                format!("{{{}{}}}", self.space(), written.join(","))
            }
        };
        format!("{}{inside}{}", self.space(), self.space())
    }

    fn space(&mut self) -> &'static str {
        ["", "", " ", "\n\t", "\r\n  "][self.choose(5)]
    }

    fn number(&mut self, digits: &str, exponent: i32) -> String {
        let zeros = "0".repeat(self.choose(4));
        match self.choose(4) {
            0 if exponent >= 0 => format!("{digits}{}", "0".repeat(exponent as usize)),
            0 | 1 => {
                let shifted = exponent + digits.len() as i32;
                format!("0.{digits}{zeros}e{shifted}")
            }
            2 => {
                let shifted = exponent + digits.len() as i32 - 1;
                let (first, rest) = digits.split_at(1);
                let sign = if shifted >= 0 { "+" } else { "-" };
                format!("{first}.{rest}0{zeros}E{sign}{zeros}{}", shifted.abs())
            }
            _ => format!("{digits}{zeros}e{}", exponent - zeros.len() as i32),
        }
    }

    fn string(&mut self, string: &str) -> String {
        let mut out = String::from("\"");
        for character in string.chars() {
            let must = matches!(character, '"' | '\\' | '\0'..='\u{1f}');
            match self.choose(3) {
                0 if !must => out.push(character),
                1 if must && "\"\\".contains(character) => out.extend(['\\', character]),
                1 if character == '/' => out.push_str("\\/"),
                _ => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        out.push_str(&match self.choose(2) {
                            0 => format!("\\u{unit:04x}"),
                            _ => format!("\\u{unit:04X}"),
                        });
                    }
                }
            }
        }
        out.push('"');
        out
    }
}

/// Changes the leaf (or empty container) that `countdown` reaches.
fn change(doc: &mut Doc, countdown: &mut usize) {
    match doc {
        Doc::Array(inner) if !inner.is_empty() => inner.iter_mut().for_each(|doc| change(doc, countdown)),
        Doc::Object(inner) if !inner.is_empty() => inner.values_mut().for_each(|doc| change(doc, countdown)),
        leaf => {
            if *countdown == 0 {
                match leaf {
                    Doc::Null => *leaf = Doc::Bool(false),
                    Doc::Bool(value) => *value = !*value,
                    Doc::Number { digits, .. } => digits.push('1'),
                    Doc::String(string) => string.push('\u{301}'),
                    Doc::Array(_) => *leaf = Doc::Object(BTreeMap::new()),
                    Doc::Object(_) => *leaf = Doc::Null,
                }
            }
            *countdown = countdown.wrapping_sub(1);
        }
    }
}

fn leaves(doc: &Doc) -> usize {
    match doc {
        Doc::Array(inner) if !inner.is_empty() => inner.iter().map(leaves).sum(),
        Doc::Object(inner) if !inner.is_empty() => inner.values().map(leaves).sum(),
        _ => 1,
    }
}

fn choices() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 1..60)
}

/// serde_json accepts the same documents, but for what we refuse on top and for numbers that do not fit its types.
fn acceptance_agrees(document: &[u8]) {
    let theirs = serde_json::from_slice::<Value>(document);
    match (canonical_json(document), theirs) {
        (Ok(_), Err(error)) => assert!(error.to_string().contains("number out of range"), "{error}"),
        (Err(error), Ok(_)) => assert!(
            ["a member name that the object has already", "a number whose exponent does not fit 64 bits"]
                .contains(&error.reason()),
            "{error}"
        ),
        (Ok(_), Ok(_)) | (Err(_), Err(_)) => {}
    }
}

/// Text of the tokens of JSON, rarely a document.
const JSON_LIKE: &str =
    concat!(r#"([\[\]{},:"\\0-9eE+.\- \na]|"a":|"b"|true|null"#, r"|\\u[0-9a-fA-F]{4}|\\ud83d|\\ude02){0,24}");

/// Compares as serde_json reads: numbers are floats, whose last bits depend on their spelling.
fn mean_the_same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            let (left, right) = (left.as_f64().unwrap(), right.as_f64().unwrap());
            (left - right).abs() <= left.abs() * 1e-12
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| mean_the_same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(name, left)| right.get(name).is_some_and(|right| mean_the_same(left, right)))
        }
        _ => left == right,
    }
}

proptest! {
    #[test]
    fn the_spelling_of_a_document_does_not_count(doc in docs(), left in choices(), right in choices()) {
        let (left, right) = (Speller::spell(&left, &doc), Speller::spell(&right, &doc));
        let canonical = canonical_json(&left).unwrap();
        prop_assert_eq!(canonical_json(&right).unwrap(), canonical.clone());
        prop_assert_eq!(canonical_json(&canonical).unwrap(), canonical);
        prop_assert!(json(&left).matches(&json(&right)));
    }

    #[test]
    fn every_leaf_counts(doc in docs(), leaf in any::<prop::sample::Index>(), choices in choices()) {
        let mut changed = doc.clone();
        change(&mut changed, &mut leaf.index(leaves(&doc)));
        prop_assert_ne!(&doc, &changed);
        let (left, right) = (Speller::spell(&choices, &doc), Speller::spell(&choices, &changed));
        prop_assert!(!json(&left).matches(&json(&right)));
    }

    #[test]
    fn a_canonical_document_means_what_its_source_means(doc in docs(), choices in choices()) {
        let source = Speller::spell(&choices, &doc);
        let canonical = canonical_json(&source).unwrap();
        let read = |document: &[u8]| serde_json::from_slice::<Value>(document).unwrap();
        prop_assert!(mean_the_same(&read(&source), &read(&canonical)));
    }

    #[test]
    fn a_selector_finds_each_member(
        members in prop::collection::btree_map(any::<String>(), docs(), 1..6),
        choices in choices(),
    ) {
        let doc = Doc::Object(members.clone());
        let print = |doc: &Doc, name: &str| {
            let pointer = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
            let selector = FieldSelector::new(&[pointer]).unwrap();
            let document = Speller::spell(&choices, doc);
            Fingerprint::builder().selected("body", document, &selector).build().unwrap()
        };
        for (name, value) in &members {
            // The same member alone is the same selection; another value is another.
            let alone = BTreeMap::from([(name.clone(), value.clone())]);
            prop_assert!(print(&doc, name).matches(&print(&Doc::Object(alone.clone()), name)));
            let mut other = alone;
            other.values_mut().for_each(|value| change(value, &mut 0));
            prop_assert!(!print(&doc, name).matches(&print(&Doc::Object(other), name)));
        }
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        acceptance_agrees(&bytes);
        prop_assert!(json(&bytes).matches(&json(&bytes)));
        prop_assert!(Fingerprint::from_bytes(&bytes).is_err());
    }

    #[test]
    fn json_like_text_is_accepted_as_serde_json_does(text in JSON_LIKE) {
        acceptance_agrees(text.as_bytes());
    }

    #[test]
    fn mutated_documents_are_accepted_as_serde_json_does(
        doc in docs(),
        choices in choices(),
        at in any::<prop::sample::Index>(),
        removed in 0..3_usize,
        inserted in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..3),
            "[\\[\\]{},:\"\\\\0e+.\\- ]{0,3}".prop_map(String::into_bytes),
        ],
    ) {
        let mut document = Speller::spell(&choices, &doc);
        let start = at.index(document.len());
        let end = document.len().min(start + removed);
        document.splice(start..end, inserted);
        acceptance_agrees(&document);
    }

    #[test]
    fn a_damaged_stored_form_is_refused_or_another_fingerprint(
        body in any::<Vec<u8>>(),
        name in "[a-z]{1,20}",
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let stored = Fingerprint::builder().part("a", &body).part(&format!("b{name}"), "").build().unwrap();
        let mut bytes = stored.as_bytes().to_vec();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != byte);
        bytes[at] = byte;
        match Fingerprint::from_bytes(&bytes) {
            Ok(other) => {
                prop_assert_ne!(&other, &stored);
                prop_assert_eq!(other.as_bytes(), bytes);
                let _ = (other.matches(&stored), stored.differences(&other).to_string(), format!("{other:?}"));
            }
            Err(InvalidFingerprint::UnknownScheme { scheme }) => prop_assert_eq!((at, byte), (0, scheme)),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
