//! What a request comes to that is neither the first nor a replay.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    response::{IntoResponse, Response},
    routing::post as on_post,
};
use http::StatusCode;
use idem_core::{OnLapse, State, StoreErrorKind};
use idem_memory::MemoryStore;
use idem_runner::{Attempt, Idempotency, OnConflict, OnUnavailable, SettlePolicy, Sweep};
use idem_tower::{Code, IdempotencyLayer};
use tokio::task::{JoinHandle, JoinSet};

use crate::support::{Answer, App, Count, Faulty, Gate, Setup, post, within};

/// A handler that says when it starts, waits to go on, and answers with how often it ran.
fn waiting(count: &Count, started: &Gate, go: &Gate) -> axum::routing::MethodRouter {
    let (count, started, go) = (count.clone(), started.clone(), go.clone());
    on_post(move || async move {
        let run = count.up();
        started.open();
        go.pass().await;
        (StatusCode::CREATED, run.to_string())
    })
}

fn in_background(app: &App) -> JoinHandle<Answer> {
    let app = app.clone();
    tokio::spawn(async move { app.send(post("k", "{}")).await })
}

// cases 005, 013
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_50_at_once_on_one_key_one_runs_and_the_others_are_told_when_to_retry() {
    let (setup, count, started, go) = (Setup::new(), Count::default(), Gate::new(), Gate::new());
    let app = setup.app(waiting(&count, &started, &go));
    let mut requests = JoinSet::new();
    for _ in 0..50 {
        let app = app.clone();
        requests.spawn(async move { app.send(post("k", "{}")).await });
    }
    // The one that runs waits, so the first 49 to be answered are the others.
    for _ in 0..49 {
        let refused = within(requests.join_next()).await.unwrap().unwrap();
        assert_eq!(refused.status, 409);
        refused.problem("request-in-progress");
        let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=5).contains(&seconds), "{seconds}");
    }
    go.open();
    let first = within(requests.join_next()).await.unwrap().unwrap();
    assert_eq!((first.status, first.text(), count.now()), (201, "1", 1));
    let counters = setup.idempotency.counters();
    assert_eq!((counters.conflict, counters.store_errors), (49, 0), "to lose a race is no outage");
}

// case 005
#[tokio::test]
async fn where_a_conflict_waits_the_others_get_the_replay() {
    let at_most = Duration::from_secs(15);
    let setup = Setup::with(|builder| builder.on_conflict(OnConflict::Wait { at_most }));
    let (count, started, go) = (Count::default(), Gate::new(), Gate::new());
    let app = setup.app(waiting(&count, &started, &go));
    let first = in_background(&app);
    started.pass().await;
    let others: Vec<_> = (0..5).map(|_| in_background(&app)).collect();
    go.open();
    assert!(!within(first).await.unwrap().is_replay());
    for other in others {
        let other = within(other).await.unwrap();
        assert_eq!((other.status, other.text(), other.is_replay()), (201, "1", true));
    }
    assert_eq!(count.now(), 1);
}

// case 041
#[tokio::test]
async fn a_conflict_tells_the_time_left_and_after_the_lapse_the_next_request_takes_over() {
    let setup = Setup::with(|builder| builder.lease(Duration::from_secs(30)));
    let (count, started, go) = (Count::default(), Gate::new(), Gate::new());
    let app = setup.app(waiting(&count, &started, &go));
    let first = in_background(&app);
    started.pass().await;
    for (passed_ms, retry_after) in [(0, "5"), (27_500, "3"), (2_499, "1")] {
        setup.clock.advance(Duration::from_millis(passed_ms));
        let refused = app.send(post("k", "{}")).await;
        refused.problem("request-in-progress");
        assert_eq!(refused.header("retry-after"), Some(retry_after));
    }
    setup.clock.advance(Duration::from_millis(1));
    let second = in_background(&app);
    started.pass().await;

    // The first one lost its key: what it did is not the recorded outcome.
    go.open();
    let lost = within(first).await.unwrap();
    assert_eq!((lost.status, lost.header("retry-after")), (409, Some("1")));
    lost.problem("request-in-progress");
    go.open();
    assert_eq!(within(second).await.unwrap().text(), "2");
    assert_eq!(app.send(post("k", "{}")).await.text(), "2");
    assert_eq!(count.now(), 2);
}

