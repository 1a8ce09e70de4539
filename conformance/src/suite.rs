//! The list of checks: the one place to add one, by its group and name.

/// Calls `$then!` with `$input` and with every check as `group::name,`.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_each_check {
    ([$($then:tt)*] $input:tt) => {
        $($then)*! {
            $input
            concurrency::of_many_claims_of_one_key_at_once_exactly_one_is_claimed,
            concurrency::of_many_requests_under_one_key_at_once_exactly_one_is_claimed_and_the_others_are_reuse,
            concurrency::of_many_claims_of_a_lapsed_record_at_once_exactly_one_takes_it_over,
            concurrency::of_many_claims_of_a_released_record_at_once_exactly_one_is_claimed,
            concurrency::of_many_resolvers_of_one_record_at_once_exactly_one_gets_it,
            concurrency::of_many_completions_by_one_attempt_one_is_recorded_and_all_are_answered_with_it,
            concurrency::of_many_checkpoints_of_one_name_at_once_one_is_kept_and_all_are_answered_with_it,
            concurrency::a_completion_that_meets_takeovers_is_stored_or_superseded_and_never_both,
            concurrency::a_key_that_is_claimed_and_released_at_once_has_one_owner_at_a_time_and_no_gap_in_its_numbers,
            concurrency::claims_of_different_keys_at_once_are_all_claimed,
            concurrency::takeovers_of_different_keys_at_once_all_succeed,
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
            $crate::run(::core::stringify!($check), $harness, async |harness: &$crate::Harness| {
                $crate::$group::$check(harness).await;
            });
        }
    )*};
}
