//! `cargo run -p orders-axum -- orders.db`
//!
//! ```sh
//! curl -i localhost:8080/orders -H 'X-Api-Key: anna' -H 'Idempotency-Key: "k-1"' -H 'Content-Type: application/json' \
//!      -d '{"article": "tea", "pieces": 2}'
//! ```

use std::{path::PathBuf, time::Duration};

use tokio::{net::TcpListener, sync::oneshot};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let file = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("orders.db"), PathBuf::from);
    let (app, idempotency) = orders_axum::app(&file)?;
    let listener = TcpListener::bind(("127.0.0.1", 8080)).await?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = axum::serve(listener, app).with_graceful_shutdown(async {
        let _ = stopped.await;
    });
    let mut serving = tokio::spawn(serving.into_future());
    tokio::select! {
        ended = &mut serving => return ended?.map_err(Into::into), // by itself: it failed
        asked_to = tokio::signal::ctrl_c() => asked_to?,
    }
    drop(stop); // no connection is accepted any more,
    // what is claimed is finished, also for clients that have left,
    idempotency.shutdown(Duration::from_secs(60)).await;
    // and the answers are written.
    let _ = tokio::time::timeout(Duration::from_secs(5), serving).await;
    Ok(())
}
