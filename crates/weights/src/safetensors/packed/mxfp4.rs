//! MXFP4 as Hugging Face stores it: `X_blocks` `[.., n_groups, 16]` and `X_scales` `[.., n_groups]`, bytes. The low nibble
//! of byte i is weight 2i, the high one 2i + 1; in GGUF's blocks they are weights i and i + 16. Nothing is lost.
//!
//! The tensor is called `X` and has the shape `[.., 32 n_groups]`: rows are outputs, as everywhere here.

use ::safetensors::tensor::Dtype as Kind;

use super::PackedTensors;
use super::make::{bad, expect_shape, packed};
use crate::{Dtype, Result, Tensor};

pub(super) fn tensor(stem: &str, pieces: &mut PackedTensors) -> Result<Tensor> {
    let blocks = pieces.need(&format!("{stem}_blocks"), stem)?;
    let scales = pieces.need(&format!("{stem}_scales"), stem)?;
    if blocks.kind != Kind::U8 || scales.kind != Kind::U8 {
        return Err(bad(&blocks, format!("types {} and {}, both are bytes", blocks.kind, scales.kind)));
    }
    let [outer @ .., n_groups, 16] = blocks.shape.as_slice() else {
        return Err(bad(&blocks, format!("shape {:?} does not end in 16 bytes a block", blocks.shape)));
    };
    let n_groups = *n_groups;
    let mut shape = outer.to_vec();
    shape.push(n_groups);
    expect_shape(&scales, &shape)?;
    *shape.last_mut().expect("a dimension was pushed") =
        n_groups.checked_mul(32).ok_or_else(|| bad(&blocks, "shape overflows"))?;
    let (nibbles, exponents) = (blocks.bytes.clone(), scales.bytes.clone());
    packed(stem.to_owned(), Dtype::MXFP4, shape, move |row, out| {
        for (g, block) in out.chunks_exact_mut(17).enumerate() {
            let at = row * n_groups + g;
            block[0] = exponents[at];
            let from = &nibbles[16 * at..][..16];
            let weight = |i: usize| from[i / 2] >> (i % 2 * 4) & 15;
            block[1..].iter_mut().enumerate().for_each(|(i, byte)| *byte = weight(i) | weight(i + 16) << 4);
        }
    })
}
