//! Calls to the server: bounded in number and in time.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use fred::{
    clients::Client,
    error::{Error, ErrorKind},
    interfaces::{ClientLike, ClusterInterface, EventInterface, KeysInterface},
    types::{
        ClientState, ClusterHash, CustomCommand, Expiration, Key, SetOptions, Value, cluster::ClusterRouting,
        config::Server, scripts::Script,
    },
};
use futures_util::FutureExt;
use idem_core::{StoreError, StoreErrorKind, Timestamp};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    error::{redis_error, store_error},
    replicas::{Replicas, Session},
};

/// How many calls may be under way at a time. The client has no bound of its own on what it has sent.
const IN_FLIGHT: usize = 4096;

/// How many commands the client may keep while it can't send any, given up ones included. More than calls may be under
/// way, so that it never counts while the server answers.
pub(crate) const QUEUE: usize = 4 * IN_FLIGHT;

/// The connection that everything goes through, but for what waits for replicas.
pub(crate) struct Link {
    line: Arc<Line>,
    pub(crate) timeout: Duration,
    in_flight: Arc<Semaphore>,
    trouble: Arc<Mutex<Option<Error>>>,
    pub(crate) replicas: Option<Arc<Replicas>>,
}

/// The client, and whether it is answered.
///
/// The client itself notices a connection on which nothing comes back only once it has stopped sending, which under load
/// is never.
struct Line {
    client: Client,
    connection: Mutex<Option<Connection>>,
    /// Since when calls have been in vain, by the node of a cluster.
    silences: Mutex<HashMap<Option<Server>, Instant>>,
    any_silence: AtomicBool,
    /// For how long calls may be in vain.
    patience: Duration,
}

/// The tasks behind the client. The connection ends with them.
struct Connection {
    serves: JoinHandle<Result<(), Error>>,
    watches: JoinHandle<()>,
}

/// A call of the client's.
///
/// The client's futures are thousands of bytes, and what holds one is copied whenever it is moved. So each is on the
/// heap from its first moment on, and no other future holds it.
pub(crate) type Running<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// Makes one where it stays. Boxed as a value, it would be made elsewhere and copied.
#[inline]
pub(crate) fn running<T, F>(make: impl FnOnce() -> F) -> Running<T>
where
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let place = Box::<F>::new_uninit();
    let made: Box<F> = Box::write(place, make());
    Box::into_pin(made)
}

/// What a script gave.
#[derive(Debug)]
pub(crate) enum Reply {
    /// It wrote.
    Written,
    /// It wrote nothing: there is this value, and by the server's clock it is now.
    Found { value: Bytes, now: Timestamp },
    /// It wrote nothing: there is no value.
    Absent,
}

/// The arguments that every script takes first.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) key: Key,
    pub(crate) now: Option<Timestamp>,
    /// The channel and the word to say there if it writes.
    pub(crate) ends: Option<(String, String)>,
}

impl Link {
    pub(crate) fn new(client: Client, timeout: Duration, replicas: Option<Arc<Replicas>>) -> Self {
        let in_flight = Arc::new(Semaphore::new(IN_FLIGHT));
        let line = Arc::new(Line {
            client,
            connection: Mutex::default(),
            silences: Mutex::default(),
            any_silence: AtomicBool::new(false),
            patience: timeout / 2,
        });
        Self { line, timeout, in_flight, trouble: Arc::default(), replicas }
    }

    /// The client, connected or trying to, for as long as it takes. Connects again where the runtime on which it was
    /// connected is gone.
    pub(crate) fn client(&self) -> Client {
        let client = &self.line.client;
        let mut connection = locked(&self.line.connection);
        if connection.as_ref().is_none_or(|connection| connection.serves.is_finished()) {
            let watches = tokio::spawn(watch(client.clone(), Arc::clone(&self.trouble)));
            *connection = Some(Connection { serves: client.connect(), watches });
        }
        client.clone()
    }

    /// That an operation has no time left: with why, if the server can't be reached at all.
    pub(crate) fn too_slow(&self, operation: &'static str) -> StoreError {
        let trouble =
            (self.line.client.state() != ClientState::Connected).then(|| locked(&self.trouble).clone()).flatten();
        match trouble {
            Some(trouble) => redis_error(operation, trouble),
            None => {
                let message = format!("the server's answer took longer than {:?} (Builder::timeout)", self.timeout);
                store_error(StoreErrorKind::Unavailable, operation, message)
            }
        }
    }

    fn failed(&self, operation: &'static str, error: Error) -> StoreError {
        match error.kind() {
            ErrorKind::Timeout => self.too_slow(operation),
            _ => redis_error(operation, error),
        }
    }

