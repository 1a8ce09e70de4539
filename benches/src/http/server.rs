//! The two servers, and what they are sent.

use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc};

use axum::{Router, body::Bytes, http::StatusCode, routing::post};
use idem_core::Scope;
use idem_memory::MemoryStore;
use idem_runner::Idempotency;
use idem_tower::IdempotencyLayer;
use tokio::net::TcpListener;

use crate::Failure;

/// More records than all rounds make.
const ROOM: NonZeroUsize = NonZeroUsize::new(100_000_000).unwrap();

/// They run until the program ends.
pub(crate) struct Servers {
    pub(crate) bare: SocketAddr,
    pub(crate) layered: SocketAddr,
}

impl Servers {
    pub(crate) async fn start() -> Result<Self, Failure> {
        let app = Router::new().route("/payments", post(async |_: Bytes| StatusCode::CREATED));
        let store = MemoryStore::builder().max_records(ROOM).build();
        let idempotency = Idempotency::builder(Arc::new(store)).build()?;
        let scope = Scope::new("tenant-7")?;
        let layer = IdempotencyLayer::builder(idempotency, move |_| Some(scope.clone())).build()?;
        Ok(Self { bare: serve(app.clone()).await?, layered: serve(app.layer(layer)).await? })
    }
}

async fn serve(app: Router) -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

/// A request under a key, with 200 bytes of JSON.
pub(crate) fn request(key: &str) -> Vec<u8> {
    let empty = r#"{"amountMinor":250000,"currency":"VND","cart":"c-81","lines":[{"sku":"a","n":2}],"note":""}"#;
    let note = "x".repeat(200 - empty.len());
    let body = empty.replace(r#""note":"""#, &format!(r#""note":"{note}""#));
    format!(
        "POST /payments HTTP/1.1\r\nhost: bench\r\nidempotency-key: \"{key}\"\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::connection::Connection;

    #[tokio::test]
    async fn both_servers_answer_the_same_request_of_200_bytes_and_only_one_of_them_knows_a_retry() {
        let request = request("k");
        let text = String::from_utf8(request.clone()).unwrap();
        assert_eq!(text.split_once("\r\n\r\n").unwrap().1.len(), 200);
        let servers = Servers::start().await.unwrap();
        for server in [servers.bare, servers.layered] {
            let mut connection = Connection::open(server).await.unwrap();
            for _ in 0..2 {
                connection.exchange(&request).await.unwrap();
            }
            let is_replay = connection.last().contains("idempotent-replayed: true");
            assert_eq!(is_replay, server == servers.layered);
        }
    }
}
