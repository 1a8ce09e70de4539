//! `cargo run -p orders-axum -- orders.db`
//!
//! ```sh
//! curl -i localhost:8080/orders -H 'X-Api-Key: anna' -H 'Idempotency-Key: "k-1"' -H 'Content-Type: application/json' \
//!      -d '{"article": "tea", "pieces": 2}'
//! ```

use std::{path::PathBuf, time::Duration};

use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let file = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("orders.db"), PathBuf::from);
    let (app, idempotency) = orders_axum::app(&file)?;
    let listener = TcpListener::bind(("127.0.0.1", 8080)).await?;
    let stop = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    // What clients that have left had claimed is finished first.
    idempotency.shutdown(Duration::from_secs(60)).await;
    Ok(())
}