// case 075
#[tokio::test]
async fn while_the_store_is_down_nothing_runs_and_clients_are_told_when_to_retry() {
    let setup = Setup::with(|builder| builder.store_timeout(Duration::from_millis(50)));
    let count = Count::default();
    let runs = count.clone();
    let app = setup.app(on_post(move || async move { runs.up().to_string() }));
    setup.store.claims_fail(true);
    for _ in 0..2 {
        let refused = app.send(post("k", "{}")).await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
        let problem = refused.problem("store-unavailable");
        assert!(!problem.to_string().contains("db.internal"), "the store's error is not the client's: {problem}");
    }
    assert_eq!(count.now(), 0);
    setup.store.claims_fail(false);
    assert_eq!(app.send(post("k", "{}")).await.text(), "1");
    assert!(app.send(post("k", "{}")).await.is_replay());
}

// case 069
#[tokio::test]
async fn a_store_that_does_not_answer_is_given_up_in_time_and_nothing_runs() {
    let setup = Setup::with(|builder| builder.store_timeout(Duration::from_millis(50)));
    let count = Count::default();
    let runs = count.clone();
    let app = setup.app(on_post(move || async move { runs.up().to_string() }));
    setup.store.yields.store(usize::MAX, Ordering::SeqCst);
    let refused = within(app.send(post("k", "{}"))).await;
    assert_eq!((refused.status, refused.header("retry-after"), count.now()), (503, Some("5"), 0));
    refused.problem("store-unavailable");
    assert_eq!(setup.store.in_flight.load(Ordering::SeqCst), 0, "the call was given up");
    setup.store.yields.store(0, Ordering::SeqCst);
    assert_eq!(app.send(post("k", "{}")).await.text(), "1");
}

// case 075
#[tokio::test]
async fn a_store_that_will_not_recover_by_itself_gives_no_time_to_retry() {
    for kind in [StoreErrorKind::Corrupt, StoreErrorKind::Configuration, StoreErrorKind::Contract] {
        let store = Arc::new(Faulty::failing_with(MemoryStore::new(), kind));
        let idempotency = Idempotency::builder(store).sweep(Sweep::Off).build().unwrap();
        let setup = Setup::new();
        let layer = IdempotencyLayer::builder(idempotency, |_| Some(idem_core::Scope::global()));
        let app = setup.app_under(layer, on_post(|| async { unreachable!("it must not run") as &str }));
        let refused = app.send(post("k", "{}")).await;
        refused.problem("store-unavailable");
        assert_eq!((refused.status, refused.header("retry-after")), (503, None), "{kind:?}");
    }
}

// case 075
#[tokio::test]
async fn running_unprotected_is_an_explicit_choice_and_counted() {
    let setup = Setup::with(|builder| {
        builder.on_unavailable(OnUnavailable::RunUnprotected).store_timeout(Duration::from_millis(50))
    });
    setup.store.claims_fail(true);
    let app = setup.app(on_post(|| async { "ran" }));
    for runs in [1, 2] {
        let answer = app.send(post("k", "{}")).await;
        assert_eq!((answer.text(), answer.header("idempotency-stored")), ("ran", Some("false")));
        assert_eq!(setup.idempotency.counters().unprotected, runs);
    }
}

