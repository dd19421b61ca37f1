//! GPTQ: `qweight` `[n_in / p, n_out]` packs p weights of a column into a word, the first in the lowest bits; `scales`
//! `[n_groups, n_out]`; `qzeros` `[n_groups, n_out / p]`; `g_idx` `[n_in]` says which group an input belongs to (with
//! act-order they are mixed). `weight[o, i] = scale * (q - zero)`.
//!
//! The first format keeps `zero - 1`, the second (`checkpoint_format: gptq_v2`) the zero itself.

use serde_json::Value;

use super::PackedTensors;
use super::make::{
    bad, expect_shape, fit_f16, matrix_shape, numbers, packed, put_q4_0, put_q8_0, rounded, rounded_type, word, words,
};
use crate::{Dtype, Result, Tensor};

pub(super) fn tensor(stem: &str, pieces: &mut PackedTensors, config: &Value) -> Result<Tensor> {
    let piece = |name: &str| format!("{stem}.{name}");
    let qweight = pieces.need(&piece("qweight"), stem)?;
    let (scales, qzeros) = (pieces.need(&piece("scales"), stem)?, pieces.take(&piece("qzeros")));
    let bits = config["bits"].as_u64().unwrap_or(4) as usize;
    if bits != 2 && bits != 4 && bits != 8 {
        return Err(bad(&qweight, format!("{bits} bits: only 2, 4 and 8 are read")));
    }
    let (per_word, mask) = (32 / bits, (1_u32 << bits) - 1);
    let ([n_words, n_out], [n_groups, _]) = (matrix_shape(&qweight)?, matrix_shape(&scales)?);
    words(&qweight)?;
    let n_in = n_words.checked_mul(per_word).ok_or_else(|| bad(&qweight, "shape overflows"))?;
    expect_shape(&scales, &[n_groups, n_out])?;
    let group_of = group_of(pieces.take(&piece("g_idx")), n_in, n_groups, config, &qweight)?;
    let is_v2 = config["checkpoint_format"].as_str().is_some_and(|format| format == "gptq_v2");
    let zeros = match qzeros {
        None => vec![1_i32 << (bits - 1); n_groups * n_out],
        Some(qzeros) => {
            expect_shape(&qzeros, &[n_groups, n_out.div_ceil(per_word)])?;
            let words = words(&qzeros)?;
            let row = n_out.div_ceil(per_word);
            let zero = |g: usize, o: usize| words[g * row + o / per_word] >> (o % per_word * bits) & mask;
            // A stored zero of all ones stands for a zero of none: the sum wraps.
            let zero = |g, o| if is_v2 { zero(g, o) } else { (zero(g, o) + 1) & mask };
            (0..n_groups * n_out).map(|at| zero(at / n_out, at % n_out) as i32).collect()
        }
    };
    let scales = numbers(&scales)?;
    let (name, shape, bytes) = (piece("weight"), vec![n_out, n_in], qweight.bytes.clone());
    let q = move |o: usize, i: usize| (word(&bytes, i / per_word * n_out + o) >> (i % per_word * bits) & mask) as i32;
    // Whole blocks of one group each, with the zero in the middle, are ggml's blocks.
    let is_even = n_in.is_multiple_of(32)
        && group_of.chunks(32).all(|block| block.iter().all(|g| *g == block[0]))
        && zeros.iter().all(|&zero| zero == 1 << (bits - 1))
        && fit_f16(&scales);
    if is_even && bits != 2 {
        let dtype = if bits == 4 { Dtype::Q4_0 } else { Dtype::Q8_0 };
        let middle = 1_i32 << (bits - 1);
        return packed(name, dtype, shape, move |o, row| {
            for (b, block) in row.chunks_exact_mut(dtype.block_bytes()).enumerate() {
                let scale = scales[group_of[32 * b] as usize * n_out + o];
                let q = |i: usize| q(o, 32 * b + i) - middle;
                if bits == 4 { put_q4_0(block, scale, q) } else { put_q8_0(block, scale, q) }
            }
        });
    }
    let dtype = rounded_type(&scales, mask as f32);
    rounded(name, dtype, shape, move |o, row| {
        for (i, x) in row.iter_mut().enumerate() {
            let at = group_of[i] as usize * n_out + o;
            *x = scales[at] * (q(o, i) - zeros[at]) as f32;
        }
    })
}

/// The group of every input: as stored, or side by side.
fn group_of(
    stored: Option<super::StoredTensor>,
    n_in: usize,
    n_groups: usize,
    config: &Value,
    qweight: &super::StoredTensor,
) -> Result<Vec<u32>> {
    if let Some(g_idx) = stored {
        expect_shape(&g_idx, &[n_in])?;
        let groups = words(&g_idx)?;
        if let Some(group) = groups.iter().find(|group| **group as usize >= n_groups) {
            return Err(bad(&g_idx, format!("group {group} of {n_groups}")));
        }
        return Ok(groups);
    }
    let group_size = match config["group_size"].as_i64() {
        Some(n) if n > 0 => n as usize,
        _ => n_in.div_ceil(n_groups.max(1)).max(1),
    };
    if n_in.div_ceil(group_size) > n_groups {
        return Err(bad(qweight, format!("{n_in} inputs in groups of {group_size} do not fit {n_groups} scales")));
    }
    Ok((0..n_in).map(|i| (i / group_size) as u32).collect())
}
