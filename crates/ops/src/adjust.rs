//! What a request asks of its own row of logits before a token is chosen: bias, bans, a mask, penalties. Rows that ask
//! for nothing are left alone, and cost nothing.
//!
//! The lists of all rows are one array of words, so that a step has one upload for them.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::{Error, Exec, Gpu, Indices, View, ViewMut};

const OP: &str = "adjust";
const THREADS: u32 = 1024;
const NONE: u32 = u32::MAX;
const HEADER: usize = 8;

/// The lists of the rows of a step.
#[derive(Default)]
pub struct Adjustments {
    words: Vec<u32>,
}

/// What one row asks for. A token is in each list at most once.
#[derive(Copy, Clone, Debug, Default)]
pub struct RowAdjustment<'a> {
    /// Added to the logit of a token; negative infinity forbids it.
    pub bias: &'a [(u32, f32)],
    /// One bit a token: those that may be chosen.
    pub mask: Option<&'a [u32]>,
    pub penalties: Option<RowPenalties<'a>>,
}

#[derive(Copy, Clone, Debug)]
pub struct RowPenalties<'a> {
    pub repetition: f32,
    pub presence: f32,
    pub frequency: f32,
    /// How often a token occurs.
    pub counts: &'a [(u32, u32)],
    /// The token of this row of the step is counted too.
    pub token_row: Option<u32>,
}

impl Adjustments {
    /// Words that rows of at most so many entries of bias and of counts take.
    pub fn max_words(n_rows: usize, n_vocab: usize, max_bias: usize, max_counts: usize) -> usize {
        n_rows * (1 + HEADER + 2 * max_bias + n_vocab.div_ceil(32) + 2 * max_counts)
    }

    /// For `n_rows` rows, none of which asks for anything yet.
    pub fn new(n_rows: usize) -> Self {
        Self { words: vec![NONE; n_rows] }
    }

    pub fn words(&self) -> &[u32] {
        &self.words
    }

    pub fn set(&mut self, row_idx: usize, adjustment: RowAdjustment) {
        let RowAdjustment { bias, mask, penalties } = adjustment;
        let numbers = penalties.map_or([0.0; 3], |p| [p.repetition, p.presence, p.frequency]);
        let counts = penalties.map_or(&[][..], |penalties| penalties.counts);
        let token_row = penalties.and_then(|penalties| penalties.token_row).unwrap_or(NONE);
        self.words[row_idx] = self.words.len() as u32;
        self.words.extend([bias.len() as u32, u32::from(mask.is_some()), counts.len() as u32]);
        self.words.extend(numbers.map(f32::to_bits));
        self.words.extend([token_row, u32::from(penalties.is_some())]);
        self.words.extend(bias.iter().flat_map(|&(token, bias)| [token, bias.to_bits()]));
        self.words.extend(mask.unwrap_or_default());
        self.words.extend(counts.iter().flat_map(|&(token, count)| [token, count]));
    }
}

gpu::args! {
    pub(crate) struct Adjust<'a> {
        logits: SliceMut<'a, f32>,
        words: Slice<'a, u32>,
        tokens: Slice<'a, u32>,
        n_vocab: u32,
    }
}

kernels! {
    pub(crate) struct AdjustKernels in "adjust" {
        adjust: Kernel<Adjust<'static>> = ["adjust"],
    }
}

/// Changes `logits` (`[n_rows, n_vocab]`, f32) as [`Adjustments::words`] say. `tokens` are those of the step, as bits.
pub fn adjust(exec: Exec, words: Indices, tokens: View, logits: &mut ViewMut) -> Result<(), Error> {
    let [n_rows, n_vocab] = logits.shape;
    check(words.host, tokens.n_rows(), n_rows, n_vocab).map_err(|what| Error::Argument { op: OP, what })?;
    match exec {
        Exec::Cpu(_) => {
            let tokens = tokens.f32s(OP, "tokens")?;
            for (row_idx, row) in logits.f32s(OP, "logits")?.chunks_exact_mut(n_vocab).enumerate() {
                if let Some(list) = AdjustList::of(words.host, row_idx, n_vocab) {
                    list.apply(row, tokens);
                }
            }
            Ok(())
        }
        Exec::Gpu(_) if n_rows == 0 => Ok(()),
        Exec::Gpu(gpu) => launch(gpu, words, tokens, logits),
    }
}

