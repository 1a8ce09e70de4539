//! The service's future.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{Body, body::BoxError};

pin_project! {
    /// The response of an [`IdempotencyService`](crate::IdempotencyService).
    ///
    /// # Cancellation safety
    ///
    /// Until a covered request is read whole and checked, dropping the future ends it and nothing was claimed. From the
    /// claim on nothing is cancelled: the handler and the recording of its answer go on in a task of their own.
    pub struct ResponseFuture<S>
    where
        S: Service<Request<Body>>,
    {
        #[pin]
        state: State<S>,
    }
}

type Covered<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

pin_project! {
    #[project = StateProj]
    enum State<S>
    where
        S: Service<Request<Body>>,
    {
        /// The request is passed on once the inner service is ready.
        Waiting { inner: S, request: Option<Request<Body>> },
        Passing { #[pin] future: S::Future },
        Covered { future: Covered<S::Error> },
    }
}

impl<S: Service<Request<Body>>> ResponseFuture<S> {
    pub(crate) fn passing(inner: S, request: Request<Body>) -> Self {
        Self { state: State::Waiting { inner, request: Some(request) } }
    }

    pub(crate) fn covered(future: Covered<S::Error>) -> Self {
        Self { state: State::Covered { future } }
    }
}

impl<S, R> Future for ResponseFuture<S>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Output = Result<Response<Body>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let future = match state.as_mut().project() {
                StateProj::Covered { future } => return future.as_mut().poll(cx),
                StateProj::Passing { future } => {
                    return Poll::Ready(ready!(future.poll(cx)).map(|response| response.map(Body::new)));
                }
                StateProj::Waiting { inner, request } => {
                    ready!(inner.poll_ready(cx))?;
                    match request.take() {
                        Some(request) => inner.call(request),
                        None => return Poll::Pending, // polled again after an error, which a future need not answer
                    }
                }
            };
            state.set(State::Passing { future });
        }
    }
}

impl<S: Service<Request<Body>>> fmt::Debug for ResponseFuture<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Waiting { .. } => "Waiting",
            State::Passing { .. } => "Passing",
            State::Covered { .. } => "Covered",
        };
        f.debug_tuple("ResponseFuture").field(&state).finish()
    }
}
