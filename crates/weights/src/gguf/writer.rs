//! Writes GGUF version 3: header first, then tensor data as it comes, so that no more than one tensor has to be in
//! memory. Everything goes to a temporary file beside the target, which takes the target's name only when it is whole
//! and on disk; a writer that is dropped earlier leaves nothing behind.
//!
//! Refuses what llama.cpp would refuse to read: names of 64 bytes or more, empty keys, more than four dimensions,
//! arrays of arrays.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::temporary::Temporary;
use super::{MAGIC, MAX_DIMS, VERSION, align_up, alignment, kind};
use crate::{Array, Bytes, Checkpoint, Dtype, Error, Metadata, Result, Value, tensor};

/// ggml keeps a tensor's name in 64 bytes, the last of them zero.
const MAX_NAME_BYTES: usize = 63;

/// A tensor to be written: everything but its data.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// At most 63 bytes.
    pub name: String,
    /// How its weights are stored.
    pub dtype: Dtype,
    /// Outermost first.
    pub shape: Vec<usize>,
}

/// Writes a GGUF file tensor by tensor. The file appears under its name when it is complete.
#[derive(Debug)]
pub struct GgufWriter {
    path: PathBuf,
    temporary: Temporary,
    file: BufWriter<File>,
    alignment: u32,
    /// The tensors announced in the header with their sizes, in the order their data must come.
    tensors: Vec<(String, u64)>,
    next_idx: usize,
    /// How much of the next tensor's data has come.
    n_given: u64,
}

/// Writes a whole file. The bytes of all tensors are held until it is done, which costs nothing where they are mapped
/// or in memory anyway; use a `GgufWriter` to make each tensor's data only when its turn comes.
pub fn write(
    path: &Path,
    metadata: &Metadata,
    tensors: impl IntoIterator<Item = (String, Dtype, Vec<usize>, Bytes)>,
) -> Result<()> {
    let mut infos = Vec::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        infos.push(TensorInfo { name, dtype, shape });
        data.push(bytes);
    }
    let mut writer = GgufWriter::create(path, metadata, &infos)?;
    for bytes in data {
        writer.tensor(&bytes)?;
    }
    writer.finish()
}

impl GgufWriter {
    /// Starts a file: checks everything that will be written, then writes the header.
    pub fn create(path: &Path, metadata: &Metadata, tensors: &[TensorInfo]) -> Result<Self> {
        let alignment = alignment(metadata)?;
        let mut header = Vec::new();
        put_metadata(&mut header, path, metadata, tensors.len())?;
        let tensors = put_tensors(&mut header, path, tensors, alignment)?;
        let (temporary, file) = Temporary::create(path)?;
        let file = BufWriter::with_capacity(1 << 20, file);
        let path = path.to_owned();
        let mut writer = Self { path, temporary, file, alignment, tensors, next_idx: 0, n_given: 0 };
        writer.file.write_all(&header).map_err(|error| writer.io("write", error))?;
        writer.pad(header.len() as u64)?;
        writer.skip_empty();
        Ok(writer)
    }

    /// Writes a checkpoint as it is. Tensors of unsupported types cannot be carried over, and are an error.
    pub fn copy(path: &Path, checkpoint: &Checkpoint) -> Result<()> {
        if let Some(tensor) = checkpoint.unsupported().first() {
            return Err(tensor.error());
        }
        let tensors = checkpoint.tensors().iter().cloned();
        write(path, checkpoint.metadata(), tensors.map(|t| (t.name, t.dtype, t.shape, t.bytes)))
    }

    /// The whole data of the next tensor, in the order they were announced.
    pub fn tensor(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some((name, needs)) = self.tensors.get(self.next_idx) {
            let has = self.n_given + bytes.len() as u64;
            if has != *needs {
                return Err(Error::TensorBytes { tensor: name.clone(), needs: *needs, has });
            }
        }
        self.chunk(bytes)
    }

    /// Part of the next tensor's data, for tensors too large to hold; a chunk never crosses into the tensor after it.
    pub fn chunk(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let Some((name, needs)) = self.tensors.get(self.next_idx) else {
            let reason = format!("{} bytes come after the last of {} tensors", bytes.len(), self.tensors.len());
            return Err(Error::Write { path: self.path.clone(), reason });
        };
        let has = self.n_given + bytes.len() as u64;
        if has > *needs {
            return Err(Error::TensorBytes { tensor: name.clone(), needs: *needs, has });
        }
        let is_whole = has == *needs;
        self.n_given = has;
        self.file.write_all(bytes).map_err(|error| self.io("write", error))?;
        if is_whole {
            // Tensor data starts aligned, so its own length says how far the next start is. llama.cpp wants the
            // padding after the last tensor too.
            self.pad(has)?;
            self.next_idx += 1;
            self.n_given = 0;
            self.skip_empty();
        }
        Ok(())
    }

    /// Checks that every tensor is there, brings the file to disk, and gives it its name.
    pub fn finish(mut self) -> Result<()> {
        if let Some((name, needs)) = self.tensors.get(self.next_idx) {
            return Err(Error::TensorBytes { tensor: name.clone(), needs: *needs, has: self.n_given });
        }
        self.file.flush().map_err(|error| self.io("write", error))?;
        self.file.get_ref().sync_all().map_err(|error| self.io("sync", error))?;
        let Self { path, temporary, .. } = self;
        temporary.rename(&path).map_err(|source| Error::Io { path, action: "put the finished file at", source })
    }

    fn skip_empty(&mut self) {
        while matches!(self.tensors.get(self.next_idx), Some((_, 0))) {
            self.next_idx += 1;
        }
    }

