//! What Prometheus reads.

use std::collections::BTreeMap;

use crate::server::{BODY, LIMIT, Place, Process, code, is_replay};

/// The page's samples by name and labels.
async fn metrics(server: &Process) -> BTreeMap<String, f64> {
    let page = server.client().get("/metrics", &[], LIMIT).await.unwrap();
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").unwrap().starts_with("text/plain"), "{page:?}");
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    assert!(!page.contains("k-1") && !page.contains("tenant"), "no key and no scope is a label: {page}");
    let samples = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    samples
        .map(|line| line.rsplit_once(' ').map(|(name, value)| (name.into(), value.parse().unwrap())).unwrap())
        .collect()
}

#[tokio::test]
async fn the_prometheus_page_counts_what_clients_got() {
    for (place, backend) in Place::each().into_iter().zip(["memory", "sqlite", "postgres", "redis"]) {
        let server = place.serve(&[]).await;
        assert_eq!(server.pay("k-1", BODY, &[]).await.status, 201);
        for _ in 0..3 {
            assert!(is_replay(&server.pay("k-1", BODY, &[]).await));
        }
        let reused = server.pay("k-1", r#"{"amountMinor":1,"currency":"VND"}"#, &[]).await;
        assert_eq!(code(&reused), "idempotency-key-reused");
        let (first, conflict) = tokio::join!(server.pay("k-2", BODY, &[("x-delay-ms", "700")]), async {
            server.provider_called(2).await;
            server.pay("k-2", BODY, &[]).await
        });
        assert_eq!((first.status.as_u16(), &*code(&conflict)), (201, "request-in-progress"));

        let metrics = metrics(&server).await;
        let count = |name: &str| metrics.get(&format!("{name}{{backend=\"{backend}\"}}")).copied().unwrap_or_default();
        let counts = ["claimed", "replayed", "reused", "conflict", "completed", "taken_over", "store_errors"]
            .map(|name| count(&format!("idem_{name}_total")));
        assert_eq!(counts, [2.0, 3.0, 1.0, 1.0, 2.0, 0.0, 0.0], "{backend}");
        assert_eq!(count("idem_running"), 0.0, "nothing runs any more");
        let replays = format!("idem_claim_seconds_count{{backend=\"{backend}\",outcome=\"replayed\"}}");
        assert_eq!(metrics[&replays], 3.0);
        let operations = |suffix: &str| {
            let (name, labels) = suffix.split_once(' ').unwrap_or((suffix, ""));
            metrics[&format!("idem_operation_seconds_{name}{{backend=\"{backend}\",outcome=\"complete\"{labels}}}")]
        };
        assert_eq!(operations("count"), 2.0);
        assert!(operations("bucket ,le=\"0.5\"") <= 1.0, "one of the two took longer than half a second");
        assert_eq!(count("idem_lease_left_seconds_count"), 2.0);
    }
}
