//! Attention on a CPU.
//!
//! Work is cut into *units*: some query rows of one sequence, for one KV head and all the query heads that share it.
//! A unit walks over its context in chunks of keys with a running softmax, so no score is ever written to memory.
//! Where there are too few units for the threads (decode), the context of a unit is split, and the parts are merged.
//!
//! Where the bits of a row must not depend on the other rows ([`Numerics::RowInvariant`]), every context is made of parts
//! of fixed length (`part.rs`). Keys that a row does not see change nothing, wherever its unit begins and ends.

use std::cell::RefCell;
use std::ops::Range;

use super::exp::exp;
use super::part;
use super::portable::attention as plain;
#[cfg(target_arch = "x86_64")]
use super::x86::{attention as vector, attention_few as few};
use crate::attention::{Heads, OP, QuerySpan};
use crate::kv_format::KvFormat;
use crate::kv_store::KV_BLOCK;
use crate::softcap::cap_all;
use crate::view::SharedPtr;
use crate::{Error, Isa, Numerics, Pool, View};

/// Rows (query rows times query heads) of a unit: enough to pay for decoding keys and values once.
pub(crate) const UNIT_ROWS: usize = 96;
/// Units that keep a thread busy to the end: nine over two threads would leave one waiting.
pub(crate) const UNITS_PER_THREAD: usize = 8;
/// A part of a split context is at least this many blocks.
pub(crate) const MIN_SPLIT_BLOCKS: usize = 16;

pub(crate) struct AttentionInput<'a> {
    pub(crate) numerics: Numerics,
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [u8],
    pub(crate) v: &'a [u8],
    pub(crate) format: KvFormat,
    pub(crate) heads: Heads,
    /// Query heads per KV head.
    pub(crate) group: usize,
    pub(crate) n_blocks: usize,
    pub(crate) window: Option<Window>,
    pub(crate) softcap: Option<f32>,
    pub(crate) sinks: Option<&'a [f32]>,
    pub(crate) slopes: Option<&'a [f32]>,
    pub(crate) chosen: Option<ChosenTokens<'a>>,
}

/// A bit for each token that a row attends to, in rows of words.
#[derive(Copy, Clone)]
pub(crate) struct ChosenTokens<'a> {
    words: &'a [u32],
    n_words: usize,
}

impl<'a> ChosenTokens<'a> {
    pub(crate) fn of(words: View<'a>) -> Result<Self, Error> {
        Ok(Self { words: bytemuck::cast_slice(words.f32s(OP, "chosen")?), n_words: words.n_cols() })
    }

    /// Hides what a row has not chosen of keys `start..`.
    fn hide(&self, row: usize, start: usize, scores: &mut [f32]) {
        let words = &self.words[row * self.n_words..][..self.n_words];
        for (token, score) in (start..).zip(scores) {
            if words[token / 32] >> (token % 32) & 1 == 0 {
                *score = f32::NEG_INFINITY;
            }
        }
    }
}

/// Which of the tokens before it a row sees.
#[derive(Copy, Clone)]
pub(crate) enum Window {
    /// The last of them, with itself.
    Last(usize),
    /// Those of its own stretch of so many.
    Chunk(usize),
}

impl Window {
    /// Tokens that a row does not see, of the `n_visible` up to itself.
    pub(crate) fn n_hidden(self, n_visible: usize) -> usize {
        match self {
            Self::Last(n) => n_visible.saturating_sub(n),
            Self::Chunk(n) => n_visible.saturating_sub(1) / n * n,
        }
    }
}

