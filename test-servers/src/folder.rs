//! Temporary folders that an unprivileged server can reach.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::user;

/// A temporary folder that the server's user owns. Removed on drop, until a keeper has taken it over.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    mine: bool,
}

impl Folder {
    pub(crate) fn new(prefix: &str) -> Self {
        let parent = parent();
        let folder = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(&parent)
            .unwrap_or_else(|error| panic!("no temporary folder can be made in {}: {error}", parent.display()));
        own(folder.path());
        Self { path: folder.keep(), mine: true }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn as_str(&self) -> &str {
        self.path.to_str().unwrap_or_else(|| panic!("the temporary folder {} is not UTF-8", self.path.display()))
    }

    /// From now on someone else removes it.
    pub(crate) fn handed_over(&mut self) {
        self.mine = false;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.mine {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Writes a file that only the server's user can read, as servers demand of private keys.
pub(crate) fn write_private(path: &Path, content: &str) {
    let written = std::fs::write(path, content)
        .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)));
    written.unwrap_or_else(|error| panic!("{} can't be written: {error}", path.display()));
    own(path);
}

/// Gives a path to the server's user.
fn own(path: &Path) {
    if let Some(user) = user::unprivileged() {
        std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid))
            .unwrap_or_else(|error| panic!("{} can't be given to user {}: {error}", path.display(), user.uid));
    }
}

/// The system's folder for temporary files; if this is root and its unprivileged user could not enter that, /tmp.
fn parent() -> PathBuf {
    let usual = std::env::temp_dir();
    let open_to_all = |folder: &Path| folder.metadata().is_ok_and(|data| data.mode() & 0o001 != 0);
    match user::unprivileged() {
        Some(_) if !usual.ancestors().all(open_to_all) => PathBuf::from("/tmp"),
        _ => usual,
    }
}
