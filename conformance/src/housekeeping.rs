//! Housekeeping: waiting for an attempt, sweeping, listing what waits for someone, purging, and the start-up check.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use idem_core::{AttemptId, Grant, Lapsed, OnLapse, Response, Retention, Scope, State, Store};

use crate::{
    Harness,
    expect::{absent, claimed, conflict, ok, present, replayed, taken_over, written},
    fidelity::odd_names,
    world::{World, key, scope},
};

/// Longer than anything takes that must happen at once. Only a store that breaks its contract makes anybody wait so
/// long.
const FOREVER: Duration = Duration::from_secs(60);
/// How soon "at once" is, to tell it from [`FOREVER`] and from nothing else.
const AT_ONCE: Duration = Duration::from_secs(20);

/// A wait ends with the record as soon as its attempt completes, through another handle too.
// case 006
pub async fn a_wait_is_ended_by_the_completion_through_another_handle(harness: &Harness) {
    let world = World::new(harness).await;
    let other = world.open().await;
    let grant =
        claimed(world.ask(&world.claim(&scope("tenant"), &key("k"))).await, "A claim of an unused key must be Claimed");
    let waits: Vec<_> = [world.store(), &other].into_iter().map(|store| waiting(store, &grant)).collect();
    // The waits are (most likely) on their way; if not, they find it changed. Both must hold.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let completed = other.complete(grant.owner(), &Response::new(201), Retention::default()).await;
    written(completed, "A completion by the owner must be Written");
    for wait in waits {
        let record = within(wait, "A wait must be ended by the completion of the attempt").await;
        let state = record.map(|record| record.state);
        assert_eq!(state, Some(State::Done(Response::new(201))), "A wait must end with the record as it is then");
    }
}

/// A wait is ended by a release, a hold, a takeover, a resolve and a purge as well: whatever takes the attempt off the
/// record.
pub async fn a_wait_is_ended_by_whatever_ends_the_attempt(harness: &Harness) {
    let world = World::new(harness).await;
    let other = world.open().await;
    let tenant = scope("tenant");
    for end in ["release", "forget", "hold", "takeover", "resolve", "purge"] {
        let claim = world.claim(&tenant, &key(end)).with_lease(world.lease());
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        let wait = waiting(world.store(), &grant);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let rule = "A write by the owner must be Written";
        match end {
            "release" => written(other.release(grant.owner()).await, rule),
            "forget" => written(other.forget(grant.owner()).await, rule),
            "hold" => written(other.hold(grant.owner(), Retention::default()).await, rule),
            "takeover" => {
                world.advance_to(grant.lease_end()).await;
                let next = idem_core::claim(&*other, &world.claim(&tenant, claim.key())).await;
                taken_over(next, "A lapsed record must be TakenOver");
            }
            "resolve" => {
                world.advance_to(grant.lease_end()).await;
                written(other.resolve(&world.resolve(&grant)).await, "A resolve of a lapsed record must be Written");
            }
            _ => drop(ok(other.purge(&tenant, NonZeroUsize::MAX).await)),
        }
        let record = within(wait, &format!("A wait must be ended by a {end}")).await;
        let attempt = record.map(|record| (record.attempt(), record.state));
        assert_ne!(
            attempt,
            Some((grant.owner().attempt(), State::InProgress)),
            "A wait that was ended by a {end} must not find the attempt in progress"
        );
    }
}

/// A change between the look and the wait is noticed at once: a wait for an attempt that is over, was never there, or is
/// of another number returns without waiting.
pub async fn a_wait_for_an_attempt_that_is_over_returns_at_once(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, k) = (scope("tenant"), key("k"));
    let nobody = AttemptId { token: world.token(), number: 1 };
    let none = within(waiting_for(world.store(), &tenant, &k, nobody), "A wait on an absent record must return").await;
    assert_eq!(none, None, "A wait on an absent record must find none");
    let grant = claimed(world.ask(&world.claim(&tenant, &k)).await, "A claim of an unused key must be Claimed");
    let attempt = grant.owner().attempt();
    for seen in [AttemptId { number: 2, ..attempt }, AttemptId { token: nobody.token, ..attempt }] {
        let rule = "A wait for another attempt than the one in progress must return at once";
        let record = within(waiting_for(world.store(), &tenant, &k, seen), rule).await;
        assert_eq!(record.map(|record| record.attempt()), Some(attempt), "A wait must end with the record as it is");
    }
    written(world.store().release(grant.owner()).await, "A release by the owner must be Written");
    let record = within(waiting(world.store(), &grant), "A wait for an attempt that ended must return at once").await;
    assert_eq!(record.map(|record| record.state), Some(State::Released));
}

