//! Calls over real connections of HTTP/2, with tonic on both sides.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{sync::Arc, time::Duration};

use idem::{Idempotency, ManualClock, Timestamp, memory::MemoryStore};
use payments_tonic::{
    client::{self, Intent},
    messages::{Line, PayRequest, Payment},
    provider::Provider,
    rpc::payments_client::PaymentsClient,
    service::serve,
};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use tonic::{
    Code, Response, Status,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt;

/// The deadline of anything that must happen. Never what a test proves.
const DEADLINE: Duration = Duration::from_secs(20);

const TENANT: &str = "tenant-7";

/// A server, its provider, and a client.
struct World {
    provider: Arc<Provider>,
    idempotency: Idempotency,
    clock: ManualClock,
    client: PaymentsClient<Channel>,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

impl World {
    async fn new() -> Self {
        let clock = ManualClock::starting_at(Timestamp::from_millis(1_000_000));
        let store = Arc::new(MemoryStore::builder().clock(clock.clone()).build());
        let idempotency = Idempotency::builder(store).build().unwrap();
        let provider = Arc::new(Provider::default());
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = serve(listener, idempotency.clone(), Arc::clone(&provider), async {
            let _ = stopped.await;
        });
        let server = tokio::spawn(async move { serving.await.unwrap() });
        let client = PaymentsClient::new(Endpoint::from_shared(url).unwrap().connect().await.unwrap());
        Self { provider, idempotency, clock, client, stop, server }
    }

    async fn pay(&self, intent: &Intent) -> Result<Response<Payment>, Status> {
        self.client.clone().pay(intent.call(TENANT)?).await
    }
}

async fn until(holds: impl Fn() -> bool) {
    let polling = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, polling).await.unwrap();
}

fn intent(key: &str, amount_minor: u64, cart: &str) -> Intent {
    Intent { key: key.into(), order: PayRequest { amount_minor, currency: "VND".into(), cart: cart.into() } }
}

fn is_replay(metadata: &tonic::metadata::MetadataMap) -> bool {
    metadata.get("idempotent-replayed").is_some_and(|value| value == "true")
}

/// The reason of a status, which must be a problem of the layer.
#[track_caller]
fn reason(status: &Status) -> String {
    let info = status.get_details_error_info().expect("the status has no ErrorInfo");
    assert_eq!(info.domain, "idem");
    let code = info.reason.to_ascii_lowercase().replace('_', "-");
    assert_eq!(info.metadata["type"], format!("urn:idem:problem:{code}"));
    assert!(!is_replay(status.metadata()));
    info.reason
}

#[tokio::test]
async fn a_retried_call_gets_the_first_answer_with_its_metadata_and_nothing_is_charged_again() {
    let world = World::new().await;
    let order = intent("k-1", 250_000, "cart-1");
    let first = world.pay(&order).await.unwrap();
    assert!(!is_replay(first.metadata()));
    let again = world.pay(&order).await.unwrap(); // its status came in the trailers of the replay
    assert!(is_replay(again.metadata()));
    assert_eq!(again.metadata().get("x-provider").unwrap(), "example");
    assert_eq!(again.get_ref(), first.get_ref());
    assert_eq!(first.get_ref(), &Payment { charge: "ch_1".into(), amount_minor: 250_000, attempt: 1 });
    assert_eq!(world.provider.totals(), (1, 1));
}

#[tokio::test]
async fn a_stream_of_answers_is_replayed_whole() {
    let world = World::new().await;
    let receipt = async || {
        let call = intent("k-1", 5, "cart-1").call(TENANT).unwrap();
        let response = world.client.clone().receipt(call).await.unwrap();
        let is_replay = is_replay(response.metadata());
        let mut stream = response.into_inner();
        let mut lines = Vec::new();
        while let Some(Line { text }) = stream.message().await.unwrap() {
            lines.push(text);
        }
        (is_replay, lines)
    };
    let lines = vec!["paid 5".to_owned(), "ch_1".into(), "thank you".into()];
    assert_eq!(receipt().await, (false, lines.clone()));
    assert_eq!(receipt().await, (true, lines));
    assert_eq!(world.provider.totals(), (1, 1));
}

#[tokio::test]
async fn what_the_layer_refuses_is_told_by_status_and_reason() {
    let world = World::new().await;
    let mut no_key = intent("k-1", 1, "c").call(TENANT).unwrap();
    no_key.metadata_mut().remove("idempotency-key");
    let missing = world.client.clone().pay(no_key).await.unwrap_err();
    assert_eq!((missing.code(), &*reason(&missing)), (Code::InvalidArgument, "IDEMPOTENCY_KEY_MISSING"));

    world.pay(&intent("k-1", 1, "c")).await.unwrap();
    let reused = world.pay(&intent("k-1", 300, "c")).await.unwrap_err();
    assert_eq!((reused.code(), &*reason(&reused)), (Code::FailedPrecondition, "IDEMPOTENCY_KEY_REUSED"));
    assert!(reused.message().contains("body length differs"), "{}", reused.message());
    assert!(reused.get_details_retry_info().is_none());

    let call = intent("k-1", 1, "c").call("somebody").unwrap();
    assert_eq!(world.client.clone().pay(call).await.unwrap_err().code(), Code::Unauthenticated);
    let other = intent("k-1", 1, "c").call("tenant-8").unwrap();
    assert!(
        !is_replay(world.client.clone().pay(other).await.unwrap().metadata()),
        "another tenant has keys of its own"
    );
}

#[tokio::test]
async fn a_call_that_meets_the_first_is_aborted_and_told_when_to_retry_and_then_gets_its_answer() {
    let world = World::new().await;
    world.provider.pause();
    let order = intent("k-1", 1, "c");
    let first = {
        let (mut client, call) = (world.client.clone(), order.call(TENANT).unwrap());
        tokio::spawn(async move { client.pay(call).await })
    };
    until(|| world.idempotency.counters().claimed == 1).await;
    let conflict = world.pay(&order).await.unwrap_err();
    assert_eq!((conflict.code(), &*reason(&conflict)), (Code::Aborted, "REQUEST_IN_PROGRESS"));
    let delay = conflict.get_details_retry_info().unwrap().retry_delay.unwrap();
    assert_eq!(delay, Duration::from_secs(5));
    assert_eq!(conflict.metadata().get("grpc-retry-pushback-ms").unwrap(), "5000");
    world.provider.resume();
    let first = tokio::time::timeout(DEADLINE, first).await.unwrap().unwrap().unwrap();
    assert_eq!(world.pay(&order).await.unwrap().get_ref(), first.get_ref());
    assert_eq!(world.provider.totals(), (1, 1));
}

#[tokio::test]
async fn the_status_of_the_handler_decides_what_a_retry_gets() {
    let world = World::new().await;
    // A decision is final.
    let sold_out = intent("k-1", 1, "sold-out");
    for is_second in [false, true] {
        let status = world.pay(&sold_out).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "nothing is left of it"));
        assert_eq!(is_replay(status.metadata()), is_second);
    }
    // A refused call is forgotten, so that it may be corrected under its key.
    assert_eq!(world.pay(&intent("k-2", 0, "c")).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(world.pay(&intent("k-2", 9, "c")).await.unwrap().get_ref().attempt, 2);
    // A failure passes.
    world.provider.fail(1);
    assert_eq!(world.pay(&intent("k-3", 1, "c")).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(world.pay(&intent("k-3", 1, "c")).await.unwrap().get_ref().attempt, 2);
    assert!(is_replay(world.pay(&intent("k-3", 1, "c")).await.unwrap().metadata()));
    assert_eq!(world.provider.totals(), (3, 2), "the second attempt found the charge of the first");
}

// case 116
#[tokio::test]
async fn a_client_that_keeps_key_and_message_of_its_intent_pays_once_whatever_happens_on_the_way() {
    let world = World::new().await;
    world.provider.fail(2);
    let order = intent("k-1", 1, "c");
    let paid = client::pay(&mut world.client.clone(), TENANT, &order, 3, DEADLINE).await.unwrap();
    assert_eq!((paid.get_ref().attempt, world.provider.totals()), (3, (3, 1)));
    world.provider.fail(2);
    let failed = client::pay(&mut world.client.clone(), TENANT, &intent("k-2", 1, "c"), 2, DEADLINE).await;
    assert_eq!(failed.unwrap_err().code(), Code::Unavailable, "it gives up after the attempts that it may make");
}

#[tokio::test]
async fn a_client_waits_for_each_answer_as_long_as_its_deadline_and_calls_again() {
    let world = World::new().await;
    world.provider.pause();
    let order = intent("k-1", 1, "c");
    let mut client = world.client.clone();
    let hasty = client::pay(&mut client, TENANT, &order, 1, Duration::from_millis(50));
    let given_up = tokio::time::timeout(DEADLINE, hasty).await.unwrap().unwrap_err();
    assert!(matches!(given_up.code(), Code::Cancelled | Code::DeadlineExceeded), "{given_up:?}");
    world.provider.resume();
    until(|| world.idempotency.counters().completed == 1).await;
    let paid = client::pay(&mut world.client.clone(), TENANT, &order, 1, DEADLINE).await.unwrap();
    assert!(is_replay(paid.metadata()));
    assert_eq!(world.provider.totals(), (1, 1));
}

// case 047
#[tokio::test]
async fn a_call_that_is_given_up_runs_on_and_its_retry_gets_the_answer() {
    let world = World::new().await;
    world.provider.pause();
    let order = intent("k-1", 1, "c");
    let mut hasty = order.call(TENANT).unwrap();
    hasty.set_timeout(Duration::from_millis(50));
    let given_up = world.client.clone().pay(hasty).await.unwrap_err();
    assert!(matches!(given_up.code(), Code::Cancelled | Code::DeadlineExceeded), "{given_up:?}");
    world.provider.resume();
    // The server finishes what is claimed.
    until(|| world.idempotency.counters().completed == 1).await;
    let answer = world.pay(&order).await.unwrap();
    assert!(is_replay(answer.metadata()));
    assert_eq!(world.provider.totals(), (1, 1));
}

#[tokio::test]
async fn after_the_retention_a_key_is_new_again() {
    let world = World::new().await;
    let order = intent("k-1", 1, "c");
    world.pay(&order).await.unwrap();
    world.clock.advance(world.idempotency.retention().standard());
    let anew = world.pay(&order).await.unwrap();
    assert!(!is_replay(anew.metadata()));
    assert_eq!(world.provider.totals(), (2, 1), "the provider still knows the downstream key");
}

#[tokio::test]
async fn a_server_that_stops_ends_its_calls_first() {
    let world = World::new().await;
    world.pay(&intent("k-1", 1, "c")).await.unwrap();
    let World { idempotency, stop, server, client, .. } = world;
    drop(client);
    stop.send(()).unwrap();
    tokio::time::timeout(DEADLINE, server).await.unwrap().unwrap();
    assert!(idempotency.shutdown(DEADLINE).await);
}
