//! The store itself.

use std::{fmt, num::NonZeroUsize, ops::ControlFlow, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use fred::types::Value;
use idem_core::{
    AttemptId, Checkpoint, Checkpointed, Claim, ClaimRow, Fenced, Key, Lapsed, Owner, Record, Resolve, Response,
    Retention, Scope, Snapshot, Store, StoreError, StoreErrorKind, Timestamp, TokenReused, async_trait,
    machine::{self, Decision, Verdict},
};
use tokio::time::{Instant, sleep};

use crate::{
    Builder, OpenError,
    clock::Clock,
    error::{BACKEND, store_error, undecodable},
    link::{Call, Link, Reply},
    listen::Listener,
    names::Names,
    records::{self, Stored, clamped, time_to_live},
    scripts::Scripts,
    wait::{self, Waiters},
};

/// For how long a value stays where a test moves the clock, in milliseconds: what the scripts call LONG.
const LONG: i64 = 86_400_000;

/// Keeps records as values of a Redis or Valkey server, or of a cluster.
///
/// A handle: clones share its connections. Any number of handles on one prefix, in any number of processes, are safe
/// together; a clone is cheaper.
///
/// Its operations need a Tokio runtime with I/O and time enabled, and panic outside one. Its connections belong to the
/// runtime of its first operation, and serve others too; when that one ends, the next operation connects on its own.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) link: Link,
    pub(crate) scripts: Scripts,
    pub(crate) names: Names,
    pub(crate) clock: Clock,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) accepts_eviction: bool,
    pub(crate) listener: Listener,
}

/// What a store is set up with.
pub(crate) struct Parts {
    pub(crate) link: Link,
    pub(crate) listener: Listener,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) names: Names,
    pub(crate) clock: Clock,
    pub(crate) accepts_eviction: bool,
}

impl RedisStore {
    /// Connects to the server that a URL names, and checks that the store can keep its promise there.
    ///
    /// `redis://USER:PASSWORD@HOST:PORT/DATABASE`, `rediss://` for TLS (rustls, with the authorities that the system
    /// trusts, or those in a PEM file, `?sslrootcert=PATH`), `redis-cluster://HOST:PORT?node=HOST:PORT&…` and
    /// `redis-sentinel://HOST:PORT?sentinelServiceName=NAME&node=HOST:PORT&…`, each also with `rediss`.
    /// `valkey` may stand for `redis`. `?prefix=PREFIX` is [`Builder::prefix`].
    ///
    /// # Errors
    ///
    /// [`OpenError`] says what is wrong with the URL or the server.
    pub async fn connect(url: &str) -> Result<Self, OpenError> {
        Self::builder(url).connect().await
    }

    /// Sets a store up in another way than [`RedisStore::connect`].
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    pub(crate) fn of(parts: Parts) -> Self {
        let Parts { link, listener, waiters, names, clock, accepts_eviction } = parts;
        let scripts = Scripts::new();
        Self { inner: Arc::new(Inner { link, scripts, names, clock, waiters, accepts_eviction, listener }) }
    }

    pub(crate) fn call(&self, scope: &Scope, key: &Key) -> Call {
        Call { key: self.inner.names.record(scope, key), now: self.inner.clock.set_to(), ends: None }
    }

    /// The call of a script that ends an attempt if it writes.
    pub(crate) fn ending(&self, scope: &Scope, key: &Key) -> Call {
        let word = format!("{:016x}", wait::bell(scope, key));
        Call { ends: Some((self.inner.names.channel(), word)), ..self.call(scope, key) }
    }

    /// A record as the value to write at `now`, and for how long it stays there.
    fn value_of(&self, record: &Record, now: Timestamp) -> (Bytes, i64) {
        let ttl = match self.inner.clock.set_to() {
            None => time_to_live(record, now),
            Some(_) => LONG,
        };
        (records::encode(record, now, ttl), ttl)
    }

    fn stored(&self, value: &Bytes, operation: &'static str) -> Result<Stored, StoreError> {
        records::decode(value.clone()).map_err(|error| undecodable(operation, error))
    }

