//! A client that costs as little as it can, since it shares the machine with the server.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::Failure;

/// One connection of HTTP/1.1, for one request at a time.
pub(crate) struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(to: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::with_capacity(1024) })
    }

    /// Sends a request and reads its answer, which must be a 201 without a body.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<(), Failure> {
        self.stream.write_all(request).await?;
        self.read.clear();
        while !self.read.ends_with(b"\r\n\r\n") {
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err("the server closed the connection".into());
            }
        }
        if self.read.starts_with(b"HTTP/1.1 201 ") {
            return Ok(());
        }
        Err(format!("the server answered {:?}", String::from_utf8_lossy(&self.read)).into())
    }
}

#[cfg(test)]
impl Connection {
    /// The last answer.
    pub(crate) fn last(&self) -> String {
        String::from_utf8_lossy(&self.read).into_owned()
    }
}
