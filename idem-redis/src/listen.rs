//! The one connection on which the server says that attempts have ended.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fred::{
    clients::SubscriberClient,
    error::Error,
    interfaces::{ClientLike, EventInterface, PubsubInterface},
    types::Builder as FredBuilder,
};
use idem_core::{StoreError, StoreErrorKind};
use tokio::{
    sync::{Mutex, broadcast::error::RecvError, watch},
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::{
    error::{redis_error, store_error},
    link::Link,
    wait::Waiters,
};

/// For how long it is good that the store has heard itself: nothing else is heard of a connection that broke without a
/// word.
const GOOD_FOR: Duration = Duration::from_secs(10);

/// How long it waits for a word of its own before it says another: the first may have come before the subscription.
const SAY_AGAIN: Duration = Duration::from_millis(50);

/// Listens from the check or the first wait on, for as long as the store lives.
pub(crate) struct Listener {
    make: FredBuilder,
    channel: String,
    waiters: Arc<Waiters>,
    timeout: Duration,
    own: Arc<OwnWords>,
    subscription: Mutex<Subscription>,
}

/// What a listener says to itself. Neither the client nor the server answers a subscription in a way that shows that
/// what is said arrives.
struct OwnWords {
    /// No other listener's.
    name: String,
    /// The number of the last that was heard.
    heard: watch::Sender<u64>,
}

#[derive(Default)]
struct Subscription {
    tasks: Option<Tasks>,
    /// The number of the last word that was said.
    said: u64,
    /// When the last was heard.
    heard: Option<Instant>,
}

/// The tasks behind the connection, which ends with them.
struct Tasks {
    client: SubscriberClient,
    serves: JoinHandle<Result<(), Error>>,
    hears: JoinHandle<()>,
    subscribes_again: JoinHandle<()>,
    /// Whether it was on another connection that the last own word was heard.
    has_reconnected: Arc<AtomicBool>,
}

impl Listener {
    pub(crate) fn new(make: FredBuilder, channel: String, waiters: Arc<Waiters>, timeout: Duration) -> Self {
        let own = Arc::new(OwnWords {
            name: format!("heard {:016x} ", RandomState::new().hash_one(0)),
            heard: watch::Sender::new(0),
        });
        Self { make, channel, waiters, timeout, own, subscription: Mutex::default() }
    }

    /// Sees to it that what is said arrives: subscribes, and hears itself, unless it did so lately. Within the time limit,
    /// twice at most.
    pub(crate) async fn listen(&self, operation: &'static str, link: &Link) -> Result<(), StoreError> {
        let deaf = || {
            let message = format!(
                "what the server was asked to publish on {:?} did not come back within {:?} (Builder::timeout); the user \
                 needs the rights +publish, +subscribe and &PREFIX:*",
                self.channel, self.timeout
            );
            store_error(StoreErrorKind::Unavailable, operation, message)
        };
        // One at a time. The others wait no longer than it does.
        let mut subscription = timeout(self.timeout, self.subscription.lock()).await.map_err(|_| deaf())?;
        let Subscription { tasks, said, heard } = &mut *subscription;
        let tasks = match tasks {
            Some(tasks) if !tasks.serves.is_finished() => tasks,
            // It is the first time, or the runtime of the tasks is gone.
            tasks => {
                *heard = None;
                tasks.insert(self.start().map_err(|error| redis_error(operation, error))?)
            }
        };
        let is_another = tasks.has_reconnected.swap(false, Ordering::SeqCst);
        if !is_another && heard.is_some_and(|at| at.elapsed() < GOOD_FOR) {
            return Ok(());
        }
        *heard = None;
        match timeout(self.timeout, self.hear_itself(operation, link, &tasks.client, said)).await {
            Ok(heard_itself) => heard_itself?,
            Err(_) => {
                // The next call connects.
                subscription.tasks = None;
                return Err(deaf());
            }
        }
        *heard = Some(Instant::now());
        Ok(())
    }

    async fn hear_itself(
        &self,
        operation: &'static str,
        link: &Link,
        client: &SubscriberClient,
        said: &mut u64,
    ) -> Result<(), StoreError> {
        let subscribed = client.subscribe(self.channel.clone()).await;
        subscribed.map_err(|error| redis_error(operation, error))?;
        let (first, mut heard) = (*said + 1, self.own.heard.subscribe());
        loop {
            *said += 1;
            link.publish(operation, &self.channel, format!("{}{said}", self.own.name)).await?;
            if timeout(SAY_AGAIN, heard.wait_for(|heard| *heard >= first)).await.is_ok() {
                return Ok(());
            }
        }
    }

    fn start(&self) -> Result<Tasks, Error> {
        let client = self.make.build_subscriber_client()?;
        let has_reconnected = Arc::new(AtomicBool::new(false));
        let hears =
            hear(client.clone(), Arc::clone(&self.waiters), Arc::clone(&self.own), Arc::clone(&has_reconnected));
        let hears = tokio::spawn(hears);
        let serves = client.connect();
        let subscribes_again = client.manage_subscriptions();
        Ok(Tasks { client, serves, hears, subscribes_again, has_reconnected })
    }
}

async fn hear(client: SubscriberClient, waiters: Arc<Waiters>, own: Arc<OwnWords>, has_reconnected: Arc<AtomicBool>) {
    let (mut said, mut reconnected) = (client.message_rx(), client.reconnect_rx());
    loop {
        tokio::select! {
            message = said.recv() => match message {
                Ok(message) => {
                    let word = message.value.as_string().unwrap_or_default();
                    if let Some(number) = word.strip_prefix(&own.name).and_then(|number| number.parse().ok()) {
                        own.heard.send_replace(number);
                    } else if let Ok(bell) = u64::from_str_radix(&word, 16) {
                        waiters.wake(bell);
                    }
                }
                Err(RecvError::Lagged(_)) => waiters.wake_everybody(),
                Err(RecvError::Closed) => return,
            },
            // What was said meanwhile is lost, so everybody looks.
            Ok(_) = reconnected.recv() => {
                has_reconnected.store(true, Ordering::SeqCst);
                waiters.wake_everybody();
            }
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.serves.abort();
        self.hears.abort();
        self.subscribes_again.abort();
    }
}
