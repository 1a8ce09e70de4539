//! Time: leases and retentions are live while `now < end`, by the store's clock, to the millisecond.

use std::{num::NonZeroUsize, time::Duration};

use idem_core::{Answer, Fenced, Grant, OnLapse, Response, Retention, Timestamp};

use crate::{
    Harness,
    expect::{absent, claimed, conflict, ok, present, replayed, taken_over, unknown, written},
    world::{World, key, scope},
};

/// A lease is live until the instant it ends, and lapsed from that instant on.
// cases 041, 043, 086
pub async fn a_lease_is_live_until_the_instant_it_ends(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let claim = world.claim(&tenant, &key).with_lease(world.lease());
    let first = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    world.advance_to_just_before(first.lease_end()).await;
    let early = world.ask(&world.claim(&tenant, &key)).await;
    if world.is_before(first.lease_end()).await {
        let left = conflict(early, "Before its lease ends a record in progress must be Conflict");
        assert!(left.is_some_and(|left| left > Duration::ZERO), "There must be time left; the store said {left:?}");
        world.advance_to(first.lease_end()).await;
        let second = taken_over(
            world.ask(&world.claim(&tenant, &key)).await,
            "From the instant its lease ends on, a record in progress must be TakenOver",
        );
        assert_eq!(second.number(), 2, "A takeover must be attempt 2");
    }
}

/// Every end is where it is: of three records alike one is asked just before their end (by a millisecond, where the clock
/// stands still), one at it, and one a millisecond later.
// cases 086, 087, 090
pub async fn an_end_is_where_it_is_one_before_at_and_one_after(harness: &Harness) {
    let world = World::new(harness).await;
    for is_of_lease in [true, false] {
        let mut endings = Vec::new();
        for end in ENDS.iter().filter(|end| end.is_of_lease == is_of_lease) {
            for side in ["before its end", "at its end", "a millisecond after its end"] {
                endings.push(Ending::make(&world, end, side).await);
            }
        }
        if !is_of_lease {
            for ending in &endings {
                world.advance_to(ending.grant.lease_end()).await;
            }
        }
        let first = endings.iter().map(|ending| ending.at).min().unwrap_or(Timestamp::MIN);
        world.advance_to_just_before(first).await;
        for ending in endings.iter().step_by(3) {
            let answer = ending.probe(&world).await;
            if world.is_before(ending.at).await {
                ending.assert(&answer, ending.end.before);
            }
        }
        let last = endings.iter().map(|ending| ending.at).max().unwrap_or(Timestamp::MIN);
        world.advance_to(last).await;
        for side in [1, 2] {
            for ending in endings.iter().skip(side).step_by(3) {
                ending.assert(&ending.probe(&world).await, ending.end.after);
            }
            world.advance(Duration::from_millis(1)).await;
        }
    }
}

/// What ends, and what is answered before it does and from then on.
struct End {
    name: &'static str,
    /// How the record is.
    state: &'static str,
    is_of_lease: bool,
    asked: &'static str,
    before: &'static str,
    after: &'static str,
}

const fn lease(name: &'static str, state: &'static str, asked: &'static str, said: [&'static str; 2]) -> End {
    End { name, state, is_of_lease: true, asked, before: said[0], after: said[1] }
}

const fn retention(name: &'static str, state: &'static str, asked: &'static str, said: [&'static str; 2]) -> End {
    End { name, state, is_of_lease: false, asked, before: said[0], after: said[1] }
}

static ENDS: [End; 14] = [
    lease("A claim of a record in progress", "in progress", "claim", ["Conflict", "TakenOver as 2"]),
    lease("A claim of a record that was renewed", "renewed", "claim", ["Conflict", "TakenOver as 2"]),
    lease("A claim of a record under hold that started", "under hold", "claim", ["Conflict", "Unknown"]),
    lease("A resolve of a record in progress", "in progress", "resolve", ["Superseded", "Written"]),
    lease("The list of what waits", "in progress", "list", ["not listed", "listed"]),
    lease("A completion by the owner", "in progress", "complete", ["Written", "Written"]),
    retention("A claim of a done record", "done", "claim", ["Replay", "Claimed as 1"]),
    retention("A claim of a released record", "released", "claim", ["Claimed as 2", "Claimed as 1"]),
    retention("A claim of a held record", "held", "claim", ["Unknown", "Claimed as 1"]),
    retention("A claim of a record that lapsed long ago", "in progress", "claim", ["TakenOver as 2", "Claimed as 1"]),
    retention("A read of a done record", "done", "read", ["there", "absent"]),
    retention("A completion by the owner, by its retention", "in progress", "complete", ["Written", "Superseded"]),
    retention("A renewal by the owner", "in progress", "renew", ["Written", "Superseded"]),
    retention("The list of what waits, by its retention", "held", "list", ["listed", "not listed"]),
];

