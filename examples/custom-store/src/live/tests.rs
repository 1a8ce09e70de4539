use std::{
    fs::{File, OpenOptions},
    io,
    ops::Bound,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_core::{
    Answer, Claim, Fenced, Fingerprint, Key, ManualClock, Response, Retention, Scope, Store, StoreErrorKind, Timestamp,
    Token,
};
use redb::{BackendError, StorageBackend, backends::FileBackend};
use tempfile::TempDir;

use super::*;
use crate::{RedbStore, clock::Clock, file::FileId, schema, store::Shared};

/// A file on a disk that can be full: nothing can be written or synced meanwhile.
#[derive(Debug)]
struct Disk {
    file: FileBackend,
    is_full: Arc<AtomicBool>,
}

impl Disk {
    fn room(&self) -> io::Result<()> {
        if self.is_full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.room()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room()?;
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }
}

/// A store on such a disk, and the switch that makes it full.
fn store(dir: &TempDir) -> (RedbStore, Arc<AtomicBool>) {
    let (path, is_full) = (dir.path().join("idem.redb"), Arc::new(AtomicBool::new(false)));
    let opened = open(&path, &is_full, OpenOptions::new().create(true)).unwrap();
    schema::prepare(&opened, &path).unwrap();
    let file = FileId::of(&path).unwrap();
    let (same, switch) = (file.clone(), Arc::clone(&is_full));
    let live = Live::new(opened, move || {
        same.verify()?;
        open(same.path(), &switch, &mut OpenOptions::new())
    });
    let clock = Clock::Manual(ManualClock::starting_at(Timestamp::from_millis(1_000)));
    let shared = Arc::new(Shared::start(live, file).unwrap());
    (RedbStore::of(shared, clock, Duration::from_secs(60)), is_full)
}

fn open(path: &Path, is_full: &Arc<AtomicBool>, options: &mut OpenOptions) -> Result<Database, DatabaseError> {
    let file: File = options.read(true).write(true).open(path)?;
    Database::builder().create_with_backend(Disk { file: FileBackend::new(file)?, is_full: Arc::clone(is_full) })
}

fn claim_of(name: &str, token: u8) -> Claim {
    let fingerprint = Fingerprint::builder().part("body", "the request").build().unwrap();
    Claim::new(Scope::new("tenant").unwrap(), Key::new(name).unwrap(), Token::from_bytes([token; 16]), fingerprint)
}

#[tokio::test]
async fn a_full_disk_is_unavailable_and_the_store_works_again_as_soon_as_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let (store, is_full) = store(&dir);
    let Answer::Claimed(grant) = idem_core::claim(&store, &claim_of("k-1", 1)).await.unwrap() else { panic!() };
    for _ in 0..3 {
        is_full.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            let response = Response::new(201).with_body(vec![7; 100_000]);
            let error = store.complete(grant.owner(), &response, Retention::default()).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
            let error = idem_core::claim(&store, &claim_of("k-2", 2)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        }
        is_full.store(false, Ordering::SeqCst);
        // Repeated with its token, it is the same attempt, whatever became of the others.
        let Answer::Claimed(second) = idem_core::claim(&store, &claim_of("k-2", 2)).await.unwrap() else { panic!() };
        assert_eq!(second.number(), 1);
        store.check().await.unwrap();
    }
    let completed = store.complete(grant.owner(), &Response::new(201), Retention::default()).await.unwrap();
    assert_eq!(completed, Fenced::Written(Response::new(201)), "none of the completions that failed is there");
    assert!(matches!(idem_core::claim(&store, &claim_of("k-1", 3)).await.unwrap(), Answer::Replay { .. }));
}

#[tokio::test]
async fn what_a_full_disk_kept_from_being_read_can_be_read_after_the_next_write() {
    let dir = tempfile::tempdir().unwrap();
    let (store, is_full) = store(&dir);
    let claim = claim_of("k-1", 1);
    idem_core::claim(&store, &claim).await.unwrap();
    is_full.store(true, Ordering::SeqCst);
    idem_core::claim(&store, &claim_of("k-2", 2)).await.unwrap_err();
    is_full.store(false, Ordering::SeqCst);
    store.check().await.unwrap();
    assert!(store.read(claim.scope(), claim.key()).await.unwrap().is_some());
}

// An empty file in its place would forget every record without a word.
#[tokio::test]
async fn a_file_that_has_gone_is_never_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (store, is_full) = store(&dir);
    idem_core::claim(&store, &claim_of("k-1", 1)).await.unwrap();
    let path: PathBuf = dir.path().join("idem.redb");
    std::fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    assert_eq!(store.check().await.unwrap_err().kind(), StoreErrorKind::Configuration);
    is_full.store(true, Ordering::SeqCst);
    idem_core::claim(&store, &claim_of("k-2", 2)).await.unwrap_err();
    is_full.store(false, Ordering::SeqCst);
    let error = idem_core::claim(&store, &claim_of("k-1", 3)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Configuration, "{error}");
    assert!(!path.exists());
    std::fs::rename(dir.path().join("elsewhere"), &path).unwrap();
    assert!(matches!(idem_core::claim(&store, &claim_of("k-1", 3)).await.unwrap(), Answer::Conflict { .. }));
}
