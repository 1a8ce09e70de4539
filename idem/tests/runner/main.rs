//! What the runner promises, on every store: one list of scenarios, each played on memory, SQLite, PostgreSQL and Redis.

#![cfg(all(feature = "memory", feature = "sqlite", feature = "postgres", feature = "redis", feature = "seal"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod completing;
mod consuming;
mod holding;
mod lapsing;
mod many;
mod outages;
mod place;
mod sealing;
mod settling;
mod steps;
mod stopping;
mod storms;
mod transactions;
mod waiting;

/// A test for each scenario on one store.
macro_rules! scenarios {
    ($store:ident: $($module:ident :: $scenario:ident,)*) => {
        mod $store {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
                async fn $scenario() {
                    crate::$module::$scenario(crate::place::Place::$store()).await;
                }
            )*
        }
    };
}

macro_rules! on {
    ($store:ident) => {
        scenarios! { $store:
            completing::a_client_that_leaves_at_any_moment_cancels_nothing,
            completing::a_completion_that_arrives_after_a_takeover_overwrites_nothing,
            completing::a_store_that_loses_and_repeats_calls_runs_each_operation_once,
            completing::while_a_completion_can_not_be_stored_the_client_has_its_answer_and_the_key_is_never_freed,
            consuming::a_message_is_handled_until_it_succeeds_and_then_no_more_whatever_its_id_is_made_of,
            holding::an_attempt_that_can_not_say_that_it_starts_does_not_start,
            holding::an_attempt_that_started_and_died_is_never_taken_over,
            holding::what_did_not_come_to_an_end_is_unknown_until_it_is_resolved,
            lapsing::a_handler_that_blocks_the_only_thread_of_its_runtime_is_superseded_and_overwrites_nothing,
            lapsing::a_handler_that_blocks_its_thread_is_renewed_from_another,
            lapsing::a_handler_that_never_returns_is_told_that_it_lost_its_key_and_counted,
            lapsing::a_handler_that_outlives_its_lease_three_times_keeps_its_key,
            lapsing::a_handler_that_panics_gives_its_key_back_and_the_next_is_a_repeat,
            lapsing::a_key_that_kills_its_process_each_time_is_unknown_at_the_lapse_limit,
            many::many_keys_and_then_all_of_them_again_run_once_each_and_leave_nothing_behind,
            sealing::what_the_store_keeps_of_answers_and_steps_is_sealed_and_every_process_with_the_key_opens_it,
            settling::a_refused_request_may_be_corrected_and_a_preset_keeps_everything,
            settling::a_response_that_is_not_retained_spends_its_key,
            settling::running_unprotected_is_an_explicit_choice_and_counted,
            steps::a_step_whose_reply_is_lost_is_kept_once,
            steps::a_takeover_resumes_behind_the_steps_that_were_done,
            stopping::a_shutdown_finishes_what_is_claimed_and_leaves_the_rest_to_its_lease,
            storms::under_hold_nothing_runs_twice_whatever_is_lost_and_lapses,
            storms::whatever_is_lost_and_whoever_is_overtaken_all_clients_of_a_key_get_one_answer,
            waiting::a_caller_that_leaves_while_it_waits_touches_nothing,
            waiting::a_key_that_is_given_back_is_run_by_one_of_those_who_wait,
            waiting::many_who_wait_for_one_key_cost_one_subscription_and_get_the_replay,
        }
    };
}

on!(memory);
on!(sqlite);
on!(postgres);
on!(redis);
