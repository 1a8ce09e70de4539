//! What metrics and spans say is true: the values, not only the names.

#![cfg(feature = "metrics")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_core::{OnLapse, Response, StoreErrorKind};
use idem_runner::{Attempt, Claimed, OnConflict, OnUnavailable, Outcome, Resolution};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use support::{Ended, Fault, LEASE, answering, request, request_of, scope, world, world_with};
use tokio::sync::Notify;
use tracing::{field::Field, span};
use tracing_subscriber::{Layer, layer::Context, layer::SubscriberExt, registry::LookupSpan};

const SECOND: Duration = Duration::from_secs(1);
const HALF: Duration = Duration::from_millis(500);
const UNAVAILABLE: Fault = Fault::Refused(StoreErrorKind::Unavailable);

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

/// Metrics with their labels, without the backend, and their values; of a histogram all of them, in milliseconds.
fn measured(work: impl Future<Output = ()>) -> BTreeMap<String, Vec<u64>> {
    let _alone = alone();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || play(work));
    let name = |key: &metrics::Key| {
        let labels = key.labels().filter(|label| label.key() != "backend");
        let labels: BTreeSet<_> = labels.map(|label| format!("{}={}", label.key(), label.value())).collect();
        [key.name()].into_iter().chain(labels.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
    };
    let values = |value| match value {
        DebugValue::Counter(value) => vec![value],
        DebugValue::Gauge(value) => vec![value.into_inner() as u64],
        DebugValue::Histogram(values) => {
            values.iter().map(|value| (value.into_inner() * 1_000.0).round() as u64).collect()
        }
    };
    let found = snapshotter.snapshot().into_vec();
    found.into_iter().map(|(key, _, _, value)| (name(key.key()), values(value))).collect()
}

/// Those of one metric.
fn of(measured: &BTreeMap<String, Vec<u64>>, name: &str) -> Vec<(String, Vec<u64>)> {
    let of = measured.iter().filter(|(key, _)| key.split(' ').next() == Some(name));
    of.map(|(key, values)| (key[name.len()..].trim().to_owned(), values.clone())).collect()
}

fn pairs<const N: usize>(expected: [(&str, Vec<u64>); N]) -> Vec<(String, Vec<u64>)> {
    expected.map(|(labels, values)| (labels.to_owned(), values)).into()
}

#[test]
fn times_are_from_the_request_to_its_answer_of_the_operation_alone_and_of_what_was_left_of_the_lease() {
    let measured = measured(async {
        let world = world_with(|builder| builder.on_conflict(OnConflict::Wait { at_most: LEASE }));
        world.store.plan("claim", Fault::Delayed(HALF), 1);
        world.store.plan("complete", Fault::Delayed(SECOND / 4), 1);
        let idempotency = world.idempotency.clone();
        let operation = |_| async {
            tokio::time::sleep(SECOND * 3).await;
            Ok::<_, &str>(Response::new(201))
        };
        let running = tokio::spawn(async move { idempotency.run(request("k"), operation).await });
        tokio::time::sleep(SECOND).await;
        let waited: Ended = world.idempotency.run(request("k"), answering(500)).await;
        assert!(matches!(waited, Outcome::Replay { .. }), "{waited:?}");
        assert!(matches!(running.await.unwrap(), Outcome::Ran { stored: true, .. }));
    });
    let claims = pairs([("outcome=claimed", vec![500]), ("outcome=replayed", vec![2_750])]);
    assert_eq!(of(&measured, "idem_claim_seconds"), claims);
    assert_eq!(of(&measured, "idem_operation_seconds"), pairs([("outcome=complete", vec![3_000])]));
    assert_eq!(of(&measured, "idem_wait_seconds"), pairs([("", vec![2_750])]));
    assert_eq!(
        of(&measured, "idem_lease_left_seconds"),
        pairs([("", vec![26_250])]),
        "from when the store was asked for it"
    );
}

