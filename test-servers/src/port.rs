//! Free loopback ports.

use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, TcpListener};

/// A loopback port that was free a moment ago. It lies below the ranges from which systems take ports for outgoing
/// connections, so that a server that is stopped finds it free again. Whoever uses it must be ready to lose a race.
pub(crate) fn free() -> u16 {
    (0..1000)
        .map(|_| 12_000 + u16::try_from(random() % 18_000).expect("below 65536"))
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("one of a thousand loopback ports is free")
}

/// A number that differs from call to call and from process to process.
pub(crate) fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