impl AttentionInput<'_> {
    pub(crate) fn is_invariant(&self) -> bool {
        self.numerics == Numerics::RowInvariant
    }

    /// Scores to look at for `n_keys` keys: whole blocks where the sum of weights must not depend on where the last one
    /// ends. What is not visible is hidden either way.
    #[inline(always)]
    pub(crate) fn n_scores(&self, n_keys: usize) -> usize {
        if self.is_invariant() { n_keys.next_multiple_of(KV_BLOCK) } else { n_keys }
    }

    /// Cuts a context into about as many parts as there should be.
    fn split(&self, keys: Range<usize>, n_splits: usize) -> Vec<Range<usize>> {
        if n_splits <= 1 {
            return Vec::from([keys]);
        }
        if self.is_invariant() {
            return part::ranges(keys).collect();
        }
        let n_splits = n_splits.min(keys.len().div_ceil(MIN_SPLIT_BLOCKS * KV_BLOCK)).max(1);
        let step = keys.len().div_ceil(n_splits).next_multiple_of(KV_BLOCK);
        keys.clone().step_by(step).map(|from| from..(from + step).min(keys.end)).collect()
    }

    /// Bends a row's scores of keys `start..` and hides what the row does not see.
    #[inline(always)]
    pub(crate) fn shape_scores(&self, unit: &WorkUnit, row: usize, start: usize, scores: &mut [f32]) {
        if let Some(cap) = self.softcap {
            cap_all(scores, cap);
        }
        if let Some(slopes) = self.slopes {
            let slope = slopes[unit.kv_head * self.group + row % self.group];
            let position = (unit.span.first_position + unit.first + row / self.group) as f32;
            let keys = scores.iter_mut().enumerate();
            keys.for_each(|(i, score)| *score -= slope * (position - (start + i) as f32).abs());
        }
        if let Some(chosen) = &self.chosen {
            chosen.hide(unit.span.first_row + unit.first + row / self.group, start, scores);
        }
        let seen = unit.span.seen_by(unit.first + row / self.group, self.window);
        let n = scores.len();
        scores[seen.end.saturating_sub(start).min(n)..].fill(f32::NEG_INFINITY);
        scores[..seen.start.saturating_sub(start).min(n)].fill(f32::NEG_INFINITY);
    }

    /// The sink of a unit's row, if this model has them.
    pub(crate) fn sink(&self, unit: &WorkUnit, row: usize) -> Option<f32> {
        self.sinks.map(|sinks| sinks[unit.kv_head * self.group + row % self.group])
    }

    /// The row of the pool that holds a block of a head.
    pub(crate) fn pool_row(&self, kv_head: usize, block: u32) -> usize {
        kv_head * self.n_blocks + block as usize
    }
}

/// Some query rows of one sequence for one KV head, over a part of their context.
#[derive(Copy, Clone)]
pub(crate) struct WorkUnit<'a> {
    pub(crate) span: QuerySpan<'a>,
    pub(crate) kv_head: usize,
    /// Query rows `first..first + n` of the span.
    pub(crate) first: usize,
    pub(crate) n: usize,
    /// Keys `from..to`.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Where this unit's part of a split context is kept, if it is split.
    pub(crate) part: Option<usize>,
}

/// The running softmax of a unit: for each row the largest score, the sum of weights and the weighted values.
#[derive(Default)]
pub(crate) struct SoftmaxState {
    pub(crate) max: Vec<f32>,
    pub(crate) sum: Vec<f32>,
    /// `[n_rows * group, head_dim]`
    pub(crate) acc: Vec<f32>,
}

thread_local! {
    /// The parts of split contexts, kept between calls; grows once.
    static PARTS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    static STATE: RefCell<(SoftmaxState, Buffers)> = RefCell::default();
}

/// A thread's panels and scores.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) q: Vec<f32>,
    pub(crate) scores: Vec<f32>,
    pub(crate) panel: Vec<f32>,
    /// Of the parts so far, where rows must not matter.
    totals: SoftmaxState,
}

/// A batch cut into units: every one of them keeps one thread busy.
struct WorkUnits<'a> {
    units: Vec<WorkUnit<'a>>,
    /// Units whose contexts were split, with the number of parts of each.
    merges: Vec<(WorkUnit<'a>, usize)>,
    n_parts: usize,
    /// Query rows of the largest unit.
    tile: usize,
}