    fn pad(&mut self, n_written: u64) -> Result<()> {
        let n_padding = n_written.next_multiple_of(u64::from(self.alignment)) - n_written;
        io::copy(&mut io::Read::take(io::repeat(0), n_padding), &mut self.file)
            .map(drop)
            .map_err(|error| self.io("write", error))
    }

    fn io(&self, action: &'static str, source: io::Error) -> Error {
        Error::Io { path: self.path.clone(), action, source }
    }
}

fn put_metadata(out: &mut Vec<u8>, path: &Path, metadata: &Metadata, n_tensors: usize) -> Result<()> {
    let refuse = |reason| Error::Write { path: path.to_owned(), reason };
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend((n_tensors as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        if key.is_empty() {
            return Err(refuse("a metadata key is empty".to_owned()));
        }
        put_str(out, key);
        put_value(out, value).map_err(|problem| refuse(format!("metadata key `{key}`: {problem}")))?;
    }
    Ok(())
}

/// The tensor table. Hands back each tensor's name and size, as the data will have to come.
fn put_tensors(out: &mut Vec<u8>, path: &Path, tensors: &[TensorInfo], alignment: u32) -> Result<Vec<(String, u64)>> {
    let mut names = HashSet::with_capacity(tensors.len());
    let mut sizes = Vec::with_capacity(tensors.len());
    let mut offset = 0u64;
    for TensorInfo { name, dtype, shape } in tensors {
        let refuse =
            |reason: String| Error::Write { path: path.to_owned(), reason: format!("tensor `{name}`: {reason}") };
        if name.len() > MAX_NAME_BYTES {
            return Err(refuse(format!("the name has {} bytes, at most {MAX_NAME_BYTES} are possible", name.len())));
        }
        if !names.insert(name.as_str()) {
            return Err(refuse("the name stands twice".to_owned()));
        }
        if shape.len() > MAX_DIMS {
            return Err(refuse(format!("{} dimensions, at most {MAX_DIMS} are possible", shape.len())));
        }
        let n_bytes = tensor::packed_bytes(name, *dtype, shape)? as u64;
        put_str(out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        for &dim in shape.iter().rev() {
            out.extend((dim as u64).to_le_bytes());
        }
        out.extend(dtype.ggml_id().to_le_bytes());
        out.extend(offset.to_le_bytes());
        let end = offset.checked_add(n_bytes).and_then(|end| align_up(end, alignment));
        offset = end.ok_or_else(|| refuse(format!("{n_bytes} bytes at offset {offset} overflow")))?;
        sizes.push((name.clone(), n_bytes));
    }
    Ok(sizes)
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) -> Result<(), &'static str> {
    let mut scalar = |kind: u32, bytes: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(v) => scalar(kind::U8, &v.to_le_bytes()),
        Value::I8(v) => scalar(kind::I8, &v.to_le_bytes()),
        Value::U16(v) => scalar(kind::U16, &v.to_le_bytes()),
        Value::I16(v) => scalar(kind::I16, &v.to_le_bytes()),
        Value::U32(v) => scalar(kind::U32, &v.to_le_bytes()),
        Value::I32(v) => scalar(kind::I32, &v.to_le_bytes()),
        Value::U64(v) => scalar(kind::U64, &v.to_le_bytes()),
        Value::I64(v) => scalar(kind::I64, &v.to_le_bytes()),
        Value::F32(v) => scalar(kind::F32, &v.to_le_bytes()),
        Value::F64(v) => scalar(kind::F64, &v.to_le_bytes()),
        Value::Bool(v) => scalar(kind::BOOL, &[u8::from(*v)]),
        Value::String(v) => {
            scalar(kind::STRING, &[]);
            put_str(out, v);
        }
        Value::Array(v) => {
            scalar(kind::ARRAY, &[]);
            put_array(out, v)?;
        }
    }
    Ok(())
}

fn put_array(out: &mut Vec<u8>, array: &Array) -> Result<(), &'static str> {
    match array {
        Array::U8(v) => put_numbers(out, kind::U8, v, u8::to_le_bytes),
        Array::I8(v) => put_numbers(out, kind::I8, v, i8::to_le_bytes),
        Array::U16(v) => put_numbers(out, kind::U16, v, u16::to_le_bytes),
        Array::I16(v) => put_numbers(out, kind::I16, v, i16::to_le_bytes),
        Array::U32(v) => put_numbers(out, kind::U32, v, u32::to_le_bytes),
        Array::I32(v) => put_numbers(out, kind::I32, v, i32::to_le_bytes),
        Array::U64(v) => put_numbers(out, kind::U64, v, u64::to_le_bytes),
        Array::I64(v) => put_numbers(out, kind::I64, v, i64::to_le_bytes),
        Array::F32(v) => put_numbers(out, kind::F32, v, f32::to_le_bytes),
        Array::F64(v) => put_numbers(out, kind::F64, v, f64::to_le_bytes),
        Array::Bool(v) => put_numbers(out, kind::BOOL, v, |v| [u8::from(v)]),
        Array::String(v) => {
            out.extend(kind::STRING.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|text| put_str(out, text));
        }
        Array::Array(_) => return Err("llama.cpp reads no arrays of arrays"),
    }
    Ok(())
}

fn put_numbers<T: Copy, const N: usize>(out: &mut Vec<u8>, kind: u32, values: &[T], to_le_bytes: fn(T) -> [u8; N]) {
    out.extend(kind.to_le_bytes());
    out.extend((values.len() as u64).to_le_bytes());
    values.iter().for_each(|&value| out.extend(to_le_bytes(value)));
}
