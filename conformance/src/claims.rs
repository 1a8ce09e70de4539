//! Claims: what each kind of record answers to one, and what a claim leaves behind.

use std::time::Duration;

use idem_core::{
    Checkpoint, Checkpointed, Claim, ClaimRow, Fingerprint, FingerprintKey, Grant, OnLapse, Origin, Response,
    Retention, State, StoreErrorKind,
};

use crate::{
    Harness,
    agreement::differences,
    expect::{claimed, conflict, late, ok, present, replayed, reused, taken_over, unknown, written},
    world::{World, fingerprint, key, scope},
};

/// The first claim of a key is Claimed as attempt 1, which is no repeat and finds no checkpoints.
pub async fn a_claim_of_an_unused_key_is_claimed_as_attempt_1(harness: &Harness) {
    let world = World::new(harness).await;
    let claim = world.claim(&scope("tenant"), &key("k"));
    let before = world.earliest_now().await;
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    let after = world.latest_now().await;
    assert_eq!((grant.number(), grant.is_repeat(), grant.origin()), (1, false, Origin::First));
    assert!(grant.checkpoints().is_empty(), "A first attempt must find no checkpoints");
    let record = present(world.store().read(claim.scope(), claim.key()).await, "A claimed record must be there");
    assert_eq!((&record.state, record.attempt()), (&State::InProgress, grant.owner().attempt()));
    assert!(
        before <= record.claimed && record.claimed <= after,
        "A record must say that it was claimed by the store's clock, between {before:?} and {after:?}; it says {:?}",
        record.claimed
    );
    assert_eq!(record.lease_end, record.claimed.after(claim.lease()), "A lease must end its length after the claim");
    assert_eq!(
        record.expiry,
        record.claimed.after(claim.retention().standard()),
        "A record must expire its retention after the claim"
    );
}

/// A claim whose reply was lost is repeated with its token: Claimed again, as the same attempt.
// case 063
pub async fn a_claim_repeated_under_its_token_is_claimed_again_as_the_same_attempt(harness: &Harness) {
    let world = World::new(harness).await;
    let other = world.open().await;
    let claim = world.claim(&scope("tenant"), &key("k"));
    let first = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    for _ in 0..3 {
        let again = idem_core::claim(&*other, &claim).await;
        let again = claimed(again, "A claim repeated under its token must be Claimed again");
        assert_eq!(again.owner(), first.owner(), "A repeated claim must be the same attempt, with the same number");
        assert!(!again.is_repeat(), "A repeated claim is no repeat of the operation");
    }
    world.advance(world.lease() / 2).await;
    let before = world.earliest_now().await;
    claimed(world.ask(&claim).await, "A claim repeated under its token must be Claimed again");
    let record = present(world.store().read(claim.scope(), claim.key()).await, "A claimed record must be there");
    assert!(
        before.after(claim.lease()) <= record.lease_end,
        "A repeated claim must have its whole lease from now, until {:?}; it ends at {:?}",
        before.after(claim.lease()),
        record.lease_end
    );
    let completed = world.store().complete(first.owner(), &Response::new(201), Retention::default()).await;
    written(completed, "A completion by the owner must be Written");
    replayed(world.ask(&claim).await, "A claim repeated under its token must be Replay once the operation is done");
}

/// The same for a claim that took over: it stays attempt 2, and its record still says so.
pub async fn a_takeover_repeated_under_its_token_is_taken_over_again_as_the_same_attempt(harness: &Harness) {
    let world = World::new(harness).await;
    let first = lapsed(&world, "k").await;
    let claim = world.claim(first.owner().scope(), first.owner().key());
    let second = taken_over(world.ask(&claim).await, "A claim of a lapsed record must be TakenOver");
    let again = taken_over(world.ask(&claim).await, "A takeover repeated under its token must be TakenOver again");
    assert_eq!(again.owner(), second.owner(), "A repeated takeover must be the same attempt, with the same number");
    assert_eq!((again.number(), again.is_repeat()), (2, true), "A takeover must be attempt 2, and a repeat");
}

