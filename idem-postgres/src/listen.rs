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
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_postgres::{AsyncMessage, Client, Config, types::Type};

use crate::{connections::Connections, error::described, sql::Statement, tls::Tls, wait::Waiters};

/// How long the self-test waits for its own notification.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long connecting may take, and asking to be told.
const CONNECTING: Duration = Duration::from_secs(10);

/// The pause before listening is tried again, first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The pause before it is tried again where nothing was heard.
const DEAF_PAUSE: Duration = Duration::from_secs(10 * 60);

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
}

impl Listener {
    /// Without a `dial` nothing is heard.
    pub(crate) fn new(dial: Option<Dial>, channel: String, connections: Connections, waiters: Arc<Waiters>) -> Self {
        let shared = Shared { connections, waiters, hears: AtomicBool::new(false) };
        Self { dial, channel, shared: Arc::new(shared), task: Mutex::new(None) }
    }

    /// Whether notifications are known to arrive. The first call starts listening; until that is known to work, waits look
    /// for themselves.
    pub(crate) fn hears(&self) -> bool {
        let Some(dial) = &self.dial else {
            return false;
        };
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        // Also again, where the runtime that it ran on is gone.
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            self.shared.hears.store(false, Ordering::SeqCst);
            let listening = listen(dial.clone(), self.channel.clone(), Arc::downgrade(&self.shared));
            *task = Some(tokio::spawn(listening));
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
    let mut pause = FIRST_PAUSE;
    loop {
        let ended = hear(&dial, &channel, &shared).await;
        let Some(shared) = shared.upgrade() else { return };
        let heard = shared.hears.swap(false, Ordering::SeqCst);
        // What was said meanwhile is lost, so everybody looks.
        shared.waiters.wake_everybody();
        pause = match ended {
            Err(error) => {
                tracing::debug!(error, "the connection for notifications was lost, or could not be made");
                if heard { FIRST_PAUSE } else { (2 * pause).min(MAX_PAUSE) }
            }
            Ok(()) => {
                tracing::warn!("notifications do not arrive (a pooler?); waits look for themselves instead");
                DEAF_PAUSE
            }
        };
        drop(shared);
        sleep(pause).await;
    }
}

/// Listens until the connection ends, and says why. `Ok` if the self-test finds that nothing is heard.
async fn hear(dial: &Dial, channel: &str, shared: &Weak<Shared>) -> Result<(), String> {
    // The driver's own limit is for reaching the server, not for its first words.
    let (client, mut connection) = match timeout(CONNECTING, dial.config.connect(dial.tls.clone())).await {
        Ok(connected) => connected.map_err(|error| described(&error))?,
        Err(_) => return Err("the server did not answer".into()),
    };
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
            Some(Err(error)) => return Err(described(&error)),
            None => return Err("the server closed it".into()),
        };
        let Some(shared) = shared.upgrade() else { return Ok(()) };
        if said.payload() == nonce {
            tested = true;
            shared.hears.store(true, Ordering::SeqCst);
            // Those that look for themselves may ask to be told now.
            shared.waiters.wake_everybody();
        } else if let Ok(bell) = u64::from_str_radix(said.payload(), 16) {
            shared.waiters.wake(bell);
        }
    }
}

/// Listens, and has another connection say something. Ends if that was not heard in time, which is `Ok`, or if it could
/// not be said.
async fn self_test(client: &Client, channel: &str, nonce: &str, shared: Weak<Shared>) -> Result<(), String> {
    match timeout(CONNECTING, client.batch_execute(&format!("LISTEN {channel}"))).await {
        Ok(done) => done.map_err(|error| described(&error))?,
        Err(_) => return Err("the server did not answer".into()),
    }
    let Some(connections) = shared.upgrade().map(|shared| shared.connections.clone()) else { return Ok(()) };
    let say = Statement { text: format!("SELECT pg_notify('{channel}', $1)::text"), types: &[Type::TEXT] };
    connections.rows("wait", &say, &[&nonce]).await.map_err(|error| error.to_string())?;
    sleep(PATIENCE).await;
    Ok(())
}

#[cfg(test)]
mod tests;
