//! Many claims at once, through several stores.

use std::{collections::BTreeMap, num::NonZeroUsize, sync::Arc};

use futures_util::future::join_all;
use idem_core::{Answer, Response, Store};
use idem_postgres::PostgresStore;
use idem_runner::{Idempotency, OnConflict, Outcome, Request};
use test_servers::Proxy;
use tokio::sync::Barrier;

use crate::{
    at_every_level,
    common::{LEASE, PATIENCE, Place, claim_of, complete, fingerprint, key, own, record, rounds, scope, word},
};

at_every_level! {
    the_loser_of_an_insert_race_is_a_conflict_and_never_an_error,
    groups_of_claims_that_meet_do_not_wait_for_each_other,
    a_group_of_claims_inserts_in_the_order_of_the_names,
    a_group_of_claims_that_writes_some_and_finds_others_is_one_request,
    claims_of_a_key_in_demand_travel_together,
    the_loser_of_a_race_is_no_outage_to_the_runner,
    claims_that_meet_a_sweep_of_what_expired_are_all_claimed_once,
}

/// As many stores, and their groups.
async fn stores(place: &Place, count: usize) -> Vec<PostgresStore> {
    let mut stores = Vec::new();
    for _ in 0..count {
        stores.push(place.open().await);
    }
    stores
}

/// The same keys through all stores at once, in this order for each. Gives the words of the answers, for each key.
async fn race(stores: &[PostgresStore], orders: &[Vec<String>]) -> BTreeMap<String, Vec<&'static str>> {
    let barrier = Arc::new(Barrier::new(stores.len()));
    let racers = stores.iter().zip(orders).map(|(store, names)| {
        let (store, names, barrier) = (store.clone(), names.clone(), Arc::clone(&barrier));
        tokio::spawn(async move {
            barrier.wait().await;
            let claims: Vec<_> = names.iter().map(|name| claim_of(name)).collect();
            let answers = join_all(claims.iter().map(|claim| idem_core::claim(&store, claim))).await;
            let answers = answers.into_iter().map(|answer| word(&answer.expect("a rival is no failure")));
            names.into_iter().zip(answers).collect::<Vec<_>>()
        })
    });
    let mut words = BTreeMap::<String, Vec<_>>::new();
    for racer in join_all(racers).await {
        for (name, word) in racer.unwrap() {
            words.entry(name).or_default().push(word);
        }
    }
    words
}

// case 013
async fn the_loser_of_an_insert_race_is_a_conflict_and_never_an_error(place: Place, level: &'static str) {
    let stores = stores(&place, 4).await;
    let mut collisions = 0;
    for round in 0..rounds(5, 100) {
        // Each key twice through each store, so that rivals also meet within a group.
        let names: Vec<_> = (0..50).chain(0..50).map(|number| format!("k-{round}-{number}")).collect();
        for (name, mut words) in race(&stores, &vec![names; 4]).await {
            words.sort_unstable();
            assert_eq!(
                words,
                ["Claimed", "Conflict", "Conflict", "Conflict", "Conflict", "Conflict", "Conflict", "Conflict"],
                "{level}: {name}"
            );
            collisions += 7;
        }
    }
    assert!(collisions > 0);
}

async fn groups_of_claims_that_meet_do_not_wait_for_each_other(place: Place, level: &'static str) {
    let stores = stores(&place, 2).await;
    for round in 0..rounds(10, 300) {
        let names: Vec<_> = (0..64).map(|number| format!("k-{round}-{number}")).collect();
        let backwards = names.iter().rev().cloned().collect();
        for (name, mut words) in race(&stores, &[names, backwards]).await {
            words.sort_unstable();
            assert_eq!(words, ["Claimed", "Conflict"], "{level}: {name}");
        }
    }
    let deadlocks =
        format!("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database() AND '{level}' <> ''");
    assert_eq!(crate::common::number(&place.connect().await, &deadlocks).await, 0);
}

/// Claims these keys at once: the first goes alone, and the others travel together.
async fn claims_behind_one(store: &PostgresStore, names: &[String]) -> Vec<&'static str> {
    let claims: Vec<_> = names.iter().map(|name| claim_of(name)).collect();
    // So few are all polled, in this order, before the first can be answered.
    assert!(claims.len() <= 30);
    let answers = join_all(claims.iter().map(|claim| idem_core::claim(store, claim))).await;
    answers.into_iter().map(|answer| word(&answer.unwrap())).collect()
}

/// Two that met could wait for each other otherwise, until the first of them gave up.
async fn a_group_of_claims_inserts_in_the_order_of_the_names(place: Place, level: &'static str) {
    let store = place.open().await;
    let names: Vec<_> = (10..40).rev().map(|number| format!("k-{number}")).collect();
    assert_eq!(claims_behind_one(&store, &names).await, ["Claimed"; 30], "{level}");
    let client = place.connect().await;
    let inserted = format!("SELECT key FROM {} ORDER BY ctid", place.table);
    let inserted = client.query(&inserted, &[]).await.unwrap();
    let inserted: Vec<String> = inserted.iter().map(|row| row.get(0)).collect();
    assert_eq!(inserted[0], names[0], "{level}");
    assert!(inserted[1..].is_sorted(), "{level}: {inserted:?}");
}

