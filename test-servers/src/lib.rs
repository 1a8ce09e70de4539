//! Real database servers for the tests of idem, private to the process that asks for them.
//!
//! - [`postgres()`] is the PostgreSQL that all tests of a process share: a private one, started on first use, or the one
//!   that `IDEM_TEST_POSTGRES_URL` names.
//! - [`PrivatePostgres`] is one that a test may stop, kill, pause, replicate and reach through TLS.
//! - [`PgBouncer`] is a pooler in transaction mode in front of one of them.
//! - [`redis()`] is the Redis that all tests of a process share, or the one that `IDEM_TEST_REDIS_URL` names;
//!   [`PrivateRedis`] is one that a test may stop, kill, pause, replicate and reach through TLS. With
//!   `IDEM_TEST_REDIS_SERVER=/path/to/valkey-server` they run that program.
//! - [`RedisCluster`] and [`RedisSentinel`] are several of them, whose replicas take the place of a master that fails.
//! - [`Proxy`] stands between clients and a server and cuts, delays or swallows what passes.
//!
//! A private server listens on the loopback interface only, keeps everything in a temporary folder, runs as an
//! unprivileged user where the tests run as root, and ends with the process that started it, however that ends.
//!
//! Everything here blocks, needs no async runtime and may be called within one. What can't be had is a panic that says
//! how to get it, never a test that is skipped.

// Support for tests: a server that can't be had must fail the test at once, in words, and nobody could handle an error.
#![allow(clippy::panic)]

mod find;
mod folder;
mod keeper;
mod pgbouncer;
mod port;
mod postgres;
mod private;
mod process;
mod proxy;
mod redis;
mod sql;
mod tls;
mod url;
mod user;

pub use pgbouncer::{PgBouncer, PgBouncerSettings};
pub use postgres::{Postgres, postgres};
pub use private::{PrivatePostgres, Settings};
pub use process::is_running;
pub use proxy::{Cut, Fault, Proxy, RedisCommand, Request};
pub use redis::{
    PrivateRedis, Redis, RedisCluster, RedisConnection, RedisSentinel, RedisSettings, Reply, Sentinel, redis,
    redis_command,
};
pub use sql::{query, query_value};

/// Whether the long variant of a test is to run: under `./scripts/test --full`. If not, this says that it is left out.
#[must_use]
pub fn full(variant: &str) -> bool {
    let full = std::env::var_os("IDEM_TEST_FULL").is_some_and(|value| value == "1");
    if !full {
        // Whoever reads the output of the tests must see what they did not do.
        #[allow(clippy::print_stderr)]
        {
            eprintln!("left out: {variant} (./scripts/test --full runs it)");
        }
    }
    full
}
