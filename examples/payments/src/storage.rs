//! Opening the store and the ledger that the command line names.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use idem::{Store, sqlite::SqliteStore};

use crate::{
    Failure,
    ledger::{Ledger, MemoryLedger, SqliteLedger},
};

/// The store, the ledger, and whether they share a database.
pub(crate) struct Storage {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ledger: Ledger,
    /// The store again, with the connection to its own database, where payments live in that: row and record are then
    /// committed together.
    pub(crate) together: Option<(SqliteStore, SqliteLedger)>,
}

/// Opens both. Blocks.
pub(crate) fn open(store_url: &str, ledger_url: Option<&str>) -> Result<Storage, Failure> {
    let ledger_file = match ledger_url {
        None => None,
        Some("memory:") => Some(None),
        Some(url) => {
            let usage = || Failure::Usage("--ledger: it is memory: or sqlite:PATH".into());
            Some(Some(sqlite_path(url).ok_or_else(usage)?))
        }
    };
    let Some(store_path) = sqlite_path(store_url) else {
        let store = idem::open(store_url).map_err(|error| Failure::Usage(format!("--store: {error}")))?;
        let ledger = match ledger_file.flatten() {
            Some(path) => Ledger::Sqlite(open_ledger(&path)?),
            None => Ledger::Memory(Arc::new(MemoryLedger::default())),
        };
        return Ok(Storage { store, ledger, together: None });
    };
    let opened = SqliteStore::open(&store_path);
    let store = opened.map_err(|error| format!("--store: can't open sqlite:{}: {error}", store_path.display()))?;
    let ledger_path = match ledger_file {
        Some(None) => {
            let ledger = Ledger::Memory(Arc::new(MemoryLedger::default()));
            return Ok(Storage { store: Arc::new(store), ledger, together: None });
        }
        Some(Some(path)) => path,
        None => store_path.clone(),
    };
    let ledger = open_ledger(&ledger_path)?;
    let is_same = is_same_file(&store_path, &ledger_path);
    let together = is_same.then(|| (store.clone(), ledger.clone()));
    Ok(Storage { store: Arc::new(store), ledger: Ledger::Sqlite(ledger), together })
}

/// The file that a `sqlite:` URL names, if it is one and names one: the rules of [`idem::open`].
pub(crate) fn sqlite_path(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    (!path.is_empty() && path != ":memory:").then(|| path.into())
}

fn open_ledger(path: &Path) -> Result<SqliteLedger, String> {
    SqliteLedger::open(path).map_err(|error| error.to_string())
}

/// Whether two paths of files that exist lead to one file.
fn is_same_file(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_and_record_are_committed_together_where_they_share_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("sqlite:{}", folder.path().join("a.db").display());
        let same = format!("sqlite://{}", folder.path().join("./a.db").display());
        let other = format!("sqlite:{}", folder.path().join("b.db").display());
        for (store, ledger, together) in [
            (&*store, None, true),
            (&store, Some(&*same), true),
            (&store, Some(&other), false),
            (&store, Some("memory:"), false),
            ("memory:", None, false),
            ("memory:", Some(&other), false),
        ] {
            let storage = open(store, ledger).ok().unwrap();
            assert_eq!(storage.together.is_some(), together, "{store} {ledger:?}");
            let is_memory = ledger.unwrap_or(store) == "memory:";
            assert_eq!(matches!(storage.ledger, Ledger::Memory(_)), is_memory, "{store} {ledger:?}");
        }
    }

    #[test]
    fn a_url_that_names_no_store_is_refused_with_its_option() {
        for (store, ledger, part) in [
            ("mysql://u:secret@h", None, "--store: there is no store for mysql: URLs"),
            ("sqlite:", None, "--store: the sqlite: URL is malformed"),
            ("memory:", Some("mysql://u:secret@h"), "--ledger: it is memory: or sqlite:PATH"),
        ] {
            let Some(Failure::Usage(problem)) = open(store, ledger).err() else {
                panic!("{store} {ledger:?} is no mistake in the command line");
            };
            assert!(problem.contains(part) && !problem.contains("secret"), "{problem}");
        }
        let Some(Failure::Run(problem)) = open("sqlite:missing/a.db", None).err() else {
            panic!("a file in a folder that is not there was opened");
        };
        assert!(problem.contains("missing/a.db"), "{problem}");
    }
}
