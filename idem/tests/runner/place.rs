//! Where the records are, and runners on them.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use idem::{
    Attempt, Builder, Fingerprint, Idempotency, Key, ManualClock, Outcome, Record, Request, Response, Scope, Store,
    Timestamp, memory::MemoryStore, postgres::PostgresStore, redis::RedisStore, sqlite::SqliteStore,
};
use idem_conformance::faulty::{Faults, Faulty};
use tempfile::TempDir;

pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// Longer than anything here takes on a machine that has other work: never what a test is about.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// How long a call of a store may take, which is shared with other tests.
const STORE_TIMEOUT: Duration = Duration::from_secs(60);

/// Records of a test's own, and the clock that every store on them follows.
pub(crate) struct Place {
    pub(crate) clock: ManualClock,
    kind: Kind,
}

enum Kind {
    Memory(Arc<MemoryStore>),
    Sqlite(TempDir),
    Postgres { table: String },
    Redis { prefix: String },
}

impl Place {
    pub(crate) fn memory() -> Self {
        let clock = clock();
        Self { kind: Kind::Memory(Arc::new(MemoryStore::builder().clock(clock.clone()).build())), clock }
    }

    pub(crate) fn sqlite() -> Self {
        Self { kind: Kind::Sqlite(tempfile::tempdir().unwrap()), clock: clock() }
    }

    pub(crate) fn postgres() -> Self {
        static TABLES: AtomicUsize = AtomicUsize::new(0);
        let table = format!("runner_{}", TABLES.fetch_add(1, Ordering::Relaxed));
        Self { kind: Kind::Postgres { table }, clock: clock() }
    }

    pub(crate) fn redis() -> Self {
        Self { kind: Kind::Redis { prefix: test_servers::redis().prefix() }, clock: clock() }
    }

    /// A handle of its own, as another process has one. Memory has none but the one.
    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        let clock = self.clock.clone();
        match &self.kind {
            Kind::Memory(store) => Arc::clone(store) as Arc<dyn Store>,
            Kind::Sqlite(folder) => {
                let builder = SqliteStore::builder(folder.path().join("idem.db")).clock(clock).timeout(STORE_TIMEOUT);
                Arc::new(builder.open().unwrap())
            }
            Kind::Postgres { table } => {
                let builder = PostgresStore::builder(&test_servers::postgres().url()).table(table);
                Arc::new(builder.clock(clock).timeout(STORE_TIMEOUT).connect().await.unwrap())
            }
            Kind::Redis { prefix } => {
                let builder = RedisStore::builder(test_servers::redis().url()).prefix(prefix);
                Arc::new(builder.clock(clock).timeout(STORE_TIMEOUT).connect().await.unwrap())
            }
        }
    }

    /// How many keys are many, and how many in the long variant of the tests.
    pub(crate) fn many(&self) -> (usize, usize) {
        match &self.kind {
            Kind::Memory(_) => (20_000, 200_000),
            Kind::Sqlite(_) | Kind::Postgres { .. } | Kind::Redis { .. } => (2_000, 200_000),
        }
    }

    /// Whether the store's server removes expired records without being asked.
    pub(crate) fn sweeps_by_itself(&self) -> bool {
        matches!(self.kind, Kind::Redis { .. })
    }

    /// A runner as another process has one, and what may befall its store.
    pub(crate) async fn runner(&self, set: impl FnOnce(Builder) -> Builder) -> (Idempotency, Faults) {
        let (store, faults) = Faulty::wrap(self.open().await);
        let builder = Idempotency::builder(store).lease(LEASE).store_timeout(STORE_TIMEOUT);
        let builder = builder.completion_patience(STORE_TIMEOUT);
        (set(builder).build().unwrap(), faults)
    }
}

fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000))
}

pub(crate) type Ended = Outcome<Response, &'static str>;

pub(crate) fn scope() -> Scope {
    Scope::new("tenant-7").unwrap()
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

pub(crate) fn request(name: &str) -> Request {
    request_of(name, "body")
}

pub(crate) fn request_of(name: &str, body: &str) -> Request {
    Request::new(scope(), key(name), Fingerprint::builder().part("body", body).build().unwrap())
}

/// An operation that answers at once.
pub(crate) fn answering(
    status: u16,
) -> impl FnOnce(Attempt) -> std::future::Ready<Result<Response, &'static str>> + Send + 'static {
    move |_| std::future::ready(Ok(Response::new(status).with_body("answer")))
}

/// One that counts that it ran, and answers then.
pub(crate) fn counting(
    runs: &Arc<AtomicUsize>,
    status: u16,
) -> impl FnOnce(Attempt) -> std::future::Ready<Result<Response, &'static str>> + Send + 'static {
    let runs = Arc::clone(runs);
    move |_| {
        runs.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(Response::new(status).with_body("answer")))
    }
}

/// One that nobody may run.
pub(crate) fn never(_: Attempt) -> std::future::Pending<Result<Response, &'static str>> {
    panic!("it must not run")
}

pub(crate) async fn record(runner: &Idempotency, name: &str) -> Option<Record> {
    runner.store().read(&scope(), &key(name)).await.unwrap().map(|found| found.record)
}

#[track_caller]
pub(crate) fn assert_ran(outcome: &Ended, status: u16) {
    assert!(matches!(outcome, Outcome::Ran { reply, stored: true } if reply.status() == status), "{outcome:?}");
}

#[track_caller]
pub(crate) fn assert_replays(outcome: &Ended, status: u16) {
    assert!(matches!(outcome, Outcome::Replay { response, .. } if response.status() == status), "{outcome:?}");
}

/// Looks until it holds: a deadline for what happens by itself.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < LIMIT, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