async fn a_group_of_claims_that_writes_some_and_finds_others_is_one_request(place: Place, level: &'static str) {
    let proxy = Proxy::start(&place.url);
    let store = place.builder_through(&proxy.url_through(&place.url)).connect().await.unwrap();
    let names: Vec<_> = (0..30).map(|number| format!("k-{number}")).collect();
    for name in names.iter().step_by(2) {
        own(&store, &claim_of(name)).await;
    }
    let before = proxy.requests();
    let words = claims_behind_one(&store, &names).await;
    assert_eq!(words, ["Conflict", "Claimed"].repeat(15), "{level}");
    assert_eq!(proxy.requests() - before, 2, "{level}");
}

async fn claims_of_a_key_in_demand_travel_together(place: Place, level: &'static str) {
    let proxy = Proxy::start(&place.url);
    let store = place.builder_through(&proxy.url_through(&place.url)).connect().await.unwrap();
    for round in 0..2 {
        let name = format!("k-{round}");
        let claims: Vec<_> = (0..1000).map(|_| claim_of(&name)).collect();
        let before = proxy.requests();
        let answers = join_all(claims.iter().map(|claim| idem_core::claim(&store, claim))).await;
        let mut granted = Vec::new();
        for answer in answers {
            match answer.unwrap() {
                Answer::Claimed(grant) => granted.push(grant),
                other => assert_eq!(word(&other), "Conflict", "{level}"),
            }
        }
        assert_eq!(granted.len(), 1, "{level}");
        complete(&store, granted[0].owner()).await;
        let rivals: Vec<_> = (0..1000).map(|_| claim_of(&name)).collect();
        for answer in join_all(rivals.iter().map(|claim| idem_core::claim(&store, claim))).await {
            assert_eq!(word(&answer.unwrap()), "Replay", "{level}");
        }
        let requests = proxy.requests() - before;
        assert!(requests < 200, "{level}: {requests} requests for 2000 claims");
    }
}

// case 013
async fn the_loser_of_a_race_is_no_outage_to_the_runner(place: Place, level: &'static str) {
    let stores = stores(&place, 2).await;
    let runners = stores.iter().map(|store| {
        let builder = Idempotency::builder(Arc::new(store.clone())).on_conflict(OnConflict::Wait { at_most: PATIENCE });
        builder.build().unwrap()
    });
    let runners: Vec<_> = runners.collect();
    let runs = (0..100).flat_map(|number| {
        runners.iter().enumerate().map(move |(runner_number, runner)| async move {
            let request = Request::new(scope(), key(&format!("k-{number}")), fingerprint("the request"));
            let answer = Response::new(200).with_body(vec![runner_number as u8]);
            let outcome = runner.run(request, move |_| async move { Ok::<_, std::io::Error>(answer) }).await;
            match outcome {
                Outcome::Ran { reply, stored } => (number, true, stored, reply),
                Outcome::Replay { response, .. } => (number, false, true, response),
                other => panic!("{level}: {other:?}"),
            }
        })
    });
    let mut sent = BTreeMap::<i32, Vec<Response>>::new();
    let mut ran = 0;
    for (number, has_run, stored, response) in join_all(runs).await {
        assert!(stored);
        ran += u32::from(has_run);
        sent.entry(number).or_default().push(response);
    }
    assert_eq!(ran, 100, "{level}");
    assert!(sent.values().all(|responses| responses.iter().all(|response| *response == responses[0])));
    for runner in &runners {
        let counters = runner.counters();
        assert_eq!((counters.store_errors, counters.completion_retries), (0, 0), "{level}: {counters:?}");
    }
}

async fn claims_that_meet_a_sweep_of_what_expired_are_all_claimed_once(place: Place, level: &'static str) {
    let stores = stores(&place, 2).await;
    for round in 0..rounds(5, 100) {
        let names: Vec<_> = (0..100).map(|number| format!("k-{round}-{number}")).collect();
        for name in &names {
            let claim = claim_of(name).with_retention(idem_core::Retention::new(LEASE));
            own(&stores[0], &claim).await;
        }
        place.clock.advance(LEASE);
        let sweeping = {
            let store = stores[0].clone();
            tokio::spawn(async move { while store.sweep(NonZeroUsize::new(7).unwrap()).await.unwrap() > 0 {} })
        };
        for (name, mut words) in race(&stores, &[names.clone(), names]).await {
            words.sort_unstable();
            assert_eq!(words, ["Claimed", "Conflict"], "{level}: {name}");
            assert_eq!(record(&stores[0], &name).await.unwrap().number, 1, "{level}: {name}");
        }
        sweeping.await.unwrap();
    }
}
