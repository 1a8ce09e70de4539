//! Leases and retentions by the server's own clock, as it runs.
//!
//! What is checked is exact however busy the machine is: an end lies between two instants, before the operation that set
//! it was sent and after it was answered, and an answer is judged only where it can't have been right.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use idem_core::{Answer, Checkpoint, Fenced, OnLapse, Record, Resolve, Retention, State, Store};
use idem_redis::RedisStore;
use test_servers::{PrivateRedis, RedisSettings, redis};
use tokio::time::sleep;

use crate::common::{
    Place, claim, claim_of, complete, granted, key, own, record, response, retention, scope, token, word,
};

const LEASE: Duration = Duration::from_secs(1);

/// Two clocks that count alike may cut milliseconds at different points.
const GRAIN: Duration = Duration::from_millis(3);

/// When an operation happened.
struct Between(Instant, Instant);

async fn timed<T>(operation: impl Future<Output = T>) -> (T, Between) {
    let before = Instant::now();
    let answer = operation.await;
    (answer, Between(before, Instant::now()))
}

/// Asks until the answer is another than Conflict or Replay, and checks that this was `length` after `set`.
async fn ends_after(store: &RedisStore, name: &str, set: Between, length: Duration) -> Answer {
    let mut early = 0;
    loop {
        let (answer, Between(before, after)) = timed(claim(store, &claim_of(name).with_lease(LEASE))).await;
        match answer {
            Answer::Conflict { left, .. } => {
                let left = left.unwrap();
                assert!(
                    left > Duration::ZERO && after + left + GRAIN >= set.0 + length,
                    "{name}: {left:?} is too short"
                );
                assert!(before + left <= set.1 + length + GRAIN, "{name}: {left:?} is too long");
            }
            Answer::Replay { .. } => {}
            ended => {
                assert!(after + GRAIN >= set.0 + length, "{name}: it ended after {:?}", after - set.0);
                assert!(early > 0, "{name}: it was over before it was asked for");
                return ended;
            }
        }
        assert!(before <= set.1 + length + GRAIN, "{name}: it was live after {:?}", before - set.1);
        early += 1;
        sleep(Duration::from_millis(10)).await;
    }
}

// cases 084, 086
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_live_to_its_end_and_over_from_then_on_whatever_began_it() {
    let place = Place::new("leases");
    let (store, other) = (place.open().await, place.open().await);

    let (first, claimed) = timed(own(&store, &claim_of("k").with_lease(LEASE))).await;
    let second = granted(ends_after(&other, "k", claimed, LEASE).await);
    assert_eq!(second.number(), 2);
    assert_eq!(store.renew(&first, LEASE).await.unwrap(), Fenced::Superseded);

    // After a renewal, to less and to more than was left.
    for lease in [LEASE / 2, 2 * LEASE] {
        let owner = own(&store, &claim_of(&format!("renewed {lease:?}")).with_lease(LEASE)).await;
        sleep(LEASE / 4).await;
        let (renewed, when) = timed(store.renew(&owner, lease)).await;
        assert_eq!(renewed.unwrap(), Fenced::Written(()));
        assert_eq!(word(&ends_after(&other, &format!("renewed {lease:?}"), when, lease).await), "TakenOver");
    }

    // After a renewal past the expiry, which begins another time to live, some time after the claim.
    let short = claim_of("past the expiry").with_lease(LEASE).with_retention(Retention::new(2 * LEASE));
    let owner = own(&store, &short).await;
    sleep(LEASE / 2).await;
    let (renewed, when) = timed(store.renew(&owner, 3 * LEASE)).await;
    assert_eq!(renewed.unwrap(), Fenced::Written(()));
    assert_eq!(word(&ends_after(&other, "past the expiry", when, 3 * LEASE).await), "Claimed");

    // After a checkpoint, which moves nothing.
    let (owner, when) = timed(own(&store, &claim_of("noted").with_lease(LEASE))).await;
    sleep(LEASE / 2).await;
    store.checkpoint(&owner, &Checkpoint::new("step", "done").unwrap()).await.unwrap();
    assert_eq!(word(&ends_after(&other, "noted", when, LEASE).await), "TakenOver");

    // A claim after a release, and one that is repeated under its token.
    let owner = own(&store, &claim_of("released")).await;
    assert_eq!(store.release(&owner).await.unwrap(), Fenced::Written(()));
    let again = claim_of("released").with_lease(LEASE);
    let (grant, when) = timed(claim(&store, &again)).await;
    assert_eq!(granted(grant).number(), 2);
    assert_eq!(word(&ends_after(&other, "released", when, LEASE).await), "TakenOver");
    let repeated = claim_of("repeated").with_lease(LEASE);
    own(&store, &repeated).await;
    sleep(LEASE / 2).await;
    let (grant, when) = timed(claim(&store, &repeated)).await;
    assert_eq!(granted(grant).number(), 1);
    assert_eq!(word(&ends_after(&other, "repeated", when, LEASE).await), "TakenOver");

    // A takeover, whose instants only the client told.
    own(&store, &claim_of("taken").with_lease(Duration::from_millis(1))).await;
    sleep(Duration::from_millis(20)).await;
    let (grant, when) = timed(claim(&store, &claim_of("taken").with_lease(LEASE))).await;
    assert_eq!(word(&grant), "TakenOver");
    assert_eq!(granted(ends_after(&other, "taken", when, LEASE).await).number(), 3);
}

