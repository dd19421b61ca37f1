//! A token for each row of logits: the best one, or one drawn after top-k, top-p and min-p, which look at the
//! distribution before temperature. The drawn number comes from the caller: nothing here is random.
//!
//! On the host this is the plain definition, in f64, for tests; the engine has a faster one. On a device it spares
//! reading the logits back.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::{Error, Exec, Gpu, Indices, View, ViewMut};

const OP: &str = "sample";
const THREADS: u32 = 1024;
/// In place of a token, where a row holds what is no number.
pub const NOT_NUMBERS: u32 = u32::MAX;

/// How many of the best tokens are described at most.
pub const MAX_TOP: usize = 20;
/// In place of a number of best tokens: the row is not described.
pub const NOT_ASKED: u32 = u32::MAX;
/// Words that describe a row: the log-probability of the chosen token, how many of the best follow, and (token,
/// log-probability) for each.
pub const DESCRIBED_WORDS: usize = 2 + 2 * MAX_TOP;

/// How one token is chosen.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct SampleParams {
    /// 0 takes the best token, and the rest changes nothing.
    pub temperature: f32,
    /// Keep the k best; 0 keeps all.
    pub top_k: u32,
    /// Keep the fewest best tokens whose probabilities reach this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as probable as the best; 0 keeps all.
    pub min_p: f32,
    /// In [0, 1): where in the distribution, in the order of token ids.
    pub draw: f64,
}

impl SampleParams {
    pub const WORDS: usize = 8;

    /// As the kernel reads it.
    pub fn words(&self, n_vocab: usize) -> [u32; Self::WORDS] {
        let scale = if self.temperature == 0.0 { 0.0 } else { self.scale() };
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        // A float times 2^64 is a whole number that fits, and the cast saturates.
        let fraction = |x: f64| (x * 2f64.powi(64)) as u64;
        let [p_low, p_high] = halves(if self.top_p < 1.0 { fraction(f64::from(self.top_p)).max(1) } else { 0 });
        let [u_low, u_high] = halves(fraction(self.draw));
        let negligible = ((1.0 - f64::from(self.top_p)).max(0.0) / n_vocab.max(1) as f64).ln() - 1e-3;
        let (min_p, negligible) = (self.min_p.ln().to_bits(), (negligible as f32).to_bits());
        [scale.to_bits(), self.top_k, p_low, p_high, min_p, negligible, u_low, u_high]
    }

    fn scale(&self) -> f32 {
        (1.0 / self.temperature).min(f32::MAX)
    }

    fn pick(&self, logits: &[f32]) -> u32 {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !max.is_finite() || logits.iter().any(|x| x.is_nan()) {
            return NOT_NUMBERS;
        }
        if self.temperature == 0.0 {
            return logits.iter().position(|&x| x == max).unwrap_or(0) as u32;
        }
        let mut order: Vec<usize> = (0..logits.len()).filter(|&i| logits[i] > f32::NEG_INFINITY).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        if self.top_k > 0 {
            order.truncate(self.top_k as usize);
        }
        let weight = |i: usize, scale: f32| (f64::from(logits[i] - max) * f64::from(scale)).exp();
        if self.top_p < 1.0 {
            let target = f64::from(self.top_p) * order.iter().map(|&i| weight(i, 1.0)).sum::<f64>();
            let mut sum = 0.0;
            let reached = order.iter().position(|&i| {
                sum += weight(i, 1.0);
                sum >= target
            });
            order.truncate(reached.map_or(order.len(), |n| n + 1));
        }
        let min_logit = max + self.min_p.ln();
        order.retain(|&i| logits[i] >= min_logit);
        order.sort_unstable();
        let mut left = self.draw * order.iter().map(|&i| weight(i, self.scale())).sum::<f64>();
        let found = order.iter().find(|&&i| {
            let own = weight(i, self.scale());
            left -= own;
            left < 0.0
        });
        found.or(order.last()).map_or(0, |&i| i as u32)
    }
}

gpu::args! {
    pub(crate) struct Sample<'a> {
        logits: Slice<'a, f32>,
        choices: Slice<'a, u32>,
        out: SliceMut<'a, u32>,
        n_vocab: u32,
    }
}

gpu::args! {
    pub(crate) struct Describe<'a> {
        logits: Slice<'a, f32>,
        chosen: Slice<'a, u32>,
        wanted: Slice<'a, u32>,
        out: SliceMut<'a, u32>,
        n_vocab: u32,
    }
}

kernels! {
    pub(crate) struct SampleKernels in "sample" {
        sample: Kernel<Sample<'static>> = ["sample"],
        describe: Kernel<Describe<'static>> = ["describe"],
    }
}

/// One token a row of `logits` (`[n_rows, n_vocab]`, f32): its id, or [`NOT_NUMBERS`], as bits in `out` (`[n_rows, 1]`).
/// `choices` are [`SampleParams::words`], one after the other.
pub fn sample(exec: Exec, logits: View, choices: Indices, out: &mut ViewMut) -> Result<(), Error> {
    let [n_rows, n_vocab] = logits.shape;
    out.expect_shape(OP, "out", [n_rows, 1])?;
    if choices.len() != n_rows * SampleParams::WORDS || n_vocab == 0 {
        let what = format!("{} words of choices for {n_rows} rows of {n_vocab}", choices.len());
        return Err(Error::Argument { op: OP, what });
    }
    match exec {
        Exec::Cpu(_) => {
            let (logits, out) = (logits.f32s(OP, "logits")?, out.f32s(OP, "out")?);
            for ((row, words), out) in
                logits.chunks_exact(n_vocab).zip(choices.host.chunks_exact(SampleParams::WORDS)).zip(out)
            {
                *out = f32::from_bits(SampleParams::of_words(words).pick(row));
            }
            Ok(())
        }
        Exec::Gpu(_) if n_rows == 0 => Ok(()),
        Exec::Gpu(gpu) => launch(gpu, logits, choices, out),
    }
}