/// The row that a claim gives as written is the row that is stored; a row that it found is the one that was there, and
/// one in progress comes with the instant at which it was judged.
pub async fn a_claim_gives_the_row_that_it_wrote_or_the_row_that_it_found(harness: &Harness) {
    let world = World::new(harness).await;
    let claim = world.claim(&scope("tenant"), &key("k"));
    let stored =
        async || present(world.store().read(claim.scope(), claim.key()).await, "A claimed record must be there");
    match ok(world.store().claim(&claim).await) {
        ClaimRow::Written(row) => {
            let stored = stored().await;
            assert_eq!(row, stored, "The row that a claim gives must be stored: {}", differences(&row, &stored));
        }
        other => panic!("A claim of an unused key must give the row that it wrote; the store gave {other:?}"),
    }
    let known = stored().await;
    let before = world.earliest_now().await;
    match ok(world.store().claim(&world.claim(claim.scope(), claim.key())).await) {
        ClaimRow::Found { record, now: Some(now) } => {
            assert_eq!(record, known, "The row that a claim found must be given as it is");
            assert!(before <= now && now <= world.latest_now().await, "A row must be judged by the store's clock");
        }
        other => panic!("A claim of a live record must give the row that it found, and when; the store gave {other:?}"),
    }
    let left = stored().await;
    assert_eq!(left, known, "A claim that finds must change nothing: {}", differences(&known, &left));
}

/// A claim of a record in progress is Conflict, tells the time left, and changes nothing, however often it is made.
// case 043
pub async fn a_claim_of_a_record_in_progress_is_a_conflict_that_changes_nothing(harness: &Harness) {
    let world = World::new(harness).await;
    let claim = world.claim(&scope("tenant"), &key("k"));
    let first = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    let known = present(world.store().read(claim.scope(), claim.key()).await, "A claimed record must be there");
    for _ in 0..3 {
        let now = world.earliest_now().await;
        let rival =
            world.claim(claim.scope(), claim.key()).with_retention(Retention::new(Duration::from_secs(9_000_000)));
        let left = conflict(world.ask(&rival).await, "A claim of a record in progress must be Conflict");
        let left = left.expect("A conflict of a record that nobody is finishing must tell the time left");
        let most = first.lease_end().since(now);
        let least = first.lease_end().since(world.latest_now().await);
        assert!(least <= left && left <= most, "The time left must be {least:?} to {most:?}; the store said {left:?}");
        let stored = present(world.store().read(claim.scope(), claim.key()).await, "A claimed record must be there");
        assert_eq!(stored, known, "A conflict must change nothing: {}", differences(&known, &stored));
    }
}

/// A claim that arrives after its own attempt ended is a late duplicate: Superseded after a release and a hold, the
/// replay after a completion. It never starts the operation again.
pub async fn a_late_duplicate_of_a_claim_that_is_over_never_owns_the_key_again(harness: &Harness) {
    let world = World::new(harness).await;
    let tenant = scope("tenant");
    let [released, forgotten, held] = ["released", "forgotten", "held"].map(|name| world.claim(&tenant, &key(name)));
    for claim in [&released, &forgotten, &held] {
        let grant = claimed(world.ask(claim).await, "A claim of an unused key must be Claimed");
        let ended = match claim.key().as_str() {
            "released" => world.store().release(grant.owner()).await,
            "forgotten" => world.store().forget(grant.owner()).await,
            _ => world.store().hold(grant.owner(), Retention::default()).await,
        };
        written(ended, "An attempt must be able to end");
        let known = present(world.store().read(claim.scope(), claim.key()).await, "An ended record must be there");
        late(world.ask(claim).await, "A late duplicate of a claim that is over must be Superseded");
        let stored = present(world.store().read(claim.scope(), claim.key()).await, "An ended record must be there");
        assert_eq!(stored, known, "A late duplicate must change nothing: {}", differences(&known, &stored));
    }
    let next = claimed(world.ask(&world.claim(&tenant, &key("released"))).await, "A released key must be Claimed");
    assert_eq!(next.number(), 2, "The attempt after a release must be attempt 2");
    conflict(world.ask(&released).await, "A late duplicate must be Conflict while the next attempt runs");
}