/// A wait ends when its time is over, with the record still in progress; a lapse alone does not end it earlier.
pub async fn a_wait_ends_when_its_time_is_over(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, k) = (scope("tenant"), key("k"));
    let claim = world.claim(&tenant, &k).with_lease(world.lease());
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    for at_most in [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(40)] {
        let begun = std::time::Instant::now();
        let found = ok(world.store().wait(&tenant, &k, grant.owner().attempt(), at_most).await);
        assert!(begun.elapsed() >= at_most, "A wait must not end before its time while nothing changed");
        let record = found.expect("A wait must find the record that is there").record;
        assert_eq!(record.attempt(), grant.owner().attempt());
    }
    world.advance_to(grant.lease_end()).await;
    let found = ok(world.store().wait(&tenant, &k, grant.owner().attempt(), Duration::from_millis(40)).await);
    let record = found.expect("A wait must find the record that is there").record;
    assert_eq!(record.state, State::InProgress, "A lapse alone does not change a record");
}

/// Waits that are dropped leave nothing behind: the attempt completes, and waits after it work.
// cases 010, 052
pub async fn a_dropped_wait_leaves_nothing_behind(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, k) = (scope("tenant"), key("k"));
    let grant = claimed(world.ask(&world.claim(&tenant, &k)).await, "A claim of an unused key must be Claimed");
    let waits: Vec<_> = (0..40).map(|_| waiting(world.store(), &grant)).collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    for wait in &waits {
        wait.abort();
    }
    for wait in waits {
        assert!(wait.await.is_err_and(|error| error.is_cancelled()), "A wait must not end while nothing changed");
    }
    conflict(world.ask(&world.claim(&tenant, &k)).await, "After dropped waits the record must still be Conflict");
    let left = waiting(world.store(), &grant);
    let completed = world.store().complete(grant.owner(), &Response::new(200), Retention::default()).await;
    written(completed, "After dropped waits the owner must be able to complete");
    within(left, "After dropped waits a wait must still be ended by the completion").await;
    replayed(world.ask(&world.claim(&tenant, &k)).await, "After dropped waits a done record must be Replay");
}

/// A sweep removes expired records alone, at most as many as it was allowed, and says how many.
// case 123
pub async fn a_sweep_removes_expired_records_alone_and_at_most_its_limit(harness: &Harness) {
    let world = World::new(harness).await;
    let tenant = scope("tenant");
    let mut end = world.now().await;
    for number in 0..7 {
        let claim = world.short_claim(&tenant, &key(&format!("expires-{number}")));
        claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        let record = present(world.store().read(&tenant, claim.key()).await, "A claimed record must be there");
        end = end.max(record.expiry);
    }
    let mut stays = Vec::new();
    for state in ["in progress", "lapsed", "released", "held", "done"] {
        let claim = world.claim(&tenant, &key(state));
        let claim = if state == "lapsed" { claim.with_lease(world.lease()) } else { claim.with_lease(FOREVER * 120) };
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        let rule = "A write by the owner must be Written";
        match state {
            "released" => written(world.store().release(grant.owner()).await, rule),
            "held" => written(world.store().hold(grant.owner(), Retention::default()).await, rule),
            "done" => {
                let completed = world.store().complete(grant.owner(), &Response::new(200), Retention::default()).await;
                written(completed, rule);
            }
            _ => {}
        }
        stays.push(present(world.store().read(&tenant, &key(state)).await, "The record must be there"));
    }
    let early = ok(world.store().sweep(NonZeroUsize::MAX).await);
    if world.is_before(end).await && !harness.waits() {
        assert_eq!(early, 0, "A sweep must not remove records that are not expired");
    }
    world.advance_to(end).await;
    let limit = NonZeroUsize::MIN.saturating_add(2);
    let mut swept = early;
    loop {
        let now = ok(world.store().sweep(limit).await);
        assert!(now <= limit.get(), "A sweep must remove at most {limit} records; the store removed {now}");
        swept += now;
        if now < limit.get() {
            break;
        }
    }
    assert!(swept <= 7, "Sweeps must remove expired records alone: there were 7, and the store removed {swept}");
    assert_eq!(ok(world.store().sweep(limit).await), 0, "After a sweep below its limit nothing must be left to sweep");
    for (record, state) in stays.iter().zip(["in progress", "lapsed", "released", "held", "done"]) {
        let stored = present(world.store().read(&tenant, &key(state)).await, "A sweep must not remove live records");
        assert_eq!(stored, *record, "A sweep must leave live records as they are");
    }
}

