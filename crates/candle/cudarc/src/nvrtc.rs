//! Kernel source on its way to a module.
//!
//! `Ptx` keeps the name that Candle uses. Its text is C++ in the dialect of `prelude.h` (which every text
//! may include), compiled for the device when a kernel of it is first asked for. Real PTX is accepted on
//! NVIDIA GPUs, whose driver compiles it, and refused with a reason on AMD's.

use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ptx(pub(crate) PtxKind);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PtxKind {
    Source(String),
    File(PathBuf),
}

impl Ptx {
    pub fn from_src(source: impl Into<String>) -> Self {
        Self(PtxKind::Source(source.into()))
    }

    /// Read when the module is loaded.
    pub fn from_file(path: impl Into<PathBuf>) -> Self {
        Self(PtxKind::File(path.into()))
    }
}

impl<S: Into<String>> From<S> for Ptx {
    fn from(source: S) -> Self {
        Self::from_src(source)
    }
}

/// Takes source as it is: it is compiled for a device, and none is known here.
pub fn compile_ptx(source: impl AsRef<str>) -> Result<Ptx, CompileError> {
    Ok(Ptx::from_src(source.as_ref()))
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CompileError(pub String);
