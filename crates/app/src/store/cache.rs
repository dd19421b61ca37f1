//! The cache folder: `$ROCI_HOME`, or `roci` in the user's cache folder.
//!
//!   models/NAME/FILE.gguf   files of the short-name table
//!   hub/models--.../        files of the hub, in the hub's own layout
//!   downloads/              unfinished downloads and the locks that guard them
//!
//! A file under `models` or `hub` is whole: it got there by a rename after its checksum was right.

use crate::report::HintExt;
use anyhow::{Context, Result, bail};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// The folder and what is in it.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

/// A model that is here.
#[derive(Debug)]
pub struct Entry {
    /// What `roci run` calls it.
    pub name: String,
    pub path: PathBuf,
    pub n_bytes: u64,
}

/// Holds a name's lock until dropped.
#[derive(Debug)]
pub struct Guard {
    _file: File,
}

impl Cache {
    pub fn from_env() -> Result<Self> {
        let set = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = set("ROCI_HOME")
            .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("roci")))
            .or_else(|| set("HOME").map(|home| home.join(".cache/roci")));
        match root {
            Some(root) => Ok(Self { root }),
            None => Err(anyhow::anyhow!("no folder for models: HOME is not set"))
                .hint("set ROCI_HOME to a folder for models"),
        }
    }

    #[cfg(test)]
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn model_path(&self, name: &str, file: &str) -> PathBuf {
        self.root.join("models").join(name).join(file)
    }

    /// The hub's own cache layout, in a folder of ours.
    pub fn hub(&self) -> hf_hub::Cache {
        hf_hub::Cache::new(self.root.join("hub"))
    }

    /// Where an unfinished download waits; `key` is any text.
    pub fn part_path(&self, key: &str) -> PathBuf {
        self.downloads().join(format!("{}.part", file_name_of(key)))
    }

    fn downloads(&self) -> PathBuf {
        self.root.join("downloads")
    }

    pub fn create_parent(&self, path: &Path) -> Result<()> {
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create the folder `{}`", parent.display()))
            .hint("set ROCI_HOME to a writable folder")
    }

    /// Waits until no other process fetches the same thing, and says so.
    pub fn lock(&self, key: &str) -> Result<Guard> {
        let file = self.open_lock(key)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!("waiting: another roci is fetching `{key}`");
                file.lock().with_context(|| format!("cannot lock `{key}`"))?;
            }
            Err(TryLockError::Error(error)) => return Err(error).context(format!("cannot lock `{key}`")),
        }
        Ok(Guard { _file: file })
    }

    fn open_lock(&self, key: &str) -> Result<File> {
        let path = self.downloads().join(format!("{}.lock", file_name_of(key)));
        self.create_parent(&path)?;
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        file.with_context(|| format!("cannot open `{}`", path.display())).hint("set ROCI_HOME to a writable folder")
    }

    /// Everything that is here, by name.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for folder in folders(&self.root.join("models"))? {
            for path in files_under(&folder)? {
                let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                push_entry(&mut entries, name, path);
            }
        }
        for folder in folders(&self.root.join("hub"))? {
            let folder_name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(repo) = folder_name.strip_prefix("models--") else { continue };
            let repo = repo.replacen("--", "/", 1);
            for snapshot in folders(&folder.join("snapshots"))? {
                for path in files_under(&snapshot)? {
                    let file = path.strip_prefix(&snapshot).unwrap_or(&path).display().to_string();
                    push_entry(&mut entries, format!("hf:{repo}:{file}"), path);
                }
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Removes one model, with what its download left behind; returns the bytes freed.
    pub fn remove(&self, entry: &Entry) -> Result<u64> {
        // A hub file is guarded by its repository's lock.
        let key = match entry.name.strip_prefix("hf:").and_then(|rest| rest.split_once(':')) {
            Some((repo, _)) => format!("hf:{repo}"),
            None => entry.name.clone(),
        };
        let key = key.as_str();
        let guard = self.open_lock(key)?;
        match guard.try_lock() {
            Err(TryLockError::WouldBlock) => bail!("`{key}` is being downloaded by another roci"),
            other => other.with_context(|| format!("cannot lock `{key}`"))?,
        }
        // In the hub's layout the name is a link; the bytes lie under `blobs`.
        let target = fs::canonicalize(&entry.path).unwrap_or_else(|_| entry.path.clone());
        for path in [&entry.path, &target] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove `{}`", path.display()));
                }
                _ => {}
            }
        }
        let mut folder = entry.path.parent();
        // Folders that are now empty, up to the root.
        while let Some(empty) = folder.filter(|folder| *folder != self.root && fs::remove_dir(folder).is_ok()) {
            folder = empty.parent();
        }
        Ok(entry.n_bytes)
    }

    /// Removes everything, unfinished downloads included; returns the bytes freed.
    pub fn remove_all(&self) -> Result<u64> {
        let mut n_bytes = 0;
        for entry in self.entries()? {
            n_bytes += self.remove(&entry)?;
        }
        for path in files_under(&self.downloads())? {
            // A lock file stays while someone may hold it; a part that is being written goes on unseen.
            if path.extension().is_some_and(|ending| ending == "part") {
                n_bytes += fs::metadata(&path).map_or(0, |meta| meta.len());
                fs::remove_file(&path).with_context(|| format!("cannot remove `{}`", path.display()))?;
            }
        }
        let hub = self.root.join("hub");
        if hub.exists() {
            fs::remove_dir_all(&hub).with_context(|| format!("cannot remove `{}`", hub.display()))?;
        }
        Ok(n_bytes)
    }
}

fn push_entry(entries: &mut Vec<Entry>, name: String, path: PathBuf) {
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"))
        && let Ok(meta) = fs::metadata(&path)
    {
        entries.push(Entry { name, path, n_bytes: meta.len() });
    }
}

fn folders(path: &Path) -> Result<Vec<PathBuf>> {
    Ok(children(path)?.into_iter().filter(|child| child.is_dir()).collect())
}

/// Files at any depth below `path` (a file of a hub repository may lie in a subfolder).
fn files_under(path: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for child in children(path)? {
        if child.is_dir() { files.extend(files_under(&child)?) } else { files.push(child) }
    }
    Ok(files)
}

fn children(path: &Path) -> Result<Vec<PathBuf>> {
    let read = match fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read the folder `{}`", path.display()))?,
    };
    let mut paths: Vec<PathBuf> = read.filter_map(|child| Some(child.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

/// A file name for any key: what is not plainly safe becomes `_`.
fn file_name_of(key: &str) -> String {
    key.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' }).collect()
}
