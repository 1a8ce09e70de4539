//! The service: from a request to an operation, and from its outcome to a response. What is decided is decided by the
//! runner.

use std::{
    error::Error,
    future::{poll_fn, ready},
    panic::{self, AssertUnwindSafe},
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{
    FutureExt,
    future::{Either, select},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::LengthLimitError;
use idem_core::{Body as Kept, Differences, NotRetained, OnLapse, Response as Recorded, Timestamp};
use idem_runner::{Attempt, Outcome, Reply, Request as Claim};
use tower_service::Service;

use crate::{
    Anonymous, Body, ResponseFuture,
    body::{BoxError, Collected, collect},
    config::{Config, Redact},
    fingerprint::anonymous_scope,
    grpc,
    headers::{NOT_STORED, is_framing, respond_in},
    parse_key,
    problem::Problem,
};

/// In the extensions of a response: its body must not be stored, since it holds a secret that is shown once. The first
/// answer goes out whole, and a retry gets the problem `response-not-retained`. Only the status is recorded.
///
/// With axum, return `(Extension(DoNotStore), response)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoNotStore;

/// In the extensions of a response: it is followed live, so it goes out as the handler makes it, and its body is not stored.
/// Responses of the type `text/event-stream` need no such mark.
///
/// The operation counts as done with the head of the response: have the effects happen before. What the body does after that
/// is not protected, and ends if the client leaves. A retry gets the problem `response-not-retained`.
///
/// With axum, return `(Extension(FollowedLive), response)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowedLive;

/// In the extensions of a response: it is a replay. For layers outside of this one, such as metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// When the response was recorded, by the store's clock.
    pub stored_at: Timestamp,
}

/// The service that an [`IdempotencyLayer`](crate::IdempotencyLayer) makes. It is always ready: whether the inner
/// service is, is waited for once the key is claimed, so that a replay needs no place in a limiter that stands inside.
#[derive(Clone, Debug)]
pub struct IdempotencyService<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> IdempotencyService<S> {
    pub(crate) fn new(inner: S, config: Arc<Config>) -> Self {
        Self { inner, config }
    }
}

impl<S, B, R> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<S> {
        let inner = self.inner.clone();
        match self.config.covers(&request) {
            Covers::No => ResponseFuture::passing(inner, request.map(Body::new)),
            Covers::Yes => ResponseFuture::covered(Box::pin(answer(Arc::clone(&self.config), inner, request))),
            Covers::Instead => {
                tracing::error!(
                    "two idempotency layers of different set-ups stand around one handler, and only the outer one could \
                     protect it; leave one away"
                );
                let problem = Problem::set_up_wrongly();
                let mut refused = *self.config.problem(&problem);
                // The outer one forgets its key, and says the same.
                if let Some(attempt) = request.extensions().get::<Attempt>() {
                    attempt.nothing_was_done();
                }
                refused.extensions_mut().insert(problem);
                ResponseFuture::covered(Box::pin(ready(Ok(refused))))
            }
        }
    }
}

async fn answer<S, B, R>(config: Arc<Config>, inner: S, request: Request<B>) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    // A hook that panics harms no other request of the connection.
    let prepared = AssertUnwindSafe(config.prepare(&parts, body)).catch_unwind().await;
    let Prepared { claim, body } = match prepared {
        Ok(Ok(prepared)) => prepared,
        Ok(Err(refused)) => return Ok(*refused),
        Err(_) => {
            tracing::error!("a function that the layer was built with panicked before anything was claimed");
            return Ok(*config.problem(&Problem::not_begun()));
        }
    };
    let request = Request::from_parts(parts, body);
    let operation = {
        let config = Arc::clone(&config);
        move |attempt| operate(config, inner, request, attempt)
    };
    let outcome = config.idempotency.run(claim, operation).await;
    config.deliver(outcome)
}

/// In the extensions of a request: the layer that protects it.
#[derive(Clone)]
struct Outer(Arc<Config>);

/// Whether a layer protects a request.
enum Covers {
    No,
    Yes,
    /// It would, if another layer did not.
    Instead,
}

