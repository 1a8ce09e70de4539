//! What a layer can be told. Mistakes are found when it is built.

mod check;
mod error;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderName, Method, Response, StatusCode, request::Parts};
use idem_core::{FieldSelector, FingerprintBuilder, FingerprintKey, Scope};
use idem_runner::Idempotency;

use self::check::{check_keys, check_style, header_name, key_header, replay_header};
pub use self::error::ConfigError;
use crate::{
    Body, Code, IdempotencyLayer, Mode,
    fingerprint::{Fingerprints, Rule},
    headers::{HeaderRules, NOT_STORED, REPLAYED, is_framing},
    problem::ProblemStyle,
};

/// The most bytes that a covered request may have, and the most of a response that are stored, unless the layer is told
/// otherwise: 1 MiB.
pub const DEFAULT_MAX_BYTES: usize = 1024 * 1024;

/// The header that holds the key, unless the layer is told another.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

pub(crate) type ScopeOf = Arc<dyn Fn(&Parts) -> Option<Scope> + Send + Sync>;
pub(crate) type Redact = Arc<dyn Fn(&http::response::Parts, idem_core::Response) -> idem_core::Response + Send + Sync>;
pub(crate) type Validate = Arc<dyn Fn(&Parts, &Bytes) -> Result<(), Refusal> + Send + Sync>;

/// What becomes of a request that nobody is authenticated for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Anonymous {
    /// It is refused with `principal-missing` (401), and the handler does not run.
    #[default]
    Refuse,
    /// Its key is bound to its fingerprint: two clients share a record only if they send the same request under the same
    /// key, and then the second gets the first one's answer. A key that is reused for another request names another
    /// record, so it is not noticed. A change of the fingerprint's key or rule names other records too: retries over it run
    /// again.
    BindToFingerprint,
}

/// A response with which a [validation hook](Builder::validate) refuses a request.
#[derive(Debug)]
pub struct Refusal(Box<Response<Body>>);

impl Refusal {
    pub(crate) fn into_response(self) -> Response<Body> {
        *self.0
    }
}

impl<B: Into<Body>> From<Response<B>> for Refusal {
    fn from(response: Response<B>) -> Self {
        Self(Box::new(response.map(Into::into)))
    }
}

/// Everything that a layer goes by.
pub(crate) struct Config {
    pub(crate) idempotency: Idempotency,
    pub(crate) scope_of: ScopeOf,
    pub(crate) anonymous: Anonymous,
    pub(crate) header: HeaderName,
    pub(crate) mode: Mode,
    pub(crate) is_required: bool,
    pub(crate) methods: Vec<Method>,
    pub(crate) max_request: usize,
    pub(crate) max_response: usize,
    pub(crate) validate: Option<Validate>,
    pub(crate) redact: Option<Redact>,
    pub(crate) fingerprints: Fingerprints,
    pub(crate) rules: HeaderRules,
    pub(crate) style: ProblemStyle,
    pub(crate) expose_for_cors: bool,
}

/// Sets up an [`IdempotencyLayer`]. Cheap to clone, so that routes can vary one set-up.
///
/// ```
/// # use std::sync::Arc;
/// # use idem_core::Scope;
/// # use idem_memory::MemoryStore;
/// # use idem_runner::Idempotency;
/// # use idem_tower::{ConfigError, IdempotencyLayer};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # #[derive(Clone)] struct Tenant(u64);
/// let idempotency = Idempotency::builder(Arc::new(MemoryStore::new())).build()?;
/// let common = IdempotencyLayer::builder(idempotency, |parts| {
///     let tenant: &Tenant = parts.extensions.get()?; // set by the authentication outside of this layer
///     Scope::new(format!("tenant-{}", tenant.0)).ok()
/// });
/// let payments = common.clone().build()?;
/// let uploads = common.clone().optional().raw_body().max_request_bytes(20 << 20).build()?;
///
/// let mistake = common.header("X-Request-Id").build().unwrap_err();
/// assert_eq!(mistake, ConfigError::CorrelationHeader { name: "x-request-id".into() });
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    idempotency: Idempotency,
    scope_of: ScopeOf,
    anonymous: Anonymous,
    header: String,
    mode: Mode,
    is_required: bool,
    methods: Vec<Method>,
    max_request: usize,
    max_response: usize,
    validate: Option<Validate>,
    redact: Option<Redact>,
    fingerprints: Fingerprints,
    marker: String,
    never_stored: Vec<String>,
    stored: Vec<String>,
    style: ProblemStyle,
    expose_for_cors: bool,
}