// case 076
#[tokio::test]
async fn where_the_answer_could_not_be_stored_in_time_the_client_has_it_all_the_same_and_is_told_so() {
    let setup = Setup::with(|builder| builder.store_timeout(Duration::from_millis(50)));
    let count = Count::default();
    let runs = count.clone();
    let layer = setup.layer().expose_for_cors(true);
    let app = setup.app_under(layer, on_post(move || async move { (StatusCode::CREATED, runs.up().to_string()) }));
    setup.store.completions_fail(true);
    let first = app.send(post("k", "{}")).await;
    assert_eq!((first.status, first.text(), first.header("idempotency-stored")), (201, "1", Some("false")));
    assert_eq!(first.header("access-control-expose-headers"), Some("idempotency-stored"));
    app.send(post("k", "{}")).await.problem("request-in-progress");

    // It goes on in the background, and the key was never freed.
    setup.store.completions_fail(false);
    let again = within(async {
        loop {
            let again = app.send(post("k", "{}")).await;
            if again.status != 409 {
                return again;
            }
            tokio::task::yield_now().await;
        }
    });
    let again = again.await;
    assert_eq!((again.text(), again.is_replay(), again.header("idempotency-stored")), ("1", true, None));
    assert_eq!(count.now(), 1);
}

// case 100
#[tokio::test]
async fn a_passing_failure_is_not_pinned_to_the_key() {
    for status in [500, 502, 503, 408, 425, 429] {
        let (setup, count) = (Setup::new(), Count::default());
        let app = setup.app(on_post(move |attempt: axum::Extension<Attempt>| async move {
            match count.up() {
                1 => StatusCode::from_u16(status).unwrap().into_response(),
                run => {
                    assert!(attempt.is_repeat(), "an earlier attempt may have had effects");
                    (StatusCode::CREATED, run.to_string()).into_response()
                }
            }
        }));
        let first = app.send(post("k", "{}")).await;
        assert_eq!((first.status, first.header("idempotency-stored")), (status, None));
        let second = app.send(post("k", "{}")).await;
        assert_eq!((second.status, second.is_replay()), (201, false));
        assert!(app.send(post("k", "{}")).await.is_replay());
    }
}

// cases 101, 118
#[tokio::test]
async fn a_conflict_of_the_domain_passes_untouched_and_is_replayed() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(on_post(move || async move {
        match count.up() {
            1 => (StatusCode::CONFLICT, [("content-type", "text/plain")], "sold out").into_response(),
            _ => StatusCode::CREATED.into_response(), // stock has returned
        }
    }));
    let first = app.send(post("k", "{}")).await;
    assert_eq!((first.status, first.text(), first.header("retry-after")), (409, "sold out", None));
    assert_eq!(first.header("content-type"), Some("text/plain"));
    let again = app.send(post("k", "{}")).await;
    assert_eq!((again.status, again.text(), again.is_replay()), (409, "sold out", true));
}

// case 052
#[tokio::test]
async fn a_panic_of_the_handler_is_a_500_and_its_retry_runs_as_a_repeat() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(on_post(move |attempt: axum::Extension<Attempt>| async move {
        if count.up() == 1 {
            panic!("the handler's own words");
        }
        format!("attempt {}, repeat {}", attempt.number(), attempt.is_repeat())
    }));
    let first = app.send(post("k", "{}")).await;
    assert_eq!(first.status, 500);
    let problem = first.problem("operation-failed");
    assert!(!problem.to_string().contains("own words"), "{problem}");
    assert_eq!(app.send(post("k", "{}")).await.text(), "attempt 2, repeat true");
}

// case 017
#[tokio::test]
async fn an_outcome_that_is_held_is_unknown_until_someone_resolves_it() {
    let setup = Setup::with(|builder| builder.on_lapse(OnLapse::Hold));
    let count = Count::default();
    let runs = count.clone();
    let app = setup.app(on_post(move || async move {
        runs.up();
        StatusCode::BAD_GATEWAY
    }));
    assert_eq!(app.send(post("k", "{}")).await.status, 502);
    let refused = app.send(post("k", "{}")).await;
    assert_eq!((refused.status, refused.header("retry-after")), (409, None));
    refused.problem("outcome-unknown");
    assert_eq!(count.now(), 1);
    assert_eq!(setup.record("k").await.state, State::Held);
}

