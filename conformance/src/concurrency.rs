//! Concurrency: many tasks on several handles, started together, and one outcome for each key.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem_core::{
    Answer, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Grant, OnLapse, Response, Retention, Scope, Store,
    StoreError, machine,
};
use tokio::{
    sync::Barrier,
    task::{JoinError, JoinSet},
};

use crate::{
    Harness,
    agreement::differences,
    expect::{absent, claimed, ok, present, written},
    world::{World, fingerprint, key, scope},
};

/// How many tasks race for one key.
const TASKS: usize = 32;
/// On how many handles they are.
const HANDLES: usize = 4;
/// How many keys they race for, one after the other.
const ROUNDS: usize = 100;
/// How many rounds do where every record is read afterwards.
const FEW_ROUNDS: usize = 10;
/// One that no round outlasts.
const A_LONG_LEASE: Duration = Duration::from_secs(60 * 60);

/// Of many claims of one unused key exactly one is Claimed, whichever handles they come through, and the others are
/// Conflict. The stored token is the winner's.
// cases 004, 005, 011
pub async fn of_many_claims_of_one_key_at_once_exactly_one_is_claimed(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    let tenant = scope("tenant");
    let mut total = Count::default();
    for round in race.rounds() {
        let key = key(&format!("k-{round}"));
        let count = race.claims(|_| world.claim(&tenant, &key)).await;
        count.assert_one_winner(round, "Of the claims of one unused key exactly one must be Claimed");
        let stored = present(world.store().read(&tenant, &key).await, "A claimed record must be there");
        let winner = count.grants[0].owner().attempt();
        assert_eq!(stored.attempt(), winner, "The stored attempt must be the one that was told Claimed");
        total.add(count);
    }
    race.finish(total, "A claim");
}

/// The same where every claim is for another request: the losers are told Reuse.
// case 060
pub async fn of_many_requests_under_one_key_at_once_exactly_one_is_claimed_and_the_others_are_reuse(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    let tenant = scope("tenant");
    let mut total = Count::default();
    for round in race.rounds() {
        let key = key(&format!("k-{round}"));
        let request = |task| fingerprint(&format!("request {task}"));
        let count = race.claims(|task| Claim::new(tenant.clone(), key.clone(), world.token(), request(task))).await;
        assert_eq!(
            (count.grants.len(), count.reuses + count.busy),
            (1, TASKS - 1),
            "Of different requests under one unused key exactly one must be Claimed and the others Reuse; round {round} \
             had {count:?}"
        );
        total.add(count);
    }
    race.finish(total, "A request");
}

