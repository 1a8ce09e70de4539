//! Retries, requests at once, clients that hang up.

use std::sync::Arc;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use crate::server::{BODY, LIMIT, Place, Process, assert_replays, code, is_replay, json};

/// The whole of a request to pay, as bytes.
fn raw(key: &str, delay_ms: u32) -> String {
    format!(
        "POST /payments HTTP/1.1\r\nHost: payments\r\nX-Api-Key: tenant-7\r\nIdempotency-Key: {key}\r\n\
         X-Delay-Ms: {delay_ms}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{BODY}",
        BODY.len()
    )
}

async fn connect(server: &Process) -> TcpStream {
    TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap()
}

async fn fifty_at_once(servers: &[&Process], key: &str) {
    let mut requests = JoinSet::new();
    for n in 0..50 {
        let client = servers[n % servers.len()].client();
        let key = key.to_owned();
        requests.spawn(async move {
            let headers = [("x-api-key", "tenant-7"), ("idempotency-key", &*key), ("x-delay-ms", "300")];
            client.post("/payments", &headers, BODY, LIMIT).await.unwrap()
        });
    }
    let replies = requests.join_all().await;
    let ran: Vec<_> = replies.iter().filter(|reply| reply.status == 201 && !is_replay(reply)).collect();
    assert_eq!(ran.len(), 1);
    for reply in &replies {
        match reply.status.as_u16() {
            201 => assert_eq!(reply.body, ran[0].body),
            409 => {
                assert_eq!(code(reply), "request-in-progress");
                let seconds: u64 = reply.header("retry-after").unwrap().parse().unwrap();
                assert!((1..=5).contains(&seconds));
            }
            _ => panic!("{reply:?}"),
        }
    }
    assert_replays(&servers[0].pay_until_answered(key, BODY).await, ran[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_fifty_requests_at_once_on_one_key_one_pays() {
    for place in Place::each() {
        let (server, store) = (place.serve(&[]).await, &place.store);
        fifty_at_once(&[&server], "k-1").await;
        assert_eq!(server.totals().await, [1, 1, 1], "{store}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_fifty_requests_at_once_to_two_servers_on_one_database_one_pays() {
    for place in Place::lasting() {
        let provider = Process::provider().await;
        let options = ["--provider", &provider.url];
        let (one, other) = tokio::join!(place.serve(&options), place.serve(&options));
        for (round, key) in ["k-1", "k-2", "k-3", "k-4"].iter().enumerate() {
            fifty_at_once(&[&one, &other], key).await;
            let paid = round as u64 + 1;
            assert_eq!((one.totals().await, other.totals().await), ([paid; 3], [paid; 3]));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_servers_start_at_once_on_an_empty_database_and_one_pays() {
    for place in Place::lasting() {
        let provider = Process::provider().await;
        let (mut starting, place) = (JoinSet::new(), Arc::new(place));
        for _ in 0..10 {
            let (place, provider) = (Arc::clone(&place), provider.url.clone());
            starting.spawn(async move { place.serve(&["--provider", &provider]).await });
        }
        let servers = starting.join_all().await;
        fifty_at_once(&servers.iter().collect::<Vec<_>>(), "k-1").await;
        assert_eq!(servers[9].totals().await, [1; 3], "{}", place.store);
    }
}

#[tokio::test]
async fn a_retry_gets_the_first_answer_to_the_byte_and_another_tenant_its_own() {
    for place in Place::each() {
        let (server, store) = (place.serve(&[]).await, &place.store);
        let first = server.pay("k-1", BODY, &[]).await;
        assert_eq!((first.status.as_u16(), is_replay(&first)), (201, false));
        assert!(json(&first)["chargeId"].as_str().unwrap().starts_with("ch_"));
        assert_eq!(first.header("content-type"), Some("application/json"), "{store}");
        assert_replays(&server.pay("k-1", BODY, &[]).await, &first);
        assert_replays(&server.pay("\"k-1\"", BODY, &[]).await, &first);

        let other = server.pay_as("tenant-8", "k-1", BODY).await;
        assert_eq!((other.status.as_u16(), is_replay(&other)), (201, false));
        assert_ne!(json(&other)["chargeId"], json(&first)["chargeId"]);
        assert_eq!(server.totals().await, [2, 2, 2], "{store}");
        assert_eq!(server.list("tenant-7").await, serde_json::json!([json(&first)]));
        assert_eq!(server.list("tenant-8").await, serde_json::json!([json(&other)]));
        assert_eq!(server.list("tenant-9").await, serde_json::json!([]));
    }
}

#[tokio::test]
async fn a_key_used_for_another_amount_is_refused_and_its_record_stays() {
    let server = Process::serve("memory:", &[]).await;
    let first = server.pay("k-1", BODY, &[]).await;
    let reuse = server.pay("k-1", r#"{"amountMinor":1,"currency":"VND"}"#, &[]).await;
    assert_eq!((reuse.status.as_u16(), code(&reuse)), (422, "idempotency-key-reused".into()));
    assert_replays(&server.pay("k-1", BODY, &[]).await, &first);
    assert_eq!(server.totals().await, [1, 1, 1]);
}

// case 128, case 133
#[tokio::test]
async fn members_that_the_service_does_not_know_and_the_order_of_members_make_no_other_request() {
    let server = Process::serve("memory:", &[]).await;
    let first = server.pay("k-1", r#"{"amountMinor":250000,"currency":"VND","sentAt":1}"#, &[]).await;
    let retry = server.pay("k-1", r#"{ "sentAt": 2, "currency": "VND", "amountMinor": 250000 }"#, &[]).await;
    assert_replays(&retry, &first);
    assert_eq!(server.totals().await, [1, 1, 1]);
}

#[tokio::test]
async fn a_client_that_hangs_up_cancels_nothing_and_its_retry_is_a_replay() {
    for place in Place::each() {
        let (server, store) = (place.serve(&[]).await, &place.store);
        let mut connection = connect(&server).await;
        connection.write_all(raw("k-1", 500).as_bytes()).await.unwrap();
        server.provider_called(1).await;
        drop(connection);
        let retry = server.pay_until_answered("k-1", BODY).await;
        assert_eq!((retry.status.as_u16(), is_replay(&retry)), (201, true));
        assert_eq!(server.totals().await, [1, 1, 1], "{store}");
    }
}

#[tokio::test]
async fn a_client_that_breaks_off_its_upload_leaves_no_record() {
    let server = Process::serve("memory:", &[]).await;
    let mut connection = connect(&server).await;
    let request = raw("k-1", 0);
    connection.write_all(&request.as_bytes()[..request.len() - 10]).await.unwrap();
    connection.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer).await; // answered or cut: either ends it
    assert_eq!(server.record("k-1").await, None);
    assert_eq!(server.totals().await, [0, 0, 0]);
    assert_eq!(server.pay("k-1", BODY, &[]).await.status, 201);
}

#[tokio::test]
async fn after_a_503_the_retry_runs_again_under_the_same_charge() {
    let place = Place::sqlite();
    let own_file = place.beside("ledger.db");
    let file_beside = place.beside("beside.db");
    let [database, another, third, fourth] = [(), (), (), ()].map(|()| Place::postgres().store);
    let (redis, beside_redis) = (Place::redis(), Place::redis());
    let redis_ledger = redis.beside("ledger.db");
    for (store, options) in [
        ("memory:", vec![]),
        (&place.store, vec![]),
        (&database, vec![]),
        (&another, vec!["--ledger", &*file_beside]),
        (&place.beside("fourth.db"), vec!["--ledger", &*third]),
        (&redis.store, vec!["--ledger", &*redis_ledger]),
        (&beside_redis.store, vec!["--ledger", &*fourth]),
        (&place.beside("other.db"), vec!["--ledger", &*own_file]),
        (&place.beside("third.db"), vec!["--ledger", "memory:"]),
    ] {
        let server = Process::serve(store, &options).await;
        let failed = server.pay("k-1", BODY, &[("x-fail", "503")]).await;
        assert_eq!((failed.status.as_u16(), is_replay(&failed)), (503, false));
        assert_eq!(server.totals().await, [1, 1, 0], "{store}");
        let retry = server.pay("k-1", BODY, &[]).await;
        assert_eq!((retry.status.as_u16(), is_replay(&retry)), (201, false));
        assert_eq!(json(&retry)["id"], "1");
        assert_eq!(server.totals().await, [2, 1, 1], "{store}");
        assert_replays(&server.pay("k-1", BODY, &[]).await, &retry);
    }
}

// case 100
#[tokio::test]
async fn a_provider_that_is_away_is_a_503_that_frees_the_key_and_the_retry_pays() {
    let provider = Process::provider().await;
    let address = provider.url.strip_prefix("http://").unwrap().to_owned();
    let place = Place::sqlite();
    let server = place.serve(&["--provider", &provider.url]).await;
    provider.kill().await;
    let away = server.pay("k-1", BODY, &[]).await;
    assert_eq!((away.status.as_u16(), &*code(&away), is_replay(&away)), (503, "unavailable", false));
    assert_eq!(server.record("k-1").await.unwrap()["state"], "released");
    let _provider = Process::start(&["provider", "--listen", &address]).await;
    let paid = server.pay("k-1", BODY, &[]).await;
    assert_eq!((paid.status.as_u16(), is_replay(&paid)), (201, false));
    assert_eq!(server.totals().await, [1, 1, 1]);
}
