//! A model split over several GGUF files: `name-00001-of-00003.gguf`, `name-00002-of-00003.gguf`, ...
//!
//! The first part holds the metadata, every part its own tensors. Each says which part it is (`split.no`, from zero),
//! of how many (`split.count`), and how many tensors the whole model has (`split.tensors.count`).

use std::path::{Path, PathBuf};

use super::reader::{Header, parse};
use crate::checkpoint::{FileFormat, ReadFiles};
use crate::{Bytes, Error, Metadata, Result};

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const N_TENSORS: &str = "split.tensors.count";
/// More parts than any model has: a lie in a file must not become a thousand attempts to open files.
const MAX_PARTS: u64 = 4096;

/// Which part of how many a file says it is; `None` where it stands alone.
pub(crate) fn split_of(metadata: &Metadata) -> Result<Option<(u64, u64)>> {
    let Some(count) = metadata.u64(COUNT)?.filter(|count| *count > 1) else { return Ok(None) };
    if count > MAX_PARTS {
        let reason = format!("{count} parts, at most {MAX_PARTS} are read");
        return Err(Error::invalid(format_args!("metadata key `{COUNT}`"), reason));
    }
    let part = metadata.u64(NO)?.unwrap_or(0);
    if part >= count {
        let reason = format!("part {part} of {count}: parts are counted from 0");
        return Err(Error::invalid(format_args!("metadata key `{NO}`"), reason));
    }
    Ok(Some((part, count)))
}

/// Where part `part_idx` (from zero) lies, going by the path of another part; `None` where that path is not named as
/// parts are.
pub(crate) fn part_path(path: &Path, part_idx: u64, n_parts: u64) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(&format!("-of-{n_parts:05}.gguf"))?;
    let (prefix, number) = stem.split_at_checked(stem.len().checked_sub(5)?)?;
    if !number.bytes().all(|byte| byte.is_ascii_digit()) || !prefix.ends_with('-') {
        return None;
    }
    Some(path.with_file_name(format!("{prefix}{:05}-of-{n_parts:05}.gguf", part_idx + 1)))
}

/// Reads a model out of its parts, in order; one part is a model that stands alone.
pub(crate) fn read(parts: &[Bytes]) -> Result<ReadFiles> {
    let headers = parts.iter().map(parse).collect::<Result<Vec<Header>>>()?;
    let n_parts = headers.len() as u64;
    for (part_idx, header) in headers.iter().enumerate() {
        let said = split_of(&header.metadata)?.unwrap_or((0, 1));
        if said != (part_idx as u64, n_parts) {
            let reason =
                format!("says it is part {} of {}, but stands at part {part_idx} of {n_parts}", said.0, said.1);
            return Err(Error::invalid(format_args!("metadata key `{NO}`"), reason));
        }
    }
    let file_bytes = parts.iter().map(|part| part.len() as u64).sum();
    let mut found: Option<ReadFiles> = None;
    for header in headers {
        match &mut found {
            None => {
                let n_files = if n_parts > 1 { format!(", {n_parts} files") } else { String::new() };
                found = Some(ReadFiles {
                    format: FileFormat::Gguf,
                    description: format!("GGUF v{}{n_files}", header.version),
                    file_bytes,
                    metadata: header.metadata,
                    hub: None,
                    notes: Vec::new(),
                    tensors: header.tensors,
                    unsupported: header.unsupported,
                });
            }
            Some(found) => {
                found.tensors.extend(header.tensors);
                found.unsupported.extend(header.unsupported);
            }
        }
    }
    let found = found.ok_or_else(|| Error::invalid("model", "no parts"))?;
    let n_tensors = (found.tensors.len() + found.unsupported.len()) as u64;
    match found.metadata.u64(N_TENSORS)? {
        Some(wanted) if n_parts > 1 && wanted != n_tensors => {
            let reason = format!("says {wanted}, but the {n_parts} parts hold {n_tensors} tensors");
            Err(Error::invalid(format_args!("metadata key `{N_TENSORS}`"), reason))
        }
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::part_path;

    #[test]
    fn parts_are_found_by_name() {
        let path = |name: &str, idx, n| part_path(Path::new(name), idx, n).map(|p| p.to_str().unwrap().to_owned());
        assert_eq!(path("d/m-00002-of-00003.gguf", 0, 3).as_deref(), Some("d/m-00001-of-00003.gguf"));
        assert_eq!(path("m-00001-of-00012.gguf", 11, 12).as_deref(), Some("m-00012-of-00012.gguf"));
        assert_eq!(path("m-00001-of-00003.gguf", 0, 4), None);
        assert_eq!(path("model.gguf", 0, 3), None);
        assert_eq!(path("-of-00003.gguf", 0, 3), None);
        assert_eq!(path("m-0000x-of-00003.gguf", 0, 3), None);
    }
}