fn plan_units<'a>(n_threads: usize, input: &AttentionInput, spans: &[QuerySpan<'a>]) -> WorkUnits<'a> {
    let n_kv_heads = input.heads.n_kv_heads;
    let tile = (UNIT_ROWS / input.group).max(1);
    let n_whole: usize = spans.iter().map(|span| span.n_rows.div_ceil(tile) * n_kv_heads).sum();
    let n_wanted = n_threads * UNITS_PER_THREAD;
    let mut units = Vec::with_capacity(n_whole.max(n_wanted));
    let mut merges = Vec::new();
    let mut n_parts = 0;
    for span in spans {
        for first in (0..span.n_rows).step_by(tile) {
            let n = (span.n_rows - first).min(tile);
            // What lies before the window of the first row, or behind that of the last, is not read at all.
            let (hidden, n_keys) =
                (span.seen_by(first, input.window).start, span.seen_by(first + n - 1, input.window).end);
            let window_step = if input.is_invariant() { part::WINDOW_STEP } else { KV_BLOCK };
            let begin = hidden / window_step * window_step;
            let n_splits = if n_threads == 1 { 1 } else { n_wanted.div_ceil(n_whole) };
            let ranges = input.split(begin..n_keys, n_splits);
            let (n_made, is_split) = (ranges.len(), ranges.len() > 1);
            for kv_head in 0..n_kv_heads {
                let part = |i: usize| is_split.then_some(n_parts + i);
                let whole = WorkUnit { span: *span, kv_head, first, n, from: begin, to: n_keys, part: part(0) };
                units.extend(ranges.iter().enumerate().map(|(i, range)| WorkUnit {
                    from: range.start,
                    to: range.end,
                    part: part(i),
                    ..whole
                }));
                if is_split {
                    merges.push((whole, n_made));
                    n_parts += n_made;
                }
            }
        }
    }
    WorkUnits { units, merges, n_parts, tile }
}

/// Where the output of a unit's row begins.
fn output_start(input: &AttentionInput, unit: &WorkUnit, row: usize) -> usize {
    let Heads { n_heads, head_dim, .. } = input.heads;
    let (query, head) = (row / input.group, row % input.group);
    let first = (unit.span.first_row + unit.first + query) * n_heads * head_dim;
    first + (unit.kv_head * input.group + head) * head_dim
}

pub(crate) fn run(pool: &Pool, input: &AttentionInput, spans: &[QuerySpan], out: &mut [f32]) {
    let head_dim = input.heads.head_dim;
    let WorkUnits { units, merges, n_parts, tile } = plan_units(pool.n_threads(), input, spans);
    // [part, row of the unit, head_dim + max + sum]
    let part_len = tile * input.group * (head_dim + 2);
    PARTS.with_borrow_mut(|parts| {
        if parts.len() < n_parts * part_len {
            parts.resize(n_parts * part_len, 0.0);
        }
        let out = SharedPtr::new(out);
        let shared_parts = SharedPtr::new(parts);
        pool.run(units.len(), |i, _| {
            let unit = &units[i];
            STATE.with_borrow_mut(|(state, buffers)| {
                attend(pool.isa(), input, unit, state, buffers);
                let n_rows = unit.n * input.group;
                match unit.part {
                    Some(part) => {
                        // SAFETY: every part has its own place.
                        let part = unsafe { shared_parts.slice(part * part_len, part_len) };
                        state.save(part, n_rows, head_dim);
                    }
                    None => {
                        for row in 0..n_rows {
                            let at = output_start(input, unit, row);
                            // SAFETY: this row and head belong to this unit alone.
                            state.finish(row, input.sink(unit, row), unsafe { out.slice(at, head_dim) });
                        }
                    }
                }
            });
        });
        for (unit, n_made) in &merges {
            let first = unit.part.expect("a split unit") * part_len;
            for row in 0..unit.n * input.group {
                let at = output_start(input, unit, row);
                // SAFETY: no region runs now, and rows do not overlap.
                let out = unsafe { out.slice(at, head_dim) };
                let merge = if input.is_invariant() { part::merge } else { merge };
                merge(&parts[first..][..n_made * part_len], part_len, row, input.sink(unit, row), out);
            }
        }
    });
}

pub(crate) fn attend(
    isa: Isa,
    input: &AttentionInput,
    unit: &WorkUnit,
    state: &mut SoftmaxState,
    buffers: &mut Buffers,
) {
    buffers.gather_queries(input, unit);
    if !input.is_invariant() || unit.part.is_some() {
        return walk(isa, input, unit, state, buffers);
    }
    buffers.totals.start(unit.n * input.group, input.heads.head_dim);
    for keys in part::ranges(unit.from..unit.to) {
        walk(isa, input, &WorkUnit { from: keys.start, to: keys.end, ..*unit }, state, buffers);
        buffers.totals.add(state);
    }
    std::mem::swap(state, &mut buffers.totals);
}

