//! What the tests of this crate share.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::print_stdout, reason = "how one process of a test speaks to another")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use custom_store::RedbStore;
use idem_core::{
    Answer, Claim, Fingerprint, Key, ManualClock, Owner, Record, Response, Retention, Scope, Store, Timestamp, Token,
};
use tempfile::TempDir;

/// Longer than any disk that is shared with other work takes to sync.
const PATIENCE: Duration = Duration::from_secs(120);

/// A store that follows the host's clock, as those of other processes do.
pub(crate) fn open_by_host_clock(file: impl AsRef<Path>) -> RedbStore {
    RedbStore::builder(file).timeout(PATIENCE).open().unwrap()
}

/// A directory of its own for each test, gone afterwards.
pub(crate) struct Place {
    dir: TempDir,
    pub(crate) clock: ManualClock,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), clock: ManualClock::starting_at(Timestamp::from_millis(1_000_000)) }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir().join("idem.redb")
    }

    /// A store that follows the place's clock.
    pub(crate) fn open(&self) -> RedbStore {
        RedbStore::builder(self.file()).clock(self.clock.clone()).timeout(PATIENCE).open().unwrap()
    }
}

pub(crate) fn scope() -> Scope {
    Scope::new("tenant-7").unwrap()
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

/// A token that was never given before, in any process of the test.
fn token() -> Token {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&std::process::id().to_be_bytes());
    bytes[8..].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    Token::from_bytes(bytes)
}

/// A claim under a fresh token, always for the same request.
pub(crate) fn claim_of(name: &str) -> Claim {
    let fingerprint = Fingerprint::builder().part("body", "the request").build().unwrap();
    Claim::new(scope(), key(name), token(), fingerprint)
}

/// Claims a key that is free.
pub(crate) async fn own(store: &RedbStore, claim: &Claim) -> Owner {
    match idem_core::claim(store, claim).await.unwrap() {
        Answer::Claimed(grant) | Answer::TakenOver(grant) => grant.owner().clone(),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn record(store: &RedbStore, name: &str) -> Option<Record> {
    store.read(&scope(), &key(name)).await.unwrap().map(|found| found.record)
}

pub(crate) fn response() -> Response {
    Response::new(201).with_header("location", "/payments/1").with_body(&b"{ \"id\":1 }"[..])
}

pub(crate) fn retention() -> Retention {
    Retention::new(Duration::from_secs(60 * 60))
}

/// The variable that makes a test play the part of a process that the same test started.
const PART: &str = "CUSTOM_STORE_TEST_PART";

/// What this process is to do, if a test started it.
pub(crate) fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// This test once more, in a process of its own with a part to play. What it says is to be read from its output.
pub(crate) fn another_process(test: &str, part: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(PART, part).stdout(Stdio::piped()).stdin(Stdio::piped());
    command
}

/// A line for the process that started this one.
pub(crate) fn say(what: &str) {
    // One write for the line: the harness writes to the same output.
    println!("\n>{what}");
}

/// What the line of another process says, if it is one.
pub(crate) fn said(line: &str) -> Option<&str> {
    line.strip_prefix('>')
}
