//! Calls to the server: bounded in number and in time.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fred::{
    clients::Client,
    error::{Error, ErrorKind},
    interfaces::{ClientLike, KeysInterface},
    types::{InfoKind, Value, config::Server, scripts::Script},
};
use futures_util::FutureExt;
use idem_core::{StoreError, StoreErrorKind, Timestamp};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    directory::Directory,
    error::{redis_error, store_error},
    line::{Line, Request, Running, Way, running},
    replicas::{Replicas, Session},
};

/// The ways to the server or the nodes, and what bounds the calls to them.
pub(crate) struct Link {
    nodes: Nodes,
    pub(crate) timeout: Duration,
    pub(crate) replicas: Option<Arc<Replicas>>,
}

/// What is at the other end.
pub(crate) enum Nodes {
    /// A server, or the one that Sentinels name.
    One(Arc<Line>),
    /// Those of a cluster.
    Several(Arc<Directory>),
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

/// What a script gives where it found a value that has no expiry.
const NO_EXPIRY: i64 = 2;

/// The arguments that every script takes first.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) key: String,
    pub(crate) now: Option<Timestamp>,
    /// The channel and the word to say there if it writes.
    pub(crate) ends: Option<(String, String)>,
}

impl Link {
    pub(crate) fn new(nodes: Nodes, timeout: Duration, replicas: Option<Arc<Replicas>>) -> Self {
        Self { nodes, timeout, replicas }
    }

    /// That an operation has no time left: with why, if the server can't be reached at all.
    pub(crate) fn too_slow(&self, operation: &'static str) -> StoreError {
        let trouble = match &self.nodes {
            Nodes::One(line) => line.trouble(),
            Nodes::Several(directory) => directory.trouble(),
        };
        match trouble {
            Some(trouble) => redis_error(operation, trouble),
            None => {
                let message = format!("the server's answer took longer than {:?} (Builder::timeout)", self.timeout);
                store_error(StoreErrorKind::Unavailable, operation, message)
            }
        }
    }

    fn failed(&self, operation: &'static str, error: Error) -> StoreError {
        let is_sent_round = error.details().starts_with("MOVED") || error.details().starts_with("ASK");
        match (error.kind(), &self.nodes) {
            (ErrorKind::Timeout, _) => self.too_slow(operation),
            (_, Nodes::Several(_)) if is_sent_round => {
                let message = "the nodes of the cluster do not agree on which of them has the key; slots may be moving";
                store_error(StoreErrorKind::Unavailable, operation, message).with_source(error)
            }
            _ => redis_error(operation, error),
        }
    }