/// From the first of the unit's keys to the last.
fn walk(isa: Isa, input: &AttentionInput, unit: &WorkUnit, state: &mut SoftmaxState, buffers: &mut Buffers) {
    let n_rows = unit.n * input.group;
    state.start(n_rows, input.heads.head_dim);
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 | Isa::Zen4 if n_rows <= few::MAX_ROWS && input.heads.head_dim.is_multiple_of(32) => {
            few::attend(input, unit, state, buffers)
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 | Isa::Zen4 => vector::attend(isa, input, unit, state, buffers),
        _ => plain::attend(input, unit, state, buffers),
    }
}

impl Buffers {
    /// The unit's query rows side by side, `[n * group, head_dim]`, scaled.
    pub(crate) fn gather_queries(&mut self, input: &AttentionInput, unit: &WorkUnit) {
        let Heads { n_heads, head_dim, scale, .. } = input.heads;
        self.q.clear();
        for i in 0..unit.n {
            let row = unit.span.first_row + unit.first + i;
            let at = row * n_heads * head_dim + unit.kv_head * input.group * head_dim;
            self.q.extend(input.q[at..][..input.group * head_dim].iter().map(|q| q * scale));
        }
    }
}

impl SoftmaxState {
    pub(crate) fn start(&mut self, n_rows: usize, head_dim: usize) {
        self.max.clear();
        self.max.resize(n_rows, f32::NEG_INFINITY);
        self.sum.clear();
        self.sum.resize(n_rows, 0.0);
        self.acc.clear();
        self.acc.resize(n_rows * head_dim, 0.0);
    }

    /// Turns a row's scores into weights, and what was summed so far into the same scale.
    #[inline(always)]
    pub(crate) fn weigh(&mut self, row: usize, scores: &mut [f32]) {
        let head_dim = self.acc.len() / self.max.len();
        let largest = largest(scores);
        if largest > self.max[row] {
            let factor = exp(self.max[row] - largest);
            self.max[row] = largest;
            self.sum[row] *= factor;
            self.acc[row * head_dim..][..head_dim].iter_mut().for_each(|x| *x *= factor);
        }
        let max = self.max[row];
        if max == f32::NEG_INFINITY {
            // Nothing of this chunk is visible to this row.
            scores.fill(0.0);
            return;
        }
        scores.iter_mut().for_each(|score| *score = exp(*score - max));
        self.sum[row] += total(scores);
    }

    pub(crate) fn finish(&self, row: usize, sink: Option<f32>, out: &mut [f32]) {
        let inverse = 1.0 / (self.sum[row] + sink.map_or(0.0, |sink| exp(sink - self.max[row])));
        let acc = &self.acc[row * out.len()..];
        for (out, x) in out.iter_mut().zip(acc) {
            *out = x * inverse;
        }
    }

    pub(crate) fn save(&self, part: &mut [f32], n_rows: usize, head_dim: usize) {
        for row in 0..n_rows {
            let part = &mut part[row * (head_dim + 2)..][..head_dim + 2];
            part[..head_dim].copy_from_slice(&self.acc[row * head_dim..][..head_dim]);
            part[head_dim] = self.max[row];
            part[head_dim + 1] = self.sum[row];
        }
    }
}

/// Numbers that are reduced side by side, so that the compiler can use vectors.
pub(crate) const LANES: usize = 16;

#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> f32 {
    let greater = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder().iter().copied().fold(f32::NEG_INFINITY, greater);
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane = greater(*lane, x));
    }
    lanes.into_iter().fold(rest, greater)
}

#[inline(always)]
pub(crate) fn total(x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest: f32 = chunks.remainder().iter().sum();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane += x);
    }
    lanes.into_iter().sum::<f32>() + rest
}

/// Adds up the parts of one row, each in the scale of its own largest score.
pub(crate) fn merge(parts: &[f32], part_len: usize, row: usize, sink: Option<f32>, out: &mut [f32]) {
    let head_dim = out.len();
    let rows = || parts.chunks_exact(part_len).map(|part| &part[row * (head_dim + 2)..][..head_dim + 2]);
    let max = rows().map(|part| part[head_dim]).fold(f32::NEG_INFINITY, f32::max);
    let mut sum = sink.map_or(0.0, |sink| exp(sink - max));
    out.fill(0.0);
    for part in rows() {
        let factor = exp(part[head_dim] - max);
        sum += part[head_dim + 1] * factor;
        out.iter_mut().zip(part).for_each(|(out, x)| *out += x * factor);
    }
    out.iter_mut().for_each(|x| *x /= sum);
}
