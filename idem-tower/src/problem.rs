//! What a client is told when its request is not answered by the handler: RFC 9457 problem details.

use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header};
use idem_core::{Differences, StoreError, StoreErrorKind};

use crate::{Body, KeyError, grpc};

/// The problems that the layer answers with. The code is stable and part of the `type`, so that clients need not match
/// on texts. It is in the extensions of such an answer, for layers outside of this one, such as metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The request has no key and its route requires one.
    KeyMissing,
    /// The key header is not one key.
    KeyMalformed,
    /// The key has more than 255 bytes.
    KeyTooLong,
    /// The key was used for another request. The problem names the parts that differ.
    KeyReused,
    /// An attempt under this key is running, or overtook this one. `Retry-After` says when to ask again.
    RequestInProgress,
    /// An earlier attempt may have had effects, and somebody has to find out. A new key is not safe.
    OutcomeUnknown,
    /// The operation was done, and its answer was too large or too secret to be kept.
    ResponseNotRetained,
    /// The request's body is over the limit.
    RequestTooLarge,
    /// The request's body broke off. Nothing was claimed.
    RequestIncomplete,
    /// Nobody is authenticated, and the layer was not told what to do with anonymous requests.
    PrincipalMissing,
    /// The store failed, so the handler was not run. `Retry-After` only if that may help.
    StoreUnavailable,
    /// The server is shutting down and starts nothing new.
    ShuttingDown,
    /// The handler panicked, or its response broke off. The key is free for a retry.
    OperationFailed,
}

impl Code {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::KeyMissing,
        Self::KeyMalformed,
        Self::KeyTooLong,
        Self::KeyReused,
        Self::RequestInProgress,
        Self::OutcomeUnknown,
        Self::ResponseNotRetained,
        Self::RequestTooLarge,
        Self::RequestIncomplete,
        Self::PrincipalMissing,
        Self::StoreUnavailable,
        Self::ShuttingDown,
        Self::OperationFailed,
    ];

    /// The table: code, status, title.
    const fn row(self) -> (&'static str, StatusCode, &'static str) {
        match self {
            Self::KeyMissing => ("idempotency-key-missing", StatusCode::BAD_REQUEST, "An idempotency key is required"),
            Self::KeyMalformed => ("idempotency-key-malformed", StatusCode::BAD_REQUEST, "Malformed idempotency key"),
            Self::KeyTooLong => ("idempotency-key-too-long", StatusCode::BAD_REQUEST, "Idempotency key too long"),
            Self::KeyReused => {
                ("idempotency-key-reused", StatusCode::UNPROCESSABLE_ENTITY, "Idempotency key used for another request")
            }
            Self::RequestInProgress => {
                ("request-in-progress", StatusCode::CONFLICT, "A request with this key is in progress")
            }
            Self::OutcomeUnknown => ("outcome-unknown", StatusCode::CONFLICT, "The outcome is unknown"),
            Self::ResponseNotRetained => {
                ("response-not-retained", StatusCode::CONFLICT, "Done, but the response was not kept")
            }
            Self::RequestTooLarge => ("request-too-large", StatusCode::PAYLOAD_TOO_LARGE, "Request too large"),
            Self::RequestIncomplete => ("request-incomplete", StatusCode::BAD_REQUEST, "Request incomplete"),
            Self::PrincipalMissing => ("principal-missing", StatusCode::UNAUTHORIZED, "Authentication is required"),
            Self::StoreUnavailable => {
                ("store-unavailable", StatusCode::SERVICE_UNAVAILABLE, "Idempotency can't be ensured at the moment")
            }
            Self::ShuttingDown => ("shutting-down", StatusCode::SERVICE_UNAVAILABLE, "Shutting down"),
            Self::OperationFailed => {
                ("operation-failed", StatusCode::INTERNAL_SERVER_ERROR, "The request could not be completed")
            }
        }
    }

    /// As it is written in the problem's `code` and at the end of its `type`.
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// The status that it has unless the layer is told otherwise.
    pub const fn status(self) -> StatusCode {
        self.row().1
    }

    /// What a person reads first; the same for every problem of this code.
    pub const fn title(self) -> &'static str {
        self.row().2
    }
}

/// One problem, before it is written under a layer's [`ProblemStyle`].
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    code: Code,
    detail: String,
    /// In seconds.
    retry_after: Option<u64>,
    differences: Option<Differences>,
}