/// A record whose expiry has moved, on or back, is swept when its time has come, and not when its claim said. (A store whose
/// database removes records by itself may have nothing to sweep; then nothing is checked.)
// case 123
pub async fn sweeps_remove_records_whose_expiry_moved_as_they_do_others(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, store) = (scope("tenant"), world.store());
    let keep = world.retention().standard();
    let retention = |keep| Retention::new(keep).with_held(keep);
    let all_swept = async || {
        let (mut swept, limit) = (0, NonZeroUsize::MIN.saturating_add(99));
        loop {
            let now = ok(world.store().sweep(limit).await);
            swept += now;
            if now < limit.get() {
                return swept;
            }
        }
    };
    let ways = ["completed", "held", "claimed anew"];
    let names = ways.iter().flat_map(|way| [format!("{way} on"), format!("{way} back")]);
    let names: Vec<String> = names.chain(["renewed on".into(), "stays".into()]).collect();
    let (mut first, mut last) = (world.now().await, world.now().await);
    for name in &names {
        let (way, direction) = name.rsplit_once(' ').unwrap_or((name, ""));
        let (at_first, then) = if direction == "back" { (4 * keep, keep) } else { (keep, 2 * keep) };
        let claim = |keep| world.claim(&tenant, &key(name)).with_lease(world.lease()).with_retention(retention(keep));
        let grant = claimed(world.ask(&claim(at_first)).await, "A claim of an unused key must be Claimed");
        let owner = grant.owner();
        let rule = "A write by the owner must be Written";
        match way {
            "completed" => drop(written(store.complete(owner, &Response::new(200), retention(then)).await, rule)),
            "held" => written(store.hold(owner, retention(then)).await, rule),
            "claimed anew" => {
                written(store.release(owner).await, rule);
                claimed(world.ask(&claim(then)).await, "A released record must be Claimed");
            }
            "renewed" => written(store.renew(owner, then).await, rule),
            _ => {}
        }
        let expiry = present(store.read(&tenant, &key(name)).await, "The record must be there").expiry;
        last = last.max(expiry);
        if direction != "on" {
            first = first.max(expiry);
        }
    }
    // Those that moved on come before a sweep for the first time, and are not expired yet.
    world.advance_to(first).await;
    let mut swept = all_swept().await;
    world.advance_to(last).await;
    swept += all_swept().await;
    if swept == 0 {
        let check = "sweeps_remove_records_whose_expiry_moved_as_they_do_others";
        return harness.notes().note_not_seen(check, "a sweep that removes what has expired");
    }
    let count = names.len();
    assert_eq!(
        swept, count,
        "Sweeps must remove all that has expired, wherever its expiry was before: of {count} records they removed {swept}"
    );
    let left = all_swept().await;
    assert_eq!(left, 0, "After a sweep below its limit nothing must be left to sweep");
}

/// Sweeps remove whatever has expired, in every state. (A store whose database removes that by itself may have nothing
/// to sweep; then nothing is checked.)
// case 123
pub async fn sweeps_remove_what_has_expired_in_every_state(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, store) = (scope("tenant"), world.store());
    let keep = world.retention().standard();
    let keep = Retention::new(keep).with_held(keep);
    let states = ["in progress", "under hold", "released", "forgotten", "held", "done"];
    let mut end = world.now().await;
    for state in states {
        let claim = world.claim(&tenant, &key(state)).with_lease(world.lease()).with_retention(keep);
        let claim = claim.with_on_lapse(if state == "under hold" { OnLapse::Hold } else { OnLapse::TakeOver });
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        let rule = "A write by the owner must be Written";
        match state {
            "released" => written(store.release(grant.owner()).await, rule),
            "forgotten" => written(store.forget(grant.owner()).await, rule),
            "held" => written(store.hold(grant.owner(), keep).await, rule),
            "done" => drop(written(store.complete(grant.owner(), &Response::new(200), keep).await, rule)),
            _ => {}
        }
        end = end.max(present(store.read(&tenant, &key(state)).await, "The record must be there").expiry);
    }
    world.advance_to(end).await;
    let (mut swept, limit) = (0, NonZeroUsize::MIN.saturating_add(3));
    loop {
        let now = ok(store.sweep(limit).await);
        swept += now;
        if now < limit.get() {
            break;
        }
    }
    if swept == 0 {
        let check = "sweeps_remove_what_has_expired_in_every_state";
        return harness.notes().note_not_seen(check, "a sweep that removes what has expired");
    }
    let count = states.len();
    assert_eq!(
        swept, count,
        "Sweeps must remove all that has expired: of {count} records ({states:?}) they removed {swept}"
    );
}

