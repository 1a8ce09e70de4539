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
        // No answer in time, a server that is away, or a first call that is still running. The outcome is not known, and
        // it is safe to ask again under the same key.
        let may_pass = matches!(
            status.code(),
            Code::Aborted
                | Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unavailable
                | Code::Unknown
                | Code::Internal
        );
        if !may_pass || attempt == attempts {
            return Err(status);
        }
        attempt += 1;
        let told = status.metadata().get("grpc-retry-pushback-ms").map(|told| told.to_str().unwrap_or_default());
        // A time that is none, such as a negative one, says that it should not be tried again.
        let pause = match told.map(str::parse) {
            None => 100,
            Some(Ok(told)) => told,
            Some(Err(_)) => return Err(status),
        };
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}
