//! The models on this machine, in the data folder ([`Folders`]):
//!
//!   models/NAME/FILE.gguf   files of the library that are known by their checksum
//!   hub/models--.../        files of the hub, in the hub's own layout
//!   names/NAME.toml         what a name stands for ([`Named`]): fetched by name, copied, created
//!   downloads/              unfinished downloads and the locks that guard them
//!
//! A file under `models` or `hub` is whole: it got there by a rename after its checksum was right.

use crate::choice;
use crate::event::{Observer, PullEvent};
use crate::folders::Folders;
use crate::hint::HintExt;
use crate::named::Named;
use anyhow::{Context, Result, anyhow, bail};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The folder and what is in it.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
    /// Where earlier versions kept models: read, never written.
    older: Option<PathBuf>,
}

/// A model that is here.
#[derive(Debug, Clone)]
pub struct StoredModel {
    /// What `roci run` calls it.
    pub name: String,
    /// Its file, or the first of its parts.
    pub path: PathBuf,
    /// Of all parts.
    pub n_bytes: u64,
    /// When the file was written or, for a name of its own, when that was given.
    pub modified: Option<SystemTime>,
    /// How it is used, where it has a name of its own.
    pub named: Option<Named>,
}

impl StoredModel {
    /// SHA-256 of the file where its place tells it: the hub names files by their checksum.
    pub fn digest(&self) -> Option<String> {
        let target = fs::canonicalize(&self.path).ok()?;
        let name = target.file_name()?.to_str()?;
        is_sha256(name).then(|| name.to_lowercase())
    }
}

/// Holds a name's lock until dropped.
#[derive(Debug)]
pub struct NameLock {
    _file: File,
}

impl Store {
    pub fn from_env() -> Result<Self> {
        Ok(Self::in_folders(&Folders::from_env()?))
    }

    pub fn in_folders(folders: &Folders) -> Self {
        // The same folder must not be listed twice.
        let older = folders.older_data.clone().filter(|older| *older != folders.data);
        Self { root: folders.data.clone(), older }
    }

    /// A store in a folder of its own.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), older: None }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where earlier versions left models, if they did.
    pub fn older(&self) -> Option<&Path> {
        let has_models = |folder: &&Path| ["models", "hub"].iter().any(|below| folder.join(below).is_dir());
        self.older.as_deref().filter(has_models)
    }

    fn roots(&self) -> impl Iterator<Item = &Path> {
        [Some(self.root.as_path()), self.older()].into_iter().flatten()
    }

    /// Where a file that is known by its checksum belongs.
    pub(crate) fn model_path(&self, name: &str, file: &str) -> PathBuf {
        self.root.join("models").join(name).join(file)
    }

    /// The same file, if it is here.
    pub(crate) fn find_model(&self, name: &str, file: &str) -> Option<PathBuf> {
        self.roots().map(|root| root.join("models").join(name).join(file)).find(|path| path.is_file())
    }

    /// The hub's layout that is written.
    pub(crate) fn hub(&self) -> hf_hub::Cache {
        hf_hub::Cache::new(self.root.join("hub"))
    }

    /// Every place that may have a file of the hub: ours, and the one that other programs share.
    pub(crate) fn hubs(&self) -> Vec<hf_hub::Cache> {
        let own = self.roots().map(|root| hf_hub::Cache::new(root.join("hub")));
        own.chain([hf_hub::Cache::from_env()]).collect()
    }

    /// Where an unfinished download waits; `key` is any text.
    pub(crate) fn part_path(&self, key: &str) -> PathBuf {
        self.downloads().join(format!("{}.part", file_name_of(key)))
    }

    fn downloads(&self) -> PathBuf {
        self.root.join("downloads")
    }

    pub(crate) fn create_parent(&self, path: &Path) -> Result<()> {
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create the folder `{}`", parent.display()))
            .hint("set ROCI_HOME to a writable folder")
    }

