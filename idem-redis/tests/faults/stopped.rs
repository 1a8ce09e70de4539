//! The server stands still, goes away, comes back; callers lose interest.

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::{BoxFuture, join, join_all};
use idem_core::{Checkpoint, Claim, Fenced, Resolve, Response, State, Store, StoreError};
use idem_redis::RedisStore;
use test_servers::{PrivateRedis, Proxy, RedisCluster, RedisSettings};
use tokio::time::{sleep, timeout};

use crate::common::{
    LEASE, PATIENCE, Place, assert_unavailable, claim, claim_of, complete, eventually, eventually_ok, granted, key,
    own, record, response, retention, rounds, scope, token, word,
};

/// A time limit that a server which answers keeps, and one that does not oversteps soon.
const LIMIT: Duration = Duration::from_millis(500);

/// What a busy machine may add to it.
const SLACK: Duration = Duration::from_secs(2);

fn unit<T>(answer: Result<T, StoreError>) -> Result<(), StoreError> {
    answer.map(|_| ())
}

// case 069
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_is_unavailable_in_time_and_nothing_is_owned_twice_afterwards() {
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "paused");
    let store = place.builder().timeout(LIMIT).connect().await.unwrap();
    let patient = place.open().await;
    let owner = own(&store, &claim_of("owned")).await;
    let held = own(&store, &claim_of("held")).await;
    assert_eq!(store.hold(&held, retention()).await.unwrap(), Fenced::Written(()));
    let claims: Vec<Claim> = (0..200).map(|number| claim_of(&format!("k-{number}"))).collect();
    let new = place.builder().timeout(LIMIT).build().unwrap();

    server.pause();
    let (checkpoint, one) = (Checkpoint::new("step", "done").unwrap(), NonZeroUsize::MIN);
    let resolve = Resolve::new(scope(), key("held"), held.attempt(), token());
    let completed = response();
    let mut operations: Vec<(&str, BoxFuture<'_, Result<(), StoreError>>)> = vec![
        ("complete", Box::pin(async { unit(store.complete(&owner, &completed, retention()).await) })),
        ("renew", Box::pin(async { unit(store.renew(&owner, LEASE).await) })),
        ("checkpoint", Box::pin(async { unit(store.checkpoint(&owner, &checkpoint).await) })),
        ("resolve", Box::pin(async { unit(store.resolve(&resolve).await) })),
        ("read", Box::pin(async { unit(store.read(&scope(), &key("owned")).await) })),
        ("wait", Box::pin(async { unit(store.wait(&scope(), &key("owned"), owner.attempt(), PATIENCE).await) })),
        ("lapsed", Box::pin(async { unit(store.lapsed(None, one).await) })),
        ("purge", Box::pin(async { unit(store.purge(&scope(), one).await) })),
        ("check", Box::pin(async { unit(store.check().await) })),
        ("check of a new store", Box::pin(async { unit(new.check().await) })),
    ];
    for claim in &claims {
        operations.push(("claim", Box::pin(async { unit(store.claim(claim).await) })));
    }
    for claim in &claims[..20] {
        operations.push(("claim through a new store", Box::pin(async { unit(new.claim(claim).await) })));
    }
    let begun = Instant::now();
    let operations = operations.into_iter().map(async |(what, operation)| {
        let error = assert_unavailable(operation.await);
        let took = begun.elapsed();
        assert!(took < 2 * LIMIT + SLACK, "{what} took {took:?}: {error}");
    });
    join_all(operations).await;
    server.resume();

    // What was sent may still be applied, before or after these.
    for abandoned in &claims {
        let rival = claim_of(abandoned.key().as_str());
        let (rivals, owns) = (claim(&patient, &rival).await, claim(&patient, abandoned).await);
        let owners = (word(&rivals), word(&owns));
        assert!([("Claimed", "Conflict"), ("Conflict", "Claimed")].contains(&owners), "{owners:?}");
        assert_eq!(record(&patient, abandoned.key().as_str()).await.unwrap().number, 1);
    }
    eventually("it works again", async || store.claim(&claim_of("another")).await.is_ok()).await;
    eventually("it works again", async || new.claim(&claim_of("another")).await.is_ok()).await;
    complete(&patient, &owner).await;
}