/// A token that comes back with another request is refused with an error of kind contract, whatever the state.
pub async fn a_token_used_for_another_request_is_refused_as_a_breach_of_contract(harness: &Harness) {
    let world = World::new(harness).await;
    for state in ["in progress", "released", "held", "done"] {
        let claim = world.claim(&scope("tenant"), &key(state));
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        bring_to(&world, &grant, state).await;
        let known = present(world.store().read(claim.scope(), claim.key()).await, "The record must be there");
        let other = Claim::new(claim.scope().clone(), claim.key().clone(), claim.token(), fingerprint("another"));
        match world.ask(&other).await {
            Err(error) if error.kind() == StoreErrorKind::Contract => {}
            answered => panic!(
                "A token used for another request must be an error of kind contract on a record {state}; the store \
                 answered {answered:?}"
            ),
        }
        let stored = present(world.store().read(claim.scope(), claim.key()).await, "The record must be there");
        assert_eq!(stored, known, "A refused claim must change nothing: {}", differences(&known, &stored));
    }
}

/// Another request under a key is Reuse on every path: whether the record is in progress, lapsed, released, held or
/// done, and whichever handle asks. It says what differs and changes nothing.
// cases 056, 060, 128
pub async fn another_request_under_a_key_is_reuse_in_every_state(harness: &Harness) {
    let world = World::new(harness).await;
    let other_handle = world.open().await;
    for state in ["in progress", "lapsed", "released", "held", "done"] {
        let claim = world.claim(&scope("tenant"), &key(state)).with_lease(match state {
            "lapsed" => world.lease(),
            _ => Duration::from_secs(3600),
        });
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        bring_to(&world, &grant, state).await;
        let known = present(world.store().read(claim.scope(), claim.key()).await, "The record must be there");
        let other =
            Claim::new(claim.scope().clone(), claim.key().clone(), world.token(), fingerprint("a longer request"));
        let expected = other.differences(claim.fingerprint());
        for handle in [world.store(), &other_handle] {
            match ok(idem_core::claim(&**handle, &other).await) {
                idem_core::Answer::Reuse { differences } => {
                    assert_eq!(differences, expected, "Reuse must say what differs");
                }
                answer => panic!(
                    "Another request under the key of a record {state} must be Reuse; the store answered {answer:?}"
                ),
            }
        }
        let stored = present(world.store().read(claim.scope(), claim.key()).await, "The record must be there");
        assert_eq!(stored, known, "Reuse must change nothing: {}", differences(&known, &stored));
    }
}

/// A claim that also accepts an older form of its fingerprint is a retry of the record that has it, and the record
/// keeps its own.
pub async fn an_older_form_of_the_fingerprint_is_a_retry_and_stays_on_the_record(harness: &Harness) {
    let world = World::new(harness).await;
    let secret = FingerprintKey::new("2026-11", b"a secret of thirty-two bytes or more").expect("a valid key");
    let older = Fingerprint::builder().part("body", "request").build().expect("a valid part");
    let newer = Fingerprint::keyed(&secret).part("body", "request").build().expect("a valid part");
    let first = world.claim(&scope("tenant"), &key("k"));
    let grant = claimed(world.ask(&first).await, "A claim of an unused key must be Claimed");
    written(world.store().release(grant.owner()).await, "A release by the owner must be Written");

    let newer = || Claim::new(first.scope().clone(), first.key().clone(), world.token(), newer.clone());
    reused(world.ask(&newer()).await, "A form that is not accepted must be Reuse");
    let accepting = newer().accepting(fingerprint("something else")).accepting(older.clone());
    let grant = claimed(world.ask(&accepting).await, "An accepted older form must be a retry: Claimed");
    let stored = present(world.store().read(first.scope(), first.key()).await, "A claimed record must be there");
    assert_eq!(stored.fingerprint.as_ref(), Some(&older), "The record must keep the fingerprint that it had");
    claimed(world.ask(&accepting).await, "A repeated claim must be Claimed again by the form that was accepted");
    let completed = world.store().complete(grant.owner(), &Response::new(200), Retention::default()).await;
    written(completed, "A completion by the owner must be Written");
    let accepting = newer().accepting(older);
    replayed(world.ask(&accepting).await, "An accepted older form must be a retry: Replay");
}