/// A record that comes to its end.
struct Ending {
    end: &'static End,
    /// On which side of its end it is asked.
    side: &'static str,
    grant: Grant,
    at: Timestamp,
}

impl Ending {
    async fn make(world: &World<'_>, end: &'static End, side: &'static str) -> Self {
        let (tenant, key) = (scope(end.name), key(side));
        // Long enough to make all of them before the first ends.
        let standard = 2 * world.retention().standard();
        // What ends with the lease must not end with the retention.
        let keep = if end.is_of_lease { Retention::default() } else { Retention::new(standard).with_held(standard) };
        let claim = world.claim(&tenant, &key).with_lease(world.lease()).with_retention(keep);
        let claim = claim.with_on_lapse(if end.state == "under hold" { OnLapse::Hold } else { OnLapse::TakeOver });
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        let (store, owner, rule) = (world.store(), grant.owner(), "A write by the owner must be Written");
        match end.state {
            "renewed" | "under hold" => written(store.renew(owner, world.lease()).await, rule),
            "released" => written(store.release(owner).await, rule),
            "held" => written(store.hold(owner, keep).await, rule),
            "done" => drop(written(store.complete(owner, &Response::new(200), keep).await, rule)),
            _ => {}
        }
        let record = present(store.read(&tenant, &key).await, "The record must be there");
        let at = if end.is_of_lease { record.lease_end } else { record.expiry };
        Self { end, side, grant, at }
    }

    async fn probe(&self, world: &World<'_>) -> String {
        let (store, owner) = (world.store(), self.grant.owner());
        let (scope, key) = (owner.scope(), owner.key());
        match self.end.asked {
            "claim" => match ok(world.ask(&world.claim(scope, key)).await) {
                Answer::Claimed(grant) => format!("Claimed as {}", grant.number()),
                Answer::TakenOver(grant) => format!("TakenOver as {}", grant.number()),
                Answer::Conflict { .. } => "Conflict".to_owned(),
                Answer::Replay { .. } => "Replay".to_owned(),
                Answer::Unknown => "Unknown".to_owned(),
                other => format!("{other:?}"),
            },
            "complete" => fence(&ok(store.complete(owner, &Response::new(201), world.retention()).await)),
            "renew" => fence(&ok(store.renew(owner, world.lease()).await)),
            "resolve" => fence(&ok(store.resolve(&world.resolve(&self.grant)).await)),
            "read" => if ok(store.read(scope, key).await).is_some() { "there" } else { "absent" }.to_owned(),
            _ => {
                let listed = ok(store.lapsed(None, NonZeroUsize::MAX).await);
                let is_listed = listed.iter().any(|lapsed| (&lapsed.scope, &lapsed.key) == (scope, key));
                if is_listed { "listed" } else { "not listed" }.to_owned()
            }
        }
    }

    #[track_caller]
    fn assert(&self, answer: &str, right: &str) {
        let Self { end: End { name, .. }, side, .. } = self;
        assert_eq!(answer, right, "{name}, {side}, must be answered {right}; the store answered {answer}");
    }
}

fn fence<T>(answer: &Fenced<T>) -> String {
    match answer {
        Fenced::Written(_) => "Written",
        Fenced::Superseded => "Superseded",
    }
    .to_owned()
}

/// A renewal moves the end of the lease to its length from now, be it earlier or later than it was.
pub async fn a_renewal_moves_the_end_of_the_lease(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let claim = world.claim(&tenant, &key).with_lease(world.lease());
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    world.advance_to_just_before(grant.lease_end()).await;
    for lease in [world.lease(), world.lease() / 2] {
        let before = world.earliest_now().await;
        written(world.store().renew(grant.owner(), lease).await, "A renewal by the owner must be Written");
        let after = world.latest_now().await;
        let record = present(world.store().read(&tenant, &key).await, "A renewed record must be there");
        assert!(
            before.after(lease) <= record.lease_end && record.lease_end <= after.after(lease),
            "A renewed lease must end {lease:?} from now, at {:?}; it ends at {:?}",
            before.after(lease),
            record.lease_end
        );
    }
    let end = present(world.store().read(&tenant, &key).await, "A renewed record must be there").lease_end;
    world.advance_to_just_before(end).await;
    let early = world.ask(&world.claim(&tenant, &key)).await;
    if world.is_before(end).await {
        conflict(early, "A renewed lease must be live until its new end");
    }
}

