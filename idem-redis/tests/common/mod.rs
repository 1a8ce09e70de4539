//! What the tests of this crate share.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use idem_core::{
    Answer, Claim, Fenced, Fingerprint, Grant, Key, ManualClock, Owner, Record, Response, Retention, Scope, Store,
    StoreError, StoreErrorKind, Timestamp, Token,
};
use idem_redis::{Builder, RedisStore};

/// Longer than any server that is shared with other work takes for anything that it does at all.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const LEASE: Duration = Duration::from_secs(30);

/// Whether the long variants of tests are to run.
pub fn is_full() -> bool {
    std::env::var("IDEM_TEST_FULL").is_ok_and(|value| value == "1")
}

/// A number for tests that do the same many times: the small one, and says so, unless the long variants are to run.
#[allow(clippy::print_stdout, reason = "whoever reads the output must know what ran")]
pub fn rounds(short: usize, full: usize) -> usize {
    if is_full() {
        return full;
    }
    println!("the short variant: {short} instead of {full} rounds (IDEM_TEST_FULL=1 runs all)");
    short
}

/// A prefix of a test's own, and a clock that all stores on it follow.
#[derive(Clone)]
pub struct Place {
    pub url: String,
    pub prefix: String,
    pub clock: ManualClock,
}

impl Place {
    /// On the server that all tests of the process share.
    pub fn new(name: &str) -> Self {
        Self::at(test_servers::redis().url(), &format!("{}{name}", test_servers::redis().prefix()))
    }

    pub fn at(url: &str, prefix: &str) -> Self {
        // Far enough from the end of time, and from the host's clock.
        let clock = ManualClock::starting_at(Timestamp::from_millis(1_000_000));
        Self { url: url.into(), prefix: prefix.into(), clock }
    }

    /// A store that is patient, for what must be done, by the server's own clock.
    pub fn builder(&self) -> Builder {
        self.builder_through(&self.url)
    }

    /// The same through another address of the server.
    pub fn builder_through(&self, url: &str) -> Builder {
        RedisStore::builder(url).prefix(&self.prefix).timeout(PATIENCE)
    }

    pub async fn open(&self) -> RedisStore {
        self.builder().connect().await.expect("the store can be opened")
    }

    /// Where the record of a key is on the server.
    pub fn name(&self, key: &str) -> String {
        format!("{}:r:tenant-7:{key}", self.prefix)
    }
}

pub fn scope() -> Scope {
    Scope::new("tenant-7").expect("a scope")
}

pub fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

/// A token that was never given before, in any process of the test.
pub fn token() -> Token {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&std::process::id().to_be_bytes());
    bytes[8..].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    Token::from_bytes(bytes)
}

pub fn fingerprint(request: &str) -> Fingerprint {
    Fingerprint::builder().part("body", request).build().expect("one part makes a fingerprint")
}

/// A claim under a fresh token, always for the same request.
pub fn claim_of(name: &str) -> Claim {
    Claim::new(scope(), key(name), token(), fingerprint("the request")).with_lease(LEASE)
}

pub fn response() -> Response {
    Response::new(201).with_header("location", "/payments/1").with_body(&b"{ \"id\":1 }"[..])
}

pub fn retention() -> Retention {
    Retention::new(Duration::from_secs(60 * 60))
}

/// Claims, with an answer.
pub async fn claim(store: &RedisStore, claim: &Claim) -> Answer {
    idem_core::claim(store, claim).await.expect("the claim is answered")
}

/// Claims a key that is free.
pub async fn own(store: &RedisStore, claim: &Claim) -> Owner {
    granted(self::claim(store, claim).await).owner().clone()
}

pub fn granted(answer: Answer) -> Grant {
    match answer {
        Answer::Claimed(grant) | Answer::TakenOver(grant) => grant,
        other => panic!("expected an ownership, and the answer is {other:?}"),
    }
}

pub async fn record(store: &RedisStore, name: &str) -> Option<Record> {
    store.read(&scope(), &key(name)).await.expect("the record can be read").map(|found| found.record)
}

/// Completes as the owner, who must still be one.
pub async fn complete(store: &RedisStore, owner: &Owner) {
    let answer = store.complete(owner, &response(), retention()).await.expect("the completion is answered");
    assert_eq!(answer, Fenced::Written(response()));
}

#[track_caller]
pub fn assert_unavailable<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> StoreError {
    let error = answer.expect_err("the store can't be reached");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    error
}

/// A short word for an answer.
pub fn word(answer: &Answer) -> &'static str {
    match answer {
        Answer::Claimed(_) => "Claimed",
        Answer::TakenOver(_) => "TakenOver",
        Answer::Replay { .. } => "Replay",
        Answer::Conflict { .. } => "Conflict",
        Answer::Reuse { .. } => "Reuse",
        Answer::Unknown => "Unknown",
        Answer::Superseded => "Superseded",
    }
}

/// Tries until it holds: a deadline for what happens by itself, elsewhere.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The same for what is an error until then, which says why in the end.
pub async fn eventually_ok<T>(what: &str, mut works: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let begun = Instant::now();
    loop {
        match works().await {
            Ok(answer) => return answer,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "in vain: {what}: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Random enough for a test, and the same for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}
