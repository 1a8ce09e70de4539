//! Where the programs of the servers are.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder that holds `initdb` and `postgres`, or nothing when no server is installed.
pub(crate) fn postgres_binaries() -> Option<PathBuf> {
    let complete =
        |folder: &PathBuf| ["initdb", "postgres", "pg_basebackup"].iter().all(|name| folder.join(name).is_file());
    // A link in the path leads to the folder where the rest is.
    let linked = in_path("initdb").and_then(|initdb| Some(initdb.canonicalize().ok()?.parent()?.to_path_buf()));
    linked.into_iter().chain(pg_config()).chain(packaged()).find(complete)
}

/// The program of that name in the path or in the folders where packages put servers.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let usual = ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin", "/opt/homebrew/sbin"];
    in_path(name).or_else(|| usual.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file()))
}

fn in_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

/// Folders of Debian's, Red Hat's and Homebrew's packages, the newest version first.
fn packaged() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (parent, before) in [
        ("/usr/lib/postgresql", ""),
        ("/usr", "pgsql-"),
        ("/opt/homebrew/opt", "postgresql@"),
        ("/usr/local/opt", "postgresql@"),
    ] {
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(Ok(version)) = name.strip_prefix(before).map(str::parse::<u32>) {
                found.push((version, entry.path().join("bin")));
            }
        }
    }
    found.sort();
    let unversioned = ["/opt/homebrew/opt/postgresql/bin", "/usr/local/opt/postgresql/bin"].map(PathBuf::from);
    found.into_iter().rev().map(|(_, folder)| folder).chain(unversioned).collect()
}
