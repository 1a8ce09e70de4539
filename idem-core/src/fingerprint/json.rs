//! Canonical JSON: one spelling for all documents that mean the same.
//!
//! The rules stand in the documentation of the parent module. The parser is strict RFC 8259 and writes the canonical
//! form while it reads: there is no tree, so a hostile document costs a few times its own size in memory, and numbers
//! never pass through a float. `serde_json` takes no part, because features that other crates switch on change how it
//! reads numbers and objects.

use thiserror::Error;

/// How deep arrays and objects may be nested: `[[1]]` has depth 2.
const MAX_DEPTH: usize = 128;

/// A document has no canonical form: it is no JSON, or JSON that two readers could understand in two ways.
///
/// A fingerprint then hashes the raw bytes; nothing is guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the document has no canonical JSON form: {reason} at byte {offset}")]
pub struct NotCanonical {
    reason: &'static str,
    offset: usize,
}

impl NotCanonical {
    /// What is wrong, in a few fixed words: nothing of the document is repeated.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    /// Where it is wrong: a byte offset into the document, from 0 to its length.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

/// Writes `document` in canonical form, itself a JSON document: documents that mean the same become the same bytes, and
/// only those.
///
/// The rules stand in the documentation of the module [`fingerprint`](crate::fingerprint). It takes time linear in the
/// length of the document, but for the sorting of members, and memory of a few times that length.
///
/// # Errors
///
/// [`NotCanonical`] if the document is not strict JSON (RFC 8259, UTF-8, no byte order mark), is nested deeper than
/// 128, repeats a member name within an object, holds a lone surrogate, or holds a number whose decimal exponent does
/// not fit an `i64`.
pub fn canonical_json(document: &[u8]) -> Result<Vec<u8>, NotCanonical> {
    let text = std::str::from_utf8(document)
        .map_err(|error| NotCanonical { reason: "invalid UTF-8", offset: error.valid_up_to() })?;
    let mut canonicaliser = Canonicaliser { source: text.as_bytes(), at: 0, out: Vec::with_capacity(document.len()) };
    canonicaliser.spaces();
    canonicaliser.value(0)?;
    canonicaliser.spaces();
    if canonicaliser.peek().is_some() {
        return Err(canonicaliser.refuse("data after the end"));
    }
    Ok(canonicaliser.out)
}

/// Writes `string` as canonical JSON does, with its quotes.
pub(super) fn canonical_string(string: &str) -> Vec<u8> {
    let mut out = vec![b'"'];
    for character in string.chars() {
        push_character(&mut out, character);
    }
    out.push(b'"');
    out
}

/// Splits an array or object **in canonical form** into its elements (`1`) or members (`"name":1`).
pub(super) fn items(container: &[u8]) -> impl Iterator<Item = &[u8]> {
    let inside = match container {
        [_, inside @ .., _] => inside,
        _ => &[],
    };
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    inside
        .split(move |&byte| {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => quoted = !quoted,
                _ if quoted => {}
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth -= 1,
                b',' => return depth == 0,
                _ => {}
            }
            false
        })
        .filter(|item| !item.is_empty())
}

/// Reads `source` from `at` on, and appends what it read to `out` in canonical form.
struct Canonicaliser<'a> {
    source: &'a [u8],
    at: usize,
    out: Vec<u8>,
}

/// Where a member of an object was written in the output, and where its name began in the source.
struct Member {
    start: usize,
    name_end: usize,
    end: usize,
    offset: usize,
}

