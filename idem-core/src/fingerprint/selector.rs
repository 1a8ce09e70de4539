//! A fingerprint of chosen fields: for bodies that carry a send time or a trace id, which no retry repeats.

use thiserror::Error;

use super::json::{canonical_string, items};

/// The fields of a JSON document that make a request what it is, named by JSON Pointers (RFC 6901): `/amount`,
/// `/items/0/sku`, `/a~1b` for the member `a/b`.
///
/// Two documents are the same request if these fields are; all others may change. Choose every field that the operation
/// acts on: two requests that differ only elsewhere will be taken for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSelector {
    /// Sorted by text, so that the order in which they were listed does not matter.
    fields: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    pointer: Box<str>,
    steps: Vec<Step>,
}

/// A reference token, prepared for both things it may be applied to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    /// As canonical JSON writes this member name.
    name: Vec<u8>,
    index: Option<usize>,
}

impl FieldSelector {
    /// Selects the fields at these pointers. The empty pointer is the whole document.
    ///
    /// # Errors
    ///
    /// [`InvalidSelector`] if there is no pointer, a pointer is malformed, or one is listed twice.
    pub fn new<S: AsRef<str>>(pointers: &[S]) -> Result<FieldSelector, InvalidSelector> {
        if pointers.is_empty() {
            return Err(InvalidSelector::Empty);
        }
        let mut fields =
            pointers.iter().map(|pointer| Field::parse(pointer.as_ref())).collect::<Result<Vec<_>, _>>()?;
        fields.sort_unstable_by(|left, right| left.pointer.cmp(&right.pointer));
        for pair in fields.windows(2) {
            if pair[0].pointer == pair[1].pointer {
                let pointer = pair[0].pointer.to_string();
                return Err(InvalidSelector::Duplicate { pointer });
            }
        }
        Ok(FieldSelector { fields })
    }

    /// What is hashed for a document **in canonical form**: each pointer, and its value or that it is absent. None if
    /// all are absent.
    pub(super) fn select(&self, document: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let mut found = false;
        for field in &self.fields {
            push_prefixed(&mut out, field.pointer.as_bytes());
            match field.find(document) {
                None => out.push(0),
                Some(value) => {
                    out.push(1);
                    push_prefixed(&mut out, value);
                    found = true;
                }
            }
        }
        found.then_some(out)
    }
}

impl Field {
    fn parse(pointer: &str) -> Result<Field, InvalidSelector> {
        let malformed = || InvalidSelector::Malformed { pointer: pointer.into() };
        let mut tokens = pointer.split('/');
        if tokens.next() != Some("") {
            return Err(malformed());
        }
        Ok(Field {
            pointer: pointer.into(),
            steps: tokens.map(|token| Step::parse(token).ok_or_else(malformed)).collect::<Result<_, _>>()?,
        })
    }

    fn find<'d>(&self, document: &'d [u8]) -> Option<&'d [u8]> {
        self.steps.iter().try_fold(document, |value, step| match value.first() {
            Some(b'{') => items(value).find_map(|member| member.strip_prefix(step.name.as_slice())?.strip_prefix(b":")),
            Some(b'[') => items(value).nth(step.index?),
            _ => None,
        })
    }
}

impl Step {
    /// None if a `~` is followed by something else than 0 or 1.
    fn parse(token: &str) -> Option<Step> {
        let mut pieces = token.split('~');
        let mut name = String::from(pieces.next()?);
        for piece in pieces {
            let (escape, rest) = piece.split_at_checked(1)?;
            name.push(match escape {
                "0" => '~',
                "1" => '/',
                _ => return None,
            });
            name.push_str(rest);
        }
        let is_index = name == "0" || !name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit());
        Some(Step { name: canonical_string(&name), index: is_index.then(|| name.parse().ok()).flatten() })
    }
}

fn push_prefixed(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// A [`FieldSelector`] cannot be built of these pointers. It is found when a service starts, never while a request
/// waits.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidSelector {
    /// The list of pointers is empty.
    #[error("a field selector needs at least one JSON Pointer, for example \"/amount\"")]
    Empty,
    /// A pointer is not RFC 6901.
    #[error("{pointer:?} is no JSON Pointer: it must begin with '/', and '~' must be written ~0 and '/' in a name ~1")]
    Malformed {
        /// The pointer as given.
        pointer: String,
    },
    /// A pointer is listed twice.
    #[error("the JSON Pointer {pointer:?} is listed twice in a field selector")]
    Duplicate {
        /// The pointer as given.
        pointer: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical_json;

    /// The value at `pointer`, as text.
    fn at(document: &str, pointer: &str) -> Option<String> {
        let canonical = canonical_json(document.as_bytes()).unwrap();
        let field = Field::parse(pointer).unwrap();
        field.find(&canonical).map(|value| String::from_utf8(value.to_vec()).unwrap())
    }

    #[test]
    fn finds_what_the_examples_of_rfc_6901_find() {
        let document = r#"{"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, "k\"l": 6, " ": 7, "m~n": 8}"#;
        for (pointer, value) in [
            ("/foo", r#"["bar","baz"]"#),
            ("/foo/0", r#""bar""#),
            ("/", "0"),
            ("/a~1b", "1"),
            ("/c%d", "2"),
            ("/e^f", "3"),
            ("/g|h", "4"),
            ("/i\\j", "5"),
            ("/k\"l", "6"),
            ("/ ", "7"),
            ("/m~0n", "8"),
        ] {
            assert_eq!(at(document, pointer).as_deref(), Some(value), "{pointer}");
        }
        assert_eq!(at("[1, 2]", "").as_deref(), Some("[1,2]"));
    }

    #[test]
    fn array_indices_have_one_spelling() {
        let document = "[10, [], {\"x\": [\"],[\", 7]}]";
        assert_eq!(at(document, "/0").as_deref(), Some("1e1"));
        assert_eq!(at(document, "/2/x/1").as_deref(), Some("7"));
        for absent in ["/00", "/01", "/-", "/3", "/+1", "/1/0", "/", "/0/0", "/99999999999999999999999"] {
            assert_eq!(at(document, absent), None, "{absent}");
        }
        assert_eq!(at("{\"-\": 1, \"01\": 2}", "/-").as_deref(), Some("1"));
        assert_eq!(at("{\"-\": 1, \"01\": 2}", "/01").as_deref(), Some("2"));
    }

    #[test]
    fn a_bad_selector_is_refused_when_built() {
        // cases 120 and 121
        let none: [&str; 0] = [];
        assert_eq!(FieldSelector::new(&none), Err(InvalidSelector::Empty));
        for bad in ["amount", "$.amount", "/a~", "/a~2", "/~é", " /a"] {
            let pointer = bad.to_string();
            let refused = FieldSelector::new(&[bad]);
            assert_eq!(refused, Err(InvalidSelector::Malformed { pointer }));
        }
        let pointer = "/a".to_string();
        let refused = FieldSelector::new(&["/a", "/b", "/a"]);
        assert_eq!(refused, Err(InvalidSelector::Duplicate { pointer }));
    }
}
