//! Opening a store, and what can be wrong with the place it is opened at.

use std::{
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use idem_core::ManualClock;
use redb::{Database, DatabaseError};

use crate::{RedbStore, clock::Clock, file::FileId, handles, live::Live, schema};

/// How long an operation may take if nothing else is said.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time limit; a longer one means this.
const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// How often a file is tried that is in use.
const RETRY: Duration = Duration::from_millis(10);

/// Memory for pages of the file. redb's own default is 1 GiB.
const CACHE_BYTES: usize = 64 * 1024 * 1024;

/// How a [`RedbStore`] is opened. Made by [`RedbStore::builder`].
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

    /// How long an operation, and the opening of a file that is in use, may take before it is an error: more than zero,
    /// and at most an hour (a longer time means an hour). 5 seconds if nothing else is said.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(MAX_TIMEOUT);
        self
    }

    /// Opens the file, and makes it where there is none. If this process has it open already, this is another handle on
    /// the same store.
    ///
    /// It blocks: a file that another process has open is waited for within the time limit, and a file that is opened
    /// for the first time is read whole and its checksums verified, so that a damaged one is refused instead of trusted.
    ///
    /// # Errors
    ///
    /// [`OpenError`] says what is wrong with the place or the file.
    pub fn open(self) -> Result<RedbStore, OpenError> {
        if self.timeout.is_zero() {
            return Err(OpenError::NoTime);
        }
        let Self { path, clock, timeout } = self;
        look_at(&path)?;
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(shared) = handles::find(&path) {
                return Ok(RedbStore::of(shared, clock, timeout));
            }
            match database().create(&path) {
                Ok(database) => {
                    let shared = start(database, &path)?;
                    return Ok(RedbStore::of(shared, clock, timeout));
                }
                // By another process; or by this one, where a handle is being dropped or another thread opens it too.
                Err(DatabaseError::DatabaseAlreadyOpen) if Instant::now() < deadline => thread::sleep(RETRY),
                Err(error) => return Err(OpenError::of_redb(path, error)),
            }
        }
    }
}

fn database() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder
}

fn start(database: Database, path: &Path) -> Result<std::sync::Arc<crate::store::Shared>, OpenError> {
    schema::prepare(&database, path)?;
    let file = FileId::of(path).map_err(|source| OpenError::Place { path: path.into(), source })?;
    let same = file.clone();
    let live = Live::new(database, move || {
        // Never `create`: where the file has gone, an empty one would forget every record without a word.
        same.verify()?;
        self::database().open(same.path())
    });
    handles::start(live, file).map_err(|source| OpenError::Thread { source })
}

/// Refuses what redb would give a less telling error for.
fn look_at(path: &Path) -> Result<(), OpenError> {
    if path.as_os_str().is_empty() {
        return Err(OpenError::EmptyPath);
    }
    match path.metadata() {
        Ok(found) if found.is_file() => return Ok(()),
        Ok(_) => return Err(OpenError::NotAFile { path: path.into() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(OpenError::Place { path: path.into(), source }),
    }
    let directory = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(OpenError::NotAFile { path: path.into() }),
    };
    if directory.is_dir() {
        return Ok(());
    }
    Err(OpenError::MissingDirectory { path: path.into(), directory: directory.into() })
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The path is empty.
    #[error("the path of the file is empty; name a file")]
    EmptyPath,
    /// The path names something else than a regular file.
    #[error("{path:?} is no regular file; name a file, which is made if it is not there")]
    NotAFile {
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
    /// The file can't be reached, read or written.
    #[error("{path:?} can't be opened ({source}); let this process read and write the file and its directory")]
    Place {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is something else than a redb database.
    #[error("{path:?} is not a redb database; correct the path")]
    NotADatabase {
        /// The path.
        path: PathBuf,
    },
    /// The file is a redb database of something else.
    #[error("{path:?} is a database with other tables than this store's; give the store a file of its own")]
    NotAStore {
        /// The path.
        path: PathBuf,
    },
    /// A newer version of this store made the file.
    #[error(
        "{path:?} has format {found}, and this version of the store knows up to {known}; use the version that made it"
    )]
    NewerFormat {
        /// The path.
        path: PathBuf,
        /// The format of the file.
        found: u32,
        /// The newest format that this code knows.
        known: u32,
    },
    /// The file is damaged.
    #[error("{path:?} is damaged ({problem}); restore it from a backup")]
    Damaged {
        /// The path.
        path: PathBuf,
        /// What redb found.
        problem: String,
    },
    /// Another process has the file open. One at a time may.
    #[error("another process has {path:?} open, and one at a time may; end it, or allow more time")]
    InUse {
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
    /// redb failed in another way.
    #[error("redb failed on {path:?}: {source}")]
    Database {
        /// The path.
        path: PathBuf,
        /// What redb said.
        source: redb::Error,
    },
}

impl OpenError {
    fn of_redb(path: PathBuf, error: DatabaseError) -> Self {
        match redb::Error::from(error) {
            redb::Error::DatabaseAlreadyOpen => Self::InUse { path },
            redb::Error::Corrupted(problem) => Self::Damaged { path, problem },
            redb::Error::Io(source) => match source.kind() {
                io::ErrorKind::InvalidData => Self::NotADatabase { path },
                _ => Self::Place { path, source },
            },
            source => Self::Database { path, source },
        }
    }
}
