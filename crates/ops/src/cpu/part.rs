//! Contexts in parts of fixed length, for attention whose bits must not depend on how the work was divided. Parts begin
//! at multiples of [`PART_KEYS`], counted from the start of the context, and are added one after the other. Whether one
//! thread computes all of them or each thread one, the same numbers are added in the same order.

use std::ops::Range;

use super::attention::SoftmaxState;
use super::exp::exp;
use crate::kv_store::KV_BLOCK;

/// Keys of a part: as many as a thread should have at least.
pub(crate) const PART_KEYS: usize = 16 * KV_BLOCK;
/// Windows begin at multiples of this: the most keys between two looks at the running softmax.
pub(crate) const WINDOW_STEP: usize = 64;

/// The parts that `keys` fall into.
pub(crate) fn ranges(keys: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let parts = keys.start / PART_KEYS..keys.end.div_ceil(PART_KEYS);
    parts.map(move |i| (i * PART_KEYS).max(keys.start)..((i + 1) * PART_KEYS).min(keys.end))
}

/// A row of a running softmax: the largest score, the sum of weights, the weighted values.
struct SoftmaxRow<'a> {
    max: &'a mut f32,
    sum: &'a mut f32,
    acc: &'a mut [f32],
}

impl SoftmaxRow<'_> {
    /// Adds the same of a later part. One that the row sees nothing of changes nothing.
    fn add(self, max: f32, sum: f32, acc: &[f32]) {
        if max == f32::NEG_INFINITY {
            return;
        }
        let larger = if max > *self.max { max } else { *self.max };
        let (keep, factor) = (exp(*self.max - larger), exp(max - larger));
        *self.max = larger;
        *self.sum = *self.sum * keep + sum * factor;
        self.acc.iter_mut().zip(acc).for_each(|(total, x)| *total = *total * keep + x * factor);
    }
}

impl SoftmaxState {
    /// Adds what was found in a later part.
    pub(crate) fn add(&mut self, part: &SoftmaxState) {
        let head_dim = self.acc.len() / self.max.len().max(1);
        let rows = self.max.iter_mut().zip(&mut self.sum).zip(self.acc.chunks_exact_mut(head_dim));
        for (row, ((max, sum), acc)) in rows.enumerate() {
            SoftmaxRow { max, sum, acc }.add(part.max[row], part.sum[row], &part.acc[row * head_dim..][..head_dim]);
        }
    }
}

/// As `attention::merge`, with the parts' sums in order.
pub(crate) fn merge(parts: &[f32], part_len: usize, row: usize, sink: Option<f32>, out: &mut [f32]) {
    let head_dim = out.len();
    let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
    out.fill(0.0);
    for part in parts.chunks_exact(part_len) {
        let part = &part[row * (head_dim + 2)..][..head_dim + 2];
        SoftmaxRow { max: &mut max, sum: &mut sum, acc: out }.add(
            part[head_dim],
            part[head_dim + 1],
            &part[..head_dim],
        );
    }
    let inverse = 1.0 / (sum + sink.map_or(0.0, |sink| exp(sink - max)));
    out.iter_mut().for_each(|x| *x *= inverse);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_begin_at_the_same_keys_wherever_a_unit_begins() {
        let all: Vec<_> = ranges(0..700).collect();
        assert_eq!(all, [0..256, 256..512, 512..700]);
        assert_eq!(ranges(64..300).collect::<Vec<_>>(), [64..256, 256..300]);
        assert!(ranges(256..257).eq(std::iter::once(256..257)));
    }
}
