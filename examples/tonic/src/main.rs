//! `cargo run -p payments-tonic -- 127.0.0.1:50051 sqlite:payments.db`

use std::{process::ExitCode, sync::Arc, time::Duration};

use idem::Idempotency;
use payments_tonic::{provider::Provider, service::serve};
use tokio::{net::TcpListener, sync::oneshot};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:50051".into());
    let store = arguments.next().unwrap_or_else(|| "memory:".into());
    let store = idem::open(&store)?;
    store.check().await?;
    let idempotency = Idempotency::builder(store).build()?;
    let listener = TcpListener::bind(&address).await?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = serve(listener, idempotency.clone(), Arc::new(Provider::default()), async {
        let _ = stopped.await;
    });
    let mut serving = tokio::spawn(serving);
    tokio::select! {
        ended = &mut serving => return ended?, // by itself: it failed
        asked_to = tokio::signal::ctrl_c() => asked_to?,
    }
    drop(stop); // no connection is accepted any more,
    // what is claimed is finished, also for clients that have left,
    idempotency.shutdown(Duration::from_secs(60)).await;
    // and the answers are written.
    let _ = tokio::time::timeout(Duration::from_secs(5), serving).await;
    Ok(())
}
