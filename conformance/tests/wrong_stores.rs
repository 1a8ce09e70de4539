//! Wrong stores: each makes one plausible mistake, and a named check of the suite must catch it, for the right reason.

mod common;

use std::{
    any::Any,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
    time::Duration,
};

use bytes::Bytes;
use common::{FileStore, Gap, Marks, Reference, Repeating, Right, Rules, Slot, Unfenced, Ways, apply, right_claim};
use idem_conformance::{
    Harness, agreement, cancellation, claims, concurrency, durability, expiry, extremes, fencing, fidelity,
    housekeeping, linearizability, processes, run, transactions, waits,
};
use idem_core::{
    AttemptId, Body, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Key, ManualClock, OnLapse, Origin, Owner,
    Record, Resolve, Response, Retention, Scope, State, StoreError, Timestamp, Token, machine,
};

/// One test: the store is caught by the check, whose message holds these words.
macro_rules! caught {
    ($test:ident: $store:ty, by $group:ident::$check:ident, saying $words:literal) => {
        #[test]
        fn $test() {
            let harness = <$store>::harness().__in_test(concat!(module_path!(), "::", stringify!($test)));
            let finding = finding(harness, stringify!($check), async |harness: &Harness| {
                $group::$check(harness).await;
            });
            assert!(finding.contains($words), "It was caught, but not for its mistake:\n{finding}");
        }
    };
}

/// What a check says about a store that it catches.
fn finding(harness: Harness, name: &str, check: impl AsyncFnOnce(&Harness) + Send + 'static) -> String {
    let name = name.to_owned();
    let caught = catch_unwind(AssertUnwindSafe(|| run(&name, harness, check)));
    let panicked: Box<dyn Any + Send> = caught.expect_err("the check must catch the wrong store, and did not");
    let text = panicked.downcast_ref::<String>().cloned();
    text.or_else(|| panicked.downcast_ref::<&str>().map(|text| (*text).to_owned())).expect("a panic has a message")
}

/// Looks up, and then inserts: two requests at once both miss and both run.
#[derive(Default)]
struct LooksUpThenInserts;
impl Rules for LooksUpThenInserts {
    const GAP: Gap = Gap::Always;
}
caught!(a_look_up_followed_by_an_insert_is_caught: Reference<LooksUpThenInserts>,
    by concurrency::of_many_claims_of_one_key_at_once_exactly_one_is_claimed,
    saying "exactly one must be Claimed");

/// Inserts atomically, but takes lapsed records over in two steps.
#[derive(Default)]
struct TakesOverInTwoSteps;
impl Rules for TakesOverInTwoSteps {
    const GAP: Gap = Gap::OnLapse;
}
caught!(a_takeover_in_two_steps_is_caught: Reference<TakesOverInTwoSteps>,
    by concurrency::of_many_claims_of_a_lapsed_record_at_once_exactly_one_takes_it_over,
    saying "exactly one must be TakenOver");

/// Completes whoever has the number, without looking at the token.
#[derive(Default)]
struct CompletesWithoutToken;
impl Rules for CompletesWithoutToken {
    fn complete(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        response: &Response,
        keep: Retention,
        now: Timestamp,
    ) -> Fenced<Response> {
        as_if(
            slot,
            owner,
            |record, owner| AttemptId { token: record.token, ..owner },
            |slot| Right.complete(slot, owner, response, keep, now),
        )
    }
}
caught!(a_completion_without_the_token_is_caught: Reference<CompletesWithoutToken>,
    by fencing::a_write_with_the_right_number_and_another_token_is_superseded,
    saying "A complete by an attempt that does not own the record must be Superseded");

/// Completes whoever has the token, without looking at the number.
#[derive(Default)]
struct CompletesWithoutNumber;
impl Rules for CompletesWithoutNumber {
    fn complete(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        response: &Response,
        keep: Retention,
        now: Timestamp,
    ) -> Fenced<Response> {
        as_if(
            slot,
            owner,
            |record, owner| AttemptId { number: record.number, ..owner },
            |slot| Right.complete(slot, owner, response, keep, now),
        )
    }
}
caught!(a_completion_without_the_number_is_caught: Reference<CompletesWithoutNumber>,
    by fencing::a_write_with_the_right_token_and_an_old_number_is_superseded,
    saying "A complete by an attempt that does not own the record must be Superseded");

/// The finishing write is an upsert: it brings back records that expired or were deleted.
#[derive(Default)]
struct CompletesByUpsert;
impl Rules for CompletesByUpsert {
    fn complete(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        response: &Response,
        keep: Retention,
        now: Timestamp,
    ) -> Fenced<Response> {
        if slot.as_ref().is_none_or(|record| !record.is_live(now)) {
            let fingerprint = idem_core::Fingerprint::builder().part("body", "request").build();
            let fingerprint = fingerprint.expect("one part makes a fingerprint");
            let claim = Claim::new(owner.scope().clone(), owner.key().clone(), owner.attempt().token, fingerprint);
            *slot = None;
            let _ = right_claim(slot, &claim, now);
        }
        Right.complete(slot, owner, response, keep, now)
    }
}
caught!(a_completion_that_creates_a_record_is_caught: Reference<CompletesByUpsert>,
    by fencing::no_write_brings_a_record_back_that_expired_or_was_purged,
    saying "A complete on a record that is gone must be Superseded");

/// Compares fingerprints against finished records alone.
#[derive(Default)]
struct IgnoresTheFingerprintInProgress;
impl Rules for IgnoresTheFingerprintInProgress {
    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        match slot.as_ref().filter(|record| record.state == State::InProgress).and_then(|r| r.fingerprint.clone()) {
            Some(stored) => right_claim(slot, &claim.clone().accepting(stored), now),
            None => right_claim(slot, claim, now),
        }
    }
}
caught!(a_fingerprint_ignored_while_in_progress_is_caught: Reference<IgnoresTheFingerprintInProgress>,
    by claims::another_request_under_a_key_is_reuse_in_every_state,
    saying "the key of a record lapsed must be Reuse");