/// Of many claims of one lapsed record exactly one takes it over, as attempt 2, and the others are Conflict.
pub async fn of_many_claims_of_a_lapsed_record_at_once_exactly_one_takes_it_over(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    let tenant = scope("tenant");
    let mut end = world.now().await;
    for round in race.rounds() {
        let claim = world.claim(&tenant, &key(&format!("k-{round}"))).with_lease(world.lease());
        end = end.max(claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed").lease_end());
    }
    world.advance_to(end).await;
    let mut total = Count::default();
    for round in race.rounds() {
        let key = key(&format!("k-{round}"));
        let count = race.claims(|_| world.claim(&tenant, &key)).await;
        count.assert_one_winner(round, "Of the claims of one lapsed record exactly one must be TakenOver");
        assert_eq!((count.takeovers, count.grants[0].number()), (1, 2), "A takeover must be attempt 2");
        total.add(count);
    }
    race.finish(total, "A takeover");
}

/// Of many claims of one released record exactly one is Claimed, as attempt 2, and the others are Conflict.
pub async fn of_many_claims_of_a_released_record_at_once_exactly_one_is_claimed(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    let tenant = scope("tenant");
    let mut total = Count::default();
    for round in race.rounds() {
        let key = key(&format!("k-{round}"));
        let first = claimed(world.ask(&world.claim(&tenant, &key)).await, "A claim of an unused key must be Claimed");
        written(world.store().release(first.owner()).await, "A release by the owner must be Written");
        let count = race.claims(|_| world.claim(&tenant, &key)).await;
        count.assert_one_winner(round, "Of the claims of one released record exactly one must be Claimed");
        assert_eq!(count.grants[0].number(), 2, "The attempt after a release must be attempt 2");
        total.add(count);
    }
    race.finish(total, "A claim");
}

/// Of many resolvers that saw the same attempt exactly one gets its record.
pub async fn of_many_resolvers_of_one_record_at_once_exactly_one_gets_it(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    let tenant = scope("tenant");
    let mut winners = 0;
    for round in race.rounds() {
        let key = key(&format!("k-{round}"));
        let first = claimed(world.ask(&world.claim(&tenant, &key)).await, "A claim of an unused key must be Claimed");
        let held = world.store().hold(first.owner(), Retention::default()).await;
        written(held, "A hold by the owner must be Written");
        let answers = race
            .run(|_| {
                let resolve = world.resolve(&first);
                move |store: Arc<dyn Store>| async move { idem_core::resolve(&*store, &resolve).await }
            })
            .await;
        let grants: Vec<Grant> = answers
            .into_iter()
            .filter_map(|answer| match ok(answer) {
                Fenced::Written(grant) => Some(grant),
                Fenced::Superseded => None,
            })
            .collect();
        assert_eq!(grants.len(), 1, "Of the resolvers of one record exactly one must get it; round {round}");
        let stored = present(world.store().read(&tenant, &key).await, "A resolved record must be there");
        assert_eq!(stored.attempt(), grants[0].owner().attempt(), "The stored attempt must be the winner's");
        winners += grants.len();
    }
    race.assert_collided();
    assert_eq!(winners, ROUNDS, "Every record must have gone to one resolver");
}

/// A purge that meets renewals of the one record in its scope removes it: what is written in between is no reason to
/// leave it. Of two, one removes it and counts it.
pub async fn of_purges_that_meet_writes_exactly_one_removes_the_record(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    for round in race.rounds() {
        let (tenant, key) = (scope(&format!("leaves-{round}")), key("k"));
        let grant = claimed(world.ask(&world.claim(&tenant, &key)).await, "A claim of an unused key must be Claimed");
        let purges = 1 + round % 2;
        let removed = race.run(|task| {
            let (tenant, owner, lease) = (tenant.clone(), grant.owner().clone(), world.lease());
            move |store: Arc<dyn Store>| async move {
                if task < purges {
                    return ok(store.purge(&tenant, NonZeroUsize::MIN).await);
                }
                for turn in 0..3 {
                    // No two write the same.
                    let renewed = store.renew(&owner, lease + Duration::from_millis((3 * task + turn) as u64)).await;
                    // One that compares and swaps may be kept from it by so many others.
                    if !renewed.as_ref().is_err_and(|error| error.kind() == idem_core::StoreErrorKind::Unavailable) {
                        ok(renewed);
                    }
                }
                0
            }
        });
        let removed: usize = removed.await.into_iter().sum();
        let rule = "Of the purges of a scope with one record exactly one must remove it and count it";
        assert_eq!(removed, 1, "{rule}; in round {round} they counted {removed}");
        absent(world.store().read(&tenant, &key).await, "A purged record must be absent");
    }
    race.assert_collided();
}

/// A completion that meets takeovers of its lapsed record has exactly one outcome: it is stored and every claim is
/// answered with it, or one claim took over and the completion is Superseded.
// case 018
pub async fn a_completion_that_meets_takeovers_is_stored_or_superseded_and_never_both(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    let tenant = scope("tenant");
    let mut owners = Vec::new();
    let mut end = world.now().await;
    for round in race.rounds() {
        let claim = world.claim(&tenant, &key(&format!("k-{round}"))).with_lease(world.lease());
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        end = end.max(grant.lease_end());
        owners.push(grant);
    }
    world.advance_to(end).await;
    let (mut stored, mut taken) = (0, 0);
    for round in race.rounds() {
        let key = key(&format!("k-{round}"));
        let response = Response::new(201).with_body(format!("round {round}"));
        // Not always the first to start.
        let completer = round % TASKS;
        let answers = race
            .run(|task| {
                let owner = (task == completer).then(|| owners[round].owner().clone());
                let (claim, response) = (world.claim(&tenant, &key), response.clone());
                move |store: Arc<dyn Store>| async move {
                    match owner {
                        Some(owner) => {
                            let completed = store.complete(&owner, &response, Retention::default()).await?;
                            Ok(Either::Written(completed == Fenced::Written(response)))
                        }
                        None => idem_core::claim(&*store, &claim).await.map(|answer| Either::Claim(Box::new(answer))),
                    }
                }
            })
            .await;
        let (mut completed, mut claims) = (0, Vec::new());
        for answer in answers {
            match ok(answer) {
                Either::Written(written) => completed += usize::from(written),
                Either::Claim(answer) => claims.push(Ok(*answer)),
            }
        }
        let count = Count::of(claims);
        let replays = if completed == 1 { TASKS - 1 - count.busy } else { 0 };
        assert_eq!(
            (completed + count.takeovers, count.grants.len(), count.replays),
            (1, count.takeovers, replays),
            "A completion that meets takeovers must be stored and replayed to all, or superseded by exactly one; round \
             {round} had {completed} completions and {count:?}"
        );
        let record = present(world.store().read(&tenant, &key).await, "A record that was raced for must be there");
        assert_eq!(record.number as usize, 1 + count.takeovers, "The stored attempt must be the one that won");
        stored += completed;
        taken += count.takeovers;
    }
    race.assert_collided();
    assert_eq!(stored + taken, ROUNDS, "Every record must have been completed or taken over");
}

/// A renewal by an attempt that lapsed, while others take over: either it comes first, and they are Conflict, or one of
/// them does, and it is Superseded.
pub async fn a_renewal_that_meets_takeovers_keeps_the_key_or_is_superseded(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    let tenant = scope("tenant");
    let mut owners = Vec::new();
    let mut end = world.now().await;
    for round in race.rounds() {
        let claim = world.claim(&tenant, &key(&format!("k-{round}"))).with_lease(world.lease());
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        end = end.max(grant.lease_end());
        if round % 2 == 1 {
            // It has started, so that renewing it again moves the lease and nothing else.
            written(world.store().renew(grant.owner(), world.lease()).await, "A renewal by the owner must be Written");
            end =
                end.max(present(world.store().read(&tenant, claim.key()).await, "The record must be there").lease_end);
        }
        owners.push(grant);
    }
    world.advance_to(end).await;
    for round in race.rounds() {
        let key = key(&format!("k-{round}"));
        let renewer = round % TASKS;
        let answers = race
            .run(|task| {
                let owner = (task == renewer).then(|| owners[round].owner().clone());
                let claim = world.claim(&tenant, &key);
                move |store: Arc<dyn Store>| async move {
                    match owner {
                        Some(owner) => {
                            Ok(Either::Written(store.renew(&owner, A_LONG_LEASE).await? != Fenced::Superseded))
                        }
                        None => idem_core::claim(&*store, &claim).await.map(|answer| Either::Claim(Box::new(answer))),
                    }
                }
            })
            .await;
        let (mut is_renewed, mut claims) = (false, Vec::new());
        for answer in answers {
            match ok(answer) {
                Either::Written(renewed) => is_renewed = renewed,
                Either::Claim(answer) => claims.push(Ok(*answer)),
            }
        }
        let count = Count::of(claims);
        assert_eq!(
            usize::from(is_renewed) + count.takeovers,
            1,
            "A renewal that meets takeovers must be written and keep the key, or be superseded by exactly one; round \
             {round}: renewed is {is_renewed}, and the claims had {count:?}"
        );
        let record = present(world.store().read(&tenant, &key).await, "A record that was raced for must be there");
        assert_eq!(record.number as usize, 1 + count.takeovers, "The stored attempt must be the one that won");
    }
    race.assert_collided();
}

/// A checkpoint by an attempt that lapsed, while others take over: either its successor finds it, or it is Superseded.
pub async fn a_checkpoint_that_meets_takeovers_is_in_the_successors_hands_or_superseded(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    let tenant = scope("tenant");
    let mut owners = Vec::new();
    let mut end = world.now().await;
    for round in race.rounds() {
        let claim = world.claim(&tenant, &key(&format!("k-{round}"))).with_lease(world.lease());
        let grant = claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed");
        end = end.max(grant.lease_end());
        owners.push(grant);
    }
    world.advance_to(end).await;
    for round in race.rounds() {
        let key = key(&format!("k-{round}"));
        let keeper = round % TASKS;
        let answers = race
            .run(|task| {
                let owner = (task == keeper).then(|| owners[round].owner().clone());
                let claim = world.claim(&tenant, &key);
                move |store: Arc<dyn Store>| async move {
                    match owner {
                        Some(owner) => {
                            let charge = Checkpoint::new("charge", "ch_1").expect("a valid name");
                            let kept = store.checkpoint(&owner, &charge).await?;
                            Ok(Either::Written(kept != Fenced::Superseded))
                        }
                        None => idem_core::claim(&*store, &claim).await.map(|answer| Either::Claim(Box::new(answer))),
                    }
                }
            })
            .await;
        let (mut is_kept, mut claims) = (false, Vec::new());
        for answer in answers {
            match ok(answer) {
                Either::Written(kept) => is_kept = kept,
                Either::Claim(answer) => claims.push(Ok(*answer)),
            }
        }
        for grant in Count::of(claims).grants {
            let found = grant.checkpoints().find("charge").is_some();
            assert_eq!(
                found, is_kept,
                "A checkpoint that was answered must be in the hands of the attempt that takes over, and one that was \
                 Superseded must not; round {round}"
            );
        }
    }
    race.assert_collided();
}

/// When an attempt completes many times at once with different responses, one is recorded, and every call is answered
/// with that one.
pub async fn of_many_completions_by_one_attempt_one_is_recorded_and_all_are_answered_with_it(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    let tenant = scope("tenant");
    for round in race.rounds() {
        let key = key(&format!("k-{round}"));
        let grant = claimed(world.ask(&world.claim(&tenant, &key)).await, "A claim of an unused key must be Claimed");
        let answers = race
            .run(|task| {
                let owner = grant.owner().clone();
                let response = Response::new(200).with_body(format!("completion {task}"));
                move |store: Arc<dyn Store>| async move { store.complete(&owner, &response, Retention::default()).await }
            })
            .await;
        let mut recorded: Vec<_> =
            answers.into_iter().map(|answer| written(answer, "A completion by the owner must be Written")).collect();
        recorded.dedup();
        assert_eq!(recorded.len(), 1, "All completions of one attempt must be answered with the one that was recorded");
    }
    race.assert_collided();
}

/// When an attempt keeps many values under one name at once, the first stays and every call is answered with it.
pub async fn of_many_checkpoints_of_one_name_at_once_one_is_kept_and_all_are_answered_with_it(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    let tenant = scope("tenant");
    for round in race.rounds() {
        let key = key(&format!("k-{round}"));
        let grant = claimed(world.ask(&world.claim(&tenant, &key)).await, "A claim of an unused key must be Claimed");
        let answers = race
            .run(|task| {
                let owner = grant.owner().clone();
                let checkpoint = Checkpoint::new("charge", format!("charge {task}")).expect("a valid name");
                move |store: Arc<dyn Store>| async move { store.checkpoint(&owner, &checkpoint).await }
            })
            .await;
        let mut kept: Vec<_> =
            answers.into_iter().map(|answer| written(answer, "A checkpoint by the owner must be Written")).collect();
        kept.dedup();
        assert_eq!(kept.len(), 1, "All checkpoints of one name must be answered with the value that was kept first");
        let record = present(world.store().read(&tenant, &key).await, "A record with a checkpoint must be there");
        let stored = record.checkpoints.find("charge").cloned();
        assert_eq!(stored.map(Checkpointed::Kept), kept.pop(), "The stored value must be the one that was answered");
    }
    race.assert_collided();
}

/// Tasks that claim one key and give it back, over and over, never own it at the same time, and the attempts are
/// numbered without a gap.
pub async fn a_key_that_is_claimed_and_released_at_once_has_one_owner_at_a_time_and_no_gap_in_its_numbers(
    harness: &Harness,
) {
    const WORKERS: usize = 8;
    const GRANTS: usize = 12;

    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    let (tenant, busy_key) = (scope("tenant"), key("busy"));
    let owners = Arc::new(AtomicUsize::new(0));
    let barrier = Arc::new(Barrier::new(WORKERS));
    let mut tasks = JoinSet::new();
    for worker in 0..WORKERS {
        let store = Arc::clone(&race.handles[worker % HANDLES]);
        let claims: Vec<_> = (0..GRANTS).map(|_| world.claim(&tenant, &busy_key)).collect();
        let (owners, barrier) = (Arc::clone(&owners), Arc::clone(&barrier));
        tasks.spawn(async move {
            barrier.wait().await;
            for claim in claims {
                let grant = loop {
                    match ok(idem_core::claim(&*store, &claim).await) {
                        Answer::Claimed(grant) => break grant,
                        Answer::Conflict { .. } => tokio::task::yield_now().await,
                        other => panic!(
                            "A claim of a contended key must be Claimed or Conflict; the store answered {other:?}"
                        ),
                    }
                };
                let before = owners.fetch_add(1, Ordering::SeqCst);
                assert_eq!(before, 0, "Nobody may be told Claimed while another attempt owns the key");
                tokio::task::yield_now().await;
                owners.fetch_sub(1, Ordering::SeqCst);
                written(store.release(grant.owner()).await, "A release by the owner must be Written");
            }
        });
    }
    // The first worker that fails ends the check, and with it the others: they wait for a release that won't come.
    while let Some(ended) = tasks.join_next().await {
        value(ended);
    }
    let record = present(world.store().read(&tenant, &busy_key).await, "A released record must be there");
    assert_eq!(
        record.number as usize,
        WORKERS * GRANTS,
        "Every grant must have been one attempt, numbered without a gap"
    );
}

/// A claim that is repeated while its record is purged and another claims the key never takes that one's record: if the
/// rival was told Claimed, the record is the rival's.
pub async fn a_repeated_claim_that_meets_a_purge_and_a_rival_leaves_the_key_to_one_of_them(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    for round in race.rounds() {
        let (tenant, key) = (scope(&format!("tenant-{round}")), key("k"));
        let (mine, rivals) = (world.claim(&tenant, &key), world.claim(&tenant, &key));
        claimed(world.ask(&mine).await, "A claim of an unused key must be Claimed");
        // Not always the first to start.
        let purger = round % TASKS;
        let answers = race
            .run(|task| {
                let (mut mine, rivals) = (mine.clone(), rivals.clone());
                if round % 2 == 1 {
                    // No two write the same. In the other rounds all do, so that only the token tells them apart.
                    let lease = mine.lease() + Duration::from_millis(task as u64);
                    mine = mine.with_lease(lease);
                }
                move |store: Arc<dyn Store>| async move {
                    if task != purger {
                        return idem_core::claim(&*store, &mine).await;
                    }
                    store.purge(rivals.scope(), NonZeroUsize::MIN).await?;
                    idem_core::claim(&*store, &rivals).await
                }
            })
            .await;
        let mut owner = mine.token();
        for (task, answer) in answers.into_iter().enumerate() {
            match ok(answer) {
                Answer::Claimed(_) if task == purger => owner = rivals.token(),
                Answer::Claimed(_) | Answer::Conflict { .. } => {}
                // It found its own record, and that was purged before it could be renewed.
                Answer::Superseded if task != purger => {}
                other => panic!(
                    "A claim of a key that is purged meanwhile must be Claimed or Conflict, or Superseded if it is repeated; \
                     the store answered {other:?}"
                ),
            }
        }
        let stored = present(world.store().read(&tenant, &key).await, "A record that was raced for must be there");
        assert_eq!(
            (stored.token, stored.number),
            (owner, 1),
            "A repeated claim must not take the record of a rival that was told Claimed; round {round}"
        );
    }
    race.assert_collided();
}

/// Claims of different unused keys at once are all Claimed: none is told Conflict because of another.
pub async fn claims_of_different_keys_at_once_are_all_claimed(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    let tenant = scope("tenant");
    for round in race.rounds() {
        let count = race.claims(|task| world.claim(&tenant, &key(&format!("k-{round}-{task}")))).await;
        assert_eq!(
            count.grants.len(),
            TASKS,
            "A claim of an unused key must be Claimed, whatever other keys are claimed meanwhile; round {round} had \
             {count:?}"
        );
    }
    race.assert_collided();
}

/// Claims of different keys that arrive together, each with a request, a lease, a retention and an on-lapse rule of its
/// own, are each kept with their own, and given the row that is kept.
pub async fn claims_that_arrive_together_are_each_kept_as_their_own(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    let tenant = scope("tenant");
    for round in 0..FEW_ROUNDS {
        let claims: Vec<Claim> = (0..TASKS).map(|task| unlike_the_others(&world, &tenant, round, task)).collect();
        let rows = race.run(|task| {
            let claim = claims[task].clone();
            move |store: Arc<dyn Store>| async move { store.claim(&claim).await }
        });
        for (claim, row) in claims.iter().zip(rows.await) {
            let ClaimRow::Written(row) = ok(row) else {
                panic!(
                    "A claim of an unused key must give the row that it wrote, whatever other keys are claimed meanwhile"
                )
            };
            let stored = present(world.store().read(&tenant, claim.key()).await, "A claimed record must be there");
            let decision = machine::claim(None, claim, stored.claimed).expect("a claim of an unused key is no reuse");
            let expected = decision.write.expect("a claim of an unused key is written");
            assert_eq!(
                stored,
                expected,
                "A claim must be kept as its own, whatever arrives with it: {}",
                differences(&expected, &stored)
            );
            assert_eq!(row, stored, "The row that a claim gives must be stored: {}", differences(&row, &stored));
        }
    }
    race.assert_collided();
}

fn unlike_the_others(world: &World<'_>, tenant: &Scope, round: usize, task: usize) -> Claim {
    let seconds = |number: usize| Duration::from_secs(u64::try_from(number).unwrap_or(u64::MAX));
    let token = world.token();
    let lease = seconds(100 + task);
    // Of some the lease ends later than the retention would.
    let retention = if task % 4 == 3 { seconds(1 + task) } else { seconds(1_000 + 2 * task) };
    Claim::new(tenant.clone(), key(&format!("k-{round}-{task}")), token, fingerprint(&format!("request {task}")))
        .with_lease(lease)
        .with_retention(Retention::new(retention).with_held(retention + seconds(10_000)))
        .with_on_lapse(if task % 8 < 4 { OnLapse::TakeOver } else { OnLapse::Hold })
}

/// A takeover, and not a conflict, is what a claim of a lapsed record gets while other keys are busy.
pub async fn takeovers_of_different_keys_at_once_all_succeed(harness: &Harness) {
    let world = World::new(harness).await;
    let race = Race::new(&world).await;
    let tenant = scope("tenant");
    let mut end = world.now().await;
    for task in 0..TASKS {
        let claim = world.claim(&tenant, &key(&format!("k-{task}"))).with_lease(world.lease());
        end = end.max(claimed(world.ask(&claim).await, "A claim of an unused key must be Claimed").lease_end());
    }
    world.advance_to(end).await;
    let count = race.claims(|task| world.claim(&tenant, &key(&format!("k-{task}")))).await;
    assert_eq!(
        count.takeovers, TASKS,
        "A claim of a lapsed record must be TakenOver, whatever other keys are claimed meanwhile; there were {count:?}"
    );
}

enum Either {
    /// Whether the owner's write was written.
    Written(bool),
    Claim(Box<Answer>),
}

/// What the claims of one round, or of all, were answered.
#[derive(Debug, Default)]
struct Count {
    grants: Vec<Grant>,
    takeovers: usize,
    conflicts: usize,
    /// Those of the conflicts that the store did not look at: their owner was finishing.
    busy: usize,
    replays: usize,
    reuses: usize,
    others: Vec<Answer>,
}

impl Count {
    #[track_caller]
    fn of(answers: Vec<Result<Answer, StoreError>>) -> Self {
        let mut count = Self::default();
        for answer in answers {
            match ok(answer) {
                Answer::Claimed(grant) => count.grants.push(grant),
                Answer::TakenOver(grant) => {
                    count.takeovers += 1;
                    count.grants.push(grant);
                }
                Answer::Conflict { seen, .. } => {
                    count.conflicts += 1;
                    count.busy += usize::from(seen.is_none());
                }
                Answer::Replay { .. } => count.replays += 1,
                Answer::Reuse { .. } => count.reuses += 1,
                other => count.others.push(other),
            }
        }
        count
    }

    #[track_caller]
    fn assert_one_winner(&self, round: usize, rule: &str) {
        assert_eq!(
            (self.grants.len(), self.conflicts),
            (1, TASKS - 1),
            "{rule} and the others Conflict; round {round} had {self:?}"
        );
    }

    fn add(&mut self, other: Self) {
        self.grants.extend(other.grants);
        self.takeovers += other.takeovers;
        self.conflicts += other.conflicts;
        self.busy += other.busy;
        self.replays += other.replays;
        self.reuses += other.reuses;
        self.others.extend(other.others);
    }
}

/// Handles that have been used, and what is known of the tasks that raced on them.
struct Race {
    handles: Vec<Arc<dyn Store>>,
    in_flight: Arc<AtomicUsize>,
    /// The most calls that were in flight at one moment.
    most: Arc<AtomicUsize>,
}

impl Race {
    async fn new(world: &World<'_>) -> Self {
        Self { handles: warmed_handles(world, HANDLES).await, in_flight: Arc::default(), most: Arc::default() }
    }

    fn rounds(&self) -> std::ops::Range<usize> {
        0..ROUNDS
    }

    /// Starts the tasks behind a barrier, spread over the handles, and gives what they gave, in their order.
    async fn run<T, F>(&self, action: impl Fn(usize) -> F) -> Vec<T::Output>
    where
        F: FnOnce(Arc<dyn Store>) -> T,
        T: Future<Output: Send> + Send + 'static,
    {
        let barrier = Arc::new(Barrier::new(TASKS));
        let started = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let call = action(task)(Arc::clone(&self.handles[task % HANDLES]));
                let barrier = Arc::clone(&barrier);
                let (in_flight, most) = (Arc::clone(&self.in_flight), Arc::clone(&self.most));
                let started = Arc::clone(&started);
                tokio::spawn(async move {
                    barrier.wait().await;
                    most.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    meet(&started);
                    let gave = call.await;
                    in_flight.fetch_sub(1, Ordering::SeqCst);
                    gave
                })
            })
            .collect();
        let mut gave = Vec::with_capacity(TASKS);
        for task in tasks {
            gave.push(value(task.await));
        }
        gave
    }

    /// The same with claims, and counts what they were answered.
    async fn claims(&self, claim: impl Fn(usize) -> Claim) -> Count {
        let answers = self.run(|task| {
            let claim = claim(task);
            move |store: Arc<dyn Store>| async move { idem_core::claim(&*store, &claim).await }
        });
        Count::of(answers.await)
    }

    /// Fails if no two calls ever were in flight together: then nothing was proved.
    #[track_caller]
    fn assert_collided(&self) {
        let most = self.most.load(Ordering::SeqCst);
        assert!(most > 1, "No two calls were in flight at the same moment, so this run proves nothing: run it again");
    }

    #[track_caller]
    fn finish(&self, total: Count, what: &str) {
        self.assert_collided();
        let sum = total.grants.len() + total.conflicts + total.reuses + total.replays;
        assert_eq!(total.grants.len(), ROUNDS, "{what} must have won in each round");
        assert_eq!((sum, total.others.len()), (ROUNDS * TASKS, 0), "Every call must have been answered by these rules");
    }
}

