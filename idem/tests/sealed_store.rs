//! A store of which everything is sealed is a store: it passes the suite.

#![cfg(all(feature = "memory", feature = "seal"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{convert::Infallible, sync::Arc};

use idem::{Idempotency, SealKey, SealKeys, memory::MemoryStore};
use idem_conformance::{Harness, Place, Shared};

/// What sealing adds to the result of a step: 57 bytes and the key's id.
const ADDED: usize = 57 + "2026-12".len();

fn harness() -> Harness {
    Harness::new(async |place: Place| {
        let store = place.shared(|| MemoryStore::builder().clock(place.clock()).build());
        let keys = SealKeys::new(SealKey::new("2026-12", &[7; 32]).unwrap());
        let sealing = Idempotency::builder(Arc::new(store)).seal(Arc::new(keys)).build().unwrap();
        Ok::<_, Infallible>(Shared::from(Arc::clone(sealing.store())))
    })
    .checkpoint_overhead(ADDED)
}

idem_conformance::suite!(harness());