    /// Does all of `work`, however many calls it takes, within the time limit.
    pub(crate) fn within<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        // Not awaited in here, or it would be part of this future twice.
        timeout(self.timeout, work).map(move |ended| ended.unwrap_or_else(|_| Err(self.too_slow(operation))))
    }

    /// Runs a call, when there is room for it. It ends within the client's time limit.
    ///
    /// Where the caller loses interest it goes on until then: the client drops a command that it could not send in time
    /// only if someone waited that long, and its place is free only once the client has done with it.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        call: Running<T>,
    ) -> Result<T, StoreError> {
        let room = match Arc::clone(&self.in_flight).try_acquire_owned() {
            Ok(room) => room,
            Err(_) => match timeout(self.timeout, Arc::clone(&self.in_flight).acquire_owned()).await {
                Ok(Ok(room)) => room,
                _ => return Err(self.too_slow(operation)),
            },
        };
        ToTheEnd(Some((call, room))).await.map_err(|error| self.failed(operation, error))
    }

    /// The instant that the server's clock shows (one server's, in a cluster), and when it was asked.
    pub(crate) async fn time(&self, operation: &'static str) -> Result<(Timestamp, Instant), StoreError> {
        let client = self.client();
        let asked = Instant::now();
        let command = CustomCommand::new_static("TIME", ClusterHash::Random, false);
        let time = running(|| async move { client.custom::<(i64, i64), Value>(command, Vec::new()).await });
        let (seconds, micros) = self.call(operation, time).await?;
        Ok((Timestamp::from_millis(seconds.saturating_mul(1_000).saturating_add(micros / 1_000)), asked))
    }

    /// The value, if there is one.
    pub(crate) async fn value(&self, operation: &'static str, key: Key) -> Result<Option<Bytes>, StoreError> {
        let (client, line) = (self.client(), Arc::clone(&self.line));
        let slot = line.slot(&key);
        self.call(operation, running(|| async move { line.heard(slot, client.get(key).await) })).await
    }

    /// Sets the value if there is none. Gives the one that there is.
    pub(crate) async fn set_if_absent(
        &self,
        operation: &'static str,
        key: Key,
        value: Bytes,
        millis: i64,
    ) -> Result<Option<Bytes>, StoreError> {
        let Some(replicas) = &self.replicas else {
            return self.set_unreplicated(operation, key, value, millis).await;
        };
        let replicas = Arc::clone(replicas);
        let set = running(|| async move {
            let session = replicas.session(&key).await?;
            let found = set(&session.client(), key, value, millis).await?;
            replicated(session, found.is_none(), found).await
        });
        self.call(operation, set).await?
    }

    /// The same for what needs to reach no replica.
    pub(crate) async fn set_unreplicated(
        &self,
        operation: &'static str,
        key: Key,
        value: Bytes,
        millis: i64,
    ) -> Result<Option<Bytes>, StoreError> {
        let (client, line) = (self.client(), Arc::clone(&self.line));
        let slot = line.slot(&key);
        self.call(operation, running(|| async move { line.heard(slot, set(&client, key, value, millis).await) })).await
    }

    /// Runs a script: by its digest, and by its body where the node does not know it.
    pub(crate) async fn script(
        &self,
        operation: &'static str,
        script: &Script,
        call: &Call,
        arguments: Vec<Value>,
    ) -> Result<Reply, StoreError> {
        let (client, line, script, call) = (self.client(), Arc::clone(&self.line), script.clone(), call.clone());
        let slot = line.slot(&call.key);
        let run = running(|| async move { line.heard(slot, run(&client, &script, &call, arguments).await) });
        let reply = self.call(operation, run);
        parse(reply.await?, operation)
    }

    /// The same for a script that gives a record to an attempt, which has to reach as many replicas as were asked for.
    pub(crate) async fn owning_script(
        &self,
        operation: &'static str,
        script: &Script,
        call: &Call,
        arguments: Vec<Value>,
    ) -> Result<Reply, StoreError> {
        let Some(replicas) = &self.replicas else {
            return self.script(operation, script, call, arguments).await;
        };
        let (replicas, script, call) = (Arc::clone(replicas), script.clone(), call.clone());
        let claim = running(|| async move {
            let session = replicas.session(&call.key).await?;
            let reply = run(&session.client(), &script, &call, arguments).await?;
            replicated(session, wrote(&reply), reply).await
        });
        parse(self.call(operation, claim).await??, operation)
    }
}

impl Line {
    /// Takes note of whether there was an answer, and has the connection replaced on which there is none for too long.
    fn heard<T>(&self, slot: Option<u16>, answer: Result<T, Error>) -> Result<T, Error> {
        let is_silent = match &answer {
            Err(error) if *error.kind() == ErrorKind::Timeout => true,
            // Nothing was asked, or it is on the way to a new connection.
            Err(error) if matches!(error.kind(), ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Backpressure) => {
                false
            }
            _ if self.any_silence.load(Ordering::Relaxed) => {
                let mut silences = locked(&self.silences);
                silences.remove(&self.node(slot));
                self.any_silence.store(!silences.is_empty(), Ordering::Relaxed);
                false
            }
            _ => false,
        };
        if is_silent && self.client.state() == ClientState::Connected && self.is_too_long(slot) {
            self.replace();
        }
        answer
    }