impl Builder {
    pub(crate) fn new(idempotency: Idempotency, scope_of: ScopeOf) -> Self {
        Self {
            idempotency,
            scope_of,
            anonymous: Anonymous::default(),
            header: IDEMPOTENCY_KEY.as_str().into(),
            mode: Mode::default(),
            is_required: true,
            methods: vec![Method::POST, Method::PATCH],
            max_request: DEFAULT_MAX_BYTES,
            max_response: DEFAULT_MAX_BYTES,
            validate: None,
            redact: None,
            fingerprints: Fingerprints::default(),
            marker: REPLAYED.as_str().into(),
            never_stored: Vec::new(),
            stored: Vec::new(),
            style: ProblemStyle::default(),
            expose_for_cors: false,
        }
    }

    /// What becomes of a request that the scope function gives no scope for. Refused by default.
    pub fn anonymous(mut self, anonymous: Anonymous) -> Self {
        self.anonymous = anonymous;
        self
    }

    /// The header that holds the key. `Idempotency-Key` by default.
    ///
    /// A header that proxies or clients set for other purposes can't be it: three requests with one correlation id are
    /// three requests.
    pub fn header(mut self, name: &str) -> Self {
        self.header = name.into();
        self
    }

    /// Which spellings of a key are accepted. [`Mode::Lenient`] by default.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// A request without a key is refused with `idempotency-key-missing`. This is the default.
    pub fn required(mut self) -> Self {
        self.is_required = true;
        self
    }

    /// A request without a key is passed on as if the layer were not there. No key is ever made up for it.
    pub fn optional(mut self) -> Self {
        self.is_required = false;
        self
    }

    /// The methods that are covered, instead of POST and PATCH. Requests with others are passed on, key or not.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// The most bytes that the body of a covered request may have: over it the answer is `request-too-large`, and no more
    /// than this and one frame was held. More than zero; 1 MiB by default.
    pub fn max_request_bytes(mut self, limit: usize) -> Self {
        self.max_request = limit;
        self
    }

    /// The most bytes of a response's body that are stored. A larger one goes out whole, and its retry gets
    /// `response-not-retained`. More than zero; 1 MiB by default.
    pub fn max_response_bytes(mut self, limit: usize) -> Self {
        self.max_response = limit;
        self
    }

    /// Looks at a request before its key is claimed: what is refused here leaves no record, so that the client may
    /// correct it and send it under the same key. The response it is refused with goes out as it is.
    ///
    /// It is asked about every request with a key, retries of what is done among them: it should look at the request alone, and
    /// not at what may have changed since. On a route with an optional key it is not asked about requests without one.
    pub fn validate(mut self, hook: impl Fn(&Parts, &Bytes) -> Result<(), Refusal> + Send + Sync + 'static) -> Self {
        self.validate = Some(Arc::new(hook));
        self
    }

    /// Changes what is recorded of a response before it is stored: for fields that no replay should show. It gets the head of
    /// the response, with its extensions, and what would be recorded. The first answer goes out as the handler gave it;
    /// replays are what this function gives. How the attempt settles is decided by the response as the handler gave it.
    ///
    /// A handler that records its response in its own transaction leaves such fields out itself. To keep the whole response,
    /// and to keep others from reading it in the store, see [`seal`](idem_runner::Builder::seal); to keep nothing of its
    /// body, [`DoNotStore`](crate::DoNotStore).
    pub fn redact(
        mut self,
        hook: impl Fn(&http::response::Parts, idem_core::Response) -> idem_core::Response + Send + Sync + 'static,
    ) -> Self {
        self.redact = Some(Arc::new(hook));
        self
    }

    /// Fingerprints every body byte by byte, JSON too. Of this, [`fields`](Self::fields) and
    /// [`fingerprint_with`](Self::fingerprint_with) the last call counts.
    pub fn raw_body(mut self) -> Self {
        self.fingerprints.rule = Rule::Raw;
        self
    }

