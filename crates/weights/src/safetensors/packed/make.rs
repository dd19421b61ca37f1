//! What the schemes share: numbers out of stored tensors, and rows of an output made side by side on all cores.

use ::safetensors::tensor::Dtype as Kind;
use half::{bf16, f16};

use super::super::reader::StoredTensor;
use crate::{Bytes, Dtype, Error, Result, Tensor};

/// Rows that a thread takes at the least.
const MIN_ROWS: usize = 16;

pub(super) fn bad(tensor: &StoredTensor, reason: impl Into<String>) -> Error {
    Error::invalid(format_args!("tensor `{}`", tensor.name), reason)
}

pub(super) fn expect_shape(tensor: &StoredTensor, shape: &[usize]) -> Result<()> {
    if tensor.shape == shape {
        return Ok(());
    }
    Err(bad(tensor, format!("shape {:?}, the tensors beside it ask for {shape:?}", tensor.shape)))
}

pub(super) fn matrix_shape(tensor: &StoredTensor) -> Result<[usize; 2]> {
    <[usize; 2]>::try_from(tensor.shape.as_slice())
        .map_err(|_| bad(tensor, format!("shape {:?} is not a matrix", tensor.shape)))
}

/// 32-bit words, as GPTQ, AWQ and compressed-tensors pack their weights into.
pub(super) fn words(tensor: &StoredTensor) -> Result<Vec<u32>> {
    if tensor.kind != Kind::I32 && tensor.kind != Kind::U32 {
        return Err(bad(tensor, format!("type {}, packed weights come as I32", tensor.kind)));
    }
    Ok(tensor.bytes.as_chunks().0.iter().map(|chunk| u32::from_le_bytes(*chunk)).collect())
}

/// A word of packed bytes that are not copied out.
pub(super) fn word(bytes: &[u8], idx: usize) -> u32 {
    let at = 4 * idx;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// A small tensor's numbers: scales, indices.
pub(super) fn numbers(tensor: &StoredTensor) -> Result<Vec<f32>> {
    let bytes = &*tensor.bytes;
    Ok(match tensor.kind {
        Kind::F32 => bytes.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect(),
        Kind::F64 => bytes.as_chunks().0.iter().map(|chunk| f64::from_le_bytes(*chunk) as f32).collect(),
        Kind::F16 => bytes.as_chunks().0.iter().map(|chunk| f16::from_le_bytes(*chunk).to_f32()).collect(),
        Kind::BF16 => bytes.as_chunks().0.iter().map(|chunk| bf16::from_le_bytes(*chunk).to_f32()).collect(),
        Kind::F8_E4M3 => bytes.iter().map(|&byte| e4m3(byte)).collect(),
        Kind::F8_E5M2 => bytes.iter().map(|&byte| e5m2(byte)).collect(),
        other => return Err(bad(tensor, format!("type {other}, scales are floats"))),
    })
}

/// The 8-bit float with four bits of exponent: no infinities, and not a number where all bits but the sign are set.
pub(super) fn e4m3(byte: u8) -> f32 {
    let (exponent, fraction) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match exponent {
        15 if byte & 7 == 7 => f32::NAN,
        0 => fraction / 512.0,
        _ => (1.0 + fraction / 8.0) * 2.0_f32.powi(exponent - 7),
    };
    if byte >> 7 == 1 { -magnitude } else { magnitude }
}

/// The 8-bit float with five bits of exponent: the upper half of an f16.
pub(super) fn e5m2(byte: u8) -> f32 {
    f16::from_bits(u16::from(byte) << 8).to_f32()
}

/// Whether every number is one of f16's.
pub(super) fn fit_f16(numbers: &[f32]) -> bool {
    numbers.iter().all(|&x| f16::from_f32(x).to_f32() == x)
}

/// F16 unless the largest product could overflow it.
pub(super) fn rounded_type(scales: &[f32], largest: f32) -> Dtype {
    let most = scales.iter().fold(0.0_f32, |most, scale| most.max(scale.abs()));
    if most * largest <= 65_000.0 { Dtype::F16 } else { Dtype::F32 }
}

/// A tensor whose rows are made when they are needed: `fill(row, numbers)` gives a row's numbers.
pub(super) fn rounded(
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    fill: impl Fn(usize, &mut [f32]) + Send + Sync + 'static,
) -> Result<Tensor> {
    let n_cols = shape.last().copied().unwrap_or(1);
    packed(name, dtype, shape, move |row, bytes| {
        let mut numbers = vec![0.0; n_cols];
        fill(row, &mut numbers);
        match dtype {
            Dtype::F16 => {
                let halves = bytes.as_chunks_mut().0.iter_mut().zip(&numbers);
                halves.for_each(|(chunk, x)| *chunk = f16::from_f32(*x).to_le_bytes());
            }
            _ => bytes.as_chunks_mut().0.iter_mut().zip(&numbers).for_each(|(chunk, x)| *chunk = x.to_le_bytes()),
        }
    })
}

/// As [`rounded`], with the row's bytes.
pub(super) fn packed(
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    fill: impl Fn(usize, &mut [u8]) + Send + Sync + 'static,
) -> Result<Tensor> {
    let n_bytes = crate::tensor::packed_bytes(&name, dtype, &shape)?;
    let n_rows: usize = shape.split_last().map_or(1, |(_, outer)| outer.iter().product());
    let bytes = Bytes::made(n_bytes, move || {
        let mut out = vec![0; n_bytes];
        let row_bytes = n_bytes / n_rows.max(1);
        if row_bytes == 0 {
            return out;
        }
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        let rows_each = n_rows.div_ceil(n_threads).max(MIN_ROWS);
        std::thread::scope(|scope| {
            for (idx, part) in out.chunks_mut(rows_each * row_bytes).enumerate() {
                let fill = &fill;
                scope.spawn(move || {
                    part.chunks_mut(row_bytes).enumerate().for_each(|(row, bytes)| fill(idx * rows_each + row, bytes));
                });
            }
        });
        out
    });
    Tensor::new(name, dtype, shape, bytes)
}

/// A Q4_0 block of signed 4-bit numbers.
pub(super) fn put_q4_0(block: &mut [u8], scale: f32, q: impl Fn(usize) -> i32) {
    block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    for (i, byte) in block[2..].iter_mut().enumerate() {
        *byte = (q(i) + 8) as u8 | ((q(i + 16) + 8) as u8) << 4;
    }
}

/// A Q8_0 block of signed bytes.
pub(super) fn put_q8_0(block: &mut [u8], scale: f32, q: impl Fn(usize) -> i32) {
    block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    block[2..].iter_mut().enumerate().for_each(|(i, byte)| *byte = q(i) as i8 as u8);
}
