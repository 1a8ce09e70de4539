//! Where the store of one check lives.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use idem_core::{ManualClock, Timestamp};
use tempfile::TempDir;

use crate::{rng, shared::Shared};

/// Where the clocks of all places start: 2025-12-01 00:00:00.123 UTC.
const START: Timestamp = Timestamp::from_millis(1_764_547_200_123);

/// Where the store of one check lives. Every check gets a place of its own; opening a store at the same place again is
/// another handle on it, or a reopening after a restart.
///
/// Clones are the same place. What belongs to it goes when the last clone does.
#[derive(Clone)]
pub struct Place(Arc<Inner>);

struct Inner {
    name: String,
    dir: PathBuf,
    /// Removes the directory; none where another process made it.
    _made: Option<TempDir>,
    clock: ManualClock,
    shared: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Place {
    pub(crate) fn new() -> Self {
        static PLACES: AtomicU32 = AtomicU32::new(0);
        let number = PLACES.fetch_add(1, Ordering::Relaxed);
        let name = format!("idem_{:x}_{:08x}_{number}", process::id(), rng::fresh_seed() >> 32);
        let made = TempDir::with_prefix(&name).expect("a temporary directory for a check can be made");
        Self::of(name, made.path().to_owned(), Some(made), START)
    }

    /// A place that another process made, whose clock stands at `now`.
    pub(crate) fn of_another_process(name: String, dir: PathBuf, now: Timestamp) -> Self {
        Self::of(name, dir, None, now)
    }

    fn of(name: String, dir: PathBuf, made: Option<TempDir>, now: Timestamp) -> Self {
        let clock = ManualClock::starting_at(now);
        Self(Arc::new(Inner { name, dir, _made: made, clock, shared: Mutex::default() }))
    }

    /// A name that no other place has, in this process or another: 1 to 48 of `a-z`, `0-9` and `_`, beginning with a
    /// letter. Usable as the name or prefix of a table or of keys.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// An empty directory of its own, removed with the place.
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// The clock that the checks move, unless the harness says otherwise. It stands still at a day in 2025 until they
    /// do.
    pub fn clock(&self) -> ManualClock {
        self.0.clock.clone()
    }

    /// The one `T` of this place, made the first time: for stores in memory, whose handles must share what they keep.
    /// It stays as long as the place does. `make` must not call this itself.
    pub fn shared<T: Send + Sync + 'static>(&self, make: impl FnOnce() -> T) -> Shared<T> {
        let mut shared = self.0.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let any = shared.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(make()));
        Shared(Arc::clone(any).downcast().expect("the entry of a type holds that type"))
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("name", &self.0.name).field("dir", &self.dir()).finish_non_exhaustive()
    }
}