    /// What is there, and now.
    pub(crate) async fn look(
        &self,
        operation: &'static str,
        scope: &Scope,
        key: &Key,
    ) -> Result<Option<Seen>, StoreError> {
        self.look_with(operation, scope, key, Vec::new()).await
    }

    pub(crate) async fn look_with(
        &self,
        operation: &'static str,
        scope: &Scope,
        key: &Key,
        arguments: Vec<Value>,
    ) -> Result<Option<Seen>, StoreError> {
        let Inner { link, scripts, .. } = &*self.inner;
        match link.script(operation, &scripts.look, &self.call(scope, key), arguments).await? {
            Reply::Found { value, now } => {
                let stored = self.stored(&value, operation)?;
                Ok(Some(Seen { value, stored, now }))
            }
            Reply::Absent | Reply::Written => Ok(None),
        }
    }

    /// Writes what the machine decided on over the value that it judged.
    ///
    /// If it was decided at an instant that only the client told, from `not_before` on by the record's own clock.
    async fn swap(
        &self,
        operation: &'static str,
        call: &Call,
        judged: (&Bytes, &Stored),
        next: (&Record, Timestamp),
        not_before: Option<Timestamp>,
    ) -> Result<Reply, StoreError> {
        let Inner { link, scripts, .. } = &*self.inner;
        let (value, stored) = judged;
        let (record, now) = next;
        // Where it expires when it did before, its time to live goes on, and with it the clock that it is judged by.
        let goes_on = not_before.is_none() && record.expiry == stored.record.expiry;
        let (next, ttl) = match goes_on {
            true => (records::encode(record, stored.base, stored.ttl), String::new()),
            false => {
                let (next, ttl) = self.value_of(record, now);
                (next, ttl.to_string())
            }
        };
        let not_before = not_before.unwrap_or(Timestamp::MIN);
        let arguments: Vec<Value> =
            vec![value.clone().into(), clamped(not_before).to_string().into(), next.into(), ttl.into()];
        match operation {
            "claim" | "resolve" => link.owning_script(operation, &scripts.swap, call, arguments).await,
            _ => link.script(operation, &scripts.swap, call, arguments).await,
        }
    }

    /// Has the machine decide from what is there, and writes what that comes to, as often as others come in between.
    async fn decide<A>(
        &self,
        operation: &'static str,
        call: &Call,
        (scope, key): (&Scope, &Key),
        decide: impl Fn(Option<&Record>, Timestamp) -> Decision<A>,
    ) -> Result<(A, Option<Record>), StoreError> {
        let mut pauses = Pauses::new();
        loop {
            let Some(seen) = self.look(operation, scope, key).await? else {
                return Ok((decide(None, self.inner.clock.shows()).answer, None));
            };
            let Decision { answer, write } = decide(Some(&seen.stored.record), seen.now);
            let Some(next) = write else { return Ok((answer, None)) };
            let judged = (&seen.value, &seen.stored);
            if let Reply::Written = self.swap(operation, call, judged, (&next, seen.now), None).await? {
                self.inner.waiters.wake(wait::bell(scope, key));
                return Ok((answer, Some(next)));
            }
            pauses.pause().await;
        }
    }

    /// Runs a script of the owner's; where it wrote nothing, the machine says why, from what it found.
    async fn write<A>(
        &self,
        operation: &'static str,
        call: &Call,
        script: &fred::types::scripts::Script,
        arguments: Vec<Value>,
        (decide, written): (impl Fn(Option<&Record>, Timestamp) -> Decision<Fenced<A>>, A),
    ) -> Result<Fenced<A>, StoreError> {
        match self.inner.link.script(operation, script, call, arguments).await? {
            Reply::Written => Ok(Fenced::Written(written)),
            Reply::Absent => Ok(Fenced::Superseded),
            Reply::Found { value, now } => {
                let stored = self.stored(&value, operation)?;
                let Decision { answer, write } = decide(Some(&stored.record), now);
                match write {
                    None => Ok(answer),
                    Some(_) => {
                        let message = "a script refused what the machine allows; this is a bug in idem";
                        Err(store_error(StoreErrorKind::Contract, operation, message))
                    }
                }
            }
        }
    }

