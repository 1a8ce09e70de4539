//! gRPC: where its responses tell how a call ended, and how it is told about problems.
//!
//! Follows the gRPC protocol over HTTP/2 and the error model of `google.rpc`. The few messages that problems need are
//! written by hand, so nothing of a gRPC library is pulled in.

use http::{HeaderMap, HeaderName, HeaderValue, Response, header};

use crate::{Body, Code, problem::Problem};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// When the retry policy of a gRPC client tries again.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Which service the reasons of problems belong to, in `google.rpc.ErrorInfo`.
const DOMAIN: &str = "idem";

/// The status by which a call settles that ended with a code of gRPC. By the default policy:
///
/// | code | status | settles as |
/// |---|---|---|
/// | OK; NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION | 200; 404, 409, 412 | complete |
/// | INVALID_ARGUMENT, OUT_OF_RANGE; UNAUTHENTICATED, PERMISSION_DENIED, UNIMPLEMENTED | 400; 401, 403, 405 | forget |
/// | CANCELLED, RESOURCE_EXHAUSTED; UNKNOWN, INTERNAL, DATA_LOSS; ABORTED, UNAVAILABLE; DEADLINE_EXCEEDED | 408, 429; 500; 503; 504 | release |
///
/// A call without a code, or with one that gRPC does not have, did not end as it should: 500.
pub(crate) fn settles_as(code: Option<u16>) -> u16 {
    match code {
        Some(0) => 200,
        Some(3 | 11) => 400,
        Some(16) => 401,
        Some(7) => 403,
        Some(5) => 404,
        Some(12) => 405,
        Some(1) => 408,
        Some(6) => 409,
        Some(9) => 412,
        Some(8) => 429,
        Some(10 | 14) => 503,
        Some(4) => 504,
        _ => 500,
    }
}

/// The code that a response ended with: of its trailers, or of its headers, where it has only those.
pub(crate) fn code_of(headers: &HeaderMap, trailers: Option<&HeaderMap>) -> Option<u16> {
    let value = trailers.and_then(|trailers| trailers.get(&STATUS)).or_else(|| headers.get(&STATUS))?;
    value.to_str().ok()?.parse().ok()
}

impl Code {
    /// The code of gRPC under which a layer that is set up [for gRPC](crate::Builder::grpc) answers with this problem.
    pub const fn grpc_code(self) -> u16 {
        match self {
            Self::KeyMissing | Self::KeyMalformed | Self::KeyTooLong | Self::RequestIncomplete => 3,
            Self::ResponseNotRetained => 6,
            Self::RequestTooLarge => 8,
            Self::KeyReused | Self::OutcomeUnknown => 9,
            Self::RequestInProgress => 10,
            Self::OperationFailed => 13,
            Self::StoreUnavailable | Self::ShuttingDown => 14,
            Self::PrincipalMissing => 16,
        }
    }
}

/// A problem as a response that has only headers.
pub(crate) fn response(problem: &Problem, kind: &str) -> Response<Body> {
    let code = problem.code().grpc_code();
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(STATUS, code.into());
    insert(headers, MESSAGE, &percent_encoded(problem.detail()));
    insert(headers, DETAILS, &base64(&status_message(problem, kind)));
    if let Some(seconds) = problem.retry_after_seconds() {
        headers.insert(PUSHBACK, seconds.saturating_mul(1000).into());
    }
    response
}

/// What is encoded here is visible ASCII, which every header can hold.
fn insert(headers: &mut HeaderMap, name: HeaderName, encoded: &str) {
    if let Ok(value) = HeaderValue::from_str(encoded) {
        headers.insert(name, value);
    }
}

/// `google.rpc.Status`, with an `ErrorInfo` whose reason is the problem's code, and a `RetryInfo` where waiting helps.
fn status_message(problem: &Problem, kind: &str) -> Vec<u8> {
    let reason = problem.code().as_str().to_ascii_uppercase().replace('-', "_");
    let mut info = field(1, reason.as_bytes());
    info.extend(field(2, DOMAIN.as_bytes()));
    info.extend(field(3, &[field(1, b"type"), field(2, kind.as_bytes())].concat()));

    let mut message = number(1, problem.code().grpc_code().into());
    message.extend(field(2, problem.detail().as_bytes()));
    message.extend(field(3, &any("google.rpc.ErrorInfo", &info)));
    if let Some(seconds) = problem.retry_after_seconds() {
        let delay = field(1, &number(1, seconds));
        message.extend(field(3, &any("google.rpc.RetryInfo", &delay)));
    }
    message
}

/// `google.protobuf.Any`.
fn any(name: &str, message: &[u8]) -> Vec<u8> {
    [field(1, format!("type.googleapis.com/{name}").as_bytes()), field(2, message)].concat()
}

/// A field of a message that has a length: a string, bytes or a message.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    varint(&mut out, value.len() as u64);
    out.extend(value);
    out
}

/// A field of a message that is a number.
fn number(number: u8, value: u64) -> Vec<u8> {
    let mut out = vec![number << 3];
    varint(&mut out, value);
    out
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// As `grpc-message` wants it.
fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}

/// As headers that end with `-bin` want it: without padding.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let joined =
            chunk.iter().fold(0, |joined: u32, byte| joined << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            out.push(char::from(ALPHABET[(joined >> (18 - 6 * place) & 63) as usize]));
        }
    }
    out
}

#[cfg(test)]
mod tests;
