//! Servers that die in the middle of a payment.

use crate::server::{BODY, Place, Process, assert_replays, is_replay, json};

/// Short, since a retry waits it out.
const LEASE: [&str; 2] = ["--lease", "2s"];

// case 041
#[tokio::test]
async fn a_server_killed_after_the_charge_leaves_one_charge_and_one_payment() {
    for place in Place::lasting() {
        let provider = Process::provider().await;
        let options = [&LEASE[..], &["--provider", &provider.url]].concat();
        let server = place.serve(&options).await;
        let (answer, ()) = tokio::join!(server.try_pay("k-1", BODY, &[("x-delay-ms", "3600000")]), async {
            server.provider_called(1).await;
            server.signal("-KILL").await;
        });
        assert!(answer.is_err(), "{answer:?}");
        server.kill().await;

        let server = place.serve(&options).await;
        assert_eq!(server.record("k-1").await.unwrap()["state"], "in progress");
        let late = server.pay_until_answered("k-1", BODY).await;
        assert_eq!((late.status.as_u16(), is_replay(&late), &json(&late)["id"]), (201, false, &"1".into()));
        assert_eq!(server.totals().await, [2, 1, 1]);
        assert_eq!(server.record("k-1").await.unwrap()["takeovers"], 1);
        assert_replays(&server.pay("k-1", BODY, &[]).await, &late);
    }
}

#[tokio::test]
async fn a_server_that_aborts_on_request_is_taken_over_from_by_another_on_the_database() {
    for place in Place::lasting() {
        let provider = Process::provider().await;
        let options = [&LEASE[..], &["--provider", &provider.url]].concat();
        let (doomed, other) = (place.serve(&options).await, place.serve(&options).await);
        let cart = r#"{"amountMinor":250000,"currency":"VND","cartId":"cart-1"}"#;
        let answer = doomed.try_pay("k-1", cart, &[("x-crash", "after-charge")]).await;
        assert!(answer.is_err(), "{answer:?}");
        assert_eq!(doomed.ended().await, None, "it was ended by a signal");
        let late = other.pay_until_answered("k-1", cart).await;
        assert_eq!((late.status.as_u16(), is_replay(&late)), (201, false));
        assert_eq!(other.totals().await, [2, 1, 1]);
    }
}

/// Whether a row is there after a crash between the row and its commit, and that there is one after the retry.
async fn crashed_behind_the_row(place: &Place, rows_after_the_crash: u64) {
    let (provider, store) = (Process::provider().await, &place.store);
    let options = [&LEASE[..], &["--provider", &provider.url]].concat();
    let (doomed, other) = (place.serve(&options).await, place.serve(&options).await);
    let answer = doomed.try_pay("k-1", BODY, &[("x-crash", "after-row")]).await;
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(doomed.ended().await, None, "it was ended by a signal");
    assert_eq!(other.totals().await, [1, 1, rows_after_the_crash], "{store}");
    assert_eq!(other.record("k-1").await.unwrap()["state"], "in progress");
    let late = other.pay_until_answered("k-1", BODY).await;
    assert_eq!((late.status.as_u16(), is_replay(&late)), (201, false));
    let calls = 2 - rows_after_the_crash; // a row that is there is answered with
    assert_eq!(other.totals().await, [calls, 1, 1], "{store}");
    assert_replays(&other.pay("k-1", BODY, &[]).await, &late);
}

#[tokio::test]
async fn a_row_is_not_there_without_its_record_where_they_share_a_database() {
    for place in Place::sql() {
        crashed_behind_the_row(&place, 0).await;
    }
}

#[tokio::test]
async fn a_row_that_was_written_apart_from_its_record_is_found_by_the_next_attempt() {
    for place in Place::lasting() {
        let ledger = place.beside("ledger.db");
        crashed_behind_the_row(&place.with_ledger(ledger), 1).await;
    }
    for place in [Place::sqlite(), Place::redis()] {
        crashed_behind_the_row(&place.with_ledger(Place::postgres().store), 1).await;
    }
}

#[tokio::test]
async fn an_answer_survives_the_server_that_gave_it() {
    for place in Place::lasting() {
        let server = place.serve(&[]).await;
        let first = server.pay("k-1", BODY, &[]).await;
        server.kill().await;
        let server = place.serve(&[]).await;
        assert_replays(&server.pay("k-1", BODY, &[]).await, &first);
        assert_eq!(server.totals().await, [0, 0, 1], "a provider inside the server forgets with it, the row stays");
    }
}