    /// Claims with the one command that most claims are, where it can be sent at once.
    ///
    /// It ends within the time limit by itself, and nothing that a longer claim needs has to be made room for. Where there
    /// is more to it the claim goes on, with the value that was found, or none if nothing was asked.
    async fn ask_at_once(&self, claim: &Claim) -> Result<ControlFlow<ClaimRow, Option<Bytes>>, StoreError> {
        let Inner { link, clock, names, .. } = &*self.inner;
        if !clock.is_known() {
            return Ok(ControlFlow::Continue(None));
        }
        let name = names.record(claim.scope(), claim.key());
        self.look_at_clock_again(&name);
        let First { record, value, ttl } = self.first(claim)?;
        let Some(set) = link.set_if_absent_at_once("claim", name, value, ttl) else {
            return Ok(ControlFlow::Continue(None));
        };
        let Some(value) = set.await? else { return Ok(ControlFlow::Break(ClaimRow::Written(record))) };
        let stored = self.stored(&value, "claim")?;
        match clock.set_to().is_none() && is_clockless(&unasked(claim, &stored.record)?) {
            true => Ok(ControlFlow::Break(ClaimRow::Found { record: stored.record, now: None })),
            false => Ok(ControlFlow::Continue(Some(value))),
        }
    }

    /// Claims, however long it takes. A value that was found already is judged first.
    async fn ask(&self, claim: &Claim, mut found: Option<Bytes>) -> Result<ClaimRow, StoreError> {
        const OPERATION: &str = "claim";
        let name = self.inner.names.record(claim.scope(), claim.key());
        self.learn(OPERATION, &name).await?;
        let mut pauses = Pauses::new();
        loop {
            if found.is_none()
                && let Some(row) = self.ask_unreplicated(claim).await?
            {
                return Ok(row);
            }
            let value = match found.take() {
                Some(value) => value,
                None => {
                    let First { record, value, ttl } = self.first(claim)?;
                    match self.inner.link.set_if_absent(OPERATION, &name, value, ttl).await? {
                        Some(value) => value,
                        None => return Ok(ClaimRow::Written(record)),
                    }
                }
            };
            if let Some(row) = self.judge_found(claim, value).await? {
                return Ok(row);
            }
            pauses.pause().await;
        }
    }

    /// What a claim writes where there is no record.
    fn first(&self, claim: &Claim) -> Result<First, StoreError> {
        let now = self.inner.clock.shows();
        let Some(record) = decided(machine::claim(None, claim, now))?.write else {
            let message = "the machine refused a claim of nothing; this is a bug in idem";
            return Err(store_error(StoreErrorKind::Contract, "claim", message));
        };
        let (value, ttl) = self.value_of(&record, now);
        Ok(First { record, value, ttl })
    }

    /// Where claims wait for replicas, answers one that has nothing to write without waiting for others that do. None if
    /// there is no record, or it changed meanwhile.
    async fn ask_unreplicated(&self, claim: &Claim) -> Result<Option<ClaimRow>, StoreError> {
        let link = &self.inner.link;
        if link.replicas.is_none() {
            return Ok(None);
        }
        match link.value("claim", &self.inner.names.record(claim.scope(), claim.key())).await? {
            Some(value) => self.judge_found(claim, value).await,
            None => Ok(None),
        }
    }

    async fn judge_found(&self, claim: &Claim, value: Bytes) -> Result<Option<ClaimRow>, StoreError> {
        let stored = self.stored(&value, "claim")?;
        match self.inner.clock.set_to() {
            // All that there is to know is known.
            Some(now) => self.judge(claim, value, stored, now).await,
            None => self.judge_unasked(claim, value, stored).await,
        }
    }

