//! The list of checks: the one place to add one, by its group and name.

/// Calls `$then!` with `$input` and with every check as `group::name,`.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_each_check {
    ([$($then:tt)*] $input:tt) => {
        $($then)*! {
            $input
            scenarios::scenario_1_a_first_attempt_gets_its_payment,
            scenarios::scenario_2_a_retry_gets_the_same_bytes_and_makes_no_payment,
            scenarios::scenario_3_another_amount_under_the_key_is_reuse_and_runs_nothing,
            scenarios::scenario_4_the_same_key_of_another_tenant_is_its_own_payment,
            scenarios::scenario_5_two_requests_at_once_make_one_payment,
            scenarios::scenario_6_a_death_after_the_charge_leaves_the_record_in_progress,
            scenarios::scenario_7_a_retry_before_the_lease_ends_is_a_conflict,
            scenarios::scenario_8_a_retry_after_the_lease_takes_over_and_gets_the_same_charge,
            claims::a_claim_of_an_unused_key_is_claimed_as_attempt_1,
            claims::a_claim_repeated_under_its_token_is_claimed_again_as_the_same_attempt,
            claims::a_takeover_repeated_under_its_token_is_taken_over_again_as_the_same_attempt,
            claims::a_claim_gives_the_row_that_it_wrote_or_the_row_that_it_found,
            claims::a_claim_of_a_record_in_progress_is_a_conflict_that_changes_nothing,
            claims::a_late_duplicate_of_a_claim_that_is_over_never_owns_the_key_again,
            claims::a_token_used_for_another_request_is_refused_as_a_breach_of_contract,
            claims::another_request_under_a_key_is_reuse_in_every_state,
            claims::an_older_form_of_the_fingerprint_is_a_retry_and_stays_on_the_record,
            claims::a_record_is_read_for_what_it_is_in_every_state,
            claims::ten_releases_in_a_row_leave_the_key_usable,
            claims::a_forgotten_attempt_leaves_the_key_to_a_corrected_request,
            claims::a_forget_after_possible_effects_keeps_the_fingerprint,
            claims::checkpoints_reach_the_next_attempt_and_the_first_value_of_a_name_stays,
            claims::checkpoints_over_64_kib_are_answered_full_and_leave_the_others,
            claims::a_record_that_lapsed_too_often_is_unknown,
            claims::on_lapse_rules_of_the_record_and_the_claim_both_count,
            fencing::an_attempt_that_lost_its_key_changes_nothing,
            fencing::an_attempt_that_lost_its_key_changes_nothing_after_its_successor_ended,
            fencing::a_write_with_the_right_token_and_an_old_number_is_superseded,
            fencing::a_write_with_the_right_number_and_another_token_is_superseded,
            fencing::a_lapsed_attempt_that_nobody_took_over_may_still_write,
            fencing::a_repeated_completion_is_answered_with_the_response_that_is_recorded,
            fencing::an_attempt_ends_once_and_only_the_write_that_ended_it_may_be_repeated,
            fencing::no_write_brings_a_record_back_that_expired_or_was_purged,
            fencing::an_attempt_under_hold_that_started_is_never_taken_over,
            fencing::a_held_record_goes_to_the_resolver_that_saw_its_attempt,
            fencing::only_a_held_or_lapsed_record_can_be_resolved,
            expiry::a_lease_is_live_until_the_instant_it_ends,
            expiry::an_end_is_where_it_is_one_before_at_and_one_after,
            expiry::a_renewal_moves_the_end_of_the_lease,
            expiry::a_record_never_expires_before_its_lease_ends,
            expiry::a_done_record_never_expires_before_its_lease_would_have_ended,
            expiry::a_done_record_is_replayed_until_its_retention_ends_and_then_is_absent,
            expiry::a_record_past_its_retention_is_absent_in_every_state,
            expiry::a_record_whose_outcome_is_unknown_stays_for_the_hold_retention,
            expiry::a_record_that_is_kept_for_no_time_is_written_and_absent,
            expiry::durations_are_rounded_up_to_whole_milliseconds,
            expiry::two_handles_judge_by_one_clock,
            fidelity::a_replay_equals_the_recorded_response_to_the_byte,
            fidelity::an_empty_body_is_recorded_and_replayed,
            fidelity::a_body_of_1_mib_is_replayed_whole,
            fidelity::a_sealed_body_and_one_not_retained_stay_what_they_are,
            fidelity::names_are_their_bytes_and_no_two_share_a_record,
            extremes::numbers_and_lapses_are_counted_past_255,
            extremes::no_time_at_all_and_all_time_are_durations,
            extremes::a_response_of_many_and_long_parts_is_replayed_whole,
            extremes::many_checkpoints_of_names_that_are_alike_are_all_kept,
            extremes::tokens_that_differ_in_one_byte_are_two,
            extremes::a_fingerprint_of_many_parts_is_found_again,
            extremes::a_scope_of_many_records_keeps_lists_and_purges_them_all,
            extremes::a_sweep_of_many_records_stops_at_its_limit_alone,
            extremes::opening_a_handle_and_checking_change_no_record,
            extremes::a_sweep_that_meets_claims_of_expired_records_leaves_what_is_claimed,
            durability::what_one_handle_wrote_another_sees_at_once,
            durability::a_handle_that_is_dropped_takes_nothing_from_the_others,
            durability::what_was_answered_is_there_after_a_restart,
            durability::a_restart_right_after_an_answer_undoes_nothing,
            durability::a_lease_goes_on_over_a_restart,
            processes::what_one_process_wrote_another_sees_at_once,
            processes::of_claims_by_several_processes_at_once_exactly_one_is_claimed,
            processes::a_killed_process_leaves_its_claim_until_the_lease_ends_and_its_checkpoints,
            processes::a_process_that_is_killed_amid_its_writes_leaves_no_record_half_written,
            cancellation::a_dropped_claim_has_happened_or_not_and_is_found_by_its_token,
            cancellation::a_dropped_takeover_has_happened_or_not_and_counts_once,
            cancellation::a_dropped_write_has_happened_or_not_and_can_be_repeated,
            cancellation::a_dropped_look_leaves_nothing_behind,
            cancellation::calls_that_are_dropped_disturb_no_other_call,
            cancellation::a_write_that_arrives_late_does_not_touch_the_next_attempt,
            faults::a_claim_that_is_lost_or_applied_twice_is_one_attempt,
            faults::a_write_that_is_lost_or_applied_twice_is_answered_as_the_first_time,
            faults::a_write_that_arrives_when_its_attempt_has_lost_the_key_changes_nothing,
            faults::an_owner_that_is_paused_past_its_lease_is_superseded,
            faults::under_a_storm_of_errors_every_key_has_one_owner_and_one_outcome,
            transactions::a_commit_stores_the_row_and_the_completion,
            transactions::a_rollback_stores_neither_and_leaves_the_record_in_progress,
            transactions::a_superseded_commit_stores_neither,
            transactions::a_commit_by_an_attempt_that_ended_stores_neither,
            transactions::a_transaction_that_is_done_again_stores_no_second_row,
            transactions::racing_commits_and_takeovers_leave_as_many_rows_as_completions,
            transactions::a_process_that_is_killed_leaves_the_row_and_the_completion_or_neither,
            housekeeping::a_wait_is_ended_by_the_completion_through_another_handle,
            housekeeping::a_wait_is_ended_by_whatever_ends_the_attempt,
            housekeeping::a_wait_for_an_attempt_that_is_over_returns_at_once,
            housekeeping::a_wait_ends_when_its_time_is_over,
            housekeeping::a_dropped_wait_leaves_nothing_behind,
            waits::a_wait_goes_on_over_lapses_renewals_and_checkpoints,
            waits::a_wait_takes_the_time_that_it_was_told,
            waits::a_wait_is_ended_by_a_new_record_of_the_same_number,
            waits::waits_that_meet_a_completion_are_all_ended_by_it,
            waits::many_waits_do_not_keep_the_owner_from_completing,
            housekeeping::a_sweep_removes_expired_records_alone_and_at_most_its_limit,
            housekeeping::sweeps_remove_records_whose_expiry_moved_as_they_do_others,
            housekeeping::sweeps_remove_what_has_expired_in_every_state,
            housekeeping::records_that_wait_for_someone_are_listed_in_order_page_by_page,
            housekeeping::a_record_is_listed_only_while_it_waits_for_someone,
            housekeeping::a_purge_removes_the_records_of_one_scope_alone,
            housekeeping::a_purge_removes_at_most_its_limit,
            housekeeping::a_sound_store_passes_its_own_check,
            concurrency::of_many_claims_of_one_key_at_once_exactly_one_is_claimed,
            concurrency::of_many_requests_under_one_key_at_once_exactly_one_is_claimed_and_the_others_are_reuse,
            concurrency::of_many_claims_of_a_lapsed_record_at_once_exactly_one_takes_it_over,
            concurrency::of_many_claims_of_a_released_record_at_once_exactly_one_is_claimed,
            concurrency::of_many_resolvers_of_one_record_at_once_exactly_one_gets_it,
            concurrency::a_renewal_that_meets_takeovers_keeps_the_key_or_is_superseded,
            concurrency::a_checkpoint_that_meets_takeovers_is_in_the_successors_hands_or_superseded,
            concurrency::of_many_completions_by_one_attempt_one_is_recorded_and_all_are_answered_with_it,
            concurrency::of_many_checkpoints_of_one_name_at_once_one_is_kept_and_all_are_answered_with_it,
            concurrency::a_completion_that_meets_takeovers_is_stored_or_superseded_and_never_both,
            concurrency::a_key_that_is_claimed_and_released_at_once_has_one_owner_at_a_time_and_no_gap_in_its_numbers,
            concurrency::a_repeated_claim_that_meets_a_purge_and_a_rival_leaves_the_key_to_one_of_them,
            concurrency::of_purges_that_meet_writes_exactly_one_removes_the_record,
            concurrency::claims_of_different_keys_at_once_are_all_claimed,
            concurrency::claims_that_arrive_together_are_each_kept_as_their_own,
            concurrency::takeovers_of_different_keys_at_once_all_succeed,
            linearizability::calls_on_one_key_at_once_are_answered_as_if_one_came_after_another,
            linearizability::calls_on_one_key_while_leases_end_are_answered_as_if_one_came_after_another,
            linearizability::calls_on_one_key_beside_dropped_ones_are_answered_as_if_one_came_after_another,
            agreement::any_sequence_of_operations_is_answered_and_kept_as_the_machine_says,
        }
    };
}

/// Runs every check against the store of a harness: one `#[test]` each, named as the check.
///
/// The argument is an expression that gives a [`Harness`](crate::Harness); every test evaluates it for itself. See the
/// [crate's documentation](crate) for an example.
#[macro_export]
macro_rules! suite {
    ($harness:expr $(,)?) => {
        $crate::__for_each_check! { [$crate::__tests] ($harness) }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    (($harness:expr) $($group:ident::$check:ident,)*) => {$(
        #[test]
        fn $check() {
            let harness = $crate::Harness::__in_test(
                $harness,
                ::core::concat!(::core::module_path!(), "::", ::core::stringify!($check)),
            );
            $crate::run(::core::stringify!($check), harness, async |harness: &$crate::Harness| {
                $crate::$group::$check(harness).await;
            });
        }
    )*};
}
