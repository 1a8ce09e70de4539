//! What the connections of a proxy and the test share.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::{Cut, Fault, Request};

/// How many requests are remembered.
const LOG: usize = 10_000;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) upstream: (String, u16),
    /// Whether nothing is forwarded.
    pub(super) held: watch::Sender<bool>,
    /// Changes when all connections are to be cut.
    pub(super) cuts: watch::Sender<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    fault: Option<Fault>,
    pub(super) strikes: u64,
    pub(super) requests: u64,
    pub(super) connections: u64,
    pub(super) log: VecDeque<Request>,
    pub(super) delay: Duration,
}

impl Shared {
    pub(super) fn new(upstream: (String, u16)) -> Self {
        let (held, cuts) = (watch::Sender::new(false), watch::Sender::new(0));
        Self { upstream, held, cuts, state: Mutex::default() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn arm(&self, fault: Option<Fault>) {
        let mut state = self.state();
        if fault.is_some() {
            state.strikes = 0;
        }
        state.fault = fault;
    }

    /// Waits for the end of a black hole.
    pub(super) async fn passable(&self) {
        // The sender is here, so this can't fail.
        let _ = self.held.subscribe().wait_for(|held| !held).await;
    }

    /// Takes note of a request that has arrived.
    pub(super) fn arrived(&self, request: &Request) {
        let mut state = self.state();
        state.requests += 1;
        if state.log.len() == LOG {
            state.log.pop_front();
        }
        state.log.push_back(request.clone());
    }

    /// Where to cut this request, if anywhere. Each call counts for the fault that is armed.
    pub(super) fn judge(&self, request: &Request) -> Option<Cut> {
        let mut state = self.state();
        let fault = state.fault.as_mut()?;
        if fault.text.as_ref().is_some_and(|text| !request.runs.iter().any(|sql| sql.contains(text))) {
            return None;
        }
        if fault.skip > 0 {
            fault.skip -= 1;
            return None;
        }
        let cut = fault.cut;
        fault.times = fault.times.saturating_sub(1);
        if fault.times == 0 {
            state.fault = None;
        }
        Some(cut)
    }

    pub(super) fn struck(&self) {
        self.state().strikes += 1;
    }
}
