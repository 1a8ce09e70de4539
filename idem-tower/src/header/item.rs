//! As much of the Structured Fields parser (RFC 9651, section 4.2) as a String item with parameters needs.

/// What is left of a field value.
pub(super) struct Item<'a>(&'a [u8]);

/// Every method gives none where RFC 9651 says "fail parsing"; what is left is then of no use.
impl<'a> Item<'a> {
    pub(super) fn new(value: &'a [u8]) -> Self {
        Self(value)
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Section 4.2.5, unescaped.
    pub(super) fn string(&mut self) -> Option<String> {
        self.expect(b'"')?;
        let mut out = String::new();
        loop {
            match self.next()? {
                b'"' => return Some(out),
                b'\\' => match self.next()? {
                    escaped @ (b'"' | b'\\') => out.push(char::from(escaped)),
                    _ => return None,
                },
                plain @ b' '..=b'~' => out.push(char::from(plain)),
                _ => return None,
            }
        }
    }

    /// Section 4.2.3.2. They mean nothing here, but must be well-formed.
    pub(super) fn parameters(&mut self) -> Option<()> {
        while self.0.first() == Some(&b';') {
            self.next();
            self.skip(|byte| byte == b' ');
            self.parameter_name()?;
            if self.0.first() == Some(&b'=') {
                self.next();
                self.bare_item()?;
            }
        }
        Some(())
    }

    fn parameter_name(&mut self) -> Option<()> {
        match self.next()? {
            b'a'..=b'z' | b'*' => {}
            _ => return None,
        }
        self.skip(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte));
        Some(())
    }

    fn bare_item(&mut self) -> Option<()> {
        match self.0.first()? {
            b'-' | b'0'..=b'9' => self.number().map(drop),
            b'"' => self.string().map(drop),
            b'*' | b'A'..=b'Z' | b'a'..=b'z' => {
                self.skip(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte));
                Some(())
            }
            b':' => self.byte_sequence(),
            b'?' => {
                self.next();
                matches!(self.next()?, b'0' | b'1').then_some(())
            }
            b'@' => {
                self.next();
                self.number()?.then_some(())
            }
            b'%' => self.display_string(),
            _ => None,
        }
    }

    /// Section 4.2.4: whether it is an integer, which a date must be.
    fn number(&mut self) -> Option<bool> {
        if self.0.first() == Some(&b'-') {
            self.next();
        }
        let whole = self.skip(|byte| byte.is_ascii_digit());
        if whole == 0 {
            return None;
        }
        if self.0.first() != Some(&b'.') {
            return (whole <= 15).then_some(true);
        }
        self.next();
        let fraction = self.skip(|byte| byte.is_ascii_digit());
        (whole <= 12 && (1..=3).contains(&fraction)).then_some(false)
    }

    /// Section 4.2.7, except that missing padding is not noticed.
    fn byte_sequence(&mut self) -> Option<()> {
        self.expect(b':')?;
        self.skip(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
        self.expect(b':')
    }

    /// Section 4.2.10.
    fn display_string(&mut self) -> Option<()> {
        self.expect(b'%')?;
        self.expect(b'"')?;
        let mut text = Vec::new();
        loop {
            match self.next()? {
                b'"' => return std::str::from_utf8(&text).ok().map(drop),
                b'%' => text.push(self.hex_digit()? << 4 | self.hex_digit()?),
                plain @ b' '..=b'~' => text.push(plain),
                _ => return None,
            }
        }
    }

    fn hex_digit(&mut self) -> Option<u8> {
        match self.next()? {
            digit @ b'0'..=b'9' => Some(digit - b'0'),
            letter @ b'a'..=b'f' => Some(letter - b'a' + 10),
            _ => None,
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// Skips bytes of a class, and says how many.
    fn skip(&mut self, class: impl Fn(u8) -> bool) -> usize {
        let count = self.0.iter().position(|&byte| !class(byte)).unwrap_or(self.0.len());
        self.0 = &self.0[count..];
        count
    }
}
