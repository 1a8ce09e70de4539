//! Addresses of databases.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_replaces_another_and_options_stay() {
        assert_eq!(with_database("postgres://a:b@h:1/x?sslmode=disable", "y"), "postgres://a:b@h:1/y?sslmode=disable");
        assert_eq!(with_database("postgresql://h", "y"), "postgresql://h/y");
        assert_eq!(with_database("postgres://h?a=b", "y"), "postgres://h/y?a=b");
    }

    #[test]
    fn an_address_replaces_another_and_the_user_stays() {
        assert_eq!(with_address("postgres://a:p%40@h:1/x?o=1", "127.0.0.1:9"), "postgres://a:p%40@127.0.0.1:9/x?o=1");
        assert_eq!(with_address("postgres://h/x", "127.0.0.1:9"), "postgres://127.0.0.1:9/x");
    }
}