/// Leaves expiry to the sweeper: what was not swept is still replayed.
#[derive(Default)]
struct ReplaysExpiredRecords;
impl Rules for ReplaysExpiredRecords {
    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        match slot {
            Some(record) if matches!(record.state, State::Done(_)) => {
                Ok(ClaimRow::Found { record: record.clone(), now: None })
            }
            _ => right_claim(slot, claim, now),
        }
    }
}
caught!(a_replay_of_an_expired_record_is_caught: Reference<ReplaysExpiredRecords>,
    by expiry::a_done_record_is_replayed_until_its_retention_ends_and_then_is_absent,
    saying "A claim on an expired record must be Claimed");

/// Keeps bodies in a JSON column, which re-orders and re-formats them.
#[derive(Default)]
struct KeepsBodiesAsJson;
impl Rules for KeepsBodiesAsJson {
    fn complete(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        response: &Response,
        keep: Retention,
        now: Timestamp,
    ) -> Fenced<Response> {
        let response = with_body(response, |body| match std::str::from_utf8(body) {
            Ok(text) if text.starts_with('{') => text.split_whitespace().collect::<String>().into(),
            _ => body.clone(),
        });
        Right.complete(slot, owner, &response, keep, now)
    }
}
caught!(a_body_kept_as_json_is_caught: Reference<KeepsBodiesAsJson>,
    by fidelity::a_replay_equals_the_recorded_response_to_the_byte,
    saying "its body, of");

/// Keeps bodies in a text column: bytes that are no text do not survive.
#[derive(Default)]
struct KeepsBodiesAsText;
impl Rules for KeepsBodiesAsText {
    fn complete(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        response: &Response,
        keep: Retention,
        now: Timestamp,
    ) -> Fenced<Response> {
        let response = with_body(response, |body| String::from_utf8_lossy(body).into_owned().into());
        Right.complete(slot, owner, &response, keep, now)
    }
}
caught!(a_body_kept_as_text_is_caught: Reference<KeepsBodiesAsText>,
    by fidelity::a_replay_equals_the_recorded_response_to_the_byte,
    saying "its body, of");

/// Keeps headers in a map: their order and those that repeat are lost.
#[derive(Default)]
struct KeepsHeadersInAMap;
impl Rules for KeepsHeadersInAMap {
    fn complete(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        response: &Response,
        keep: Retention,
        now: Timestamp,
    ) -> Fenced<Response> {
        let headers: std::collections::BTreeMap<_, _> = response.headers().iter().cloned().collect();
        let mut kept = Response::new(response.status()).with_kept(response.body().clone());
        for (name, value) in headers {
            kept = kept.with_header(name, value);
        }
        for (name, value) in response.trailers() {
            kept = kept.with_trailer(name.clone(), value.clone());
        }
        Right.complete(slot, owner, &kept, keep, now)
    }
}
caught!(headers_kept_in_a_map_are_caught: Reference<KeepsHeadersInAMap>,
    by fidelity::a_replay_equals_the_recorded_response_to_the_byte,
    saying "its headers, in their order");

/// Has a column of 64 KiB for bodies, and a driver that cuts what is longer.
#[derive(Default)]
struct CutsLargeBodies;
impl Rules for CutsLargeBodies {
    fn complete(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        response: &Response,
        keep: Retention,
        now: Timestamp,
    ) -> Fenced<Response> {
        let response = with_body(response, |body| body.slice(..body.len().min(65_535)));
        Right.complete(slot, owner, &response, keep, now)
    }
}
caught!(a_large_body_that_is_cut_is_caught: Reference<CutsLargeBodies>,
    by fidelity::a_body_of_1_mib_is_replayed_whole,
    saying "the store gave 65535 bytes");

/// Finds records by key alone: one tenant gets another's response.
#[derive(Default)]
struct LeaksScopes;
impl Rules for LeaksScopes {
    fn id(&self, _: &Scope, key: &Key) -> (Scope, Key) {
        (Scope::global(), key.clone())
    }
}
caught!(a_leak_between_scopes_is_caught: Reference<LeaksScopes>,
    by fidelity::names_are_their_bytes_and_no_two_share_a_record,
    saying "must be a record of its own");

/// Joins scope and key to one string, so that `a` + `bc` is `ab` + `c`.
#[derive(Default)]
struct JoinsScopeAndKey;
impl Rules for JoinsScopeAndKey {
    fn id(&self, scope: &Scope, key: &Key) -> (Scope, Key) {
        let joined = format!("{}:{}", scope.as_str(), key.as_str());
        (Scope::global(), Key::new(&joined).unwrap_or_else(|_| key.clone()))
    }
}
caught!(names_joined_to_one_string_are_caught: Reference<JoinsScopeAndKey>,
    by fidelity::names_are_their_bytes_and_no_two_share_a_record,
    saying "must be a record of its own");

/// Keeps keys in a column of 64 bytes.
#[derive(Default)]
struct CutsKeys;
impl Rules for CutsKeys {
    fn id(&self, scope: &Scope, key: &Key) -> (Scope, Key) {
        let cut: String = key.as_str().chars().take(64).collect();
        (scope.clone(), Key::new(cut).expect("the start of a key is a key"))
    }
}
caught!(keys_that_are_cut_are_caught: Reference<CutsKeys>,
    by fidelity::names_are_their_bytes_and_no_two_share_a_record,
    saying "must be a record of its own");

