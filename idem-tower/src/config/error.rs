//! Mistakes in the set-up of a layer.

use http::StatusCode;
use thiserror::Error;

use crate::Code;

/// A layer can't be built like this.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A header name that HTTP does not allow.
    #[error("{setting}: {name:?} can't be the name of a header")]
    HeaderName {
        /// The setting.
        setting: &'static str,
        /// The name as given.
        name: String,
    },
    /// The key's header is one that proxies and clients set to trace requests.
    #[error(
        "header: {name} is a correlation id, which requests that are no retries of each other share; use a header that \
         holds nothing but keys"
    )]
    CorrelationHeader {
        /// The name, in lower case.
        name: String,
    },
    /// A header that already means something else.
    #[error("{setting}: the header {name} already means something else; choose another")]
    ReservedHeader {
        /// The setting.
        setting: &'static str,
        /// The name.
        name: String,
    },
    /// A header that is to be stored and not to be stored.
    #[error("store and never_store both name the header {name}; remove one")]
    StoredAndNot {
        /// The name.
        name: String,
    },
    /// A limit of zero bytes.
    #[error("{setting}: it is zero and must be more")]
    Zero {
        /// The setting.
        setting: &'static str,
    },
    /// No method is covered.
    #[error("methods: there are none, so nothing would be protected; leave the layer away instead")]
    NoMethods,
    /// CONNECT makes a tunnel; there is no answer to record.
    #[error("methods: CONNECT has no answer that could be replayed; remove it")]
    Connect,
    /// A problem with a status that is no error.
    #[error("problem_status: {status} for {} is no error; choose a status from 400 to 599", code.as_str())]
    Status {
        /// The problem.
        code: Code,
        /// The status.
        status: StatusCode,
    },
    /// Problems of gRPC have codes of their own, whatever their statuses are over HTTP.
    #[error("problem_status: problems of gRPC all have the status 200; remove it, or do not call grpc")]
    StatusUnderGrpc,
    /// The base of problem types is no beginning of a URI.
    #[error("problem_base: {base:?} can't begin a URI; give it visible ASCII without spaces, such as urn:example:")]
    ProblemBase {
        /// The base as given.
        base: String,
    },
    /// Two keys of fingerprints have one id, or unkeyed ones are accepted twice.
    #[error("accept_fingerprint_key: the key id {id:?} is used twice; give each secret an id of its own")]
    FingerprintKeys {
        /// The id; empty for unkeyed.
        id: String,
    },
    /// Anonymous scopes are made of the fingerprint, so records under older keys or rules would never be found, and their
    /// retries would run again.
    #[error(
        "anonymous: BindToFingerprint finds no records of older fingerprint keys or rules; do not accept any here, or \
         refuse anonymous requests"
    )]
    AnonymousWithOlderKeys,
}
