//! Whether the store can keep its promise.

use idem_core::{StoreErrorKind, Timestamp};

use crate::{
    clock::Clock,
    error::{Failure, store_error},
    file::FileId,
    records::Tables,
    schema,
};

/// 2024-01-01. A host whose clock is before this has not been told the time.
const EARLIEST: Timestamp = Timestamp::from_millis(1_704_067_200_000);

/// Looks at the file and the clock, and has something written and synced.
pub(crate) fn self_test(tables: &mut Tables<'_>, file: &FileId, clock: &Clock) -> Result<(), Failure> {
    let refused = |message: String| Err(store_error(StoreErrorKind::Configuration, "check", message).into());
    if let Err(error) = file.verify() {
        return refused(format!("the file is not where it was ({error}); put it back, or open the store anew"));
    }
    if matches!(clock, Clock::Host) && clock.now() < EARLIEST {
        return refused("the host's clock is years behind; set it before anything is judged by it".into());
    }
    schema::touch(tables.writing())
}