/// Records that wait for someone are listed in the order of scope and key, page by page, each once; the others are not.
pub async fn records_that_wait_for_someone_are_listed_in_order_page_by_page(harness: &Harness) {
    let world = World::new(harness).await;
    let mut expected = Vec::new();
    let mut end = world.now().await;
    let scopes = [Scope::global(), scope("a"), scope("B"), scope("é"), scope("a "), scope("_"), scope("%")];
    for scope in &scopes {
        for name in ["held", "lapsed", "k", "K", "é", "z", "~"] {
            let claim = world.claim(scope, &key(name)).with_lease(world.lease());
            let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
            end = end.max(grant.lease_end());
            if name == "held" {
                written(world.store().hold(grant.owner(), Retention::default()).await, "A hold must be Written");
            }
            expected.push((scope.clone(), key(name)));
        }
        for name in ["done", "live", "released"] {
            let claim = world.claim(scope, &key(name)).with_lease(FOREVER * 120);
            let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
            let store = world.store();
            match name {
                "done" => {
                    let completed = store.complete(grant.owner(), &Response::new(200), Retention::default()).await;
                    written(completed, "A completion by the owner must be Written");
                }
                "released" => written(store.release(grant.owner()).await, "A release by the owner must be Written"),
                _ => {}
            }
        }
    }
    world.advance_to(end).await;
    expected.sort();
    for limit in [1, 3, 1000] {
        let limit = NonZeroUsize::MIN.saturating_add(limit - 1);
        let mut listed: Vec<Lapsed> = Vec::new();
        loop {
            let after = listed.last().map(|last| (&last.scope, &last.key));
            let page = ok(world.store().lapsed(after, limit).await);
            assert!(page.len() <= limit.get(), "A page must have at most {limit} records; it has {}", page.len());
            let is_last = page.len() < limit.get();
            listed.extend(page);
            assert!(listed.len() <= expected.len(), "Pages must list each waiting record once, in order: {listed:#?}");
            if is_last {
                break;
            }
        }
        let names: Vec<_> = listed.iter().map(|lapsed| (lapsed.scope.clone(), lapsed.key.clone())).collect();
        assert_eq!(names, expected, "Held and lapsed records must be listed, in the order of scope and key, in bytes");
        for lapsed in &listed {
            let record = present(world.store().read(&lapsed.scope, &lapsed.key).await, "A listed record must be there");
            assert_eq!(lapsed.record, record, "A record must be listed as it is");
        }
    }
}

/// A record is listed while it waits for someone and no longer: not once it is renewed or released, and not past its
/// retention, swept or not.
pub async fn a_record_is_listed_only_while_it_waits_for_someone(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, store) = (scope("tenant"), world.store());
    let listed = async || {
        let listed = ok(world.store().lapsed(None, NonZeroUsize::MAX).await);
        listed.into_iter().map(|lapsed| lapsed.key.as_str().to_owned()).collect::<Vec<_>>()
    };
    let mut grants = Vec::new();
    for name in ["held", "released", "renewed"] {
        let claim = world.claim(&tenant, &key(name)).with_lease(world.lease());
        grants.push(claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed"));
    }
    world.advance_to(grants[2].lease_end()).await;
    assert_eq!(listed().await, ["held", "released", "renewed"], "Lapsed records must be listed");
    written(store.hold(grants[0].owner(), world.retention()).await, "A hold by the owner must be Written");
    written(store.release(grants[1].owner()).await, "A release by the owner must be Written");
    written(store.renew(grants[2].owner(), FOREVER * 60).await, "A renewal by the owner must be Written");
    assert_eq!(listed().await, ["held"], "A released and a renewed record must not be listed, and a held one must be");
    let held = present(store.read(&tenant, &key("held")).await, "A held record must be there");
    world.advance_to_just_before(held.expiry).await;
    let early = listed().await;
    if world.is_before(held.expiry).await {
        assert!(early.contains(&"held".to_owned()), "Until its retention ends a held record must be listed");
    }
    world.advance_to(held.expiry).await;
    let late = listed().await;
    assert!(!late.contains(&"held".to_owned()), "A record past its retention must not be listed: it is absent");
}