    /// Learns what the server's clock shows, if that is not known yet; again in the background where it is long ago.
    async fn learn(&self, operation: &'static str, key: &str) -> Result<(), StoreError> {
        match self.inner.clock.is_known() {
            true => self.look_at_clock_again(key),
            false => self.look_at_clock(operation, key).await?,
        }
        Ok(())
    }

    fn look_at_clock_again(&self, key: &str) {
        if self.inner.clock.should_look_again() {
            let (store, key) = (self.clone(), key.to_owned());
            tokio::spawn(async move { store.look_at_clock("claim", &key).await });
        }
    }

    pub(crate) async fn look_at_clock(&self, operation: &'static str, key: &str) -> Result<(), StoreError> {
        let showed = self.inner.link.time(operation, key).await?;
        self.inner.clock.learn(showed);
        Ok(())
    }

    /// Judges a value by a clock that is known. None if it changed meanwhile.
    async fn judge(
        &self,
        claim: &Claim,
        value: Bytes,
        stored: Stored,
        now: Timestamp,
    ) -> Result<Option<ClaimRow>, StoreError> {
        let decision = decided(machine::claim(Some(&stored.record), claim, now))?;
        let Some(next) = decision.write else {
            return Ok(Some(ClaimRow::Found { record: stored.record, now: Some(now) }));
        };
        let call = self.ending(claim.scope(), claim.key());
        let written = self.swap("claim", &call, (&value, &stored), (&next, now), None).await?;
        Ok(matches!(written, Reply::Written).then(|| ClaimRow::Written(next)))
    }

    /// Judges a value that came without the server's clock. What is there is live.
    ///
    /// Most answers need no clock. A record in progress under another token does: the machine is asked what it would
    /// decide once the lease is over, and that is written if it is.
    async fn judge_unasked(&self, claim: &Claim, value: Bytes, stored: Stored) -> Result<Option<ClaimRow>, StoreError> {
        let record = &stored.record;
        let verdict = unasked(claim, record)?;
        if is_clockless(&verdict) {
            return Ok(Some(ClaimRow::Found { record: stored.record, now: None }));
        }
        let needs_clock = needs_clock(&verdict);
        let last = just_before(record.expiry);
        // The lease of a claim that is repeated goes on from now, which must not be guessed. And where claims wait for
        // replicas, one that may have nothing to write does not queue up with them.
        let waits = needs_clock && self.inner.link.replicas.is_some();
        let looks = record.token == claim.token() || waits || (needs_clock && last < record.lease_end);
        if looks {
            let Some(seen) = self.look("claim", claim.scope(), claim.key()).await? else { return Ok(None) };
            return self.judge(claim, seen.value, seen.stored, seen.now).await;
        }
        // What it becomes begins a time to live of its own, so it is enough to be about right with this.
        let shown = self.inner.clock.shows().min(last);
        let now = if needs_clock { shown.max(record.lease_end) } else { shown };
        let Some(next) = decided(machine::claim(Some(record), claim, now))?.write else {
            // Under hold, or at its lapse limit: how long it is until then is all that is asked.
            let Some(seen) = self.look("claim", claim.scope(), claim.key()).await? else { return Ok(None) };
            return self.judge(claim, seen.value, seen.stored, seen.now).await;
        };
        let not_before = if needs_clock { record.lease_end } else { Timestamp::MIN };
        let call = self.ending(claim.scope(), claim.key());
        match self.swap("claim", &call, (&value, &stored), (&next, now), Some(not_before)).await? {
            Reply::Written => Ok(Some(ClaimRow::Written(next))),
            Reply::Absent => Ok(None),
            Reply::Found { value: found, now } if found == value => {
                Ok(Some(ClaimRow::Found { record: stored.record, now: Some(now) }))
            }
            Reply::Found { value, now } => {
                let stored = self.stored(&value, "claim")?;
                // Maybe it is this claim's own doing, whose reply was lost.
                self.judge(claim, value, stored, now).await
            }
        }
    }

