//! Trouble on purpose: a store that does what a network, a driver and a scheduler do to others.
//!
//! [`Faulty`] wraps any store. What befalls its calls is said through [`Faults`], a handle that the test keeps: a reply that
//! gets lost, a request that never arrives or arrives late, one that is applied twice, a delay, a storm of errors, or a
//! pause in which nothing moves while leases run out. The suite uses it on every store, and it is published for the tests
//! of handlers, adapters and consumers.
//!
//! ```
//! use std::sync::Arc;
//!
//! use idem_conformance::faulty::{Fault, Faulty, Operation};
//! # async fn example(store: Arc<dyn idem_core::Store>) {
//! let (store, faults) = Faulty::wrap(store);
//! // The next completion is stored, and whoever completes never learns of it.
//! faults.arm(Fault::LoseReply, Operation::Complete);
//! // … run the operation over `store` …
//! assert_eq!(faults.struck(), 1);
//! # }
//! ```
//!
//! [`drop_after`] drops any future after a number of polls, so that every await point of a call or a handler can be tried.

mod calls;
mod plan;
mod polls;

use std::{sync::Arc, time::Duration};

use idem_core::{Store, StoreError, StoreErrorKind};
use tokio::time::sleep;

use self::calls::Call;
pub use self::{
    plan::{Fault, Faults, Operation},
    polls::{DropAfter, drop_after},
};

/// What every message of an injected error says.
const BACKEND: &str = "faulty";

/// A store that is struck by [`Faults`]. Everything else is the inner store's.
///
/// An injected error is of kind unavailable, as that of a driver that does not know whether its command was applied.
pub struct Faulty {
    inner: Arc<dyn Store>,
    faults: Faults,
}

impl Faulty {
    /// Wraps a store. Until a fault is armed nothing is different.
    pub fn wrap(inner: Arc<dyn Store>) -> (Arc<dyn Store>, Faults) {
        let faults = Faults::new(Arc::clone(&inner));
        (Arc::new(Self { inner, faults: faults.clone() }), faults)
    }

    /// Does a call as the faults will have it.
    async fn through<T: Send + 'static>(
        &self,
        operation: Operation,
        call: impl Fn(Arc<dyn Store>) -> Call<T> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        self.faults.passable().await;
        let inner = || Arc::clone(&self.inner);
        match self.faults.strike(operation) {
            None => call(inner()).await,
            Some(Fault::Delay(by)) => {
                sleep(by).await;
                call(inner()).await
            }
            Some(Fault::Repeat) => {
                call(inner()).await?;
                call(inner()).await
            }
            Some(Fault::LoseRequest) => Err(lost(operation, "the request")),
            Some(Fault::LoseReply) => {
                call(inner()).await?;
                Err(lost(operation, "the reply"))
            }
            Some(Fault::Late) => {
                self.faults.keep(Box::new(move |store| {
                    let call = call(store);
                    Box::pin(async move { call.await.map(drop) })
                }));
                Err(lost(operation, "the request, for now,"))
            }
            Some(Fault::Fail(kind)) => {
                let message = "an error was injected; nothing was done";
                Err(StoreError::new(kind, BACKEND, operation.name(), message))
            }
        }
    }
}

fn lost(operation: Operation, what: &str) -> StoreError {
    let message = format!("{what} was lost on purpose; try again");
    StoreError::new(StoreErrorKind::Unavailable, BACKEND, operation.name(), message)
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faulty").field("inner", &self.inner.backend()).finish_non_exhaustive()
    }
}

/// How long a delay of a storm is at most.
const STORM_DELAY: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests;