/// A record in progress, released, held, done or lapsed answers as the table says, and a response is only ever read
/// from one that is done.
// case 014
pub async fn a_record_is_read_for_what_it_is_in_every_state(harness: &Harness) {
    let world = World::new(harness).await;
    for state in ["in progress", "released", "held", "done"] {
        let claim = world.claim(&scope("tenant"), &key(state));
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        bring_to(&world, &grant, state).await;
        let read = present(world.store().read(claim.scope(), claim.key()).await, "The record must be there");
        let expected = match state {
            "in progress" => State::InProgress,
            "released" => State::Released,
            "held" => State::Held,
            _ => State::Done(response()),
        };
        assert_eq!(read.state, expected, "A record {state} must be read as what it is");
        assert_eq!(read.settled.is_some(), state != "in progress", "Only a settled record says when it was settled");
        let retry = world.ask(&world.claim(claim.scope(), claim.key())).await;
        match state {
            "in progress" => drop(conflict(retry, "A claim of a record in progress must be Conflict")),
            "released" => {
                let grant = claimed(retry, "A claim of a released record must be Claimed");
                assert!(grant.is_repeat(), "The attempt after a release must be a repeat");
            }
            "held" => unknown(retry, "A claim of a held record must be Unknown"),
            _ => assert_eq!(
                replayed(retry, "A claim of a done record must be Replay"),
                response(),
                "A replay must be the recorded response"
            ),
        }
    }
}

/// A key whose attempts fail one after the other stays usable: each next one starts at once, and the one that succeeds
/// is replayed from then on.
// case 046
pub async fn ten_releases_in_a_row_leave_the_key_usable(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    for number in 1..=10 {
        let grant = claimed(world.ask(&world.claim(&tenant, &key)).await, "A released key must be Claimed at once");
        assert_eq!(grant.number(), number, "Each attempt must have the next number");
        assert_eq!(grant.is_repeat(), number > 1, "Every attempt after a release must be a repeat");
        written(world.store().release(grant.owner()).await, "A release by the owner must be Written");
    }
    let grant = claimed(world.ask(&world.claim(&tenant, &key)).await, "A released key must be Claimed at once");
    assert_eq!((grant.number(), grant.origin()), (11, Origin::Release), "The number must count on over releases");
    let completed = world.store().complete(grant.owner(), &response(), Retention::default()).await;
    written(completed, "A completion by the owner must be Written");
    for _ in 0..3 {
        let replay = replayed(world.ask(&world.claim(&tenant, &key)).await, "A done key must be Replay");
        assert_eq!(replay, response(), "A replay must be the recorded response");
    }
}

/// An attempt that did nothing and is forgotten leaves the key to a corrected request, whose attempt is no repeat and
/// has the next number.
// case 101
pub async fn a_forgotten_attempt_leaves_the_key_to_a_corrected_request(harness: &Harness) {
    let world = World::new(harness).await;
    let first = world.claim(&scope("tenant"), &key("k"));
    let grant = claimed(world.ask(&first).await, "A claim of an unused key must be Claimed");
    written(world.store().forget(grant.owner()).await, "A forget by the owner must be Written");
    let stored = present(world.store().read(first.scope(), first.key()).await, "A forgotten record must stay");
    assert_eq!((stored.state, stored.fingerprint, stored.number), (State::Released, None, 1));

    let corrected = Claim::new(first.scope().clone(), first.key().clone(), world.token(), fingerprint("corrected"));
    let grant = claimed(world.ask(&corrected).await, "A corrected request must be Claimed after a forget");
    assert_eq!((grant.number(), grant.is_repeat()), (2, false), "It must be attempt 2, and no repeat");
    reused(
        world.ask(&world.claim(first.scope(), first.key())).await,
        "The record must have the fingerprint of the corrected request from then on",
    );
}

/// A forget by an attempt that is a repeat, or that left checkpoints, keeps the fingerprint: somebody may have had
/// effects for that request.
pub async fn a_forget_after_possible_effects_keeps_the_fingerprint(harness: &Harness) {
    let world = World::new(harness).await;
    let tenant = scope("tenant");
    let repeat = world.claim(&tenant, &key("repeat"));
    let grant = claimed(world.ask(&repeat).await, "A claim of an unused key must be Claimed");
    written(world.store().release(grant.owner()).await, "A release by the owner must be Written");
    let grant = claimed(world.ask(&world.claim(&tenant, &key("repeat"))).await, "A released key must be Claimed");
    written(world.store().forget(grant.owner()).await, "A forget by the owner must be Written");

    let left = world.claim(&tenant, &key("left something"));
    let grant = claimed(world.ask(&left).await, "A claim of an unused key must be Claimed");
    let charge = Checkpoint::new("charge", "ch_1").expect("a valid name");
    written(world.store().checkpoint(grant.owner(), &charge).await, "A checkpoint by the owner must be Written");
    written(world.store().forget(grant.owner()).await, "A forget by the owner must be Written");

    for claim in [repeat, left] {
        let other = Claim::new(claim.scope().clone(), claim.key().clone(), world.token(), fingerprint("another"));
        reused(world.ask(&other).await, "Another request must be Reuse after a forget that may have had effects");
        let next = world.ask(&world.claim(claim.scope(), claim.key())).await;
        let next = claimed(next, "A retry must be Claimed after a forget");
        assert!(next.is_repeat(), "The attempt after a forget that may have had effects must be a repeat");
    }
}

