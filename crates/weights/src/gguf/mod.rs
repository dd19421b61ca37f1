//! The GGUF container, versions 1 to 3, little-endian. Versions 2 and 3 have the same layout; in version 1 counts,
//! lengths and dimensions take 32 bits.
//!
//! magic, version, tensor count, key count; the keys with their values; per tensor its name, dimensions (innermost
//! first), type and offset; then, aligned, the data. Strings and arrays carry 64-bit lengths.
//!
//! `reader` trusts nothing it reads; `writer` writes what PyPI's `gguf` and llama.cpp read.

mod cursor;
mod parts;
mod reader;
mod temporary;
mod writer;

pub(crate) use parts::{part_path, read, split_of};
pub use reader::{Header, parse};
pub use writer::{GgufWriter, TensorInfo, write};

const MAGIC: [u8; 4] = *b"GGUF";
/// What the writer writes, and the newest the reader reads.
const VERSION: u32 = 3;
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u32 = 32;
/// ggml's tensors have at most four dimensions.
const MAX_DIMS: usize = 4;

/// The numbers of the value types in the file.
mod kind {
    pub const U8: u32 = 0;
    pub const I8: u32 = 1;
    pub const U16: u32 = 2;
    pub const I16: u32 = 3;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;
}

/// The next multiple of `alignment` (a power of two), or `None` where that overflows.
fn align_up(at: u64, alignment: u32) -> Option<u64> {
    at.checked_next_multiple_of(u64::from(alignment))
}

/// The alignment of tensor data that the metadata asks for.
fn alignment(metadata: &crate::Metadata) -> crate::Result<u32> {
    let alignment = match metadata.get(ALIGNMENT_KEY) {
        None => DEFAULT_ALIGNMENT,
        Some(&crate::Value::U32(alignment)) => alignment,
        Some(other) => {
            let (key, found) = (ALIGNMENT_KEY.to_owned(), other.describe());
            return Err(crate::Error::WrongType { key, wanted: "u32", found });
        }
    };
    if !alignment.is_power_of_two() {
        let reason = format!("{alignment} is not a power of two");
        return Err(crate::Error::invalid(format_args!("metadata key `{ALIGNMENT_KEY}`"), reason));
    }
    Ok(alignment)
}
