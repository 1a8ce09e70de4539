//! A client's connection to a PostgreSQL server.

mod wire;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use self::wire::Opening;
use super::state::Shared;
use super::{Cut, Request};

/// Replies are passed on in pieces of about this size, unless a fault needs the whole.
const PIECE: usize = 64 * 1024;

/// What is to become of a reply that the server owes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    /// The answers to a login, between which the client may have to speak.
    Login,
    Pass,
    Cut(Cut),
}

/// Replies that the server owes, in the order of the requests, and whether a Sync asked for them.
type Owed = Mutex<VecDeque<(Reply, bool)>>;

/// Passes on what both sides say, until either hangs up or a fault strikes.
pub(super) async fn relay(client: TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (client_reads, mut client_writes) = client.into_split();
    let mut client_reads = BufReader::new(client_reads);
    let (opening, login) = loop {
        let Some(opening) = wire::opening(&mut client_reads).await? else { return Ok(()) };
        shared.passable().await;
        match opening {
            Opening::Encryption => client_writes.write_all(b"N").await?,
            Opening::Cancel(packet) => break (packet, false),
            Opening::Startup(packet) => break (packet, true),
        }
    };
    let server = TcpStream::connect(shared.upstream()).await?;
    server.set_nodelay(true)?;
    let (server_reads, mut server_writes) = server.into_split();
    server_writes.write_all(&opening).await?;

    let owed = Mutex::new(VecDeque::from_iter(login.then_some((Reply::Login, false))));
    let requests = async {
        forward_requests(&mut client_reads, &mut server_writes, &owed, shared).await?;
        // The client has said its last word. The server learns that, and what it still answers is passed on.
        server_writes.shutdown().await?;
        std::future::pending::<io::Result<()>>().await
    };
    let replies = forward_replies(BufReader::new(server_reads), &mut client_writes, &owed, shared);
    tokio::select! {
        ended = requests => ended,
        ended = replies => ended,
    }
}

/// Passes a client's requests on until it hangs up. The error says that the connection is to be closed.
async fn forward_requests<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    client: &mut R,
    server: &mut W,
    owed: &Owed,
    shared: &Shared,
) -> io::Result<()> {
    let mut statements = Statements::default();
    let mut pending = Vec::new();
    while let Some(message) = wire::message(client).await? {
        statements.note(&message);
        pending.extend_from_slice(&message);
        match message[0] {
            // Sync, a simple query, a function call: the ends of requests.
            b'S' | b'Q' | b'F' => {
                let request = std::mem::take(&mut statements.request);
                shared.request_arrived(&request);
                shared.passable().await;
                let cut =
                    shared.judge(|text| text.is_none_or(|text| request.runs.iter().any(|sql| sql.contains(text))));
                if cut == Some(Cut::BeforeRequest) {
                    return Err(shared.strike());
                }
                // Before the server can have answered.
                push(owed, (cut.map_or(Reply::Pass, Reply::Cut), message[0] == b'S'));
                server.write_all(&std::mem::take(&mut pending)).await?;
                if cut == Some(Cut::AfterRequest) {
                    return Err(shared.strike());
                }
            }
            // Flush, data of a COPY and its end, a password, goodbye: the server acts on these at once.
            b'H' | b'd' | b'c' | b'f' | b'p' | b'X' => {
                shared.passable().await;
                server.write_all(&std::mem::take(&mut pending)).await?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Passes a server's replies on until it hangs up. The error says that the connection is to be closed.
async fn forward_replies<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    mut server: BufReader<R>,
    client: &mut W,
    owed: &Owed,
    shared: &Shared,
) -> io::Result<()> {
    let mut reply = Vec::new();
    let mut of_copy = None;
    while let Some(message) = wire::message(&mut server).await? {
        reply.extend_from_slice(&message);
        let next = of_copy.or_else(|| first(owed).map(|(reply, _)| reply));
        let delay = match next {
            Some(Reply::Login) | None => Duration::ZERO,
            Some(_) => shared.state().delay,
        };
        match message[0] {
            // Ready for the next request: the reply is whole.
            b'Z' => {
                let due = pop(owed).map(|(reply, _)| reply);
                let cut_of_copy = of_copy.take().filter(|reply| matches!(reply, Reply::Cut(_)));
                match cut_of_copy.or(due) {
                    Some(Reply::Cut(Cut::BeforeReply | Cut::AfterRequest)) => return Err(shared.strike()),
                    Some(Reply::Cut(Cut::WithinReply)) => {
                        shared.passable().await;
                        client.write_all(&reply[..reply.len() / 2]).await?;
                        return Err(shared.strike());
                    }
                    _ => {
                        if !delay.is_zero() {
                            tokio::time::sleep(delay).await;
                        }
                        shared.passable().await;
                        client.write_all(&std::mem::take(&mut reply)).await?;
                    }
                }
            }
            // The server wants the data of a COPY, and won't answer the Sync that follows a COPY of the extended
            // protocol: the one after the data stands for both.
            b'G' | b'W' => {
                shared.passable().await;
                client.write_all(&std::mem::take(&mut reply)).await?;
                if let Some((reply, true)) = first(owed) {
                    pop(owed);
                    of_copy = Some(reply);
                }
            }
            _ => {
                let held = !delay.is_zero() || matches!(next, Some(Reply::Cut(_)));
                if !held && (server.buffer().is_empty() || reply.len() > PIECE) {
                    shared.passable().await;
                    client.write_all(&std::mem::take(&mut reply)).await?;
                }
            }
        }
    }
    shared.passable().await;
    client.write_all(&reply).await?;
    client.shutdown().await
}

/// The statements that a client has prepared and bound, and the request that is on its way.
#[derive(Debug, Default)]
struct Statements {
    prepared: HashMap<String, String>,
    bound: HashMap<String, String>,
    request: Request,
}

impl Statements {
    fn note(&mut self, message: &[u8]) {
        let mut strings = wire::strings(message);
        let mut next = || strings.next().unwrap_or_default();
        match message[0] {
            b'Q' => self.request.runs.push(next()),
            b'P' => {
                let (name, sql) = (next(), next());
                self.request.prepares.push(sql.clone());
                self.prepared.insert(name, sql);
            }
            b'B' => {
                let (portal, statement) = (next(), next());
                self.bound.insert(portal, self.prepared.get(&statement).cloned().unwrap_or_default());
            }
            b'E' => self.request.runs.push(self.bound.get(&next()).cloned().unwrap_or_default()),
            _ => {}
        }
    }
}

fn push(owed: &Owed, reply: (Reply, bool)) {
    owed.lock().unwrap_or_else(PoisonError::into_inner).push_back(reply);
}

fn first(owed: &Owed) -> Option<(Reply, bool)> {
    owed.lock().unwrap_or_else(PoisonError::into_inner).front().copied()
}

fn pop(owed: &Owed) -> Option<(Reply, bool)> {
    owed.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}
