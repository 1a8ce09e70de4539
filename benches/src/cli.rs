//! The command line.

use std::ffi::OsString;

use lexopt::{Arg, Error, Parser, ValueExt};

pub(crate) const USAGE: &str = "\
What idem costs, against the bare statement through the same driver. Build it with --release.

idem-benches postgres [options]
    Starts a private PostgreSQL with fsync on, and a PgBouncer in front of it.
    --url URL        measures on this server instead, in a schema of its own; its user must be a superuser
    --only WORD      only the measures whose name contains WORD: claim, replay, pooler, trips, wal, hot, growth, sync
    --full           growth up to 10 million records instead of 1 million: some 25 GB of disk

idem-benches redis [options]
    Starts a private Redis, or the server that IDEM_TEST_REDIS_SERVER names, such as Valkey's.
    --aof WHEN       when its append-only file is brought to the disk: no (there is none; the default), everysec, always
    --only WORD      only the measures whose name contains WORD: claim, replay, writes, replicas, trips, growth, memory
    --full           growth up to 10 million records instead of 1 million: some 5 GB of memory

idem-benches http [options]
    Starts servers with the HTTP layer, on the memory store, and without it.
    --metrics        with a recorder of metrics that counts
    --only WORD      only the measures whose name contains WORD: new, replay

All:
    --rounds N       how many rounds, 9 or more (default 11)
    --seconds TIME   how long the base of a comparison runs in a round, in seconds (default 0.5)
";

/// What to do.
#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    Help,
    Postgres(Options),
    Redis(Options),
    Http(Options),
}

/// When an append-only file is brought to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aof {
    /// There is none.
    No,
    Everysec,
    Always,
}

/// How to measure.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// The PostgreSQL; none is a private one.
    pub(crate) url: Option<String>,
    pub(crate) only: Option<String>,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) full: bool,
    /// Redis's.
    pub(crate) aof: Aof,
    /// Whether a recorder of metrics is installed.
    pub(crate) metrics: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { url: None, only: None, rounds: 11, seconds: 0.5, full: false, aof: Aof::No, metrics: false }
    }
}

impl Options {
    /// Whether a measure of that name was asked for.
    pub(crate) fn wants(&self, measure: &str) -> bool {
        self.only.as_ref().is_none_or(|word| measure.contains(word.as_str()))
    }
}

/// Reads the arguments behind the program's name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, Error> {
    let mut parser = Parser::from_args(arguments);
    match parser.next()? {
        Some(Arg::Value(backend)) if backend == "postgres" => options(&mut parser, Command::Postgres),
        Some(Arg::Value(backend)) if backend == "redis" => options(&mut parser, Command::Redis),
        Some(Arg::Value(what)) if what == "http" => options(&mut parser, Command::Http),
        Some(Arg::Value(other)) => {
            Err(format!("there is nothing to measure called {other:?}: it is postgres, redis or http").into())
        }
        Some(Arg::Long("help") | Arg::Short('h')) => Ok(Command::Help),
        Some(other) => Err(other.unexpected()),
        None => Err("what is to be measured? idem-benches postgres, redis or http (--help shows more)".into()),
    }
}

fn options(parser: &mut Parser, command: impl Fn(Options) -> Command) -> Result<Command, Error> {
    let mut options = Options::default();
    let default = command(Options::default());
    let (is_postgres, is_redis) = (matches!(default, Command::Postgres(_)), matches!(default, Command::Redis(_)));
    let is_http = matches!(default, Command::Http(_));
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("url") if is_postgres => options.url = Some(parser.value()?.string()?),
            Arg::Long("aof") if is_redis => {
                options.aof = match parser.value()?.string()?.as_str() {
                    "no" => Aof::No,
                    "everysec" => Aof::Everysec,
                    "always" => Aof::Always,
                    other => return Err(format!("--aof {other}: it is no, everysec or always").into()),
                }
            }
            Arg::Long("only") => options.only = Some(parser.value()?.string()?),
            Arg::Long("rounds") => options.rounds = parser.value()?.parse()?,
            Arg::Long("seconds") => options.seconds = parser.value()?.parse()?,
            Arg::Long("metrics") if is_http => options.metrics = true,
            Arg::Long("full") if !is_http => options.full = true,
            Arg::Long("help") | Arg::Short('h') => return Ok(Command::Help),
            other => return Err(other.unexpected()),
        }
    }
    if options.rounds < 9 {
        return Err("--rounds: a median of fewer than 9 rounds says nothing on a shared machine".into());
    }
    if !(0.01..=10.0).contains(&options.seconds) {
        return Err("--seconds: it is a number from 0.01 to 10".into());
    }
    Ok(command(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &str) -> Result<Command, String> {
        parse(arguments.split_whitespace().map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_read() {
        assert_eq!(parsed("postgres"), Ok(Command::Postgres(Options::default())));
        let expected = Options {
            url: Some("postgres://x".into()),
            only: Some("wal".into()),
            rounds: 21,
            seconds: 0.25,
            full: true,
            ..Options::default()
        };
        let given = parsed("postgres --url postgres://x --only wal --rounds 21 --seconds 0.25 --full");
        assert_eq!(given, Ok(Command::Postgres(expected)));
        let expected = Options { aof: Aof::Always, only: Some("claim".into()), ..Options::default() };
        assert_eq!(parsed("redis --aof always --only claim"), Ok(Command::Redis(expected)));
        let expected = Options { metrics: true, only: Some("new".into()), ..Options::default() };
        assert_eq!(parsed("http --metrics --only new"), Ok(Command::Http(expected)));
        assert_eq!(parsed("postgres --help"), Ok(Command::Help));
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        for (arguments, word) in [
            ("", "what is to be measured"),
            ("oracle", "oracle"),
            ("postgres --rounds 8", "--rounds"),
            ("postgres --seconds 0", "--seconds"),
            ("postgres --seconds NaN", "--seconds"),
            ("postgres --fast", "--fast"),
            ("postgres --aof always", "--aof"),
            ("redis --aof sometimes", "sometimes"),
            ("redis --url redis://x", "--url"),
            ("redis --metrics", "--metrics"),
            ("http --url postgres://x", "--url"),
            ("http --full", "--full"),
        ] {
            let problem = parsed(arguments).expect_err(arguments);
            assert!(problem.contains(word), "{arguments}: {problem}");
        }
    }

    #[test]
    fn measures_are_chosen_by_a_part_of_their_name() {
        let options = Options { only: Some("claim".into()), ..Options::default() };
        assert!(options.wants("claim pooler"));
        assert!(!options.wants("replay pooler"));
        assert!(Options::default().wants("replay"));
    }
}
