//! What a URL asks for.

use std::path::PathBuf;

use fred::types::config::{Config, ServerConfig};

use crate::OpenError;

const SCHEMES: [(&str, bool); 12] = [
    ("redis://", false),
    ("redis-cluster://", false),
    ("redis-sentinel://", false),
    ("rediss://", true),
    ("rediss-cluster://", true),
    ("rediss-sentinel://", true),
    ("valkey://", false),
    ("valkey-cluster://", false),
    ("valkey-sentinel://", false),
    ("valkeys://", true),
    ("valkeys-cluster://", true),
    ("valkeys-sentinel://", true),
];

/// The parameters that the client reads.
const PASSED_ON: [&str; 4] = ["node", "sentinelServiceName", "sentinelUsername", "sentinelPassword"];

/// A URL, read.
pub(crate) struct Target {
    pub(crate) config: Config,
    pub(crate) uses_tls: bool,
    /// Whose certificates to trust, if it says so (`sslrootcert`).
    pub(crate) ca_file: Option<PathBuf>,
    /// What the server's keys begin with, if it says so (`prefix`).
    pub(crate) prefix: Option<String>,
}

impl Target {
    /// Reads a URL. Nothing of it is shown in an error, since it may have a password.
    pub(crate) fn parse(url: &str) -> Result<Self, OpenError> {
        let scheme = SCHEMES.iter().find(|(scheme, _)| url.starts_with(scheme));
        let Some((scheme, uses_tls)) = scheme else { return Err(OpenError::Url) };
        // The client would make a TLS configuration of its own, of whatever crypto is in the process, or none.
        let plain_scheme = scheme.replacen("s-", "-", 1).replacen("s:", ":", 1);
        let plain_scheme = if *uses_tls { plain_scheme } else { (*scheme).into() };
        let (base, query) = url[scheme.len()..].split_once('?').unwrap_or((&url[scheme.len()..], ""));
        let (mut rest, mut ca_file, mut prefix) = (Vec::new(), None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "sslrootcert" => ca_file = Some(PathBuf::from(unescape(value)?)),
                "prefix" => prefix = Some(unescape(value)?),
                _ if PASSED_ON.contains(&name) => rest.push(pair),
                other => return Err(OpenError::Parameter { name: other.chars().take(64).collect() }),
            }
        }
        let plain = format!("{plain_scheme}{base}?{}", rest.join("&"));
        let config = Config::from_url(&plain).map_err(|_| OpenError::Url)?;
        // The client would leave it out without a word.
        let path = base.split_once('/').map_or("", |(_, path)| path);
        if matches!(config.server, ServerConfig::Clustered { .. }) && !matches!(path, "" | "0") {
            return Err(OpenError::ClusterDatabase);
        }
        Ok(Self { config, uses_tls: *uses_tls, ca_file, prefix })
    }
}

fn unescape(value: &str) -> Result<String, OpenError> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut left = value.as_bytes();
    while let [first, rest @ ..] = left {
        left = rest;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, rest @ ..] = left else { return Err(OpenError::Url) };
        let digit = |byte: &u8| char::from(*byte).to_digit(16).ok_or(OpenError::Url);
        bytes.push((digit(high)? * 16 + digit(low)?) as u8);
        left = rest;
    }
    String::from_utf8(bytes).map_err(|_| OpenError::Url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_is_what_it_says() {
        for (scheme, uses_tls) in SCHEMES {
            let url = format!(
                "{scheme}u:p%40w@h:7000?node=g:7001&sentinelServiceName=s&sslrootcert=/a%20b/ca.pem&prefix=a%3Ab"
            );
            let target = Target::parse(&url).unwrap_or_else(|_| panic!("{scheme}"));
            assert_eq!(target.uses_tls, uses_tls, "{scheme}");
            assert_eq!(target.ca_file, Some(PathBuf::from("/a b/ca.pem")), "{scheme}");
            assert_eq!(target.prefix.as_deref(), Some("a:b"), "{scheme}");
            assert_eq!(target.config.username.as_deref(), Some("u"));
            assert_eq!(target.config.password.as_deref(), Some("p@w"));
            assert!(target.config.tls.is_none());
            let is = match target.config.server {
                ServerConfig::Centralized { .. } => "",
                ServerConfig::Clustered { hosts, .. } => {
                    assert_eq!(hosts.len(), 2);
                    "-cluster"
                }
                ServerConfig::Sentinel { hosts, service_name, .. } => {
                    assert_eq!((hosts.len(), &*service_name), (2, "s"));
                    "-sentinel"
                }
            };
            let kind = scheme.trim_end_matches("://").find('-').map_or("", |at| &scheme[at..scheme.len() - 3]);
            assert_eq!(is, kind, "{scheme}");
        }
    }

    #[test]
    fn a_database_is_read_from_the_path() {
        let target = Target::parse("redis://h/5").unwrap_or_else(|_| panic!());
        assert_eq!(target.config.database, Some(5));
    }

    #[test]
    fn what_is_no_url_of_redis_is_refused() {
        for url in ["", "redis", "http://h", "redis:/h", "redis://", "redisx://h", "redis-sentinel://h", "redis://h/x"]
        {
            assert!(matches!(Target::parse(url), Err(OpenError::Url)), "{url}");
        }
        for path in ["%", "%4", "%zz", "%ff"] {
            assert!(matches!(Target::parse(&format!("rediss://h?sslrootcert={path}")), Err(OpenError::Url)), "{path}");
        }
    }
}