    async fn snapshot(
        &self,
        operation: &'static str,
        scope: &Scope,
        key: &Key,
    ) -> Result<Option<Snapshot>, StoreError> {
        let seen = self.inner.link.within(operation, self.look(operation, scope, key)).await?;
        let live = seen.filter(|seen| seen.stored.record.is_live(seen.now));
        Ok(live.map(|seen| Snapshot { record: seen.stored.record, now: seen.now }))
    }
}

/// A value as it was found, and when.
pub(crate) struct Seen {
    pub(crate) value: Bytes,
    pub(crate) stored: Stored,
    pub(crate) now: Timestamp,
}

/// The record of a first claim, and what of it is written for how long.
struct First {
    record: Record,
    value: Bytes,
    ttl: i64,
}

/// What the machine decides where only the client's idea of now is at hand. What is there is live, whatever that is.
fn unasked(claim: &Claim, record: &Record) -> Result<Decision<Verdict>, StoreError> {
    let leased = just_before(record.lease_end).min(just_before(record.expiry));
    decided(machine::claim(Some(record), claim, leased))
}

/// Whether it is up to the clock: for a record in progress under another token.
fn needs_clock(unasked: &Decision<Verdict>) -> bool {
    matches!(unasked.answer, Verdict::Conflict { .. })
}

/// Whether the record says by itself what a claim of it is answered, and nothing is written.
fn is_clockless(unasked: &Decision<Verdict>) -> bool {
    unasked.write.is_none() && !needs_clock(unasked)
}

fn just_before(end: Timestamp) -> Timestamp {
    Timestamp::from_millis(end.as_millis().saturating_sub(1))
}

fn decided(decision: Result<Decision<Verdict>, TokenReused>) -> Result<Decision<Verdict>, StoreError> {
    decision.map_err(|TokenReused| StoreError::token_reused(BACKEND))
}

/// What a script compares a value's owner with.
fn owner_bytes(owner: &Owner) -> Bytes {
    let attempt = owner.attempt();
    let mut bytes = BytesMut::with_capacity(20);
    bytes.put_u32(attempt.number);
    bytes.put_slice(attempt.token.as_bytes());
    bytes.freeze()
}

fn millis(duration: Duration) -> String {
    clamped(Timestamp::from_millis(0).after(duration)).to_string()
}

/// Pauses between tries: none, then longer and longer ones, up to 50 ms. The time limit ends them.
struct Pauses(Duration);

impl Pauses {
    fn new() -> Self {
        Self(Duration::ZERO)
    }

