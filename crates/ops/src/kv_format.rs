//! How keys and values lie in the KV pool: the one place that knows a type's bytes.
//!
//! A pool has a row per (head, block): sixteen tokens of one head. Plain numbers fill it. Quantized ones are groups of
//! [`GROUP`] neighbouring numbers of *one token's* head with a scale each, as Q8_0 and Q4_0 have them. A token is written
//! once and whole, so its groups are final at once; groups across tokens would have to be made again with every token of
//! a block, and each time lose a little. A row then holds all quants, and behind them all scales: f16, `[head_dim / 32,
//! 16]` on a CPU and `[16, head_dim / 32]` on a GPU.
//!
//! On a CPU keys are turned, `[head_dim, 16]`: one vector has the same number of sixteen tokens, and a vector of sixteen
//! scales goes with 32 of them. Values lie as `[16, head_dim]`. Sixteen numbers that are read together are sixteen bytes
//! (Q8_0), or eight with numbers 0 to 7 in the low and 8 to 15 in the high nibbles (Q4_0, 8 more than they are). On a GPU
//! both lie as `[16, head_dim]`, with number `2 i` in the low and `2 i + 1` in the high nibble of byte `i`.

use half::f16;
use weights::Dtype;

use crate::kv_store::KV_BLOCK;
use crate::tiles::GROUP;
use crate::{Error, encode};

/// Numbers that are read together.
const RUN: usize = 16;
const SCALE_BYTES: usize = 2;

/// The type of keys and values.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum KvFormat {
    F32,
    F16,
    Q8_0,
    Q4_0,
}

impl KvFormat {
    /// `head_dim` must fill whole groups where numbers are quantized.
    pub(crate) fn of(op: &'static str, dtype: Dtype, head_dim: usize) -> Result<Self, Error> {
        let format = match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::Q8_0 => Self::Q8_0,
            Dtype::Q4_0 => Self::Q4_0,
            found => return Err(Error::Type { op, what: "kv", found, expected: "F32, F16, Q8_0 or Q4_0" }),
        };
        if format.is_quantized() && !head_dim.is_multiple_of(GROUP) {
            let what =
                format!("keys and values in {dtype} need heads of a multiple of {GROUP} numbers, not {head_dim}");
            return Err(Error::Argument { op, what });
        }
        Ok(format)
    }

    pub(crate) fn is_quantized(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Q4_0)
    }

    /// The value of `KV` that kernels are compiled with (kernels/kv.h).
    pub(crate) fn define(self) -> u32 {
        self as u32
    }

    /// Bytes of a run of sixteen numbers, without their scales.
    pub(crate) const fn run_bytes(self) -> usize {
        match self {
            Self::F32 => 4 * RUN,
            Self::F16 => 2 * RUN,
            Self::Q8_0 => RUN,
            Self::Q4_0 => RUN / 2,
        }
    }

    /// Where the scales begin in a row of the pool, and so the bytes of all numbers.
    pub(crate) const fn scales_at(self, head_dim: usize) -> usize {
        self.run_bytes() * head_dim
    }

    /// Bytes of a row of the pool.
    pub(crate) fn row_bytes(self, head_dim: usize) -> usize {
        let n_scales = if self.is_quantized() { head_dim / GROUP * KV_BLOCK } else { 0 };
        self.scales_at(head_dim) + n_scales * SCALE_BYTES
    }

    fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::Q8_0 => Dtype::Q8_0,
            Self::Q4_0 => Dtype::Q4_0,
        }
    }

    /// The scale of a group of a token, on a CPU.
    pub(crate) fn scale(self, row: &[u8], head_dim: usize, token: usize, group: usize) -> f32 {
        let at = self.scales_at(head_dim) + (group * KV_BLOCK + token) * SCALE_BYTES;
        f16::from_le_bytes([row[at], row[at + 1]]).to_f32()
    }

    /// The whole number in place `i` of run `run`, on a CPU.
    pub(crate) fn quant(self, row: &[u8], run: usize, i: usize) -> f32 {
        match self {
            Self::Q8_0 => f32::from(row[run * RUN + i] as i8),
            _ => {
                let byte = row[run * (RUN / 2) + i % 8];
                f32::from(if i < 8 { byte & 15 } else { byte >> 4 }) - 8.0
            }
        }
    }

    /// Writes one token's part of a head of quantized keys or values, on a CPU.
    pub(crate) fn put(self, from: &[f32], token: usize, kind: KvPart, row: &mut [u8]) {
        let head_dim = from.len();
        let mut block = [0; SCALE_BYTES + GROUP];
        let block = &mut block[..self.dtype().block_bytes()];
        for (group, numbers) in from.chunks_exact(GROUP).enumerate() {
            encode::quantize(self.dtype(), numbers, block);
            let at = self.scales_at(head_dim) + (group * KV_BLOCK + token) * SCALE_BYTES;
            row[at..at + SCALE_BYTES].copy_from_slice(&block[..SCALE_BYTES]);
            for i in 0..GROUP {
                let d = group * GROUP + i;
                let (run, place) = match kind {
                    KvPart::Keys => (d, token),
                    KvPart::Values => (token * head_dim / RUN + d / RUN, d % RUN),
                };
                if self == Self::Q8_0 {
                    row[run * RUN + place] = block[SCALE_BYTES + i];
                    continue;
                }
                let byte = block[SCALE_BYTES + i % 16];
                let nibble = if i < 16 { byte & 15 } else { byte >> 4 };
                let to = &mut row[run * (RUN / 2) + place % 8];
                *to = if place < 8 { *to & 0xf0 | nibble } else { *to & 0x0f | nibble << 4 };
            }
        }
    }
}

/// Which of the two pools.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum KvPart {
    Keys,
    Values,
}