impl Problem {
    fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), retry_after: None, differences: None }
    }

    fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    pub(crate) fn code(&self) -> Code {
        self.code
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after
    }

    pub(crate) fn key(header: &str, error: KeyError) -> Self {
        let code = match error {
            KeyError::Missing => Code::KeyMissing,
            KeyError::Malformed { .. } => Code::KeyMalformed,
            KeyError::TooLong { .. } => Code::KeyTooLong,
        };
        let what_to_do = match error {
            KeyError::Missing => "; send a key that is unique to this operation, and the same with every retry of it",
            _ => "",
        };
        Self::new(code, format!("the header {header} {error}{what_to_do}"))
    }

    pub(crate) fn principal_missing() -> Self {
        Self::new(Code::PrincipalMissing, "idempotency keys belong to a principal, and this request has none")
    }

    pub(crate) fn request_too_large(limit: usize) -> Self {
        let detail = format!("the body of a request with an idempotency key may have {limit} bytes at most");
        Self::new(Code::RequestTooLarge, detail)
    }

    pub(crate) fn request_incomplete() -> Self {
        Self::new(Code::RequestIncomplete, "the body of the request broke off; nothing was done")
    }

    pub(crate) fn reused(differences: Differences) -> Self {
        let detail = format!("this key was used for another request: {differences}; use a new key for this one");
        Self { differences: Some(differences), ..Self::new(Code::KeyReused, detail) }
    }

    /// `left` is what remains of the lease; it is told as 1 to 5 whole seconds, rounded up.
    pub(crate) fn in_progress(left: Duration) -> Self {
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        let detail = "a request with this key is in progress; retry it with the same key to get its answer";
        Self::new(Code::RequestInProgress, detail).retry_after(seconds.clamp(1, 5))
    }

    pub(crate) fn superseded() -> Self {
        let detail = "another attempt under this key took over; retry with the same key to get its answer";
        Self::new(Code::RequestInProgress, detail).retry_after(1)
    }

    pub(crate) fn outcome_unknown() -> Self {
        let detail = "an earlier request with this key may have had effects, and what became of it is being looked \
                      into; do not send it under a new key";
        Self::new(Code::OutcomeUnknown, detail)
    }

    pub(crate) fn not_retained() -> Self {
        let detail = "the operation was done once and will not be done again; its response can't be sent again";
        Self::new(Code::ResponseNotRetained, detail)
    }

    /// It was done, and its answer is there, but not for this instance of the service.
    pub(crate) fn sealed() -> Self {
        let detail = "the request was processed before, and its answer can't be read here; retry it with the same key";
        Self::new(Code::StoreUnavailable, detail)
    }

    pub(crate) fn store(error: &StoreError) -> Self {
        let problem = Self::new(Code::StoreUnavailable, "the request was not processed, because its key can't be kept");
        match error.kind() {
            StoreErrorKind::Unavailable => problem.retry_after(5),
            _ => problem,
        }
    }

    pub(crate) fn commit_failed(error: &StoreError) -> Self {
        let detail = "the outcome of the request could not be stored; retry it with the same key";
        Self { detail: detail.into(), ..Self::store(error) }
    }

    pub(crate) fn set_up_wrongly() -> Self {
        Self::new(Code::OperationFailed, "the server is set up wrongly for this request; nothing was done")
    }

    pub(crate) fn shutting_down() -> Self {
        let detail = "the server is shutting down and did not process the request; retry it with the same key";
        Self::new(Code::ShuttingDown, detail).retry_after(1)
    }

    /// The keys of fingerprints are being changed: it may well be a retry.
    pub(crate) fn incomparable() -> Self {
        let detail = "whether this key was used for another request can't be told at the moment; send the request again \
                      later with the same key, and not under a new one";
        Self::new(Code::StoreUnavailable, detail)
    }

    /// Before anything was claimed.
    pub(crate) fn not_begun() -> Self {
        let detail = "the server failed before it began; nothing was done; retry it with the same key";
        Self::new(Code::OperationFailed, detail)
    }

    pub(crate) fn operation_failed() -> Self {
        Self::new(Code::OperationFailed, "the server failed while it processed the request; retry it with the same key")
    }
}

/// How problems are written: their types' base, statuses other than the table's, and whether clients speak gRPC.
#[derive(Clone, Debug)]
pub(crate) struct ProblemStyle {
    pub(crate) base: String,
    pub(crate) statuses: Vec<(Code, StatusCode)>,
    pub(crate) is_grpc: bool,
}

impl Default for ProblemStyle {
    fn default() -> Self {
        Self { base: "urn:idem:problem:".into(), statuses: Vec::new(), is_grpc: false }
    }
}

impl ProblemStyle {
    pub(crate) fn status(&self, code: Code) -> StatusCode {
        // The last change of a status counts.
        let changed = self.statuses.iter().rev().find(|(changed, _)| *changed == code);
        changed.map_or(code.status(), |(_, status)| *status)
    }

    pub(crate) fn response(&self, problem: &Problem) -> Response<Body> {
        if self.is_grpc {
            return grpc::response(problem, &self.kind(problem.code));
        }
        let status = self.status(problem.code);
        let mut response = Response::new(Body::from(self.json(problem, status)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = problem.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }

    fn kind(&self, code: Code) -> String {
        format!("{}{}", self.base, code.as_str())
    }

    fn json(&self, problem: &Problem, status: StatusCode) -> String {
        let code = problem.code.as_str();
        let kind = text(&self.kind(problem.code));
        let (title, detail) = (text(problem.code.title()), text(&problem.detail));
        let mut json = format!(
            r#"{{"type":{kind},"title":{title},"status":{},"detail":{detail},"code":"{code}""#,
            status.as_u16()
        );
        if let Some(Differences::Parts(parts)) = &problem.differences {
            let parts: Vec<String> = parts
                .iter()
                .map(|part| {
                    let (stored, given) = (length(part.stored_len()), length(part.given_len()));
                    format!(r#"{{"part":{},"storedLength":{stored},"givenLength":{given}}}"#, text(part.name()))
                })
                .collect();
            json.push_str(&format!(r#","differences":[{}]"#, parts.join(",")));
        }
        json.push('}');
        json
    }
}

/// A JSON string.
fn text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn length(length: Option<u64>) -> String {
    length.map_or("null".into(), |length| length.to_string())
}

#[cfg(test)]
mod tests;
