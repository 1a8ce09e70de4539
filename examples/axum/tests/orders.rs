//! Orders, and orders again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use axum::{Router, body::Body, http::Request, response::Response};
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

    async fn send(&self, customer: Option<&str>, key: &str, body: &str) -> Response {
        let mut request = Request::post("/orders")
            .header("idempotency-key", key)
            .header("content-type", "application/json")
            .body(Body::from(body.to_owned()))
            .unwrap();
        if let Some(customer) = customer {
            request.headers_mut().insert("x-api-key", customer.parse().unwrap());
        }
        self.app.clone().oneshot(request).await.unwrap()
    }

    /// Status, whether it is a replay, and the body.
    async fn order(&self, customer: &str, key: &str, body: &str) -> (u16, bool, String) {
        let response = self.send(Some(customer), key, body).await;
        let (status, is_replay) = (response.status().as_u16(), response.headers().contains_key("idempotent-replayed"));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, is_replay, String::from_utf8(body.to_vec()).unwrap())
    }

    fn database(&self) -> Connection {
        Connection::open(self.folder.path().join("orders.db")).unwrap()
    }

    fn rows(&self) -> i64 {
        self.database().query_row("SELECT count(*) FROM orders", [], |row| row.get(0)).unwrap()
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

#[tokio::test]
async fn first_answer_and_replay_say_what_they_are_and_the_row_says_whose_it_is() {
    let place = Place::new();
    for _ in 0..2 {
        let answer = place.send(Some("anna"), "k-1", TEA).await;
        assert_eq!(answer.headers()["content-type"], "application/json");
    }
    let row = place.database().query_row("SELECT customer, article, pieces FROM orders", [], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(2)?))
    });
    assert_eq!(row.unwrap(), ("anna".into(), "tea".into(), 2));
}

// case 030
#[tokio::test]
async fn whoever_is_nobody_gets_401_and_no_replay() {
    let place = Place::new();
    assert_eq!(place.order("anna", "k-1", TEA).await.0, 201);
    let refused = place.send(None, "k-1", TEA).await;
    // Of the authentication outside, and not of the layer.
    assert_eq!((refused.status().as_u16(), refused.headers().get("content-type")), (401, None));
    assert_eq!(place.rows(), 1);
}

// case 100
#[tokio::test]
async fn a_failure_of_the_database_passes_and_the_retry_orders() {
    let place = Place::new();
    place.database().execute_batch("ALTER TABLE orders RENAME TO elsewhere").unwrap();
    let failed = place.send(Some("anna"), "k-1", TEA).await;
    assert_eq!((failed.status().as_u16(), &failed.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    place.database().execute_batch("ALTER TABLE elsewhere RENAME TO orders").unwrap();
    assert_eq!((place.order("anna", "k-1", TEA).await.0, place.rows()), (201, 1));
}
