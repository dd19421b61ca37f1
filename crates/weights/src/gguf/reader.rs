//! Reads a GGUF header out of bytes nobody vouches for: any count, length, offset or name in it may be a lie.
//! What comes out is checked: tensors lie inside the file and take exactly the bytes their type and shape ask for.
//! Tensors that overlap are refused: no honest file has them. Tensor data is not looked at.

use std::collections::HashSet;
use std::fmt;

use super::cursor::Cursor;
use super::{MAGIC, MAX_DIMS, VERSION, align_up, alignment, kind};
use crate::{Array, Bytes, Dtype, Error, Metadata, Result, Tensor, Unsupported, Value, ggml_layout, tensor};

/// What a GGUF file says about itself.
#[derive(Debug)]
pub struct Header {
    /// Of the container: 1 to 3.
    pub version: u32,
    /// Of the tensors' data, in bytes.
    pub alignment: u32,
    /// Where tensor data starts in the file.
    pub data_offset: u64,
    /// In file order.
    pub metadata: Metadata,
    /// Those of supported types, in file order.
    pub tensors: Vec<Tensor>,
    /// The others.
    pub unsupported: Vec<Unsupported>,
}

/// How deep arrays of arrays may nest: enough for any file seen, little enough for any stack.
const MAX_ARRAY_DEPTH: usize = 4;

// The least each thing takes in the file, which bounds how many of them there can be.
const MIN_KEY_BYTES: u64 = 8 + 4 + 1;
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;
const MIN_STRING_BYTES: u64 = 8;
const MIN_ARRAY_BYTES: u64 = 4 + 8;

/// Reads and checks everything before the tensors' data.
pub fn parse(bytes: &Bytes) -> Result<Header> {
    let mut cursor = Cursor::new(bytes);
    let version = preamble(&mut cursor)?;
    let n_tensors = cursor.count(MIN_TENSOR_BYTES, format_args!("tensor count"))?;
    let n_keys = cursor.count(MIN_KEY_BYTES, format_args!("metadata key count"))?;

    let mut metadata = Metadata::new();
    for key_idx in 0..n_keys {
        let key = cursor.str(format_args!("metadata key {key_idx}"))?;
        let value = value(&mut cursor, format_args!("metadata key `{key}`"))?;
        if metadata.set(key, value).is_some() {
            let reason = format!("stands twice, the second time as key {key_idx}");
            return Err(Error::invalid(format_args!("metadata key `{key}`"), reason));
        }
    }
    let alignment = alignment(&metadata)?;

    let mut names = HashSet::with_capacity(n_tensors);
    let mut entries = Vec::with_capacity(n_tensors);
    for tensor_idx in 0..n_tensors {
        let entry = entry(&mut cursor, tensor_idx)?;
        if !names.insert(entry.name) {
            let reason = format!("the name stands twice, the second time at tensor {tensor_idx}");
            return Err(Error::invalid(format_args!("tensor `{}`", entry.name), reason));
        }
        entries.push(entry);
    }
    let header_end = cursor.at() as u64;
    let data_offset = align_up(header_end, alignment)
        .ok_or_else(|| Error::invalid("data offset", format!("{header_end} aligned to {alignment} overflows")))?;

    let mut header = Header { version, alignment, data_offset, metadata, tensors: Vec::new(), unsupported: Vec::new() };
    if let Some(needs) = header.missing_end(&entries, bytes.len() as u64) {
        return Err(Error::Incomplete { has: bytes.len() as u64, needs });
    }
    let mut ranges = Vec::with_capacity(entries.len());
    for entry in entries {
        ranges.extend(header.place(entry, bytes)?);
    }
    refuse_overlaps(ranges)?;
    Ok(header)
}

/// Magic and version.
fn preamble(cursor: &mut Cursor<'_>) -> Result<u32> {
    let magic = cursor.array(format_args!("magic"))?;
    if magic != MAGIC {
        return Err(Error::Magic { found: magic });
    }
    let version = cursor.u32(format_args!("version"))?;
    match version {
        1..=VERSION => {
            cursor.is_narrow = version == 1;
            Ok(version)
        }
        _ if (1..=VERSION).contains(&version.swap_bytes()) => Err(Error::BigEndian { found: version }),
        _ => Err(Error::Version { found: version }),
    }
}

