//! The conformance suite: what every store must do.

use std::convert::Infallible;

use idem_conformance::{Harness, Place};
use idem_memory::MemoryStore;

fn harness() -> Harness {
    Harness::new(async |place: Place| {
        Ok::<_, Infallible>(place.shared(|| MemoryStore::builder().clock(place.clock()).build()))
    })
}

idem_conformance::suite!(harness());