    /// Does all of `work`, however many calls it takes, within the time limit.
    pub(crate) fn within<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        self.within_since(Instant::now(), operation, work)
    }

    /// The same for an operation that began at an earlier instant.
    pub(crate) fn within_since<T>(
        &self,
        begun: Instant,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        // Awaited in here, it would take its room twice.
        let ended = timeout_at(begun + self.timeout, work);
        ended.map(move |ended| ended.unwrap_or_else(|_| Err(self.too_slow(operation))))
    }

    /// Runs a call, when there is room for it. It ends within the client's time limit.
    ///
    /// Where the caller loses interest it goes on until then: the client drops a command that it could not send in time
    /// only if someone waited that long, and its place is free only once the client has done with it.
    async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        room: Arc<Semaphore>,
        call: Running<T>,
    ) -> Result<T, StoreError> {
        let room = match Arc::clone(&room).try_acquire_owned() {
            Ok(room) => room,
            Err(_) => match timeout(self.timeout, room.acquire_owned()).await {
                Ok(Ok(room)) => room,
                _ => return Err(self.too_slow(operation)),
            },
        };
        self.to_the_end(operation, call, Some(room)).await
    }

    async fn to_the_end<T: Send + 'static>(
        &self,
        operation: &'static str,
        call: Running<T>,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<T, StoreError> {
        ToTheEnd(Some((call, room))).await.map_err(|error| self.failed(operation, error))
    }

    /// Sends a command to the node that has the key.
    async fn send(&self, operation: &'static str, key: &str, request: Request) -> Result<Value, StoreError> {
        match &self.nodes {
            Nodes::One(line) => {
                let line = Arc::clone(line);
                let (client, number) = line.client();
                let room = Arc::clone(&line.room);
                let call = Way::Straight(client).send(request, move |answer| line.heard(number, answer));
                self.call(operation, room, call).await
            }
            Nodes::Several(directory) => {
                let (directory, room, key) = (Arc::clone(directory), directory.room(key), key.to_owned());
                self.call(operation, room, running(|| async move { directory.send(&key, &request).await })).await
            }
        }
    }

    /// The same for a command that makes an attempt an owner, which has to reach as many replicas as were asked for.
    async fn send_replicated(
        &self,
        operation: &'static str,
        key: &str,
        request: Request,
        has_written: fn(&Value) -> bool,
    ) -> Result<Value, StoreError> {
        let Some(replicas) = &self.replicas else { return self.send(operation, key, request).await };
        // What bounds the claims under way is how many sessions there are. Whoever loses interest before it has one sends
        // nothing, then or later.
        match &self.nodes {
            Nodes::One(_) => {
                let session = replicas.session(None).await.map_err(|error| self.failed(operation, error))?;
                let claim = running(|| async move {
                    let reply = session.once().send(request, |answer| answer).await?;
                    replicated(session, has_written(&reply), reply).await
                });
                self.to_the_end(operation, claim, None).await?
            }
            Nodes::Several(directory) => {
                let (replicas, directory, key) = (Arc::clone(replicas), Arc::clone(directory), key.to_owned());
                let mut at = directory.start(&key).await.map_err(|error| self.failed(operation, error))?;
                // The write and the wait go to one and the same node.
                let session = replicas.session(Some(at.to.clone())).await;
                let mut session = session.map_err(|error| self.failed(operation, error))?;
                let claim = running(|| async move {
                    loop {
                        let way = if at.asks { session.asking() } else { session.once() };
                        match way.send(request.clone(), |answer| answer).await {
                            Ok(reply) => return replicated(session, has_written(&reply), reply).await,
                            Err(error) => at = directory.redirected(&error, &at).ok_or(error)?,
                        }
                        session.done();
                        session = replicas.session(Some(at.to.clone())).await?;
                    }
                });
                self.to_the_end(operation, claim, None).await?
            }
        }
    }

    /// The servers that take writes, each with its client, and with its name where there are several.
    pub(crate) async fn masters(&self, operation: &'static str) -> Result<Vec<(Option<Server>, Client)>, StoreError> {
        match &self.nodes {
            Nodes::One(line) => Ok(vec![(None, line.client().0)]),
            Nodes::Several(directory) => {
                let learning = Arc::clone(directory);
                let room = Arc::clone(&directory.room);
                let masters = self.call(operation, room, running(|| async move { learning.masters().await })).await?;
                Ok(masters.into_iter().map(|(server, client)| (Some(server), client)).collect())
            }
        }
    }

    /// The node of a cluster that has the key, as far as is known.
    pub(crate) fn node_of(&self, key: &str) -> Option<Server> {
        match &self.nodes {
            Nodes::One(_) => None,
            Nodes::Several(directory) => directory.node_of(key),
        }
    }

    /// What a server says of itself.
    pub(crate) async fn info(
        &self,
        operation: &'static str,
        client: Client,
        kind: InfoKind,
    ) -> Result<String, StoreError> {
        self.call(operation, self.common_room(), running(|| async move { client.info(Some(kind)).await })).await
    }

    /// A page of the keys that match, of about `step` that the server looked at, and where the next one begins.
    pub(crate) async fn page(
        &self,
        operation: &'static str,
        master: Client,
        cursor: &str,
        pattern: &str,
        step: u32,
    ) -> Result<(String, Vec<String>), StoreError> {
        let (cursor, pattern) = (cursor.to_owned(), pattern.to_owned());
        let page = running(|| async move { master.scan_page(cursor, pattern, Some(step), None).await });
        self.call(operation, self.common_room(), page).await
    }

    /// Room for calls that are about no key.
    fn common_room(&self) -> Arc<Semaphore> {
        Arc::clone(match &self.nodes {
            Nodes::One(line) => &line.room,
            Nodes::Several(directory) => &directory.room,
        })
    }

    /// The instant that the clock of the server shows which has the key.
    pub(crate) async fn time(&self, operation: &'static str, key: &str) -> Result<Timestamp, StoreError> {
        let time = self.send(operation, key, Request::Time).await?;
        let (seconds, micros): (i64, i64) = time.convert().map_err(|error| redis_error(operation, error))?;
        Ok(Timestamp::from_millis(seconds.saturating_mul(1_000).saturating_add(micros / 1_000)))
    }

    /// Says a word on the channel, to whoever listens to any node.
    pub(crate) async fn publish(&self, operation: &'static str, channel: &str, word: String) -> Result<(), StoreError> {
        let request = Request::Publish { channel: channel.to_owned(), word };
        self.send(operation, channel, request).await.map(drop)
    }

    /// The value, if there is one.
    pub(crate) async fn value(&self, operation: &'static str, key: &str) -> Result<Option<Bytes>, StoreError> {
        let value = self.send(operation, key, Request::Get { key: key.to_owned() }).await?;
        value.convert().map_err(|error| redis_error(operation, error))
    }

    /// Sets the value if there is none. Gives the one that there is.
    pub(crate) async fn set_if_absent(
        &self,
        operation: &'static str,
        key: &str,
        value: Bytes,
        millis: i64,
    ) -> Result<Option<Bytes>, StoreError> {
        let request = Request::SetIfAbsent { key: key.to_owned(), value, millis };
        let found = self.send_replicated(operation, key, request, Value::is_null).await?;
        found.convert().map_err(|error| redis_error(operation, error))
    }

    /// The same for what needs to reach no replica.
    pub(crate) async fn set_unreplicated(
        &self,
        operation: &'static str,
        key: &str,
        value: Bytes,
        millis: i64,
    ) -> Result<Option<Bytes>, StoreError> {
        let request = Request::SetIfAbsent { key: key.to_owned(), value, millis };
        let found = self.send(operation, key, request).await?;
        found.convert().map_err(|error| redis_error(operation, error))
    }

    /// Sets the value if there is none, with a command that is sent at once and ends within the time limit by itself. None
    /// where more than that is to be done: there are several nodes, or replicas to wait for, or no room.
    pub(crate) fn set_if_absent_at_once(
        &self,
        operation: &'static str,
        key: String,
        value: Bytes,
        millis: i64,
    ) -> Option<impl Future<Output = Result<Option<Bytes>, StoreError>>> {
        let (Nodes::One(line), None) = (&self.nodes, &self.replicas) else { return None };
        let room = Arc::clone(&line.room).try_acquire_owned().ok()?;
        let line = Arc::clone(line);
        let (client, number) = line.client();
        let request = Request::SetIfAbsent { key, value, millis };
        let call = Way::Straight(client).send(request, move |answer| line.heard(number, answer));
        Some(
            self.to_the_end(operation, call, Some(room))
                .map(move |found| found?.convert().map_err(|error| redis_error(operation, error))),
        )
    }

    /// Runs a script that takes no more than the call, by its body.
    pub(crate) async fn bring(&self, operation: &'static str, script: &Script, call: &Call) -> Result<(), StoreError> {
        let request = Request::Bring { script: script.clone(), call: call.clone() };
        parse(self.send(operation, &call.key, request).await?, operation)?;
        Ok(())
    }

    /// Runs a script.
    pub(crate) async fn script(
        &self,
        operation: &'static str,
        script: &Script,
        call: &Call,
        arguments: Vec<Value>,
    ) -> Result<Reply, StoreError> {
        let request = Request::Run { script: script.clone(), call: call.clone(), arguments };
        parse(self.send(operation, &call.key, request).await?, operation)
    }

    /// The same for a script that gives a record to an attempt.
    pub(crate) async fn owning_script(
        &self,
        operation: &'static str,
        script: &Script,
        call: &Call,
        arguments: Vec<Value>,
    ) -> Result<Reply, StoreError> {
        let request = Request::Run { script: script.clone(), call: call.clone(), arguments };
        parse(self.send_replicated(operation, &call.key, request, wrote).await?, operation)
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

/// A call that goes on in the background when it is dropped before its end, and the room that it takes until then.
struct ToTheEnd<T: Send + 'static>(Option<(Running<T>, Option<OwnedSemaphorePermit>)>);

impl<T: Send + 'static> Future for ToTheEnd<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, Error>> {
        let Some((call, _)) = &mut self.0 else { return Poll::Pending }; // it has ended, and nobody polls it again
        let ended = call.as_mut().poll(cx);
        if ended.is_ready() {
            self.0 = None;
        }
        ended
    }
}

impl<T: Send + 'static> Drop for ToTheEnd<T> {
    fn drop(&mut self) {
        if let (Some((call, room)), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(async move {
                let _ = call.await; // nobody asks any more
                drop(room);
            });
        }
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
        (Some(NO_EXPIRY), None, None) => {
            let message = "a record has no expiry, which this store always sets (PERSIST, or a restore, takes it away), so \
                           nobody can say whether its lease is over; find out what became of the operation, and remove the \
                           record when no attempt runs any more";
            Err(store_error(StoreErrorKind::Corrupt, operation, message))
        }
        (Some(0), Some(value), Some(now)) => {
            let (value, now) = (value.into_bytes().ok_or_else(odd)?, now.as_i64().ok_or_else(odd)?);
            Ok(Reply::Found { value, now: crate::records::instant(now) })
        }
        _ => Err(odd()),
    }
}
