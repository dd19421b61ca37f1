//! Encoders: from numbers to blocks.
//!
//! `quantize` gives the plain reference encodings of ggml where a format has one (bit for bit those of `gguf`);
//! `quantize_for` counts errors by an importance matrix. The formats without a plain encoding are fitted either way.

mod codebook;
mod fit;
mod four_bit;
mod iq1;
mod iq2_iq3;
mod k_quants;
mod nearest_entry;
mod plain;
mod superblock;
mod ternary;

use weights::Dtype;

use crate::formats::{BlockFormat, Float, for_block};

/// A packed format's encoder.
pub(crate) trait Encode: BlockFormat {
    /// `importance` says how much an error in each column counts: the mean square of its activations.
    fn encode(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]);
}

/// Encodes numbers into whole blocks.
///
/// # Panics
/// If `values` and `bytes` do not hold the same whole blocks.
pub fn quantize(dtype: Dtype, values: &[f32], bytes: &mut [u8]) {
    quantize_for(dtype, values, None, bytes);
}

/// Encodes a row, each column's error weighted by `importance` (as long as the row).
///
/// # Panics
/// If `values`, `importance` and `bytes` do not hold the same whole blocks.
pub fn quantize_for(dtype: Dtype, values: &[f32], importance: Option<&[f32]>, bytes: &mut [u8]) {
    assert_eq!(Some(bytes.len()), dtype.row_bytes(values.len()), "bytes for {} elements of {dtype}", values.len());
    assert!(importance.is_none_or(|importance| importance.len() == values.len()), "importance of another row");
    for_block!(dtype,
        P => for (b, (block, values)) in bytes.chunks_exact_mut(P::BYTES).zip(values.chunks_exact(P::LEN)).enumerate() {
            P::encode(values, importance.map(|importance| &importance[b * P::LEN..][..P::LEN]), block);
        },
        P => bytes.chunks_exact_mut(P::BYTES).zip(values).for_each(|(b, v)| P::encode(*v, b))
    );
}