/// Compares keys by a collation that folds case.
#[derive(Default)]
struct FoldsCase;
impl Rules for FoldsCase {
    fn id(&self, scope: &Scope, key: &Key) -> (Scope, Key) {
        (scope.clone(), Key::new(key.as_str().to_lowercase()).unwrap_or_else(|_| key.clone()))
    }
}
caught!(keys_that_are_folded_are_caught: Reference<FoldsCase>,
    by fidelity::names_are_their_bytes_and_no_two_share_a_record,
    saying "must be a record of its own");

/// Compares keys as SQL's CHAR type does: without trailing spaces.
#[derive(Default)]
struct TrimsKeys;
impl Rules for TrimsKeys {
    fn id(&self, scope: &Scope, key: &Key) -> (Scope, Key) {
        (scope.clone(), Key::new(key.as_str().trim_end_matches(' ')).unwrap_or_else(|_| key.clone()))
    }
}
caught!(keys_that_are_trimmed_are_caught: Reference<TrimsKeys>,
    by fidelity::names_are_their_bytes_and_no_two_share_a_record,
    saying "must be a record of its own");

/// A release deletes the record: numbers begin again, and the next attempt does not know that it is a repeat.
#[derive(Default)]
struct ReleaseDeletes;
impl Rules for ReleaseDeletes {
    fn release(&self, slot: &mut Slot, owner: &Owner, now: Timestamp) -> Fenced<()> {
        let answer = Right.release(slot, owner, now);
        if answer != Fenced::Superseded {
            *slot = None;
        }
        answer
    }
}
caught!(a_release_that_deletes_is_caught: Reference<ReleaseDeletes>,
    by claims::ten_releases_in_a_row_leave_the_key_usable,
    saying "Each attempt must have the next number");

/// A release does not look whose record it is.
#[derive(Default)]
struct ReleasesAnybody;
impl Rules for ReleasesAnybody {
    fn release(&self, slot: &mut Slot, owner: &Owner, now: Timestamp) -> Fenced<()> {
        as_if(slot, owner, |record, _| record.attempt(), |slot| Right.release(slot, owner, now))
    }
}
caught!(a_release_of_somebody_elses_record_is_caught: Reference<ReleasesAnybody>,
    by fencing::an_attempt_that_lost_its_key_changes_nothing,
    saying "A release by an attempt that does not own the record must be Superseded");

/// A renewal checks only that the key is in progress.
#[derive(Default)]
struct RenewsAnybody;
impl Rules for RenewsAnybody {
    fn renew(&self, slot: &mut Slot, owner: &Owner, lease: Duration, now: Timestamp) -> Fenced<()> {
        as_if(slot, owner, |record, _| record.attempt(), |slot| Right.renew(slot, owner, lease, now))
    }
}
caught!(a_renewal_of_somebody_elses_lease_is_caught: Reference<RenewsAnybody>,
    by fencing::an_attempt_that_lost_its_key_changes_nothing,
    saying "A renew by an attempt that does not own the record must be Superseded");

/// A lease is live up to and including its end.
#[derive(Default)]
struct LeasesEndLate;
impl Rules for LeasesEndLate {
    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        match slot {
            Some(record) if record.lease_end == now && record.state == State::InProgress => {
                right_claim(slot, claim, Timestamp::from_millis(now.as_millis() - 1))
            }
            _ => right_claim(slot, claim, now),
        }
    }
}
caught!(a_lease_that_ends_late_is_caught: Reference<LeasesEndLate>,
    by expiry::a_lease_is_live_until_the_instant_it_ends,
    saying "From the instant its lease ends on");

/// A completion keeps the retention of the claim.
#[derive(Default)]
struct RetainsFromTheClaim;
impl Rules for RetainsFromTheClaim {
    fn complete(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        response: &Response,
        keep: Retention,
        now: Timestamp,
    ) -> Fenced<Response> {
        let expiry = slot.as_ref().map(|record| record.expiry);
        let answer = Right.complete(slot, owner, response, keep, now);
        if let (Some(record), Some(expiry)) = (slot, expiry) {
            record.expiry = expiry;
        }
        answer
    }
}
caught!(a_retention_that_counts_from_the_claim_is_caught: Reference<RetainsFromTheClaim>,
    by expiry::a_done_record_is_replayed_until_its_retention_ends_and_then_is_absent,
    saying "Retention must count from the completion");

/// A forget always drops the fingerprint, whatever earlier attempts may have done for that request.
#[derive(Default)]
struct ForgetsTooMuch;
impl Rules for ForgetsTooMuch {
    fn forget(&self, slot: &mut Slot, owner: &Owner, now: Timestamp) -> Fenced<()> {
        let answer = Right.forget(slot, owner, now);
        if let (Fenced::Written(()), Some(record)) = (&answer, slot) {
            record.fingerprint = None;
        }
        answer
    }
}
caught!(a_forget_that_always_drops_the_fingerprint_is_caught: Reference<ForgetsTooMuch>,
    by claims::a_forget_after_possible_effects_keeps_the_fingerprint,
    saying "must be Reuse after a forget");

/// A checkpoint overwrites the one before.
#[derive(Default)]
struct OverwritesCheckpoints;
impl Rules for OverwritesCheckpoints {
    fn checkpoint(&self, slot: &mut Slot, owner: &Owner, one: &Checkpoint, now: Timestamp) -> Fenced<Checkpointed> {
        let before = slot.clone();
        if let Some(record) = slot {
            record.checkpoints = Default::default();
        }
        let answer = Right.checkpoint(slot, owner, one, now);
        if answer == Fenced::Superseded {
            *slot = before;
        }
        answer
    }
}
caught!(a_checkpoint_that_overwrites_is_caught: Reference<OverwritesCheckpoints>,
    by claims::checkpoints_reach_the_next_attempt_and_the_first_value_of_a_name_stays,
    saying "answered with the first value of its name");

