//! Encoding with codebooks: the IQ1, IQ2 and IQ3 formats, whose weights come in groups of eight or four that a table
//! lists.
//!
//! Every group is tried at many scales, and each time `nearest_entry.rs` finds the entry with the least error.

use super::fit::{MAX_LEN, as_f16, nearest};
use super::nearest_entry::{Codebook, Levels};

/// What a format asks for: groups of `group_len` share a scale `d * (first + step * code)`, code below `n_codes`.
pub(super) struct Layout<const LEN: usize, const RADIX: usize> {
    pub book: Codebook<LEN, RADIX>,
    pub group_len: usize,
    pub first: f32,
    pub step: f32,
    pub n_codes: usize,
}

/// A block: the f16, a code for each group, an entry for each few weights.
pub(super) struct Coded {
    pub d: f32,
    pub codes: [usize; 16],
    pub entries: [u16; 64],
}

impl<const LEN: usize, const RADIX: usize> Layout<LEN, RADIX> {
    fn factor(&self, code: usize) -> f32 {
        self.first + self.step * code as f32
    }

    /// Encodes `x`; `levels_of` gives the levels of the weights from an index on (the IQ1 formats move theirs).
    pub(super) fn encode(&self, x: &[f32], w: &[f32], levels_of: impl Fn(usize) -> Levels<RADIX>) -> Coded {
        let n_groups = x.len() / self.group_len;
        let mut scales = [0.0_f32; 16];
        for g in 0..n_groups {
            scales[g] = self.group_scale(x, w, g, &levels_of);
        }
        let largest = scales.iter().copied().fold(0.0, f32::max);
        let mut out = Coded { d: as_f16(largest / self.factor(self.n_codes - 1)), codes: [0; 16], entries: [0; 64] };
        if out.d == 0.0 {
            return out;
        }
        let (mut xl, mut ll) = (0.0, 0.0);
        for round in 0..2 {
            for g in 0..n_groups {
                let wanted = (scales[g] / out.d - self.first) / self.step;
                let middle = nearest(wanted).clamp(0.0, (self.n_codes - 1) as f32) as usize;
                let mut best = (f32::INFINITY, 0, [0; 8], (0.0, 0.0));
                for code in middle.saturating_sub(1)..=(middle + 1).min(self.n_codes - 1) {
                    let scale = out.d * self.factor(code);
                    let mut entries = [0; 8];
                    let mut sums = (0.0, 0.0);
                    for (k, entry) in entries[..self.group_len / LEN].iter_mut().enumerate() {
                        let at = g * self.group_len + k * LEN;
                        let found = self.book.search(few(x, at), few(w, at), &levels_of(at), scale);
                        *entry = found.entry;
                        sums = (sums.0 + found.xl, sums.1 + found.ll);
                    }
                    let error = scale * (scale * sums.1 - 2.0 * sums.0);
                    if error < best.0 {
                        best = (error, code, entries, sums);
                    }
                }
                let n = self.group_len / LEN;
                (out.codes[g], _) = (best.1, out.entries[g * n..][..n].copy_from_slice(&best.2[..n]));
                let factor = self.factor(best.1);
                xl += factor * best.3.0;
                ll += factor * factor * best.3.1;
            }
            if round == 0 && ll > 0.0 && as_f16(xl / ll) > 0.0 {
                out.d = as_f16(xl / ll);
            }
        }
        out
    }

    /// The best scale of a group by itself.
    fn group_scale(&self, x: &[f32], w: &[f32], g: usize, levels_of: &impl Fn(usize) -> Levels<RADIX>) -> f32 {
        let first = g * self.group_len;
        let range = first..first + self.group_len;
        let most = x[range.clone()].iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        if most < 1e-30 {
            return 0.0;
        }
        let reach = levels_of(first).iter().fold(0.0_f32, |most, level| most.max(level.abs()));
        let attempt = |scale: f32, (best, best_gain): (f32, f32)| {
            let (mut xl, mut ll) = (0.0, 0.0);
            for at in range.clone().step_by(LEN) {
                let found = self.book.search(few(x, at), few(w, at), &levels_of(at), scale);
                xl += found.xl;
                ll += found.ll;
            }
            if ll > 0.0 && xl > 0.0 && xl * xl > best_gain * ll { (xl / ll, xl * xl / ll) } else { (best, best_gain) }
        };
        let mut best = (0.0, 0.0);
        for k in 0..7 {
            best = attempt(most / reach * (0.55 + 0.1 * k as f32), best);
        }
        if best.0 > 0.0 {
            best = attempt(best.0, best);
        }
        best.0
    }
}

fn few<const LEN: usize>(of: &[f32], at: usize) -> &[f32; LEN] {
    of[at..].first_chunk().expect("whole groups")
}

/// Magnitudes and signs of weights, in runs of eight. Where a format keeps seven signs, the eighth makes their number
/// even: if it is not, the weight that matters least changes its sign, and its magnitude counts as below zero.
pub(super) fn magnitudes(x: &[f32], w: &[f32], is_even: bool, out: &mut [f32; MAX_LEN]) -> [u8; 32] {
    let mut signs = [0_u8; 32];
    for (run, signs) in signs.iter_mut().enumerate() {
        let at = 8 * run;
        for i in 0..8 {
            out[at + i] = x[at + i].abs();
            *signs |= u8::from(x[at + i] < 0.0) << i;
        }
        if is_even && signs.count_ones() % 2 == 1 {
            let cost = |i: &usize| w[at + i] * x[at + i] * x[at + i];
            let least = (0..8).min_by(|a, b| cost(a).total_cmp(&cost(b))).expect("eight weights");
            out[at + least] = -out[at + least];
            *signs ^= 1 << least;
        }
    }
    signs
}
