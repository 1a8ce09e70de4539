//! What can be seen from outside, compared with the tables of `docs/observability.md`.

#![cfg(feature = "metrics")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_core::{OnLapse, Response, Retention, StoreErrorKind};
use idem_runner::{Claimed, OnConflict, OnUnavailable, Outcome, Resolution, Resolved, Settled, Sweep};
use metrics_util::{
    MetricKind,
    debugging::{DebugValue, DebuggingRecorder},
};
use support::{Ended, Fault, Keyless, LEASE, answering, request, request_of, world, world_with};
use tokio::sync::Notify;
use tracing_subscriber::{Layer, layer::Context, layer::SubscriberExt};

const UNAVAILABLE: Fault = Fault::Refused(StoreErrorKind::Unavailable);
const SECOND: Duration = Duration::from_secs(1);

/// The rows of the table under a heading of `docs/observability.md`, cell by cell, without the marks of code.
fn table(heading: &str, first_column: &str) -> Vec<Vec<String>> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/observability.md");
    let page = std::fs::read_to_string(page).unwrap();
    let part = page.split_once(heading).unwrap().1;
    let header = format!("| {first_column} |");
    let rows =
        part.lines().skip_while(|line| !line.starts_with(&header)).skip(2).take_while(|line| line.starts_with('|'));
    let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect();
    rows.map(cells).collect()
}

