//! Which headers of a response are recorded, and how a response becomes a record and a record a response.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header, response::Parts};
use idem_core::{Body as Kept, Response as Recorded};

use crate::{
    Body,
    problem::{Problem, ProblemStyle},
};

/// Set on a response that was to be recorded and could not be in time.
pub(crate) const NOT_STORED: HeaderName = HeaderName::from_static("idempotency-stored");

/// What every replay is marked with, unless the layer is told another name.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// What of a response's headers is recorded.
#[derive(Clone, Debug)]
pub(crate) struct HeaderRules {
    /// The name of the replay's mark, which is never recorded.
    pub(crate) marker: HeaderName,
    /// Never recorded, beside the ones that [`is_passing`] knows.
    pub(crate) added: Vec<HeaderName>,
    /// Recorded although [`is_passing`] knows them.
    pub(crate) kept: Vec<HeaderName>,
}

impl Default for HeaderRules {
    fn default() -> Self {
        Self { marker: REPLAYED, added: Vec::new(), kept: Vec::new() }
    }
}

impl HeaderRules {
    /// What is recorded of a response, given what is kept of its body.
    pub(crate) fn record(&self, method: &Method, parts: &Parts, kept: Kept, trailers: Option<&HeaderMap>) -> Recorded {
        let nominated = nominated_by_connection(&parts.headers);
        // Where no body is sent, the length is not framing: it tells what a GET would have sent.
        let is_length_of_another = *method == Method::HEAD || parts.status == StatusCode::NOT_MODIFIED;
        let mut recorded = Recorded::new(parts.status.as_u16()).with_kept(kept);
        for (name, value) in &parts.headers {
            let is_recorded = if *name == header::CONTENT_LENGTH {
                is_length_of_another
            } else {
                self.allows(name) && !nominated.contains(name)
            };
            if is_recorded {
                recorded = recorded.with_header(bytes_of(name), Bytes::copy_from_slice(value.as_bytes()));
            }
        }
        for (name, value) in trailers.into_iter().flatten().filter(|(name, _)| self.allows(name)) {
            recorded = recorded.with_trailer(bytes_of(name), Bytes::copy_from_slice(value.as_bytes()));
        }
        recorded
    }

    pub(crate) fn allows(&self, name: &HeaderName) -> bool {
        let is_ours = *name == self.marker || *name == NOT_STORED;
        let is_refused = is_passing(name) && !self.kept.contains(name) || self.added.contains(name);
        !is_framing(name) && !is_ours && !is_refused
    }
}

/// What is recorded of a response under the default rules: for handlers that commit in their own transaction with
/// [`Attempt::commit`](idem_runner::Attempt::commit) and then return the same response. A replay will lack the headers
/// that are never recorded, and the first answer has them.
///
/// ```
/// let response = http::Response::builder().status(201).header("location", "/payments/1").body("paid".into()).unwrap();
/// let recorded = idem_tower::record(&response);
/// assert_eq!(recorded, idem_core::Response::new(201).with_header("location", "/payments/1").with_body("paid"));
/// ```
pub fn record(response: &Response<Bytes>) -> Recorded {
    let (mut parts, ()) = Response::new(()).into_parts();
    parts.status = response.status();
    parts.headers = response.headers().clone();
    HeaderRules::default().record(&Method::POST, &parts, Kept::Kept(response.body().clone()), None)
}

/// The response that a record holds, to be sent: status, headers in order, body and trailers, all as they were recorded;
/// the framing is the server's. One whose body was not kept is the problem `response-not-retained`; so is one that is
/// [sealed](idem_runner::Builder::seal), which under the layer goes out opened all the same.
///
/// Responses that this crate recorded come back whole. In those that were recorded by other means framing, hop-by-hop
/// headers and a header that HTTP can't send are left out, and a status that HTTP does not have is the problem
/// `operation-failed`.
pub fn respond(recorded: &Recorded) -> Response<Body> {
    respond_in(&ProblemStyle::default(), recorded, |name| !is_framing(name))
}

