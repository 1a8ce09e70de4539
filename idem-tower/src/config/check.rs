//! What can't work, and is found when a layer is built.

use http::{HeaderName, StatusCode};
use idem_core::FingerprintKey;

use crate::{
    ConfigError,
    fingerprint::Fingerprints,
    headers::{NOT_STORED, REPLAYED, is_correlation_id, is_framing, is_passing},
    problem::ProblemStyle,
};

pub(super) fn key_header(name: &str) -> Result<HeaderName, ConfigError> {
    let header = header_name("header", name)?;
    if is_correlation_id(header.as_str()) || matches!(header.as_str(), "x-session-id" | "session-id") {
        return Err(ConfigError::CorrelationHeader { name: header.as_str().into() });
    }
    if is_taken(header.as_str()) || is_framing(&header) {
        return Err(ConfigError::ReservedHeader { setting: "header", name: header.as_str().into() });
    }
    Ok(header)
}

pub(super) fn replay_header(name: &str) -> Result<HeaderName, ConfigError> {
    let marker = header_name("replay_header", name)?;
    if is_taken_in_responses(marker.as_str()) || marker == NOT_STORED || is_framing(&marker) || is_passing(&marker) {
        return Err(ConfigError::ReservedHeader { setting: "replay_header", name: name.into() });
    }
    Ok(marker)
}

pub(super) fn header_name(setting: &'static str, name: &str) -> Result<HeaderName, ConfigError> {
    HeaderName::try_from(name).map_err(|_| ConfigError::HeaderName { setting, name: name.into() })
}

/// Headers that every request has, or that mean something else.
fn is_taken(name: &str) -> bool {
    matches!(
        name,
        "accept"
            | "authorization"
            | "cookie"
            | "date"
            | "expect"
            | "forwarded"
            | "from"
            | "host"
            | "origin"
            | "referer"
            | "user-agent"
            | "via"
            | "x-api-key"
    ) || [REPLAYED, NOT_STORED].iter().any(|ours| ours == name)
        || ["accept-", "access-control-", "content-", "if-", "proxy-", "sec-", "x-forwarded-"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// Headers that tell clients what an answer is, and where it is.
fn is_taken_in_responses(name: &str) -> bool {
    matches!(
        name,
        "age"
            | "allow"
            | "cache-control"
            | "etag"
            | "expires"
            | "grpc-status"
            | "last-modified"
            | "link"
            | "location"
            | "retry-after"
            | "server"
            | "trailer"
            | "vary"
    ) || ["access-control-", "content-"].iter().any(|prefix| name.starts_with(prefix))
}

pub(super) fn check_style(style: &ProblemStyle) -> Result<(), ConfigError> {
    let is_uri = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    if style.base.is_empty() || !style.base.bytes().all(is_uri) {
        return Err(ConfigError::ProblemBase { base: style.base.clone() });
    }
    if style.is_grpc && !style.statuses.is_empty() {
        return Err(ConfigError::StatusUnderGrpc);
    }
    let is_error = |status: &StatusCode| status.is_client_error() || status.is_server_error();
    match style.statuses.iter().find(|(_, status)| !is_error(status)) {
        Some(&(code, status)) => Err(ConfigError::Status { code, status }),
        None => Ok(()),
    }
}

pub(super) fn check_keys(fingerprints: &Fingerprints) -> Result<(), ConfigError> {
    let all = std::iter::once(&fingerprints.key).chain(&fingerprints.older);
    let mut ids: Vec<&str> = all.map(|key| key.as_ref().map_or("", FingerprintKey::id)).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(ConfigError::FingerprintKeys { id: pair[0].into() }),
        None => Ok(()),
    }
}
