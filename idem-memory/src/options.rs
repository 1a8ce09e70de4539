//! How a store is set up.

use std::num::NonZeroUsize;

use idem_core::ManualClock;

use crate::{MemoryStore, clock::Clock, records::Records};

/// How many records a store holds that was not told otherwise: a million, some 400 MB of tiny ones.
pub const DEFAULT_MAX_RECORDS: NonZeroUsize = NonZeroUsize::new(1_000_000).unwrap();

/// Sets up a [`MemoryStore`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    max_records: NonZeroUsize,
    clock: Option<ManualClock>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self { max_records: DEFAULT_MAX_RECORDS, clock: None }
    }

    /// How many records the store holds at most. Choose it above what one retention brings in: with 24 hours, a day's
    /// number of keys. A claim of a new key on a store that is full of live records is refused.
    ///
    /// It bounds records, not bytes: a record takes its response's size and some 400 bytes. Bound what is stored of a
    /// response (the HTTP layer does, at 1 MiB) and choose the number so that the product fits.
    pub fn max_records(mut self, limit: NonZeroUsize) -> Self {
        self.max_records = limit;
        self
    }

    /// Judges leases and retentions by this clock instead of the host's: for tests.
    pub fn clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The store, without any records.
    pub fn build(self) -> MemoryStore {
        let clock = self.clock.map_or_else(Clock::host, Clock::Manual);
        MemoryStore::of(Records::new(self.max_records, clock))
    }
}