/// What an attempt leaves under a name is there for the attempts after a release and after a takeover, and the first
/// value of a name stays.
pub async fn checkpoints_reach_the_next_attempt_and_the_first_value_of_a_name_stays(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let keep = |value: &'static str| Checkpoint::new("charge", value).expect("a valid name");
    let kept = Checkpointed::Kept("ch_1".into());

    let grant = claimed(world.ask(&world.claim(&tenant, &key)).await, "A claim of an unused key must be Claimed");
    for value in ["ch_1", "ch_2", "ch_1"] {
        let answer = world.store().checkpoint(grant.owner(), &keep(value)).await;
        let answer = written(answer, "A checkpoint by the owner must be Written");
        assert_eq!(answer, kept, "A checkpoint must be answered with the first value of its name");
    }
    written(world.store().release(grant.owner()).await, "A release by the owner must be Written");

    let second = world.claim(&tenant, &key).with_lease(world.lease());
    let second = claimed(world.ask(&second).await, "A released key must be Claimed");
    assert_eq!(second.checkpoints().find("charge"), Some(&"ch_1".into()), "A release must keep the checkpoints");
    let mail = Checkpoint::new("mail", &b"\0\xff"[..]).expect("a valid name");
    written(world.store().checkpoint(second.owner(), &mail).await, "A checkpoint by the owner must be Written");
    world.advance_to(second.lease_end()).await;

    let third = taken_over(world.ask(&world.claim(&tenant, &key)).await, "A lapsed record must be TakenOver");
    let names: Vec<_> = third.checkpoints().iter().map(|(name, value)| (name, value.as_ref())).collect();
    assert_eq!(names, [("charge", &b"ch_1"[..]), ("mail", b"\0\xff")], "A takeover must keep them, oldest first");
    let answer = world.store().checkpoint(third.owner(), &keep("ch_3")).await;
    let answer = written(answer, "A checkpoint by the owner must be Written");
    assert_eq!(answer, kept, "A checkpoint must be answered with the first value of its name, whoever kept it");

    let completed = world.store().complete(third.owner(), &response(), Retention::default()).await;
    written(completed, "A completion by the owner must be Written");
    let done = present(world.store().read(&tenant, &key).await, "A done record must be there");
    assert!(done.checkpoints.is_empty(), "A completion must drop the checkpoints");
}

/// The checkpoints of a record have at most 64 KiB, names included: what does not fit is answered Full and changes
/// nothing.
pub async fn checkpoints_over_64_kib_are_answered_full_and_leave_the_others(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let grant = claimed(world.ask(&world.claim(&tenant, &key)).await, "A claim of an unused key must be Claimed");
    let added = harness.added_to_checkpoints();
    let size = idem_core::MAX_CHECKPOINT_BYTES - 2 * added - "a".len() - "b".len();
    let kept = [("a", vec![7; size - 10]), ("b", vec![8; 10])];
    // None of these values is shown: they are long.
    for (name, value) in kept.clone() {
        let checkpoint = Checkpoint::new(name, value.clone()).expect("a valid name");
        let answer = written(
            world.store().checkpoint(grant.owner(), &checkpoint).await,
            "A checkpoint by the owner must be Written",
        );
        let limit = format!("{name:?} of {} bytes, {} in all with the names", value.len(), size + 2 + 2 * added);
        match answer {
            Checkpointed::Kept(answered) => assert!(answered == value, "A checkpoint must be kept as it is: {limit}"),
            Checkpointed::Full => panic!("Up to the limit a checkpoint must be kept, and this is Full: {limit}"),
        }
    }
    for value in ["", "x"] {
        let checkpoint = Checkpoint::new("c", value).expect("a valid name");
        let answer = world.store().checkpoint(grant.owner(), &checkpoint).await;
        let answer = written(answer, "A checkpoint by the owner must be Written");
        assert_eq!(answer, Checkpointed::Full, "Over the limit the answer must be Full");
    }
    let record = present(world.store().read(&tenant, &key).await, "The record must be there");
    let found: Vec<_> = record.checkpoints.iter().map(|(name, value)| (name, value.len())).collect();
    assert_eq!(found, [("a", size - 10), ("b", 10)], "Full must change nothing");
    let is_same = record.checkpoints.iter().zip(&kept).all(|((_, value), (_, expected))| value == expected);
    assert!(is_same, "Full must change nothing: the values are others now");
}

