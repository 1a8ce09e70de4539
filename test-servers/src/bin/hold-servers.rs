//! Starts servers of this crate, says what it has, and waits to be killed: the tests look at what is left then.
//!
//! `hold-servers private` starts one of each kind and says which process and folder is whose; `hold-servers shared` says
//! the address of its database on the shared server; `hold-servers shared-redis` says whose the shared Redis is, and where.

use std::io::{Read, Write};

use test_servers::{
    PgBouncer, PgBouncerSettings, PrivatePostgres, PrivateRedis, RedisSentinel, RedisSettings, Settings, postgres,
    redis,
};

fn main() -> std::io::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("shared") => return hold(&[postgres().url()]),
        Some("shared-redis") => {
            let whose = if redis().is_private() { "private" } else { "named" };
            return hold(&[whose.to_owned(), redis().server_name().to_owned(), redis().url().to_owned()]);
        }
        _ => {}
    }
    let private = PrivatePostgres::start(Settings::new());
    let stopped = PrivatePostgres::start(Settings::new());
    stopped.stop();
    let paused = PrivatePostgres::start(Settings::new());
    paused.pause();
    let pooler = PgBouncer::start(&private.url(), PgBouncerSettings::new());
    let shared = postgres();
    let primary = PrivateRedis::start(RedisSettings::new());
    let replica = primary.replica();
    replica.pause();
    let watched = RedisSentinel::start();
    let sentinel = &watched.sentinels()[0];
    let servers = [
        (shared.process_id(), shared.folder()),
        (private.process_id(), Some(private.folder())),
        (None, Some(stopped.folder())),
        (paused.process_id(), Some(paused.folder())),
        (Some(pooler.process_id()), Some(pooler.folder())),
        (redis().process_id(), redis().folder()),
        (primary.process_id(), Some(primary.folder())),
        (replica.process_id(), Some(replica.folder())),
        (sentinel.process_id(), Some(sentinel.folder())),
    ];
    let lines = servers.map(|(process, folder)| {
        let folder = folder.map(|folder| folder.display().to_string()).unwrap_or_default();
        format!("{} {folder}", process.unwrap_or(0))
    });
    hold(&lines)
}

fn hold(lines: &[String]) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    for line in lines {
        writeln!(output, "{line}")?;
    }
    writeln!(output, "ready")?;
    output.flush()?;
    // Until this process is killed, or until the test that started it has ended.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