    /// Fingerprints these fields of a JSON body and nothing else of it: for bodies that hold a send time or a trace id,
    /// which no retry repeats. Two requests that differ only elsewhere are then one request.
    pub fn fields(mut self, fields: FieldSelector) -> Self {
        self.fingerprints.rule = Rule::Fields(fields);
        self
    }

    /// Fingerprints what this function adds, **instead of** method, target, content type and body: what it does not add may
    /// differ from request to request under one key, the path too. It is called once for the
    /// current key of fingerprints and once for each older one, and must add the same parts for the same request. Names of
    /// parts that can't be used are a mistake in the function: the request is then refused with `operation-failed`.
    pub fn fingerprint_with(
        mut self,
        parts_of: impl Fn(FingerprintBuilder, &Parts, &Bytes) -> FingerprintBuilder + Send + Sync + 'static,
    ) -> Self {
        self.fingerprints.rule = Rule::Custom(Arc::new(parts_of));
        self
    }

    /// Makes fingerprints under this key, so that whoever reads the store can't try out the possible values of a small
    /// field.
    pub fn fingerprint_key(mut self, key: FingerprintKey) -> Self {
        self.fingerprints.key = Some(key);
        self
    }

    /// Also accepts records made under this other key: before it is used, on every instance that shares the store, and for one
    /// retention after it was. Without it a retry over the change is told `store-unavailable`.
    pub fn accept_fingerprint_key(mut self, older: FingerprintKey) -> Self {
        self.fingerprints.older.push(Some(older));
        self
    }

    /// Also accepts records made without a key: for one retention after the first key was set.
    pub fn accept_unkeyed_fingerprints(mut self) -> Self {
        self.fingerprints.older.push(None);
        self
    }

    /// Also accepts records made as `before` makes its fingerprints, by whatever rule and keys: for one retention after a
    /// change of rule ([`raw_body`](Self::raw_body), [`fields`](Self::fields), [`fingerprint_with`](Self::fingerprint_with)).
    /// Without it a retry over the change is told that its key is used for another request.
    ///
    /// Where several instances share the store, the change takes two steps: first each accepts the new rule, then each uses
    /// it and accepts the old one.
    pub fn accept_fingerprints_of(mut self, before: &Self) -> Self {
        self.fingerprints.other_rules.push(before.fingerprints.clone());
        self
    }

    /// The header that marks a replay. `Idempotent-Replayed` by default; its value is `true`. It takes the place of the
    /// response's own header of that name, so one that means something else can't be it.
    pub fn replay_header(mut self, name: &str) -> Self {
        self.marker = name.into();
        self
    }

    /// Never stores this response header, so that replays lack it.
    pub fn never_store(mut self, name: &str) -> Self {
        self.never_stored.push(name.into());
        self
    }

    /// Stores this response header although it is on the list of those that are not: see the
    /// [crate documentation](crate#what-is-stored).
    pub fn store(mut self, name: &str) -> Self {
        self.stored.push(name.into());
        self
    }

    /// What the `type` of a problem begins with; its code follows. `urn:idem:problem:` by default. The address of a page
    /// whose anchors are the codes, with a `#` behind it, leads a reader to what to do: `docs/problems.md` of the repository
    /// is such a page.
    pub fn problem_base(mut self, base: &str) -> Self {
        self.style.base = base.into();
        self
    }

    /// The status of a problem, instead of the table's.
    pub fn problem_status(mut self, code: Code, status: StatusCode) -> Self {
        self.style.statuses.push((code, status));
        self
    }