    /// Waits until no other process fetches the same thing, and says so.
    pub(crate) fn lock(&self, key: &str, observer: &dyn Observer) -> Result<NameLock> {
        let file = self.open_lock(key)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                observer.on(PullEvent::Note(&format!("waiting: another roci is downloading `{key}`")));
                file.lock().with_context(|| format!("cannot lock `{key}`"))?;
            }
            Err(TryLockError::Error(error)) => return Err(error).context(format!("cannot lock `{key}`")),
        }
        Ok(NameLock { _file: file })
    }

    fn open_lock(&self, key: &str) -> Result<File> {
        let path = self.downloads().join(format!("{}.lock", file_name_of(key)));
        self.create_parent(&path)?;
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        file.with_context(|| format!("cannot open `{}`", path.display())).hint("set ROCI_HOME to a writable folder")
    }

    fn name_path(&self, name: &str) -> PathBuf {
        let file = normal_name(name).replace('/', "+").replace(':', "@");
        self.root.join("names").join(format!("{file}.toml"))
    }

    /// What a name stands for; its file as a whole path.
    pub fn named(&self, name: &str) -> Result<Option<Named>> {
        if !is_name(name) {
            return Ok(None);
        }
        self.read_name(&self.name_path(name))
    }

    fn read_name(&self, path: &Path) -> Result<Option<Named>> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.with_context(|| format!("cannot read `{}`", path.display()))?,
        };
        let mut named: Named = toml::from_str(&text).with_context(|| format!("`{}` is damaged", path.display()))?;
        named.file = self.root.join(&named.file);
        Ok(Some(named))
    }

    /// Makes a name stand for this, whatever it stood for before.
    pub fn set_name(&self, name: &str, named: &Named) -> Result<()> {
        let is_download = |entry: &StoredModel| entry.named.is_none() && normal_name(&entry.name) == normal_name(name);
        if self.entries()?.iter().any(is_download) {
            bail!("`{name}` is the name of a downloaded model: choose another");
        }
        if !is_name(name) {
            return Err(anyhow!("`{name}` cannot be the name of a model"))
                .hint("letters, digits, `-`, `_` and `.`, with a tag after a colon: my-model:v2");
        }
        let file = named.file.strip_prefix(&self.root).unwrap_or(&named.file).to_owned();
        let text = toml::to_string(&Named { file, ..named.clone() }).context("cannot write the name's settings")?;
        let path = self.name_path(name);
        self.create_parent(&path)?;
        let temporary = path.with_extension("writing");
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(|error| crate::disk::explain(error, &path, None, crate::disk::Leftover::Removed))
            .inspect_err(|_| drop(fs::remove_file(&temporary)))
    }

    /// Everything that is here, by name. A file of the hub that has a name is listed by that alone.
    pub fn entries(&self) -> Result<Vec<StoredModel>> {
        let mut entries = self.named_entries()?;
        let is_named = |entries: &[StoredModel], path: &Path| entries.iter().any(|entry| entry.path == path);
        for root in self.roots() {
            for folder in folders(&root.join("models"))? {
                for path in files_under(&folder)?.into_iter().filter(|path| is_gguf(path)) {
                    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    entries.extend(entry(name, path, None));
                }
            }
            for folder in folders(&root.join("hub"))? {
                let folder_name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let Some(repo) = folder_name.strip_prefix("models--") else { continue };
                let repo = repo.replacen("--", "/", 1);
                for snapshot in folders(&folder.join("snapshots"))? {
                    for (file, path) in models_below(&snapshot)? {
                        if !is_named(&entries, &path) {
                            entries.extend(entry(format!("hf:{repo}:{file}"), path, None));
                        }
                    }
                }
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn named_entries(&self) -> Result<Vec<StoredModel>> {
        let mut entries = Vec::new();
        for path in files_under(&self.root.join("names"))? {
            let Some(stem) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".toml")) else { continue };
            let name = stem.replace('+', "/").replace('@', ":");
            if let Some(named) = self.read_name(&path)? {
                // The file may be older than the name that was given to it.
                let modified = fs::metadata(&path).and_then(|meta| meta.modified()).ok();
                entries.extend(
                    entry(name, named.file.clone(), Some(named)).map(|entry| StoredModel { modified, ..entry }),
                );
            }
        }
        Ok(entries)
    }

    /// The model of that name, as [`entries`](Self::entries) lists it; `:latest` means nothing.
    pub fn entry(&self, name: &str) -> Result<Option<StoredModel>> {
        Ok(self.entries()?.into_iter().find(|entry| normal_name(&entry.name) == normal_name(name)))
    }

    /// Another name for a model that is here. The file is shared, not copied.
    pub fn copy(&self, from: &str, to: &str) -> Result<()> {
        let Some(entry) = self.entry(from)? else {
            return Err(anyhow!("`{from}` is not in {}", self.root.display())).hint("`roci list` shows what is");
        };
        let named = entry.named.unwrap_or_else(|| Named { file: entry.path, from: entry.name, ..Named::default() });
        self.set_name(to, &named)
    }

    /// Removes one model, with what its download left behind; returns the bytes freed. A file that other names stand
    /// for stays with the last of them; a download with other names is not removed before they are.
    pub fn remove(&self, entry: &StoredModel) -> Result<u64> {
        let _guard = self.try_lock(&entry.name)?;
        let names = self.named_entries()?;
        let others: Vec<&str> = names
            .iter()
            .filter(|other| other.path == entry.path && other.name != entry.name)
            .map(|other| other.name.as_str())
            .collect();
        if entry.named.is_none() && !others.is_empty() {
            bail!("the file of `{}` is also that of {}: remove these names first", entry.name, others.join(", "));
        }
        if entry.named.is_some() {
            remove_file(&self.name_path(&entry.name))?;
            let is_shared = !others.is_empty();
            // A file under `models` is listed by its folder too, and stays until that is removed.
            let is_of_hub = self.roots().any(|root| entry.path.starts_with(root.join("hub")));
            if is_shared || !is_of_hub {
                return Ok(0);
            }
        }
        for path in parts(&entry.path) {
            // In the hub's layout the name is a link; the bytes lie under `blobs`.
            let target = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
            remove_file(&path)?;
            remove_file(&target)?;
        }
        let mut folder = entry.path.parent();
        // Folders that are now empty, up to the root.
        while let Some(empty) = folder.filter(|folder| *folder != self.root && fs::remove_dir(folder).is_ok()) {
            folder = empty.parent();
        }
        Ok(entry.n_bytes)
    }

    /// Removes a name whose file is gone; whether there was one.
    pub fn forget(&self, name: &str) -> Result<bool> {
        let path = self.name_path(normal_name(name));
        let is_there = path.exists();
        if is_there {
            remove_file(&path)?;
        }
        Ok(is_there)
    }

    /// A hub file is guarded by its repository's lock.
    fn try_lock(&self, name: &str) -> Result<File> {
        let key = match name.strip_prefix("hf:").and_then(|rest| rest.split_once(':')) {
            Some((repo, _)) => format!("hf:{repo}"),
            None => name.to_owned(),
        };
        let guard = self.open_lock(&key)?;
        match guard.try_lock() {
            Err(TryLockError::WouldBlock) => bail!("`{key}` is being downloaded by another roci"),
            other => other.with_context(|| format!("cannot lock `{key}`"))?,
        }
        Ok(guard)
    }

    /// Removes everything, unfinished downloads included; returns the bytes freed.
    pub fn remove_all(&self) -> Result<u64> {
        let mut n_bytes = 0;
        // Names first: what only they stood for is freed with the last of them.
        let (named, plain): (Vec<StoredModel>, Vec<StoredModel>) =
            self.entries()?.into_iter().partition(|entry| entry.named.is_some());
        for entry in named.iter().chain(&plain) {
            n_bytes += self.remove(entry)?;
        }
        for path in files_under(&self.root.join("names"))? {
            remove_file(&path)?; // its file is gone
        }
        for path in files_under(&self.downloads())? {
            // A lock file stays while someone may hold it; a part file that is being written is not listed.
            if path.extension().is_some_and(|ending| ending == "part") {
                n_bytes += fs::metadata(&path).map_or(0, |meta| meta.len());
                remove_file(&path)?;
            }
        }
        let hub = self.root.join("hub");
        if hub.exists() {
            fs::remove_dir_all(&hub).with_context(|| format!("cannot remove `{}`", hub.display()))?;
        }
        Ok(n_bytes)
    }
}

