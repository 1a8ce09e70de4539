//! For handlers of axum.

use std::{convert::Infallible, ops::Deref};

use ::axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::request::Parts;
use idem_core::CommitError;
use idem_runner::Attempt;
use thiserror::Error;

use crate::problem::{Problem, ProblemStyle};

/// The attempt that the handler runs in, as an argument of the handler.
///
/// On a route with an optional key take `Option<CurrentAttempt>`: without a key there is none.
///
/// ```
/// use axum::{Router, routing::post};
/// use idem_tower::CurrentAttempt;
///
/// async fn pay(CurrentAttempt(attempt): CurrentAttempt) -> String {
///     // The same in every attempt, so that the provider can tell a repeat.
///     let downstream_key = attempt.downstream_key("charge");
///     format!("charged under {downstream_key}")
/// }
///
/// let router: Router = Router::new().route("/payments", post(pay)); // and under the layer
/// ```
///
/// # Errors
///
/// [`NoAttempt`] if the request is not run under a key.
#[derive(Clone, Debug)]
pub struct CurrentAttempt(pub Attempt);

impl Deref for CurrentAttempt {
    type Target = Attempt;

    fn deref(&self) -> &Attempt {
        &self.0
    }
}

/// A handler asked for its attempt, and the request is not run under a key: the route has no
/// [`IdempotencyLayer`](crate::IdempotencyLayer), or one that does not cover the request (its method, or an optional key
/// that was not sent). As a response it is the problem `operation-failed` (500).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "this handler needs an idempotency key, and the request is not run under one; put the route under an \
     IdempotencyLayer that covers its method and requires a key, or take Option<CurrentAttempt>"
)]
pub struct NoAttempt;

impl IntoResponse for NoAttempt {
    fn into_response(self) -> Response {
        tracing::error!(error = %self, "a handler has no attempt");
        in_response(Problem::set_up_wrongly())
    }
}

impl<S: Sync> FromRequestParts<S> for CurrentAttempt {
    type Rejection = NoAttempt;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoAttempt> {
        parts.extensions.get().cloned().map(Self).ok_or(NoAttempt)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for CurrentAttempt {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get().cloned().map(Self))
    }
}

/// The error of [`Attempt::commit`] as the response of a handler, so that `?` is right: a superseded attempt is the
/// problem `request-in-progress` (409), a store that failed is `store-unavailable` (503). Nothing of the store's error is
/// sent; it goes to `tracing`.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct CommitProblem(#[from] pub CommitError);

impl IntoResponse for CommitProblem {
    fn into_response(self) -> Response {
        match self.0 {
            CommitError::Store(error) => {
                tracing::error!(%error, "a handler's transaction was not committed");
                in_response(Problem::commit_failed(&error))
            }
            _ => in_response(Problem::superseded()),
        }
    }
}

/// Written in the default style, and again by the layer in its own.
fn in_response(problem: Problem) -> Response {
    let mut response = ProblemStyle::default().response(&problem).into_response();
    response.extensions_mut().insert(problem);
    response
}
