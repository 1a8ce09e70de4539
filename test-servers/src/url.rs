//! Addresses of databases and Redis servers.

/// The same server, user and options, another database.
pub(crate) fn with_database(url: &str, database: &str) -> String {
    let (authority, _, options) = split(url);
    format!("{authority}/{database}{options}")
}

/// The same user, database and options, another host and port.
pub(crate) fn with_address(url: &str, address: &str) -> String {
    let (authority, database, options) = split(url);
    let (scheme, rest) = authority.split_once("://").expect("split has checked it");
    let user = rest.rsplit_once('@').map_or(String::new(), |(user, _)| format!("{user}@"));
    format!("{scheme}://{user}{address}/{database}{options}")
}

/// The name of the database.
pub(crate) fn database(url: &str) -> &str {
    split(url).1
}

/// `scheme://user:password@host:port`, the database, and `?options` or nothing.
fn split(url: &str) -> (&str, &str, &str) {
    let start = ["postgres://", "postgresql://"].into_iter().find(|scheme| url.starts_with(scheme));
    let start = start.unwrap_or_else(|| {
        panic!("the address of the PostgreSQL server for tests must begin with postgres:// or postgresql://")
    });
    let (before, options) = url.split_at(url.find('?').unwrap_or(url.len()));
    match before[start.len()..].split_once('/') {
        Some((authority, database)) => (&before[..start.len() + authority.len()], database, options),
        None => (before, "", options),
    }
}

/// The parts of `redis://[user:password@]host:port[/database]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RedisAddress {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// User and password.
    pub(crate) login: Option<(String, String)>,
    pub(crate) database: u32,
}

impl RedisAddress {
    pub(crate) fn loopback(port: u16) -> Self {
        Self { host: "127.0.0.1".to_owned(), port, login: None, database: 0 }
    }

    /// # Panics
    ///
    /// If the address has another form. The message does not hold it, since it may hold a password.
    pub(crate) fn parse(url: &str) -> Self {
        Self::parsed(url).unwrap_or_else(|| {
            panic!("the address of a Redis server for tests must be redis://[user:password@]host:port[/database]")
        })
    }

    fn parsed(url: &str) -> Option<Self> {
        let rest = url.strip_prefix("redis://")?;
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, address) = match authority.rsplit_once('@') {
            Some((login, address)) => (Some(login), address),
            None => (None, authority),
        };
        let login = match login.map(|login| login.split_once(':')) {
            None => None,
            Some(None) => return None,
            Some(Some(("", password))) => Some(("default".to_owned(), decoded(password)?)),
            Some(Some((user, password))) => Some((decoded(user)?, decoded(password)?)),
        };
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (address, 6379),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let database = if database.is_empty() { 0 } else { database.parse().ok()? };
        (!host.is_empty()).then_some(Self { host, port, login, database })
    }
}

/// The same user and database, another host and port.
pub(crate) fn with_redis_address(url: &str, address: &str) -> String {
    // Refuses other forms.
    let _ = RedisAddress::parse(url);
    let rest = &url["redis://".len()..];
    let (authority, database) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let login = authority.rsplit_once('@').map_or(String::new(), |(login, _)| format!("{login}@"));
    format!("redis://{login}{address}{database}")
}

/// A user or a password as it stands in an address.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'%' {
            let digits = after.get(..2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_redis_has_a_host_and_perhaps_a_login_and_a_database() {
        let plain = RedisAddress::loopback(7000);
        assert_eq!(RedisAddress::parsed("redis://127.0.0.1:7000").as_ref(), Some(&plain));
        assert_eq!(RedisAddress::parsed("redis://127.0.0.1:7000/"), Some(plain));
        let login = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        let full = RedisAddress { host: "::1".to_owned(), port: 6379, login: login("a", "p@%"), database: 3 };
        assert_eq!(RedisAddress::parsed(&format!("redis://a:{}@[::1]:6379/3", encoded("p@%"))), Some(full));
        let named = RedisAddress { host: "h".to_owned(), port: 6379, login: login("default", "p"), database: 0 };
        assert_eq!(RedisAddress::parsed("redis://:p@h"), Some(named));
        for other in ["rediss://h:1", "redis://", "redis://h:x", "redis://user@h", "redis://a:%9@h", "redis://h/x"] {
            assert_eq!(RedisAddress::parsed(other), None, "{other}");
        }
    }

    #[test]
    fn a_database_replaces_another_and_options_stay() {
        assert_eq!(with_database("postgres://a:b@h:1/x?sslmode=disable", "y"), "postgres://a:b@h:1/y?sslmode=disable");
        assert_eq!(with_database("postgresql://h", "y"), "postgresql://h/y");
        assert_eq!(with_database("postgres://h?a=b", "y"), "postgres://h/y?a=b");
    }

    #[test]
    fn an_address_of_redis_replaces_another_and_login_and_database_stay() {
        assert_eq!(with_redis_address("redis://a:p%40@h:1/2", "127.0.0.1:9"), "redis://a:p%40@127.0.0.1:9/2");
        assert_eq!(with_redis_address("redis://h", "127.0.0.1:9"), "redis://127.0.0.1:9");
    }

    #[test]
    fn an_address_replaces_another_and_the_user_stays() {
        assert_eq!(with_address("postgres://a:p%40@h:1/x?o=1", "127.0.0.1:9"), "postgres://a:p%40@127.0.0.1:9/x?o=1");
        assert_eq!(with_address("postgres://h/x", "127.0.0.1:9"), "postgres://127.0.0.1:9/x");
    }
}