/// Why the handler gave no response that could be an outcome.
enum Failure<E> {
    /// The inner service's own error.
    Inner(E),
    /// What its client is told instead.
    Problem(Problem),
}

/// What the runner runs: the handler, and the reading of its response.
async fn operate<S, R>(
    config: Arc<Config>,
    mut inner: S,
    mut request: Request<Body>,
    attempt: Attempt,
) -> Result<Given, Failure<S::Error>>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let method = request.method().clone();
    request.extensions_mut().insert(attempt.clone());
    request.extensions_mut().insert(Outer(Arc::clone(&config)));
    if let Err(error) = poll_fn(|cx| inner.poll_ready(cx)).await {
        // A limiter that has no room, for instance: the handler was not called.
        attempt.nothing_was_done();
        return Err(Failure::Inner(error));
    }
    let response = inner.call(request).await.map_err(Failure::Inner)?;
    // A body may have no end. Nobody waits for it once another attempt has the key.
    let reading = pin!(config.read_response(&attempt, method, response));
    match select(reading, pin!(attempt.superseded())).await {
        Either::Left((given, _)) => given.map_err(Failure::Problem),
        Either::Right(_) => Err(Failure::Problem(Problem::superseded())),
    }
}

/// A request that may be claimed.
struct Prepared {
    claim: Claim,
    body: Body,
}

impl Config {
    fn covers<B>(&self, request: &Request<B>) -> Covers {
        let has_key = || request.headers().contains_key(&self.header);
        if !self.methods.contains(request.method()) || !self.is_required && !has_key() {
            return Covers::No;
        }
        match request.extensions().get::<Outer>() {
            None => Covers::Yes,
            // The outer one protects: the inner one would wait for it. It must not be one that promises something else.
            Some(Outer(outer)) if outer.header == self.header && outer.idempotency.is_same(&self.idempotency) => {
                Covers::No
            }
            Some(_) => Covers::Instead,
        }
    }

