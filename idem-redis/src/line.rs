//! The client of one server, and whether it is answered.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use fred::{
    clients::{Client, WithOptions},
    error::{Error, ErrorKind},
    interfaces::{ClientLike, EventInterface, KeysInterface},
    types::{ClientState, ClusterHash, CustomCommand, Expiration, SetOptions, Value, scripts::Script},
};
use tokio::{sync::Semaphore, task::JoinHandle};

use crate::{directory::NodeClients, link::Call};

/// How many calls may be under way at a time. The client has no bound of its own on what it has sent.
pub(crate) const IN_FLIGHT: usize = 4096;

/// How many commands the client may keep while it can't send any, given up ones included. More than calls may be under
/// way, so that it never counts while the server answers.
pub(crate) const QUEUE: usize = 4 * IN_FLIGHT;

/// For how long calls are in vain at least before that is the connection's fault: a server that stops for a moment has a
/// reason.
const MIN_PATIENCE: Duration = Duration::from_millis(500);

/// The connection to one server, or to the one that Sentinels name, through which everything goes but what waits for
/// replicas.
///
/// The client itself notices a connection on which nothing comes back only once it has stopped sending, which under load
/// is never; and stays connected to a server that became a replica, although its name may lead to another one by now.
pub(crate) struct Line {
    make: NodeClients,
    held: Mutex<Held>,
    health: Arc<Health>,
    is_vain: AtomicBool,
    /// For how long calls may be in vain.
    patience: Duration,
    /// For the calls that are under way.
    pub(crate) room: Arc<Semaphore>,
}

/// The client as it is now.
///
/// It is never connected anew once its connection was ended from here: it counts commands that wait to be sent, goes on
/// counting those that were ended with the connection, and then keeps the last ones to itself until there are many.
struct Held {
    client: Client,
    connection: Option<Connection>,
    number: u64,
}

/// What became of connections.
#[derive(Default)]
struct Health {
    /// What is in the way of one now.
    trouble: Mutex<Option<Error>>,
    was_lost: AtomicBool,
    /// Since when calls have been in vain.
    vain: Mutex<Option<Instant>>,
}

/// The tasks behind a client. The connection ends with them.
struct Connection {
    serves: JoinHandle<Result<(), Error>>,
    watches: JoinHandle<()>,
}

/// A command about one key; or one that any node does.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Time,
    Get {
        key: String,
    },
    Publish {
        channel: String,
        word: String,
    },
    SetIfAbsent {
        key: String,
        value: Bytes,
        millis: i64,
    },
    Run {
        script: Script,
        call: Call,
        arguments: Vec<Value>,
    },
    /// A script that takes no arguments but the first ones, by its body even where the node knows it.
    Bring {
        script: Script,
        call: Call,
    },
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

/// How a command is sent.
pub(crate) enum Way {
    Straight(Client),
    /// To a node of a cluster that is about to get the key's slot: it serves whoever says so, command by command.
    Asking(Client),
    /// On a connection that serves one claim.
    Once(WithOptions<Client>),
}

impl Line {
    /// With what makes its clients, and the time limit of a command.
    pub(crate) fn new(make: NodeClients, timeout: Duration) -> Result<Self, Error> {
        let client = make.any(0)?;
        Ok(Self {
            make,
            held: Mutex::new(Held { client, connection: None, number: 0 }),
            health: Arc::default(),
            is_vain: AtomicBool::new(false),
            patience: (timeout / 2).max(MIN_PATIENCE),
            room: Arc::new(Semaphore::new(IN_FLIGHT)),
        })
    }

    /// The client, connected or trying to, for as long as it takes, and its number.
    ///
    /// Where the tasks of the last one have ended, because its runtime has, there is a new one.
    pub(crate) fn client(&self) -> (Client, u64) {
        let mut held = locked(&self.held);
        if held.connection.as_ref().is_none_or(|connection| connection.serves.is_finished()) {
            if held.connection.is_some() {
                self.renew(&mut held);
            }
            let watches = tokio::spawn(watch(held.client.clone(), Arc::clone(&self.health)));
            held.connection = Some(Connection { serves: held.client.connect(), watches });
        }
        (held.client.clone(), held.number)
    }

