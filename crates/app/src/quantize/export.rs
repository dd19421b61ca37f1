//! A folder of safetensors as a GGUF checkpoint in memory: the model's part by `model`, the vocabulary by `rocinante`.

use crate::report::HintExt;
use anyhow::{Context, Result};
use std::path::Path;
use weights::Checkpoint;

/// Takes the source, so that what its tensors are made of goes with the last tensor that needs it.
pub fn as_gguf(checkpoint: Checkpoint, path: &Path) -> Result<Checkpoint> {
    const HINT: &str = "`--quantize TYPE` of run and serve takes safetensors as they are";
    for note in checkpoint.notes() {
        eprintln!("note: {note}");
    }
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    let folder = folder.and_then(|folder| folder.canonicalize().ok());
    let name = folder.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let exported = model::export(&checkpoint, &name.unwrap_or_else(|| "model".to_owned())).hint(HINT)?;
    let hub = checkpoint.hub().context("there is no config.json beside the weights")?;
    let n_rows = exported.tensor("token_embd.weight")?.n_rows();
    let text = rocinante::files::text_metadata(hub, n_rows).hint(HINT)?;
    let mut metadata = exported.metadata().clone();
    for (key, value) in text.iter() {
        metadata.set(key, value.clone());
    }
    Checkpoint::from_parts(metadata, exported.into_tensors()).context("the model as GGUF")
}