// case 069
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_server_that_stands_still_is_bounded_and_given_up_for_good() {
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "bounded");
    let store = Arc::new(place.builder().timeout(LIMIT).connect().await.unwrap());
    server.pause();
    let mut asked = 0;
    while asked < 60_000 {
        // Callers that lose interest long before the time limit.
        let claims: Vec<Claim> = (0..2_000).map(|number| claim_of(&format!("k-{asked}-{number}"))).collect();
        let _ = timeout(LIMIT / 10, join_all(claims.iter().map(|claim| store.claim(claim)))).await;
        asked += claims.len();
    }
    sleep(3 * LIMIT).await;
    server.resume();
    eventually("it works again", async || store.read(&scope(), &key("k")).await.is_ok()).await;
    // What was on the way is applied, which is as much as may be under way at a time, a few times over.
    let applied = server.command(&["DBSIZE"]).integer();
    assert!(applied <= 4 * 4096, "{applied} of {asked} claims were applied late");
    sleep(LIMIT).await;
    assert_eq!(server.command(&["DBSIZE"]).integer(), applied, "and nothing comes later");
}

// case 069
#[tokio::test]
async fn a_lone_call_is_answered_at_once_after_a_time_in_which_many_were_in_vain() {
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "lone");
    let store = place.builder().timeout(LIMIT).connect().await.unwrap();
    for _ in 0..3 {
        server.pause();
        // Calls begin just when others are given up, and with them the connection.
        let begun = Instant::now();
        while begun.elapsed() < 5 * LIMIT {
            for _ in 0..20 {
                let store = store.clone();
                tokio::spawn(async move { store.read(&scope(), &key("k")).await });
            }
            sleep(LIMIT / 50).await;
        }
        server.resume();
        // One after the other: nothing else moves them on.
        for _ in 0..3 {
            eventually_ok("it works again", async || store.read(&scope(), &key("k")).await).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_swallows_everything_is_replaced_under_load_too() {
    let place = Place::new("swallows");
    let proxy = Proxy::start(&place.url);
    let store = place.builder_through(&proxy.url_through(&place.url)).timeout(LIMIT).connect().await.unwrap();
    let before = proxy.connections();
    proxy.black_hole();
    // Something is sent all the time.
    let load = tokio::spawn({
        let store = store.clone();
        async move {
            loop {
                let store = store.clone();
                tokio::spawn(async move { store.read(&scope(), &key("k")).await });
                sleep(LIMIT / 50).await;
            }
        }
    });
    eventually("another connection is tried", async || proxy.connections() > before).await;
    proxy.cut_connections();
    proxy.lift();
    eventually("it works again", async || store.read(&scope(), &key("k")).await.is_ok()).await;
    load.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_swallows_everything_is_replaced() {
    let place = Place::new("black_hole");
    let proxy = Proxy::start(&place.url);
    let store = place.builder_through(&proxy.url_through(&place.url)).timeout(LIMIT).connect().await.unwrap();
    let owner = own(&store, &claim_of("k")).await;
    proxy.black_hole();
    assert_unavailable(store.renew(&owner, LEASE).await);
    assert_unavailable(store.complete(&owner, &response(), retention()).await);
    // What was sent meanwhile is lost for good.
    proxy.cut_connections();
    proxy.lift();
    eventually("it works again", async || store.read(&scope(), &key("k")).await.is_ok()).await;
    complete(&store, &owner).await;
}

/// A claim and a completion whose callers were told that they are unavailable, and what is there in the end without
/// anybody repeating them.
async fn is_applied_later(place: &Place, late: &RedisStore, stop: impl FnOnce(), go_on: impl FnOnce()) {
    let first = claim_of("first");
    // The server knows the script: of one that it does not know nothing can be applied late.
    complete(late, &own(late, &claim_of("before")).await).await;
    let owner = own(late, &claim_of("owned")).await;
    stop();
    let (claimed, completed) = join(late.claim(&first), async {
        // Behind it on the same connection.
        sleep(LIMIT / 5).await;
        late.complete(&owner, &response(), retention()).await
    })
    .await;
    assert_unavailable(claimed);
    assert_unavailable(completed);
    // Both callers have their answer by now, and nobody asks again.
    go_on();
    let direct = place.open().await;
    eventually("the claim is applied", async || record(&direct, "first").await.is_some()).await;
    eventually("the completion is applied", async || {
        record(&direct, "owned").await.unwrap().state != State::InProgress
    })
    .await;
    let found = record(&direct, "first").await.unwrap();
    assert_eq!((found.state, found.number, found.token), (State::InProgress, 1, first.token()));
    assert_eq!(record(&direct, "owned").await.unwrap().state, State::Done(response()));
    // Others see an owner and an answer; whoever repeats what he was told has failed gets what is there.
    assert_eq!(word(&claim(&direct, &claim_of("first")).await), "Conflict");
    assert_eq!(word(&claim(&direct, &claim_of("owned")).await), "Replay");
    eventually("it works again", async || late.read(&scope(), &key("k")).await.is_ok()).await;
    assert_eq!(granted(claim(late, &first).await).number(), 1);
    let again = late.complete(&owner, &Response::new(500), retention()).await.unwrap();
    assert_eq!(again, Fenced::Written(response()), "the recorded answer is the one that counts");
}

// case 063
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_timed_out_at_a_server_that_stood_still_is_applied_later_and_can_be_repeated() {
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "later");
    let late = place.builder().timeout(LIMIT).connect().await.unwrap();
    is_applied_later(&place, &late, || server.pause(), || server.resume()).await;
}

// case 063
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_timed_out_in_a_network_that_lost_everything_is_applied_later_and_can_be_repeated() {
    let place = Place::new("lost");
    // The claim and the completion may be on connections of their own, which the client has given up.
    let proxy = Proxy::start(&place.url);
    let late = place.builder_through(&proxy.url_through(&place.url)).timeout(LIMIT).connect().await.unwrap();
    is_applied_later(&place, &late, || proxy.black_hole(), || proxy.lift()).await;
}

// case 063
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_gets_to_late_changes_nothing_that_others_did_meanwhile() {
    let place = Place::new("late");
    let proxy = Proxy::start(&place.url);
    let late = place.builder_through(&proxy.url_through(&place.url)).timeout(LIMIT).connect().await.unwrap();
    let direct = place.open().await;
    // Each of these is in the state in which the late operation would be right.
    let lapsing = Duration::from_millis(1);
    let mut owners = Vec::new();
    for name in ["complete", "release", "renew", "takeover", "hold"] {
        owners.push(own(&late, &claim_of(name).with_lease(lapsing)).await);
    }
    sleep(20 * lapsing).await;
    proxy.black_hole();
    let (first, takeover) = (claim_of("first").with_lease(lapsing), claim_of("takeover"));
    let swallowed = response();
    let operations: Vec<BoxFuture<'_, Result<(), StoreError>>> = vec![
        Box::pin(async { unit(late.complete(&owners[0], &swallowed, retention()).await) }),
        Box::pin(async { unit(late.release(&owners[1]).await) }),
        Box::pin(async { unit(late.renew(&owners[2], LEASE).await) }),
        Box::pin(async { unit(late.claim(&takeover).await) }),
        Box::pin(async { unit(late.hold(&owners[4], retention()).await) }),
        Box::pin(async { unit(late.claim(&first).await) }),
    ];
    join_all(operations).await.into_iter().for_each(|answer| drop(assert_unavailable(answer)));
    // Meanwhile others own all of them, and some are done.
    let mut expected = Vec::new();
    for name in ["complete", "release", "renew", "takeover", "hold", "first"] {
        let owner = own(&direct, &claim_of(name)).await;
        if name != "renew" {
            complete(&direct, &owner).await;
        }
        expected.push((name, record(&direct, name).await.unwrap()));
    }
    proxy.lift();
    eventually("it works again", async || late.read(&scope(), &key("k")).await.is_ok()).await;
    // What had waited has been executed before what is asked through the proxy now.
    for (name, expected) in expected {
        assert_eq!(record(&late, name).await.unwrap(), expected, "{name}");
    }
    assert_eq!(late.renew(&owners[2], LEASE).await.unwrap(), Fenced::Superseded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_keeps_what_it_answered_and_is_found_again() {
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "killed");
    let store = place.builder().timeout(LIMIT).connect().await.unwrap();
    let other = place.open().await;
    for round in 0..rounds(3, 10) {
        let (done, claimed) = (format!("done-{round}"), claim_of(&format!("claimed-{round}")));
        complete(&store, &own(&store, &claim_of(&done)).await).await;
        let owner = own(&store, &claimed).await;
        server.kill();
        assert_unavailable(store.claim(&claim_of("k")).await);
        server.start_again();
        assert_eq!(word(&claim(&other, &claim_of(&done)).await), "Replay");
        assert_eq!(word(&claim(&other, &claim_of(&format!("claimed-{round}"))).await), "Conflict");
        eventually("it works again", async || store.read(&scope(), &key("k")).await.is_ok()).await;
        complete(&store, &owner).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn futures_that_are_dropped_shift_no_other_callers_reply() {
    let place = Place::new("dropped");
    let store = place.open().await;
    let mut all_claims = Vec::new();
    for round in 0..rounds(300, 3_000) {
        let claims: Vec<Claim> = (0..8).map(|number| claim_of(&format!("{round}-{number}"))).collect();
        let dropped = async {
            let all = join_all(claims.iter().map(|claim| store.claim(claim)));
            let _ = timeout(Duration::from_micros(40 * (round as u64 % 10)), all).await;
        };
        let kept = format!("kept-{round}");
        let owned = async {
            let owner = own(&store, &claim_of(&kept)).await;
            complete(&store, &owner).await;
            let found = store.read(&scope(), &key(&kept)).await.unwrap().unwrap();
            assert_eq!(found.record.attempt(), owner.attempt());
        };
        futures_util::future::join(dropped, owned).await;
        all_claims.extend(claims);
    }
    // Each was applied, or was not: repeated, it is the same claim, and nobody else's.
    for again in all_claims.iter().step_by(7) {
        let grant = granted(claim(&store, again).await);
        assert_eq!((grant.number(), grant.owner().attempt().token), (1, again.token()));
    }
}

// case 069
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_that_stands_still_keeps_no_operation_past_its_time() {
    let cluster = RedisCluster::start(3, 1);
    let place = Place::at(&cluster.url(), "node");
    let store = place.builder().timeout(LIMIT).connect().await.unwrap();
    let claim_all = async |round: &str| {
        let claims: Vec<Claim> = (0..60).map(|number| claim_of(&format!("{round}-{number}"))).collect();
        let begun = Instant::now();
        let mut answers = Vec::new();
        for answer in join_all(claims.iter().map(|claim| idem_core::claim(&store, claim))).await {
            answers.push(answer.map(|answer| word(&answer)));
        }
        let took = begun.elapsed();
        assert!(took < 2 * LIMIT + SLACK, "{took:?}");
        (claims, answers)
    };
    // A replica serves nobody.
    let replica = cluster.replica_of(&place.name("k"));
    replica.pause();
    let (_, answers) = claim_all("replica").await;
    assert!(answers.iter().all(|answer| *answer.as_ref().unwrap() == "Claimed"), "{answers:?}");
    replica.resume();
    cluster.await_agreement();

    // A master's keys are unavailable until its replica has taken its place.
    let master = cluster.owner(&place.name("k"));
    master.pause();
    let (mut claims, mut answers) = claim_all("master").await;
    for round in 0.. {
        if answers.iter().all(Result::is_ok) {
            break;
        }
        assert!(round < 200, "{answers:?}");
        sleep(LIMIT / 5).await;
        (claims, answers) = claim_all(&format!("after {round}")).await;
    }
    assert_ne!(cluster.owner(&place.name("k")).port(), master.port());
    master.resume();
    cluster.await_agreement();
    // Nobody else owns what was claimed.
    let other = place.open().await;
    for claimed in &claims {
        assert_eq!(word(&claim(&other, &claim_of(claimed.key().as_str())).await), "Conflict");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_is_woken_by_what_ends_the_attempt_elsewhere_and_ends_too_where_nothing_can_be_heard() {
    let server = PrivateRedis::start(RedisSettings::new().user("deaf", "pw", "~* +@all resetchannels"));
    let (url, deaf) = (server.url(), format!("redis://deaf:pw@127.0.0.1:{}", server.port()));
    let place = Place::at(&url, "woken");
    let (store, other) = (place.open().await, place.open().await);
    let deaf = place.builder_through(&deaf).build().unwrap();
    for round in 0..9 {
        let name = format!("k-{round}");
        let owner = own(&store, &claim_of(&name)).await;
        let (scope, key) = (scope(), key(&name));
        let ended = match round % 4 {
            0 => State::Done(response()),
            1 | 2 => State::Released,
            _ => State::Held,
        };
        let waits = async |store: &RedisStore| {
            let found = store.wait(&scope, &key, owner.attempt(), PATIENCE).await.unwrap().unwrap();
            assert_eq!(found.record.state, ended);
            Instant::now()
        };
        let ends = async {
            // Both listen by then, or will look once more when they do.
            sleep(Duration::from_millis(150)).await;
            let is_superseded = match round % 4 {
                0 => store.complete(&owner, &response(), retention()).await.map(|done| done == Fenced::Superseded),
                1 => store.release(&owner).await.map(|done| done == Fenced::Superseded),
                2 => store.forget(&owner).await.map(|done| done == Fenced::Superseded),
                _ => store.hold(&owner, retention()).await.map(|done| done == Fenced::Superseded),
            };
            assert!(!is_superseded.unwrap(), "nobody else has it");
            Instant::now()
        };
        let (woken, heard_nothing, done) = futures_util::future::join3(waits(&other), waits(&deaf), ends).await;
        // Far below the second after which it would look by itself.
        let late = woken.saturating_duration_since(done);
        assert!(round == 0 || late < Duration::from_millis(500), "woken {late:?} after the end, in round {round}");
        assert!(heard_nothing.saturating_duration_since(done) < PATIENCE);
    }
    let listening = server.command(&["PUBSUB", "NUMSUB", "woken:ended"]);
    // Each store that can has one connection for it, however many waits there are.
    assert_eq!(listening.list()[1].integer(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_in_its_time_while_the_server_says_nothing_to_a_subscription() {
    let server = PrivateRedis::start(RedisSettings::new());
    let place = Place::at(&server.url(), "unheard");
    let proxy = Proxy::start(&server.url());
    let limit = Duration::from_secs(20);
    let store = place.builder_through(&proxy.url_through(&server.url())).timeout(limit).build().unwrap();
    let owner = own(&store, &claim_of("k")).await;
    let other = place.open().await;
    // As a host that is gone: the connections that are there go on, and no new one is ever answered.
    proxy.ignore_new_connections();
    let begun = Instant::now();
    let found = store.wait(&scope(), &key("k"), owner.attempt(), Duration::from_millis(300)).await.unwrap().unwrap();
    assert_eq!(found.record.attempt(), owner.attempt());
    assert!(begun.elapsed() < limit / 2, "{:?}", begun.elapsed());
    // And it sees by itself what nobody says to it.
    let (scope, key) = (scope(), key("k"));
    let waits = store.wait(&scope, &key, owner.attempt(), PATIENCE);
    let (found, ()) = futures_util::future::join(waits, complete(&other, &owner)).await;
    assert_eq!(found.unwrap().unwrap().record.state, idem_core::State::Done(response()));
    assert!(begun.elapsed() < limit / 2, "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_became_a_replica_is_left_for_the_one_that_its_name_leads_to() {
    let (first, second) = (PrivateRedis::start(RedisSettings::new()), PrivateRedis::start(RedisSettings::new()));
    let place = Place::at(&first.url(), "demoted");
    // What a name in DNS or a virtual address is.
    let proxy = Proxy::start(&first.url());
    let store = place.builder_through(&proxy.url_through(&first.url())).timeout(LIMIT).connect().await.unwrap();
    own(&store, &claim_of("before")).await;
    first.follow(&second);
    assert_unavailable(store.claim(&claim_of("k")).await);
    proxy.lead_to(&second.url());
    // The connection is still there, and the server on it answers.
    eventually("the other server is found", async || store.claim(&claim_of("k")).await.is_ok()).await;
    assert_eq!(second.command(&["EXISTS", &place.name("k")]).integer(), 1);
}