/// Opens handles and uses each once, so that none connects or prepares anything during a race.
pub(crate) async fn warmed_handles(world: &World<'_>, count: usize) -> Vec<Arc<dyn Store>> {
    let mut handles = Vec::new();
    for number in 0..count {
        let handle = world.open().await;
        let claim = world.claim(&scope("warm-up"), &key(&format!("k-{number}")));
        let grant = claimed(idem_core::claim(&*handle, &claim).await, "A claim of an unused key must be Claimed");
        let completed = handle.complete(grant.owner(), &Response::new(200), Retention::default()).await;
        written(completed, "A completion by the owner must be Written");
        handles.push(handle);
    }
    handles
}

/// Lets the first of a round wait a moment for a second one on another thread, so that calls which never wait for
/// anything meet too.
fn meet(started: &AtomicUsize) {
    started.fetch_add(1, Ordering::SeqCst);
    for _ in 0..2_000 {
        if started.load(Ordering::SeqCst) > 1 {
            return;
        }
        std::thread::yield_now();
    }
}

/// The value of a task that ended; its panic, if it had one.
pub(crate) fn value<T>(ended: Result<T, JoinError>) -> T {
    match ended {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panicked) => std::panic::resume_unwind(panicked),
            Err(cancelled) => panic!("a task of the suite was cancelled: {cancelled}"),
        },
    }
}