/// A row's list, by kind.
struct AdjustList<'a> {
    head: &'a [u32],
    bias: &'a [u32],
    mask: &'a [u32],
    counts: &'a [u32],
}

impl<'a> AdjustList<'a> {
    fn of(words: &'a [u32], row_idx: usize, n_vocab: usize) -> Option<Self> {
        let start = words[row_idx];
        if start == NONE {
            return None;
        }
        let (head, rest) = words[start as usize..].split_at_checked(HEADER)?;
        let (bias, rest) = rest.split_at_checked(2 * head[0] as usize)?;
        let (mask, rest) = rest.split_at_checked(head[1] as usize * n_vocab.div_ceil(32))?;
        Some(Self { head, bias, mask, counts: rest.get(..2 * head[2] as usize)? })
    }

    fn apply(&self, row: &mut [f32], tokens: &[f32]) {
        for pair in self.bias.chunks_exact(2) {
            row[pair[0] as usize] += f32::from_bits(pair[1]);
        }
        for (i, logit) in row.iter_mut().enumerate() {
            if self.mask.get(i / 32).is_some_and(|word| word >> (i % 32) & 1 == 0) {
                *logit = f32::NEG_INFINITY;
            }
        }
        if self.head[7] == 0 {
            return;
        }
        let [repetition, presence, frequency] = [3, 4, 5].map(|i| f32::from_bits(self.head[i]));
        let mut penalize = |token: u32, count: u32| {
            let logit = &mut row[token as usize];
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            *logit -= count as f32 * frequency + presence;
        };
        let own = tokens.get(self.head[6] as usize).map(|token| token.to_bits());
        let mut is_listed = false;
        for pair in self.counts.chunks_exact(2) {
            let is_own = own == Some(pair[0]);
            is_listed |= is_own;
            penalize(pair[0], pair[1] + u32::from(is_own));
        }
        if let Some(own) = own.filter(|_| !is_listed) {
            penalize(own, 1);
        }
    }
}

/// Every list is whole and names tokens and rows that exist.
fn check(words: &[u32], n_tokens: usize, n_rows: usize, n_vocab: usize) -> Result<(), String> {
    if words.len() < n_rows || n_vocab == 0 {
        return Err(format!("{} words for {n_rows} rows of {n_vocab}", words.len()));
    }
    for row_idx in 0..n_rows {
        if words[row_idx] == NONE {
            continue;
        }
        let is_inside = (words[row_idx] as usize) < words.len();
        let list = if is_inside { AdjustList::of(words, row_idx, n_vocab) } else { None };
        let list = list.ok_or_else(|| format!("the list of row {row_idx} is cut off"))?;
        let mut named = list.bias.chunks_exact(2).chain(list.counts.chunks_exact(2)).map(|pair| pair[0]);
        if let Some(token) = named.find(|token| *token as usize >= n_vocab) {
            return Err(format!("token {token} of {n_vocab}"));
        }
        if list.head[6] != NONE && list.head[6] as usize >= n_tokens {
            return Err(format!("the token of row {} of {n_tokens}", list.head[6]));
        }
    }
    Ok(())
}

fn launch(gpu: &Gpu, words: Indices, tokens: View, logits: &mut ViewMut) -> Result<(), Error> {
    let [n_rows, n_vocab] = logits.shape;
    let _op = gpu.launcher.op(OP);
    let kernels = AdjustKernels::get(gpu.kernels, &[])?;
    let args = Adjust {
        logits: logits.device_f32s(OP, "logits")?,
        words: words.on_device(OP, "words")?,
        tokens: tokens.device_f32s(OP, "tokens")?.cast()?,
        n_vocab: count(OP, "tokens", n_vocab)?,
    };
    Ok(gpu.launcher.launch(&kernels.adjust, Grid::line(count(OP, "rows", n_rows)?, THREADS), &args)?)
}
