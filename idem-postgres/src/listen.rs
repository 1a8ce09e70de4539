//! The one connection on which the server says that attempts have ended.

use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_postgres::{AsyncMessage, Client, Config, types::Type};

use crate::{connections::Connections, sql::Statement, tls::Tls, wait::Waiters};

/// How long the self-test waits for its own notification.
const PATIENCE: Duration = Duration::from_secs(2);

/// The longest pause between two tries to listen.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// How a connection for listening is made: not from the pool, whose connections keep what the server says to themselves.
#[derive(Clone)]
pub(crate) struct Dial {
    pub(crate) config: Config,
    pub(crate) tls: Tls,
}

/// Listens from the first wait on, for as long as the store lives.
pub(crate) struct Listener {
    dial: Option<Dial>,
    channel: String,
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    connections: Connections,
    waiters: Arc<Waiters>,
    /// Whether notifications are known to arrive.
    hears: AtomicBool,
    /// Rung when the first try has succeeded or failed.
    tried: Notify,
    has_tried: AtomicBool,
}

impl Listener {
    /// Without a `dial` nothing is heard.
    pub(crate) fn new(dial: Option<Dial>, channel: String, connections: Connections, waiters: Arc<Waiters>) -> Self {
        let shared = Shared {
            connections,
            waiters,
            hears: AtomicBool::new(false),
            tried: Notify::new(),
            has_tried: AtomicBool::new(false),
        };
        Self { dial, channel, shared: Arc::new(shared), task: Mutex::new(None) }
    }

    /// Whether notifications arrive. The first call starts listening and waits until that is known; other calls never
    /// wait long.
    pub(crate) async fn hears(&self) -> bool {
        let Some(dial) = &self.dial else {
            return false;
        };
        {
            let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
            // Also again, where the runtime that it ran on is gone.
            if task.as_ref().is_none_or(JoinHandle::is_finished) {
                self.shared.has_tried.store(false, Ordering::SeqCst);
                let listening = listen(dial.clone(), self.channel.clone(), Arc::downgrade(&self.shared));
                *task = Some(tokio::spawn(listening));
            }
        }
        let tried = self.shared.tried.notified();
        if !self.shared.has_tried.load(Ordering::SeqCst) {
            let _ = timeout(2 * PATIENCE, tried).await;
        }
        self.shared.hears.load(Ordering::SeqCst)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

async fn listen(dial: Dial, channel: String, shared: Weak<Shared>) {
    let mut pause = Duration::from_millis(100);
    loop {
        let ended = hear(&dial, &channel, &shared).await;
        let Some(shared) = shared.upgrade() else { return };
        let heard = shared.hears.swap(false, Ordering::SeqCst);
        shared.has_tried.store(true, Ordering::SeqCst);
        shared.tried.notify_waiters();
        // What was said meanwhile is lost, so everybody looks.
        shared.waiters.wake_everybody();
        match ended {
            Ok(()) => {
                tracing::warn!("notifications do not arrive (a pooler?); waits look for themselves instead");
                return stay_deaf(shared).await;
            }
            Err(error) => tracing::debug!(%error, "the connection for notifications was lost, or could not be made"),
        }
        pause = if heard { Duration::from_millis(100) } else { (2 * pause).min(MAX_PAUSE) };
        drop(shared);
        sleep(pause).await;
    }
}

/// Keeps the task, so that no other is started: what the self-test found does not change by itself.
async fn stay_deaf(shared: Arc<Shared>) {
    drop(shared);
    std::future::pending().await
}

/// Listens until the connection ends. `Ok` if the self-test finds that nothing is heard.
async fn hear(dial: &Dial, channel: &str, shared: &Weak<Shared>) -> Result<(), tokio_postgres::Error> {
    let (client, mut connection) = dial.config.connect(dial.tls.clone()).await?;
    let nonce = format!("test {:p}", &client);
    let mut test = Box::pin(self_test(&client, channel, &nonce, shared.clone()));
    let mut tested = false;
    loop {
        let message = tokio::select! {
            message = poll_fn(|context| connection.poll_message(context)) => message,
            failed = &mut test, if !tested => return failed,
        };
        let said = match message {
            Some(Ok(AsyncMessage::Notification(said))) => said,
            Some(Ok(_)) => continue,
            Some(Err(error)) => return Err(error),
            None => return client.batch_execute("").await, // closed, which this says in its own words
        };
        let Some(shared) = shared.upgrade() else { return Ok(()) };
        if said.payload() == nonce {
            tested = true;
            shared.hears.store(true, Ordering::SeqCst);
            shared.has_tried.store(true, Ordering::SeqCst);
            shared.tried.notify_waiters();
            shared.waiters.wake_everybody();
        } else if let Ok(bell) = u64::from_str_radix(said.payload(), 16) {
            shared.waiters.wake(bell);
        }
    }
}

/// Listens, and has another connection say something. Ends if that was not heard in time, which is `Ok`, or on an error.
async fn self_test(
    client: &Client,
    channel: &str,
    nonce: &str,
    shared: Weak<Shared>,
) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(&format!("LISTEN {channel}")).await?;
    let Some(connections) = shared.upgrade().map(|shared| shared.connections.clone()) else { return Ok(()) };
    let say = Statement { text: format!("SELECT pg_notify('{channel}', $1)::text"), types: &[Type::TEXT] };
    // If this fails nothing is heard either, and the other tasks of the store say why.
    let _ = connections.rows("wait", &say, &[&nonce]).await;
    sleep(PATIENCE).await;
    Ok(())
}

#[cfg(test)]
mod tests;
