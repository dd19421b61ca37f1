//! Any bytes as a GGUF or a safetensors file: an error, or a checkpoint whose tensors can be read to the last byte.
//! The files of `crates/weights/testdata` are a good corpus.

#![no_main]

use libfuzzer_sys::fuzz_target;
use weights::{Bytes, Checkpoint};

fuzz_target!(|data: &[u8]| {
    let Ok(checkpoint) = Checkpoint::from_bytes(Bytes::from_vec(data.to_vec())) else { return };
    for tensor in checkpoint.tensors() {
        let row_bytes = tensor.dtype.row_bytes(tensor.n_cols()).expect("whole rows");
        assert_eq!(tensor.bytes.len(), tensor.n_rows() * row_bytes);
        std::hint::black_box(tensor.bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
    }
});
