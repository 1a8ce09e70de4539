//! The framing of Redis's protocol, versions 2 and 3.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// Reads one whole command, reply or push; nothing if the other side hangs up.
pub(super) async fn frame<R: AsyncBufRead + Unpin>(reader: &mut R) -> io::Result<Option<Vec<u8>>> {
    let mut frame = Vec::new();
    let mut values: u64 = 1;
    while values > 0 {
        values -= 1;
        let start = frame.len();
        reader.read_until(b'\n', &mut frame).await?;
        let line = &frame[start..];
        if !line.ends_with(b"\n") {
            return Ok(None);
        }
        match line[0] {
            // A text: its bytes and a line break follow, unless it is absent.
            b'$' | b'=' | b'!' => {
                if let Some(length) = count(line)? {
                    let read = (&mut *reader).take(length + 2).read_to_end(&mut frame).await?;
                    if read as u64 != length + 2 {
                        return Ok(None);
                    }
                }
            }
            b'*' | b'~' | b'>' => values += count(line)?.unwrap_or(0),
            b'%' => values += 2 * count(line)?.unwrap_or(0),
            // Attributes, and then what they are attached to.
            b'|' => values += 2 * count(line)?.unwrap_or(0) + 1,
            _ => {}
        }
    }
    Ok(Some(frame))
}

/// The number on a line, or nothing if it is -1.
fn count(line: &[u8]) -> io::Result<Option<u64>> {
    let number = std::str::from_utf8(&line[1..]).ok().and_then(|text| text.trim_end().parse::<i64>().ok());
    // Far more than a server takes, and too little to overflow.
    match number {
        Some(number) if number < 1 << 32 => Ok(u64::try_from(number).ok()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The words of a command.
pub(super) fn words(command: &[u8]) -> Vec<&[u8]> {
    if command.starts_with(b"*") {
        strings(command).collect()
    } else {
        // Typed by hand, as through telnet.
        command.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect()
    }
}

/// What the server sends of its own accord or says once for each channel of a subscription, such as `message`; nothing
/// if the frame is something else, such as a list that begins with a number.
pub(super) fn first_word(frame: &[u8]) -> Option<&[u8]> {
    strings(frame).next()
}

/// The texts that a list begins with.
fn strings(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = list.iter().position(|byte| *byte == b'\n').map_or(&[][..], |end| &list[end + 1..]);
    std::iter::from_fn(move || {
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        if rest[0] != b'$' {
            return None;
        }
        let length = usize::try_from(count(&rest[..end]).ok()??).ok()?;
        let text = rest.get(end + 1..end + 1 + length)?;
        rest = rest.get(end + 1 + length + 2..)?;
        Some(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn frames(mut bytes: &[u8]) -> Vec<String> {
        let mut frames = Vec::new();
        while let Some(frame) = frame(&mut bytes).await.unwrap() {
            frames.push(String::from_utf8(frame).unwrap());
        }
        frames
    }

    #[tokio::test]
    async fn frames_of_both_versions_end_where_the_next_begins() {
        let expected = [
            "+OK\r\n",
            "-ERR no\r\n",
            ":12\r\n",
            "$-1\r\n",
            "$0\r\n\r\n",
            "$4\r\n\r\n$1\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            "_\r\n",
            "#t\r\n",
            ",1.5\r\n",
            "(123\r\n",
            "=7\r\ntxt:abc\r\n",
            "!3\r\nERR\r\n",
            "~2\r\n:1\r\n:2\r\n",
            "%1\r\n+key\r\n*1\r\n:1\r\n",
            ">2\r\n+message\r\n+x\r\n",
            "|1\r\n+ttl\r\n:1\r\n*1\r\n:1\r\n",
            "PING\r\n",
        ];
        assert_eq!(frames(expected.concat().as_bytes()).await, expected);
    }

    #[tokio::test]
    async fn half_a_frame_is_none() {
        let whole = "*2\r\n$1\r\na\r\n$2\r\nbc\r\n";
        for end in 0..whole.len() {
            assert_eq!(frames(&whole.as_bytes()[..end]).await, [""; 0], "{end}");
        }
    }

    #[tokio::test]
    async fn what_is_no_length_ends_the_connection() {
        for broken in ["$x\r\n", "*99999999999\r\n", "$\r\n"] {
            assert!(frame(&mut broken.as_bytes()).await.is_err(), "{broken}");
        }
    }

    #[test]
    fn words_are_those_of_the_command() {
        let words = |text: &'static str| words(text.as_bytes());
        assert_eq!(words("*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n"), [b"GET".as_slice(), b"a\r\nb"]);
        assert_eq!(words(" get  a\r\n"), [b"get".as_slice(), b"a"]);
        assert_eq!(words("*0\r\n"), [b""; 0]);
        assert_eq!(first_word(b">2\r\n$7\r\nmessage\r\n:1\r\n"), Some(b"message".as_slice()));
        assert_eq!(first_word(b"*1\r\n:1\r\n"), None);
        assert_eq!(first_word(b"+OK\r\n"), None);
    }
}
