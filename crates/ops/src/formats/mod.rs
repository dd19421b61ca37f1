//! Block formats: what the bits inside a block mean. One file per format, each with its exact decoding, the truth other
//! programs agree on. How a CPU holds blocks for its products is in `tiles/`, how numbers become blocks in `encode/`,
//! and how a GPU holds them in `kernels/quant.h`.

pub(crate) mod block;
mod float;
pub(crate) mod grids;
mod integer;
mod iq1_m;
pub(crate) mod iq1_s;
mod iq2_s;
mod iq2_xs;
pub(crate) mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
pub(crate) mod iq4_nl;
mod iq4_xs;
pub(crate) mod mxfp4;
pub(crate) mod nvfp4;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
pub(crate) mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
pub(crate) mod q6_k;
mod q8_0;
pub(crate) mod tq1_0;
mod tq2_0;

pub(crate) use block::{BlockFormat, f16_at};
pub(crate) use float::{Bf16, F16, F32, Float};
pub(crate) use integer::{F64, I8, I16, I32, I64};
pub(crate) use iq1_m::Iq1M;
pub(crate) use iq1_s::Iq1S;
pub(crate) use iq2_s::Iq2S;
pub(crate) use iq2_xs::Iq2Xs;
pub(crate) use iq2_xxs::Iq2Xxs;
pub(crate) use iq3_s::Iq3S;
pub(crate) use iq3_xxs::Iq3Xxs;
pub(crate) use iq4_nl::Iq4Nl;
pub(crate) use iq4_xs::Iq4Xs;
pub(crate) use mxfp4::Mxfp4;
pub(crate) use nvfp4::Nvfp4;
pub(crate) use q1_0::Q1_0;
pub(crate) use q2_0::Q2_0;
pub(crate) use q2_k::Q2K;
pub(crate) use q3_k::Q3K;
pub(crate) use q4_0::Q4_0;
pub(crate) use q4_1::Q4_1;
pub(crate) use q4_k::Q4K;
pub(crate) use q5_0::Q5_0;
pub(crate) use q5_1::Q5_1;
pub(crate) use q5_k::Q5K;
pub(crate) use q6_k::Q6K;
pub(crate) use q8_0::Q8_0;
pub(crate) use tq1_0::Tq1_0;
pub(crate) use tq2_0::Tq2_0;

use weights::Dtype;

use crate::encode::quantize;

