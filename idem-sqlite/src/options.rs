//! Opening a store, and what can be wrong with the place it is opened at.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use idem_core::ManualClock;
use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags};

use crate::{SqliteStore, clock::Clock, schema, store::Opened};

/// How long an operation may take if nothing else is said.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time limit; a longer one means this.
const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// How a [`SqliteStore`] is opened. Made by [`SqliteStore::builder`].
#[derive(Clone, Debug)]
#[must_use = "it opens nothing before `open`"]
pub struct Builder {
    path: PathBuf,
    clock: Clock,
    timeout: Duration,
}

impl Builder {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, clock: Clock::Host, timeout: DEFAULT_TIMEOUT }
    }

    /// Judges leases and retentions by a clock that tests move, instead of the host's. Every handle of one file must
    /// follow the same one.
    pub fn clock(mut self, clock: ManualClock) -> Self {
        self.clock = Clock::Manual(clock);
        self
    }

    /// How long an operation, and the opening, may take before it is an error of kind unavailable: more than zero, and
    /// at most an hour (a longer time means an hour). 5 seconds if nothing else is said.
    ///
    /// It is mostly spent on waiting for other write transactions on the file, so it should be longer than the longest
    /// of them.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(MAX_TIMEOUT);
        self
    }

    /// Opens the file, makes it and the tables where there are none, sets its modes, and makes sure of what was really
    /// set.
    ///
    /// It blocks: usually for some milliseconds, for the time limit at most while another process holds the file. Two
    /// processes may open one new file at once.
    ///
    /// # Errors
    ///
    /// [`OpenError`] says what is wrong with the place or the file.
    pub fn open(self) -> Result<SqliteStore, OpenError> {
        if self.timeout.is_zero() {
            return Err(OpenError::NoTime);
        }
        let path = place(&self.path)?;
        let deadline = Instant::now() + self.timeout;

        // The writer's handler gives up early and often, so that operations are looked after while it waits.
        let writer = connect(&path, WRITER_PATIENCE)?;
        schema::set_modes(&writer, &path, deadline)?;
        schema::create(&writer, &path, deadline)?;

        let reader = connect(&path, self.timeout)?;
        schema::set_modes(&reader, &path, deadline)?;
        reader.execute_batch("PRAGMA query_only = ON").map_err(|error| OpenError::of_sqlite(&path, error))?;

        // Through links, as SQLite itself names the file.
        let path = fs::canonicalize(&path).map_err(|source| OpenError::Place { path, source })?;
        SqliteStore::start(Opened { path, writer, reader, clock: self.clock, timeout: self.timeout })
    }
}

/// For how long the writer's connection waits for a lock before its thread looks at the time limits of operations.
const WRITER_PATIENCE: Duration = Duration::from_millis(20);

fn connect(path: &Path, patience: Duration) -> Result<Connection, OpenError> {
    // Not as a URI, and without SQLite's own mutex: a connection belongs to one thread at a time.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |error| OpenError::of_sqlite(path, error);
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    schema::set_busy_handler(&mut connection, patience).map_err(failed)?;
    // SQLite opens a file that it may not write for reading, without a word.
    if connection.is_readonly(MAIN_DB).map_err(failed)? {
        return Err(OpenError::ReadOnly { path: path.into() });
    }
    Ok(connection)
}