/// A takeover keeps the number of the attempt that it took over.
#[derive(Default)]
struct TakesOverUnderTheOldNumber;
impl Rules for TakesOverUnderTheOldNumber {
    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        let number = slot.as_ref().map(|record| record.number);
        match (right_claim(slot, claim, now)?, number) {
            (ClaimRow::Written(mut record), Some(number)) if record.origin == Origin::Takeover => {
                record.number = number;
                *slot = Some(record.clone());
                Ok(ClaimRow::Written(record))
            }
            (row, _) => Ok(row),
        }
    }
}
caught!(a_takeover_under_the_old_number_is_caught: Reference<TakesOverUnderTheOldNumber>,
    by concurrency::of_many_claims_of_a_lapsed_record_at_once_exactly_one_takes_it_over,
    saying "A takeover must be attempt 2");

/// Answers before it stores: a crash right after the answer loses it.
#[derive(Default)]
struct AnswersBeforeItStores;
impl Rules for AnswersBeforeItStores {
    const LAZY: bool = true;
}
caught!(an_answer_before_the_write_is_caught: Reference<AnswersBeforeItStores>,
    by durability::a_restart_right_after_an_answer_undoes_nothing,
    saying "A restart must not undo a claim");

/// A claim that arrives late takes back the record that its attempt released.
#[derive(Default)]
struct ReclaimsWhatItReleased;
impl Rules for ReclaimsWhatItReleased {
    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        let own = slot.as_mut().filter(|record| record.token == claim.token());
        if let Some(record) = own.filter(|record| record.state == State::Released) {
            record.state = State::InProgress;
        }
        right_claim(slot, claim, now)
    }
}
caught!(a_late_claim_that_wins_its_key_back_is_caught: Reference<ReclaimsWhatItReleased>,
    by claims::a_late_duplicate_of_a_claim_that_is_over_never_owns_the_key_again,
    saying "must be Superseded");

/// A claim that is repeated because its reply was lost counts as another attempt.
#[derive(Default)]
struct CountsRepeatedClaims;
impl Rules for CountsRepeatedClaims {
    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        let is_own = slot.as_ref().is_some_and(|record| record.token == claim.token());
        match right_claim(slot, claim, now)? {
            ClaimRow::Written(mut record) if is_own => {
                record.number += 1;
                *slot = Some(record.clone());
                Ok(ClaimRow::Written(record))
            }
            row => Ok(row),
        }
    }
}
caught!(a_repeated_claim_that_counts_is_caught: Reference<CountsRepeatedClaims>,
    by claims::a_claim_repeated_under_its_token_is_claimed_again_as_the_same_attempt,
    saying "A repeated claim must be the same attempt");

/// Keeps time in whole seconds.
#[derive(Default)]
struct KeepsTimeInSeconds;
impl Rules for KeepsTimeInSeconds {
    fn now(&self, clock: &ManualClock) -> Timestamp {
        Timestamp::from_millis(clock.now().as_millis() / 1000 * 1000)
    }
}
caught!(a_clock_in_seconds_is_caught: Reference<KeepsTimeInSeconds>,
    by claims::a_claim_of_an_unused_key_is_claimed_as_attempt_1,
    saying "by the store's clock");

/// Takes an attempt under hold for an orphan once its lease is over.
#[derive(Default)]
struct TakesOverUnderHold;
impl Rules for TakesOverUnderHold {
    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        if let Some(record) = slot {
            record.on_lapse = OnLapse::TakeOver;
        }
        right_claim(slot, claim, now)
    }
}
caught!(a_takeover_under_hold_is_caught: Reference<TakesOverUnderHold>,
    by fencing::an_attempt_under_hold_that_started_is_never_taken_over,
    saying "must be Unknown, never TakenOver");

/// A conflict moves the record's expiry, as an upsert that always writes does.
#[derive(Default)]
struct WritesOnConflict;
impl Rules for WritesOnConflict {
    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        let row = right_claim(slot, claim, now)?;
        if let (ClaimRow::Found { .. }, Some(record)) = (&row, slot) {
            record.expiry = record.expiry.max(now.after(claim.retention().standard()));
        }
        Ok(row)
    }
}
caught!(a_conflict_that_writes_is_caught: Reference<WritesOnConflict>,
    by claims::a_claim_of_a_record_in_progress_is_a_conflict_that_changes_nothing,
    saying "expiry must be");

/// A repeated completion replaces the response that was recorded.
#[derive(Default)]
struct ReplacesTheResponse;
impl Rules for ReplacesTheResponse {
    fn complete(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        response: &Response,
        keep: Retention,
        now: Timestamp,
    ) -> Fenced<Response> {
        let own = slot.as_mut().filter(|record| record.attempt() == owner.attempt());
        if let Some(record) = own.filter(|record| matches!(record.state, State::Done(_))) {
            record.state = State::InProgress;
        }
        Right.complete(slot, owner, response, keep, now)
    }
}
caught!(a_repeated_completion_that_replaces_is_caught: Reference<ReplacesTheResponse>,
    by fencing::a_repeated_completion_is_answered_with_the_response_that_is_recorded,
    saying "answered with the response that is recorded");

/// Refuses the completion of an attempt whose lease has lapsed, though nobody took over: the work is lost.
#[derive(Default)]
struct RefusesLateCompletions;
impl Rules for RefusesLateCompletions {
    fn complete(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        response: &Response,
        keep: Retention,
        now: Timestamp,
    ) -> Fenced<Response> {
        if slot.as_ref().is_some_and(|record| record.is_lapsed(now)) {
            return Fenced::Superseded;
        }
        Right.complete(slot, owner, response, keep, now)
    }
}
caught!(a_refused_late_completion_is_caught: Reference<RefusesLateCompletions>,
    by fencing::a_lapsed_attempt_that_nobody_took_over_may_still_write,
    saying "A completion by a lapsed attempt must be Written");