#[test]
fn what_was_left_of_the_lease_is_measured_of_what_was_committed_too_unless_nobody_knows_it() {
    // A renewal that comes after the commit ends them, and nobody knows how much was left at the commit.
    for (work_after, left) in [(SECOND, vec![29_000]), (SECOND * 11, vec![])] {
        for is_answered in [true, false] {
            let measured = measured(async move {
                let world = world();
                let store = world.store.clone();
                let operation = move |attempt: Attempt| async move {
                    let completion = attempt.completion(Response::new(201));
                    let (owner, response) = (completion.owner(), completion.response());
                    let keep = completion.retention();
                    let _ = idem_core::Store::complete(&store.inner, owner, response, keep).await.unwrap();
                    tokio::time::sleep(work_after).await;
                    if is_answered { Ok(Response::new(201)) } else { Err("broken") }
                };
                let _ = world.idempotency.run(request("k"), operation).await;
                assert_eq!(world.idempotency.counters().completed, 1);
            });
            let found: Vec<_> =
                of(&measured, "idem_lease_left_seconds").into_iter().flat_map(|(_, left)| left).collect();
            assert_eq!(found, left, "{work_after:?}, {is_answered}");
        }
    }
}

#[test]
fn each_time_has_the_word_for_what_it_came_to() {
    let measured = measured(async {
        let world = world_with(|builder| builder.on_unavailable(OnUnavailable::RunUnprotected));
        let _: Ended = world.idempotency.run(request("complete"), answering(201)).await;
        let _: Ended = world.idempotency.run(request("complete"), answering(201)).await;
        let _: Ended = world.idempotency.run(request_of("complete", "other"), answering(201)).await;
        let _: Ended = world.idempotency.run(request("release"), answering(503)).await;
        let _: Ended = world.idempotency.run(request("forget"), answering(400)).await;
        drop(world.idempotency.claim(request("lapse")).await);
        let _: Ended = world.idempotency.run(request("lapse"), answering(201)).await;
        world.clock.advance(LEASE);
        let _: Ended = world.idempotency.run(request("lapse"), answering(201)).await;
        world.store.plan("claim", UNAVAILABLE, usize::MAX);
        let _: Ended = world.idempotency.run(request("unprotected"), answering(201)).await;
        world.store.plan("claim", Fault::Refused(StoreErrorKind::Corrupt), usize::MAX);
        let _: Ended = world.idempotency.run(request("error"), answering(201)).await;
        world.store.heal();
        let hold = world.another(|builder| builder.on_lapse(OnLapse::Hold));
        let _: Ended = hold.run(request("hold"), |_| async { Err("broken") }).await;
        let _: Ended = hold.run(request("hold"), answering(201)).await;
        world.store.plan("renew", Fault::Delayed(SECOND * 2), 1);
        let late = hold.clone();
        let late = tokio::spawn(async move { late.run(request("superseded"), answering(201)).await });
        tokio::time::sleep(SECOND).await;
        world.clock.advance(LEASE);
        let claim = world.idempotency.prepare(request("superseded")).unwrap();
        let _ = idem_core::claim(&world.store.inner, &claim).await.unwrap();
        assert!(matches!(late.await.unwrap(), Outcome::Superseded));
        let waiting = world.another(|builder| builder.on_conflict(OnConflict::Wait { at_most: LEASE }));
        let waiter = waiting.clone();
        let waiter = tokio::spawn(async move { waiter.run(request("superseded"), answering(201)).await });
        tokio::time::sleep(SECOND).await;
        assert!(waiting.shutdown(SECOND).await);
        assert!(matches!(waiter.await.unwrap(), Outcome::ShuttingDown));
    });
    let counts = |name| -> Vec<_> {
        of(&measured, name).into_iter().map(|(labels, values)| (labels, vec![values.len() as u64])).collect()
    };
    let claims = pairs([
        ("outcome=claimed", vec![5]),
        ("outcome=conflict", vec![1]),
        ("outcome=replayed", vec![1]),
        ("outcome=reused", vec![1]),
        ("outcome=shutting_down", vec![1]),
        ("outcome=store_error", vec![1]),
        ("outcome=superseded", vec![1]),
        ("outcome=taken_over", vec![1]),
        ("outcome=unknown", vec![1]),
        ("outcome=unprotected", vec![1]),
    ]);
    assert_eq!(counts("idem_claim_seconds"), claims);
    let operations = pairs([
        ("outcome=complete", vec![3]),
        ("outcome=forget", vec![1]),
        ("outcome=hold", vec![1]),
        ("outcome=release", vec![1]),
    ]);
    assert_eq!(counts("idem_operation_seconds"), operations);
}