/// A name without the tag that means nothing: `qwen3:latest` is `qwen3`.
pub fn normal_name(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

/// Whether a text can be a name in the store: `name`, `name:tag`, `owner/name:tag`.
pub(crate) fn is_name(name: &str) -> bool {
    let is_word = |word: &str| {
        let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !word.is_empty() && !word.starts_with('.') && word.len() <= 100 && word.chars().all(is_safe)
    };
    let (name, tag) = name.split_once(':').unwrap_or((name, "latest"));
    is_word(tag) && name.split('/').count() <= 3 && name.split('/').all(is_word)
}

fn entry(name: String, path: PathBuf, named: Option<Named>) -> Option<StoredModel> {
    let meta = fs::metadata(&path).ok()?;
    let n_bytes = match meta.is_dir() {
        true => rocinante::stored_bytes(&path),
        false => parts(&path).iter().map(|part| fs::metadata(part).map_or(0, |meta| meta.len())).sum(),
    };
    Some(StoredModel { name, path, n_bytes, modified: meta.modified().ok(), named })
}

/// A model's file and, where it was split, the files beside it.
fn parts(path: &Path) -> Vec<PathBuf> {
    let alone = || vec![path.to_owned()];
    let Some((folder, name)) = path.parent().zip(path.file_name().and_then(|name| name.to_str())) else {
        return alone();
    };
    if !name.contains("-of-") {
        return alone();
    }
    let Ok(siblings) = children(folder) else { return alone() };
    let names = siblings.iter().filter_map(|path| Some((path.file_name()?.to_str()?.to_owned(), None)));
    let found = choice::candidates(&names.collect::<Vec<_>>());
    match found.into_iter().find(|model| model.first() == name) {
        Some(model) => model.files.iter().map(|file| folder.join(file)).collect(),
        None => alone(),
    }
}

/// The models of a snapshot: their names in the repository, and where they are.
fn models_below(snapshot: &Path) -> Result<Vec<(String, PathBuf)>> {
    let files = files_under(snapshot)?;
    let name = |path: &PathBuf| path.strip_prefix(snapshot).unwrap_or(path).display().to_string();
    let names: Vec<(String, Option<u64>)> = files.iter().map(|path| (name(path), None)).collect();
    let whole = choice::candidates(&names).into_iter().filter(|model| model.is_whole);
    Ok(whole.map(|model| (model.first().to_owned(), snapshot.join(model.first()))).collect())
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"))
}

pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Removes a file that may be gone already.
fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove `{}`", path.display()))
        }
        _ => Ok(()),
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