/// The absolute path of a file that exists or can be made.
///
/// The file itself is only looked at and never opened here: closing it again would drop the locks that SQLite holds on
/// it in this process.
fn place(path: &Path) -> Result<PathBuf, OpenError> {
    let Some(text) = path.to_str() else {
        return Err(OpenError::NotUtf8 { path: path.into() });
    };
    if text.is_empty() {
        return Err(OpenError::EmptyPath);
    }
    // Where SQLite would see no file but memory or a URI; `./:memory:` is a file.
    if text == ":memory:" || text.starts_with("file:") {
        return Err(OpenError::NotAFile { path: path.into() });
    }
    if path.is_dir() {
        return Err(OpenError::Directory { path: path.into() });
    }
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return Err(OpenError::NotAFile { path: path.into() });
    }
    let Some(name) = path.file_name() else {
        return Err(OpenError::Directory { path: path.into() });
    };
    let directory = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(OpenError::Directory { path: path.into() }),
    };
    match fs::canonicalize(directory) {
        Ok(directory) if directory.is_dir() => Ok(directory.join(name)),
        Ok(_) => Err(OpenError::MissingDirectory { path: path.into(), directory: directory.into() }),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(OpenError::MissingDirectory { path: path.into(), directory: directory.into() })
        }
        Err(source) => Err(OpenError::Place { path: path.into(), source }),
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The path is empty.
    #[error("the path of the SQLite file is empty; name a file")]
    EmptyPath,
    /// The path is not UTF-8, so a caller's connection could not be told to be on the same file.
    #[error("the path {path:?} is not UTF-8; use one that is")]
    NotUtf8 {
        /// The path.
        path: PathBuf,
    },
    /// The path names no regular file: `:memory:`, a URI, a device.
    #[error(
        "{path:?} names no regular file, and records must outlive the process; give the path of a file, without `file:`"
    )]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The path names a directory.
    #[error("{path:?} is a directory; name a file in it")]
    Directory {
        /// The path.
        path: PathBuf,
    },
    /// The directory of the file does not exist. It is not made, since a wrong path would be a second, empty store.
    #[error("there is no directory {directory:?} for the file {path:?}; make it, or correct the path")]
    MissingDirectory {
        /// The path.
        path: PathBuf,
        /// The directory.
        directory: PathBuf,
    },
    /// The path can't be looked at.
    #[error("{path:?} can't be reached ({source}); check the permissions of the directories on the way")]
    Place {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file can't be opened or made.
    #[error(
        "SQLite can't open or make {path:?}, or the -wal and -shm files beside it ({source}); \
         let this process write the file and its directory"
    )]
    NotPermitted {
        /// The path.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// The file may only be read.
    #[error("{path:?} can only be read; let this process write the file and its directory")]
    ReadOnly {
        /// The path.
        path: PathBuf,
    },
    /// The file is something else than an SQLite database, or is encrypted.
    #[error("{path:?} is not an SQLite database; correct the path")]
    NotADatabase {
        /// The path.
        path: PathBuf,
    },
    /// A newer version of idem made the tables.
    #[error(
        "the tables in {path:?} have schema version {found}, and this version of idem knows up to {known}; \
         use the version that made them"
    )]
    NewerSchema {
        /// The path.
        path: PathBuf,
        /// The version of the tables.
        found: i64,
        /// The newest version that this code knows.
        known: i64,
    },
    /// The tables are not as this store makes them.
    #[error("the tables in {path:?} are not those of this store: {problem}; use another file, or remove the table")]
    Schema {
        /// The path.
        path: PathBuf,
        /// What is wrong with them.
        problem: &'static str,
    },
    /// A mode that the store's promise depends on could not be set.
    #[error(
        "{setting} of {path:?} is {found} and can't be made {wanted}; \
         put the file on a local file system that lets processes share memory"
    )]
    Mode {
        /// The path.
        path: PathBuf,
        /// The setting, as PRAGMA knows it.
        setting: &'static str,
        /// What it has to be.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// Another connection held the file for longer than the time limit.
    #[error("another connection has {path:?} locked; end its transaction, or allow more time")]
    Busy {
        /// The path.
        path: PathBuf,
    },
    /// The time limit is zero.
    #[error("the time limit is zero, so that no operation could ever be done; give it more")]
    NoTime,
    /// A thread could not be started.
    #[error("a thread for the store could not be started ({source}); allow this process more of them")]
    Thread {
        /// What the system said.
        source: io::Error,
    },
    /// SQLite failed in another way.
    #[error("SQLite failed on {path:?}: {source}")]
    Sqlite {
        /// The path.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
}

impl OpenError {
    pub(crate) fn of_sqlite(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.into();
        match source.sqlite_error_code() {
            Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => Self::NotPermitted { path, source },
            Some(ErrorCode::ReadOnly) => Self::ReadOnly { path },
            Some(ErrorCode::NotADatabase) => Self::NotADatabase { path },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy { path },
            _ => Self::Sqlite { path, source },
        }
    }
}
