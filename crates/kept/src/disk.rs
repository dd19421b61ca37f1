//! A folder with one file per block, up to a number of bytes. It belongs to one process at a time; the next process
//! finds what the last one left. A separate thread writes and deletes, so storing a block never waits for the disk. If
//! the disk cannot keep up, blocks are dropped.

use std::{
    collections::HashMap,
    fs, io,
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    Entry, Error, Identity, Name, Result,
    recency::Recency,
    record::{self, HEADER_BYTES},
};

/// Blocks that wait to be written take no more than this.
pub const MAX_UNWRITTEN_BYTES: usize = 256 << 20;
/// Its lock says who owns the folder, and its time when the folder was last used.
const LOCK: &str = "lock";

#[derive(Debug)]
pub struct DiskTier {
    folder: PathBuf,
    identity: Identity,
    recency: Recency,
    max_bytes: u64,
    unwritten: Arc<Mutex<Unwritten>>,
    jobs: Option<Sender<DiskJob>>,
    writer: Option<JoinHandle<()>>,
    /// Blocks that could not be taken.
    pub n_dropped: u64,
    _lock: fs::File,
}

#[derive(Debug, Default)]
struct Unwritten {
    blocks: HashMap<Name, Arc<(Entry, Vec<u8>)>>,
    n_bytes: usize,
    /// Could not be written.
    failed: Vec<Name>,
}

enum DiskJob {
    Write(Arc<(Entry, Vec<u8>)>),
    Delete(Name),
}

impl DiskTier {
    /// Opens the part of `root` that belongs to this identity. Folders of other identities that nobody uses are removed,
    /// the oldest first, as far as everything together is too large.
    pub fn open(root: &Path, identity: Identity, max_bytes: u64) -> Result<Self> {
        let folder = root.join(identity.to_string());
        let failed = |source| Error::Folder { path: folder.clone(), source };
        fs::create_dir_all(&folder).map_err(failed)?;
        let lock = lock(&folder).map_err(failed)?.ok_or_else(|| Error::Locked { path: folder.clone() })?;
        let mut recency = Recency::default();
        for file in files(&folder).map_err(failed)? {
            // The depth is in the file; until it is read, all are as deep.
            match file.name {
                Some(name) => recency.note(name, file.minutes, 0, file.n_bytes),
                None => drop(fs::remove_file(&file.path)),
            }
        }
        make_room(root, &folder, max_bytes.saturating_sub(recency.n_bytes()));
        let unwritten = Arc::<Mutex<Unwritten>>::default();
        let (jobs, writer) = spawn_writer(&folder, identity, &unwritten).map_err(failed)?;
        let mut disk = Self {
            folder,
            identity,
            recency,
            max_bytes,
            unwritten,
            jobs: Some(jobs),
            writer: Some(writer),
            n_dropped: 0,
            _lock: lock,
        };
        // The bound may be smaller than last time.
        disk.shrink();
        Ok(disk)
    }

    pub fn n_bytes(&self) -> u64 {
        self.recency.n_bytes()
    }

    pub fn len(&self) -> usize {
        self.recency.len()
    }

    pub fn contains(&self, name: &Name) -> bool {
        self.recency.contains(name)
    }

    pub fn names(&self) -> impl Iterator<Item = Name> {
        self.recency.names()
    }

    /// Whether a block of so many bytes would be taken now.
    pub fn has_room(&self, n_bytes: usize) -> bool {
        self.unwritten().n_bytes + n_bytes <= MAX_UNWRITTEN_BYTES
    }

    /// Takes a block in. What is not here afterwards comes back: what made room, and the block itself where the disk does
    /// not keep up.
    pub fn put(&mut self, entry: Entry, bytes: Vec<u8>) -> Vec<Name> {
        let n_bytes = (bytes.len() + HEADER_BYTES) as u64;
        if self.contains(&entry.name) {
            self.recency.note(entry.name, now(), entry.depth, n_bytes);
            return Vec::new();
        }
        if n_bytes > self.max_bytes || !self.has_room(bytes.len()) {
            self.n_dropped += 1;
            return vec![entry.name];
        }
        let block = Arc::new((entry, bytes));
        let mut unwritten = self.unwritten();
        unwritten.n_bytes += block.1.len();
        unwritten.blocks.insert(entry.name, Arc::clone(&block));
        drop(unwritten);
        self.tell(DiskJob::Write(block));
        self.recency.note(entry.name, now(), entry.depth, n_bytes);
        self.shrink()
    }

    /// The bytes of a block, if they are here and whole. Broken ones are deleted.
    pub fn read(&mut self, entry: &Entry) -> Option<Vec<u8>> {
        let name = entry.name;
        if !self.contains(&name) {
            return None;
        }
        let waiting = self.unwritten().blocks.get(&name).cloned();
        let found = match waiting {
            Some(block) => (block.0 == *entry).then(|| block.1.clone()),
            None => read(&self.path(&name))
                .and_then(|(header, bytes)| record::is_whole(&self.identity, entry, &header, &bytes).then_some(bytes)),
        };
        match &found {
            Some(bytes) => self.recency.note(name, now(), entry.depth, (bytes.len() + HEADER_BYTES) as u64),
            None => self.remove(&name),
        }
        found
    }

    /// What was taken in and could not be written.
    pub fn take_failed(&mut self) -> Vec<Name> {
        let failed = std::mem::take(&mut self.unwritten().failed);
        for name in &failed {
            self.recency.remove(name);
        }
        self.n_dropped += failed.len() as u64;
        failed
    }

