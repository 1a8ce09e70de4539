//! What callers ask of a store: the parameters of its operations and their answers.

use std::{fmt, num::NonZeroU32, time::Duration};

use bytes::Bytes;

use crate::{
    AttemptId, Differences, Fingerprint, InvalidName, Key, OnLapse, Record, Response, Scope, Timestamp, Token,
};

/// The lease of a claim that sets none: 30 seconds.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// How long a record stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    standard: Duration,
    held: Duration,
}

impl Retention {
    /// Stays `standard` after its last claim or its completion, and 30 days where its outcome waits for someone.
    pub const fn new(standard: Duration) -> Self {
        Self { standard, held: Duration::from_secs(30 * 24 * 60 * 60) }
    }

    /// Stays `held` where its outcome waits for someone, if that is longer.
    #[must_use]
    pub const fn with_held(mut self, held: Duration) -> Self {
        self.held = held;
        self
    }

    /// How long a record stays after its last claim or its completion.
    pub const fn standard(&self) -> Duration {
        self.standard
    }

    /// How long a record stays whose outcome waits, or may have to wait, for someone: the larger of the two.
    pub fn held(&self) -> Duration {
        self.held.max(self.standard)
    }
}

impl Default for Retention {
    /// 24 hours, and 30 days held.
    fn default() -> Self {
        Self::new(Duration::from_secs(24 * 60 * 60))
    }
}

/// Asks for the ownership of a record.
#[derive(Clone, Debug)]
pub struct Claim {
    scope: Scope,
    key: Key,
    token: Token,
    fingerprint: Fingerprint,
    older: Vec<Fingerprint>,
    lease: Duration,
    retention: Retention,
    on_lapse: OnLapse,
    lapse_limit: Option<NonZeroU32>,
}

impl Claim {
    /// A claim under a fresh token, with the default lease (30 s) and retention (24 h), that takes over what lapsed.
    pub fn new(scope: Scope, key: Key, token: Token, fingerprint: Fingerprint) -> Self {
        Self {
            scope,
            key,
            token,
            fingerprint,
            older: Vec::new(),
            lease: DEFAULT_LEASE,
            retention: Retention::default(),
            on_lapse: OnLapse::default(),
            lapse_limit: None,
        }
    }

    /// Also accepts a record under this older form of the request's fingerprint (an older scheme or key).
    #[must_use]
    pub fn accepting(mut self, older: Fingerprint) -> Self {
        self.older.push(older);
        self
    }

    /// How long the attempt may stay silent.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long the record stays.
    #[must_use]
    pub fn with_retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// What happens when a lease lapses: of this attempt, and of the one before it.
    #[must_use]
    pub fn with_on_lapse(mut self, on_lapse: OnLapse) -> Self {
        self.on_lapse = on_lapse;
        self
    }

    /// How many attempts may end silently before the answer is Unknown instead of another takeover. None by default.
    #[must_use]
    pub fn with_lapse_limit(mut self, limit: Option<NonZeroU32>) -> Self {
        self.lapse_limit = limit;
        self
    }

    /// Whose key it is.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The token that names this claim.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The fingerprint that a new record gets.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// How long the attempt may stay silent.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// How long the record stays.
    pub fn retention(&self) -> Retention {
        self.retention
    }

    /// What happens when a lease lapses.
    pub fn on_lapse(&self) -> OnLapse {
        self.on_lapse
    }

    /// After how many silent ends the answer is Unknown.
    pub fn lapse_limit(&self) -> Option<NonZeroU32> {
        self.lapse_limit
    }

    /// Whether `stored` is this request's fingerprint in one of its forms.
    pub fn accepts(&self, stored: &Fingerprint) -> bool {
        self.forms().any(|form| form.matches(stored))
    }

    /// What differs between the stored fingerprint and this request: told by the form that it can be compared with.
    pub fn differences(&self, stored: &Fingerprint) -> Differences {
        let mut told = self.forms().map(|form| stored.differences(form));
        told.find(|differences| *differences != Differences::Incomparable).unwrap_or(Differences::Incomparable)
    }

    /// The forms of this request's fingerprint, the current one first.
    pub fn forms(&self) -> impl Iterator<Item = &Fingerprint> {
        std::iter::once(&self.fingerprint).chain(&self.older)
    }
}