/// Does everything that there is to see.
async fn everything() {
    // Claims and their answers, waiting, and the ways to settle.
    let world = world_with(|builder| {
        builder
            .on_conflict(OnConflict::Wait { at_most: SECOND })
            .max_waiters(1)
            .sweep(Sweep::Every(SECOND * 10))
            .retention(Retention::new(LEASE * 4).with_held(LEASE * 4))
    });
    let runner = &world.idempotency;
    let _: Ended = runner.run(request("secret-key"), answering(201)).await;
    let _: Ended = runner.run(request("secret-key"), answering(201)).await;
    let _: Ended = runner.run(request_of("secret-key", "other"), answering(201)).await;
    let _: Ended = runner.run(request("l"), answering(503)).await;
    let _: Ended = runner.run(request("l"), |_| async { panic!("as planned") }).await;
    let Claimed::Run(running) = runner.claim(request("m")).await else { panic!() };
    let waiting = {
        let runner = runner.clone();
        tokio::spawn(async move { runner.run(request("m"), answering(201)).await })
    };
    tokio::time::sleep(SECOND / 2).await;
    let _: Ended = runner.run(request("m"), answering(201)).await; // no place to wait in
    assert!(matches!(waiting.await.unwrap(), Outcome::<Response, &str>::Conflict { .. }));
    let leaving = {
        let runner = runner.clone();
        tokio::spawn(async move { runner.run(request("m"), answering(201)).await })
    };
    tokio::time::sleep(SECOND / 2).await;
    leaving.abort();
    tokio::time::sleep(SECOND / 2).await;
    assert_eq!(running.hold().await, Settled::GivenBack);
    let _: Ended = runner.run(request("m"), answering(201)).await;
    world.store.plan("wait", UNAVAILABLE, 1);
    drop(runner.claim(request("n")).await);
    let _: Ended = runner.run(request("n"), answering(201)).await;
    world.clock.advance(LEASE);
    let _: Ended = runner.run(request("n"), answering(201)).await;
    world.clock.advance(LEASE * 4);
    tokio::time::sleep(SECOND * 11).await;
    assert!(!{
        let _running = runner.claim(request("o")).await;
        runner.shutdown(SECOND).await
    });
    let _: Ended = runner.run(request("p"), answering(201)).await;

    // A store in trouble.
    let world = world_with(|builder| {
        builder.on_unavailable(OnUnavailable::RunUnprotected).completion_limit(SECOND * 3).max_run(LEASE * 2)
    });
    let runner = &world.idempotency;
    world.store.plan("claim", UNAVAILABLE, usize::MAX);
    let _: Ended = runner.run(request("k"), answering(201)).await;
    world.store.heal();
    world.store.plan("complete", UNAVAILABLE, usize::MAX);
    let _: Ended = runner.run(request("l"), answering(201)).await;
    tokio::time::sleep(SECOND * 5).await;
    world.store.heal();
    world.store.plan("renew", UNAVAILABLE, usize::MAX);
    let finish = Arc::new(Notify::new());
    let stuck = world.spawn("stuck", &finish);
    world.advance(LEASE + LEASE / 2).await;
    world.store.heal();
    world.advance(LEASE * 2).await;
    let takeover: Ended = world.another(|builder| builder).run(request("stuck"), answering(201)).await;
    assert!(matches!(takeover, Outcome::Ran { stored: true, .. }), "{takeover:?}");
    world.advance(LEASE * 2).await;
    finish.notify_one();
    assert!(matches!(stuck.await.unwrap(), Outcome::Superseded));
    let uncommitted = |attempt: idem_runner::Attempt| async move {
        let response = Response::new(201);
        drop(attempt.completion(response.clone()));
        Ok::<_, &'static str>(response)
    };
    let _ = runner.run(request("m"), uncommitted).await;
    world.store.plan("read", Fault::Refused(StoreErrorKind::Corrupt), 1);
    let _ = runner.run(request("n"), uncommitted).await;
    let _: Ended = runner.run(request("o"), answering(400)).await;

    // A transaction's response that can't be sealed.
    let keyless = world.another(|builder| builder.seal(Arc::new(Keyless)));
    let _ = keyless.run(request("q"), uncommitted).await;

    // Hold, refusal, and a claim that is lost before its operation begins.
    let world = world_with(|builder| builder.on_lapse(OnLapse::Hold).lapse_limit(NonZeroU32::new(3)).sweep(Sweep::Off));
    let runner = &world.idempotency;
    let _: Ended = runner.run(request("k"), |_| async { Err("broken") }).await;
    let seen = world.record("k").await.unwrap().attempt();
    let done = Resolution::Done(Response::new(201));
    let resolved = runner.resolve(support::scope(), idem_core::Key::new("k").unwrap(), seen, done).await;
    assert_eq!(resolved.unwrap(), Resolved::Done(Response::new(201)));
    let secret = |attempt: idem_runner::Attempt| async move {
        attempt.do_not_retain();
        Ok(Response::new(201))
    };
    let _: Ended = runner.run(request("n"), secret).await;
    world.store.plan("claim", UNAVAILABLE, usize::MAX);
    let _: Ended = runner.run(request("l"), answering(201)).await;
    world.store.heal();
    tokio::time::sleep(SECOND * 2).await;
    world.store.plan("renew", Fault::Delayed(SECOND * 3), 1);
    let late = {
        let runner = runner.clone();
        tokio::spawn(async move { runner.run(request("m"), answering(201)).await })
    };
    tokio::time::sleep(SECOND).await;
    world.clock.advance(LEASE);
    let rival = world.another(|builder| builder);
    let _: Ended = rival.run(request("m"), answering(201)).await;
    let rival_of_hold = world.another(|builder| builder.on_lapse(OnLapse::Hold));
    drop(rival_of_hold.claim(request("m")).await);
    let _: Ended = late.await.unwrap();
}

/// One at a time: `tracing` remembers for the whole process whether anybody listens to an event, and asks only the thread
/// on which it happens first.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs it with a clock that moves by itself.
fn play<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(work)
}

