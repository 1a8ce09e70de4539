//! The command line.

use std::{ffi::OsString, fmt, net::SocketAddr, time::Duration};

use lexopt::{Arg, Parser, ValueExt};

pub(crate) const USAGE: &str = "\
A payments service that a client can retry against.

payments [demo] [--store URL] [--ledger URL]
    Runs the eight scenarios over HTTP against a server process of its own and checks the totals.
    --store URL        memory:, sqlite:PATH of a file that does not exist yet, postgres://USER:PASSWORD@HOST:PORT/DATABASE
                       of an empty database, or redis://USER:PASSWORD@HOST:PORT (default: a temporary SQLite file)
    --ledger URL       where payment rows live: another file or database that is empty (default: the store's own database;
                       with Redis, a temporary SQLite file)

payments serve --listen ADDR --store URL [options]
    Serves POST /payments, GET /payments, GET /debug/totals and GET /metrics, a page for Prometheus. Prints
    `listening on http://ADDR` once it does.
    --listen ADDR      such as 127.0.0.1:8080; port 0 picks a free one
    --store URL        where idempotency records live: memory:, sqlite:PATH, postgres://USER:PASSWORD@HOST:PORT/DATABASE or
                       redis://USER:PASSWORD@HOST:PORT (with TLS rediss://, also redis-cluster:// and redis-sentinel://)
    --ledger URL       where payment rows live: memory:, sqlite:PATH or postgres://… (default: the store's own database;
                       needed with Redis). In the store's own database, row and record are committed together; elsewhere
                       an operation that runs again finds its row by a unique column
    --provider URL     a payment provider process, http://ADDR (default: one inside this process)
    --lease TIME       how long a silent attempt keeps its key, such as 500ms, 2s or 15m (default: 30s)
    --max-run TIME     how long the lease of one attempt is renewed (default: 15m)
    --retention TIME   how long records stay, such as 24h or 7d (default: 24h)

payments provider --listen ADDR
    A payment provider: POST /charges, GET /totals.
";

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Demo(Demo),
    Serve(Serve),
    Provider { listen: SocketAddr },
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Demo {
    /// None is a temporary SQLite file.
    pub(crate) store: Option<String>,
    /// None is the store's own database, or a temporary SQLite file where the store keeps records only.
    pub(crate) ledger: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    pub(crate) listen: SocketAddr,
    pub(crate) store: String,
    pub(crate) ledger: Option<String>,
    pub(crate) provider: Option<String>,
    pub(crate) lease: Option<Duration>,
    pub(crate) max_run: Option<Duration>,
    pub(crate) retention: Option<Duration>,
}

/// Why a command line is none of ours.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (payments --help shows how it is used)", self.0)
    }
}

impl From<lexopt::Error> for UsageError {
    fn from(error: lexopt::Error) -> Self {
        Self(error.to_string())
    }
}

/// Reads the arguments behind the program's name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, UsageError> {
    let mut parser = Parser::from_args(arguments);
    let command = match parser.next()? {
        None => return Ok(Command::Demo(Demo::default())),
        Some(Arg::Value(command)) => command.string()?,
        Some(Arg::Long("help") | Arg::Short('h')) => return Ok(Command::Help),
        // Options without a command are the demo's.
        Some(Arg::Long("store")) => {
            let store = Some(parser.value()?.string()?);
            return demo(&mut parser, Demo { store, ledger: None });
        }
        Some(Arg::Long("ledger")) => {
            let ledger = Some(parser.value()?.string()?);
            return demo(&mut parser, Demo { store: None, ledger });
        }
        Some(other) => return Err(other.unexpected().into()),
    };
    match command.as_str() {
        "demo" => demo(&mut parser, Demo::default()),
        "serve" => serve(&mut parser),
        "provider" => provider(&mut parser),
        other => Err(UsageError(format!("there is no command {other:?}: it is demo, serve or provider"))),
    }
}

fn demo(parser: &mut Parser, mut demo: Demo) -> Result<Command, UsageError> {
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("store") => demo.store = Some(parser.value()?.string()?),
            Arg::Long("ledger") => demo.ledger = Some(parser.value()?.string()?),
            Arg::Long("help") | Arg::Short('h') => return Ok(Command::Help),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Command::Demo(demo))
}

