//! Reading and writing the bytes of stored values: big-endian integers, and byte strings behind their length.

use bytes::Bytes;

/// Why stored bytes could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// They were written by a newer version of idem. They are never guessed at: finish the upgrade, or go back to the
    /// newer version.
    #[error("{what} has format {found}, and this version of idem reads up to {known}; use the version that wrote it")]
    Newer {
        /// What was being read.
        what: &'static str,
        /// The format that the bytes name.
        found: u8,
        /// The newest format that this code reads.
        known: u8,
    },
    /// They are not what idem writes.
    #[error("{what} is damaged: {problem}")]
    Corrupt {
        /// What was being read.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

/// Appends to stored bytes.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// A count or length. What is stored is bounded far below 4 GiB; one that is not is written as a length that
    /// decoding refuses, rather than as a shorter one.
    pub(crate) fn len(&mut self, len: usize) {
        self.u32(u32::try_from(len).unwrap_or(u32::MAX));
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.len(bytes.len());
        self.raw(bytes);
    }
}

/// Takes stored bytes apart, front to back, without copying them.
#[derive(Debug)]
pub(crate) struct Reader {
    what: &'static str,
    rest: Bytes,
}

impl Reader {
    pub(crate) fn new(what: &'static str, bytes: Bytes) -> Self {
        Self { what, rest: bytes }
    }

    pub(crate) fn corrupt(&self, problem: impl Into<String>) -> DecodeError {
        DecodeError::Corrupt { what: self.what, problem: problem.into() }
    }

    /// Reads the leading format number, which must be 1 to `known`.
    pub(crate) fn format(&mut self, known: u8) -> Result<u8, DecodeError> {
        match self.u8()? {
            0 => Err(self.corrupt("format 0 was never written")),
            found if found > known => Err(DecodeError::Newer { what: self.what, found, known }),
            found => Ok(found),
        }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        if len > self.rest.len() {
            return Err(self.corrupt(format!("it ends {} bytes early", len - self.rest.len())));
        }
        Ok(self.rest.split_to(len))
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let taken = self.take(N)?;
        let mut array = [0; N];
        array.copy_from_slice(&taken);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    pub(crate) fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.corrupt(format!("{other} is neither yes nor no"))),
        }
    }

    pub(crate) fn len(&mut self) -> Result<usize, DecodeError> {
        Ok(self.u32()? as usize)
    }

    pub(crate) fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let len = self.len()?;
        self.take(len)
    }

    pub(crate) fn string(&mut self) -> Result<String, DecodeError> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes.into()).map_err(|_| self.corrupt("a text is not UTF-8"))
    }

    /// Nothing may be left.
    pub(crate) fn end(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(self.corrupt(format!("{left} bytes follow its end"))),
        }
    }
}
