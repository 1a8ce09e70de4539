//! The payment provider, which is idempotent itself: the same downstream key gives the same charge.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Semaphore;

/// How many charges may be under way at a time.
const AT_ONCE: usize = 64;

/// Its charges, by downstream key.
#[derive(Debug)]
pub struct Provider {
    state: Mutex<State>,
    at_once: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    charges: HashMap<String, String>,
    calls: usize,
    lost_replies: usize,
}

/// The provider could not be reached, or its reply was lost: whether it charged is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away;

impl Default for Provider {
    fn default() -> Self {
        Self { state: Mutex::default(), at_once: Semaphore::new(AT_ONCE) }
    }
}

impl Provider {
    /// Charges, or finds the charge that was made under this key before.
    ///
    /// # Errors
    ///
    /// [`Away`], as often as [`Provider::fail`] asked for.
    pub async fn charge(&self, downstream_key: &str) -> Result<String, Away> {
        let _turn = self.at_once.acquire().await.map_err(|_| Away)?;
        let mut state = self.state();
        state.calls += 1;
        let next = format!("ch_{}", state.charges.len() + 1);
        let charge = state.charges.entry(downstream_key.to_owned()).or_insert(next).clone();
        match state.lost_replies.checked_sub(1) {
            None => Ok(charge),
            Some(left) => {
                state.lost_replies = left;
                Err(Away)
            }
        }
    }

    /// How often it was called, and how many charges it made.
    pub fn totals(&self) -> (usize, usize) {
        let state = self.state();
        (state.calls, state.charges.len())
    }

    /// Loses the replies to the next calls, which charge all the same.
    pub fn fail(&self, times: usize) {
        self.state().lost_replies = times;
    }

    /// Lets no charge begin until [`Provider::resume`].
    pub fn pause(&self) {
        self.at_once.forget_permits(AT_ONCE);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.at_once.add_permits(AT_ONCE);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