#[tokio::test]
async fn a_server_that_shuts_down_finishes_what_runs_and_starts_nothing_new() {
    let (setup, started, go) = (Setup::new(), Gate::new(), Gate::new());
    let (begun, pass) = (started.clone(), go.clone());
    let app = setup.app(on_post(move |attempt: axum::Extension<Attempt>| async move {
        if attempt.key().as_str() == "k" {
            begun.open();
            pass.pass().await;
        }
        "done"
    }));
    let first = in_background(&app);
    started.pass().await;
    let idempotency = setup.idempotency.clone();
    let shutdown = tokio::spawn(async move { idempotency.shutdown(Duration::from_secs(15)).await });
    let mut others = 0..;
    let refused = within(async {
        loop {
            let other = others.next().unwrap();
            let answer = app.send(post(&format!("other-{other}"), "{}")).await;
            if answer.status != 200 {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    refused.problem("shutting-down");
    assert!(!shutdown.is_finished() && !first.is_finished());
    go.open();
    assert_eq!(within(first).await.unwrap().text(), "done");
    assert!(within(shutdown).await.unwrap());
}

#[tokio::test]
async fn problems_are_written_with_the_chosen_base_and_statuses() {
    let setup = Setup::new();
    let layer =
        setup.layer().problem_base("https://errors.example/").problem_status(Code::KeyReused, StatusCode::CONFLICT);
    let app = setup.app_under(layer, on_post(|| async { "done" }));
    app.send(post("k", "{}")).await;
    let refused = app.send(post("k", "[]")).await;
    assert_eq!(refused.status, 409);
    let problem = refused.problem("idempotency-key-reused");
    assert_eq!(problem["type"], "https://errors.example/idempotency-key-reused");
}

// case 105
#[tokio::test]
async fn scripts_can_read_the_time_to_retry_where_there_is_one_and_no_other_problem_names_it() {
    let setup = Setup::new();
    let (count, started, go) = (Count::default(), Gate::new(), Gate::new());
    let app = setup.app_under(setup.layer().expose_for_cors(true), waiting(&count, &started, &go));
    let first = in_background(&app);
    started.pass().await;
    let conflict = app.send(post("k", "{}")).await;
    conflict.problem("request-in-progress");
    assert_eq!(conflict.header("access-control-expose-headers"), Some("retry-after"));
    let reused = app.send(post("k", "[]")).await;
    reused.problem("idempotency-key-reused");
    assert_eq!(reused.header("access-control-expose-headers"), None);
    go.open();
    within(first).await.unwrap();
}

// cases 100, 102
#[tokio::test]
async fn a_problem_in_place_of_an_answer_is_no_outcome_whatever_is_kept() {
    let setup = Setup::with(|builder| builder.settle(SettlePolicy::keep_everything()));
    let count = Count::default();
    let runs = count.clone();
    let app = setup.app(on_post(move || async move {
        match runs.up() {
            1 => Response::new(axum::body::Body::new(crate::support::Chunks::of(&["half"]).then_break_off())),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "the handler's own").into_response(),
        }
    }));
    app.send(post("k", "{}")).await.problem("operation-failed");
    let retry = app.send(post("k", "{}")).await;
    assert_eq!((retry.status, retry.text(), retry.is_replay()), (500, "the handler's own", false));
    let again = app.send(post("k", "{}")).await;
    assert_eq!((again.status, again.text(), again.is_replay()), (500, "the handler's own", true));
    assert_eq!(count.now(), 2);
}

#[tokio::test]
async fn a_failure_stays_a_failure_whatever_status_it_is_sent_with() {
    let (setup, count) = (Setup::new(), Count::default());
    let layer = setup.layer().problem_status(Code::OperationFailed, StatusCode::CONFLICT);
    let app = setup.app_under(
        layer,
        on_post(move || async move {
            match count.up() {
                1 => Response::new(axum::body::Body::new(crate::support::Chunks::of(&["a"]).then_break_off())),
                _ => StatusCode::CREATED.into_response(),
            }
        }),
    );
    assert_eq!(app.send(post("k", "{}")).await.status, 409);
    assert_eq!(app.send(post("k", "{}")).await.status, 201);
}