/// A resolver gets the record of whatever attempt is on it, seen or not.
#[derive(Default)]
struct ResolvesUnseen;
impl Rules for ResolvesUnseen {
    fn resolve(&self, slot: &mut Slot, resolve: &Resolve, now: Timestamp) -> Fenced<Record> {
        let Some(record) = slot.as_ref() else { return Fenced::Superseded };
        let seen = Resolve::new(resolve.scope().clone(), resolve.key().clone(), record.attempt(), resolve.token());
        Right.resolve(slot, &seen.with_lease(resolve.lease()).with_retention(resolve.retention()), now)
    }
}
caught!(a_resolve_of_an_unseen_attempt_is_caught: Reference<ResolvesUnseen>,
    by fencing::only_a_held_or_lapsed_record_can_be_resolved,
    saying "(another attempt) must be Superseded");

/// The sweeper takes lapsed records for dead ones.
#[derive(Default)]
struct SweepsLapsedRecords;
impl Rules for SweepsLapsedRecords {
    fn is_swept(&self, record: &Record, now: Timestamp) -> bool {
        !record.is_live(now) || record.is_lapsed(now)
    }
}
caught!(a_sweep_of_live_records_is_caught: Reference<SweepsLapsedRecords>,
    by housekeeping::a_sweep_removes_expired_records_alone_and_at_most_its_limit,
    saying "there were 7, and the store removed 8");

/// A purge finds its scope by a pattern, or as a prefix.
#[derive(Default)]
struct PurgesByPrefix;
impl Rules for PurgesByPrefix {
    fn is_purged(&self, scope: &Scope, purged: &Scope) -> bool {
        scope.as_str().starts_with(purged.as_str())
    }
}
caught!(a_purge_by_prefix_is_caught: Reference<PurgesByPrefix>,
    by housekeeping::a_purge_removes_the_records_of_one_scope_alone,
    saying "must not touch");

/// Lists waiting records in the order of a collation, and pages by comparing bytes.
#[derive(Default)]
struct ListsByCollation;
impl Rules for ListsByCollation {
    fn rank(&self, id: &(Scope, Key)) -> (String, String) {
        (id.0.as_str().to_lowercase(), id.1.as_str().to_lowercase())
    }
}
caught!(a_listing_by_collation_is_caught: Reference<ListsByCollation>,
    by housekeeping::records_that_wait_for_someone_are_listed_in_order_page_by_page,
    saying "in the order of scope and key");

/// Leaves the mark on a record that it works on when its future is dropped.
#[derive(Default)]
struct StaysTakenWhenDropped;
impl Rules for StaysTakenWhenDropped {
    const MARKS: Marks = Marks::Leaky;
}
caught!(a_dropped_call_that_leaves_its_key_taken_is_caught: Reference<StaysTakenWhenDropped>,
    by cancellation::a_dropped_claim_has_happened_or_not_and_is_found_by_its_token,
    saying "A dropped claim repeated with its token must be Claimed");

/// Forgets that a renewal marks the attempt as started. Only the comparison with the machine sees it before it hurts.
#[derive(Default)]
struct NeverStarts;
impl Rules for NeverStarts {
    fn renew(&self, slot: &mut Slot, owner: &Owner, lease: Duration, now: Timestamp) -> Fenced<()> {
        let started = slot.as_ref().is_some_and(|record| record.started);
        let answer = apply(slot, |found| machine::renew(found, owner, lease, now));
        if let Some(record) = slot {
            record.started = started;
        }
        answer
    }
}
caught!(a_renewal_that_does_not_mark_the_start_is_caught: Reference<NeverStarts>,
    by agreement::any_sequence_of_operations_is_answered_and_kept_as_the_machine_says,
    saying "started must be true and is false");

/// Loses the count of lapses at a release. Only the comparison with the machine sees it.
#[derive(Default)]
struct ForgetsLapses;
impl Rules for ForgetsLapses {
    fn release(&self, slot: &mut Slot, owner: &Owner, now: Timestamp) -> Fenced<()> {
        let answer = Right.release(slot, owner, now);
        if let (Fenced::Written(()), Some(record)) = (&answer, slot) {
            record.lapses = 0;
        }
        answer
    }
}
caught!(a_release_that_forgets_lapses_is_caught: Reference<ForgetsLapses>,
    by agreement::any_sequence_of_operations_is_answered_and_kept_as_the_machine_says,
    saying "lapses must be ");

/// Writes the business row in a transaction of its own.
struct WritesTheRowOutside;
impl WritesTheRowOutside {
    fn harness() -> Harness {
        Reference::<Right>::harness().transactions(Unfenced::<Right>::new())
    }
}
caught!(a_row_outside_the_transaction_is_caught: WritesTheRowOutside,
    by transactions::a_superseded_commit_stores_neither,
    saying "A superseded transaction must be rolled back");

/// Answers a completion in a transaction with what another transaction recorded, so that the caller commits again.
struct CommitsAgain;
impl CommitsAgain {
    fn harness() -> Harness {
        Reference::<Right>::harness().transactions(Repeating::<Right>::new())
    }
}
caught!(a_transaction_that_is_done_again_is_caught: CommitsAgain,
    by transactions::a_transaction_that_is_done_again_stores_no_second_row,
    saying "must be Superseded once another transaction has completed the record");

