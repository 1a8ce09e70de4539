//! What the connections of a proxy and the test share.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::{Cut, Fault, Protocol, RedisCommand, Request};

/// How many requests or commands are remembered.
const LOG: usize = 10_000;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) protocol: Protocol,
    /// Whether nothing is forwarded.
    pub(super) held: watch::Sender<bool>,
    /// Changes when all connections are to be cut.
    pub(super) cuts: watch::Sender<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    fault: Option<Fault>,
    pub(super) upstream: (String, u16),
    /// Whether nothing of new connections is forwarded.
    pub(super) ignores_new: bool,
    pub(super) strikes: u64,
    pub(super) requests: u64,
    pub(super) connections: u64,
    pub(super) log: VecDeque<Request>,
    pub(super) commands: VecDeque<RedisCommand>,
    pub(super) delay: Duration,
}

impl Shared {
    pub(super) fn new(protocol: Protocol, upstream: (String, u16)) -> Self {
        let (held, cuts) = (watch::Sender::new(false), watch::Sender::new(0));
        Self { protocol, held, cuts, state: Mutex::new(State { upstream, ..State::default() }) }
    }

    /// Host and port of the server.
    pub(super) fn upstream(&self) -> (String, u16) {
        self.state().upstream.clone()
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
    pub(super) fn request_arrived(&self, request: &Request) {
        let mut state = self.state();
        state.requests += 1;
        remember(&mut state.log, request.clone());
    }

    /// Takes note of a command that has arrived.
    pub(super) fn command_arrived(&self, command: &RedisCommand) {
        let mut state = self.state();
        state.requests += 1;
        remember(&mut state.commands, command.clone());
    }

    /// Where to cut a request, if anywhere. Each call counts for the fault that is armed, if that strikes all requests or
    /// if the request is one of those that its text means.
    pub(super) fn judge(&self, is_meant: impl Fn(Option<&str>) -> bool) -> Option<Cut> {
        let mut state = self.state();
        let fault = state.fault.as_mut()?;
        if !is_meant(fault.text.as_deref()) {
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

    /// Counts a strike. The error says that the connection is to be closed.
    pub(super) fn strike(&self) -> io::Error {
        self.state().strikes += 1;
        io::ErrorKind::ConnectionAborted.into()
    }
}

fn remember<T>(log: &mut VecDeque<T>, entry: T) {
    if log.len() == LOG {
        log.pop_front();
    }
    log.push_back(entry);
}
