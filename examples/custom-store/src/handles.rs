//! The stores that this process has open.
//!
//! redb lets a file be opened once at a time, even within a process. Two parts of a program that open one file must not
//! depend on which comes first, so the second gets another handle on the store of the first.

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use crate::{file::FileId, live::Live, store::Shared};

/// Weak, so that a store ends with its last handle.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// The store of the file at this path, if this process has it open.
pub(crate) fn find(path: &Path) -> Option<Arc<Shared>> {
    let file = FileId::of(path).ok()?;
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    // One whose writer has ended can't do anything any more: the file can be opened anew once its handles are gone.
    open.iter().filter_map(Weak::upgrade).find(|shared| *shared.file() == file && shared.is_usable())
}

/// Starts the store of a file.
pub(crate) fn start(database: Live, file: FileId) -> io::Result<Arc<Shared>> {
    let shared = Arc::new(Shared::start(database, file)?);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|shared| shared.strong_count() > 0);
    open.push(Arc::downgrade(&shared));
    Ok(shared)
}