/// A record whose attempts lapse as often as the claim's limit allows is Unknown, and waits for someone.
pub async fn a_record_that_lapsed_too_often_is_unknown(harness: &Harness) {
    let world = World::new(harness).await;
    let (tenant, key) = (scope("tenant"), key("k"));
    let limited =
        || world.claim(&tenant, &key).with_lease(world.lease()).with_lapse_limit(std::num::NonZeroU32::new(3));
    let first = claimed(world.ask(&limited()).await, "A claim of an unused key must be Claimed");
    world.advance_to(first.lease_end()).await;
    for number in [2, 3] {
        let grant = taken_over(world.ask(&limited()).await, "Below the lapse limit a lapsed record must be TakenOver");
        assert_eq!(grant.number(), number, "Each takeover must be the next attempt");
        world.advance_to(grant.lease_end()).await;
    }
    unknown(world.ask(&limited()).await, "At the lapse limit a lapsed record must be Unknown");
    let unlimited = world.claim(&tenant, &key);
    let grant = taken_over(world.ask(&unlimited).await, "A claim without a limit must be TakenOver");
    assert_eq!(grant.number(), 4, "An Unknown answer must not count as an attempt");
}

/// A claim under hold that finds an attempt lapsed which may have run is Unknown; one under hold that never started is
/// taken over.
pub async fn on_lapse_rules_of_the_record_and_the_claim_both_count(harness: &Harness) {
    let world = World::new(harness).await;
    let tenant = scope("tenant");
    let plain = lapsed(&world, "plain").await;
    let under_hold = world.claim(&tenant, plain.owner().key()).with_on_lapse(OnLapse::Hold);
    unknown(world.ask(&under_hold).await, "A claim under hold of a lapsed record that is not must be Unknown");
    taken_over(
        world.ask(&world.claim(&tenant, plain.owner().key())).await,
        "A claim that takes over must be TakenOver on a lapsed record that is not under hold",
    );

    let held = world.claim(&tenant, &key("never started")).with_lease(world.lease()).with_on_lapse(OnLapse::Hold);
    let grant = claimed(world.ask(&held).await, "A claim of an unused key must be Claimed");
    world.advance_to(grant.lease_end()).await;
    taken_over(
        world.ask(&world.claim(&tenant, held.key())).await,
        "A record under hold whose attempt never started must be TakenOver",
    );
}

/// Brings the record of a first attempt to a state. A lapse takes the lease that the claim asked for.
async fn bring_to(world: &World<'_>, grant: &Grant, state: &str) {
    let (store, owner) = (world.store(), grant.owner());
    match state {
        "released" => written(store.release(owner).await, "A release by the owner must be Written"),
        "held" => written(store.hold(owner, Retention::default()).await, "A hold by the owner must be Written"),
        "done" => {
            let completed = store.complete(owner, &response(), Retention::default()).await;
            written(completed, "A completion by the owner must be Written");
        }
        "lapsed" => world.advance_to(grant.lease_end()).await,
        _ => {}
    }
}

/// The grant of a first attempt that has lapsed.
async fn lapsed(world: &World<'_>, name: &str) -> Grant {
    let claim = world.claim(&scope("tenant"), &key(name)).with_lease(world.lease());
    let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
    world.advance_to(grant.lease_end()).await;
    grant
}

fn response() -> Response {
    Response::new(201).with_header("location", "/payments/1").with_body(r#"{"id":"1"}"#)
}
