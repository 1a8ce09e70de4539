//! A proxy between clients and a PostgreSQL or Redis server that cuts, delays and holds what passes, at points that a test
//! names.
//!
//! It knows the framing of the protocols, so a fault strikes at a point between or within messages and not at a random
//! byte. A **request** is
//!
//! - to PostgreSQL, everything up to a Sync, or one simple query: what a driver sends before it waits. With
//!   tokio-postgres, preparing a statement is a request of its own, and so are `BEGIN` and `COMMIT`. Logging in is none.
//! - to Redis, one command, also among others that are sent without waiting. What drivers send on their own is none:
//!   `HELLO`, `AUTH`, `SELECT`, `CLIENT`, `INFO`, `PING`, `CLUSTER`, `ROLE`, `READONLY`, `QUIT`, `RESET`.

mod postgres;
mod redis;
mod state;

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_postgres::config::Host;

use self::state::Shared;
use crate::url::RedisAddress;
use crate::{port, sql, url};

/// Where a request's connection is cut: both its sides are closed, towards the client and towards the server.
///
/// Of commands that a client sends to Redis without waiting, those before the one that is struck are executed and
/// answered in full, and those behind it never reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Before a byte of the request reaches the server: it is never executed.
    BeforeRequest,
    /// As soon as the request is sent, without waiting: it may be executed, at any later moment, or not.
    AfterRequest,
    /// When the server's whole reply has arrived, of which the client gets nothing: the request was executed, and if it
    /// was a commit, it is committed.
    BeforeReply,
    /// When the server's whole reply has arrived, of which the client gets the first half: the request was executed.
    WithinReply,
}

/// A cut and the request that it strikes: by default the next one, once.
#[derive(Debug, Clone)]
pub struct Fault {
    cut: Cut,
    skip: u64,
    times: u64,
    text: Option<String>,
}

impl Fault {
    /// Strikes the next request.
    #[must_use]
    pub fn new(cut: Cut) -> Self {
        Self { cut, skip: 0, times: 1, text: None }
    }

    /// Lets the first `requests` pass. A test goes through all points of an operation with 0, 1, 2 … until
    /// [`Proxy::strikes`] stays 0.
    #[must_use]
    pub fn after(mut self, requests: u64) -> Self {
        self.skip = requests;
        self
    }

    /// Strikes that many requests in a row.
    #[must_use]
    pub fn times(mut self, requests: u64) -> Self {
        self.times = requests;
        self
    }

    /// Strikes until it is disarmed.
    #[must_use]
    pub fn always(self) -> Self {
        self.times(u64::MAX)
    }

    /// Counts and strikes only certain requests. To PostgreSQL, those that run a statement which contains this text,
    /// prepared earlier or not; preparing it is not running it. To Redis, the commands of this name, such as `EVALSHA`;
    /// with a name, also those that are no requests otherwise, such as `HELLO`.
    #[must_use]
    pub fn of(mut self, text: &str) -> Self {
        self.text = Some(text.to_owned());
        self
    }
}

/// A request to PostgreSQL that the proxy has seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The SQL of each statement that it prepares.
    pub prepares: Vec<String>,
    /// The SQL of each statement that it runs, also of those that were prepared earlier.
    pub runs: Vec<String>,
}

/// A command to Redis that the proxy has seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedisCommand {
    /// Its name, in capital letters.
    pub name: String,
    /// What follows the name, as text, of each at most the first 1024 bytes. What is not UTF-8 is replaced.
    pub arguments: Vec<String>,
}

/// A running proxy, on a loopback port of its own and a thread of its own: it can be used by several runtimes and
/// processes at once. Dropping it closes all its connections.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    /// Taken when the proxy is dropped.
    commands: Option<UnboundedSender<Order>>,
    thread: Option<JoinHandle<()>>,
    port: u16,
}

/// What server and clients speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Postgres,
    Redis,
}

#[derive(Debug)]
enum Order {
    /// Whether to accept new connections, and whom to tell that it is so.
    Accept(bool, SyncSender<()>),
}

