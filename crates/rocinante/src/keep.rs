//! Contexts that are kept when the KV pool needs their blocks: where, and what ties them to a model.
//!
//! The bytes of keys and values are only useful for the same weights, on the same device, in the same layout of the
//! same build; together these are one identity. The weights are not read in full for it: the files' sizes and times,
//! every tensor's name, type and shape, and samples of its numbers stand for them.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use ::model::{KvType, Model as LoadedModel};
use kept::{BlockStore, Identity, StoreOptions};
use serde::{Deserialize, Serialize};
use weights::Checkpoint;

use crate::human_bytes;
use crate::load_plan::LoadPlan;
use crate::options::Options;

/// Numbers of a tensor that are looked at, at three places.
const SAMPLE_BYTES: usize = 64;

/// Where contexts are kept that the KV pool has no room for.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Keep {
    /// Bytes of host memory.
    pub host_bytes: u64,
    /// Bytes on disk; they survive this process.
    pub disk_bytes: u64,
    /// The folder on disk; `None`: the user's cache folder.
    pub folder: Option<PathBuf>,
    /// A session file to go on with, if it is there; see [`Model::save_session`](crate::Model::save_session).
    pub session: Option<PathBuf>,
}

impl Keep {
    /// Whether anything is kept.
    pub fn is_off(&self) -> bool {
        self.host_bytes == 0 && self.disk_bytes == 0 && self.session.is_none()
    }

    /// The folder on disk.
    pub fn folder(&self) -> PathBuf {
        self.folder.clone().unwrap_or_else(folder_of_user)
    }

    /// For the memory plan; `None` where nothing is kept.
    pub(crate) fn line(&self) -> Option<String> {
        let host = (self.host_bytes > 0).then(|| format!("{} in host memory", human_bytes(self.host_bytes)));
        let folder = self.folder();
        let disk = (self.disk_bytes > 0).then(|| format!("{} in {}", human_bytes(self.disk_bytes), folder.display()));
        let places: Vec<String> = host.into_iter().chain(disk).collect();
        (!places.is_empty()).then(|| format!("  kept     up to {} for contexts that are idle", places.join(" and ")))
    }

    /// With paths that mean the same in another working folder.
    #[cfg(unix)]
    pub(crate) fn absolute(&self) -> Self {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let (folder, session) = (self.folder.as_ref().map(absolute), self.session.as_ref().map(absolute));
        Self { folder, session, ..self.clone() }
    }
}

/// As for compiled kernels.
fn folder_of_user() -> PathBuf {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_xdg = || named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
    let of_roci = named("ROCI_HOME").map(|home| home.join("cache"));
    let base = of_roci.or_else(|| of_xdg().map(|base| base.join("roci")));
    base.unwrap_or_else(std::env::temp_dir).join("contexts")
}

/// Opens what was asked for, and says what is not available.
pub(crate) fn open(
    checkpoint: &Checkpoint,
    options: &Options,
    plan: &LoadPlan,
    model: &LoadedModel,
) -> (Option<BlockStore>, Vec<String>) {
    let keep = &options.keep;
    if keep.is_off() {
        return (None, Vec::new());
    }
    let Keep { host_bytes, disk_bytes, session, .. } = keep.clone();
    let store_options = StoreOptions { host_bytes, disk_bytes, folder: keep.folder(), session };
    let (store, notes) = BlockStore::open(&store_options, identity(checkpoint, plan, model));
    (Some(store), notes)
}

fn identity(checkpoint: &Checkpoint, plan: &LoadPlan, model: &LoadedModel) -> Identity {
    let mut parts: Vec<Vec<u8>> = vec![env!("CARGO_PKG_VERSION").into(), model.cache_layout().into_bytes()];
    let options = &plan.options;
    let how = (options.kv_type, options.numerics, options.n_ctx, options.adapters, plan.n_ctx_train);
    parts.push(format!("{how:?}").into_bytes());
    if matches!(options.kv_type, KvType::Q8_0 | KvType::Q4_0) {
        // Older stores have quantized heads as they were.
        parts.push(b"turned heads".to_vec());
    }
    parts.extend(checkpoint.path().into_iter().flat_map(files).map(String::into_bytes));
    for (key, value) in checkpoint.metadata().iter() {
        // Vocabularies are long and turn text into tokens, which are compared themselves.
        if !key.starts_with("tokenizer.") {
            parts.push(format!("{key}={value:?}").into_bytes());
        }
    }
    parts.extend(checkpoint.hub().map(|hub| hub.config.to_string().into_bytes()));
    for tensor in checkpoint.tensors() {
        parts.push(format!("{} {:?} {:?}", tensor.name, tensor.dtype, tensor.shape).into_bytes());
        let bytes: &[u8] = &tensor.bytes;
        for at in [0, bytes.len() / 2, bytes.len().saturating_sub(SAMPLE_BYTES)] {
            parts.push(bytes[at..(at + SAMPLE_BYTES).min(bytes.len())].to_vec());
        }
    }
    Identity::of(parts.iter().map(Vec::as_slice))
}

/// Names, sizes and times of the files of a model.
fn files(path: &Path) -> Vec<String> {
    let inside = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all: Vec<PathBuf> = inside.filter(|path| path.is_file()).collect();
    if all.is_empty() {
        all.push(path.to_owned());
    }
    all.sort();
    let describe = |path: &PathBuf| {
        let about = std::fs::metadata(path).ok()?;
        let changed = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        Some(format!("{} {} {}", path.file_name()?.to_string_lossy(), about.len(), changed.as_nanos()))
    };
    all.iter().filter_map(describe).collect()
}
