//! Waiting until an attempt is no longer in progress.

use std::{pin::pin, sync::Arc, time::Duration};

use idem_core::{AttemptId, Key, Scope, Snapshot, State, StoreError};
use sha2::{Digest, Sha256};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

/// How often a wait looks by itself where nobody wakes it.
const POLL: Duration = Duration::from_millis(100);

/// How often it looks where the server wakes it: a notification may get lost with its connection.
const POLL_BEHIND_NOTIFICATIONS: Duration = Duration::from_secs(1);

/// Bells, more than there will be keys waited for at a time. Keys that share one wake each other's waits, which then
/// look and go on waiting.
const BELLS: usize = 1024;

/// Who waits for the end of attempts. A fixed number of bells, so a wait that is dropped leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Waiters(Box<[Notify]>);

/// What a notification carries: a part of the digest of scope and key. A scope has no line feed, so no two pairs are
/// written alike.
pub(crate) fn bell(scope: &Scope, key: &Key) -> u64 {
    let text = format!("{}\n{}", scope.as_str(), key.as_str());
    let digest: [u8; 32] = Sha256::digest(text).into();
    let [a, b, c, d, e, f, g, h, ..] = digest;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// How a wait is helped along.
pub(crate) trait Help {
    /// Reads the record.
    async fn read(&self) -> Result<Option<Snapshot>, StoreError>;

    /// Asks the server to say when the attempt ends. Says whether it can be heard.
    async fn listen(&self) -> bool;
}

impl Waiters {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self((0..BELLS).map(|_| Notify::new()).collect()))
    }

    pub(crate) fn wake(&self, bell: u64) {
        self.bell(bell).notify_waiters();
    }

    pub(crate) fn wake_everybody(&self) {
        self.0.iter().for_each(Notify::notify_waiters);
    }

    fn bell(&self, bell: u64) -> &Notify {
        &self.0[(bell % BELLS as u64) as usize]
    }

    /// Waits until the `seen` attempt is not in progress on the record, for `at_most`.
    pub(crate) async fn wait(
        &self,
        bell: u64,
        seen: AttemptId,
        at_most: Duration,
        help: &impl Help,
    ) -> Result<Option<Snapshot>, StoreError> {
        let end = Instant::now().checked_add(at_most);
        let mut listening = pin!(help.listen());
        let mut hears = None;
        loop {
            // Hears from here on, awaited or not, and looks then, or what happens in between would be missed.
            let woken = self.bell(bell).notified();
            let snapshot = help.read().await?;
            let left = end.map_or(POLL_BEHIND_NOTIFICATIONS, |end| end.saturating_duration_since(Instant::now()));
            if !is_in_progress(snapshot.as_ref(), seen) || left.is_zero() {
                return Ok(snapshot);
            }
            let poll = if hears == Some(true) { POLL_BEHIND_NOTIFICATIONS } else { POLL };
            // In any case the next step is to look: the attempt may have ended before the server knew that someone
            // listens.
            tokio::select! {
                () = woken => {}
                heard = &mut listening, if hears.is_none() => hears = Some(heard),
                () = sleep(left.min(poll)) => {}
            }
        }
    }
}

fn is_in_progress(snapshot: Option<&Snapshot>, seen: AttemptId) -> bool {
    snapshot.is_some_and(|found| found.record.state == State::InProgress && found.record.attempt() == seen)
}

#[cfg(test)]
mod tests;