#[test]
fn each_error_of_the_store_is_counted_under_its_operation_and_kind() {
    let measured = measured(async {
        let world = world_with(|builder| {
            builder.on_conflict(OnConflict::Wait { at_most: HALF }).store_timeout(SECOND).completion_limit(SECOND * 2)
        });
        let runner = &world.idempotency;
        world.store.plan("complete", Fault::Refused(StoreErrorKind::Contract), 1);
        let _: Ended = runner.run(request("complete"), answering(201)).await;
        world.store.plan("release", Fault::Hangs, 1);
        let _: Ended = runner.run(request("release"), answering(503)).await;
        world.store.plan("forget", Fault::Refused(StoreErrorKind::Corrupt), 1);
        let _: Ended = runner.run(request("forget"), answering(400)).await;
        let Claimed::Run(running) = runner.claim(request("hold")).await else { panic!() };
        world.store.plan("hold", UNAVAILABLE, 1);
        let _ = running.hold().await;
        let seen = world.record("hold").await.unwrap().attempt();
        world.store.plan("resolve", Fault::Refused(StoreErrorKind::Configuration), 1);
        let key = idem_core::Key::new("hold").unwrap();
        let _ = runner.resolve(scope(), key, seen, Resolution::Released).await.unwrap_err();
        let Claimed::Run(running) = runner.claim(request("step")).await else { panic!() };
        world.store.plan("checkpoint", UNAVAILABLE, 1);
        let _ = running.attempt().step("s", || async { Ok::<_, ()>(bytes::Bytes::new()) }).await.unwrap();
        world.store.plan("renew", UNAVAILABLE, 1);
        tokio::time::sleep(SECOND * 11).await;
        world.store.plan("wait", UNAVAILABLE, 1);
        let _: Ended = runner.run(request("step"), answering(201)).await;
        world.store.plan("read", UNAVAILABLE, 1);
        let uncommitted = |attempt: Attempt| async move {
            drop(attempt.completion(Response::new(201)));
            Ok::<_, &str>(Response::new(201))
        };
        let _ = runner.run(request("read"), uncommitted).await;
        world.store.plan("sweep", Fault::Hangs, 1);
        tokio::time::sleep(SECOND * 65).await;
        world.store.plan("claim", Fault::Hangs, 1);
        let _: Ended = runner.run(request("claim"), answering(201)).await;
    });
    let expected = pairs([
        ("kind=configuration operation=resolve", vec![1]),
        ("kind=contract operation=complete", vec![1]),
        ("kind=corrupt operation=forget", vec![1]),
        ("kind=unavailable operation=checkpoint", vec![1]),
        ("kind=unavailable operation=claim", vec![1]),
        ("kind=unavailable operation=hold", vec![1]),
        ("kind=unavailable operation=read", vec![1]),
        ("kind=unavailable operation=release", vec![1]),
        ("kind=unavailable operation=renew", vec![1]),
        ("kind=unavailable operation=sweep", vec![1]),
        ("kind=unavailable operation=wait", vec![1]),
    ]);
    assert_eq!(of(&measured, "idem_store_errors_total"), expected);
}

#[test]
fn what_is_swept_is_counted_record_by_record() {
    let measured = measured(async {
        let world = world();
        for key in ["a", "b", "c"] {
            let _: Ended = world.idempotency.run(request(key), answering(201)).await;
        }
        world.clock.advance(world.idempotency.retention().standard());
        tokio::time::sleep(SECOND * 61).await;
    });
    assert_eq!(of(&measured, "idem_swept_total"), pairs([("", vec![3])]));
}

