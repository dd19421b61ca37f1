//! Encoding with codebooks: the IQ1, IQ2 and IQ3 formats, whose weights come in groups of eight or four that a table
//! lists.
//!
//! Every group is tried at many scales, and each time `nearest_entry.rs` finds the entry with the least error.

use super::fit::{MAX_LEN, as_f16, nearest};
use super::nearest_entry::{CodeLevels, Codebook};

/// What a format asks for: groups of `group_len` share a scale `d * (first + step * code)`, code below `n_codes`.
pub(super) struct CodebookLayout<const LEN: usize, const RADIX: usize> {
    pub book: Codebook<LEN, RADIX>,
    /// What the codes are worth: one list, or several of which every `choice_len` weights take one.
    pub levels: &'static [CodeLevels<RADIX>],
    pub choice_len: usize,
    pub group_len: usize,
    pub first: f32,
    pub step: f32,
    pub n_codes: usize,
    /// Where scales are first looked for: the first one that is tried, as a part of what the largest weight asks for.
    pub from: f32,
}

/// A block: the f16, a code for each group, an entry for each few weights and which list of levels it takes.
pub(super) struct CodedBlock {
    pub d: f32,
    pub codes: [usize; 16],
    pub entries: [u16; 64],
    pub choices: [u8; 64],
}

/// A group's entries at some scale, and what they make of `w x level` and `w level level`.
#[derive(Clone, Copy, Default)]
struct EncodedGroup {
    entries: [u16; 8],
    choices: [u8; 8],
    xl: f32,
    ll: f32,
}

impl EncodedGroup {
    /// The error beyond that of all zeros.
    fn error(&self, scale: f32) -> f32 {
        scale * (scale * self.ll - 2.0 * self.xl)
    }
}

impl<const LEN: usize, const RADIX: usize> CodebookLayout<LEN, RADIX> {
    fn factor(&self, code: usize) -> f32 {
        self.first + self.step * code as f32
    }

    pub(super) fn encode(&self, x: &[f32], w: &[f32]) -> CodedBlock {
        let n_groups = x.len() / self.group_len;
        let mut scales = [0.0_f32; 16];
        for g in 0..n_groups {
            scales[g] = self.group_scale(x, w, g);
        }
        let largest = scales.iter().copied().fold(0.0, f32::max);
        let d = as_f16(largest / self.factor(self.n_codes - 1));
        let mut out = CodedBlock { d, codes: [0; 16], entries: [0; 64], choices: [0; 64] };
        if out.d == 0.0 {
            return out;
        }
        let (mut xl, mut ll) = (0.0, 0.0);
        for round in 0..2 {
            for g in 0..n_groups {
                let wanted = (scales[g] / out.d - self.first) / self.step;
                let middle = nearest(wanted).clamp(0.0, (self.n_codes - 1) as f32) as usize;
                let mut best = (f32::INFINITY, 0, EncodedGroup::default());
                for code in middle.saturating_sub(1)..=(middle + 1).min(self.n_codes - 1) {
                    let scale = out.d * self.factor(code);
                    let group = self.group(x, w, g, scale);
                    if group.error(scale) < best.0 {
                        best = (group.error(scale), code, group);
                    }
                }
                let (_, code, group) = best;
                let n = self.group_len / LEN;
                out.codes[g] = code;
                out.entries[g * n..][..n].copy_from_slice(&group.entries[..n]);
                out.choices[g * n..][..n].copy_from_slice(&group.choices[..n]);
                let factor = self.factor(code);
                xl += factor * group.xl;
                ll += factor * factor * group.ll;
            }
            if round == 0 && ll > 0.0 && as_f16(xl / ll) > 0.0 {
                out.d = as_f16(xl / ll);
            }
        }
        out
    }

    /// The best scale of a group by itself.
    fn group_scale(&self, x: &[f32], w: &[f32], g: usize) -> f32 {
        let range = g * self.group_len..(g + 1) * self.group_len;
        let most = x[range].iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        if most < 1e-30 {
            return 0.0;
        }
        let reach = self.levels[0].iter().fold(0.0_f32, |most, level| most.max(level.abs()));
        let attempt = |scale: f32, (best, best_gain): (f32, f32)| {
            let EncodedGroup { xl, ll, .. } = self.group(x, w, g, scale);
            if ll > 0.0 && xl > 0.0 && xl * xl > best_gain * ll { (xl / ll, xl * xl / ll) } else { (best, best_gain) }
        };
        let mut best = (0.0, 0.0);
        for k in 0..7 {
            best = attempt(most / reach * (self.from + 0.1 * k as f32), best);
        }
        if best.0 > 0.0 {
            best = attempt(best.0, best);
        }
        best.0
    }

    /// The best entries of a group for a scale.
    fn group(&self, x: &[f32], w: &[f32], g: usize, scale: f32) -> EncodedGroup {
        let mut all = EncodedGroup::default();
        let n = self.choice_len.min(self.group_len) / LEN;
        for first in (0..self.group_len / LEN).step_by(n) {
            let mut best = (f32::INFINITY, EncodedGroup::default());
            for (choice, levels) in self.levels.iter().enumerate() {
                let mut part = EncodedGroup { choices: [choice as u8; 8], ..EncodedGroup::default() };
                for k in first..first + n {
                    let at = g * self.group_len + k * LEN;
                    let found = self.book.search(few(x, at), few(w, at), levels, scale);
                    part.entries[k] = found.entry;
                    part.xl += found.xl;
                    part.ll += found.ll;
                }
                if self.levels.len() == 1 || part.error(scale) < best.0 {
                    best = (part.error(scale), part);
                }
            }
            let part = best.1;
            all.entries[first..first + n].copy_from_slice(&part.entries[first..first + n]);
            all.choices[first..first + n].copy_from_slice(&part.choices[first..first + n]);
            all.xl += part.xl;
            all.ll += part.ll;
        }
        all
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
