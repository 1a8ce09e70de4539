//! What a URL asks for, beyond what the driver reads from it.

use std::path::PathBuf;

use tokio_postgres::{Config, config::SslMode};

use crate::{
    OpenError,
    tls::{Roots, Verify},
};

/// A URL, read.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) config: Config,
    pub(crate) verify: Verify,
    pub(crate) roots: Roots,
    /// Whether it says `pgbouncer=true`.
    pub(crate) through_pooler: bool,
}

impl Target {
    /// Reads a URL. What the driver does not know (`sslmode=verify-full`, `verify-ca`, `sslrootcert`, `pgbouncer`) is
    /// taken out of it first. Nothing of it is shown in an error but the names of parameters.
    pub(crate) fn parse(url: &str) -> Result<Self, OpenError> {
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(OpenError::Url { problem: "it does not begin with postgres:// or postgresql://".into() });
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut rest = Vec::new();
        let (mut mode, mut roots, mut through_pooler) = (None, None, false);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", value)) => mode = Some(value),
                Some(("sslrootcert", value)) => roots = Some(unescape(value)?),
                Some(("pgbouncer", value)) => {
                    through_pooler = match value {
                        "true" => true,
                        "false" => false,
                        _ => return Err(OpenError::Url { problem: "pgbouncer is neither true nor false".into() }),
                    }
                }
                _ => rest.push(pair),
            }
        }
        let mut left = base.to_owned();
        if !rest.is_empty() {
            left = format!("{base}?{}", rest.join("&"));
        }
        let mut config: Config =
            left.parse().map_err(|error| OpenError::Url { problem: crate::error::described(&error) })?;
        let (mode, mut verify) = match mode.unwrap_or("prefer") {
            "disable" => (SslMode::Disable, Verify::Nobody),
            "prefer" => (SslMode::Prefer, Verify::Nobody),
            "require" => (SslMode::Require, Verify::Nobody),
            "verify-ca" => (SslMode::Require, Verify::Authority),
            "verify-full" => (SslMode::Require, Verify::Host),
            _ => {
                let problem = "sslmode is none of disable, prefer, require, verify-ca and verify-full".into();
                return Err(OpenError::Url { problem });
            }
        };
        // As libpq: whoever names an authority wants it looked at.
        if mode == SslMode::Require && verify == Verify::Nobody && roots.is_some() {
            verify = Verify::Authority;
        }
        config.ssl_mode(mode);
        let roots = match roots {
            None => Roots::System,
            Some(path) if path == "system" => Roots::System,
            Some(path) => Roots::File(PathBuf::from(path)),
        };
        Ok(Self { config, verify, roots, through_pooler })
    }
}

fn unescape(value: &str) -> Result<String, OpenError> {
    let malformed = || OpenError::Url { problem: "sslrootcert has an escape (%) that is none, or is not UTF-8".into() };
    let mut bytes = Vec::with_capacity(value.len());
    let mut left = value.as_bytes();
    while let [first, rest @ ..] = left {
        left = rest;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, rest @ ..] = left else { return Err(malformed()) };
        let digit = |byte: &u8| char::from(*byte).to_digit(16).ok_or_else(malformed);
        bytes.push((digit(high)? * 16 + digit(low)?) as u8);
        left = rest;
    }
    String::from_utf8(bytes).map_err(|_| malformed())
}
