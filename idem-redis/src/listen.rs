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
    error::Error,
    interfaces::{ClientLike, EventInterface, PubsubInterface},
};
use tokio::{
    sync::{Mutex, broadcast::error::RecvError},
    task::JoinHandle,
    time::timeout,
};

use crate::wait::Waiters;

/// Listens from the first wait on, for as long as the store lives.
pub(crate) struct Listener {
    client: SubscriberClient,
    channel: String,
    waiters: Arc<Waiters>,
    timeout: Duration,
    tasks: Mutex<Option<Tasks>>,
    hears: AtomicBool,
}

/// The tasks behind the connection, which ends with them.
struct Tasks {
    serves: JoinHandle<Result<(), Error>>,
    hears: JoinHandle<()>,
    subscribes_again: JoinHandle<()>,
}

impl Listener {
    pub(crate) fn new(client: SubscriberClient, channel: String, waiters: Arc<Waiters>, timeout: Duration) -> Self {
        Self { client, channel, waiters, timeout, tasks: Mutex::default(), hears: AtomicBool::new(false) }
    }

    /// Whether what is said arrives. Until it does, each call subscribes, and waits for the server's word on that.
    pub(crate) async fn hears(&self) -> bool {
        // One at a time. The others wait no longer than it does.
        let Ok(mut tasks) = timeout(self.timeout, self.tasks.lock()).await else { return false };
        if tasks.as_ref().is_none_or(|tasks| tasks.serves.is_finished()) {
            // It is the first time, or the runtime of the tasks is gone.
            self.hears.store(false, Ordering::SeqCst);
            *tasks = Some(self.start());
        }
        if !self.hears.load(Ordering::SeqCst) {
            let subscribed = timeout(self.timeout, self.client.subscribe(self.channel.clone())).await;
            self.hears.store(matches!(subscribed, Ok(Ok(()))), Ordering::SeqCst);
        }
        self.hears.load(Ordering::SeqCst)
    }

    fn start(&self) -> Tasks {
        let hears = tokio::spawn(hear(self.client.clone(), Arc::clone(&self.waiters)));
        let serves = self.client.connect();
        let subscribes_again = self.client.manage_subscriptions();
        Tasks { serves, hears, subscribes_again }
    }
}

async fn hear(client: SubscriberClient, waiters: Arc<Waiters>) {
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
            Ok(_) = reconnected.recv() => waiters.wake_everybody(),
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
