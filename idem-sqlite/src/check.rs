//! Whether a store can keep its promise.

use std::{fs, io, path::Path};

use idem_core::{StoreError, StoreErrorKind};

use crate::{
    OpenError,
    clock::Clock,
    error::{sqlite_error, store_error},
    queue::Access,
    schema,
};

/// 2024-01-01. A host whose clock is before this has not been told the time.
const EARLIEST_MILLIS: i64 = 1_704_067_200_000;

/// Which file a path leads to, where the system can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId(Option<(u64, u64)>);

impl FileId {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        #[cfg(unix)]
        fn id(found: &fs::Metadata) -> Option<(u64, u64)> {
            use std::os::unix::fs::MetadataExt as _;
            Some((found.dev(), found.ino()))
        }
        #[cfg(not(unix))]
        fn id(_: &fs::Metadata) -> Option<(u64, u64)> {
            None
        }
        fs::metadata(path).map(|found| Self(id(&found)))
    }
}

/// Looks at everything that opening looked at, and writes.
pub(crate) fn self_test(access: &mut Access<'_>, path: &Path, file: FileId, clock: &Clock) -> Result<(), StoreError> {
    let refused = |message| Err(store_error(StoreErrorKind::Configuration, access.operation, message));
    match FileId::of(path) {
        Ok(found) if found == file => {}
        Ok(_) => return refused(format!("{path:?} is another file than was opened; open the store anew")),
        Err(error) => return refused(format!("{path:?} can't be found any more ({error}); put it back")),
    }
    if matches!(clock, Clock::Host) && access.now.as_millis() < EARLIEST_MILLIS {
        return refused("the host's clock is years behind; set it before anything is judged by it".into());
    }
    let opened = schema::check_modes(access.connection, path)
        .and_then(|()| schema::check_version(access.connection, path))
        .map_err(|error| as_store_error(access.operation, error))?;
    if opened == schema::Found::Nothing {
        return refused(format!("the tables of the store are gone from {path:?}; open the store anew"));
    }
    match schema::touch(access.connection) {
        Ok(_) => Ok(()),
        Err(error) => Err(sqlite_error(access.operation, error)),
    }
}

fn as_store_error(operation: &'static str, error: OpenError) -> StoreError {
    match error {
        OpenError::Sqlite { source, .. } | OpenError::NotPermitted { source, .. } => sqlite_error(operation, source),
        OpenError::Busy { .. } => {
            store_error(StoreErrorKind::Unavailable, operation, error.to_string()).with_source(error)
        }
        _ => store_error(StoreErrorKind::Configuration, operation, error.to_string()).with_source(error),
    }
}
