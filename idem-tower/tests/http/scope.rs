//! Whose key it is.

use axum::{http::HeaderMap, routing::post as on_post};
use idem_core::{FingerprintKey, Scope};
use idem_tower::{Anonymous, IdempotencyLayer};

use crate::support::{Count, Setup, post, with, without};

/// Answers with the caller, and how often the handler ran.
fn counting(count: &Count) -> axum::routing::MethodRouter {
    let count = count.clone();
    on_post(move |headers: HeaderMap| async move {
        let caller = headers["x-api-key"].to_str().unwrap().to_owned();
        format!("{caller}: {}", count.up())
    })
}

// case 030
#[tokio::test]
async fn the_same_key_of_another_tenant_is_another_key() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(counting(&count));
    assert_eq!(app.send(post("k", "{}")).await.text(), "tenant-7: 1");
    assert_eq!(app.send(with(post("k", "{}"), "x-api-key", "tenant-8")).await.text(), "tenant-8: 2");
    for (tenant, stored) in [("tenant-7", "tenant-7: 1"), ("tenant-8", "tenant-8: 2")] {
        let answer = app.send(with(post("k", "{}"), "x-api-key", tenant)).await;
        assert_eq!((answer.text(), answer.is_replay()), (stored, true));
    }
}

// case 030
#[tokio::test]
async fn a_revoked_token_gets_401_and_its_record_is_not_even_looked_at() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(counting(&count));
    assert_eq!(app.send(post("k", "{}")).await.status, 200);
    let calls = setup.store.calls.load(std::sync::atomic::Ordering::SeqCst);
    for revoked in [with(post("k", "{}"), "x-api-key", "revoked"), without(post("k", "{}"), "x-api-key")] {
        let answer = app.send(revoked).await;
        assert_eq!((answer.status, answer.text()), (401, "who are you?"));
    }
    assert_eq!(setup.store.calls.load(std::sync::atomic::Ordering::SeqCst), calls);
    assert_eq!(count.now(), 1);
}

// case 031
#[tokio::test]
async fn without_a_principal_a_request_is_refused_unless_the_layer_is_told_otherwise() {
    let (setup, count) = (Setup::new(), Count::default());
    let app = setup.app(counting(&count));
    let answer = app.send(with(post("k", "{}"), "x-api-key", "anonymous")).await;
    assert_eq!(answer.status, 401);
    answer.problem("principal-missing");
    assert_eq!((count.now(), setup.records.record_count()), (0, 0));
}

// case 031
#[tokio::test]
async fn anonymous_clients_share_a_record_only_if_key_and_request_are_the_same() {
    let (setup, count) = (Setup::new(), Count::default());
    let key = FingerprintKey::new("2026", &[9; 32]).unwrap();
    let layer = setup.layer().anonymous(Anonymous::BindToFingerprint).fingerprint_key(key);
    let app = setup.app_under(layer, counting(&count));
    let anonymous = |body: &'static str| with(post("k", body), "x-api-key", "anonymous");
    assert_eq!(app.send(anonymous(r#"{"a":1,"b":2}"#)).await.text(), "anonymous: 1");
    assert_eq!(app.send(anonymous(r#"{"a":2,"b":2}"#)).await.text(), "anonymous: 2");
    let again = app.send(anonymous(r#"{ "b": 2, "a": 1 }"#)).await;
    assert_eq!((again.text(), again.is_replay()), ("anonymous: 1", true));
    assert_eq!(app.send(post("k", r#"{"a":1,"b":2}"#)).await.text(), "tenant-7: 3");
}

#[tokio::test]
async fn one_scope_for_everybody_must_be_typed_out() {
    let (setup, count) = (Setup::new(), Count::default());
    let layer = IdempotencyLayer::builder(setup.idempotency.clone(), |_| Some(Scope::global()));
    let app = setup.app_under(layer, counting(&count));
    assert_eq!(app.send(post("k", "{}")).await.text(), "tenant-7: 1");
    assert!(app.send(with(post("k", "{}"), "x-api-key", "tenant-8")).await.is_replay());
}