impl<'a> Canonicaliser<'a> {
    fn value(&mut self, depth: usize) -> Result<(), NotCanonical> {
        match self.peek() {
            Some(b'{' | b'[') if depth == MAX_DEPTH => Err(self.refuse("nested too deep")),
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'"') => self.string(),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal(b"true"),
            Some(b'f') => self.literal(b"false"),
            Some(b'n') => self.literal(b"null"),
            _ => Err(self.refuse("no value")),
        }
    }

    fn literal(&mut self, literal: &[u8]) -> Result<(), NotCanonical> {
        if !self.source[self.at..].starts_with(literal) {
            return Err(self.refuse("no value"));
        }
        self.at += literal.len();
        self.out.extend_from_slice(literal);
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<(), NotCanonical> {
        self.copy(b'[', "no array")?;
        self.spaces();
        if self.copied(b']') {
            return Ok(());
        }
        loop {
            self.value(depth)?;
            self.spaces();
            if !self.copied(b',') {
                return self.copy(b']', "no comma or end of the array");
            }
            self.spaces();
        }
    }

    fn object(&mut self, depth: usize) -> Result<(), NotCanonical> {
        self.copy(b'{', "no object")?;
        self.spaces();
        if self.copied(b'}') {
            return Ok(());
        }
        let mut members = Vec::new();
        loop {
            members.push(self.member(depth)?);
            if !self.copied(b',') {
                break;
            }
            self.spaces();
        }
        self.sort(members)?;
        self.copy(b'}', "no comma or end of the object")
    }

    fn member(&mut self, depth: usize) -> Result<Member, NotCanonical> {
        let (offset, start) = (self.at, self.out.len());
        self.string()?;
        let name_end = self.out.len();
        self.spaces();
        self.copy(b':', "no colon after a member name")?;
        self.spaces();
        self.value(depth)?;
        self.spaces();
        Ok(Member { start, name_end, end: self.out.len(), offset })
    }

    /// Brings the members of the object that ends the output into the order of their names, and refuses two of one
    /// name.
    fn sort(&mut self, mut members: Vec<Member>) -> Result<(), NotCanonical> {
        let name = |member: &Member| &self.out[member.start + 1..member.name_end - 1];
        if members.is_sorted_by(|left, right| name(left) < name(right)) {
            return Ok(());
        }
        let first = members.first().map_or(self.out.len(), |member| member.start);
        members.sort_unstable_by(|left, right| name(left).cmp(name(right)));
        for pair in members.windows(2) {
            if name(&pair[0]) == name(&pair[1]) {
                return Err(NotCanonical {
                    reason: "a member name that the object has already",
                    offset: pair[0].offset.max(pair[1].offset),
                });
            }
        }
        let unsorted = self.out.split_off(first);
        for (index, member) in members.iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            self.out.extend_from_slice(&unsorted[member.start - first..member.end - first]);
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), NotCanonical> {
        self.copy(b'"', "no string")?;
        loop {
            let run = self.at;
            while let Some(0x20..) = self.peek()
                && !matches!(self.peek(), Some(b'"' | b'\\'))
            {
                self.at += 1;
            }
            self.out.extend_from_slice(&self.source[run..self.at]);
            match self.peek() {
                Some(b'"') => return self.copy(b'"', "no string"),
                Some(b'\\') => {
                    let character = self.escape()?;
                    push_character(&mut self.out, character);
                }
                Some(_) => return Err(self.refuse("a control character in a string")),
                None => return Err(self.refuse("an unfinished string")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, NotCanonical> {
        let start = self.at;
        let refused = |reason| NotCanonical { reason, offset: start };
        self.at += 2;
        Ok(match self.source.get(start + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let mut code = self.hex().ok_or(refused("an unknown escape"))?;
                if (0xd800..0xdc00).contains(&code) && self.source[self.at..].starts_with(b"\\u") {
                    self.at += 2;
                    let low = self.hex().ok_or(refused("an unknown escape"))?;
                    if (0xdc00..0xe000).contains(&low) {
                        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                    }
                }
                // Whatever is still a surrogate is alone: those are the only codes that are no characters.
                char::from_u32(code).ok_or(refused("a lone surrogate"))?
            }
            _ => return Err(refused("an unknown escape")),
        })
    }

    /// The value of four hexadecimal digits.
    fn hex(&mut self) -> Option<u32> {
        let digits = self.source.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |code, &digit| Some(code * 16 + char::from(digit).to_digit(16)?))
    }

    /// A number is sign, coefficient and power of ten; the coefficient has no zeros at either end, and the exponent is
    /// left out where it is 0.
    fn number(&mut self) -> Result<(), NotCanonical> {
        let (offset, start) = (self.at, self.out.len());
        self.copied(b'-');
        let coefficient = self.out.len();
        match self.digits()? {
            [b'0', _, ..] => {
                return Err(NotCanonical { reason: "a number with a leading zero", offset });
            }
            whole => self.out.extend_from_slice(whole),
        }
        // An i128 has room for every exponent that the digits of a document could bring back into an i64; beyond that
        // it may saturate.
        let mut exponent = 0_i128;
        if self.skip(b'.') {
            let fraction = self.digits()?;
            self.out.extend_from_slice(fraction);
            exponent -= fraction.len() as i128;
        }
        if self.skip(b'e') || self.skip(b'E') {
            let negative = self.skip(b'-');
            if !negative {
                self.skip(b'+');
            }
            let written = self
                .digits()?
                .iter()
                .fold(0_i128, |sum, &digit| sum.saturating_mul(10).saturating_add(i128::from(digit - b'0')));
            exponent = exponent.saturating_add(if negative { -written } else { written });
        }

        let digits = &self.out[coefficient..];
        let leading = digits.iter().take_while(|&&digit| digit == b'0').count();
        if leading == digits.len() {
            // Zero has no sign, and no exponent can make it anything else, however long.
            self.out.truncate(start);
            self.out.push(b'0');
            return Ok(());
        }
        let trailing = digits.iter().rev().take_while(|&&digit| digit == b'0').count();
        self.out.truncate(self.out.len() - trailing);
        self.out.drain(coefficient..coefficient + leading);
        match i64::try_from(exponent.saturating_add(trailing as i128)) {
            Ok(0) => Ok(()),
            Ok(exponent) => {
                self.out.extend_from_slice(format!("e{exponent}").as_bytes());
                Ok(())
            }
            Err(_) => Err(NotCanonical { reason: "a number whose exponent does not fit 64 bits", offset }),
        }
    }

    /// One digit or more.
    fn digits(&mut self) -> Result<&'a [u8], NotCanonical> {
        let rest = &self.source[self.at..];
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            return Err(self.refuse("no digit"));
        }
        self.at += count;
        Ok(&rest[..count])
    }

    fn spaces(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn skip(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Copies a byte if it is next.
    fn copied(&mut self, byte: u8) -> bool {
        let found = self.skip(byte);
        if found {
            self.out.push(byte);
        }
        found
    }

    /// Copies a byte that must be next.
    fn copy(&mut self, byte: u8, otherwise: &'static str) -> Result<(), NotCanonical> {
        if self.copied(byte) { Ok(()) } else { Err(self.refuse(otherwise)) }
    }

    fn peek(&self) -> Option<u8> {
        self.source.get(self.at).copied()
    }

    fn refuse(&self, reason: &'static str) -> NotCanonical {
        NotCanonical { reason, offset: self.at }
    }
}

/// Appends a character of a string, escaped only where JSON demands it: as RFC 8785 writes it.
fn push_character(out: &mut Vec<u8>, character: char) {
    match character {
        '"' => out.extend_from_slice(b"\\\""),
        '\\' => out.extend_from_slice(b"\\\\"),
        '\u{8}' => out.extend_from_slice(b"\\b"),
        '\t' => out.extend_from_slice(b"\\t"),
        '\n' => out.extend_from_slice(b"\\n"),
        '\u{c}' => out.extend_from_slice(b"\\f"),
        '\r' => out.extend_from_slice(b"\\r"),
        '\0'..='\u{1f}' => {
            out.extend_from_slice(format!("\\u{:04x}", u32::from(character)).as_bytes());
        }
        _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}
