//! The framing of PostgreSQL's protocol.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// What a client may say first, before messages have types.
pub(super) enum Opening {
    /// It asks for encryption, and will say something else when it is refused.
    Encryption,
    /// It wants another connection's statement cancelled, and no answer.
    Cancel(Vec<u8>),
    /// It logs in.
    Startup(Vec<u8>),
}

/// Reads a client's first message; nothing if it hangs up.
pub(super) async fn opening<R: AsyncRead + Unpin>(reader: &mut R) -> io::Result<Option<Opening>> {
    let mut packet = Vec::new();
    if !body(reader, &mut packet).await? {
        return Ok(None);
    }
    let code = packet.get(4..8).and_then(|code| code.try_into().ok()).map(i32::from_be_bytes);
    Ok(Some(match code {
        Some(80_877_103 | 80_877_104) => Opening::Encryption,
        Some(80_877_102) => Opening::Cancel(packet),
        _ => Opening::Startup(packet),
    }))
}

/// Reads a message, its type first; nothing if the other side hangs up.
pub(super) async fn message<R: AsyncRead + Unpin>(reader: &mut R) -> io::Result<Option<Vec<u8>>> {
    let mut message = vec![0];
    if reader.read(&mut message[..1]).await? == 0 {
        return Ok(None);
    }
    Ok(body(reader, &mut message).await?.then_some(message))
}

/// Appends a length and as many bytes as it says; false if the other side hangs up instead.
async fn body<R: AsyncRead + Unpin>(reader: &mut R, packet: &mut Vec<u8>) -> io::Result<bool> {
    let mut length = [0; 4];
    match reader.read_exact(&mut length).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        read => read?,
    };
    packet.extend_from_slice(&length);
    // The length counts itself.
    let rest = u32::from_be_bytes(length).checked_sub(4).ok_or(io::ErrorKind::InvalidData)?;
    let read = reader.take(rest.into()).read_to_end(packet).await?;
    Ok(read as u64 == u64::from(rest))
}

/// The strings, each ended by a zero, that a message begins with.
pub(super) fn strings(message: &[u8]) -> impl Iterator<Item = String> {
    message[5..].split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned())
}
