//! From the parts of a request to its fingerprint.

use thiserror::Error;

use super::{
    FieldSelector, Fingerprint, FingerprintKey, canonical_json,
    digest::digest,
    stored::{MAX_PARTS, Part, valid_name},
};

const PART: &[u8] = b"idem.fingerprint.1.part:";
const WHOLE: &[u8] = b"idem.fingerprint.1.whole:";

/// What the hashed bytes of a part are. Hashed with them, so that the same bytes mean something else in another kind.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Raw = 0,
    Json = 1,
    JsonFallback = 2,
    Selected = 3,
    SelectedFallback = 4,
}

/// Collects the parts of a request. The order in which they are added does not matter; their names do.
///
/// A mistake in the parts' names is reported by [`build`](Self::build), so that the calls can be chained.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct FingerprintBuilder {
    key: Option<FingerprintKey>,
    parts: Vec<Added>,
    mistake: Option<InvalidParts>,
}

#[derive(Debug, Clone)]
struct Added {
    name: Box<str>,
    digest: [u8; 32],
    /// Of the bytes as given, whatever was hashed.
    length: u64,
}

impl Added {
    fn part(&self) -> Part<'_> {
        Part::new(&self.name, &self.digest, self.length)
    }
}

impl FingerprintBuilder {
    pub(super) fn new(key: Option<FingerprintKey>) -> FingerprintBuilder {
        FingerprintBuilder { key, parts: Vec::new(), mistake: None }
    }

    /// Adds a part that counts byte by byte.
    pub fn part(self, name: &str, bytes: impl AsRef<[u8]>) -> FingerprintBuilder {
        let bytes = bytes.as_ref();
        self.add(name, Kind::Raw, bytes, bytes.len())
    }

    /// Adds a JSON document, of which only the meaning counts: not the order of members, white space, or how numbers
    /// and strings are spelled.
    ///
    /// A document without a [canonical form](canonical_json) counts byte by byte, and equals no document that has one.
    pub fn json(self, name: &str, document: impl AsRef<[u8]>) -> FingerprintBuilder {
        let document = document.as_ref();
        match canonical_json(document) {
            Ok(canonical) => self.add(name, Kind::Json, &canonical, document.len()),
            Err(_) => self.add(name, Kind::JsonFallback, document, document.len()),
        }
    }

    /// Adds a JSON document, of which only the meaning of the selected fields counts.
    ///
    /// A document without a [canonical form](canonical_json), or without any of the fields, counts byte by byte.
    pub fn selected(self, name: &str, document: impl AsRef<[u8]>, fields: &FieldSelector) -> FingerprintBuilder {
        let document = document.as_ref();
        let canonical = canonical_json(document).ok();
        match canonical.and_then(|canonical| fields.select(&canonical)) {
            Some(selected) => self.add(name, Kind::Selected, &selected, document.len()),
            None => self.add(name, Kind::SelectedFallback, document, document.len()),
        }
    }

    /// The fingerprint of the parts.
    ///
    /// # Errors
    ///
    /// [`InvalidParts`] if there are no parts or more than 255, or if a name is empty, over 255 bytes, holds a control
    /// character, or was used twice. None of this depends on the bytes of a part.
    pub fn build(mut self) -> Result<Fingerprint, InvalidParts> {
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        if self.parts.is_empty() {
            return Err(InvalidParts::Empty);
        }
        self.parts.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        for pair in self.parts.windows(2) {
            if pair[0].name == pair[1].name {
                let name = pair[0].name.to_string();
                return Err(InvalidParts::Duplicate { name });
            }
        }
        let mut pieces = vec![WHOLE];
        pieces.extend(self.parts.iter().map(|part| part.digest.as_slice()));
        let whole = digest(self.key.as_ref(), &pieces);
        let key_id = self.key.as_ref().map_or("", FingerprintKey::id);
        Ok(Fingerprint::assemble(key_id, whole, self.parts.iter().map(Added::part)))
    }

    fn add(mut self, name: &str, kind: Kind, hashed: &[u8], given_len: usize) -> FingerprintBuilder {
        if self.mistake.is_some() {
            return self;
        }
        if !valid_name(name) {
            let name = name.chars().take(32).collect();
            self.mistake = Some(InvalidParts::Name { name });
            return self;
        }
        if self.parts.len() == MAX_PARTS {
            self.mistake = Some(InvalidParts::TooMany);
            return self;
        }
        let digest = digest(
            self.key.as_ref(),
            &[PART, &[name.len() as u8], name.as_bytes(), &[kind as u8], &(hashed.len() as u64).to_be_bytes(), hashed],
        );
        self.parts.push(Added { name: name.into(), digest, length: given_len as u64 });
        self
    }
}

/// A [`Fingerprint`] cannot be built of these parts. The mistake is in the code that names them: no content of a
/// request leads to it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidParts {
    /// No part was added: every request would match every other.
    #[error("a fingerprint needs at least one part")]
    Empty,
    /// More than 255 parts were added.
    #[error("a fingerprint can have 255 parts at most")]
    TooMany,
    /// A name is empty, over 255 bytes, or holds a control character.
    #[error("the name of a fingerprint's part must be 1 to 255 bytes without control characters, unlike {name:?}")]
    Name {
        /// The beginning of the name, 32 characters at most.
        name: String,
    },
    /// Two parts have one name.
    #[error("a fingerprint has two parts named {name:?}")]
    Duplicate {
        /// The name.
        name: String,
    },
}