    async fn pause(&mut self) {
        if !self.0.is_zero() {
            sleep(self.0).await;
        }
        self.0 = (2 * self.0).clamp(Duration::from_millis(1), Duration::from_millis(50));
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("names", &self.inner.names).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for RedisStore {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimRow, StoreError> {
        let begun = Instant::now();
        let found = match self.ask_at_once(claim).await? {
            ControlFlow::Break(row) => return Ok(row),
            ControlFlow::Continue(found) => found,
        };
        // On its own, since every claim would have to make room for what only a few come to.
        let rest = Box::pin(self.ask(claim, found));
        self.inner.link.within_since(begun, "claim", rest).await
    }

    async fn complete(
        &self,
        owner: &Owner,
        response: &Response,
        retention: Retention,
    ) -> Result<Fenced<Response>, StoreError> {
        let call = self.ending(owner.scope(), owner.key());
        let arguments =
            vec![owner_bytes(owner).into(), millis(retention.standard()).into(), Bytes::from(response.encode()).into()];
        let decide = |found: Option<&Record>, now| machine::complete(found, owner, response, retention, now);
        let script = &self.inner.scripts.complete;
        let written = self.write("complete", &call, script, arguments, (decide, response.clone()));
        let answer = self.inner.link.within("complete", written).await?;
        self.inner.waiters.wake(wait::bell(owner.scope(), owner.key()));
        Ok(answer)
    }

    async fn release(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        let call = self.ending(owner.scope(), owner.key());
        let decide = |found: Option<&Record>, now| machine::release(found, owner, now);
        let decided = self.decide("release", &call, (owner.scope(), owner.key()), decide);
        Ok(self.inner.link.within("release", decided).await?.0)
    }

    async fn forget(&self, owner: &Owner) -> Result<Fenced<()>, StoreError> {
        let call = self.ending(owner.scope(), owner.key());
        let decide = |found: Option<&Record>, now| machine::forget(found, owner, now);
        let decided = self.decide("forget", &call, (owner.scope(), owner.key()), decide);
        Ok(self.inner.link.within("forget", decided).await?.0)
    }

    async fn hold(&self, owner: &Owner, retention: Retention) -> Result<Fenced<()>, StoreError> {
        let call = self.ending(owner.scope(), owner.key());
        let decide = |found: Option<&Record>, now| machine::hold(found, owner, retention, now);
        let decided = self.decide("hold", &call, (owner.scope(), owner.key()), decide);
        Ok(self.inner.link.within("hold", decided).await?.0)
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Fenced<()>, StoreError> {
        let call = self.call(owner.scope(), owner.key());
        let arguments = vec![owner_bytes(owner).into(), millis(lease).into()];
        let decide = |found: Option<&Record>, now| machine::renew(found, owner, lease, now);
        let written = self.write("renew", &call, &self.inner.scripts.renew, arguments, (decide, ()));
        self.inner.link.within("renew", written).await
    }

    async fn checkpoint(&self, owner: &Owner, checkpoint: &Checkpoint) -> Result<Fenced<Checkpointed>, StoreError> {
        let call = self.call(owner.scope(), owner.key());
        let decide = |found: Option<&Record>, now| machine::checkpoint(found, owner, checkpoint, now);
        let decided = self.decide("checkpoint", &call, (owner.scope(), owner.key()), decide);
        Ok(self.inner.link.within("checkpoint", decided).await?.0)
    }

    async fn resolve(&self, resolve: &Resolve) -> Result<Fenced<Record>, StoreError> {
        let call = self.ending(resolve.scope(), resolve.key());
        let decide = |found: Option<&Record>, now| machine::resolve(found, resolve, now);
        let decided = self.decide("resolve", &call, (resolve.scope(), resolve.key()), decide);
        let (answer, written) = self.inner.link.within("resolve", decided).await?;
        Ok(match (answer, written) {
            (Fenced::Written(()), Some(record)) => Fenced::Written(record),
            _ => Fenced::Superseded,
        })
    }

    async fn read(&self, scope: &Scope, key: &Key) -> Result<Option<Snapshot>, StoreError> {
        self.snapshot("read", scope, key).await
    }

    async fn wait(
        &self,
        scope: &Scope,
        key: &Key,
        seen: AttemptId,
        at_most: Duration,
    ) -> Result<Option<Snapshot>, StoreError> {
        let help = Waiting { store: self, scope, key };
        self.inner.waiters.wait(wait::bell(scope, key), seen, at_most, &help).await
    }

    async fn sweep(&self, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.remove_expired(limit.get()).await
    }

    async fn lapsed(&self, after: Option<(&Scope, &Key)>, limit: NonZeroUsize) -> Result<Vec<Lapsed>, StoreError> {
        self.list_lapsed(after, limit.get()).await
    }

    async fn purge(&self, scope: &Scope, limit: NonZeroUsize) -> Result<usize, StoreError> {
        self.remove_scope(scope, limit.get()).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.check_servers().await
    }
}

/// What a wait needs of the store.
struct Waiting<'a> {
    store: &'a RedisStore,
    scope: &'a Scope,
    key: &'a Key,
}

impl wait::Help for Waiting<'_> {
    async fn read(&self) -> Result<Option<Snapshot>, StoreError> {
        self.store.snapshot("wait", self.scope, self.key).await
    }

    async fn listen(&self) -> bool {
        let Inner { listener, link, .. } = &*self.store.inner;
        listener.listen("wait", link).await.is_ok()
    }
}
