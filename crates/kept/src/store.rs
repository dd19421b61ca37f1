//! All places where blocks are kept, as one: host memory first, then the disk, then a session file that was opened. The
//! engine puts in what is evicted from its pool and asks for it by name. Whatever is missing or damaged, it computes.

use std::{path::PathBuf, time::Instant};

use serde::{Deserialize, Serialize};

use crate::{Entry, Identity, KeptKind, Name, Result, Session, disk::DiskTier, host::HostTier};

/// Where blocks may be kept.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StoreOptions {
    /// Bytes of host memory.
    pub host_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// The folder on disk.
    pub folder: PathBuf,
    /// A session to go on with.
    pub session: Option<PathBuf>,
}

/// What a store did since its start.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StoreCounters {
    /// Blocks and states that went back to the pool, by where they were found.
    pub n_from_host: u64,
    pub n_from_disk: u64,
    pub n_from_session: u64,
    /// Were listed and could not be used: cut, changed, or gone.
    pub n_broken: u64,
    /// Were dropped because the disk did not keep up or refused them.
    pub n_dropped: u64,
}

impl StoreCounters {
    /// Without what was there before.
    pub fn since(self, before: Self) -> Self {
        Self {
            n_from_host: self.n_from_host.saturating_sub(before.n_from_host),
            n_from_disk: self.n_from_disk.saturating_sub(before.n_from_disk),
            n_from_session: self.n_from_session.saturating_sub(before.n_from_session),
            n_broken: self.n_broken.saturating_sub(before.n_broken),
            n_dropped: self.n_dropped.saturating_sub(before.n_dropped),
        }
    }
}

impl std::ops::AddAssign for StoreCounters {
    fn add_assign(&mut self, other: Self) {
        self.n_from_host += other.n_from_host;
        self.n_from_disk += other.n_from_disk;
        self.n_from_session += other.n_from_session;
        self.n_broken += other.n_broken;
        self.n_dropped += other.n_dropped;
    }
}

/// What a store holds.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sizes {
    pub n_on_host: u64,
    pub host_bytes: u64,
    pub n_on_disk: u64,
    pub disk_bytes: u64,
}

#[derive(Debug)]
pub struct BlockStore {
    host: Option<HostTier>,
    disk: Option<DiskTier>,
    session: Option<Session>,
    identity: Identity,
    counters: StoreCounters,
    lost: Vec<Name>,
    start: Instant,
}

impl BlockStore {
    /// Opens what was asked for, of what belongs to `identity`. What is not available is left out and named in the notes: no
    /// answer depends on it.
    pub fn open(options: &StoreOptions, identity: Identity) -> (Self, Vec<String>) {
        let mut notes = Vec::new();
        let mut noted = |outcome: Result<DiskTier>| outcome.map_err(|error| notes.push(error.to_string())).ok();
        let wants_disk = options.disk_bytes > 0;
        let disk = wants_disk.then(|| noted(DiskTier::open(&options.folder, identity, options.disk_bytes))).flatten();
        let session = match options.session.as_deref().filter(|path| path.exists()).map(Session::open) {
            Some(Ok(session)) if session.identity() == identity => Some(session),
            Some(Ok(session)) => {
                let path = session.path().display();
                notes.push(format!("{path} is of another model, build or device: its text is computed again"));
                None
            }
            Some(Err(error)) => {
                notes.push(error.to_string());
                None
            }
            None => None,
        };
        let host = (options.host_bytes > 0).then(|| HostTier::new(options.host_bytes));
        let (counters, lost, start) = (StoreCounters::default(), Vec::new(), Instant::now());
        (Self { host, disk, session, identity, counters, lost, start }, notes)
    }

    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// What was here at the start.
    pub fn names(&self) -> Vec<Name> {
        let disk = self.disk.iter().flat_map(DiskTier::names);
        disk.chain(self.session.iter().flat_map(Session::names)).collect()
    }

    /// Whether a block that leaves the pool should be put here.
    pub fn wants(&self, name: &Name, n_bytes: usize) -> bool {
        match (&self.host, &self.disk) {
            (Some(host), _) => !host.contains(name),
            (None, Some(disk)) => !disk.contains(name) && disk.has_room(n_bytes),
            (None, None) => false,
        }
    }

    /// Whether a block that nobody uses at the moment should be written to disk, for the next process.
    pub fn wants_copy(&self, name: &Name, n_bytes: usize) -> bool {
        let disk = self.disk.as_ref();
        disk.is_some_and(|disk| !disk.contains(name) && disk.has_room(n_bytes))
    }