    /// Another client in place of the last, which ends. By its number it asks another Sentinel first.
    fn renew(&self, held: &mut Held) {
        // It could be made with the same settings before.
        if let Ok(client) = self.make.any(held.number as usize + 1) {
            *held = Held { client, connection: None, number: held.number + 1 };
        }
        *locked(&self.health.vain) = None;
        self.is_vain.store(false, Ordering::Relaxed);
    }

    /// What is in the way of a connection, if there is none.
    pub(crate) fn trouble(&self) -> Option<Error> {
        let is_connected = locked(&self.held).client.state() == ClientState::Connected;
        if is_connected { None } else { locked(&self.health.trouble).clone() }
    }

    /// Whether a connection was lost since this was asked last.
    pub(crate) fn takes_loss(&self) -> bool {
        self.health.was_lost.load(Ordering::SeqCst) && self.health.was_lost.swap(false, Ordering::SeqCst)
    }

    /// Takes note of whether a call of the client of this number was answered, and has that replaced if calls are in vain
    /// for too long.
    pub(crate) fn heard<T>(&self, number: u64, answer: Result<T, Error>) -> Result<T, Error> {
        match &answer {
            Err(error) if error.details().starts_with("READONLY") => self.was_in_vain(number),
            Err(error) => match error.kind() {
                ErrorKind::Timeout => self.was_in_vain(number),
                // Nothing was asked, or it is on the way to a new connection.
                ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Backpressure => {}
                _ => self.was_answered(),
            },
            Ok(_) => self.was_answered(),
        }
        answer
    }

    fn was_answered(&self) {
        if self.is_vain.load(Ordering::Relaxed) {
            *locked(&self.health.vain) = None;
            self.is_vain.store(false, Ordering::Relaxed);
        }
    }

    fn was_in_vain(&self, number: u64) {
        let mut held = locked(&self.held);
        if held.number != number {
            return; // it was another client's doing
        }
        // While it is not connected it tries again by itself; but it may be a Sentinel that stands still which it asks,
        // again and again.
        let patience = match (held.client.state(), self.make.has_sentinels()) {
            (ClientState::Connected, _) => self.patience,
            (_, true) => 4 * self.patience,
            (_, false) => return,
        };
        let begun = *locked(&self.health.vain).get_or_insert_with(Instant::now);
        self.is_vain.store(true, Ordering::Relaxed);
        if begun.elapsed() >= patience {
            self.renew(&mut held);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.serves.abort();
        self.watches.abort();
    }
}

/// Keeps in mind what becomes of a client's connections.
async fn watch(client: Client, health: Arc<Health>) {
    let (mut errors, mut reconnects) = (client.error_rx(), client.reconnect_rx());
    loop {
        tokio::select! {
            error = errors.recv() => match error {
                Ok((error, _)) => {
                    *locked(&health.trouble) = Some(error);
                    health.was_lost.store(true, Ordering::SeqCst);
                }
                Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
            },
            Ok(_) = reconnects.recv() => {
                *locked(&health.trouble) = None;
                *locked(&health.vain) = None;
            }
        }
    }
}

impl Way {
    /// Sends a command; `heard` is told the answer first.
    pub(crate) fn send(
        self,
        request: Request,
        heard: impl FnOnce(Result<Value, Error>) -> Result<Value, Error> + Send + 'static,
    ) -> Running<Value> {
        match (self, request) {
            (Self::Straight(client), Request::Get { key }) => running(|| async move { heard(client.get(key).await) }),
            (Self::Straight(client), Request::SetIfAbsent { key, value, millis }) => {
                running(|| async move { heard(set(&client, key, value, millis).await) })
            }
            (way, request) => running(|| async move { heard(way.send_any(request).await) }),
        }
    }

    async fn send_any(self, request: Request) -> Result<Value, Error> {
        match request {
            Request::Time => self.custom("TIME", Vec::new()).await,
            Request::Get { key } => self.custom("GET", vec![key.into()]).await,
            Request::Publish { channel, word } => self.custom("PUBLISH", vec![channel.into(), word.into()]).await,
            Request::SetIfAbsent { key, value, millis } => {
                let words = [key.into(), value.into(), "NX".into(), "GET".into(), "PX".into(), millis.into()];
                self.custom("SET", words.into()).await
            }
            Request::Run { script, call, arguments } => self.run(&script, &call, &arguments).await,
            Request::Bring { script, call } => self.custom("EVAL", words(body(&script), &call, &[])).await,
        }
    }

