//! What a client is told when its key is being reused.

use std::{cmp::Ordering, fmt};

use super::Fingerprint;

/// Where two fingerprints differ. Its `Display` says so in words that may be shown to the client: names and lengths, no
/// contents and no digests.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Differences {
    /// The parts that differ, in the order of their names.
    Parts(Vec<PartDifference>),
    /// The fingerprints were made under different scheme versions or keys: they do not match, and their parts tell
    /// nothing about each other.
    Incomparable,
}

impl Differences {
    pub(super) fn between(stored: &Fingerprint, given: &Fingerprint) -> Differences {
        if !stored.is_comparable(given) {
            return Differences::Incomparable;
        }
        let (stored, given) = (stored.parts(), given.parts());
        let mut differences = Vec::new();
        let (mut s, mut g) = (stored.iter().peekable(), given.iter().peekable());
        // Both are in the order of their names: a part that one side names first is absent on the other.
        loop {
            let order = match (s.peek(), g.peek()) {
                (None, None) => return Differences::Parts(differences),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(s), Some(g)) => s.name.cmp(g.name),
            };
            let s = s.next_if(|_| order.is_le());
            let g = g.next_if(|_| order.is_ge());
            if s.map(|part| part.short) != g.map(|part| part.short) {
                differences.push(PartDifference {
                    name: s.or(g).map_or("", |part| part.name).into(),
                    stored: s.map(|part| part.length),
                    given: g.map(|part| part.length),
                });
            }
        }
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Differences::Incomparable => {
                f.write_str("the fingerprints were made under different schemes or keys and cannot be compared")
            }
            Differences::Parts(parts) if parts.is_empty() => f.write_str("no part differs"),
            Differences::Parts(parts) => {
                for (index, part) in parts.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    write!(f, "{separator}{part}")?;
                }
                Ok(())
            }
        }
    }
}

/// A part that is not the same in two fingerprints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartDifference {
    name: Box<str>,
    stored: Option<u64>,
    given: Option<u64>,
}

impl PartDifference {
    /// The part's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Length in bytes of the part of the stored fingerprint, as it was given then; none if it had no such part.
    pub fn stored_len(&self) -> Option<u64> {
        self.stored
    }

    /// Length in bytes of the part as it is given now; none if there is no such part.
    pub fn given_len(&self) -> Option<u64> {
        self.given
    }
}

impl fmt::Display for PartDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match (self.stored, self.given) {
            (Some(stored), Some(given)) if stored != given => {
                write!(f, "{name} length differs: {stored} -> {given}")
            }
            (Some(_), None) => write!(f, "{name} is missing"),
            (None, Some(_)) => write!(f, "{name} was absent before"),
            _ => write!(f, "{name} differs"),
        }
    }
}