    /// Whether anything survives this process.
    pub fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// A block left the pool.
    pub fn put(&mut self, entry: Entry, bytes: Vec<u8>) {
        let Some(host) = &mut self.host else { return self.put_on_disk(entry, bytes) };
        for (entry, bytes) in host.put(entry, bytes, self.start.elapsed().as_secs()) {
            self.put_on_disk(entry, bytes);
        }
    }

    /// A copy of a block that the pool still has.
    pub fn put_on_disk(&mut self, entry: Entry, bytes: Vec<u8>) {
        match &mut self.disk {
            Some(disk) => self.lost.extend(disk.put(entry, bytes)),
            None => self.lost.push(entry.name),
        }
    }

    /// Copies what only host memory has to disk, up to so many bytes. Says whether there was anything.
    pub fn save_host(&mut self, max_bytes: usize) -> bool {
        let (Some(host), Some(disk)) = (&self.host, &mut self.disk) else { return false };
        let mut n_bytes = 0;
        let mut copies = Vec::new();
        for (entry, bytes) in host.blocks() {
            if n_bytes < max_bytes && !disk.contains(&entry.name) && disk.has_room(n_bytes + bytes.len()) {
                n_bytes += bytes.len();
                copies.push((*entry, bytes.clone()));
            }
        }
        let is_any = !copies.is_empty();
        for (entry, bytes) in copies {
            self.lost.extend(disk.put(entry, bytes));
        }
        is_any
    }

    /// The bytes of a block that goes back to the pool; `None`: compute it.
    pub fn take(&mut self, entry: &Entry, n_bytes: usize) -> Option<Vec<u8>> {
        let on_host = self.host.as_mut().and_then(|host| match entry.name.kind {
            KeptKind::Block | KeptKind::Window => host.take(&entry.name),
            // A sequence changes its state as it runs; the next one starts from here too.
            KeptKind::State => host.get(&entry.name).cloned(),
        });
        if let Some((_, bytes)) = on_host.filter(|(kept, bytes)| kept == entry && bytes.len() == n_bytes) {
            self.counters.n_from_host += 1;
            // A block is the pool's now, unless the disk has it too.
            self.lost.push(entry.name);
            return Some(bytes);
        }
        let is_right = |bytes: &Vec<u8>| bytes.len() == n_bytes;
        if let Some(bytes) = self.disk.as_mut().and_then(|disk| disk.read(entry)).filter(is_right) {
            self.counters.n_from_disk += 1;
            return Some(bytes);
        }
        if let Some(bytes) = self.session.as_mut().and_then(|session| session.read(entry)).filter(is_right) {
            self.counters.n_from_session += 1;
            return Some(bytes);
        }
        self.counters.n_broken += 1;
        // Whatever is wrong with it, nobody is to find it again.
        self.disk.iter_mut().for_each(|disk| disk.remove(&entry.name));
        self.session.iter_mut().for_each(|session| session.remove(&entry.name));
        self.lost.push(entry.name);
        None
    }

    /// Names that have gone since the last call. Some of them may still be kept elsewhere.
    pub fn take_lost(&mut self) -> Vec<Name> {
        let failed = self.disk.as_mut().map(DiskTier::take_failed).unwrap_or_default();
        let lost: Vec<Name> = std::mem::take(&mut self.lost).into_iter().chain(failed).collect();
        lost.into_iter().filter(|name| !self.contains(name)).collect()
    }

    pub fn contains(&self, name: &Name) -> bool {
        self.host.as_ref().is_some_and(|host| host.contains(name))
            || self.disk.as_ref().is_some_and(|disk| disk.contains(name))
            || self.session.as_ref().is_some_and(|session| session.contains(name))
    }

    pub fn counters(&self) -> StoreCounters {
        let n_dropped = self.disk.as_ref().map_or(0, |disk| disk.n_dropped);
        StoreCounters { n_dropped, ..self.counters }
    }

    pub fn sizes(&self) -> Sizes {
        let host = self.host.as_ref().map_or((0, 0), |host| (host.len() as u64, host.n_bytes()));
        let disk = self.disk.as_ref().map_or((0, 0), |disk| (disk.len() as u64, disk.n_bytes()));
        Sizes { n_on_host: host.0, host_bytes: host.1, n_on_disk: disk.0, disk_bytes: disk.1 }
    }
}