/// An attempt that renews for longer than its record's retention keeps the record.
pub async fn a_record_never_expires_before_its_lease_ends(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, long) = (scope("tenant"), key("long lease"));
    let claim = world.claim(&tenant, &long).with_lease(2 * world.lease()).with_retention(Retention::new(world.lease()));
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    let record = present(world.store().read(&tenant, &long).await, "A claimed record must be there");
    assert_eq!(record.expiry, record.lease_end, "A record must not expire before its lease ends");
    // Long enough that just before its end, as near as the clock is told, is well past the expiry of the claim.
    let longer = 4 * world.lease() + 2 * harness.slack();
    written(world.store().renew(grant.owner(), longer).await, "A renewal by the owner must be Written");
    let renewed = present(world.store().read(&tenant, &long).await, "A renewed record must be there");
    assert_eq!(renewed.expiry, renewed.lease_end, "A renewal must keep the record until the lease ends");
    world.advance_to_just_before(renewed.lease_end).await;
    let early = world.ask(&world.claim(&tenant, &long)).await;
    if world.is_before(renewed.lease_end).await {
        conflict(early, "A record must be Conflict while its lease is live, past its retention too");
    }
}

/// A completion whose retention is shorter than what is left of the lease keeps the record until the lease would have
/// ended.
pub async fn a_done_record_never_expires_before_its_lease_would_have_ended(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let claim = world.claim(&tenant, &key).with_lease(2 * world.lease());
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    let short = Retention::new(Duration::from_millis(1));
    let completed = world.store().complete(grant.owner(), &Response::new(200), short).await;
    written(completed, "A completion by the owner must be Written");
    world.advance_to_just_before(grant.lease_end()).await;
    let early = world.ask(&world.claim(&tenant, &key)).await;
    if world.is_before(grant.lease_end()).await {
        replayed(early, "A done record must be Replay until its lease would have ended, however short its retention");
    }
    world.advance_to(grant.lease_end()).await;
    let late = world.ask(&world.claim(&tenant, &key)).await;
    let next = claimed(late, "A done record with a short retention must be gone once its lease would have ended");
    assert_eq!(next.number(), 1, "After an expiry a new record must begin");
}

/// A done record is replayed until its retention ends, counted from the completion, and is absent from that instant on,
/// though nobody swept it.
// cases 087, 090
pub async fn a_done_record_is_replayed_until_its_retention_ends_and_then_is_absent(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let grant = claimed(world.ask(&world.short_claim(&tenant, &key)).await, "A claim of an unused key must be Claimed");
    world.advance(world.lease() / 2).await;
    let completed = world.store().complete(grant.owner(), &Response::new(201), world.retention()).await;
    written(completed, "A completion by the owner must be Written");
    let done = present(world.store().read(&tenant, &key).await, "A done record must be there");
    let settled = done.settled.expect("A done record must say when it was completed");
    assert_eq!(done.expiry, settled.after(world.retention().standard()), "Retention must count from the completion");

    world.advance_to_just_before(done.expiry).await;
    let early = world.ask(&world.claim(&tenant, &key)).await;
    if world.is_before(done.expiry).await {
        replayed(early, "Before its retention ends a done record must be Replay");
    }
    world.advance_to(done.expiry).await;
    absent(world.store().read(&tenant, &key).await, "A record past its retention must be absent, swept or not");
    let next = world.ask(&world.claim(&tenant, &key)).await;
    let next = claimed(next, "A claim on an expired record must be Claimed; it is absent, swept or not");
    assert_eq!((next.number(), next.is_repeat()), (1, false), "After an expiry a new record must begin");
    assert_ne!(next.owner().attempt(), grant.owner().attempt(), "After an expiry a new attempt must own the record");
}

/// The same for records that are in progress, released or held: past their retention they are absent.
pub async fn a_record_past_its_retention_is_absent_in_every_state(harness: &Harness) {
    let world = World::new(harness).await;
    let tenant = scope("tenant");
    let names = ["in progress", "released", "held", "under hold"];
    let mut ends = Vec::new();
    for name in names {
        let claim = world.short_claim(&tenant, &key(name));
        let claim = claim.with_on_lapse(if name == "under hold" { OnLapse::Hold } else { OnLapse::TakeOver });
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        match name {
            "released" => written(world.store().release(grant.owner()).await, "A release by the owner must be Written"),
            "held" => written(
                world.store().hold(grant.owner(), world.retention()).await,
                "A hold by the owner must be Written",
            ),
            _ => {}
        }
        let record = present(world.store().read(&tenant, &key(name)).await, "The record must be there");
        let from = if name == "held" { record.settled.unwrap_or(Timestamp::MIN) } else { record.claimed };
        let stay = if ["held", "under hold"].contains(&name) {
            world.retention().held()
        } else {
            world.retention().standard()
        };
        assert_eq!(record.expiry, from.after(stay), "A record {name} must stay for {stay:?}");
        ends.push((name, record.expiry));
    }
    ends.sort_by_key(|(_, end)| *end);
    for (name, end) in ends {
        world.advance_to_just_before(end).await;
        let early = world.store().read(&tenant, &key(name)).await;
        if world.is_before(end).await {
            present(early, "Before its retention ends a record must be there");
        }
        world.advance_to(end).await;
        absent(world.store().read(&tenant, &key(name)).await, "A record past its retention must be absent");
        let other = idem_core::Claim::new(
            tenant.clone(),
            key(name),
            world.token(),
            crate::world::fingerprint("another request"),
        );
        let grant = claimed(world.ask(&other).await, "A claim on an expired record must be Claimed, whatever it was");
        assert_eq!((grant.number(), grant.is_repeat()), (1, false), "After an expiry a new record must begin");
    }
}

