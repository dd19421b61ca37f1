//! From safetensors files to tensors. The format's crate checks the header: tensors lie inside the file, side by side,
//! and take the bytes their types and shapes ask for.

use std::collections::HashSet;

use ::safetensors::SafeTensors;
use ::safetensors::tensor::Dtype as Kind;

use super::packed::{UnpackedTensors, unpack};
use crate::checkpoint::{FileFormat, ReadFiles};
use crate::{Bytes, Dtype, Error, HubFiles, Metadata, Result, Tensor, Unsupported, tensor};

/// A tensor as a file has it.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    pub name: String,
    pub kind: Kind,
    pub shape: Vec<usize>,
    pub bytes: Bytes,
}

/// Whether bytes start as a safetensors file does: a length that they could hold, then an opening brace.
pub(crate) fn is_safetensors(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk() else { return false };
    let n_header = u64::from_le_bytes(*length);
    rest.first() == Some(&b'{') && n_header <= rest.len() as u64
}

/// A model out of all its files.
pub(crate) fn read(files: &[Bytes], hub: Option<HubFiles>) -> Result<ReadFiles> {
    let mut stored = Vec::new();
    let mut names = HashSet::new();
    for file in files {
        for tensor in tensors_of(file)? {
            if !names.insert(tensor.name.clone()) {
                let reason = "the name stands twice, in two files";
                return Err(Error::invalid(format_args!("tensor `{}`", tensor.name), reason));
            }
            stored.push(tensor);
        }
    }
    let description = match files.len() {
        1 => "safetensors".to_owned(),
        n => format!("safetensors, {n} files"),
    };
    let UnpackedTensors { tensors, rest, notes } = unpack(stored, hub.as_ref())?;
    let mut found = ReadFiles {
        format: FileFormat::Safetensors,
        description,
        file_bytes: files.iter().map(|file| file.len() as u64).sum(),
        metadata: Metadata::new(),
        hub,
        notes,
        tensors,
        unsupported: Vec::new(),
    };
    for tensor in rest {
        found.take(tensor)?;
    }
    Ok(found)
}

impl ReadFiles {
    fn take(&mut self, stored: StoredTensor) -> Result<()> {
        let StoredTensor { name, kind, shape, bytes } = stored;
        match dtype_of(kind) {
            Some(dtype) => {
                tensor::packed_bytes(&name, dtype, &shape)?;
                self.tensors.push(Tensor::new(name, dtype, shape, bytes)?);
            }
            None => {
                let (type_name, n_bytes) = (kind.to_string(), Some(bytes.len() as u64));
                self.unsupported.push(Unsupported { name, ggml_id: None, type_name, layout: None, shape, n_bytes });
            }
        }
        Ok(())
    }
}

/// The type of ours that holds the same numbers in the same bytes.
fn dtype_of(kind: Kind) -> Option<Dtype> {
    Some(match kind {
        Kind::F32 => Dtype::F32,
        Kind::F16 => Dtype::F16,
        Kind::BF16 => Dtype::BF16,
        Kind::F64 => Dtype::F64,
        Kind::I8 => Dtype::I8,
        Kind::I16 => Dtype::I16,
        Kind::I32 => Dtype::I32,
        Kind::I64 => Dtype::I64,
        _ => return None,
    })
}

/// In file order.
fn tensors_of(file: &Bytes) -> Result<Vec<StoredTensor>> {
    let bad = |error: ::safetensors::SafeTensorError| Error::invalid("safetensors header", error.to_string());
    let (n_header, metadata) = SafeTensors::read_metadata(file).map_err(bad)?;
    let mut infos: Vec<_> = metadata.tensors().into_iter().collect();
    infos.sort_by(|a, b| (a.1.data_offsets, &a.0).cmp(&(b.1.data_offsets, &b.0)));
    let mut stored = Vec::with_capacity(infos.len());
    for (name, info) in infos {
        // The crate has checked all of this; a range outside the file must be impossible, not unlikely.
        let (start, end) = info.data_offsets;
        let first = n_header.checked_add(8);
        let range = first.and_then(|first| Some(first.checked_add(start)?..first.checked_add(end)?));
        let Some(bytes) = range.and_then(|range| file.get(range)) else {
            return Err(Error::invalid(format_args!("tensor `{name}`"), "lies past the end of the file"));
        };
        stored.push(StoredTensor { name, kind: info.dtype, shape: info.shape.clone(), bytes });
    }
    Ok(stored)
}