    /// Runs a script: by its digest, and by its body where the node does not know it.
    async fn run(&self, script: &Script, call: &Call, arguments: &[Value]) -> Result<Value, Error> {
        match self.custom("EVALSHA", words(script.sha1(), call, arguments)).await {
            // After a restart, a failover or a flush. The body brings it to the node again.
            Err(error) if error.details().starts_with("NOSCRIPT") => {
                self.custom("EVAL", words(body(script), call, arguments)).await
            }
            answer => answer,
        }
    }

    /// Not by the client's own methods: one with options of its own does not have all of them.
    fn custom(&self, name: &'static str, words: Vec<Value>) -> Running<Value> {
        // Each client is of one server.
        let command = |name| CustomCommand::new_static(name, ClusterHash::Random, false);
        match self {
            Self::Straight(client) => {
                let client = client.clone();
                running(|| async move { client.custom(command(name), words).await })
            }
            Self::Once(client) => {
                let client = client.clone();
                running(|| async move { client.custom(command(name), words).await })
            }
            Self::Asking(client) => {
                let both = client.pipeline();
                running(|| async move {
                    both.custom::<(), Value>(command("ASKING"), Vec::new()).await?;
                    both.custom::<(), Value>(command(name), words).await?;
                    both.last().await
                })
            }
        }
    }
}

fn body(script: &Script) -> &str {
    script.lua().map_or("", |body| body)
}

/// What follows EVAL or EVALSHA.
fn words(script: &str, call: &Call, arguments: &[Value]) -> Vec<Value> {
    let (channel, word) = call.ends.clone().unwrap_or_default();
    let now = call.now.map(|now| now.as_millis().to_string()).unwrap_or_default();
    let mut words: Vec<Value> = vec![script.into(), 1.into(), call.key.as_str().into()];
    words.extend([now.into(), channel.into(), word.into()]);
    words.extend_from_slice(arguments);
    words
}

async fn set(client: &impl KeysInterface, key: String, value: Bytes, millis: i64) -> Result<Value, Error> {
    client.set(key, value, Some(Expiration::PX(millis)), Some(SetOptions::NX), true).await
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use fred::{interfaces::MetricsInterface, types::Builder as FredBuilder};
    use futures_util::poll;

    use super::*;

    /// In the runtime of this test nothing else runs until it waits.
    #[tokio::test]
    async fn what_was_never_sent_on_a_connection_that_was_given_up_holds_up_nothing_on_the_next() {
        let make = NodeClients { builder: FredBuilder::default_centralized(), tls_name: None };
        let line = Line::new(make, Duration::from_secs(1)).unwrap();
        for give_up in [true, false] {
            let (client, _) = line.client();
            let mut calls: Vec<_> = (0..3).map(|_| Box::pin(client.get::<Value, _>("k"))).collect();
            for call in &mut calls {
                assert!(poll!(call).is_pending());
            }
            assert_eq!(client.command_queue_len(), 3);
            match give_up {
                true => line.renew(&mut locked(&line.held)),
                // As when its runtime has ended.
                false => {
                    let held = locked(&line.held);
                    held.connection.as_ref().unwrap().serves.abort();
                }
            }
            tokio::task::yield_now().await;
            assert_eq!(line.client().0.command_queue_len(), 0);
        }
    }

    #[tokio::test]
    async fn calls_of_a_client_that_was_replaced_are_not_held_against_the_next() {
        let make = NodeClients { builder: FredBuilder::default_centralized(), tls_name: None };
        let line = Line::new(make, Duration::from_secs(1)).unwrap();
        let (_, first) = line.client();
        line.renew(&mut locked(&line.held));
        let (_, second) = line.client();
        assert_ne!(first, second);
        let timed_out = || Err::<(), _>(Error::new(ErrorKind::Timeout, "too slow"));
        let _ = line.heard(first, timed_out());
        assert!(!line.is_vain.load(Ordering::Relaxed));
        // Not connected yet, it has time.
        let _ = line.heard(second, timed_out());
        assert!(!line.is_vain.load(Ordering::Relaxed));
    }
}