/// The attempt that owns a record. Every write of an attempt carries one.
///
/// Only [`claim`](crate::claim) and [`resolve`](crate::resolve) make one that owns anything, from a row that the store
/// wrote: nobody can act for an attempt that the store does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    scope: Scope,
    key: Key,
    attempt: AttemptId,
}

impl Owner {
    pub(crate) fn of(scope: &Scope, key: &Key, record: &Record) -> Self {
        Self { scope: scope.clone(), key: key.clone(), attempt: record.attempt() }
    }

    /// The owner of an attempt that was never granted, for tests of what such a one may do.
    #[cfg(test)]
    pub(crate) fn of_attempt(scope: Scope, key: Key, attempt: AttemptId) -> Self {
        Self { scope, key, attempt }
    }

    /// Nobody: no attempt has number 0, so every write under it is answered Superseded. For operations that run
    /// without protection, and for tests of handlers.
    pub fn nobody(scope: Scope, key: Key) -> Self {
        Self { scope, key, attempt: AttemptId { token: Token::from_bytes([0; 16]), number: 0 } }
    }

    /// Whose key it is.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The attempt: token and number.
    pub fn attempt(&self) -> AttemptId {
        self.attempt
    }
}

/// The answer to a write that only the owner may make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fenced<T> {
    /// It was written, now or when the same attempt asked before.
    Written(T),
    /// The attempt is not the owner (any more), or there is no record. Nothing was written.
    Superseded,
}

/// A named result that an attempt leaves for those after it.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    name: Box<str>,
    value: Bytes,
}

impl Checkpoint {
    /// A checkpoint under a name of 1 to 255 bytes without control characters.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] if the name is none.
    pub fn new(name: &str, value: impl Into<Bytes>) -> Result<Self, InvalidName> {
        let name = Key::new(name)?;
        Ok(Self { name: name.as_str().into(), value: value.into() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its value.
    pub fn value(&self) -> &Bytes {
        &self.value
    }
}

/// The answer to a checkpoint.
#[derive(Clone, PartialEq, Eq)]
pub enum Checkpointed {
    /// The value that the record has under the name: this one, or the one that was there first.
    Kept(Bytes),
    /// It does not fit into the 64 KiB that a record's checkpoints may have. Nothing was written.
    Full,
}

impl fmt::Debug for Checkpointed {
    /// The size; never the value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept(value) => write!(f, "Kept({} bytes)", value.len()),
            Self::Full => f.write_str("Full"),
        }
    }
}

/// Takes a record whose outcome is unknown, in order to settle it.
#[derive(Clone, Debug)]
pub struct Resolve {
    scope: Scope,
    key: Key,
    seen: AttemptId,
    token: Token,
    lease: Duration,
    retention: Retention,
}

impl Resolve {
    /// Takes the record over from the attempt that was `seen` on it, under a fresh token, with the default lease and
    /// retention.
    pub fn new(scope: Scope, key: Key, seen: AttemptId, token: Token) -> Self {
        Self { scope, key, seen, token, lease: DEFAULT_LEASE, retention: Retention::default() }
    }

    /// How long the resolver may stay silent.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long the record stays.
    #[must_use]
    pub fn with_retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Whose key it is.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The attempt that was seen on the record.
    pub fn seen(&self) -> AttemptId {
        self.seen
    }

    /// The token of the resolver.
    pub fn token(&self) -> Token {
        self.token
    }

    /// How long the resolver may stay silent.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// How long the record stays.
    pub fn retention(&self) -> Retention {
        self.retention
    }
}

/// What an attempt asks a caller's transaction to record: see [`Transaction`](crate::Transaction).
#[derive(Clone, Debug)]
pub struct Completion {
    owner: Owner,
    response: Response,
    retention: Retention,
}

impl Completion {
    /// The completion of `owner`'s record with `response`.
    pub fn new(owner: Owner, response: Response, retention: Retention) -> Self {
        Self { owner, response, retention }
    }

    /// The attempt that completes.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The response to record.
    pub fn response(&self) -> &Response {
        &self.response
    }

    /// How long the record stays.
    pub fn retention(&self) -> Retention {
        self.retention
    }
}

/// A record as it was found at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The record.
    pub record: Record,
    /// When it was read, by the store's clock.
    pub now: Timestamp,
}

/// A record that waits for someone: see [`Store::lapsed`](crate::Store::lapsed).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lapsed {
    /// Whose key it is.
    pub scope: Scope,
    /// The key.
    pub key: Key,
    /// The record.
    pub record: Record,
}
