//! What a caller wants done once.

use idem_core::{Fingerprint, Key, Scope};

/// One request for an operation: whose key, which key, and the fingerprint that tells a retry from a reused key.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) scope: Scope,
    pub(crate) key: Key,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) older: Vec<Fingerprint>,
}

impl Request {
    /// A request under `key` in `scope`.
    pub fn new(scope: Scope, key: Key, fingerprint: Fingerprint) -> Self {
        Self { scope, key, fingerprint, older: Vec::new() }
    }

    /// Also accepts records under this older form of the fingerprint: for a change of scheme, or of the key of keyed
    /// fingerprints, one retention long.
    #[must_use]
    pub fn accepting(mut self, older: Fingerprint) -> Self {
        self.older.push(older);
        self
    }
}
