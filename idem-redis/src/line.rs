//! The client of one server, and whether it is answered.

use std::{
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

/// The client of one server, or of the one that Sentinels name: one connection, through which everything goes but what
/// waits for replicas.
///
/// The client itself notices a connection on which nothing comes back only once it has stopped sending, which under load
/// is never; and stays connected to a server that became a replica, although its name may lead to another one by now.
pub(crate) struct Line {
    held: Mutex<Held>,
    /// Where Sentinels tell the server: makes another client, which asks them in another order.
    others: Option<NodeClients>,
    /// Since when calls have been in vain.
    vain: Mutex<Option<Instant>>,
    is_vain: AtomicBool,
    /// For how long calls may be in vain.
    patience: Duration,
    trouble: Arc<Trouble>,
    /// For the calls that are under way.
    pub(crate) room: Arc<Semaphore>,
}

/// The client as it is now.
struct Held {
    client: Client,
    connection: Option<Connection>,
    /// How many there were before.
    before: usize,
}

/// What became of connections.
#[derive(Default)]
struct Trouble {
    /// What is in the way of one now.
    last: Mutex<Option<Error>>,
    is_new: AtomicBool,
}

/// The tasks behind the client. The connection ends with them.
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

/// How a command is sent.
pub(crate) enum Way {
    Straight(Client),
    /// To a node of a cluster that is about to get the key's slot: it serves whoever says so, command by command.
    Asking(Client),
    /// On a connection that serves one claim.
    Once(WithOptions<Client>),
}

impl Line {
    /// With a client that has not connected yet, and the time limit of a command.
    pub(crate) fn new(client: Client, timeout: Duration) -> Self {
        Self {
            held: Mutex::new(Held { client, connection: None, before: 0 }),
            others: None,
            vain: Mutex::default(),
            is_vain: AtomicBool::new(false),
            patience: timeout / 2,
            trouble: Arc::default(),
            room: Arc::new(Semaphore::new(IN_FLIGHT)),
        }
    }

    /// The same for the server that Sentinels tell.
    pub(crate) fn by_sentinels(make: NodeClients, timeout: Duration) -> Result<Self, Error> {
        Ok(Self { others: Some(make.clone()), ..Self::new(make.any(0)?, timeout) })
    }

    /// The client, connected or trying to, for as long as it takes. Connects again where the runtime on which it was
    /// connected is gone.
    pub(crate) fn client(&self) -> Client {
        let mut held = locked(&self.held);
        let Held { client, connection, .. } = &mut *held;
        if connection.as_ref().is_none_or(|connection| connection.serves.is_finished()) {
            let watches = tokio::spawn(watch(client.clone(), Arc::clone(&self.trouble)));
            *connection = Some(Connection { serves: client.connect(), watches });
        }
        client.clone()
    }

    fn is_connected(&self) -> bool {
        locked(&self.held).client.state() == ClientState::Connected
    }

    /// What is in the way of a connection, if there is none.
    pub(crate) fn trouble(&self) -> Option<Error> {
        if self.is_connected() { None } else { locked(&self.trouble.last).clone() }
    }

    /// Whether a connection was lost since this was asked last.
    pub(crate) fn takes_loss(&self) -> bool {
        self.trouble.is_new.load(Ordering::SeqCst) && self.trouble.is_new.swap(false, Ordering::SeqCst)
    }

    /// Takes note of whether there was an answer, and has the connection replaced on which calls are in vain for too long.
    pub(crate) fn heard<T>(&self, answer: Result<T, Error>) -> Result<T, Error> {
        match &answer {
            Err(error) if error.details().starts_with("READONLY") => self.was_in_vain(),
            Err(error) => match error.kind() {
                ErrorKind::Timeout => self.was_in_vain(),
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
            *locked(&self.vain) = None;
            self.is_vain.store(false, Ordering::Relaxed);
        }
    }

    fn was_in_vain(&self) {
        let is_connected = self.is_connected();
        // The client tries again by itself; but it may be a Sentinel that stands still which it asks, again and again.
        let patience = match (is_connected, &self.others) {
            (true, _) => self.patience,
            (false, Some(_)) => 4 * self.patience,
            (false, None) => return,
        };
        let mut vain = locked(&self.vain);
        let is_too_long = vain.get_or_insert_with(Instant::now).elapsed() >= patience;
        if is_too_long {
            *vain = None;
            self.replace(is_connected);
        }
        self.is_vain.store(vain.is_some(), Ordering::Relaxed);
    }

    /// The next call connects; with another client if it was no server that did not answer.
    fn replace(&self, is_connected: bool) {
        let mut held = locked(&self.held);
        held.connection = None;
        if let (false, Some(make)) = (is_connected, &self.others)
            && let Ok(client) = make.any(held.before + 1)
        {
            held.client = client;
            held.before += 1;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.serves.abort();
        self.watches.abort();
    }
}

/// Keeps in mind what is in the way of a connection.
async fn watch(client: Client, trouble: Arc<Trouble>) {
    let (mut errors, mut reconnects) = (client.error_rx(), client.reconnect_rx());
    loop {
        tokio::select! {
            error = errors.recv() => match error {
                Ok((error, _)) => {
                    *locked(&trouble.last) = Some(error);
                    trouble.is_new.store(true, Ordering::SeqCst);
                }
                Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
            },
            Ok(_) = reconnects.recv() => *locked(&trouble.last) = None,
        }
    }
}

impl Way {
    pub(crate) async fn send(&self, request: &Request) -> Result<Value, Error> {
        match request {
            Request::Time => self.custom("TIME", Vec::new()).await,
            Request::Get { key } => match self {
                Self::Straight(client) => client.get(key).await,
                Self::Once(client) => client.get(key).await,
                Self::Asking(_) => self.custom("GET", vec![key.as_str().into()]).await,
            },
            Request::Publish { channel, word } => {
                self.custom("PUBLISH", vec![channel.as_str().into(), word.as_str().into()]).await
            }
            Request::SetIfAbsent { key, value, millis } => match self {
                Self::Straight(client) => set(client, key, value.clone(), *millis).await,
                Self::Once(client) => set(client, key, value.clone(), *millis).await,
                Self::Asking(_) => {
                    let words = [key.as_str().into(), value.clone().into(), "NX".into(), "GET".into(), "PX".into()];
                    self.custom("SET", words.into_iter().chain([(*millis).into()]).collect()).await
                }
            },
            Request::Run { script, call, arguments } => self.run(script, call, arguments).await,
            Request::Bring { script, call } => self.custom("EVAL", words(body(script), call, &[])).await,
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
    async fn custom(&self, name: &'static str, words: Vec<Value>) -> Result<Value, Error> {
        // Each client is of one server.
        let command = |name| CustomCommand::new_static(name, ClusterHash::Random, false);
        match self {
            Self::Straight(client) => client.custom(command(name), words).await,
            Self::Once(client) => client.custom(command(name), words).await,
            Self::Asking(client) => {
                let both = client.pipeline();
                both.custom::<(), Value>(command("ASKING"), Vec::new()).await?;
                both.custom::<(), Value>(command(name), words).await?;
                both.last().await
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

async fn set(client: &impl KeysInterface, key: &str, value: Bytes, millis: i64) -> Result<Value, Error> {
    client.set(key, value, Some(Expiration::PX(millis)), Some(SetOptions::NX), true).await
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
