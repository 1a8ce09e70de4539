//! A store that can be told to fail, and what the tests share.

#![allow(dead_code)] // each test file uses its own part

use std::{
    collections::HashMap,
    future::Future,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Fingerprint, Key, Lapsed, ManualClock, Owner, Record,
    Resolve, Response, Retention, Scope, Snapshot, Store, StoreError, StoreErrorKind, Timestamp,
};
use idem_memory::MemoryStore;
use idem_runner::{Attempt, Builder, Idempotency, Outcome, Request, Seal, SealError, Sealed};
use tokio::{sync::Notify, task::JoinHandle};

pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// What happens to one call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// It fails and nothing was done.
    Refused(StoreErrorKind),
    /// It is done, and its answer is lost.
    ReplyLost,
    /// It never answers, and nothing was done.
    Hangs,
    /// It is done only after this long.
    Delayed(Duration),
    /// It is done at once, and its answer comes after this long.
    Late(Duration),
    /// It panics, and nothing was done.
    Panics,
    /// For the operation `busy`, which is a claim that finds an owner who is finishing, and can't see who that is.
    Busy,
    /// The same, where the store can see who that is.
    BusyBy,
    /// For the operation `wait at once`, which is a wait that ends before anything has happened.
    AtOnce,
    /// It is done, but its future has to be polled this many times before and after it.
    Slowly(usize),
}

/// A memory store whose next calls of an operation fail as planned; `usize::MAX` times means until told otherwise.
pub(crate) struct Faulty {
    pub(crate) inner: MemoryStore,
    plans: Mutex<HashMap<&'static str, (Fault, usize)>>,
    calls: Mutex<HashMap<&'static str, usize>>,
}

impl Faulty {
    pub(crate) fn plan(&self, operation: &'static str, fault: Fault, times: usize) {
        self.plans.lock().unwrap().insert(operation, (fault, times));
    }

    pub(crate) fn heal(&self) {
        self.plans.lock().unwrap().clear();
    }

    pub(crate) fn calls(&self, operation: &'static str) -> usize {
        self.calls.lock().unwrap().get(operation).copied().unwrap_or(0)
    }

    fn next(&self, operation: &'static str) -> Option<Fault> {
        *self.calls.lock().unwrap().entry(operation).or_default() += 1;
        let mut plans = self.plans.lock().unwrap();
        let (fault, left) = plans.get_mut(operation)?;
        *left = left.checked_sub(1)?;
        Some(*fault)
    }

    async fn through<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        match self.next(operation) {
            None => call.await,
            Some(Fault::Refused(kind)) => Err(StoreError::new(kind, "faulty", operation, "refused as planned")),
            Some(Fault::ReplyLost) => {
                let _ = call.await;
                Err(StoreError::new(StoreErrorKind::Unavailable, "faulty", operation, "the reply was lost as planned"))
            }
            Some(Fault::Hangs) => std::future::pending().await,
            Some(Fault::Panics | Fault::Busy | Fault::BusyBy | Fault::AtOnce) => panic!("as planned"),
            Some(Fault::Delayed(by)) => {
                tokio::time::sleep(by).await;
                call.await
            }
            Some(Fault::Late(by)) => {
                let answer = call.await;
                tokio::time::sleep(by).await;
                answer
            }
            Some(Fault::Slowly(polls)) => {
                yields(polls).await;
                let answer = call.await;
                yields(polls).await;
                answer
            }
        }
    }
}

async fn yields(times: usize) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

#[async_trait]
impl Store for Faulty {
    fn backend(&self) -> &'static str {
        "faulty"
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        if let Some(fault) = self.next("busy") {
            let found = self.inner.read(claim.scope(), claim.key()).await?;
            let seen = found.map(|found| found.record.attempt()).filter(|_| matches!(fault, Fault::BusyBy));
            return Ok(ClaimRow::Busy { seen });
        }
        self.through("claim", self.inner.claim(claim)).await
    }

    async fn complete(&self, owner: &Owner, with: &Response, keep: Retention) -> Result<Fenced<Response>, StoreError> {
        self.through("complete", self.inner.complete(owner, with, keep)).await
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.through("release", self.inner.release(owner)).await
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        self.through("forget", self.inner.forget(owner)).await
    }

    async fn hold(&self, owner: &Owner, retention: Retention) -> Result<Fenced<()>, StoreError> {
        self.through("hold", self.inner.hold(owner, retention)).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        self.through("renew", self.inner.renew(owner, lease)).await
    }

    async fn checkpoint(&self, owner: &Owner, note: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        self.through("checkpoint", self.inner.checkpoint(owner, note)).await
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        self.through("resolve", self.inner.resolve(resolve)).await
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        self.through("read", self.inner.read(scope, key)).await
    }

    async fn wait(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
    ) -> Result<Option<Snapshot>, StoreError> {
        if self.next("wait at once").is_some() {
            return self.inner.read(scope, key).await;
        }
        self.through("wait", self.inner.wait(scope, key, seen, at_most)).await
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.through("sweep", self.inner.sweep(limit)).await
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        self.through("lapsed", self.inner.lapsed(after, limit)).await
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.through("purge", self.inner.purge(scope, limit)).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.through("check", self.inner.check()).await
    }
}

