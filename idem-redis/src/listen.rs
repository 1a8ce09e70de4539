//! The one connection on which the server says that attempts have ended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fred::{
    clients::SubscriberClient,
    error::{Error, ErrorKind},
    interfaces::{ClientLike, EventInterface, PubsubInterface},
};
use tokio::{
    sync::{Mutex, broadcast::error::RecvError},
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::wait::Waiters;

/// For how long the server's word that it is subscribed is good: nothing else is heard of a connection that broke
/// without a word.
const GOOD_FOR: Duration = Duration::from_secs(10);

/// Listens from the check or the first wait on, for as long as the store lives.
pub(crate) struct Listener {
    client: SubscriberClient,
    channel: String,
    waiters: Arc<Waiters>,
    timeout: Duration,
    subscription: Mutex<Subscription>,
}

#[derive(Default)]
struct Subscription {
    tasks: Option<Tasks>,
    /// When the server said last that it is subscribed.
    confirmed: Option<Instant>,
}

/// The tasks behind the connection, which ends with them.
struct Tasks {
    serves: JoinHandle<Result<(), Error>>,
    hears: JoinHandle<()>,
    subscribes_again: JoinHandle<()>,
    /// Whether it was another connection on which the server said that it is subscribed.
    has_reconnected: Arc<AtomicBool>,
}

impl Listener {
    pub(crate) fn new(client: SubscriberClient, channel: String, waiters: Arc<Waiters>, timeout: Duration) -> Self {
        Self { client, channel, waiters, timeout, subscription: Mutex::default() }
    }

    /// Sees to it that what is said arrives: subscribes, and waits for the server's word on that, unless it gave it
    /// lately. Within the time limit, twice at most.
    pub(crate) async fn listen(&self) -> Result<(), Error> {
        let late = |_| Error::new(ErrorKind::Timeout, "the server's word on a subscription did not come");
        // One at a time. The others wait no longer than it does.
        let mut subscription = timeout(self.timeout, self.subscription.lock()).await.map_err(late)?;
        let Subscription { tasks, confirmed } = &mut *subscription;
        let tasks = match tasks {
            Some(tasks) if !tasks.serves.is_finished() => tasks,
            // It is the first time, or the runtime of the tasks is gone.
            tasks => {
                *confirmed = None;
                tasks.insert(self.start())
            }
        };
        let is_another = tasks.has_reconnected.swap(false, Ordering::SeqCst);
        if !is_another && confirmed.is_some_and(|at| at.elapsed() < GOOD_FOR) {
            return Ok(());
        }
        *confirmed = None;
        match timeout(self.timeout, self.client.subscribe(self.channel.clone())).await {
            Ok(subscribed) => subscribed?,
            Err(elapsed) => {
                // The next call connects.
                subscription.tasks = None;
                return Err(late(elapsed));
            }
        }
        *confirmed = Some(Instant::now());
        Ok(())
    }

    fn start(&self) -> Tasks {
        let has_reconnected = Arc::new(AtomicBool::new(false));
        let hears = tokio::spawn(hear(self.client.clone(), Arc::clone(&self.waiters), Arc::clone(&has_reconnected)));
        let serves = self.client.connect();
        let subscribes_again = self.client.manage_subscriptions();
        Tasks { serves, hears, subscribes_again, has_reconnected }
    }
}

async fn hear(client: SubscriberClient, waiters: Arc<Waiters>, has_reconnected: Arc<AtomicBool>) {
    let (mut said, mut reconnected) = (client.message_rx(), client.reconnect_rx());
    loop {
        tokio::select! {
            message = said.recv() => match message {
                Ok(message) => {
                    let bell = message.value.as_string().and_then(|word| u64::from_str_radix(&word, 16).ok());
                    if let Some(bell) = bell {
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
