//! The portable product: decodes a group of weights to f32 and multiplies, for any number of rows. Slow and simple;
//! the other paths are measured against it in the tests.

use std::ops::Range;

use crate::cpu::matmul::{ProductInput, ProductJob};
use crate::formats::{BlockFormat, Float, for_block};

pub(crate) fn rows(input: &ProductInput, job: &ProductJob, rows: Range<usize>) {
    for col in rows {
        let weight = &job.weight[col * job.stride..][..job.stride];
        let mut decoded = [0.0; 256];
        // A few activation rows at a time, so that a decoded block is used more than once.
        for first in (0..input.n_rows).step_by(8) {
            let n = (input.n_rows - first).min(8);
            let mut sums = [0.0_f32; 8];
            let mut add = |start: usize, decoded: &[f32]| {
                for (i, sum) in sums[..n].iter_mut().enumerate() {
                    let x = &input.x[(first + i) * input.n_in + start..][..decoded.len()];
                    *sum += x.iter().zip(decoded).map(|(x, w)| x * w).sum::<f32>();
                }
            };
            for_block!(job.dtype,
                P => for (b, block) in weight.chunks_exact(P::BYTES).enumerate() {
                    P::decode(block, &mut decoded[..P::LEN]);
                    add(b * P::LEN, &decoded[..P::LEN]);
                },
                P => for (b, block) in weight.chunks(P::BYTES * 256).enumerate() {
                    let n = block.len() / P::BYTES;
                    decoded.iter_mut().zip(block.chunks_exact(P::BYTES)).for_each(|(x, bytes)| *x = P::decode(bytes));
                    add(b * 256, &decoded[..n]);
                }
            );
            for (i, sum) in sums[..n].iter().enumerate() {
                // SAFETY: first + i < n_rows, and `col` is one of this task's columns.
                unsafe { job.put(first + i, col, *sum) };
            }
        }
    }
}
