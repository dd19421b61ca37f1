//! Machine code on disk, one file per key. Written beside its place and renamed into it, under a file
//! lock per key, so that two processes compile a kernel once and nobody ever reads half a file. A file
//! carries a digest of its payload; one that does not match is made again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"ROCIKRN1";
const HEADER: usize = MAGIC.len() + 32;

/// Where compiled kernels are kept, or nowhere.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
}

/// A cached kernel, for listings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CachedKernel {
    /// The program's name.
    pub name: String,
    /// Size of the file.
    pub bytes: u64,
}

impl Cache {
    /// Keeps its files in this folder, which is created when the first is written.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// Compile every time.
    pub fn off() -> Self {
        Self { folder: None }
    }

    /// `$ROCI_KERNEL_CACHE`, else `cache/kernels` in `$ROCI_HOME`, else `roci/kernels` in the user's cache folder, else
    /// off.
    pub fn of_user() -> Self {
        let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let of_xdg = || named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
        let folder = named("ROCI_KERNEL_CACHE")
            .or_else(|| named("ROCI_HOME").map(|home| home.join("cache").join("kernels")))
            .or_else(|| of_xdg().map(|base| base.join("roci").join("kernels")));
        Self { folder }
    }

    /// Where the files are; `None` where nothing is kept.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// What is there, in the order of the names.
    pub fn entries(&self) -> Result<Vec<CachedKernel>> {
        let Some(folder) = self.folder().filter(|folder| folder.is_dir()) else { return Ok(Vec::new()) };
        let mut entries = Vec::new();
        for file in fs::read_dir(folder).map_err(|error| failed(folder, &error))?.flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            if let Some(name) = name.strip_suffix(".co") {
                entries
                    .push(CachedKernel { name: name.to_owned(), bytes: file.metadata().map(|m| m.len()).unwrap_or(0) });
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Removes every kernel, with what an interrupted compilation left; how many, and their bytes.
    pub fn clear(&self) -> Result<(usize, u64)> {
        let entries = self.entries()?;
        let Some(folder) = self.folder().filter(|folder| folder.is_dir()) else { return Ok((0, 0)) };
        for file in fs::read_dir(folder).map_err(|error| failed(folder, &error))?.flatten() {
            let path = file.path();
            let is_ours = path.extension().is_some_and(|end| end == "co" || end == "lock" || end == "part");
            if is_ours {
                fs::remove_file(&path).map_err(|error| failed(&path, &error))?;
            }
        }
        Ok((entries.len(), entries.iter().map(|entry| entry.bytes).sum()))
    }

    /// The payload kept under `stem`.
    pub(crate) fn get(&self, stem: &str) -> Option<Vec<u8>> {
        self.folder().and_then(|folder| read(&folder.join(format!("{stem}.co"))))
    }

    /// The payload kept under `stem`, or what `make` gives, kept from now on. The flag says which.
    /// A cache that cannot be written is no reason to stop: the payload is used and not kept.
    pub(crate) fn get_or_make(&self, stem: &str, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<(Vec<u8>, bool)> {
        let Some(folder) = self.folder() else { return Ok((make()?, false)) };
        let path = folder.join(format!("{stem}.co"));
        if let Some(payload) = read(&path) {
            return Ok((payload, true));
        }
        let lock = fs::create_dir_all(folder)
            .and_then(|()| File::create(folder.join(format!("{stem}.lock"))))
            .and_then(|file| file.lock().map(|()| file));
        let Ok(lock) = lock else { return Ok((make()?, false)) };
        // Another process may have been here while this one waited for the lock.
        if let Some(payload) = read(&path) {
            return Ok((payload, true));
        }
        let payload = make()?;
        let _ = write(&path, &payload);
        let _ = fs::remove_file(folder.join(format!("{stem}.lock")));
        drop(lock);
        Ok((payload, false))
    }
}

fn failed(path: &Path, error: &io::Error) -> Error {
    Error::Cache { path: path.display().to_string(), why: error.to_string() }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(path).ok()?;
    if bytes.len() <= HEADER || &bytes[..MAGIC.len()] != MAGIC {
        return None;
    }
    let payload = bytes.split_off(HEADER);
    (bytes[MAGIC.len()..] == Sha256::digest(&payload)[..]).then_some(payload)
}

fn write(path: &Path, payload: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let beside = path.with_extension(format!("{unique}.part"));
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(MAGIC)?;
        file.write_all(&Sha256::digest(payload))?;
        file.write_all(payload)?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&beside, path));
    if renamed.is_err() {
        let _ = fs::remove_file(&beside);
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("gpu-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn makes_once_and_keeps() {
        let cache = Cache::at(scratch("once"));
        let (first, was_there) = cache.get_or_make("k-gfx1100-00", || Ok(vec![1, 2, 3])).unwrap();
        assert_eq!((first.as_slice(), was_there), ([1, 2, 3].as_slice(), false));
        let (second, was_there) = cache.get_or_make("k-gfx1100-00", || panic!("already kept")).unwrap();
        assert_eq!((second.as_slice(), was_there), ([1, 2, 3].as_slice(), true));
        assert_eq!(cache.entries().unwrap(), [CachedKernel { name: "k-gfx1100-00".into(), bytes: HEADER as u64 + 3 }]);
        fs::write(cache.folder().unwrap().join("notes.txt"), "not ours").unwrap();
        assert_eq!(cache.clear().unwrap(), (1, HEADER as u64 + 3));
        assert!(cache.entries().unwrap().is_empty() && cache.folder().unwrap().join("notes.txt").exists());
        fs::remove_dir_all(cache.folder().unwrap()).unwrap();
    }

    #[test]
    fn a_damaged_or_cut_file_is_made_again() {
        let cache = Cache::at(scratch("damaged"));
        let make = |value: u8| cache.get_or_make("k", move || Ok(vec![value; 100])).unwrap();
        make(7);
        let path = cache.folder().unwrap().join("k.co");
        let whole = fs::read(&path).unwrap();
        for cut in [0, 5, HEADER, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(make(8), (vec![8; 100], false), "cut at {cut}");
        }
        let mut flipped = whole.clone();
        flipped[HEADER + 50] ^= 1;
        fs::write(&path, &flipped).unwrap();
        assert_eq!(make(9), (vec![9; 100], false));
        fs::remove_dir_all(cache.folder().unwrap()).unwrap();
    }

    #[test]
    fn many_threads_make_it_once() {
        let cache = Cache::at(scratch("threads"));
        let made = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let make = || {
                        made.fetch_add(1, Ordering::Relaxed);
                        Ok(vec![5; 1 << 16])
                    };
                    assert_eq!(cache.get_or_make("k", make).unwrap().0, vec![5; 1 << 16]);
                });
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), 1);
        fs::remove_dir_all(cache.folder().unwrap()).unwrap();
    }

    #[test]
    fn a_failed_make_is_not_kept() {
        let cache = Cache::at(scratch("failed"));
        let failure = || Err(Error::Cache { path: "x".into(), why: "no".into() });
        assert!(cache.get_or_make("k", failure).is_err());
        assert_eq!(cache.get_or_make("k", || Ok(vec![1])).unwrap(), (vec![1], false));
        fs::remove_dir_all(cache.folder().unwrap()).unwrap();
    }
}
