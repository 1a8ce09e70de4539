//! How one check runs.

use std::{
    panic,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use crate::Harness;

/// How long a check may take before it counts as hanging. Nothing is proved by it.
const DEADLINE: Duration = Duration::from_secs(120);

/// Runs one check to its end, in a runtime of its own and on a thread that is named as the check is.
///
/// [`suite!`](crate::suite) calls this for every check.
///
/// # Panics
///
/// If the check does: its message says what the store did and what it must do. Also if the check has not ended after
/// two minutes, which means that the store left a call unanswered.
pub fn run(name: &str, harness: Harness, check: impl AsyncFnOnce(&Harness) + Send + 'static) {
    let (ended, end) = mpsc::channel::<()>();
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _ended = ended; // dropped by the end of the check, good or bad
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_all()
            .build()
            .expect("a runtime for a check can be built");
        runtime.block_on(check(&harness));
        // Tasks that the store still runs are its own affair: a reopening within the check has waited for them.
        runtime.shutdown_background();
    });
    let thread = thread.expect("a thread for a check can be started");
    match end.recv_timeout(DEADLINE) {
        Err(RecvTimeoutError::Timeout) => {
            panic!("{name} has not ended after {DEADLINE:?}: the store left a call unanswered")
        }
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            if let Err(panicked) = thread.join() {
                panic::resume_unwind(panicked);
            }
        }
    }
}
