//! The one connection on which the server says that attempts have ended.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fred::{
    clients::SubscriberClient,
    interfaces::{ClientLike, EventInterface, PubsubInterface},
};
use tokio::{sync::OnceCell, task::JoinHandle, time::timeout};

use crate::wait::Waiters;

/// Listens from the first wait on, for as long as the store lives.
pub(crate) struct Listener {
    client: SubscriberClient,
    channel: String,
    waiters: Arc<Waiters>,
    timeout: Duration,
    started: OnceCell<()>,
    hears: Arc<AtomicBool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Listener {
    pub(crate) fn new(client: SubscriberClient, channel: String, waiters: Arc<Waiters>, timeout: Duration) -> Self {
        let hears = Arc::new(AtomicBool::new(false));
        Self { client, channel, waiters, timeout, started: OnceCell::new(), hears, tasks: Mutex::default() }
    }

    /// Whether what is said arrives. The first call subscribes, and waits for the server's word on that.
    pub(crate) async fn hears(&self) -> bool {
        self.started.get_or_init(|| self.start()).await;
        self.hears.load(Ordering::SeqCst)
    }

    async fn start(&self) {
        let mut said = self.client.message_rx();
        let mut reconnected = self.client.reconnect_rx();
        let waiters = Arc::clone(&self.waiters);
        let hearing = tokio::spawn(async move {
            loop {
                tokio::select! {
                    message = said.recv() => match message {
                        Ok(message) => {
                            if let Some(bell) = message.value.as_string().and_then(|word| u64::from_str_radix(&word, 16).ok()) {
                                waiters.wake(bell);
                            }
                        }
                        Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => waiters.wake_everybody(),
                        Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
                    },
                    // What was said meanwhile is lost, so everybody looks.
                    Ok(_) = reconnected.recv() => waiters.wake_everybody(),
                }
            }
        });
        let connecting = self.client.connect();
        let resubscribing = self.client.manage_subscriptions();
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).extend([hearing, resubscribing]);
        drop(connecting); // goes on by itself
        let subscribed = timeout(self.timeout, self.client.subscribe(self.channel.clone())).await;
        self.hears.store(matches!(subscribed, Ok(Ok(()))), Ordering::SeqCst);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for task in self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
    }
}
