//! The service: authentication, the idempotency layer, the handlers.

use std::{pin::Pin, sync::Arc};

use idem::{
    Attempt, Idempotency, Scope,
    tower::{ConfigError, IdempotencyLayer},
};
use tokio::net::TcpListener;
use tokio_stream::Stream;
use tonic::{
    Request, Response, Status,
    service::{InterceptorLayer, LayerExt},
    transport::{Server, server::TcpIncoming},
};

use crate::{
    messages::{Line, PayRequest, Payment},
    provider::{Away, Provider},
    rpc::payments_server::{Payments, PaymentsServer},
};

/// Who calls.
#[derive(Clone, Debug)]
struct Tenant(String);

/// Serves until `stop` ends.
///
/// # Errors
///
/// Those of the layer's set-up and of the server.
pub async fn serve(
    listener: TcpListener,
    idempotency: Idempotency,
    provider: Arc<Provider>,
    stop: impl Future<Output = ()>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let once_per_key = once_per_key(idempotency)?;
    Server::builder()
        // Outside: a replay skips the handler and its checks.
        .layer(InterceptorLayer::new(authenticate))
        // One service and not the whole server, so that reflection and health checks need no keys.
        .add_service(once_per_key.named_layer(PaymentsServer::new(Shop { provider })))
        .serve_with_incoming_shutdown(TcpIncoming::from(listener), stop)
        .await?;
    Ok(())
}

fn once_per_key(idempotency: Idempotency) -> Result<IdempotencyLayer, ConfigError> {
    IdempotencyLayer::builder(idempotency, |parts| {
        let Tenant(tenant) = parts.extensions.get()?;
        Scope::new(tenant).ok()
    })
    .grpc()
    .build()
}

fn authenticate(mut request: Request<()>) -> Result<Request<()>, Status> {
    let token = request.metadata().get("authorization").and_then(|token| token.to_str().ok());
    let tenant = token.and_then(|token| token.strip_prefix("Bearer tenant-")).map(|tenant| Tenant(tenant.into()));
    let tenant = tenant.ok_or_else(|| Status::unauthenticated("send authorization: Bearer tenant-…"))?;
    request.extensions_mut().insert(tenant);
    Ok(request)
}

struct Shop {
    provider: Arc<Provider>,
}

impl Shop {
    /// Runs once per key, unless an earlier attempt failed or fell silent.
    async fn charge<T>(&self, request: &Request<T>, order: &PayRequest) -> Result<Payment, Status> {
        let attempt = attempt_of(request)?;
        if order.amount_minor == 0 {
            return Err(Status::invalid_argument("amount_minor is 0")); // forgotten: the corrected call may use the key
        }
        if order.cart == "sold-out" {
            return Err(Status::failed_precondition("nothing is left of it")); // final: replayed
        }
        // The same in every attempt, so that the provider can tell a repeat.
        let charge = self.provider.charge(&attempt.downstream_key("charge")).await;
        // Passing: the next call with this key runs, and knows that it is a repeat.
        let charge = charge.map_err(|Away| Status::unavailable("the provider is away"))?;
        Ok(Payment { charge, amount_minor: order.amount_minor, attempt: attempt.number() })
    }
}

/// The attempt that the layer put there.
fn attempt_of<T>(request: &Request<T>) -> Result<&Attempt, Status> {
    request.extensions().get().ok_or_else(|| Status::internal("the service has no IdempotencyLayer"))
}

#[tonic::async_trait]
impl Payments for Shop {
    async fn pay(&self, request: Request<PayRequest>) -> Result<Response<Payment>, Status> {
        let payment = self.charge(&request, request.get_ref()).await?;
        let mut response = Response::new(payment);
        response.metadata_mut().insert("x-provider", "example".parse().map_err(|_| Status::internal("metadata"))?);
        Ok(response)
    }

    type ReceiptStream = Pin<Box<dyn Stream<Item = Result<Line, Status>> + Send>>;

    async fn receipt(&self, request: Request<PayRequest>) -> Result<Response<Self::ReceiptStream>, Status> {
        let payment = self.charge(&request, request.get_ref()).await?;
        let lines = [format!("paid {}", payment.amount_minor), payment.charge, "thank you".into()];
        let lines = lines.map(|text| Ok(Line { text }));
        Ok(Response::new(Box::pin(tokio_stream::iter(lines))))
    }
}