/// Sends the headers and trailers of these names only.
pub(crate) fn respond_in(
    style: &ProblemStyle,
    recorded: &Recorded,
    is_sent: impl Fn(&HeaderName) -> bool,
) -> Response<Body> {
    let Ok(status) = StatusCode::from_u16(recorded.status()) else {
        tracing::error!(status = recorded.status(), "a recorded response has a status that HTTP does not have");
        return style.response(&Problem::operation_failed());
    };
    let Kept::Kept(data) = recorded.body() else {
        return style.response(&Problem::not_retained());
    };
    let has_no_body = status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let body = match has_no_body {
        true => Body::empty(),
        false => Body::buffered(data.clone(), Some(fields(recorded.trailers(), &is_sent))),
    };
    // Beside no body a length is that of the body that a GET would have sent.
    let is_length_of_another = |name: &HeaderName| *name == header::CONTENT_LENGTH && body.at_hand().is_empty();
    let headers = fields(recorded.headers(), |name| is_sent(name) || is_length_of_another(name));
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn fields(recorded: &[(Bytes, Bytes)], is_sent: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let mut fields = HeaderMap::with_capacity(recorded.len());
    for (name, value) in recorded {
        match (HeaderName::from_bytes(name), HeaderValue::from_maybe_shared(value.clone())) {
            (Ok(name), Ok(value)) if is_sent(&name) => {
                fields.append(name, value);
            }
            (Ok(_), Ok(_)) => {}
            _ => tracing::error!("a recorded response has a header that HTTP can't send; it is left out"),
        }
    }
    fields
}

fn bytes_of(name: &HeaderName) -> Bytes {
    Bytes::copy_from_slice(name.as_str().as_bytes())
}

/// Names that the `Connection` header makes hop-by-hop.
fn nominated_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).into_iter();
    values
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect()
}

/// Framing and hop-by-hop headers: they belong to one connection and are made anew for each response. `Trailer` is not
/// among them: it names the trailers, which are replayed, and HTTP/1.1 sends none that it does not name.
pub(crate) fn is_framing(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection" | "content-length" | "keep-alive" | "proxy-connection" | "te" | "transfer-encoding" | "upgrade"
    )
}

/// Headers that were right for the first exchange only: cookies and challenges, its date, its correlation ids, and how
/// much of a rate limit it left.
pub(crate) fn is_passing(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(
        name,
        "set-cookie"
            | "set-cookie2"
            | "www-authenticate"
            | "proxy-authenticate"
            | "authentication-info"
            | "proxy-authentication-info"
            | "date"
            | "ratelimit"
    ) || is_correlation_id(name)
        || ["ratelimit-", "x-ratelimit-", "x-rate-limit-"].iter().any(|prefix| name.starts_with(prefix))
}

/// Headers that name a request or a trace. They are listed and not guessed by their endings: some products'
/// keys are called `…-Request-Id`.
pub(crate) fn is_correlation_id(name: &str) -> bool {
    matches!(
        name,
        "x-request-id"
            | "x-requestid"
            | "request-id"
            | "x-correlation-id"
            | "x-correlationid"
            | "correlation-id"
            | "x-trace-id"
            | "x-traceid"
            | "trace-id"
            | "client-request-id"
            | "traceparent"
            | "tracestate"
            | "baggage"
            | "b3"
            | "uber-trace-id"
            | "sentry-trace"
            | "elastic-apm-traceparent"
            | "x-ot-span-context"
            | "x-client-trace-id"
            | "x-cloud-trace-context"
            | "x-datadog-trace-id"
            | "x-datadog-parent-id"
            | "x-amzn-trace-id"
            | "x-amzn-requestid"
            | "x-amzn-request-id"
            | "x-amz-request-id"
            | "x-amz-cf-id"
            | "x-ms-request-id"
            | "x-ms-client-request-id"
            | "x-ms-correlation-request-id"
            | "x-github-request-id"
            | "x-vercel-id"
            | "fly-request-id"
            | "cf-ray"
    ) || name.starts_with("x-b3-")
}

#[cfg(test)]
mod tests;
