//! What Redis's failures are to whoever uses the store.

use fred::error::{Error, ErrorKind};
use idem_core::{DecodeError, StoreError, StoreErrorKind};

pub(crate) const BACKEND: &str = "redis";

pub(crate) fn store_error(kind: StoreErrorKind, operation: &'static str, message: impl Into<String>) -> StoreError {
    StoreError::new(kind, BACKEND, operation, message)
}

pub(crate) fn undecodable(operation: &'static str, error: DecodeError) -> StoreError {
    StoreError::undecodable(BACKEND, operation, error)
}

/// A failure of Redis, by what can be done about it.
pub(crate) fn redis_error(operation: &'static str, error: Error) -> StoreError {
    let (kind, advice) = judge(&error);
    store_error(kind, operation, format!("{advice} (Redis: {error})")).with_source(error)
}

fn judge(error: &Error) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Configuration, Contract, Corrupt, Unavailable};
    let details = error.details();
    let says = |word: &str| details.starts_with(word);
    match error.kind() {
        _ if says("OOM") => {
            (Unavailable, "the server's memory is full; raise maxmemory, or let records go earlier (retention)")
        }
        _ if says("READONLY") => {
            (Unavailable, "the server is a replica, which takes no writes; a failover may be under way")
        }
        _ if says("LOADING") || says("MASTERDOWN") || says("CLUSTERDOWN") || says("TRYAGAIN") || says("BUSY") => {
            (Unavailable, "the server is not ready")
        }
        _ if says("NOREPLICAS") => (Unavailable, "too few replicas are connected (min-replicas-to-write)"),
        _ if says("MISCONF") => (Unavailable, "the server can't save, and takes no writes until it can"),
        _ if says("WRONGTYPE") => {
            (Corrupt, "a key of the store's has a value that is no record; give the store a prefix of its own")
        }
        _ if details.contains("InvalidCertificate") => (
            Configuration,
            "the server's certificate is not accepted; name the file of its authority (Builder::ca_file) and the host that \
             it is for",
        ),
        _ if details.contains("to all sentinel nodes") => (
            Unavailable,
            "no Sentinel of those that the URL names could be reached, or none had a certificate that is accepted",
        ),
        _ if says("MOVED") || says("ASK") || says("CROSSSLOT") => {
            (Configuration, "the server is a node of a cluster; write redis-cluster:// in the URL")
        }
        // The others are what scripts are told, by Redis and by Valkey.
        _ if says("NOPERM") || says("ERR The user executing the script can't") || says("ERR ACL failure in script") => {
            (
                Configuration,
                "the user lacks rights; allow the commands SET, GET, DEL, PTTL, EVAL, EVALSHA, SCAN, PUBLISH, SUBSCRIBE, INFO, \
             TIME and WAIT on the store's keys and channel; also ROLE behind Sentinels, SELECT for a database by number, \
             CLUSTER and ASKING in a cluster",
            )
        }
        _ if says("ERR unknown command") => (Configuration, "the server is too old, or forbids a command"),
        _ if details.contains("DB index is out of range") => {
            (Configuration, "the server has no database of this number; name another one in the URL")
        }
        ErrorKind::Auth => (Configuration, "the server refuses the user or password"),
        ErrorKind::Config | ErrorKind::Url => (Configuration, "the client is set up in a way that can't work"),
        ErrorKind::InvalidArgument | ErrorKind::InvalidCommand => (Contract, "Redis was called in a wrong way"),
        ErrorKind::Parse | ErrorKind::NotFound => (Corrupt, "the server's answer has another form than it must have"),
        _ => (Unavailable, "the server could not be reached, or was too slow"),
    }
}