/// A held record, and one in progress under hold, stays for the hold retention, past the standard one.
// case 017
pub async fn a_record_whose_outcome_is_unknown_stays_for_the_hold_retention(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let claim = world.short_claim(&tenant, &key).with_on_lapse(OnLapse::Hold);
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    written(world.store().renew(grant.owner(), world.lease()).await, "A renewal by the owner must be Written");
    let record = present(world.store().read(&tenant, &key).await, "A claimed record must be there");
    world.advance_to(record.claimed.after(world.retention().standard())).await;
    let late = world.ask(&world.claim(&tenant, &key)).await;
    if world.is_before(record.expiry).await {
        unknown(late, "A record under hold must be Unknown past the standard retention too");
    }
}

/// What ends an attempt may say that its record is kept for no time at all: it is written, as any other, and the record is
/// absent from then on.
pub async fn a_record_that_is_kept_for_no_time_is_written_and_absent(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, store) = (scope("tenant"), world.store());
    let nothing = Retention::new(Duration::ZERO).with_held(Duration::ZERO);
    let mut grants = Vec::new();
    for name in ["completed", "held"] {
        let claim = world.claim(&tenant, &key(name)).with_lease(world.lease());
        grants.push(claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed"));
    }
    // Until then the lease keeps a completed record.
    world.advance_to(grants[0].lease_end().max(grants[1].lease_end())).await;
    let response = Response::new(201);
    let completed = store.complete(grants[0].owner(), &response, nothing).await;
    let rule = "A completion by the owner must be Written, for however short a time it is kept";
    assert_eq!(written(completed, rule), response, "A completion must be answered with its response");
    let rule = "A hold by the owner must be Written, for however short a time it is kept";
    written(store.hold(grants[1].owner(), nothing).await, rule);
    world.advance_to(world.latest_now().await).await;
    for name in ["completed", "held"] {
        absent(store.read(&tenant, &key(name)).await, "A record that is kept for no time must be absent");
        let next = world.ask(&world.claim(&tenant, &key(name))).await;
        let next = claimed(next, "A claim on a record that is kept for no time must be Claimed");
        assert_eq!((next.number(), next.is_repeat()), (1, false), "After an expiry a new record must begin");
    }
}

/// Durations are counted in whole milliseconds and rounded up, so that no interval is shorter than what was asked for.
pub async fn durations_are_rounded_up_to_whole_milliseconds(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let odd = Duration::new(100, 1_000_001);
    let claim = world.claim(&tenant, &key).with_lease(odd).with_retention(Retention::new(odd * 3));
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    let record = present(world.store().read(&tenant, &key).await, "A claimed record must be there");
    assert_eq!(record.lease_end.since(record.claimed), Duration::from_millis(100_002), "A lease must be rounded up");
    assert_eq!(record.expiry.since(record.claimed), Duration::from_millis(300_004), "A retention must be rounded up");
    let completed = world.store().complete(grant.owner(), &Response::new(200), Retention::new(odd * 5)).await;
    written(completed, "A completion by the owner must be Written");
    let done = present(world.store().read(&tenant, &key).await, "A done record must be there");
    let stay = done.expiry.since(done.settled.unwrap_or(Timestamp::MIN));
    assert_eq!(stay, Duration::from_millis(500_006), "A retention must be rounded up");
}

/// Two handles judge by one clock: what one writes the other finds live or lapsed at the same instant.
// case 084
pub async fn two_handles_judge_by_one_clock(harness: &Harness) {
    let world = World::new(harness).await;
    let other = world.open().await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let claim = world.claim(&tenant, &key).with_lease(world.lease());
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    world.advance_to_just_before(grant.lease_end()).await;
    let early = idem_core::claim(&*other, &world.claim(&tenant, &key)).await;
    if world.is_before(grant.lease_end()).await {
        conflict(early, "Through another handle a live lease must be Conflict");
    }
    world.advance_to(grant.lease_end()).await;
    let late = idem_core::claim(&*other, &world.claim(&tenant, &key)).await;
    taken_over(late, "Through another handle a lapsed record must be TakenOver at the instant its lease ends");
}