fn value(cursor: &mut Cursor<'_>, field: fmt::Arguments<'_>) -> Result<Value> {
    let kind = cursor.u32(format_args!("type of {field}"))?;
    Ok(match kind {
        kind::U8 => Value::U8(u8::from_le_bytes(cursor.array(field)?)),
        kind::I8 => Value::I8(i8::from_le_bytes(cursor.array(field)?)),
        kind::U16 => Value::U16(u16::from_le_bytes(cursor.array(field)?)),
        kind::I16 => Value::I16(i16::from_le_bytes(cursor.array(field)?)),
        kind::U32 => Value::U32(u32::from_le_bytes(cursor.array(field)?)),
        kind::I32 => Value::I32(i32::from_le_bytes(cursor.array(field)?)),
        kind::U64 => Value::U64(u64::from_le_bytes(cursor.array(field)?)),
        kind::I64 => Value::I64(i64::from_le_bytes(cursor.array(field)?)),
        kind::F32 => Value::F32(f32::from_le_bytes(cursor.array(field)?)),
        kind::F64 => Value::F64(f64::from_le_bytes(cursor.array(field)?)),
        kind::BOOL => Value::Bool(bool_from(cursor.array::<1>(field)?[0], field)?),
        kind::STRING => Value::String(cursor.str(field)?.to_owned()),
        kind::ARRAY => Value::Array(array(cursor, field, 1)?),
        _ => return Err(Error::invalid(field, format!("value type {kind} is none of 0 to 12"))),
    })
}

fn array(cursor: &mut Cursor<'_>, field: fmt::Arguments<'_>, depth: usize) -> Result<Array> {
    let kind = cursor.u32(format_args!("element type of {field}"))?;
    Ok(match kind {
        kind::U8 => Array::U8(numbers(cursor, field, u8::from_le_bytes)?),
        kind::I8 => Array::I8(numbers(cursor, field, i8::from_le_bytes)?),
        kind::U16 => Array::U16(numbers(cursor, field, u16::from_le_bytes)?),
        kind::I16 => Array::I16(numbers(cursor, field, i16::from_le_bytes)?),
        kind::U32 => Array::U32(numbers(cursor, field, u32::from_le_bytes)?),
        kind::I32 => Array::I32(numbers(cursor, field, i32::from_le_bytes)?),
        kind::U64 => Array::U64(numbers(cursor, field, u64::from_le_bytes)?),
        kind::I64 => Array::I64(numbers(cursor, field, i64::from_le_bytes)?),
        kind::F32 => Array::F32(numbers(cursor, field, f32::from_le_bytes)?),
        kind::F64 => Array::F64(numbers(cursor, field, f64::from_le_bytes)?),
        kind::BOOL => {
            let n_values = cursor.count(1, format_args!("length of {field}"))?;
            let bytes = cursor.take(n_values as u64, field)?;
            Array::Bool(bytes.iter().map(|&byte| bool_from(byte, field)).collect::<Result<_>>()?)
        }
        kind::STRING => {
            let n_values = cursor.count(MIN_STRING_BYTES, format_args!("length of {field}"))?;
            let mut strings = Vec::with_capacity(n_values);
            for idx in 0..n_values {
                strings.push(cursor.str(format_args!("{field} [{idx}]"))?.to_owned());
            }
            Array::String(strings)
        }
        kind::ARRAY if depth == MAX_ARRAY_DEPTH => {
            return Err(Error::invalid(field, format!("arrays nest deeper than {MAX_ARRAY_DEPTH}")));
        }
        kind::ARRAY => {
            let n_values = cursor.count(MIN_ARRAY_BYTES, format_args!("length of {field}"))?;
            let mut arrays = Vec::with_capacity(n_values);
            for idx in 0..n_values {
                arrays.push(array(cursor, format_args!("{field} [{idx}]"), depth + 1)?);
            }
            Array::Array(arrays)
        }
        _ => return Err(Error::invalid(field, format!("element type {kind} is none of 0 to 12"))),
    })
}

fn numbers<T, const N: usize>(
    cursor: &mut Cursor<'_>,
    field: fmt::Arguments<'_>,
    from_le_bytes: fn([u8; N]) -> T,
) -> Result<Vec<T>> {
    let n_values = cursor.count(N as u64, format_args!("length of {field}"))?;
    // Cannot overflow: `count` found that many elements of N bytes to fit the file.
    let bytes = cursor.take((n_values * N) as u64, field)?;
    Ok(bytes.as_chunks().0.iter().map(|&chunk| from_le_bytes(chunk)).collect())
}

fn bool_from(byte: u8, field: fmt::Arguments<'_>) -> Result<bool> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Error::invalid(field, format!("a bool is 0 or 1, this is {byte}"))),
    }
}

/// One row of the tensor table, as the file has it.
struct TensorEntry<'a> {
    name: &'a str,
    /// Innermost first, as in the file.
    dims: [u64; MAX_DIMS],
    n_dims: usize,
    ggml_id: u32,
    /// From the start of the data.
    offset: u64,
}

