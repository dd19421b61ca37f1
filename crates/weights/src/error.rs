//! The crate's error: what a caller can branch on, with the object and the numbers in it.
//! Errors about a file's content arrive wrapped in `InFile`, which adds the path; `cause` looks through it.

use std::io;
use std::path::PathBuf;

/// What this crate's fallible functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A file that cannot be read or written, or that lacks what was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("{}: cannot {action}: {source}", path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },

    #[error("{}: {source}", path.display())]
    InFile { path: PathBuf, source: Box<Error> },

    #[error("neither GGUF nor safetensors: it starts with {found:02x?}")]
    Magic { found: [u8; 4] },

    #[error("GGUF version {found}: only versions 1 to 3 are read")]
    Version { found: u32 },

    #[error("big-endian GGUF (version field {found:#010x}): only little-endian files are read")]
    BigEndian { found: u32 },

    #[error("{field}: needs {needs} bytes at byte {at}, the file has {left} left")]
    Truncated { field: String, at: u64, needs: u64, left: u64 },

    #[error("{field}: says {count}, but the {left} bytes left in the file hold at most {at_most}")]
    Count { field: String, count: u64, left: u64, at_most: u64 },

    /// Cut off inside the weights, as an interrupted download leaves it.
    #[error("incomplete: the file has {has} bytes, its tensors end at byte {needs}")]
    Incomplete { has: u64, needs: u64 },

    #[error("part `{}` of this model is missing; fetch it into the same folder", path.display())]
    MissingPart { path: PathBuf },

    #[error("{}: no model in this folder: {reason}", path.display())]
    Folder { path: PathBuf, reason: String },

    #[error("{field}: {reason}")]
    Invalid { field: String, reason: String },

    #[error("tensor `{tensor}`: needs {needs} bytes, but has {has}")]
    TensorBytes { tensor: String, needs: u64, has: u64 },

    #[error("tensor `{tensor}` is not in the file")]
    MissingTensor { tensor: String },

    #[error("tensor `{tensor}` has type {name}, which is not supported yet")]
    UnsupportedType { tensor: String, name: String },

    #[error("metadata key `{key}`: expected {wanted}, found {found}")]
    WrongType { key: String, wanted: &'static str, found: String },

    #[error("writing {}: {reason}", path.display())]
    Write { path: PathBuf, reason: String },
}

impl Error {
    /// The error itself, without the path it may be wrapped in.
    pub fn cause(&self) -> &Error {
        match self {
            Error::InFile { source, .. } => source.cause(),
            other => other,
        }
    }

    pub(crate) fn invalid(field: impl ToString, reason: impl Into<String>) -> Self {
        Error::Invalid { field: field.to_string(), reason: reason.into() }
    }
}
