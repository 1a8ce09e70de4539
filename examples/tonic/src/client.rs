//! A client that retries as it should.

use std::time::Duration;

use tonic::{Code, Request, Response, Status, metadata::AsciiMetadataValue, transport::Channel};

use crate::{
    messages::{PayRequest, Payment},
    rpc::payments_client::PaymentsClient,
};

/// An intent to pay: made once, and stored with its key before the first call, so that the same key and the same message are
/// sent again even after a crash of the client.
#[derive(Clone, Debug)]
pub struct Intent {
    /// Its key, a UUID for instance.
    pub key: String,
    /// What is asked for.
    pub order: PayRequest,
}

impl Intent {
    /// A call for this intent: the same each time.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT if tenant or key are no metadata.
    pub fn call(&self, tenant: &str) -> Result<Request<PayRequest>, Status> {
        let ascii = |text: String| {
            AsciiMetadataValue::try_from(text).map_err(|error| Status::invalid_argument(error.to_string()))
        };
        let mut request = Request::new(self.order.clone());
        request.metadata_mut().insert("authorization", ascii(format!("Bearer {tenant}"))?);
        request.metadata_mut().insert("idempotency-key", ascii(self.key.clone())?);
        Ok(request)
    }
}

/// Calls until there is an answer that is final, at most `attempts` times, each bounded by `deadline`.
///
/// # Errors
///
/// The final status, or the last one.
pub async fn pay(
    client: &mut PaymentsClient<Channel>,
    tenant: &str,
    intent: &Intent,
    attempts: u32,
    deadline: Duration,
) -> Result<Response<Payment>, Status> {
    let mut attempt = 1;
    loop {
        let mut call = intent.call(tenant)?;
        call.set_timeout(deadline);
        let status = match client.pay(call).await {
            Ok(payment) => return Ok(payment),
            Err(status) => status,
        };
        if !may_pass(status.code()) || attempt == attempts {
            return Err(status);
        }
        attempt += 1;
        let Some(pause) = pause_before_the_next(&status) else {
            return Err(status);
        };
        tokio::time::sleep(pause).await;
    }
}

/// No answer in time, a server that is away, or a first call that is still running. The outcome is not known, and it is
/// safe to ask again under the same key.
fn may_pass(code: Code) -> bool {
    matches!(
        code,
        Code::Aborted | Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Unknown | Code::Internal
    )
}

/// What the server asked for, or a tenth of a second. None if it asked not to be called again, by a time that is none.
fn pause_before_the_next(status: &Status) -> Option<Duration> {
    let millis = match status.metadata().get("grpc-retry-pushback-ms") {
        Some(told) => told.to_str().ok()?.parse().ok()?,
        None => 100,
    };
    Some(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_says_nothing_of_the_outcome_is_called_again() {
        let again: Vec<_> = (0..17).map(Code::from_i32).filter(|code| may_pass(*code)).collect();
        let no_answer = [Code::Cancelled, Code::Unknown, Code::DeadlineExceeded];
        assert_eq!(again, [no_answer, [Code::Aborted, Code::Internal, Code::Unavailable]].concat());
    }

    #[test]
    fn the_next_call_waits_as_long_as_the_server_asks_for() {
        let mut status = Status::aborted("a first call is still running");
        assert_eq!(pause_before_the_next(&status), Some(Duration::from_millis(100)));
        status.metadata_mut().insert("grpc-retry-pushback-ms", AsciiMetadataValue::from_static("3000"));
        assert_eq!(pause_before_the_next(&status), Some(Duration::from_secs(3)));
        status.metadata_mut().insert("grpc-retry-pushback-ms", AsciiMetadataValue::from_static("-1"));
        assert_eq!(pause_before_the_next(&status), None, "it should not be called again");
    }
}
