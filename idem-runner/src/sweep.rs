//! Removing expired records in the background.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{task, time};

use crate::{Sweep, idempotency::Inner};

/// Records that one call of the store removes: few enough not to delay a claim.
const BATCH: NonZeroUsize = NonZeroUsize::new(500).expect("500 is not zero");

/// Whether the task of an [`Idempotency`](crate::Idempotency) that sweeps is there.
#[derive(Debug, Default)]
pub(crate) struct Sweeper(Arc<AtomicBool>);

/// Says that the task ended, also when its runtime did.
struct Ended(Arc<AtomicBool>);

impl Sweeper {
    /// Starts the task unless it is there. It ends with its `Idempotency`.
    pub(crate) fn ensure_running(&self, runner: &Arc<Inner>) {
        let Sweep::Every(interval) = runner.settings.sweep else {
            return;
        };
        if !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::SeqCst) {
            let ended = Ended(Arc::clone(&self.0));
            tokio::spawn(keep_sweeping(Arc::downgrade(runner), interval, ended));
        }
    }
}

async fn keep_sweeping(runner: Weak<Inner>, interval: Duration, _ended: Ended) {
    loop {
        time::sleep(interval).await;
        let Some(runner) = runner.upgrade().filter(|runner| !runner.closing.is_cancelled()) else {
            return;
        };
        // A sweep that fails is tried again at the next interval: an expired record is absent, swept or not.
        while let Ok(removed) = runner.in_time("sweep", runner.store.sweep(BATCH)).await {
            runner.counting.swept.add(removed);
            if removed < BATCH.get() {
                break;
            }
            task::yield_now().await;
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
