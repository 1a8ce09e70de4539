//! What of a request counts when a retry is told from a key that is being reused.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, Uri, header, request::Parts};
use idem_core::{FieldSelector, Fingerprint, FingerprintBuilder, FingerprintKey, InvalidName, InvalidParts, Scope};

/// Adds the parts of a request to its fingerprint.
pub(crate) type PartsOf = Arc<dyn Fn(FingerprintBuilder, &Parts, &Bytes) -> FingerprintBuilder + Send + Sync>;

/// How requests are fingerprinted.
#[derive(Clone, Default)]
pub(crate) struct Fingerprints {
    pub(crate) rule: Rule,
    /// The key of new fingerprints; none for unkeyed ones.
    pub(crate) key: Option<FingerprintKey>,
    /// Keys of older records that are still accepted; none is unkeyed.
    pub(crate) older: Vec<Option<FingerprintKey>>,
    /// What older records were made by under another rule, with all that it accepts.
    pub(crate) other_rules: Vec<Fingerprints>,
}

#[derive(Clone, Default)]
pub(crate) enum Rule {
    /// JSON by its meaning, everything else byte by byte.
    #[default]
    Meaning,
    /// Every body byte by byte.
    Raw,
    /// These fields of a JSON body.
    Fields(FieldSelector),
    /// The caller's own parts, and only those.
    Custom(PartsOf),
}

impl Fingerprints {
    /// The fingerprint of a request, and its older forms.
    pub(crate) fn of(&self, parts: &Parts, body: &Bytes) -> Result<(Fingerprint, Vec<Fingerprint>), InvalidParts> {
        let current = self.under(self.key.as_ref(), parts, body)?;
        let mut older =
            self.older.iter().map(|key| self.under(key.as_ref(), parts, body)).collect::<Result<Vec<_>, _>>()?;
        for other in &self.other_rules {
            let (other, even_older) = other.of(parts, body)?;
            older.push(other);
            older.extend(even_older);
        }
        Ok((current, older))
    }

    fn under(&self, key: Option<&FingerprintKey>, parts: &Parts, body: &Bytes) -> Result<Fingerprint, InvalidParts> {
        let builder = key.map_or_else(Fingerprint::builder, Fingerprint::keyed);
        if let Rule::Custom(parts_of) = &self.rule {
            return parts_of(builder, parts, body).build();
        }
        let mut builder = builder.part("method", parts.method.as_str()).part("target", target(parts));
        let content_type = ContentType::of(&parts.headers);
        if let Some(content_type) = &content_type {
            builder = builder.part("content-type", &content_type.normalized);
        }
        let builder = match &self.rule {
            Rule::Fields(fields) => builder.selected("body", body, fields),
            Rule::Meaning if content_type.is_some_and(|content_type| content_type.is_json()) => {
                builder.json("body", body)
            }
            _ => builder.part("body", body),
        };
        builder.build()
    }
}

impl fmt::Debug for Fingerprints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = match &self.rule {
            Rule::Meaning => "Meaning",
            Rule::Raw => "Raw",
            Rule::Fields(_) => "Fields",
            Rule::Custom(_) => "Custom",
        };
        f.debug_struct("Fingerprints")
            .field("rule", &rule)
            .field("key", &self.key)
            .field("older", &self.older)
            .field("other_rules", &self.other_rules)
            .finish()
    }
}

/// The scope of an anonymous request: one for each fingerprint, so that a key is shared only with whoever sends the same
/// request.
///
/// The parts of the fingerprint stay out: they tell lengths, which may differ between two bodies of one meaning.
pub(crate) fn anonymous_scope(fingerprint: &Fingerprint) -> Result<Scope, InvalidName> {
    Scope::digest_of(&[b"idem.anonymous:", fingerprint.identity()].concat())
}

/// Path and query as the client sent them. Routers that nest cut a prefix off.
fn target(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    let uri = parts.extensions.get::<axum::extract::OriginalUri>().map_or(&parts.uri, |original| &original.0);
    #[cfg(not(feature = "axum"))]
    let uri = &parts.uri;
    path_and_query(uri)
}

fn path_and_query(uri: &Uri) -> &str {
    uri.path_and_query().map_or("", |target| target.as_str())
}

/// A media type without the parameters that say nothing about the meaning of the body.
struct ContentType {
    /// `type/subtype`, or `type/subtype;charset=…`, in lower case.
    normalized: Vec<u8>,
    essence_len: usize,
}

impl ContentType {
    fn of(headers: &HeaderMap) -> Option<Self> {
        let value = headers.get(header::CONTENT_TYPE)?.as_bytes();
        let mut pieces = split_unquoted(value);
        let mut normalized = pieces.next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
        let essence_len = normalized.len();
        let charset = pieces.find_map(|piece| {
            let at = piece.iter().position(|byte| *byte == b'=')?;
            let (name, value) = (piece[..at].trim_ascii(), piece[at + 1..].trim_ascii());
            name.eq_ignore_ascii_case(b"charset").then_some(value)
        });
        if let Some(charset) = charset {
            let inside = charset.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
            normalized.extend_from_slice(b";charset=");
            normalized.extend(inside.unwrap_or(charset).to_ascii_lowercase());
        }
        Some(Self { normalized, essence_len })
    }

    fn is_json(&self) -> bool {
        let essence = &self.normalized[..self.essence_len];
        essence == b"application/json" || essence.ends_with(b"+json")
    }
}

/// The pieces between semicolons that stand in no quoted string.
fn split_unquoted(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut in_quotes, mut is_escaped) = (false, false);
    value.split(move |byte| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match byte {
            _ if was_escaped => false,
            b'\\' if in_quotes => {
                is_escaped = true;
                false
            }
            b'"' => {
                in_quotes = !in_quotes;
                false
            }
            b';' => !in_quotes,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests;