/// Runs one of two bodies with a name bound to the format of `$dtype`: of a packed format, of plain numbers.
macro_rules! for_block {
    ($dtype:expr, $block:ident => $body:expr, $float:ident => $float_body:expr) => {
        match $dtype {
            weights::Dtype::F32 => {
                type $float = $crate::formats::F32;
                $float_body
            }
            weights::Dtype::F16 => {
                type $float = $crate::formats::F16;
                $float_body
            }
            weights::Dtype::BF16 => {
                type $float = $crate::formats::Bf16;
                $float_body
            }
            weights::Dtype::I8 => {
                type $float = $crate::formats::I8;
                $float_body
            }
            weights::Dtype::I16 => {
                type $float = $crate::formats::I16;
                $float_body
            }
            weights::Dtype::I32 => {
                type $float = $crate::formats::I32;
                $float_body
            }
            weights::Dtype::I64 => {
                type $float = $crate::formats::I64;
                $float_body
            }
            weights::Dtype::F64 => {
                type $float = $crate::formats::F64;
                $float_body
            }
            weights::Dtype::Q4_0 => {
                type $block = $crate::formats::Q4_0;
                $body
            }
            weights::Dtype::Q4_1 => {
                type $block = $crate::formats::Q4_1;
                $body
            }
            weights::Dtype::Q8_0 => {
                type $block = $crate::formats::Q8_0;
                $body
            }
            weights::Dtype::Q4K => {
                type $block = $crate::formats::Q4K;
                $body
            }
            weights::Dtype::Q6K => {
                type $block = $crate::formats::Q6K;
                $body
            }
            weights::Dtype::Q5_0 => {
                type $block = $crate::formats::Q5_0;
                $body
            }
            weights::Dtype::Q5_1 => {
                type $block = $crate::formats::Q5_1;
                $body
            }
            weights::Dtype::Q2K => {
                type $block = $crate::formats::Q2K;
                $body
            }
            weights::Dtype::Q3K => {
                type $block = $crate::formats::Q3K;
                $body
            }
            weights::Dtype::Q5K => {
                type $block = $crate::formats::Q5K;
                $body
            }
            weights::Dtype::IQ2XXS => {
                type $block = $crate::formats::Iq2Xxs;
                $body
            }
            weights::Dtype::IQ2XS => {
                type $block = $crate::formats::Iq2Xs;
                $body
            }
            weights::Dtype::IQ3XXS => {
                type $block = $crate::formats::Iq3Xxs;
                $body
            }
            weights::Dtype::IQ1S => {
                type $block = $crate::formats::Iq1S;
                $body
            }
            weights::Dtype::IQ4NL => {
                type $block = $crate::formats::Iq4Nl;
                $body
            }
            weights::Dtype::IQ3S => {
                type $block = $crate::formats::Iq3S;
                $body
            }
            weights::Dtype::IQ2S => {
                type $block = $crate::formats::Iq2S;
                $body
            }
            weights::Dtype::IQ4XS => {
                type $block = $crate::formats::Iq4Xs;
                $body
            }
            weights::Dtype::IQ1M => {
                type $block = $crate::formats::Iq1M;
                $body
            }
            weights::Dtype::TQ1_0 => {
                type $block = $crate::formats::Tq1_0;
                $body
            }
            weights::Dtype::TQ2_0 => {
                type $block = $crate::formats::Tq2_0;
                $body
            }
            weights::Dtype::MXFP4 => {
                type $block = $crate::formats::Mxfp4;
                $body
            }
            weights::Dtype::NVFP4 => {
                type $block = $crate::formats::Nvfp4;
                $body
            }
            weights::Dtype::Q1_0 => {
                type $block = $crate::formats::Q1_0;
                $body
            }
            weights::Dtype::Q2_0 => {
                type $block = $crate::formats::Q2_0;
                $body
            }
        }
    };
}
pub(crate) use for_block;

/// Decodes whole blocks into numbers, exactly as `gguf` does.
///
/// # Panics
/// If `bytes` and `out` do not hold the same whole blocks.
pub fn dequantize(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), dtype.row_bytes(out.len()), "bytes for {} elements of {dtype}", out.len());
    for_block!(dtype,
        P => bytes.chunks_exact(P::BYTES).zip(out.chunks_exact_mut(P::LEN)).for_each(|(b, o)| P::decode(b, o)),
        P => bytes.chunks_exact(P::BYTES).zip(out).for_each(|(b, o)| *o = P::decode(b))
    );
}

/// Fills blocks with random weights of about the given standard deviation, without quantising anything: random bits
/// for the quants, fixed scales.
pub fn randomize(dtype: Dtype, std: f32, mut bits: impl FnMut() -> u64, bytes: &mut [u8]) {
    if dtype.block_len() == 1 {
        let mut value = [0.0];
        for bytes in bytes.chunks_exact_mut(dtype.block_bytes()) {
            // Uniform, so that no table or logarithm is needed: sqrt(3) wide for a deviation of 1.
            value[0] = ((bits() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0) * std * 1.732;
            quantize(dtype, &value, bytes);
        }
        return;
    }
    for chunk in bytes.chunks_mut(8) {
        let random = bits().to_le_bytes();
        chunk.copy_from_slice(&random[..chunk.len()]);
    }
    for_block!(dtype,
        P => bytes.chunks_exact_mut(P::BYTES).for_each(|block| P::put_scales(block, std)),
        P => unreachable!("{:?}: plain numbers were filled above", P::NO_TILES)
    );
}