fn entry<'a>(cursor: &mut Cursor<'a>, tensor_idx: usize) -> Result<TensorEntry<'a>> {
    let name = cursor.str(format_args!("name of tensor {tensor_idx}"))?;
    let n_dims = cursor.u32(format_args!("dimension count of tensor `{name}`"))?;
    if n_dims as usize > MAX_DIMS {
        let reason = format!("{n_dims} dimensions, at most {MAX_DIMS} are possible");
        return Err(Error::invalid(format_args!("tensor `{name}`"), reason));
    }
    let n_dims = n_dims as usize;
    let mut dims = [1; MAX_DIMS];
    for (dim_idx, dim) in dims[..n_dims].iter_mut().enumerate() {
        *dim = cursor.size(format_args!("dimension {dim_idx} of tensor `{name}`"))?;
    }
    let ggml_id = cursor.u32(format_args!("type of tensor `{name}`"))?;
    let offset = cursor.u64(format_args!("offset of tensor `{name}`"))?;
    Ok(TensorEntry { name, dims, n_dims, ggml_id, offset })
}

impl Header {
    /// Where a whole file would end, if this one was cut: its tensors lie one after the other without holes, and the
    /// last of them is not there. A tensor that lies elsewhere is a lie, which `place` names.
    fn missing_end(&self, entries: &[TensorEntry<'_>], file_bytes: u64) -> Option<u64> {
        let (mut end, mut packed_end) = (0, self.data_offset);
        for entry in entries {
            let layout = ggml_layout(entry.ggml_id)?;
            let n_blocks = entry.dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim))? / layout.block_len as u64;
            let n_bytes = n_blocks.checked_mul(layout.block_bytes as u64)?;
            if n_bytes > 0 {
                end = end.max(self.data_offset.checked_add(entry.offset)?.checked_add(n_bytes)?);
            }
            packed_end = packed_end.checked_add(align_up(n_bytes, self.alignment)?)?;
        }
        (end > file_bytes && end <= packed_end).then_some(end)
    }

    /// Checks where a tensor says it lies, and files it under what we can and cannot compute with. Hands back the range
    /// of the file it takes.
    fn place<'a>(&mut self, entry: TensorEntry<'a>, file: &Bytes) -> Result<Option<(u64, u64, &'a str)>> {
        let TensorEntry { name, ggml_id, offset, .. } = entry;
        let field = format!("tensor `{name}`");
        let mut shape = Vec::with_capacity(entry.n_dims);
        for &dim in entry.dims[..entry.n_dims].iter().rev() {
            shape.push(usize::try_from(dim).map_err(|_| Error::invalid(&field, format!("dimension {dim} overflows")))?);
        }
        if !offset.is_multiple_of(u64::from(self.alignment)) {
            let reason = format!("offset {offset} is not a multiple of the alignment {}", self.alignment);
            return Err(Error::invalid(field, reason));
        }
        let layout = ggml_layout(ggml_id);
        let n_bytes = match layout {
            Some(l) => Some(tensor::layout_bytes(name, l.name, l.block_len, l.block_bytes, &shape)? as u64),
            None => None,
        };
        let (data, file_bytes) = (self.data_offset, file.len() as u64);
        let outside = || {
            let what = match (layout, n_bytes) {
                (Some(layout), Some(n_bytes)) => format!("{n_bytes} bytes of {}", layout.name),
                _ => "data of an unknown type".to_owned(),
            };
            let reason = format!(
                "{what} at offset {offset} of the data, which starts at byte {data}, \
                 lie past the end of the file of {file_bytes} bytes"
            );
            Error::invalid(&field, reason)
        };
        // Of a type without a known layout, at least the first byte has to be there. An empty tensor needs nothing, not
        // even a start inside the file: one that ends without padding is no lie.
        let least = n_bytes.unwrap_or(1);
        let start = data.checked_add(offset).ok_or_else(outside)?;
        let end = start.checked_add(least).ok_or_else(outside)?;
        if end > file_bytes && least > 0 {
            return Err(outside());
        }

        let range = (least > 0).then_some((start, end, name));
        let name = name.to_owned();
        match Dtype::from_ggml(ggml_id) {
            Some(dtype) => {
                let bytes = if least == 0 { file.get(..0) } else { file.get(start as usize..end as usize) };
                let bytes = bytes.expect("the range was found to lie inside the file");
                self.tensors.push(Tensor { name, dtype, shape, bytes });
            }
            None => {
                let type_name = match layout {
                    Some(layout) => format!("{} (ggml type {ggml_id})", layout.name),
                    None => format!("unknown (ggml type {ggml_id})"),
                };
                self.unsupported.push(Unsupported { name, ggml_id: Some(ggml_id), type_name, layout, shape, n_bytes });
            }
        }
        Ok(range)
    }
}

fn refuse_overlaps(mut ranges: Vec<(u64, u64, &str)>) -> Result<()> {
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        let ((_, end, first), (start, _, second)) = (pair[0], pair[1]);
        if start < end {
            let reason = format!("starts at byte {start}, inside tensor `{first}`, which ends at byte {end}");
            return Err(Error::invalid(format_args!("tensor `{second}`"), reason));
        }
    }
    Ok(())
}
