//! The list of checks: the one place to add one, by its group and name.

/// Calls `$then!` with `$input` and with every check as `group::name,`.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_each_check {
    ([$($then:tt)*] $input:tt) => {
        $($then)*! {
            $input
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