impl Proxy {
    /// Starts a proxy in front of the server that the address names, `postgres://…` or `redis://…`. TLS is refused: the
    /// proxy has to read along.
    ///
    /// # Panics
    ///
    /// If the address is none of a server reached through TCP, or no port is free.
    #[must_use]
    pub fn start(url: &str) -> Self {
        let (protocol, upstream) = upstream(url);
        let listener = std::iter::repeat_with(|| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port::free())))
            .take(20)
            .find_map(Result::ok)
            .expect("one of twenty ports that were free a moment ago still is");
        let port = listener.local_addr().expect("a bound listener has an address").port();
        listener.set_nonblocking(true).expect("a listener can be set to non-blocking");
        let shared = Arc::new(Shared::new(protocol, upstream));
        let (commands, received) = unbounded_channel();
        let thread = std::thread::Builder::new().name("proxy".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            // The connections' tasks, and with them the connections, end with the runtime.
            move || sql::runtime().block_on(serve(listener, port, &shared, received))
        });
        let thread = Some(thread.unwrap_or_else(|error| panic!("no thread can be started: {error}")));
        Self { shared, commands: Some(commands), thread, port }
    }

    /// The address of the same database, by the same user, through this proxy.
    #[must_use]
    pub fn url_through(&self, url: &str) -> String {
        let address = format!("127.0.0.1:{}", self.port);
        match self.shared.protocol {
            Protocol::Postgres => url::with_address(url, &address),
            Protocol::Redis => url::with_redis_address(url, &address),
        }
    }

    /// Arms a fault, instead of one that is armed already, and sets the count of strikes to 0. Requests are counted over
    /// all connections.
    pub fn arm(&self, fault: Fault) {
        self.shared.arm(Some(fault));
    }

    /// Lets everything pass again. The count of strikes stays.
    pub fn disarm(&self) {
        self.shared.arm(None);
    }

    /// How often the fault that was armed last has struck.
    #[must_use]
    pub fn strikes(&self) -> u64 {
        self.shared.state().strikes
    }

    /// How many whole requests have arrived from clients so far, cut ones included.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.shared.state().requests
    }

    /// How many clients have connected so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.state().connections
    }

    /// The requests to PostgreSQL that have arrived since this was called last, the oldest first; the last 10 000 at most.
    pub fn take_requests(&self) -> Vec<Request> {
        self.shared.state().log.drain(..).collect()
    }

    /// The commands to Redis that have arrived since this was called last, the oldest first; the last 10 000 at most.
    pub fn take_commands(&self) -> Vec<RedisCommand> {
        self.shared.state().commands.drain(..).collect()
    }

    /// Forwards nothing any more, in neither direction, while connections stay open and new ones are accepted: a network
    /// that loses everything. [`Proxy::lift`] ends it.
    pub fn black_hole(&self) {
        self.shared.held.send_replace(true);
    }

    /// Ends a black hole. What was sent meanwhile arrives now, even from clients that have given up since, as it does
    /// when a network comes back; [`Proxy::cut_connections`] before this loses it instead.
    pub fn lift(&self) {
        self.shared.held.send_replace(false);
    }

    /// Accepts new connections and forwards nothing of them, ever, while those that are there go on.
    pub fn ignore_new_connections(&self) {
        self.shared.state().ignores_new = true;
    }

    /// Leads new connections to another server of the same kind, as a name does that has changed; those that are there
    /// go on.
    ///
    /// # Panics
    ///
    /// If the address is none of such a server reached through TCP.
    pub fn lead_to(&self, url: &str) {
        let (protocol, upstream) = upstream(url);
        assert_eq!(protocol, self.shared.protocol, "that is a server of another kind");
        self.shared.state().upstream = upstream;
    }

    /// Closes the connections of all clients at once, whatever they are doing.
    pub fn cut_connections(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Refuses new connections (nobody listens any more); those that exist go on.
    ///
    /// # Panics
    ///
    /// If the proxy's thread has ended.
    pub fn refuse_connections(&self) {
        self.tell(false);
    }

    /// Accepts new connections again, on the same port.
    ///
    /// # Panics
    ///
    /// If the port stays taken by another process.
    pub fn accept_connections(&self) {
        self.tell(true);
    }

    /// Delays every reply by this long from now on; zero ends it. Replies of PostgreSQL to a login are not delayed;
    /// everything that Redis sends is.
    pub fn delay_replies(&self, by: Duration) {
        self.shared.state().delay = by;
    }

    fn tell(&self, accept: bool) {
        let (done, answer) = sync_channel(1);
        let commands = self.commands.as_ref().expect("the proxy is not dropped");
        let told = commands.send(Order::Accept(accept, done)).is_ok() && answer.recv().is_ok();
        assert!(told, "the proxy's thread has ended");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(
    listener: std::net::TcpListener,
    port: u16,
    shared: &Arc<Shared>,
    mut commands: UnboundedReceiver<Order>,
) {
    let mut listener = Some(TcpListener::from_std(listener).expect("the listener is valid"));
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                None => return,
                Some(Order::Accept(accept, done)) => {
                    if !accept {
                        listener = None;
                    } else if listener.is_none() {
                        listener = Some(listen_again(port).await);
                    }
                    let _ = done.send(());
                }
            },
            client = accept(listener.as_ref()) => {
                shared.state().connections += 1;
                tokio::spawn(serve_client(client, Arc::clone(shared)));
            }
        }
    }
}

/// Serves a client until either side hangs up or a fault cuts the connection. Both sides are closed then.
async fn serve_client(client: TcpStream, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    let is_ignored = shared.state().ignores_new;
    let relay = async {
        if is_ignored {
            std::future::pending::<()>().await;
        }
        // Errors are those of connections that end, which is all that follows from them.
        let _ = match shared.protocol {
            Protocol::Postgres => postgres::relay(client, &shared).await,
            Protocol::Redis => redis::relay(client, &shared).await,
        };
    };
    tokio::select! {
        () = relay => {}
        _ = cuts.changed() => {}
    }
}

async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    loop {
        match listener {
            None => std::future::pending().await,
            // Errors are of the one connection, such as a client that has hung up already.
            Some(listener) => {
                if let Ok((client, _)) = listener.accept().await {
                    return client;
                }
            }
        }
    }
}

async fn listen_again(port: u16) -> TcpListener {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            Ok(listener) => return listener,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(error) => panic!("port {port} can't be listened on again: {error}"),
        }
    }
}

fn upstream(url: &str) -> (Protocol, (String, u16)) {
    if url.starts_with("redis") {
        let address = RedisAddress::parse(url);
        return (Protocol::Redis, (address.host, address.port));
    }
    let config: tokio_postgres::Config =
        url.parse().unwrap_or_else(|error| panic!("that is no address of a PostgreSQL server: {error}"));
    match config.get_hosts().first() {
        Some(Host::Tcp(host)) => {
            (Protocol::Postgres, (host.clone(), config.get_ports().first().copied().unwrap_or(5432)))
        }
        _ => panic!("the proxy needs a server that is reached through TCP"),
    }
}
