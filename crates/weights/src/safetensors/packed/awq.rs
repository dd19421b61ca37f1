//! AWQ, in the order its matrix kernel wants (`version: gemm`): `qweight` `[n_in, n_out / 8]` packs eight neighbouring
//! outputs into a word, nibble k being output `ORDER[k]`; `qzeros` `[n_groups, n_out / 8]` the same way; `scales`
//! `[n_groups, n_out]`. `weight[o, i] = scale * (q - zero)`.

use serde_json::Value;

use super::PackedTensors;
use super::make::{
    bad, expect_shape, fit_f16, matrix_shape, numbers, packed, put_q4_0, rounded, rounded_type, word, words,
};
use crate::{Dtype, Result, Tensor};

/// Which nibble of a word holds output `i` of its eight: nibbles are outputs 0 2 4 6 1 3 5 7.
const NIBBLE_OF: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

pub(super) fn tensor(stem: &str, pieces: &mut PackedTensors, config: &Value) -> Result<Tensor> {
    let piece = |name: &str| format!("{stem}.{name}");
    let qweight = pieces.need(&piece("qweight"), stem)?;
    let (scales, qzeros) = (pieces.need(&piece("scales"), stem)?, pieces.need(&piece("qzeros"), stem)?);
    let bits = config["bits"].as_u64().or(config["w_bit"].as_u64()).unwrap_or(4);
    let version = config["version"].as_str().unwrap_or("gemm").to_ascii_lowercase();
    if bits != 4 || version != "gemm" {
        return Err(bad(
            &qweight,
            format!("AWQ with {bits} bits in order `{version}`: only 4 bits in `gemm` are read"),
        ));
    }
    let ([n_in, n_words], [n_groups, n_out]) = (matrix_shape(&qweight)?, matrix_shape(&scales)?);
    words(&qweight)?;
    expect_shape(&qweight, &[n_in, n_out / 8])?;
    expect_shape(&qzeros, &[n_groups, n_words])?;
    expect_shape(&scales, &[n_groups, 8 * n_words])?;
    if n_groups == 0 || !n_in.is_multiple_of(n_groups) {
        return Err(bad(&qweight, format!("{n_in} inputs do not make {n_groups} groups")));
    }
    let group_size = n_in / n_groups;
    let zeros = words(&qzeros)?;
    let at = move |word: u32, o: usize| (word >> (4 * NIBBLE_OF[o % 8]) & 15) as i32;
    let zero = move |g: usize, o: usize| at(zeros[g * n_words + o / 8], o);
    let scales = numbers(&scales)?;
    let (name, shape, bytes) = (piece("weight"), vec![n_out, n_in], qweight.bytes.clone());
    let q = move |o: usize, i: usize| at(word(&bytes, i * n_words + o / 8), o);
    let is_even = group_size.is_multiple_of(32) && fit_f16(&scales);
    if is_even && (0..n_groups * n_out).all(|at| zero(at / n_out, at % n_out) == 8) {
        return packed(name, Dtype::Q4_0, shape, move |o, row| {
            for (b, block) in row.chunks_exact_mut(18).enumerate() {
                put_q4_0(block, scales[32 * b / group_size * n_out + o], |i| q(o, 32 * b + i) - 8);
            }
        });
    }
    let dtype = rounded_type(&scales, 15.0);
    rounded(name, dtype, shape, move |o, row| {
        for (i, x) in row.iter_mut().enumerate() {
            let g = i / group_size;
            *x = scales[g * n_out + o] * (q(o, i) - zero(g, o)) as f32;
        }
    })
}
