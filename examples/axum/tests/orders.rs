//! Orders, and orders again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use axum::{Router, body::Body, http::Request};
use http_body_util::BodyExt;
use rusqlite::Connection;
use tempfile::TempDir;
use tower::ServiceExt;

struct Place {
    folder: TempDir,
    app: Router,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (app, _) = orders_axum::app(&folder.path().join("orders.db")).unwrap();
        Self { folder, app }
    }

    /// Status, whether it is a replay, and the body.
    async fn order(&self, customer: &str, key: &str, body: &str) -> (u16, bool, String) {
        let request = Request::post("/orders")
            .header("x-api-key", customer)
            .header("idempotency-key", key)
            .header("content-type", "application/json")
            .body(Body::from(body.to_owned()))
            .unwrap();
        let response = self.app.clone().oneshot(request).await.unwrap();
        let (status, is_replay) = (response.status().as_u16(), response.headers().contains_key("idempotent-replayed"));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, is_replay, String::from_utf8(body.to_vec()).unwrap())
    }

    fn rows(&self) -> i64 {
        let connection = Connection::open(self.folder.path().join("orders.db")).unwrap();
        connection.query_row("SELECT count(*) FROM orders", [], |row| row.get(0)).unwrap()
    }
}

const TEA: &str = r#"{"article": "tea", "pieces": 2}"#;

#[tokio::test]
async fn an_order_that_is_sent_again_is_one_order_and_one_answer() {
    let place = Place::new();
    let answer = r#"{"id":1,"article":"tea","pieces":2}"#.to_owned();
    assert_eq!(place.order("anna", "k-1", TEA).await, (201, false, answer.clone()));
    assert_eq!(place.order("anna", "k-1", TEA).await, (201, true, answer));
    assert_eq!(place.order("anna", "k-1", r#"{"article": "tea", "pieces": 3}"#).await.0, 422);
    assert_eq!(place.rows(), 1);
    assert_eq!(place.order("bert", "k-1", TEA).await.0, 201, "keys are each customer's own");
    assert_eq!(place.rows(), 2);
}

#[tokio::test]
async fn what_can_be_corrected_is_corrected_under_its_key() {
    let place = Place::new();
    assert_eq!(place.order("anna", "k-1", r#"{"article": "tea", "pieces": 0}"#).await.0, 400);
    assert_eq!((place.order("anna", "k-1", TEA).await.0, place.rows()), (201, 1));
}