    /// Everything that comes before the claim, in its order: principal, key, size, validation. A request that is refused
    /// here leaves no trace in the store.
    async fn prepare<B>(&self, parts: &Parts, body: B) -> Result<Prepared, Box<Response<Body>>>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let scope = (self.scope_of)(parts);
        if scope.is_none() && self.anonymous == Anonymous::Refuse {
            return Err(self.problem(&Problem::principal_missing()));
        }
        let lines = parts.headers.get_all(&self.header).into_iter().map(HeaderValue::as_bytes);
        let key =
            parse_key(lines, self.mode).map_err(|error| self.problem(&Problem::key(self.header.as_str(), error)))?;
        let (data, trailers) = self.read_request(body).await?;
        if let Some(validate) = &self.validate {
            validate(parts, &data).map_err(|refusal| Box::new(refusal.into_response()))?;
        }
        let (fingerprint, older) = self.fingerprints.of(parts, &data).map_err(|error| self.broken(&error))?;
        let scope = match scope {
            Some(scope) => scope,
            None => anonymous_scope(&fingerprint).map_err(|error| self.broken(&error))?,
        };
        let claim = older.into_iter().fold(Claim::new(scope, key, fingerprint), Claim::accepting);
        Ok(Prepared { claim, body: Body::buffered(data, trailers) })
    }

    async fn read_request<B>(&self, body: B) -> Result<(Bytes, Option<HeaderMap>), Box<Response<Body>>>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let too_large = || self.problem(&Problem::request_too_large(self.max_request));
        // What a client announces is refused before it is sent.
        if body.size_hint().lower() > self.max_request as u64 {
            return Err(too_large());
        }
        match collect(body, self.max_request).await {
            Ok(Collected::Whole { data, trailers }) => Ok((data, trailers)),
            Ok(Collected::TooLarge(_)) => Err(too_large()),
            Err(error) => {
                let error = error.into();
                if is_length_limit(&*error) {
                    return Err(too_large());
                }
                tracing::debug!(%error, "the body of a request broke off");
                Err(self.problem(&Problem::request_incomplete()))
            }
        }
    }

    /// Reads the handler's response as far as it is stored.
    ///
    /// # Errors
    ///
    /// The problem that its client gets instead, which is no outcome of the operation.
    async fn read_response<R>(&self, attempt: &Attempt, method: Method, response: Response<R>) -> Result<Given, Problem>
    where
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let (mut parts, body) = response.into_parts();
        if let Some(problem) = parts.extensions.remove::<Problem>() {
            return Err(problem);
        }
        let is_secret = parts.extensions.get::<DoNotStore>().is_some();
        let collected = match is_followed_live(&parts) {
            // It may have no end. What has none is over every limit.
            true => Ok(Collected::TooLarge(Body::new(body))),
            false => collect(body, self.max_response).await,
        };
        let (body, kept, trailers) = match collected {
            Ok(Collected::Whole { data, trailers }) => {
                (Body::buffered(data.clone(), trailers.clone()), Kept::Kept(data), trailers)
            }
            Ok(Collected::TooLarge(body)) => (body, Kept::NotRetained(NotRetained::TooLarge), None),
            Err(error) => {
                let error = error.into();
                tracing::error!(%error, "the handler's response broke off");
                return Err(self.failure());
            }
        };
        let settles_as = self.settles_as(&parts, &kept, trailers.as_ref());
        let whole = self.rules.record(&method, &parts, kept, trailers.as_ref());
        let recorded = match &self.redact {
            // What is in the handler's own transaction is as it is, and must have been committed.
            _ if attempt.is_committing(&whole) => whole,
            _ if is_secret => Recorded::new(parts.status.as_u16()).with_kept(Kept::NotRetained(NotRetained::Secret)),
            Some(redact) => self.redacted(redact, &parts, whole),
            None => whole,
        };
        Ok(Given { recorded, settles_as, response: Response::from_parts(parts, body) })
    }

    /// What `redact` leaves of a response. What it can't be trusted with is not kept: the operation was done, whatever the
    /// function does.
    fn redacted(&self, redact: &Redact, parts: &http::response::Parts, whole: Recorded) -> Recorded {
        let redacted = panic::catch_unwind(AssertUnwindSafe(|| redact(parts, whole)));
        let not_retained = |why| Recorded::new(parts.status.as_u16()).with_kept(Kept::NotRetained(why));
        match redacted {
            Ok(redacted) if StatusCode::from_u16(redacted.status()).is_err() => {
                tracing::error!("the function given to redact made a status that HTTP does not have; nothing is kept");
                not_retained(NotRetained::Secret)
            }
            Ok(redacted) => match redacted.body() {
                Kept::Kept(data) if data.len() > self.max_response => not_retained(NotRetained::TooLarge),
                _ => redacted,
            },
            Err(_) => {
                tracing::error!("the function given to redact panicked; nothing of the response is kept");
                not_retained(NotRetained::Secret)
            }
        }
    }

    /// The status by which the handler's response settles.
    fn settles_as(&self, parts: &http::response::Parts, kept: &Kept, trailers: Option<&HeaderMap>) -> u16 {
        let code = grpc::code_of(&parts.headers, trailers);
        if self.style.is_grpc && code.is_none() && parts.status.is_success() && matches!(kept, Kept::Kept(_)) {
            tracing::warn!(
                "a whole answer under a layer for gRPC has no grpc-status, so that it counts as failed and a retry runs \
                 again; other protocols, gRPC-Web among them, belong outside of this layer or under another one"
            );
        }
        match kept {
            _ if !self.style.is_grpc => parts.status.as_u16(),
            // How a call ends that is not read to its end is not known. It is not run again.
            Kept::NotRetained(_) if code.is_none() => parts.status.as_u16(),
            _ => grpc::settles_as(code),
        }
    }

    fn deliver<E>(&self, outcome: Outcome<Given, Failure<E>>) -> Result<Response<Body>, E> {
        let problem = match outcome {
            Outcome::Ran { reply, stored } => {
                let mut response = reply.response;
                if !stored {
                    response.headers_mut().insert(NOT_STORED, HeaderValue::from_static("false"));
                    self.expose(&mut response, &NOT_STORED);
                }
                return Ok(response);
            }
            Outcome::Recorded(recorded) => {
                return Ok(respond_in(&self.style, &recorded, |name| !is_framing(name)));
            }
            Outcome::Failed(Failure::Inner(error)) => return Err(error),
            Outcome::Failed(Failure::Problem(problem)) => problem,
            Outcome::Replay { response: recorded, stored_at } => return Ok(self.replay(&recorded, stored_at)),
            Outcome::Panicked | Outcome::RolledBack => self.failure(),
            Outcome::Unconfirmed(error) => Problem::commit_failed(&error),
            Outcome::Conflict { retry_after } => Problem::in_progress(retry_after),
            Outcome::Reuse { differences: Differences::Incomparable } => {
                tracing::error!(
                    "a request can't be compared with the one that its key was used for: accept the key that its \
                     fingerprint was made under (accept_fingerprint_key), everywhere before any instance uses it"
                );
                Problem::incomparable()
            }
            Outcome::Reuse { differences } => Problem::reused(differences),
            Outcome::Unknown => Problem::outcome_unknown(),
            Outcome::Superseded => Problem::superseded(),
            Outcome::Store(error) => {
                tracing::error!(%error, "a request was refused because its key could not be claimed");
                Problem::store(&error)
            }
            Outcome::ShuttingDown => Problem::shutting_down(),
        };
        Ok(*self.problem(&problem))
    }

    /// What a client is told whose operation failed and left nothing: under hold somebody has to look first.
    fn failure(&self) -> Problem {
        match self.idempotency.on_lapse() {
            OnLapse::Hold => Problem::outcome_unknown(),
            OnLapse::TakeOver => Problem::operation_failed(),
        }
    }

    fn replay(&self, recorded: &Recorded, stored_at: Timestamp) -> Response<Body> {
        match recorded.body() {
            Kept::Kept(_) => {}
            Kept::Sealed { key_id, .. } => {
                tracing::error!(
                    key_id,
                    "a recorded response is sealed, and this service does not open it (Builder::seal)"
                );
                return *self.problem(&Problem::sealed());
            }
            _ => return *self.problem(&Problem::not_retained()),
        }
        // A handler that commits for itself records what it likes; what is never replayed is not replayed all the same.
        let mut response = respond_in(&self.style, recorded, |name| self.rules.allows(name));
        let marker = &self.rules.marker;
        response.headers_mut().insert(marker.clone(), HeaderValue::from_static("true"));
        self.expose(&mut response, marker);
        response.extensions_mut().insert(Replayed { stored_at });
        response
    }

    fn problem(&self, problem: &Problem) -> Box<Response<Body>> {
        let mut response = self.style.response(problem);
        response.extensions_mut().insert(problem.code());
        if response.headers().contains_key(header::RETRY_AFTER) {
            self.expose(&mut response, &header::RETRY_AFTER);
        }
        Box::new(response)
    }

    /// A mistake in the code that adds parts to fingerprints: no request leads to it.
    fn broken(&self, error: &dyn Error) -> Box<Response<Body>> {
        tracing::error!(%error, "a request can't be fingerprinted; correct the function given to fingerprint_with");
        self.problem(&Problem::operation_failed())
    }

    fn expose(&self, response: &mut Response<Body>, name: &HeaderName) {
        if self.expose_for_cors {
            let name = HeaderValue::from_name(name.clone());
            response.headers_mut().append(header::ACCESS_CONTROL_EXPOSE_HEADERS, name);
        }
    }
}

/// What the handler gave: what goes out, and what is recorded of it.
struct Given {
    response: Response<Body>,
    recorded: Recorded,
    settles_as: u16,
}

impl Reply for Given {
    fn response(&self) -> Recorded {
        self.recorded.clone()
    }

    fn settles_as(&self) -> u16 {
        self.settles_as
    }
}

fn is_followed_live(parts: &http::response::Parts) -> bool {
    let is_event_stream = || {
        let value = parts.headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let essence = value.split(|byte| *byte == b';').next().unwrap_or_default();
        essence.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
    };
    parts.extensions.get::<FollowedLive>().is_some() || is_event_stream()
}

/// Whether a body broke off because a limit outside of this layer ended it.
fn is_length_limit(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