    fn is_too_long(&self, slot: Option<u16>) -> bool {
        let mut silences = locked(&self.silences);
        let since = *silences.entry(self.node(slot)).or_insert_with(Instant::now);
        let is_too_long = since.elapsed() >= self.patience;
        if is_too_long {
            silences.clear();
        }
        self.any_silence.store(!silences.is_empty(), Ordering::Relaxed);
        is_too_long
    }

    fn replace(&self) {
        if self.client.is_clustered() {
            // Other nodes may answer: what is under way there is not lost.
            let client = self.client.clone();
            tokio::spawn(async move { client.force_reconnection().await });
        } else {
            // The next call connects.
            *locked(&self.connection) = None;
        }
    }

    /// The key's slot, in a cluster.
    fn slot(&self, key: &Key) -> Option<u16> {
        self.client.is_clustered().then(|| ClusterRouting::hash_key(key.as_bytes()))
    }

    /// The node of a cluster that has the slot.
    fn node(&self, slot: Option<u16>) -> Option<Server> {
        let state = self.client.cached_cluster_state()?;
        state.get_server(slot?).cloned()
    }
}

async fn replicated<T>(session: Session, has_written: bool, answer: T) -> Result<Result<T, StoreError>, Error> {
    match has_written {
        true => Ok(session.replicated().await?.map(|()| answer)),
        false => {
            session.done();
            Ok(Ok(answer))
        }
    }
}

/// Keeps in mind what is in the way of a connection.
async fn watch(client: Client, trouble: Arc<Mutex<Option<Error>>>) {
    let (mut errors, mut reconnects) = (client.error_rx(), client.reconnect_rx());
    loop {
        tokio::select! {
            error = errors.recv() => match error {
                Ok((error, _)) => *locked(&trouble) = Some(error),
                Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
            },
            Ok(_) = reconnects.recv() => *locked(&trouble) = None,
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A future that goes on in the background when it is dropped before its end, and the room that it takes until then.
struct ToTheEnd<T: Send + 'static>(Option<(Running<T>, OwnedSemaphorePermit)>);

impl<T: Send + 'static> Future for ToTheEnd<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, Error>> {
        let Some((future, _)) = &mut self.0 else { return Poll::Pending }; // it has ended, and nobody polls it again
        let ended = future.as_mut().poll(cx);
        if ended.is_ready() {
            self.0 = None;
        }
        ended
    }
}

impl<T: Send + 'static> Drop for ToTheEnd<T> {
    fn drop(&mut self) {
        if let (Some((future, room)), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(async move {
                let _ = future.await; // nobody asks any more
                drop(room);
            });
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.serves.abort();
        self.watches.abort();
    }
}

async fn set(client: &impl KeysInterface, key: Key, value: Bytes, millis: i64) -> Result<Option<Bytes>, Error> {
    client.set(key, value, Some(Expiration::PX(millis)), Some(SetOptions::NX), true).await
}

async fn run(client: &impl ClientLike, script: &Script, call: &Call, arguments: Vec<Value>) -> Result<Value, Error> {
    let (channel, word) = call.ends.clone().unwrap_or_default();
    let now = call.now.map(|now| now.as_millis().to_string()).unwrap_or_default();
    let all = |script: &str| {
        let mut all: Vec<Value> = vec![script.into(), 1.into(), call.key.clone().into()];
        all.extend([Value::from(now.as_str()), channel.as_str().into(), word.as_str().into()]);
        all.extend_from_slice(&arguments);
        all
    };
    // Not the client's own methods: one with options of its own does not have them.
    let slot = ClusterHash::Custom(ClusterRouting::hash_key(call.key.as_bytes()));
    let command = |name| CustomCommand::new_static(name, slot.clone(), false);
    match client.custom(command("EVALSHA"), all(script.sha1())).await {
        // After a restart, a failover or a flush. The body brings it to the node again.
        Err(error) if error.details().starts_with("NOSCRIPT") => {
            client.custom(command("EVAL"), all(script.lua().map_or("", |body| body))).await
        }
        answer => answer,
    }
}

fn wrote(reply: &Value) -> bool {
    matches!(reply, Value::Array(parts) if parts.first().and_then(Value::as_i64) == Some(1))
}

fn parse(reply: Value, operation: &'static str) -> Result<Reply, StoreError> {
    let odd =
        || store_error(StoreErrorKind::Corrupt, operation, "a script's answer has another form than it must have");
    let Value::Array(parts) = reply else { return Err(odd()) };
    let mut parts = parts.into_iter();
    match (parts.next().and_then(|part| part.as_i64()), parts.next(), parts.next()) {
        (Some(1), ..) => Ok(Reply::Written),
        (Some(0), None, None) => Ok(Reply::Absent),
        (Some(0), Some(value), Some(now)) => {
            let (value, now) = (value.into_bytes().ok_or_else(odd)?, now.as_i64().ok_or_else(odd)?);
            Ok(Reply::Found { value, now: crate::records::instant(now) })
        }
        _ => Err(odd()),
    }
}