    /// The requests are calls of gRPC.
    ///
    /// - How a call ended is told by `grpc-status`, in its trailers or in headers that are all there is, and decides how the
    ///   attempt settles. OK, NOT_FOUND, ALREADY_EXISTS and FAILED_PRECONDITION are final; INVALID_ARGUMENT, OUT_OF_RANGE,
    ///   UNAUTHENTICATED, PERMISSION_DENIED and UNIMPLEMENTED are forgotten; all others are released. They are judged as 200,
    ///   404, 409, 412, as 400, 400, 401, 403, 405, and as 408 (CANCELLED), 429 (RESOURCE_EXHAUSTED), 500, 503 (ABORTED and
    ///   UNAVAILABLE) or 504 (DEADLINE_EXCEEDED), so that a [`SettlePolicy`](idem_runner::SettlePolicy) can change it.
    /// - Trailers are recorded and replayed like headers.
    /// - Problems are statuses of gRPC ([`Code::grpc_code`]) whose details are a `google.rpc.ErrorInfo` of the domain `idem`,
    ///   with the code as its reason (`IDEMPOTENCY_KEY_REUSED`), and a `RetryInfo` where waiting helps. The retry policy of
    ///   gRPC clients is told the same time, by `grpc-retry-pushback-ms`.
    ///
    /// Calls are read whole before they are claimed and answered once their answer is whole, so it is for unary calls, and for
    /// streams that are short. Two encodings of one message are two requests unless
    /// [`fingerprint_with`](Self::fingerprint_with) says what counts: keep the bytes of a call for its retries.
    pub fn grpc(mut self) -> Self {
        self.style.is_grpc = true;
        self
    }

    /// Lets scripts of other origins read the headers that the layer sets, by adding their names to
    /// `Access-Control-Expose-Headers` where one is set. A CORS layer outside of this one replaces that header: give it
    /// the names instead. Off by default.
    pub fn expose_for_cors(mut self, expose: bool) -> Self {
        self.expose_for_cors = expose;
        self
    }

    /// The layer.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], naming the setting that can't work.
    pub fn build(self) -> Result<IdempotencyLayer, ConfigError> {
        let header = key_header(&self.header)?;
        let marker = replay_header(&self.marker)?;
        if marker == header {
            return Err(ConfigError::ReservedHeader { setting: "replay_header", name: self.marker });
        }
        for (setting, limit) in [("max_request_bytes", self.max_request), ("max_response_bytes", self.max_response)] {
            if limit == 0 {
                return Err(ConfigError::Zero { setting });
            }
        }
        if self.methods.is_empty() {
            return Err(ConfigError::NoMethods);
        }
        if self.methods.contains(&Method::CONNECT) {
            return Err(ConfigError::Connect);
        }
        check_style(&self.style)?;
        check_keys(&self.fingerprints)?;
        let accepts_others = !self.fingerprints.older.is_empty() || !self.fingerprints.other_rules.is_empty();
        if self.anonymous == Anonymous::BindToFingerprint && accepts_others {
            return Err(ConfigError::AnonymousWithOlderKeys);
        }
        let added =
            self.never_stored.iter().map(|name| header_name("never_store", name)).collect::<Result<Vec<_>, _>>()?;
        let kept = self.stored.iter().map(|name| header_name("store", name)).collect::<Result<Vec<_>, _>>()?;
        let is_reserved = |name: &&HeaderName| is_framing(name) || **name == marker || **name == NOT_STORED;
        if let Some(reserved) = kept.iter().find(is_reserved) {
            return Err(ConfigError::ReservedHeader { setting: "store", name: reserved.as_str().into() });
        }
        if let Some(both) = kept.iter().find(|name| added.contains(name)) {
            return Err(ConfigError::StoredAndNot { name: both.as_str().into() });
        }
        Ok(IdempotencyLayer::of(Config {
            idempotency: self.idempotency,
            scope_of: self.scope_of,
            anonymous: self.anonymous,
            header,
            mode: self.mode,
            is_required: self.is_required,
            methods: self.methods,
            max_request: self.max_request,
            max_response: self.max_response,
            validate: self.validate,
            redact: self.redact,
            fingerprints: self.fingerprints,
            rules: HeaderRules { marker, added, kept },
            style: self.style,
            expose_for_cors: self.expose_for_cors,
        }))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("idempotency", &self.idempotency)
            .field("header", &self.header)
            .field("is_required", &self.is_required)
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("idempotency", &self.idempotency)
            .field("anonymous", &self.anonymous)
            .field("header", &self.header)
            .field("mode", &self.mode)
            .field("is_required", &self.is_required)
            .field("methods", &self.methods)
            .field("max_request", &self.max_request)
            .field("max_response", &self.max_response)
            .field("fingerprints", &self.fingerprints)
            .field("rules", &self.rules)
            .field("style", &self.style)
            .field("expose_for_cors", &self.expose_for_cors)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
