//! Bodies are bounded both ways.

use axum::{body::Body, extract::DefaultBodyLimit, response::Response, routing::post as on_post};
use bytes::Bytes;
use http_body_util::Limited;
use idem_core::{Body as Kept, NotRetained, State};
use idem_tower::Refusal;

use crate::support::{Chunks, Count, Setup, post, with};

fn counting(count: &Count) -> axum::routing::MethodRouter {
    let count = count.clone();
    on_post(move |body: Bytes| async move { format!("{} after {} bytes", count.up(), body.len()) })
}

// case 126
#[tokio::test]
async fn a_request_over_the_limit_is_refused_after_one_frame_too_many_and_nothing_is_claimed() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app_under(setup.layer().max_request_bytes(10), counting(&count));
    let uploads: Vec<_> = (0..20)
        .map(|upload| {
            let app = app.clone();
            tokio::spawn(async move {
                let taken = Count::default();
                let body = Chunks::of(&["1234"; 1_000]).counted(&taken);
                (app.send(post(&format!("k-{upload}"), Body::new(body))).await, taken.now())
            })
        })
        .collect();
    for upload in uploads {
        let (answer, taken) = upload.await.unwrap();
        assert_eq!((answer.status, taken), (413, 3));
        let problem = answer.problem("request-too-large");
        assert!(problem["detail"].as_str().unwrap().contains("10 bytes at most"), "{problem}");
    }
    assert_eq!((count.now(), setup.records.record_count()), (0, 0));
    assert_eq!(app.send(post("k-0", "0123456789")).await.text(), "1 after 10 bytes");
}

// cases 125, 126
#[tokio::test]
async fn unless_another_limit_is_chosen_it_is_a_mebibyte_each_way() {
    let mebibyte = 1024 * 1024;
    assert_eq!(idem_tower::DEFAULT_MAX_BYTES, mebibyte);
    let setup = Setup::new();
    let app = setup.app(on_post(|body: Bytes| async move { body }).layer(DefaultBodyLimit::disable()));
    let body = vec![b'a'; mebibyte];
    for is_replay in [false, true] {
        let answer = app.send(post("k", body.clone())).await;
        assert_eq!((answer.status, answer.body.len(), answer.is_replay()), (200, mebibyte, is_replay));
    }
    app.send(post("k-2", [&body[..], b"a"].concat())).await.problem("request-too-large");

    let app = setup.app(on_post(move || async move { vec![b'a'; mebibyte + 1] }));
    assert_eq!(app.send(post("k-3", "")).await.body.len(), mebibyte + 1);
    app.send(post("k-3", "")).await.problem("response-not-retained");
}

// case 126
#[tokio::test]
async fn a_request_that_announces_more_than_the_limit_is_refused_unread() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(counting(&count));
    let answer = app.send(post("k", vec![b' '; 1024 * 1024 + 1])).await;
    assert_eq!(answer.status, 413);
    answer.problem("request-too-large");
    assert_eq!(count.now(), 0);
}

#[tokio::test]
async fn a_limit_outside_of_the_layer_is_a_limit_all_the_same() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(counting(&count));
    let limited = Limited::new(Chunks::of(&["1234", "5678"]), 6);
    let answer = app.send(post("k", Body::new(limited))).await;
    assert_eq!(answer.status, 413);
    answer.problem("request-too-large");
}

#[tokio::test]
async fn an_upload_that_breaks_off_claims_nothing_and_can_be_sent_again_under_its_key() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(counting(&count));
    let answer = app.send(post("k", Body::new(Chunks::of(&["half"]).then_break_off()))).await;
    assert_eq!(answer.status, 400);
    answer.problem("request-incomplete");
    assert_eq!((count.now(), setup.records.record_count()), (0, 0));
    assert_eq!(app.send(post("k", "half and half")).await.text(), "1 after 13 bytes");
}

// case 125
#[tokio::test]
async fn a_response_over_the_limit_goes_out_whole_and_its_retry_does_not_run() {
    let (setup, count) = (Setup::new(), Count::default());
    let runs = count.clone();
    let handler = move || async move {
        runs.up();
        Response::builder().status(201).header("location", "/1").body(Body::new(Chunks::of(&["1234567"; 5]))).unwrap()
    };
    let app = setup.app_under(setup.layer().max_response_bytes(16), on_post(handler));
    let first = app.send(post("k", "{}")).await;
    assert_eq!((first.status, first.text()), (201, &*"1234567".repeat(5)));
    assert_eq!(first.header("location"), Some("/1"));

    let again = app.send(post("k", "{}")).await;
    assert_eq!((again.status, again.header("retry-after")), (409, None));
    again.problem("response-not-retained");
    let State::Done(recorded) = setup.record("k").await.state else { panic!("not done") };
    assert_eq!((recorded.status(), recorded.body()), (201, &Kept::NotRetained(NotRetained::TooLarge)));
    assert_eq!(count.now(), 1);
}

#[tokio::test]
async fn a_request_that_the_hook_refuses_leaves_no_record_and_gets_the_hooks_answer() {
    let (setup, count) = (Setup::new(), Count::default());
    let layer = setup.layer().validate(|parts, body| {
        assert_eq!(parts.method, "POST");
        match body.starts_with(b"{") {
            true => Ok(()),
            false => Err(Refusal::from(Response::builder().status(400).body("no object").unwrap())),
        }
    });
    let app = setup.app_under(layer, counting(&count));
    let refused = app.send(post("k", "[]")).await;
    assert_eq!((refused.status, refused.text()), (400, "no object"));
    assert_eq!((count.now(), setup.records.record_count()), (0, 0));
    assert_eq!(app.send(post("k", "{}")).await.text(), "1 after 2 bytes");
}

#[tokio::test]
async fn a_request_passes_every_check_in_its_order() {
    let (setup, count) = (Setup::new(), Count::default());
    let layer = setup
        .layer()
        .max_request_bytes(4)
        .validate(|_, _| Err(Refusal::from(Response::builder().status(418).body("refused").unwrap())));
    let app = setup.app_under(layer, counting(&count));
    let bad_key_and_too_large = || post("two keys", "12345");
    app.send(with(bad_key_and_too_large(), "x-api-key", "anonymous")).await.problem("principal-missing");
    app.send(bad_key_and_too_large()).await.problem("idempotency-key-malformed");
    app.send(post("k", "12345")).await.problem("request-too-large");
    assert_eq!(app.send(post("k", "1234")).await.status, 418);
    assert_eq!((count.now(), setup.records.record_count()), (0, 0));
}
