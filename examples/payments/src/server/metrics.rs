//! The page that Prometheus reads. What is on it is listed in `docs/observability.md`.

use std::time::Duration;

use axum::{Router, http::header, routing::get};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// From a fast store to a handler that runs for as long as one may.
const SECONDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 900.0];

/// How often what was measured is put into its buckets. Until then each measurement takes memory of its own.
const UPKEEP: Duration = Duration::from_secs(5);

/// Collects what is measured from now on, once in a process. To be called before the `Idempotency` is built, which
/// then says what its metrics mean.
pub(crate) fn install() -> Result<PrometheusHandle, String> {
    let builder = PrometheusBuilder::new().set_buckets(&SECONDS).map_err(|error| error.to_string())?;
    let page = builder.install_recorder().map_err(|error| format!("metrics can't be collected: {error}"))?;
    let kept_up = page.clone();
    tokio::spawn(async move {
        let mut times = tokio::time::interval(UPKEEP);
        loop {
            times.tick().await;
            kept_up.run_upkeep();
        }
    });
    Ok(page)
}

/// `GET /metrics`. For the inside only: let your gateway keep it from clients.
pub(crate) fn page<S: Clone + Send + Sync + 'static>(page: PrometheusHandle) -> Router<S> {
    let read = move || async move { ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page.render()) };
    Router::new().route("/metrics", get(read))
}
