//! A client for set-up and looking: one command, one answer, blocking.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::url::RedisAddress;

/// How long an answer may take. A server that is paused fails a test after this.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server answered.
#[derive(Clone, PartialEq, Eq)]
pub enum Reply {
    /// There is no such value.
    Nil,
    /// A number.
    Integer(i64),
    /// A value, or a status such as `OK`.
    Bytes(Vec<u8>),
    /// Several answers.
    List(Vec<Reply>),
    /// A refusal, its code first. On its own it is the error of the command; it can also be part of a list.
    Error(String),
}

impl Reply {
    /// A value as text, or a number in digits.
    ///
    /// # Panics
    ///
    /// If it is neither, or not UTF-8.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Integer(number) => number.to_string(),
            Self::Bytes(bytes) => {
                String::from_utf8(bytes.clone()).unwrap_or_else(|_| panic!("the server's answer is no text: {self:?}"))
            }
            _ => panic!("the server's answer is no value: {self:?}"),
        }
    }

    /// A number, also one that was sent as text.
    ///
    /// # Panics
    ///
    /// If it is none.
    #[must_use]
    pub fn integer(&self) -> i64 {
        self.text().parse().unwrap_or_else(|_| panic!("the server's answer is no number: {self:?}"))
    }

    /// A value.
    ///
    /// # Panics
    ///
    /// If it is none.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            _ => panic!("the server's answer is no value: {self:?}"),
        }
    }

    /// Several answers.
    ///
    /// # Panics
    ///
    /// If it is a single one.
    #[must_use]
    pub fn list(&self) -> &[Reply] {
        match self {
            Self::List(replies) => replies,
            _ => panic!("the server's answer is no list: {self:?}"),
        }
    }

    /// Whether there was no such value.
    #[must_use]
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Bytes(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::List(replies) => f.debug_list().entries(replies).finish(),
            Self::Error(what) => write!(f, "Error({what:?})"),
        }
    }
}

/// A connection of a test's own to a Redis server, without TLS. Blocks; may be used within an async runtime.
///
/// Its commands and answers belong together, which matters for `WAIT`, `SUBSCRIBE`, `MULTI` and `CLIENT`.
#[derive(Debug)]
pub struct RedisConnection {
    stream: BufReader<TcpStream>,
}

impl RedisConnection {
    /// Connects to `redis://[user:password@]host:port[/database]` and logs in there.
    ///
    /// # Panics
    ///
    /// If the address has another form, the server can't be reached or refuses the login.
    #[must_use]
    pub fn open(url: &str) -> Self {
        let address = RedisAddress::parse(url);
        Self::to(&address).unwrap_or_else(|error| panic!("{}:{}: {error}", address.host, address.port))
    }

    pub(crate) fn to(address: &RedisAddress) -> io::Result<Self> {
        let stream = TcpStream::connect((address.host.as_str(), address.port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut connection = Self { stream: BufReader::new(stream) };
        if let Some((user, password)) = &address.login {
            connection.ask(&["AUTH", user, password])?;
        }
        if address.database != 0 {
            connection.ask(&["SELECT", &address.database.to_string()])?;
        }
        Ok(connection)
    }

    /// Runs a command and gives its answer.
    ///
    /// # Panics
    ///
    /// If the server refuses it, or no answer comes within a minute.
    pub fn command<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Reply {
        self.try_command(words).unwrap_or_else(|error| panic!("{}: {error}", shown(words)))
    }

    /// Runs a command and gives its answer.
    ///
    /// # Errors
    ///
    /// What the server says when it refuses it, the code first; or what became of the connection.
    pub fn try_command<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Result<Reply, String> {
        self.ask(words).map_err(|error| error.to_string())
    }

    /// Sends a command without waiting for its answer, which [`RedisConnection::next_reply`] then gives.
    ///
    /// # Panics
    ///
    /// If the connection is closed.
    pub fn send<W: AsRef<[u8]>>(&mut self, words: &[W]) {
        self.write(words).unwrap_or_else(|error| panic!("{}: {error}", shown(words)));
    }

    /// What arrives next without being waited for: the answer to a command that was sent, a refusal included; the message
    /// of a subscription; the second and further answers of a `SUBSCRIBE` that names several channels.
    ///
    /// # Errors
    ///
    /// What became of the connection, or that nothing came within a minute.
    pub fn next_reply(&mut self) -> Result<Reply, String> {
        self.read().map_err(|error| error.to_string())
    }

    pub(crate) fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Reply> {
        self.write(words)?;
        match self.read()? {
            Reply::Error(what) => Err(io::Error::other(what)),
            reply => Ok(reply),
        }
    }

    fn write<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            let word = word.as_ref();
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)
    }

    fn read(&mut self) -> io::Result<Reply> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r\n").ok_or(io::ErrorKind::UnexpectedEof)?);
        let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
        let number = || rest.parse::<i64>().map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
        match kind {
            "+" => Ok(Reply::Bytes(rest.as_bytes().to_vec())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Integer(number()?)),
            "$" => {
                let Ok(length) = usize::try_from(number()?) else { return Ok(Reply::Nil) };
                let mut bytes = vec![0; length + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(Reply::Bytes(bytes))
            }
            "*" => {
                let Ok(length) = usize::try_from(number()?) else { return Ok(Reply::Nil) };
                (0..length).map(|_| self.read()).collect::<io::Result<_>>().map(Reply::List)
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, format!("the server answers {line:?}"))),
        }
    }
}

impl Drop for RedisConnection {
    fn drop(&mut self) {
        // A server that is asked next does not list it any more.
        let _ = self.stream.get_ref().shutdown(Shutdown::Both);
    }
}

/// Runs a command over a connection of its own. Blocks; may be called within an async runtime.
///
/// # Panics
///
/// As [`RedisConnection::open`] and [`RedisConnection::command`].
pub fn redis_command<W: AsRef<[u8]>>(url: &str, words: &[W]) -> Reply {
    RedisConnection::open(url).command(words)
}

fn shown<W: AsRef<[u8]>>(words: &[W]) -> String {
    let words: Vec<String> = words.iter().map(|word| word.as_ref().escape_ascii().to_string()).collect();
    words.join(" ")
}

/// A value of what `INFO` and `CLUSTER INFO` answer.
pub(crate) fn info_value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}
