//! compressed-tensors' packed weights.
//!
//! `pack-quantized`: `weight_packed` `[n_out, n_in / p]` packs p neighbouring inputs into a word, the first in the lowest
//! bits, each with half its range added; `weight_scale` `[n_out, n_groups]`; optional `weight_zero_point`, packed the
//! same way down the outputs, and `weight_g_idx`. `weight = scale * (q - zero)`.
//!
//! `nvfp4-pack-quantized`: bytes of two 4-bit floats (the first in the low nibble), a scale of 8 bits for every 16, and
//! `weight_global_scale`, by which those are divided.

use ::safetensors::tensor::Dtype as Kind;
use serde_json::Value;

use super::super::reader::StoredTensor;
use super::PackedTensors;
use super::make::{
    bad, expect_shape, fit_f16, matrix_shape, numbers, packed, put_q4_0, put_q8_0, rounded, rounded_type, word, words,
};
use crate::{Dtype, Result, Tensor};

/// The values of 4-bit floats.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

pub(super) fn tensor(stem: &str, pieces: &mut PackedTensors, config: &Value) -> Result<Tensor> {
    let piece = |name: &str| format!("{stem}.{name}");
    let weight = pieces.need(&piece("weight_packed"), stem)?;
    let scales = pieces.need(&piece("weight_scale"), stem)?;
    let said_shape = pieces.take(&piece("weight_shape"));
    if weight.kind == Kind::U8 {
        let global = pieces.need(&piece("weight_global_scale"), stem)?;
        pieces.take(&piece("input_global_scale"));
        return nvfp4(piece("weight"), &weight, &scales, &global);
    }
    words(&weight)?;
    let [n_out, n_words] = matrix_shape(&weight)?;
    // Scales of groups, or one a row.
    let n_groups = if scales.shape == [n_out] { 1 } else { matrix_shape(&scales)?[1] };
    if scales.shape != [n_out] {
        expect_shape(&scales, &[n_out, n_groups])?;
    }
    let bits = bits_of(config);
    if bits != 4 && bits != 8 {
        return Err(bad(&weight, format!("{bits} bits: only 4 and 8 are read")));
    }
    let (per_word, mask, middle) = (32 / bits, (1_u32 << bits) - 1, 1_i32 << (bits - 1));
    let n_in = match &said_shape {
        None => n_words.checked_mul(per_word).ok_or_else(|| bad(&weight, "shape overflows"))?,
        Some(shape) => inputs_of(shape, n_out)?,
    };
    if n_in.div_ceil(per_word) != n_words || n_groups == 0 || n_in == 0 {
        return Err(bad(&weight, format!("{n_words} words a row do not hold {n_in} weights of {bits} bits")));
    }
    let group_size = n_in.div_ceil(n_groups);
    let group_of: Vec<u32> = match pieces.take(&piece("weight_g_idx")) {
        None => (0..n_in).map(|i| (i / group_size) as u32).collect(),
        Some(g_idx) => groups_of(&g_idx, n_in, n_groups)?,
    };
    let zeros = pieces.take(&piece("weight_zero_point"));
    let zeros = zeros.map(|zeros| zero_points(&zeros, n_out, n_groups, bits)).transpose()?;
    let scales = numbers(&scales)?;
    let (name, shape, bytes) = (piece("weight"), vec![n_out, n_in], weight.bytes.clone());
    let q = move |o: usize, i: usize| {
        (word(&bytes, o * n_words + i / per_word) >> (i % per_word * bits) & mask) as i32 - middle
    };
    let is_even = n_in.is_multiple_of(32)
        && group_of.chunks(32).all(|block| block.iter().all(|g| *g == block[0]))
        && zeros.as_ref().is_none_or(|zeros| zeros.iter().all(|&zero| zero == 0))
        && fit_f16(&scales);
    if is_even {
        let dtype = if bits == 4 { Dtype::Q4_0 } else { Dtype::Q8_0 };
        return packed(name, dtype, shape, move |o, row| {
            for (b, block) in row.chunks_exact_mut(dtype.block_bytes()).enumerate() {
                let scale = scales[o * n_groups + group_of[32 * b] as usize];
                let q = |i: usize| q(o, 32 * b + i);
                if bits == 4 { put_q4_0(block, scale, q) } else { put_q8_0(block, scale, q) }
            }
        });
    }
    let dtype = rounded_type(&scales, mask as f32);
    rounded(name, dtype, shape, move |o, row| {
        for (i, x) in row.iter_mut().enumerate() {
            let at = o * n_groups + group_of[i] as usize;
            *x = scales[at] * (q(o, i) - zeros.as_ref().map_or(0, |zeros| zeros[at])) as f32;
        }
    })
}

