//! What the HTTP layer costs a server: the same server with it and without it, on the memory store, with a handler that
//! reads its body and does nothing.

mod connection;
mod server;

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    Failure,
    cli::Options,
    http::{
        connection::Connection,
        server::{Servers, request},
    },
    operations::compare,
    report::{self, Goal},
    rounds::{MANY, Operation, Plan, Side, in_flight},
};

/// How many keys are replayed in turn.
const DONE: usize = 1000;

/// Measures what was asked for and tells it.
pub(crate) async fn run(options: Options) -> Result<(), Failure> {
    if options.metrics {
        metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder()?;
    }
    let servers = Servers::start().await?;
    let plan = Plan { rounds: options.rounds, seconds: options.seconds, at_least: 64, at_most: 20_000 };
    let recorder = if options.metrics { "with a recorder of metrics" } else { "without a recorder of metrics" };
    report::ratios(&format!("Requests of 200 bytes of JSON against the same server without the layer, {recorder}"))?;
    for tasks in [1, MANY] {
        let bare = || requests(servers.bare, tasks, Keys::New);
        if options.wants("new") {
            let goal = if tasks == MANY { Goal::AtLeast(0.75) } else { Goal::None };
            let sides = [bare(), requests(servers.layered, tasks, Keys::New)];
            compare(&format!("new keys, {tasks} in flight"), goal, plan.of(tasks), sides).await?;
        }
        if options.wants("replay") {
            let goal = if tasks == MANY { Goal::AtLeast(0.8) } else { Goal::None };
            let replays = requests(servers.layered, tasks, Keys::Done);
            replays(DONE).await?;
            compare(&format!("replays, {tasks} in flight"), goal, plan.of(tasks), [bare(), replays]).await?;
        }
    }
    Ok(())
}

/// Which keys requests have.
#[derive(Clone, Copy)]
enum Keys {
    /// None that there was before.
    New,
    /// The same thousand again and again.
    Done,
}

/// Sends requests over so many connections that are kept.
fn requests(to: SocketAddr, tasks: usize, keys: Keys) -> Side<'static> {
    let (connections, turns) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    Box::new(move |count| {
        let turn = turns.fetch_add(1, Ordering::Relaxed);
        let sending = Sending { to, tasks, keys, turn, connections: Arc::clone(&connections) };
        Box::pin(in_flight(tasks, count, Arc::new(sending)))
    })
}

struct Sending {
    to: SocketAddr,
    tasks: usize,
    keys: Keys,
    turn: usize,
    connections: Arc<Mutex<Vec<Connection>>>,
}

impl Operation for Sending {
    async fn run(&self, number: usize) -> Result<(), Failure> {
        let idle = self.connections.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::open(self.to).await?,
        };
        let key = match self.keys {
            Keys::New => format!("{}-{}-{number}", self.tasks, self.turn),
            Keys::Done => format!("done-{}-{}", self.tasks, number % DONE),
        };
        connection.exchange(&request(&key)).await?;
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(())
    }
}
