//! Which files a path means: a GGUF file or the parts it is split into, a safetensors file, or a folder with one of
//! these.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::checkpoint::ReadFiles;
use crate::hub::in_folder;
use crate::safetensors::{self, index};
use crate::{Bytes, Error, Result, gguf};

/// Reads whatever model `path` names.
pub(crate) fn find(path: &Path) -> Result<ReadFiles> {
    let kind = fs::metadata(path).map_err(|source| Error::Io { path: path.to_owned(), action: "open", source })?;
    if kind.is_dir() { folder(path) } else { file(path) }
}

fn file(path: &Path) -> Result<ReadFiles> {
    let bytes = map(path)?;
    let inside = |error| in_file(path, error);
    if safetensors::is_safetensors(&bytes) {
        // A shard stands for its model, as a part of a split GGUF file does.
        if let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            let list = parent.join(index::FILE);
            if list.is_file() && index::shards(&list)?.iter().any(|shard| shard == name) {
                return folder(parent);
            }
        }
        let hub = path.parent().map(in_folder).transpose()?.flatten();
        return safetensors::read(&[bytes], hub).map_err(inside);
    }
    let header = gguf::parse(&bytes).map_err(inside)?;
    let Some((_, n_parts)) = gguf::split_of(&header.metadata).map_err(inside)? else {
        return gguf::read(&[bytes]).map_err(inside);
    };
    let mut parts = Vec::new();
    for part_idx in 0..n_parts {
        let Some(part) = gguf::part_path(path, part_idx, n_parts) else {
            let reason = format!("one of {n_parts} parts, but its name does not end in -00001-of-{n_parts:05}.gguf");
            return Err(inside(Error::invalid("file name", reason)));
        };
        parts.push(map_part(&part)?);
    }
    gguf::read(&parts).map_err(inside)
}

/// Every file of a sharded model, by its index or, without one, by the names of the files.
fn folder(path: &Path) -> Result<ReadFiles> {
    let names = names_in(path)?;
    let has = |name: &str| names.iter().any(|other| other == name);
    let shards: Vec<String> = if has(index::FILE) {
        index::shards(&path.join(index::FILE))?
    } else if has("model.safetensors") {
        vec!["model.safetensors".to_owned()]
    } else {
        let is_weights = |name: &&String| name.ends_with(".safetensors") && !name.starts_with("adapter_");
        names.iter().filter(is_weights).cloned().collect()
    };
    if shards.is_empty() {
        return folder_of_gguf(path, &names);
    }
    let hub = in_folder(path)?;
    let parts = shards.iter().map(|name| map_part(&path.join(name))).collect::<Result<Vec<_>>>()?;
    safetensors::read(&parts, hub).map_err(|error| in_file(path, error))
}

fn folder_of_gguf(path: &Path, names: &[String]) -> Result<ReadFiles> {
    let is_model = |name: &&String| {
        let is_later_part = name.contains("-of-") && !name.contains("-00001-of-");
        name.ends_with(".gguf") && !is_later_part && !name.starts_with("mmproj")
    };
    let models: Vec<&String> = names.iter().filter(is_model).collect();
    let reason = match models.as_slice() {
        [model] => return file(&path.join(model)),
        [] => "it holds neither .safetensors nor .gguf files".to_owned(),
        many => {
            let list = many.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
            format!("it holds several, name one of them: {list}")
        }
    };
    Err(Error::Folder { path: path.to_owned(), reason })
}

/// The names of a folder's files, sorted; names that are not UTF-8 are none of ours.
fn names_in(path: &Path) -> Result<Vec<String>> {
    let io = |source| Error::Io { path: path.to_owned(), action: "list", source };
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(io)? {
        names.extend(entry.map_err(io)?.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

fn map_part(path: &Path) -> Result<Bytes> {
    if path.exists() { map(path) } else { Err(Error::MissingPart { path: path.to_owned() }) }
}

fn map(path: &Path) -> Result<Bytes> {
    let io = |action| move |source| Error::Io { path: path.to_owned(), action, source };
    let file = File::open(path).map_err(io("open"))?;
    if !file.metadata().map_err(io("read the size of"))?.file_type().is_file() {
        return Err(in_file(path, Error::invalid("path", "not a regular file, so it cannot be mapped")));
    }
    Bytes::map(&file).map_err(io("map"))
}

fn in_file(path: &Path, error: Error) -> Error {
    match error {
        named @ (Error::InFile { .. } | Error::Io { .. }) => named,
        error => Error::InFile { path: PathBuf::from(path), source: Box::new(error) },
    }
}