#[test]
fn gauges_say_how_many_run_and_wait_at_the_moment() {
    let _alone = alone();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let mut gauges = BTreeMap::<String, f64>::new();
    let mut now = || {
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            if let DebugValue::Gauge(change) = value {
                *gauges.entry(key.key().name().to_owned()).or_default() += change.into_inner(); // since the last look
            }
        }
        gauges.clone()
    };
    metrics::with_local_recorder(&recorder, || {
        play(async {
            let world = world_with(|builder| builder.on_conflict(OnConflict::Wait { at_most: LEASE }));
            let finish = Arc::new(Notify::new());
            let running = world.spawn("k", &finish);
            tokio::task::yield_now().await;
            let waiting = [world.spawn("k", &finish), world.spawn("k", &finish)];
            tokio::time::sleep(SECOND).await;
            assert_eq!(now(), [("idem_running".into(), 1.0), ("idem_waiting".into(), 2.0)].into());
            finish.notify_one();
            assert!(matches!(running.await.unwrap(), Outcome::Ran { stored: true, .. }));
            for waiting in waiting {
                assert!(matches!(waiting.await.unwrap(), Outcome::Replay { .. }));
            }
            assert_eq!(now(), [("idem_running".into(), 0.0), ("idem_waiting".into(), 0.0)].into());
        });
    });
}

/// Keeps what spans and events say, one line each.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

/// Fields and values.
#[derive(Default)]
struct Fields(Vec<String>);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() != "message" {
            self.0.push(format!("{}={value:?}", field.name()));
        }
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Said {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        if attributes.metadata().target() != "idem" {
            return;
        }
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        self.0.lock().unwrap().push(format!("{}: {}", attributes.metadata().name(), fields.0.join(" ")));
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        let line = format!("{}: {}", context.span(id).unwrap().name(), fields.0.join(" "));
        self.0.lock().unwrap().push(line);
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        if event.metadata().target() != "idem" {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let span = context.event_span(event).map_or("nowhere", |span| span.name());
        let line = format!("{} in {span}: {}", event.metadata().name(), fields.0.join(" "));
        self.0.lock().unwrap().push(line);
    }
}

/// What spans and events said meanwhile.
fn said(work: impl Future<Output = ()>) -> Vec<String> {
    let _alone = alone();
    let said = Said::default();
    let subscriber = tracing_subscriber::registry().with(said.clone());
    tracing::subscriber::with_default(subscriber, || play(work));
    let said = said.0.lock().unwrap();
    said.clone()
}

#[test]
fn a_request_says_in_its_span_what_it_came_to_and_in_events_how_it_ended() {
    let first_and_retry = said(async {
        let world = world();
        let _: Ended = world.idempotency.run(request("k"), answering(201)).await;
        let _: Ended = world.idempotency.run(request("k"), answering(201)).await;
    });
    assert_eq!(
        first_and_retry,
        [
            "idem.request: scope=Scope(tena…, 8 bytes) key=Key(…, 1 bytes)",
            "idem.claimed in idem.request: number=1",
            "idem.request: claim=\"claimed\"",
            "idem.request: attempt=1",
            "idem.request: settle=\"complete\"",
            "idem.completed in idem.request: how=\"complete\" status=201",
            "idem.request: scope=Scope(tena…, 8 bytes) key=Key(…, 1 bytes)",
            "idem.replayed in idem.request: status=201",
            "idem.request: claim=\"replayed\"",
        ]
    );
    let refused = said(async {
        let world = world();
        let _: Ended = world.idempotency.run(request("k"), answering(201)).await;
        let _: Ended = world.idempotency.run(request_of("k", "other"), answering(201)).await;
        let _running = world.idempotency.claim(request("l")).await;
        assert!(!world.idempotency.shutdown(SECOND).await);
    });
    for line in [
        "idem.reused in idem.request: differences=body length differs: 4 -> 5",
        "idem.shutdown_incomplete in nowhere: left=1",
    ] {
        assert!(refused.iter().any(|said| said == line), "{line}: {refused:#?}");
    }
    let how = said(async {
        let world = world();
        let hold = world.another(|builder| builder.on_lapse(OnLapse::Hold));
        let _: Ended = world.idempotency.run(request("release"), answering(503)).await;
        let _: Ended = world.idempotency.run(request("forget"), answering(400)).await;
        let _: Ended = hold.run(request("hold"), answering(503)).await;
        for is_answered in [true, false] {
            let store = world.store.clone();
            let commits = move |attempt: Attempt| async move {
                let completion = attempt.completion(Response::new(201));
                let (owner, response) = (completion.owner(), completion.response());
                let _ =
                    idem_core::Store::complete(&store.inner, owner, response, completion.retention()).await.unwrap();
                if is_answered { Ok(Response::new(201)) } else { Err("broken") }
            };
            let _ = world.idempotency.run(request(&is_answered.to_string()), commits).await;
        }
    });
    let ends: Vec<_> = how.iter().filter_map(|line| line.split_once(" in idem.request: how=")).collect();
    assert_eq!(
        ends,
        [
            ("idem.released", "\"release\""),
            ("idem.released", "\"forget\""),
            ("idem.released", "\"hold\""),
            ("idem.completed", "\"commit\" status=201"),
            ("idem.completed", "\"commit\" status=201"),
        ]
    );
}

