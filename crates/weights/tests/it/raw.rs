//! A GGUF file put together byte by byte, for saying what no honest writer would.

use weights::{Bytes, Checkpoint};

#[derive(Clone, Default)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    pub fn header(version: u32, n_tensors: u64, n_keys: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(version).u64(n_tensors).u64(n_keys)
    }

    pub fn u8(self, value: u8) -> Self {
        self.bytes(&[value])
    }

    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn str(self, text: &str) -> Self {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Zeros up to a multiple of 32, and then that many.
    pub fn data(mut self, n_bytes: usize) -> Self {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + n_bytes, 0);
        self
    }

    /// A row of the tensor table; dimensions innermost first.
    pub fn tensor(self, name: &str, dims: &[u64], ggml_id: u32, offset: u64) -> Self {
        let raw = self.str(name).u32(dims.len() as u32);
        dims.iter().fold(raw, |raw, &dim| raw.u64(dim)).u32(ggml_id).u64(offset)
    }

    pub fn open(self) -> weights::Result<Checkpoint> {
        Checkpoint::from_bytes(Bytes::from_vec(self.0))
    }
}