    pub fn remove(&mut self, name: &Name) {
        self.recency.remove(name);
        self.tell(DiskJob::Delete(*name));
    }

    fn shrink(&mut self) -> Vec<Name> {
        let mut gone = Vec::new();
        while self.recency.n_bytes() > self.max_bytes {
            let Some(first) = self.recency.first_to_go() else { break };
            self.remove(&first);
            gone.push(first);
        }
        gone
    }

    fn tell(&self, job: DiskJob) {
        // A writer that ended has panicked: then files stay as they are.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }

    fn path(&self, name: &Name) -> PathBuf {
        path(&self.folder, name)
    }

    fn unwritten(&self) -> MutexGuard<'_, Unwritten> {
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DiskTier {
    /// What was taken in is written.
    fn drop(&mut self) {
        self.jobs = None;
        let _ = self.writer.take().map(JoinHandle::join);
    }
}

/// In folders of a 256th each.
fn path(folder: &Path, name: &Name) -> PathBuf {
    folder.join(format!("{:02x}", name.key.0[0])).join(name.file_name())
}

fn read(path: &Path) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut file = fs::File::open(path).ok()?;
    let mut header = vec![0; HEADER_BYTES];
    file.read_exact(&mut header).ok()?;
    let mut bytes = Vec::with_capacity(file.metadata().ok()?.len().try_into().ok()?);
    file.read_to_end(&mut bytes).ok()?;
    Some((header, bytes))
}

fn spawn_writer(
    folder: &Path,
    identity: Identity,
    unwritten: &Arc<Mutex<Unwritten>>,
) -> io::Result<(Sender<DiskJob>, JoinHandle<()>)> {
    let (jobs, todo) = mpsc::channel();
    let (folder, unwritten) = (folder.to_owned(), Arc::clone(unwritten));
    let work = move || {
        for job in todo {
            match job {
                DiskJob::Delete(name) => drop(fs::remove_file(path(&folder, &name))),
                DiskJob::Write(block) => {
                    let (entry, bytes) = &*block;
                    let outcome = write(&folder, &identity, entry, bytes);
                    let mut unwritten = unwritten.lock().unwrap_or_else(PoisonError::into_inner);
                    unwritten.n_bytes -= bytes.len();
                    // Deleted and put again, the name may stand for a later write.
                    if unwritten.blocks.get(&entry.name).is_some_and(|other| Arc::ptr_eq(other, &block)) {
                        unwritten.blocks.remove(&entry.name);
                    }
                    if outcome.is_err() {
                        unwritten.failed.push(entry.name);
                    }
                }
            }
        }
    };
    Ok((jobs, thread::Builder::new().name("kept".into()).spawn(work)?))
}

/// Under another name first: who finds the file finds all of it.
fn write(folder: &Path, identity: &Identity, entry: &Entry, bytes: &[u8]) -> io::Result<()> {
    let path = path(folder, &entry.name);
    let parent = path.parent().unwrap_or(folder);
    fs::create_dir_all(parent)?;
    let mut file = tempfile::NamedTempFile::new_in(parent)?;
    file.write_all(&record::header(identity, entry, bytes))?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

struct FoundFile {
    path: PathBuf,
    /// `None`: what a process left that ended while it wrote.
    name: Option<Name>,
    n_bytes: u64,
    minutes: u64,
}

fn files(folder: &Path) -> io::Result<Vec<FoundFile>> {
    let mut found = Vec::new();
    for part in fs::read_dir(folder)?.flatten().filter(|part| part.path().is_dir()) {
        for file in fs::read_dir(part.path())?.flatten() {
            let Ok(about) = file.metadata() else { continue };
            let name = file.file_name().to_str().and_then(Name::of_file);
            let minutes = minutes(about.modified().unwrap_or(UNIX_EPOCH));
            found.push(FoundFile { path: file.path(), name, n_bytes: about.len(), minutes });
        }
    }
    Ok(found)
}

/// `None` where another process has it.
fn lock(folder: &Path) -> io::Result<Option<fs::File>> {
    let file = fs::File::options().create(true).truncate(false).write(true).open(folder.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => {
            // Only the order of folders depends on it.
            let _ = file.set_modified(SystemTime::now());
            Ok(Some(file))
        }
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Removes folders of other identities, least recently used first, until the rest takes no more than `max_bytes`. One that is
/// in use stays.
fn make_room(root: &Path, own: &Path, max_bytes: u64) {
    let others = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_ours = |path: &PathBuf| path != own && path.join(LOCK).is_file();
    let mut others: Vec<(SystemTime, u64, PathBuf)> = others
        .filter(is_ours)
        .map(|path| {
            let used = fs::metadata(path.join(LOCK)).and_then(|about| about.modified()).unwrap_or(UNIX_EPOCH);
            let n_bytes = files(&path).unwrap_or_default().iter().map(|file| file.n_bytes).sum();
            (used, n_bytes, path)
        })
        .collect();
    others.sort();
    let mut n_bytes: u64 = others.iter().map(|(_, n_bytes, _)| n_bytes).sum();
    for (_, size, path) in others {
        if n_bytes <= max_bytes {
            return;
        }
        if let Ok(Some(_lock)) = lock(&path) {
            let _ = fs::remove_dir_all(&path);
            n_bytes -= size;
        }
    }
}

/// Of the clock on the wall, which the next process knows too. Coarse, so that a text is as old as a whole.
fn now() -> u64 {
    minutes(SystemTime::now())
}

fn minutes(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs() / 60
}
