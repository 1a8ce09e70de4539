//! Which file a store keeps its records in.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A file as it was found: its path without links, and where the system can tell the file itself, so that another one
/// that takes its place is noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    path: PathBuf,
    inode: Option<(u64, u64)>,
}

impl FileId {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        #[cfg(unix)]
        fn inode(found: &fs::Metadata) -> Option<(u64, u64)> {
            use std::os::unix::fs::MetadataExt as _;
            Some((found.dev(), found.ino()))
        }
        #[cfg(not(unix))]
        fn inode(_: &fs::Metadata) -> Option<(u64, u64)> {
            None
        }
        let path = fs::canonicalize(path)?;
        let inode = inode(&fs::metadata(&path)?);
        Ok(Self { path, inode })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes sure that the file is still where it was.
    ///
    /// # Errors
    ///
    /// Of kind not found if it is gone or another is in its place; any that the system gives.
    pub(crate) fn verify(&self) -> io::Result<()> {
        if Self::of(&self.path)? == *self {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::NotFound, format!("{:?} is another file than was opened", self.path)))
    }
}