// case 086
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_is_replayed_to_the_end_of_its_retention_and_absent_from_then_on() {
    let place = Place::new("retention");
    let (store, other) = (place.open().await, place.open().await);
    let owner = own(&store, &claim_of("k").with_lease(Duration::from_millis(100))).await;
    let (completed, when) = timed(store.complete(&owner, &response(), Retention::new(LEASE))).await;
    assert_eq!(completed.unwrap(), Fenced::Written(response()));
    assert_eq!(granted(ends_after(&other, "k", when, LEASE).await).number(), 1);
    assert_eq!(store.complete(&owner, &response(), retention()).await.unwrap(), Fenced::Superseded);
}

/// What the server has left for a record must be what the record says.
async fn assert_expiry(place: &Place, store: &RedisStore, name: &str, after: &str, length: Duration, set: &Between) {
    let (left, Between(before, asked)) = timed(async { redis().command(&["PTTL", &place.name(name)]).integer() }).await;
    let left = Duration::from_millis(u64::try_from(left).unwrap_or_else(|_| panic!("no expiry after {after}: {left}")));
    assert!(asked + left + GRAIN >= set.0 + length, "{after}: {left:?} is too short");
    assert!(before + left <= set.1 + length + GRAIN, "{after}: {left:?} is too long");
    let found = store.read(&scope(), &key(name)).await.unwrap().unwrap();
    let says = found.record.expiry.since(found.now);
    assert!(says.abs_diff(left) < Duration::from_secs(10), "{after}: it says {says:?}, and the server {left:?}");
}