/// A purge removes the records of exactly one scope, in every state, at most as many as it was allowed, and no record
/// of a scope that begins alike, matches as a pattern, or differs in case.
// case 031
pub async fn a_purge_removes_the_records_of_one_scope_alone(harness: &Harness) {
    let world = World::new(harness).await;
    let alike = ["a", "a%", "a_", "A", "a ", "a*", "ab", "aa", "%", "_"];
    let mut scopes: Vec<_> = alike.into_iter().map(String::from).chain(odd_names()).collect();
    scopes.sort();
    scopes.dedup();
    let mut scopes: Vec<_> = scopes.iter().map(|name| scope(name)).collect();
    scopes.push(Scope::global());
    for scope in &scopes {
        for name in ["k", "k%"] {
            claimed(world.ask(&world.claim(scope, &key(name))).await, "A claim of an unused key must be Claimed");
        }
    }
    let all = NonZeroUsize::MIN.saturating_add(9);
    for (index, purged) in scopes.iter().enumerate() {
        let removed = ok(world.store().purge(purged, all).await);
        for (other, scope) in scopes.iter().enumerate() {
            for name in ["k", "k%"] {
                let read = world.store().read(scope, &key(name)).await;
                match other <= index {
                    true => absent(read, "A purged record must be absent"),
                    false => drop(present(read, &format!("A purge of {purged:?} must not touch {scope:?}"))),
                }
            }
        }
        assert_eq!(removed, 2, "A purge must say how many records it removed");
    }
    assert_eq!(ok(world.store().purge(&scopes[0], all).await), 0, "A purge of nothing must remove nothing");
}

/// A purge stops at its limit, so that it can be done in steps.
pub async fn a_purge_removes_at_most_its_limit(harness: &Harness) {
    let world = World::new(harness).await;
    let tenant = scope("tenant");
    for number in 0..5 {
        let claim = world.claim(&tenant, &key(&format!("k-{number}")));
        claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    }
    let two = NonZeroUsize::MIN.saturating_add(1);
    for left in [3, 1, 0] {
        let purged = ok(world.store().purge(&tenant, two).await);
        let mut there = 0;
        for number in 0..5 {
            there += usize::from(ok(world.store().read(&tenant, &key(&format!("k-{number}"))).await).is_some());
        }
        assert_eq!((purged, there), (if left == 0 { 1 } else { 2 }, left), "A purge must stop at its limit of 2");
    }
}

/// A store that can keep its promise says so when it is asked at start-up.
pub async fn a_sound_store_passes_its_own_check(harness: &Harness) {
    let world = World::new(harness).await;
    ok(world.store().check().await);
    assert!(!world.store().backend().is_empty(), "A store must have a name");
}

type Waiting = tokio::task::JoinHandle<Option<idem_core::Record>>;

/// A task that waits for the attempt of `grant`.
pub(crate) fn waiting(store: &Arc<dyn Store>, grant: &Grant) -> Waiting {
    let owner = grant.owner();
    waiting_for(store, owner.scope(), owner.key(), owner.attempt())
}

fn waiting_for(store: &Arc<dyn Store>, scope: &Scope, key: &idem_core::Key, seen: AttemptId) -> Waiting {
    let (store, scope, key) = (Arc::clone(store), scope.clone(), key.clone());
    tokio::spawn(async move { ok(store.wait(&scope, &key, seen, FOREVER).await).map(|snapshot| snapshot.record) })
}

/// What a wait found, which must be at once.
pub(crate) async fn within(wait: Waiting, rule: &str) -> Option<idem_core::Record> {
    match tokio::time::timeout(AT_ONCE, wait).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        Err(_) => panic!("{rule}; the store still waits after {AT_ONCE:?}"),
    }
}