/// Sees that the attempt is on the record, and then completes, in two steps.
#[derive(Default)]
struct CompletesInTwoSteps;
impl Rules for CompletesInTwoSteps {
    const GAP: Gap = Gap::In("complete");
}
caught!(a_completion_in_two_steps_is_caught: Reference<CompletesInTwoSteps>,
    by linearizability::calls_on_one_key_at_once_are_answered_as_if_one_came_after_another,
    saying "no order that the machine explains");

/// Reads the checkpoints, adds one, and writes them all back: of two at once one is lost.
#[derive(Default)]
struct LosesCheckpoints;
impl Rules for LosesCheckpoints {
    const GAP: Gap = Gap::In("checkpoint");
}
caught!(a_lost_update_of_checkpoints_is_caught: Reference<LosesCheckpoints>,
    by linearizability::calls_on_one_key_at_once_are_answered_as_if_one_came_after_another,
    saying "no order that the machine explains");

/// A handle keeps what it has read until it writes itself: others' writes are not seen.
#[derive(Default)]
struct ReadsFromACache;
impl Rules for ReadsFromACache {
    const CACHES: bool = true;
}
caught!(a_read_from_a_stale_cache_is_caught: Reference<ReadsFromACache>,
    by linearizability::calls_on_one_key_at_once_are_answered_as_if_one_came_after_another,
    saying "no order that the machine explains");

/// Keeps the owner and the state in two places, and writes one after the other.
#[derive(Default)]
struct WritesInTwoPieces;
impl Rules for WritesInTwoPieces {
    const GAP: Gap = Gap::Torn;
}
caught!(a_record_in_two_pieces_without_a_lock_is_caught: Reference<WritesInTwoPieces>,
    by linearizability::calls_on_one_key_at_once_are_answered_as_if_one_came_after_another,
    saying "no order that the machine explains");

/// Locks its map twice, to look and to write, and waits for nothing in between.
#[derive(Default)]
struct LocksTwice;
impl Rules for LocksTwice {
    const GAP: Gap = Gap::Short;
}
caught!(a_lock_that_is_taken_twice_is_caught: Reference<LocksTwice>,
    by linearizability::calls_on_one_key_at_once_are_answered_as_if_one_came_after_another,
    saying "no order that the machine explains");

/// The sweep notes what has expired, and then removes it, also if it was claimed anew in between.
#[derive(Default)]
struct SweepsLate;
impl Rules for SweepsLate {
    const SWEEPS_LATE: bool = true;
    const YIELDS: usize = 1;
}
caught!(a_sweep_in_two_steps_is_caught: Reference<SweepsLate>,
    by linearizability::calls_on_one_key_while_leases_end_are_answered_as_if_one_came_after_another,
    saying "no order that the machine explains");

/// Sees that a record is under the claim's own token, and then writes its new lease over whatever is there.
#[derive(Default)]
struct RepeatsInTwoSteps;
impl Rules for RepeatsInTwoSteps {
    const GAP: Gap = Gap::OnRepeat;
}
caught!(a_repeated_claim_in_two_steps_is_caught: Reference<RepeatsInTwoSteps>,
    by concurrency::a_repeated_claim_that_meets_a_purge_and_a_rival_leaves_the_key_to_one_of_them,
    saying "A repeated claim must not take the record of a rival that was told Claimed");

/// Gives what it writes a time to live, and the database refuses one of nothing.
#[derive(Default)]
struct NeedsSomeTimeToLive;
impl Rules for NeedsSomeTimeToLive {
    fn complete(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        response: &Response,
        keep: Retention,
        now: Timestamp,
    ) -> Fenced<Response> {
        let mut written = slot.clone();
        let answer = Right.complete(&mut written, owner, response, keep, now);
        if written.as_ref().is_some_and(|record| !record.is_live(now)) {
            return Fenced::Superseded;
        }
        *slot = written;
        answer
    }
}
caught!(a_completion_that_needs_some_time_to_live_is_caught: Reference<NeedsSomeTimeToLive>,
    by expiry::a_record_that_is_kept_for_no_time_is_written_and_absent,
    saying "must be Written, for however short a time it is kept");

/// Files a record for the sweep by the expiry that its claim gave it, and not anew when that moves.
#[derive(Default)]
struct SweepsByTheFirstExpiry(Mutex<HashMap<Token, Timestamp>>);
impl Rules for SweepsByTheFirstExpiry {
    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        let row = right_claim(slot, claim, now);
        if let Ok(ClaimRow::Written(record)) = &row {
            self.0.lock().expect("no thread panicked").insert(record.token, record.expiry);
        }
        row
    }

    fn is_swept(&self, record: &Record, now: Timestamp) -> bool {
        !record.is_live(now) && self.0.lock().expect("no thread panicked").get(&record.token) == Some(&record.expiry)
    }
}
caught!(a_sweep_by_the_first_expiry_is_caught: Reference<SweepsByTheFirstExpiry>,
    by housekeeping::sweeps_remove_records_whose_expiry_moved_as_they_do_others,
    saying "of 8 records they removed 3");

/// Sweeps what is finished, and leaves what nobody finished for ever.
#[derive(Default)]
struct SweepsWhatIsDone;
impl Rules for SweepsWhatIsDone {
    fn is_swept(&self, record: &Record, now: Timestamp) -> bool {
        !record.is_live(now) && matches!(record.state, State::Done(_))
    }
}
caught!(a_sweep_of_done_records_alone_is_caught: Reference<SweepsWhatIsDone>,
    by housekeeping::sweeps_remove_what_has_expired_in_every_state,
    saying "of 6 records");