/// A runner over a faulty store, and the clock that the store judges by.
pub(crate) struct World {
    pub(crate) store: Arc<Faulty>,
    pub(crate) clock: ManualClock,
    pub(crate) idempotency: Idempotency,
}

pub(crate) fn world() -> World {
    world_with(|builder| builder)
}

pub(crate) fn world_with(set: impl FnOnce(Builder) -> Builder) -> World {
    let clock = ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000));
    let inner = MemoryStore::builder().clock(clock.clone()).build();
    let store = Arc::new(Faulty { inner, plans: Mutex::default(), calls: Mutex::default() });
    let idempotency = set(Idempotency::builder(store.clone()).lease(LEASE)).build().unwrap();
    World { store, clock, idempotency }
}

impl World {
    /// Another server on the same store.
    pub(crate) fn another(&self, set: impl FnOnce(Builder) -> Builder) -> Idempotency {
        set(Idempotency::builder(self.store.clone()).lease(LEASE)).build().unwrap()
    }

    /// Starts an operation that goes on until it is told to finish, and answers 201 then.
    pub(crate) fn spawn(&self, key: &'static str, finish: &Arc<Notify>) -> JoinHandle<Ended> {
        let (idempotency, finish) = (self.idempotency.clone(), Arc::clone(finish));
        let operation = move |_| async move {
            finish.notified().await;
            Ok(Response::new(201))
        };
        tokio::spawn(async move { idempotency.run(request(key), operation).await })
    }

    /// Moves the store's clock and the runtime's, which must be paused, together; step by step, so that what is due
    /// on the way happens on the way.
    pub(crate) async fn advance(&self, by: Duration) {
        let step = Duration::from_millis(500);
        let mut left = by;
        while !left.is_zero() {
            let now = left.min(step);
            self.clock.advance(now);
            tokio::time::advance(now).await;
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            left -= now;
        }
    }

    pub(crate) async fn record(&self, key: &str) -> Option<Record> {
        self.store.inner.read(&scope(), &Key::new(key).unwrap()).await.unwrap().map(|found| found.record)
    }
}

/// A sealer without a key.
#[derive(Debug)]
pub(crate) struct Keyless;

impl Seal for Keyless {
    fn seal(&self, _: &[u8], _: &[u8]) -> Result<Sealed, SealError> {
        Err(SealError::Failed("there is no key, as planned".into()))
    }

    fn open(&self, sealed: &Sealed, _: &[u8]) -> Result<Vec<u8>, SealError> {
        Err(SealError::UnknownKey { key_id: sealed.key_id.clone() })
    }
}

pub(crate) fn scope() -> Scope {
    Scope::new("tenant-7").unwrap()
}

pub(crate) fn request(key: &str) -> Request {
    request_of(key, "body")
}

pub(crate) fn request_of(key: &str, body: &str) -> Request {
    Request::new(scope(), Key::new(key).unwrap(), fingerprint(body))
}

pub(crate) fn fingerprint(body: &str) -> Fingerprint {
    Fingerprint::builder().part("body", body).build().unwrap()
}

pub(crate) type Ended = Outcome<Response, &'static str>;

/// An operation that answers at once.
pub(crate) fn answering(
    status: u16,
) -> impl FnOnce(Attempt) -> std::future::Ready<Result<Response, &'static str>> + Send {
    move |_| std::future::ready(Ok(Response::new(status).with_body("answer")))
}

/// Polls until it holds; what a test waits for has a deadline and no other meaning.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    for _ in 0..2_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it never came to be that {what}");
}
