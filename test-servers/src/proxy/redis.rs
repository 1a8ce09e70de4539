//! A client's connection to a Redis server.

mod conversation;
mod wire;

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use self::conversation::{Conversation, Due};
use super::state::Shared;
use super::{Cut, RedisCommand};

/// How much is remembered of each argument of a command.
const SHOWN: usize = 1024;
/// How long a client whose connection was cut may take to notice.
const FAREWELL: Duration = Duration::from_secs(1);
/// Commands that drivers send on their own, to set up, keep and end a connection and to find servers.
const HOUSEKEEPING: [&str; 11] =
    ["HELLO", "AUTH", "SELECT", "CLIENT", "INFO", "PING", "CLUSTER", "ROLE", "READONLY", "QUIT", "RESET"];

/// Passes on what both sides say, until either hangs up or a fault strikes.
pub(super) async fn relay(client: TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    shared.passable().await;
    let server = TcpStream::connect(shared.upstream()).await?;
    server.set_nodelay(true)?;
    let (client_reads, mut client_writes) = client.into_split();
    let mut client_reads = BufReader::new(client_reads);
    let (server_reads, mut server_writes) = server.into_split();
    let conversation = Conversation::default();
    let (pieces, received) = unbounded_channel();

    let commands = async {
        forward_commands(&mut client_reads, &mut server_writes, &conversation, shared).await?;
        // The client has said its last word. The server learns that, and what it still answers is passed on.
        server_writes.shutdown().await?;
        std::future::pending::<io::Result<()>>().await
    };
    let replies = async {
        read_replies(BufReader::new(server_reads), pieces, &conversation, shared).await?;
        // What has been read is still being passed on.
        std::future::pending::<io::Result<()>>().await
    };
    let ended = tokio::select! {
        ended = commands => ended,
        ended = replies => ended,
        ended = pass_on(received, &mut client_writes, &conversation, shared) => ended,
    };
    // The server's side is closed. Closing the client's while it still sends would take replies back that are on their way
    // to it.
    drop(server_writes);
    let _ = client_writes.shutdown().await;
    let _ = tokio::time::timeout(FAREWELL, tokio::io::copy(&mut client_reads, &mut tokio::io::sink())).await;
    ended
}

/// Passes a client's commands on until it hangs up. The error says that the connection is to be closed.
async fn forward_commands<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    client: &mut BufReader<R>,
    server: &mut W,
    conversation: &Conversation,
    shared: &Shared,
) -> io::Result<()> {
    while let Some(frame) = wire::frame(client).await? {
        let words = wire::words(&frame);
        let command = seen(&words);
        let housekeeping = command.name.is_empty() || HOUSEKEEPING.contains(&command.name.as_str());
        if !housekeeping {
            shared.command_arrived(&command);
        }
        shared.passable().await;
        let cut = shared.judge(|name| match name {
            Some(name) => name.eq_ignore_ascii_case(&command.name),
            None => !housekeeping,
        });
        if matches!(cut, Some(Cut::BeforeRequest | Cut::AfterRequest)) {
            // What was sent before it is answered, so that the cut strikes nothing else.
            conversation.all_answered().await;
        }
        if cut == Some(Cut::BeforeRequest) {
            return Err(shared.strike());
        }
        // Before the server can have answered. An empty line gets no answer.
        if let [_, arguments @ ..] = words.as_slice() {
            conversation.asked(&command.name, arguments, cut);
        }
        server.write_all(&frame).await?;
        match cut {
            None => {}
            Some(Cut::AfterRequest) => return Err(shared.strike()),
            // Its reply will end the connection. Nothing behind it may be executed.
            Some(_) => return std::future::pending().await,
        }
    }
    Ok(())
}

/// What goes to the client, and when.
struct Piece {
    at: Instant,
    bytes: Vec<u8>,
    /// Whether a command has its whole reply with this.
    answers: bool,
    /// Whether the connection is to be cut then.
    strikes: bool,
}

/// Reads what the server sends until it hangs up. Reading goes on while replies are delayed, so that the delays of several
/// do not add up.
async fn read_replies<R: AsyncRead + Unpin>(
    mut server: BufReader<R>,
    pieces: UnboundedSender<Piece>,
    conversation: &Conversation,
    shared: &Shared,
) -> io::Result<()> {
    while let Some(mut bytes) = wire::frame(&mut server).await? {
        let at = Instant::now() + shared.state().delay;
        let due = conversation.answered(&bytes);
        let strikes = match due {
            Due::Reply { cut: Some(Cut::BeforeReply | Cut::AfterRequest), .. } => {
                bytes.clear();
                true
            }
            Due::Reply { cut: Some(Cut::WithinReply), .. } => {
                bytes.truncate(bytes.len() / 2);
                true
            }
            _ => false,
        };
        let answers = matches!(due, Due::Reply { whole: true, .. });
        if pieces.send(Piece { at, bytes, answers, strikes }).is_err() {
            break;
        }
    }
    Ok(())
}

/// Passes on to the client what has been read. The error says that the connection is to be closed.
async fn pass_on<W: AsyncWrite + Unpin>(
    mut pieces: UnboundedReceiver<Piece>,
    client: &mut W,
    conversation: &Conversation,
    shared: &Shared,
) -> io::Result<()> {
    while let Some(piece) = pieces.recv().await {
        tokio::time::sleep_until(piece.at).await;
        shared.passable().await;
        client.write_all(&piece.bytes).await?;
        if piece.strikes {
            return Err(shared.strike());
        }
        if piece.answers {
            conversation.passed_on();
        }
    }
    client.shutdown().await
}

fn seen(words: &[&[u8]]) -> RedisCommand {
    let text = |word: &&[u8]| String::from_utf8_lossy(&word[..word.len().min(SHOWN)]).into_owned();
    let mut words = words.iter();
    let name = words.next().map(text).unwrap_or_default().to_ascii_uppercase();
    RedisCommand { name, arguments: words.map(text).collect() }
}