/// A purge leaves the records that were written to since it looked.
#[derive(Default)]
struct PurgesWhatItSaw;
impl Rules for PurgesWhatItSaw {
    const PURGES_WHAT_IT_SAW: bool = true;
}
caught!(a_purge_that_leaves_what_was_written_meanwhile_is_caught: Reference<PurgesWhatItSaw>,
    by concurrency::of_purges_that_meet_writes_exactly_one_removes_the_record,
    saying "exactly one must remove it and count it");

/// An attempt may finish up to and including the instant at which its record expires.
#[derive(Default)]
struct CompletesAtExpiry;
impl Rules for CompletesAtExpiry {
    fn complete(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        response: &Response,
        keep: Retention,
        now: Timestamp,
    ) -> Fenced<Response> {
        let ends_now = slot.as_ref().is_some_and(|record| record.expiry == now);
        let before = Timestamp::from_millis(now.as_millis() - 1);
        Right.complete(slot, owner, response, keep, if ends_now { before } else { now })
    }
}
caught!(a_completion_at_the_instant_of_expiry_is_caught: Reference<CompletesAtExpiry>,
    by expiry::an_end_is_where_it_is_one_before_at_and_one_after,
    saying "at its end, must be answered Superseded");

/// Counts attempts in a byte.
#[derive(Default)]
struct CountsInAByte;
impl Rules for CountsInAByte {
    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        let row = right_claim(slot, claim, now)?;
        let ClaimRow::Written(mut record) = row else { return Ok(row) };
        record.number &= 0xff;
        *slot = Some(record.clone());
        Ok(ClaimRow::Written(record))
    }
}
caught!(a_number_of_one_byte_is_caught: Reference<CountsInAByte>,
    by extremes::numbers_and_lapses_are_counted_past_255,
    saying "Attempts must be counted one by one");

/// Keeps how long things last in 32 bits of milliseconds: 60 days become 10.
#[derive(Default)]
struct DurationsOf32Bits;
impl Rules for DurationsOf32Bits {
    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        let keep = claim.retention();
        let cut = |keep: Duration| Duration::from_millis(u64::try_from(keep.as_millis()).expect("short") & 0xffff_ffff);
        let keep = Retention::new(cut(keep.standard())).with_held(cut(keep.held()));
        right_claim(slot, &claim.clone().with_retention(keep), now)
    }
}
caught!(a_duration_of_32_bits_is_caught: Reference<DurationsOf32Bits>,
    by extremes::no_time_at_all_and_all_time_are_durations,
    saying "A record must be kept for 60 days");

/// Tells tokens apart by their first eight bytes.
#[derive(Default)]
struct HalfOfTheToken;
impl Rules for HalfOfTheToken {
    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        let half = |token: Token| token.as_bytes()[..8].to_vec();
        let token = slot.as_ref().map(|record| record.token).filter(|token| half(*token) == half(claim.token()));
        let claim = Claim::new(
            claim.scope().clone(),
            claim.key().clone(),
            token.unwrap_or(claim.token()),
            claim.fingerprint().clone(),
        );
        right_claim(slot, &claim, now)
    }
}
caught!(half_of_a_token_is_caught: Reference<HalfOfTheToken>,
    by extremes::tokens_that_differ_in_one_byte_are_two,
    saying "is a rival's, and must be Conflict");

/// Has no room for trailers beside headers.
#[derive(Default)]
struct HeadersOrTrailers;
impl Rules for HeadersOrTrailers {
    fn complete(
        &self,
        slot: &mut Slot,
        owner: &Owner,
        response: &Response,
        keep: Retention,
        now: Timestamp,
    ) -> Fenced<Response> {
        let mut cut = Response::new(response.status()).with_kept(response.body().clone());
        for (name, value) in response.headers() {
            cut = cut.with_header(name.clone(), value.clone());
        }
        let cut = if response.headers().is_empty() { response.clone() } else { cut };
        Right.complete(slot, owner, &cut, keep, now)
    }
}
caught!(headers_or_trailers_are_caught: Reference<HeadersOrTrailers>,
    by extremes::a_response_of_many_and_long_parts_is_replayed_whole,
    saying "its trailers, in their order");

/// A wait ends when the lease does, though its attempt goes on.
#[derive(Default)]
struct WaitsForTheLease;
impl Rules for WaitsForTheLease {
    fn is_waited_for(&self, record: &Record, now: Timestamp) -> bool {
        !record.is_lapsed(now)
    }
}
caught!(a_wait_that_a_lapse_ends_is_caught: Reference<WaitsForTheLease>,
    by waits::a_wait_takes_the_time_that_it_was_told,
    saying "must not end after");

/// A wait looks at the record, and then asks to be woken: what happens in between it never hears of.
#[derive(Default)]
struct MissesWakeUps;
impl Rules for MissesWakeUps {
    const MISSES_WAKE_UPS: bool = true;
}
caught!(a_wait_that_misses_a_wake_up_is_caught: Reference<MissesWakeUps>,
    by waits::waits_that_meet_a_completion_are_all_ended_by_it,
    saying "A wait must be ended by the completion of the attempt");

/// Each of these is caught by the histories of what is asked at once, every time.
mod no_order_explains {
    use super::*;

    /// Twenty runs of twenty.
    fn twenty_of<R: Rules>(check: impl AsyncFn(&Harness) + Copy + Send + 'static) {
        for _ in 0..20 {
            let finding = finding(Reference::<R>::harness(), "histories", async move |harness: &Harness| {
                check(harness).await;
            });
            assert!(finding.contains("no order that the machine explains"), "for its mistake:\n{finding}");
        }
    }

    macro_rules! every_time {
        ($($test:ident: $rules:ty, $check:ident;)*) => {$(
            #[test]
            fn $test() {
                twenty_of::<$rules>(async |harness: &Harness| linearizability::$check(harness).await);
            }
        )*};
    }

