//! Calls of the store, which harm nobody.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use idem_core::{StoreError, StoreErrorKind};
use tokio::time;

/// What a call of the store answers within `limit`. One that is silent for longer, or panics, is an error like every
/// other: whether it was applied is not known. `limit_name` says what sets the limit.
pub(crate) async fn answer<T>(
    (backend, operation): (&'static str, &'static str),
    limit: Duration,
    limit_name: &str,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    // The time limit panics too, if its runtime ends while another one polls it.
    match AssertUnwindSafe(time::timeout(limit, call)).catch_unwind().await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => {
            let message = format!("it gave no answer within {limit:?} ({limit_name})");
            Err(StoreError::new(StoreErrorKind::Unavailable, backend, operation, message))
        }
        Err(_) => {
            // A claim that panics is no outage, so that nothing runs unprotected because of it. Everything else may pass.
            let kind = if operation == "claim" { StoreErrorKind::Contract } else { StoreErrorKind::Unavailable };
            let message = "the store panicked, which is a bug in it; whether the call was applied is not known";
            Err(StoreError::new(kind, backend, operation, message))
        }
    }
}