/// The group of each input, where a checkpoint lists them.
fn groups_of(g_idx: &StoredTensor, n_in: usize, n_groups: usize) -> Result<Vec<u32>> {
    expect_shape(g_idx, &[n_in])?;
    let groups = words(g_idx)?;
    if groups.iter().any(|group| *group as usize >= n_groups) {
        return Err(bad(g_idx, format!("names a group past the {n_groups} there are")));
    }
    Ok(groups)
}

/// `[n_out, n_groups]`, relative to the middle of the range; stored packed down the outputs.
fn zero_points(zeros: &StoredTensor, n_out: usize, n_groups: usize, bits: usize) -> Result<Vec<i32>> {
    let (per_word, mask, middle) = (32 / bits, (1_u32 << bits) - 1, 1_i32 << (bits - 1));
    expect_shape(zeros, &[n_out.div_ceil(per_word), n_groups])?;
    let words = words(zeros)?;
    let zero =
        |o: usize, g: usize| (words[o / per_word * n_groups + g] >> (o % per_word * bits) & mask) as i32 - middle;
    Ok((0..n_out * n_groups).map(|at| zero(at / n_groups, at % n_groups)).collect())
}

/// The number of inputs of the unpacked matrix, as the checkpoint states it.
fn inputs_of(shape: &StoredTensor, n_out: usize) -> Result<usize> {
    let dims: Vec<u64> = match shape.kind {
        Kind::I64 => shape.bytes.as_chunks().0.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect(),
        Kind::I32 => words(shape)?.into_iter().map(u64::from).collect(),
        other => return Err(bad(shape, format!("type {other}, a shape is integers"))),
    };
    match dims.as_slice() {
        &[rows, cols] if rows == n_out as u64 && cols <= u64::from(u32::MAX) => Ok(cols as usize),
        _ => Err(bad(shape, format!("{dims:?} is not a matrix of {n_out} rows"))),
    }
}

/// Of the first group of layers: a model's packed layers share their width.
fn bits_of(config: &Value) -> usize {
    let groups = config["config_groups"].as_object();
    let group = groups.and_then(|groups| groups.values().find(|group| group["weights"].is_object()));
    group.and_then(|group| group["weights"]["num_bits"].as_u64()).unwrap_or(4) as usize
}

fn nvfp4(name: String, weight: &StoredTensor, scales: &StoredTensor, global: &StoredTensor) -> Result<Tensor> {
    let [n_out, n_bytes] = matrix_shape(weight)?;
    let n_in = n_bytes.checked_mul(2).ok_or_else(|| bad(weight, "shape overflows"))?;
    expect_shape(scales, &[n_out, n_in / 16])?;
    let divisor = match numbers(global)?.as_slice() {
        [one] if *one != 0.0 => *one,
        _ => return Err(bad(global, "not one number that can be divided by")),
    };
    if !n_in.is_multiple_of(16) {
        return Err(bad(weight, format!("{n_in} weights a row are not whole groups of 16")));
    }
    let scales: Vec<f32> = numbers(scales)?.iter().map(|scale| scale / divisor).collect();
    let (bytes, dtype) = (weight.bytes.clone(), rounded_type(&scales, 6.0));
    rounded(name, dtype, vec![n_out, n_in], move |o, row| {
        for (i, x) in row.iter_mut().enumerate() {
            let nibble = bytes[o * n_bytes + i / 2] >> (i % 2 * 4) & 15;
            let value = scales[(o * n_in + i) / 16] * E2M1[usize::from(nibble & 7)];
            *x = if nibble > 7 { -value } else { value };
        }
    })
}
