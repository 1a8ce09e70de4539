//! Claims that meet: of one key and of many, through several stores, and in transactions of the caller's, at every
//! isolation level that a database may have by default.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod held;
mod races;
mod wrong_store;

use std::sync::OnceLock;

use test_servers::postgres;

/// Databases of the three isolation levels, by their names.
fn database(level: &str) -> &'static str {
    static DATABASES: [OnceLock<String>; 3] = [const { OnceLock::new() }; 3];
    let number = ["read committed", "repeatable read", "serializable"].iter().position(|name| *name == level);
    DATABASES[number.unwrap()].get_or_init(|| postgres().create_database(&[("default_transaction_isolation", level)]))
}

/// Runs these at every isolation level: a `#[test]` each.
macro_rules! at_every_level {
    ($($test:ident,)*) => {
        at_every_level! { read_committed "read committed": $($test,)* }
        at_every_level! { repeatable_read "repeatable read": $($test,)* }
        at_every_level! { serializable "serializable": $($test,)* }
    };
    ($module:ident $level:literal: $($test:ident,)*) => {
        mod $module {$(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let table = stringify!($test);
                let place = crate::common::Place::at(crate::database($level), &table[..table.len().min(48)]);
                super::$test(place, $level).await;
            }
        )*}
    };
}
pub(crate) use at_every_level;
