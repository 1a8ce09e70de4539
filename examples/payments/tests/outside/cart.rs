//! One payment for a cart.

use crate::server::{Place, assert_replays, code, is_replay};

const BODY: &str = r#"{"amountMinor":250000,"currency":"VND","cartId":"cart-1"}"#;

#[tokio::test]
async fn a_second_payment_for_a_cart_is_the_services_own_409_without_a_charge_and_replays() {
    for place in Place::each() {
        let (server, store) = (place.serve(&[]).await, &place.store);
        let first = server.pay("k-1", BODY, &[]).await;
        assert_eq!(first.status, 201);
        let second = server.pay("k-2", BODY, &[]).await;
        assert_eq!((second.status.as_u16(), code(&second)), (409, "cart-already-paid".into()));
        assert_eq!((is_replay(&second), second.header("retry-after")), (false, None));
        assert_eq!(second.header("content-type"), Some("application/problem+json"));
        assert_replays(&server.pay("k-2", BODY, &[]).await, &second);
        assert_replays(&server.pay("k-1", BODY, &[]).await, &first);
        assert_eq!(server.totals().await, [1, 1, 1], "{store}");

        assert_eq!(server.pay_as("tenant-8", "k-1", BODY).await.status, 201, "carts are the tenant's own");
        assert_eq!(server.totals().await, [2, 2, 2], "{store}");
    }
}

#[tokio::test]
async fn a_repeated_attempt_finds_the_cart_that_it_reserved_itself() {
    for place in Place::each() {
        let (server, store) = (place.serve(&[]).await, &place.store);
        assert_eq!(server.pay("k-1", BODY, &[("x-fail", "503")]).await.status, 503);
        let rival = server.pay("k-2", BODY, &[]).await;
        assert_eq!((rival.status.as_u16(), code(&rival)), (409, "cart-already-paid".into()));
        assert_eq!(server.pay("k-1", BODY, &[]).await.status, 201);
        assert_eq!(server.totals().await, [2, 1, 1], "{store}");
    }
}
