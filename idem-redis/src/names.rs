//! The keys of the server's that records are under.

use idem_core::{InvalidName, Key, Scope};

use crate::OpenError;

/// The longest prefix.
const MAX_PREFIX: usize = 64;

/// What the names of a store begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    /// # Errors
    ///
    /// [`OpenError::Prefix`] if it is not 1 to 64 of `A-Z`, `a-z`, `0-9`, `_`, `-`, `.` and `:`.
    pub(crate) fn new(prefix: &str) -> Result<Self, OpenError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
        if prefix.is_empty() || prefix.len() > MAX_PREFIX || !prefix.bytes().all(is_plain) {
            return Err(OpenError::Prefix { prefix: prefix.chars().take(MAX_PREFIX).collect() });
        }
        Ok(Self { prefix: prefix.into() })
    }

    /// Where the record of scope and key is. No two pairs are written alike, and nothing in them says which node of a
    /// cluster it is on: a brace would.
    pub(crate) fn record(&self, scope: &Scope, key: &Key) -> String {
        let mut name = self.of_scope(scope, key.as_str().len());
        escape(key.as_str(), &mut name);
        name
    }

    /// With room for so many bytes more.
    fn of_scope(&self, scope: &Scope, more: usize) -> String {
        let mut name = String::with_capacity(self.prefix.len() + scope.as_str().len() + more + 4);
        name.push_str(&self.prefix);
        name.push_str(":r:");
        escape(scope.as_str(), &mut name);
        name.push(':');
        name
    }

    /// A pattern that all records match; or all of one scope.
    pub(crate) fn pattern(&self, scope: Option<&Scope>) -> String {
        let beginning = match scope {
            Some(scope) => self.of_scope(scope, 0),
            None => format!("{}:r:", self.prefix),
        };
        let mut pattern = String::new();
        for char in beginning.chars() {
            if "*?[]^\\".contains(char) {
                pattern.push('\\');
            }
            pattern.push(char);
        }
        pattern + "*"
    }

    /// The channel on which waits are woken.
    pub(crate) fn channel(&self) -> String {
        format!("{}:ended", self.prefix)
    }

    /// Where a check writes, to see whether it may; by its number it is on one or another node. No record is ever there.
    pub(crate) fn probe(&self, number: u32) -> String {
        format!("{}:probe-{number}", self.prefix)
    }

    /// Scope and key of a name that [`Names::record`] gave.
    pub(crate) fn parse(&self, name: &str) -> Option<(Scope, Key)> {
        let rest = name.strip_prefix(&self.prefix)?.strip_prefix(":r:")?;
        let (scope, key) = rest.split_once(':').filter(|(_, key)| !key.contains(':'))?; // of a longer prefix
        let read = |part: &str| -> Result<String, InvalidName> { Ok(unescape(part).unwrap_or_default()) };
        Some((Scope::from_stored(&read(scope).ok()?).ok()?, Key::new(&*read(key).ok()?).ok()?))
    }
}

/// Writes `text` with `%`, `:`, `{` and `}` as `%` and two digits.
fn escape(text: &str, out: &mut String) {
    // Most have nothing to escape, which is quicker seen without looking where.
    let is_plain = !text.bytes().fold(false, |any, byte| any | matches!(byte, b'%' | b':' | b'{' | b'}'));
    if is_plain {
        out.push_str(text);
        return;
    }
    for char in text.chars() {
        match char {
            '%' => out.push_str("%25"),
            ':' => out.push_str("%3A"),
            '{' => out.push_str("%7B"),
            '}' => out.push_str("%7D"),
            other => out.push(other),
        }
    }
}

fn unescape(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('%') {
        out.push_str(before);
        out.push(match behind.get(..2)? {
            "25" => '%',
            "3A" => ':',
            "7B" => '{',
            "7D" => '}',
            _ => return None,
        });
        rest = &behind[2..];
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names::new("idem").unwrap()
    }

    fn pairs() -> Vec<(Scope, Key)> {
        let parts = ["a", ":", "a:", ":a", "%", "%3A", "{", "}", "{a}", "é", "🦀", "*", "[a]", "a b"];
        let scopes = parts.iter().map(|part| Scope::new(*part).unwrap()).chain([Scope::global()]);
        let of = |scope: Scope| parts.iter().map(move |part| (scope.clone(), Key::new(*part).unwrap()));
        scopes.flat_map(of).collect()
    }

    #[test]
    fn a_name_leads_back_to_its_scope_and_key_and_no_two_are_alike() {
        let mut seen = std::collections::HashSet::new();
        for (scope, key) in pairs() {
            let name = names().record(&scope, &key);
            assert_eq!(names().parse(&name), Some((scope, key)), "{name}");
            assert!(seen.insert(name));
        }
    }

    #[test]
    fn no_name_steers_the_slot_of_a_cluster() {
        for (scope, key) in pairs() {
            let name = names().record(&scope, &key);
            assert!(!name.contains(['{', '}']), "{name}");
        }
    }

    #[test]
    fn what_is_no_record_is_not_read_as_one() {
        for name in
            ["idem:ended", "idem:r:a", "idem:r:a:%ff", "idem:r:a:", "other:r:a:b", "idem2:r:a:b", "idem:r:r:a:b"]
        {
            assert_eq!(names().parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_prefix_that_could_be_part_of_a_pattern_or_a_slot_is_refused() {
        let long = "p".repeat(65);
        for prefix in ["", "a b", "{a}", "a*", "a%", "é", &long] {
            assert!(matches!(Names::new(prefix), Err(OpenError::Prefix { .. })), "{prefix}");
        }
        Names::new("shop-1.idem:records_2").unwrap();
    }
}
