//! Statements are cancelled and sessions ended by someone else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::{join_all, join3};
use idem_core::Store;

use crate::{
    common::{Place, claim_of, complete, connect, eventually, key, number, own, rounds, scope},
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
    let enough = rounds(150, 800) as i64;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_were_ended_while_they_lay_idle_cost_no_answer() {
    let place = Place::new("ended_idle");
    let url = format!("{}?application_name=ended_idle", place.url);
    let store = place.builder_through(&url).connect().await.unwrap();
    let watcher = connect(&place.url).await;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'ended_idle'";
    for round in 0..rounds(20, 300) {
        // The one for claims, and several of the others.
        let owner = own(&store, &claim_of(&format!("k-{round}"))).await;
        join_all((0..4).map(async |_| store.read(&scope(), &key("k")).await.unwrap())).await;
        assert!(number(&watcher, end).await >= 2);
        // Whether the ends have been noticed by then or not.
        let claims: Vec<_> = (0..3).map(|number| claim_of(&format!("k-{round}-{number}"))).collect();
        let claiming = join_all(claims.iter().map(|claim| own(&store, claim)));
        let completing = async { complete(&store, &owner).await };
        let reading = join_all((0..4).map(async |_| store.read(&scope(), &key("k")).await.unwrap()));
        join3(claiming, completing, reading).await;
    }
}
