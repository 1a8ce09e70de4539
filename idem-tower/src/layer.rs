//! The layer.

use std::sync::Arc;

use http::request::Parts;
use idem_core::Scope;
use idem_runner::Idempotency;
use tower_layer::Layer;

use crate::{Builder, IdempotencyService, config::Config};

/// Runs the requests of the service under it once per idempotency key, and answers retries from the record.
///
/// For `axum::Router::layer`, `axum::routing::MethodRouter::layer`, and any tower stack. See the
/// [crate documentation](crate) for where in the stack it belongs.
#[derive(Clone, Debug)]
pub struct IdempotencyLayer(Arc<Config>);

impl IdempotencyLayer {
    /// Sets up a layer.
    ///
    /// `scope_of` says whose key a request's is: a tenant, an API key, a principal. Take it from what the authentication
    /// outside of this layer put into the request's extensions, never from what the client may claim: a replay skips the
    /// handler and its checks, and whoever is in the scope and knows the key gets it. None means that nobody is
    /// authenticated: see [`Builder::anonymous`].
    pub fn builder(
        idempotency: Idempotency,
        scope_of: impl Fn(&Parts) -> Option<Scope> + Send + Sync + 'static,
    ) -> Builder {
        Builder::new(idempotency, Arc::new(scope_of))
    }

    pub(crate) fn of(config: Config) -> Self {
        Self(Arc::new(config))
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> IdempotencyService<S> {
        IdempotencyService::new(inner, Arc::clone(&self.0))
    }
}
