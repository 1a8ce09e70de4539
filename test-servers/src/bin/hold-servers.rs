//! Starts the servers of this crate, says which process and folder is whose, and waits to be killed: the tests look at
//! what is left then.

use std::io::{Read, Write};

use test_servers::{PgBouncer, PgBouncerSettings, PrivatePostgres, Settings, postgres};

fn main() -> std::io::Result<()> {
    let private = PrivatePostgres::start(Settings::new());
    let stopped = PrivatePostgres::start(Settings::new());
    stopped.stop();
    let paused = PrivatePostgres::start(Settings::new());
    paused.pause();

    let mut output = std::io::stdout().lock();
    let shared = postgres();
    let pooler = PgBouncer::start(&private.url(), PgBouncerSettings::new());
    let servers = [
        (shared.process_id(), shared.folder()),
        (private.process_id(), Some(private.folder())),
        (None, Some(stopped.folder())),
        (paused.process_id(), Some(paused.folder())),
        (Some(pooler.process_id()), Some(pooler.folder())),
    ];
    for (process, folder) in servers {
        let folder = folder.map(|folder| folder.display().to_string()).unwrap_or_default();
        writeln!(output, "{} {folder}", process.unwrap_or(0))?;
    }
    writeln!(output, "ready")?;
    output.flush()?;
    // Until this process is killed, or until the test that started it has ended.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