impl SampleParams {
    fn of_words(words: &[u32]) -> Self {
        let scale = f32::from_bits(words[0]);
        let fraction = |low: u32, high: u32| (f64::from(high) * 2f64.powi(32) + f64::from(low)) / 2f64.powi(64);
        let top_p = fraction(words[2], words[3]) as f32;
        Self {
            temperature: if scale == 0.0 { 0.0 } else { 1.0 / scale },
            top_k: words[1],
            top_p: if top_p == 0.0 { 1.0 } else { top_p },
            min_p: f32::from_bits(words[4]).exp(),
            draw: fraction(words[6], words[7]),
        }
    }
}

/// How probable the token was that [`sample`] chose for each row, and the `wanted` best ones (or [`NOT_ASKED`]): bits in
/// `out` (`[n_rows, DESCRIBED_WORDS]`). A row whose choice failed is left as it is.
pub fn describe(exec: Exec, logits: View, chosen: View, wanted: Indices, out: &mut ViewMut) -> Result<(), Error> {
    const OP: &str = "describe";
    let [n_rows, n_vocab] = logits.shape;
    out.expect_shape(OP, "out", [n_rows, DESCRIBED_WORDS])?;
    chosen.expect_shape(OP, "chosen", [n_rows, 1])?;
    if wanted.len() != n_rows || wanted.host.iter().any(|&n| n != NOT_ASKED && n as usize > MAX_TOP) {
        let what = format!("{:?} best of {n_rows} rows, at most {MAX_TOP}", wanted.host);
        return Err(Error::Argument { op: OP, what });
    }
    match exec {
        Exec::Cpu(_) => {
            let (logits, chosen) = (logits.f32s(OP, "logits")?, chosen.f32s(OP, "chosen")?);
            let rows = logits.chunks_exact(n_vocab).zip(out.f32s(OP, "out")?.chunks_exact_mut(DESCRIBED_WORDS));
            for (((row, out), token), &n_top) in rows.zip(chosen).zip(wanted.host) {
                if n_top != NOT_ASKED && token.to_bits() != NOT_NUMBERS {
                    describe_row(row, token.to_bits(), n_top as usize, out);
                }
            }
            Ok(())
        }
        Exec::Gpu(_) if n_rows == 0 => Ok(()),
        Exec::Gpu(gpu) => {
            let _op = gpu.launcher.op(OP);
            gpu.launcher.count(gpu::Work { bytes: 4 * (n_rows * n_vocab) as u64, flops: 0 });
            let kernels = SampleKernels::get(gpu.kernels, &[])?;
            let args = Describe {
                logits: logits.device_f32s(OP, "logits")?,
                chosen: chosen.device_f32s(OP, "chosen")?.cast()?,
                wanted: wanted.on_device(OP, "wanted")?,
                out: out.device_f32s(OP, "out")?.cast()?,
                n_vocab: count(OP, "tokens", n_vocab)?,
            };
            Ok(gpu.launcher.launch(&kernels.describe, Grid::line(count(OP, "rows", n_rows)?, THREADS), &args)?)
        }
    }
}

/// The plain definition.
fn describe_row(logits: &[f32], token: u32, n_top: usize, out: &mut [f32]) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    let logprob = |i: u32| (f64::from(logits[i as usize] - max) - total.ln()) as f32;
    let mut order: Vec<u32> = (0..logits.len() as u32).filter(|&i| logits[i as usize] > f32::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    order.truncate(n_top);
    out[0] = logprob(token);
    out[1] = f32::from_bits(order.len() as u32);
    for (&best, pair) in order.iter().zip(out[2..].chunks_exact_mut(2)) {
        (pair[0], pair[1]) = (f32::from_bits(best), logprob(best));
    }
}

fn launch(gpu: &Gpu, logits: View, choices: Indices, out: &mut ViewMut) -> Result<(), Error> {
    let [n_rows, n_vocab] = logits.shape;
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 4 * (n_rows * n_vocab) as u64, flops: 0 });
    let kernels = SampleKernels::get(gpu.kernels, &[])?;
    let args = Sample {
        logits: logits.device_f32s(OP, "logits")?,
        choices: choices.on_device(OP, "choices")?,
        out: out.device_f32s(OP, "out")?.cast()?,
        n_vocab: count(OP, "tokens", n_vocab)?,
    };
    Ok(gpu.launcher.launch(&kernels.sample, Grid::line(count(OP, "rows", n_rows)?, THREADS), &args)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_was_chosen() {
        let choice = SampleParams { temperature: 0.5, top_k: 40, top_p: 0.25, min_p: 0.5, draw: 0.75 };
        let back = SampleParams::of_words(&choice.words(1000));
        assert_eq!((back.temperature, back.top_k, back.top_p, back.draw), (0.5, 40, 0.25, 0.75));
        assert!((back.min_p - 0.5).abs() < 1e-6);
        let open = SampleParams { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, draw: 0.0 };
        assert_eq!(SampleParams::of_words(&open.words(1000)), open);
        let most = SampleParams { draw: 1.0 - 2f64.powi(-53), ..choice };
        assert_eq!(most.words(1)[6..], [0xffff_f800, u32::MAX]);
    }
}