    every_time! {
        a_look_up_followed_by_an_insert: LooksUpThenInserts,
            calls_on_one_key_at_once_are_answered_as_if_one_came_after_another;
        a_completion_in_two_steps: CompletesInTwoSteps,
            calls_on_one_key_at_once_are_answered_as_if_one_came_after_another;
        a_takeover_in_two_steps: TakesOverInTwoSteps,
            calls_on_one_key_at_once_are_answered_as_if_one_came_after_another;
        a_lost_update_of_checkpoints: LosesCheckpoints,
            calls_on_one_key_at_once_are_answered_as_if_one_came_after_another;
        a_read_from_a_stale_cache: ReadsFromACache,
            calls_on_one_key_at_once_are_answered_as_if_one_came_after_another;
        a_release_that_deletes: ReleaseDeletes,
            calls_on_one_key_at_once_are_answered_as_if_one_came_after_another;
        a_record_in_two_pieces_without_a_lock: WritesInTwoPieces,
            calls_on_one_key_at_once_are_answered_as_if_one_came_after_another;
        a_lock_that_is_taken_twice: LocksTwice,
            calls_on_one_key_at_once_are_answered_as_if_one_came_after_another;
        a_sweep_in_two_steps: SweepsLate,
            calls_on_one_key_while_leases_end_are_answered_as_if_one_came_after_another;
    }
}

/// A racy store is caught every time, not most of the time.
#[test]
fn a_race_is_caught_twenty_times_out_of_twenty() {
    for _ in 0..20 {
        finding(Reference::<LooksUpThenInserts>::harness(), "race", async |harness: &Harness| {
            concurrency::of_many_claims_of_one_key_at_once_exactly_one_is_claimed(harness).await;
        });
        finding(Reference::<TakesOverInTwoSteps>::harness(), "race", async |harness: &Harness| {
            concurrency::of_many_claims_of_a_lapsed_record_at_once_exactly_one_takes_it_over(harness).await;
        });
    }
}

/// A seed that is set plays the same sequence again, and a disagreement tells it.
#[test]
fn a_disagreement_tells_its_seed_and_the_steps_before_it() {
    let finding = finding(Reference::<NeverStarts>::harness(), "agreement", async |harness: &Harness| {
        agreement::any_sequence_of_operations_is_answered_and_kept_as_the_machine_says(harness).await;
    });
    for words in ["IDEM_CONFORMANCE_SEED=", "The last steps:", "Earlier steps on this record:", "renew for", " ms  "] {
        assert!(finding.contains(words), "It must tell {words:?}:\n{finding}");
    }
}

/// Does `write` as if `owner` were the attempt that `change` makes of it and of the record: for stores that check less.
fn as_if<T>(
    slot: &mut Slot,
    owner: &Owner,
    change: impl Fn(&Record, AttemptId) -> AttemptId,
    write: impl FnOnce(&mut Slot) -> T,
) -> T {
    let Some(record) = slot else { return write(slot) };
    let (real, pretended) = (record.attempt(), change(record, owner.attempt()));
    if pretended != real {
        return write(slot);
    }
    // The record pretends to be the writer's, which comes to the same as a check that is left out.
    (record.token, record.number) = (owner.attempt().token, owner.attempt().number);
    let answer = write(slot);
    if let Some(record) = slot {
        (record.token, record.number) = (real.token, real.number);
    }
    answer
}

fn with_body(response: &Response, change: impl Fn(&Bytes) -> Bytes) -> Response {
    match response.body() {
        Body::Kept(body) => response.clone().with_body(change(body)),
        _ => response.clone(),
    }
}

/// Takes claims that arrive together into one statement, and writes the lease of the first of them into all rows.
#[derive(Default)]
struct LeasesOfTheFirst(Mutex<Option<(Timestamp, Duration)>>);
impl Rules for LeasesOfTheFirst {
    fn claim(&self, slot: &mut Slot, claim: &Claim, now: Timestamp) -> Result<ClaimRow, StoreError> {
        let mut group = self.0.lock().expect("no thread panicked under it");
        let (_, lease) = group.filter(|(at, _)| *at == now).unwrap_or((now, claim.lease()));
        *group = Some((now, lease));
        right_claim(slot, &claim.clone().with_lease(lease), now)
    }
}
caught!(one_lease_for_a_group_of_claims_is_caught: Reference<LeasesOfTheFirst>,
    by concurrency::claims_that_arrive_together_are_each_kept_as_their_own,
    saying "A claim must be kept as its own, whatever arrives with it: lease_end");

/// Shares a file with other processes, without a lock that they see.
struct WithoutLock;
impl Ways for WithoutLock {
    const LOCKS: bool = false;
}
caught!(a_file_without_a_lock_is_caught: FileStore<WithoutLock>,
    by processes::of_claims_by_several_processes_at_once_exactly_one_is_claimed,
    saying "exactly one must be Claimed");

/// Writes that the attempt is done, and then the body: who is killed in between leaves a response without one.
struct BodyComesLater;
impl Ways for BodyComesLater {
    const AT_ONCE: bool = false;
}
caught!(a_completion_whose_body_comes_later_is_caught: FileStore<BodyComesLater>,
    by processes::a_process_that_is_killed_amid_its_writes_leaves_no_record_half_written,
    saying "must be as it was recorded");

/// Writes the business row first, and completes the record when that is there.
struct OneAfterTheOther;
impl Ways for OneAfterTheOther {
    const TOGETHER: bool = false;
}
caught!(a_row_that_is_written_before_the_completion_is_caught: FileStore<OneAfterTheOther>,
    by transactions::a_process_that_is_killed_leaves_the_row_and_the_completion_or_neither,
    saying "the row and the completion, or neither");