#[test]
fn what_goes_on_in_the_background_is_said_in_the_span_of_its_request() {
    let said = said(async {
        let world = world();
        world.store.plan("complete", Fault::Delayed(SECOND * 3), 1);
        let _: Ended = world.idempotency.run(request("slow"), answering(201)).await;
        let Claimed::Run(running) = world.idempotency.claim(request("by hand")).await else { panic!() };
        world.store.plan("complete", Fault::Delayed(SECOND * 3), 1);
        let settling = async { running.complete(Response::new(201)).await };
        let _ = tracing::Instrument::instrument(settling, tracing::info_span!("callers")).await;
        let Claimed::Run(running) = world.idempotency.claim(request("dropped")).await else { panic!() };
        tracing::info_span!("callers").in_scope(|| drop(running.complete(Response::new(201))));
        tokio::task::yield_now().await;
        world.store.plan("claim", UNAVAILABLE, usize::MAX);
        let _: Ended = world.idempotency.run(request("refused"), answering(201)).await;
        assert!(world.idempotency.shutdown(LEASE).await);
    });
    assert_eq!(said.iter().filter(|line| line.starts_with("idem.completed in callers:")).count(), 2, "{said:#?}");
    assert_eq!(said.iter().filter(|line| line.starts_with("idem.completed in idem.request:")).count(), 1, "{said:#?}");
    assert_eq!(
        said.iter().filter(|line| line.starts_with("idem.store_error in idem.request:")).count(),
        9,
        "{said:#?}"
    );
    assert!(!said.iter().any(|line| line.contains("in nowhere")), "{said:#?}");
}

#[test]
fn what_nothing_protects_has_no_key_that_could_be_left_to_a_lease() {
    let said = said(async {
        let world = world_with(|builder| builder.on_unavailable(OnUnavailable::RunUnprotected));
        drop(world.idempotency.claim(request("k")).await);
        world.store.plan("claim", UNAVAILABLE, usize::MAX);
        drop(world.idempotency.claim(request("l")).await);
    });
    assert_eq!(said.iter().filter(|line| line.starts_with("idem.unprotected")).count(), 1, "{said:#?}");
    assert_eq!(said.iter().filter(|line| line.starts_with("idem.dropped_unsettled")).count(), 1, "{said:#?}");
}

#[test]
fn a_span_of_the_callers_is_not_written_to_where_that_of_the_request_is_turned_off() {
    let _alone = alone();
    let said = Said::default();
    let without_requests = tracing_subscriber::filter::filter_fn(|metadata| metadata.name() != "idem.request");
    let subscriber = tracing_subscriber::registry().with(said.clone().with_filter(without_requests));
    tracing::subscriber::with_default(subscriber, || {
        play(async {
            let span = tracing::info_span!("callers", claim = tracing::field::Empty, attempt = tracing::field::Empty);
            let world = world();
            let request = world.idempotency.run(request("k"), answering(201));
            let _: Ended = tracing::Instrument::instrument(request, span).await;
        });
    });
    let said = said.0.lock().unwrap();
    assert!(!said.iter().any(|line| line.starts_with("callers:")), "{said:#?}");
    assert!(said.iter().any(|line| line.starts_with("idem.completed in callers")), "{said:#?}");
}