fn serve(parser: &mut Parser) -> Result<Command, UsageError> {
    let (mut listen, mut store, mut ledger, mut provider) = (None, None, None, None);
    let (mut lease, mut max_run, mut retention) = (None, None, None);
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("listen") => listen = Some(address(parser)?),
            Arg::Long("store") => store = Some(parser.value()?.string()?),
            Arg::Long("ledger") => ledger = Some(parser.value()?.string()?),
            Arg::Long("provider") => provider = Some(parser.value()?.string()?),
            Arg::Long("lease") => lease = Some(time("lease", parser)?),
            Arg::Long("max-run") => max_run = Some(time("max-run", parser)?),
            Arg::Long("retention") => retention = Some(time("retention", parser)?),
            Arg::Long("help") | Arg::Short('h') => return Ok(Command::Help),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Command::Serve(Serve {
        listen: needed("serve", "--listen ADDR", listen)?,
        store: needed("serve", "--store URL", store)?,
        ledger,
        provider,
        lease,
        max_run,
        retention,
    }))
}

fn provider(parser: &mut Parser) -> Result<Command, UsageError> {
    let mut listen = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("listen") => listen = Some(address(parser)?),
            Arg::Long("help") | Arg::Short('h') => return Ok(Command::Help),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Command::Provider { listen: needed("provider", "--listen ADDR", listen)? })
}

fn needed<T>(command: &str, option: &str, value: Option<T>) -> Result<T, UsageError> {
    value.ok_or_else(|| UsageError(format!("{command} needs {option}")))
}

fn address(parser: &mut Parser) -> Result<SocketAddr, UsageError> {
    let text = parser.value()?.string()?;
    text.parse()
        .map_err(|_| UsageError(format!("--listen {text}: it is an IP address and a port, such as 127.0.0.1:0")))
}

fn time(option: &str, parser: &mut Parser) -> Result<Duration, UsageError> {
    let text = parser.value()?.string()?;
    let wrong = || UsageError(format!("--{option} {text}: it is a whole number with ms, s, m, h or d, such as 2s"));
    let digits = text.find(|char: char| !char.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60 * 1_000,
        "h" => 60 * 60 * 1_000,
        "d" => 24 * 60 * 60 * 1_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|error| error.0)
    }

    #[test]
    fn no_command_is_the_demo_on_a_temporary_file() {
        assert_eq!(parsed(""), Ok(Command::Demo(Demo { store: None, ledger: None })));
        assert_eq!(parsed("demo"), Ok(Command::Demo(Demo { store: None, ledger: None })));
    }

    #[test]
    fn the_demo_takes_every_option_with_its_name_or_without() {
        let demo = Demo { store: Some("redis://h".into()), ledger: Some("sqlite:a.db".into()) };
        for line in ["demo --store redis://h --ledger sqlite:a.db", "--ledger sqlite:a.db --store redis://h"] {
            let Ok(Command::Demo(parsed)) = parsed(line) else { panic!("{line}") };
            assert_eq!(parsed, demo, "{line}");
        }
    }

    #[test]
    fn serve_takes_every_option() {
        let line = "serve --listen 127.0.0.1:0 --store sqlite:a.db --ledger memory: --provider http://127.0.0.1:1 \
                    --lease 2s --max-run 500ms --retention 24h";
        let serve = Serve {
            listen: "127.0.0.1:0".parse().unwrap(),
            store: "sqlite:a.db".into(),
            ledger: Some("memory:".into()),
            provider: Some("http://127.0.0.1:1".into()),
            lease: Some(Duration::from_secs(2)),
            max_run: Some(Duration::from_millis(500)),
            retention: Some(Duration::from_secs(24 * 60 * 60)),
        };
        assert_eq!(parsed(line), Ok(Command::Serve(serve)));
    }

    #[test]
    fn a_mistake_is_named_with_what_to_write_instead() {
        for (line, part) in [
            ("pay", "there is no command \"pay\""),
            ("serve --store memory:", "serve needs --listen ADDR"),
            ("serve --listen 127.0.0.1:0", "serve needs --store URL"),
            ("provider", "provider needs --listen ADDR"),
            ("serve --listen localhost", "--listen localhost: it is an IP address and a port"),
            ("serve --lease 2", "--lease 2: it is a whole number with ms, s, m, h or d"),
            ("serve --lease -1s", "--lease -1s"),
            ("serve --lease 2w", "--lease 2w"),
            ("serve --lease 99999999999999999999s", "--lease 99999999999999999999s"),
            ("serve --retention 99999999999999999d", "--retention 99999999999999999d"),
            ("demo --speed", "--speed"),
            ("demo now", "now"),
            ("serve --lease", "--lease"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