#[test]
fn every_metric_is_in_the_table_and_has_no_labels_but_those_and_nothing_in_the_table_is_missing() {
    let _alone = alone();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || play(everything()));

    let (mut emitted, mut values) = (BTreeMap::new(), BTreeMap::<String, BTreeSet<String>>::new());
    for (key, _, description, value) in snapshotter.snapshot().into_vec() {
        let kind = match key.kind() {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let name = key.key().name().to_owned();
        let labels: BTreeSet<_> = key.key().labels().map(|label| label.key().to_owned()).collect();
        for label in key.key().labels() {
            let of = if label.key() == "outcome" { format!("outcome of {name}") } else { label.key().to_owned() };
            values.entry(of).or_default().insert(label.value().to_owned());
        }
        if let DebugValue::Gauge(value) = value {
            assert_eq!(value.into_inner(), 0.0, "{name}: everything is over");
        }
        let labels = labels.into_iter().collect::<Vec<_>>().join(", ");
        emitted.insert(name, [kind.to_owned(), labels, description.unwrap().to_string()]);
    }
    let documented: BTreeMap<_, _> = table("## Metrics", "metric")
        .into_iter()
        .map(|row| (row[0].clone(), [row[1].clone(), row[2].clone(), row[3].clone()]))
        .collect();
    for description in emitted.values_mut() {
        description[2] = description[2].replace('`', "");
    }
    assert_eq!(emitted, documented);

    let documented: HashMap<_, _> =
        table("## Metrics", "label").into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    for (label, values) in values {
        for value in values {
            let known = documented.get(&label).unwrap_or_else(|| panic!("{label} is not in the table"));
            let is_known = known.split([' ', ',', ':']).any(|word| word == value);
            assert!(is_known || (label == "backend" && value == "faulty"), "{label} = {value} is not in the table");
        }
    }
}

#[test]
fn each_counter_has_the_same_value_as_its_metric() {
    let _alone = alone();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        play(async {
            let world = world_with(|builder| builder.on_conflict(OnConflict::Wait { at_most: SECOND }));
            world.store.plan("claim", Fault::ReplyLost, 1);
            world.store.plan("complete", UNAVAILABLE, 2);
            for status in [201, 201, 503] {
                let _: Ended = world.idempotency.run(request("k"), answering(status)).await;
            }
            drop(world.idempotency.claim(request("l")).await);
            let _: Ended = world.idempotency.run(request("l"), answering(503)).await;
            let mut metrics = HashMap::<String, u64>::new();
            for (key, _, _, value) in snapshotter.snapshot().into_vec() {
                if let DebugValue::Counter(value) = value {
                    *metrics.entry(key.key().name().to_owned()).or_default() += value;
                }
            }
            for (name, value) in world.idempotency.counters().iter() {
                let metric = metrics.remove(&format!("idem_{name}_total")).unwrap_or_default();
                assert_eq!(metric, value, "{name}");
            }
            assert!(metrics.is_empty(), "{metrics:?}");
        });
    });
}

/// Keeps the names of spans and events, and everything that they say.
#[derive(Clone, Default)]
struct Names {
    spans: Arc<Mutex<BTreeSet<(String, String)>>>,
    events: Arc<Mutex<BTreeSet<(String, String)>>>,
    said: Arc<Mutex<String>>,
}

impl<S: tracing::Subscriber> Layer<S> for Names {
    fn on_new_span(&self, attributes: &tracing::span::Attributes<'_>, _: &tracing::span::Id, _: Context<'_, S>) {
        let metadata = attributes.metadata();
        if metadata.target().starts_with("idem") {
            self.spans.lock().unwrap().insert((metadata.name().into(), metadata.level().to_string().to_lowercase()));
            self.said.lock().unwrap().push_str(&format!("{attributes:?}\n"));
        }
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if metadata.target().starts_with("idem") {
            self.events.lock().unwrap().insert((metadata.name().into(), metadata.level().to_string().to_lowercase()));
            self.said.lock().unwrap().push_str(&format!("{event:?}\n"));
        }
    }
}

// case 113
#[test]
fn every_span_and_event_is_in_the_table_with_its_level_and_none_says_a_key_in_full() {
    let _alone = alone();
    let names = Names::default();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(names.clone()), || {
        play(async {
            everything().await;
            let long = "k".repeat(255);
            let world = world();
            let _: Ended = world.idempotency.run(request(&long), |_| async { Err("again") }).await;
            let _: Ended = world.idempotency.run(request(&long), |_| async { panic!("as planned") }).await;
            let said = names.said.lock().unwrap().clone();
            assert!(said.contains("kkk") && !said.contains(&long), "a key is shortened");
        });
    });
    let documented = |heading, column| -> BTreeSet<_> {
        table(heading, column).into_iter().map(|row| (row[0].clone(), row[1].clone())).collect()
    };
    assert_eq!(*names.spans.lock().unwrap(), documented("## Spans", "span"));
    assert_eq!(*names.events.lock().unwrap(), documented("## Events", "event"));
}