// case 038
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_write_leaves_an_expiry_and_the_right_one() {
    let place = Place::new("expiry");
    let store = place.open().await;
    let hour = Duration::from_secs(60 * 60);
    let (short, long) = (Retention::new(hour).with_held(7 * hour), Retention::new(2 * hour).with_held(9 * hour));
    let claim_of = |name: &str| claim_of(name).with_retention(short);

    let (owner, claimed) = timed(own(&store, &claim_of("k"))).await;
    assert_expiry(&place, &store, "k", "claim", hour, &claimed).await;
    let note = Checkpoint::new("step", "done").unwrap();
    store.checkpoint(&owner, &note).await.unwrap();
    assert_expiry(&place, &store, "k", "checkpoint", hour, &claimed).await;
    store.renew(&owner, Duration::from_secs(60)).await.unwrap();
    assert_expiry(&place, &store, "k", "renewal", hour, &claimed).await;
    let (_, renewed) = timed(store.renew(&owner, 3 * hour)).await;
    assert_expiry(&place, &store, "k", "a renewal past the retention", 3 * hour, &renewed).await;
    store.release(&owner).await.unwrap();
    assert_expiry(&place, &store, "k", "release", 3 * hour, &renewed).await;
    let (grant, again) = timed(claim(&store, &claim_of("k"))).await;
    assert_expiry(&place, &store, "k", "a claim after a release", hour, &again).await;
    let (_, held) = timed(store.hold(granted(grant).owner(), long)).await;
    assert_expiry(&place, &store, "k", "hold", 9 * hour, &held).await;
    let seen = record(&store, "k").await.unwrap().attempt();
    let resolve = Resolve::new(scope(), key("k"), seen, token()).with_retention(short);
    let (resolved, when) = timed(idem_core::resolve(&store, &resolve)).await;
    let Fenced::Written(resolved) = resolved.unwrap() else { panic!("nobody else resolves it") };
    assert_expiry(&place, &store, "k", "resolve", 7 * hour, &when).await;
    let (_, done) = timed(store.complete(resolved.owner(), &response(), long)).await;
    assert_expiry(&place, &store, "k", "complete", 2 * hour, &done).await;

    let (owner, forgotten) = timed(own(&store, &claim_of("forgotten"))).await;
    store.forget(&owner).await.unwrap();
    assert_expiry(&place, &store, "forgotten", "forget", hour, &forgotten).await;
    let (_, when) = timed(own(&store, &claim_of("under hold").with_on_lapse(OnLapse::Hold))).await;
    assert_expiry(&place, &store, "under hold", "a claim under hold", 7 * hour, &when).await;
    let lapsing = claim_of("lapsing").with_lease(Duration::from_millis(1));
    own(&store, &lapsing).await;
    sleep(Duration::from_millis(20)).await;
    let (grant, when) = timed(claim(&store, &claim_of("lapsing"))).await;
    assert_eq!(word(&grant), "TakenOver");
    assert_expiry(&place, &store, "lapsing", "takeover", hour, &when).await;
    let repeated = claim_of("repeated");
    let (_, when) = timed(own(&store, &repeated)).await;
    own(&store, &repeated).await;
    assert_expiry(&place, &store, "repeated", "a repeated claim", hour, &when).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_durations_are_kept() {
    let place = Place::new("longest");
    let store = place.open().await;
    let endless = Retention::new(Duration::MAX).with_held(Duration::MAX);
    let owner = own(&store, &claim_of("k").with_lease(Duration::MAX).with_retention(endless)).await;
    assert_eq!(store.renew(&owner, Duration::MAX).await.unwrap(), Fenced::Written(()));
    assert_eq!(word(&claim(&store, &claim_of("k")).await), "Conflict");
    assert_eq!(store.hold(&owner, endless).await.unwrap(), Fenced::Written(()));
    let resolve =
        Resolve::new(scope(), key("k"), owner.attempt(), token()).with_lease(Duration::MAX).with_retention(endless);
    let Fenced::Written(resolved) = idem_core::resolve(&store, &resolve).await.unwrap() else { panic!("superseded") };
    assert_eq!(store.complete(resolved.owner(), &response(), endless).await.unwrap(), Fenced::Written(response()));
    let found = record(&store, "k").await.unwrap();
    assert_eq!(found.state, State::Done(response()));
    assert!(redis().command(&["PTTL", &place.name("k")]).integer() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_clock_that_is_moved_by_hand_nothing_ends_by_the_servers() {
    let place = Place::new("by-hand");
    let store = place.builder().clock(place.clock.clone()).build().unwrap();
    let short = Duration::from_millis(2);
    let keep = Retention::new(short).with_held(short);
    let stays = |name: &str| redis().command(&["PTTL", &place.name(name)]).integer() > 60 * 60 * 1_000;
    let of = |name: &str| claim_of(name).with_lease(short).with_retention(keep);

    let owner = own(&store, &of("completed")).await;
    assert!(stays("completed"), "after the claim");
    assert_eq!(store.renew(&owner, 2 * short).await.unwrap(), Fenced::Written(()));
    assert!(stays("completed"), "after a renewal past the expiry");
    store.complete(&owner, &response(), keep).await.unwrap();
    assert!(stays("completed"), "after the completion");
    let owner = own(&store, &of("held").with_retention(Retention::new(LEASE))).await;
    assert_eq!(store.hold(&owner, keep).await.unwrap(), Fenced::Written(()));
    assert!(stays("held"), "after a hold, which moves the expiry");
}

/// Writes a record as one whose instants were told by a clock that was behind by `millis`.
fn set_back(place: &Place, name: &str, millis: i64) {
    const INSTANTS: [usize; 5] = [28, 44, 52, 60, 68]; // base, lease end, claimed, settled, expiry
    let mut value = redis().command(&["GET", &place.name(name)]).bytes().to_vec();
    for at in INSTANTS {
        let instant = i64::from_be_bytes(value[at..at + 8].try_into().unwrap()) - millis;
        value[at..at + 8].copy_from_slice(&instant.to_be_bytes());
    }
    let name = place.name(name);
    redis().command(&[b"SET", name.as_bytes(), &value, b"KEEPTTL"]);
}

// case 084
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_goes_on_however_far_its_instants_are_behind_what_a_client_takes_for_now() {
    const DAYS: i64 = 10 * 24 * 60 * 60 * 1_000;
    let place = Place::new("skewed");
    let store = place.open().await;
    for (name, skew) in [("behind", DAYS), ("ahead", -DAYS)] {
        // Released: the next attempt is the second, and is told that it is a repeat.
        let released = format!("{name} released");
        let owner = own(&store, &claim_of(&released)).await;
        let note = Checkpoint::new("step", "done").unwrap();
        store.checkpoint(&owner, &note).await.unwrap();
        store.release(&owner).await.unwrap();
        set_back(&place, &released, skew);
        let grant = granted(claim(&store, &claim_of(&released)).await);
        assert_eq!((grant.number(), grant.is_repeat(), grant.checkpoints().is_empty()), (2, true, false), "{name}");
        // Lapsed, held, in progress and done.
        let lapsed = format!("{name} lapsed");
        own(&store, &claim_of(&lapsed).with_lease(Duration::from_millis(1))).await;
        sleep(Duration::from_millis(20)).await;
        set_back(&place, &lapsed, skew);
        assert_eq!(granted(claim(&store, &claim_of(&lapsed)).await).number(), 2, "{name}");
        let held = format!("{name} held");
        let short = Retention::new(Duration::from_secs(20)).with_held(Duration::from_secs(20));
        let owner = own(&store, &claim_of(&held).with_lease(Duration::from_secs(60 * 60))).await;
        store.hold(&owner, short).await.unwrap();
        set_back(&place, &held, skew);
        assert_eq!(word(&claim(&store, &claim_of(&held)).await), "Unknown", "{name}");
        let leased = format!("{name} leased");
        let owner = own(&store, &claim_of(&leased).with_lease(Duration::from_secs(60))).await;
        set_back(&place, &leased, skew);
        assert_eq!(word(&claim(&store, &claim_of(&leased)).await), "Conflict", "{name}");
        complete(&store, &owner).await;
        set_back(&place, &leased, skew);
        assert_eq!(word(&claim(&store, &claim_of(&leased)).await), "Replay", "{name}");
        // Claimed again under its token: the lease goes on from now, and nothing else is moved.
        let repeated = format!("{name} repeated");
        let lease = Duration::from_secs(60);
        let first = claim_of(&repeated).with_lease(lease);
        own(&store, &first).await;
        let kept = record(&store, &repeated).await.unwrap();
        set_back(&place, &repeated, skew);
        own(&store, &first).await;
        let found = store.read(&scope(), &key(&repeated)).await.unwrap().unwrap();
        let left = found.record.lease_end.since(found.now);
        assert!(left <= lease && left > lease / 2, "{name}: {left:?}");
        let stays = |record: &Record| record.expiry.since(record.claimed);
        assert_eq!(stays(&found.record), stays(&kept), "{name}");
    }
}

/// The server shows a value in the millisecond of its end too; a record is over by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_is_over_at_its_end_and_not_a_millisecond_later() {
    let place = Place::new("exactly");
    let store = place.open().await;
    for number in 0..20 {
        let name = format!("k-{number}");
        let hour = Duration::from_secs(60 * 60);
        let owner = own(&store, &claim_of(&name).with_lease(LEASE).with_retention(Retention::new(hour))).await;
        let claimed = store.read(&scope(), &key(&name)).await.unwrap().unwrap();
        store.complete(&owner, &response(), Retention::new(hour)).await.unwrap();
        let done = store.read(&scope(), &key(&name)).await.unwrap().unwrap();
        for found in [claimed, done] {
            let begun = found.record.settled.unwrap_or(found.record.claimed);
            assert_eq!(found.record.expiry.since(begun), hour);
        }
        let left = redis().command(&["PTTL", &place.name(&name)]).integer();
        let ends = redis().command(&["PEXPIRETIME", &place.name(&name)]).integer();
        assert!(left < 60 * 60 * 1_000 && ends > 0);
        let done = record(&store, &name).await.unwrap();
        // The last instant at which the server shows it, by its own clock, is the last at which it is live.
        let value = redis().command(&["GET", &place.name(&name)]);
        let base = i64::from_be_bytes(value.bytes()[28..36].try_into().unwrap());
        let ttl = i64::from_be_bytes(value.bytes()[36..44].try_into().unwrap());
        assert_eq!(base + ttl, done.expiry.as_millis() - 1);
    }
}

fn server_shows(server: &PrivateRedis) -> i64 {
    let time = server.command(&["TIME"]);
    time.list()[0].integer() * 1_000 + time.list()[1].integer() / 1_000
}

// case 084
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_claim_never_says_that_it_is_later_than_the_servers_clock_shows() {
    const PAUSE: Duration = Duration::from_millis(300);
    let server = PrivateRedis::start(RedisSettings::new());
    for paused in [false, true] {
        // Without a check, so that the first look at the clock waits for the connection, and maybe for the server.
        let store = RedisStore::builder(&server.url()).timeout(Duration::from_secs(30)).build().unwrap();
        let name = format!("paused {paused}");
        if paused {
            server.pause();
        }
        let first = {
            let (store, claim) = (store.clone(), claim_of(&name));
            tokio::spawn(async move { own(&store, &claim).await })
        };
        if paused {
            sleep(PAUSE).await;
            server.resume();
        }
        first.await.unwrap();
        let claimed = record(&store, &name).await.unwrap().claimed.as_millis();
        let now = server_shows(&server);
        assert!(claimed <= now + 1, "{name}: it says {claimed}, and the server shows {now}");

        let before = server_shows(&server);
        let (_, when) = timed(own(&store, &claim_of(&format!("{name}, second")))).await;
        let claimed = record(&store, &format!("{name}, second")).await.unwrap().claimed.as_millis();
        let now = server_shows(&server);
        // The look at the clock took about as long as this, give or take what a busy machine does.
        let slack = 1_000 + i64::try_from((when.1 - when.0).as_millis()).unwrap();
        assert!((before - slack..=now + 1).contains(&claimed), "{name}: {claimed} is not from {before} to {now}");
    }
}
