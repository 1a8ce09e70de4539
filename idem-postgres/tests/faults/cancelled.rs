//! Statements are cancelled and sessions ended by someone else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_core::Store;

use crate::{
    common::{Place, connect, eventually, key, rounds, scope},
    rivals::Rivals,
};

/// Does it to all sessions of an application, again and again with that pause, while clients compete
/// for keys.
async fn sabotaged(function: &str, pause: Duration) {
    let place = Place::new(function);
    let url = format!("{}?application_name={function}", place.url);
    let open = async || place.builder_through(&url).connect().await.unwrap();
    let stores = [open().await, open().await];
    let rivals = Rivals::start(&stores);
    let stop = Arc::new(AtomicBool::new(false));
    let saboteur = {
        let (saboteur, stop) = (connect(&place.url).await, Arc::clone(&stop));
        let sql = format!(
            "SELECT count({function}(pid)) FROM pg_stat_activity
            WHERE application_name = '{function}' AND query NOT LIKE '%pg_stat_activity%'"
        );
        tokio::spawn(async move {
            let mut hit = 0;
            while !stop.load(Ordering::SeqCst) {
                hit += saboteur.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0);
                tokio::time::sleep(pause).await;
            }
            hit
        })
    };
    let enough = rounds(300, 10_000) as i64;
    eventually("claims go on", async || place.count().await > enough).await;
    stop.store(true, Ordering::SeqCst);
    assert!(saboteur.await.unwrap() > 20);
    rivals.assert_each_key_has_one_owner(&place.open().await).await;
    for store in stores {
        store.read(&scope(), &key("k")).await.unwrap();
    }
}

// case 055
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_statements_end_in_right_answers() {
    sabotaged("pg_cancel_backend", Duration::from_millis(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminated_sessions_end_in_right_answers() {
    // Time to connect in between.
    sabotaged("pg_terminate_backend", Duration::from_millis(40)).await;
}
