//! A folder of safetensors as a GGUF checkpoint in memory: the model's part by `model`, the vocabulary by `files`.

use std::path::Path;

use weights::Checkpoint;

use crate::{Error, Result, files};

/// Takes the source, so that what its tensors are made of goes with the last tensor that needs it. The folder's name
/// becomes the model's.
pub fn as_gguf(checkpoint: Checkpoint, path: &Path) -> Result<Checkpoint> {
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    let folder = folder.and_then(|folder| folder.canonicalize().ok());
    let name = folder.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let exported = ::model::export(&checkpoint, &name.unwrap_or_else(|| "model".to_owned()))?;
    let Some(hub) = checkpoint.hub() else {
        return Err(Error::NoVocabulary("there is no config.json beside the weights"));
    };
    let n_rows = exported.tensor("token_embd.weight")?.n_rows();
    let text = files::text_metadata(hub, n_rows)?;
    let mut metadata = exported.metadata().clone();
    for (key, value) in text.iter() {
        metadata.set(key, value.clone());
    }
    Ok(Checkpoint::from_parts(metadata, exported.into_tensors())?)
}
