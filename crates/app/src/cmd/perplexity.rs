//! `roci perplexity`: how well a model predicts a text, and how far its predictions are from another's.
//! Computes perplexity as llama.cpp's tool does, so that figures can be compared: the text is cut into
//! chunks, each starts anew (with BOS where the vocabulary adds one), and its second half is scored.

use crate::drive::{StepDriver, TokenSpan, WantedLogits};
use crate::logits_file::{LogitsReader, LogitsShape, LogitsWriter};
use crate::options::{LoadArgs, ReportFormat, print_json};
use crate::progress::{self, Counted};
use crate::report::{self, HintExt, counted};
use crate::{model_file, store};
use anyhow::{Result, anyhow, bail};
use rocinante::{StepSizes, Workload};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use text::{Ends, Specials, Tokenizer};

const EXAMPLES: &str = "\
Examples:
  roci perplexity smollm2 book.txt
  roci perplexity model-f32.gguf book.txt --save-logits base.kld
  roci perplexity model-q4.gguf book.txt --kl-base base.kld    how much the smaller weights change

The file of --save-logits takes two bytes per scored token and vocabulary entry: about 25 MB per chunk
of 512 with a vocabulary of 49,152.";

/// Rows whose logits are taken in one step.
const LOGITS_STEP: usize = 64;

/// Measure how well a model predicts a text
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A well-known name, a GGUF file, a folder of safetensors, or hf:OWNER/REPO[:FILE]
    model: String,
    /// The text; `-` is standard input
    file: PathBuf,
    /// Tokens per chunk; the second half of each is scored
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    chunk: u32,
    /// Use only the first N chunks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// Compare with the predictions stored in this file (KL divergence)
    #[arg(long, value_name = "FILE", conflicts_with = "save_logits")]
    kl_base: Option<PathBuf>,
    /// Store the predictions, for comparing other models with them
    #[arg(long, value_name = "FILE")]
    save_logits: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: ReportFormat,
    #[command(flatten)]
    load: LoadArgs,
}

/// The text as tokens, cut into chunks.
struct Chunks {
    tokens: Vec<u32>,
    n_chunk: usize,
    n_chunks: usize,
    bos: Option<u32>,
}

impl Chunks {
    fn of(text: &str, tokenizer: &Tokenizer, args: &Args) -> Result<Self> {
        // One newline at the end belongs to the file, not to the text.
        let text = text.strip_suffix('\n').unwrap_or(text);
        let mut tokens = tokenizer.encode_with(text, Specials::Plain, Ends::Add);
        let n_chunk = args.chunk as usize;
        if tokens.len() < 2 * n_chunk {
            let error =
                anyhow!("the text has {} tokens, {} are needed for chunks of {n_chunk}", tokens.len(), 2 * n_chunk);
            return Err(error).hint("use a longer text or a smaller --chunk");
        }
        let n_chunks = (tokens.len() / n_chunk).min(args.chunks.unwrap_or(u32::MAX) as usize);
        tokens.truncate(n_chunks * n_chunk);
        let empty = tokenizer.encode_with("", Specials::Plain, Ends::Add);
        let bos = tokenizer.bos().filter(|bos| empty.first() == Some(bos));
        Ok(Self { tokens, n_chunk, n_chunks, bos })
    }

    /// Row i of a chunk predicts token i + 1; rows from the middle to the last but one are scored.
    fn n_scored(&self) -> usize {
        self.n_chunk - 1 - self.n_chunk / 2
    }

    fn chunk(&self, idx: usize) -> &[u32] {
        &self.tokens[idx * self.n_chunk..(idx + 1) * self.n_chunk]
    }
}

/// Sums over scored tokens.
#[derive(Default)]
struct Score {
    n: usize,
    nll: f64,
    nll_squared: f64,
}

impl Score {
    fn add(&mut self, logprob: f32) {
        let nll = -f64::from(logprob);
        self.n += 1;
        self.nll += nll;
        self.nll_squared += nll * nll;
    }

    fn perplexity(&self) -> f64 {
        (self.nll / self.n as f64).exp()
    }

    /// Standard error of the perplexity.
    fn uncertainty(&self) -> f64 {
        let mean = self.nll / self.n as f64;
        let variance = self.nll_squared / self.n as f64 - mean * mean;
        (variance.max(0.0) / (self.n as f64 - 1.0)).sqrt() * self.perplexity()
    }
}

/// Divergences from the base, one per scored token.
struct Divergence {
    base: LogitsReader,
    row: Vec<f32>,
    values: Vec<f64>,
    n_same_top: usize,
    base_score: Score,
}

impl Divergence {
    fn open(path: &Path, chunks: &Chunks, n_vocab: usize) -> Result<Self> {
        let base = LogitsReader::open(path).hint("`roci perplexity MODEL FILE --save-logits BASE` makes one")?;
        if base.shape != shape(chunks, n_vocab) || base.tokens != chunks.tokens {
            let error = anyhow!("`{}` was created from another text, vocabulary or --chunk", path.display());
            return Err(error).hint("create it again from the same text with the same settings");
        }
        let row = vec![0.0; n_vocab];
        Ok(Self { base, row, values: Vec::new(), n_same_top: 0, base_score: Score::default() })
    }

    fn add(&mut self, logprobs: &[f32], next: u32) -> Result<()> {
        self.base.row(&mut self.row)?;
        // Rounding left the stored probabilities a little off one; that must not count as divergence.
        let log_sum = self.row.iter().map(|&base| f64::from(base).exp()).sum::<f64>().ln() as f32;
        self.row.iter_mut().for_each(|base| *base -= log_sum);
        let terms = self.row.iter().zip(logprobs).map(|(&base, &own)| {
            let base = f64::from(base);
            base.exp() * (base - f64::from(own))
        });
        self.values.push(terms.sum());
        self.n_same_top += usize::from(argmax(&self.row) == argmax(logprobs));
        self.base_score.add(self.row[next as usize]);
        Ok(())
    }
}

pub fn main(args: &Args) -> Result<()> {
    let text = super::tokenize::read_text(&args.file)?;
    let path = store::resolve(&args.model)?;
    let max_batch_tokens = (args.chunk as usize).min(512);
    let steps = StepSizes { n_sequences: 1, max_batch_tokens, max_logits_rows: LOGITS_STEP };
    let load_args = LoadArgs { context: Some(args.chunk), ..args.load.clone() };
    let options = load_args.options(Workload::Steps(steps));
    let files = model_file::open_with(&path, &options)?;
    let chunks = Chunks::of(&text, &model_file::tokenizer(&files)?, args)?;
    let mut driver = StepDriver::load(&files, &options, 1, chunks.n_chunk)?.0;
    let n_vocab = driver.model().config().n_vocab;
    if let Some(token) = chunks.tokens.iter().find(|token| **token as usize >= n_vocab) {
        bail!("the text contains token {token}, but the model has only {n_vocab}");
    }

    let mut divergence = args.kl_base.as_deref().map(|base| Divergence::open(base, &chunks, n_vocab)).transpose()?;
    let mut writer = args
        .save_logits
        .as_deref()
        .map(|path| {
            // Two bytes for each of the vocabulary, and a scale, for every scored token.
            let n_bytes = (chunks.n_chunks * chunks.n_scored() * (2 * n_vocab + 8)) as u64;
            hub::disk::check_room(path, n_bytes)?;
            LogitsWriter::create(path, shape(&chunks, n_vocab), &chunks.tokens)
                .map_err(report::writing(path, Some(n_bytes)))
        })
        .transpose()?;
    let mut score = Score::default();
    let bar = progress::bar("chunks", Some(chunks.n_chunks as u64), Counted::Things);
    for idx in 0..chunks.n_chunks {
        score_chunk(&mut driver, &chunks, idx, n_vocab, &mut |logprobs, next| {
            score.add(logprobs[next as usize]);
            if let Some(divergence) = &mut divergence {
                divergence.add(logprobs, next)?;
            }
            if let Some(writer) = &mut writer {
                let to = args.save_logits.as_deref().unwrap_or(Path::new(""));
                writer.row(logprobs).map_err(report::writing(to, None))?;
            }
            Ok(())
        })?;
        bar.set_message(format!(", perplexity {:.3}", score.perplexity()));
        bar.inc(1);
    }
    bar.finish_and_clear();
    if let Some(writer) = writer {
        writer.finish()?;
    }
    print_results(args, &chunks, &score, divergence)
}

/// Calls `each` with the log-probabilities of every scored row and the token that did follow.
fn score_chunk(
    driver: &mut StepDriver,
    chunks: &Chunks,
    idx: usize,
    n_vocab: usize,
    each: &mut dyn FnMut(&[f32], u32) -> Result<()>,
) -> Result<()> {
    let mut tokens = chunks.chunk(idx).to_vec();
    if let Some(bos) = chunks.bos {
        tokens[0] = bos;
    }
    let first = chunks.n_chunk / 2;
    driver.feed(0, 0, &tokens[..first])?;
    let end = first + chunks.n_scored();
    for start in (first..end).step_by(LOGITS_STEP) {
        let rows = start..(start + LOGITS_STEP).min(end);
        let logits =
            driver.step(&[TokenSpan { seq_idx: 0, start, tokens: &tokens[rows.clone()] }], WantedLogits::All)?;
        let mut logprobs = vec![0.0; n_vocab];
        for (row, logits) in rows.zip(logits.chunks_exact(n_vocab)) {
            log_softmax(logits, &mut logprobs)?;
            each(&logprobs, tokens[row + 1])?;
        }
    }
    Ok(())
}

fn log_softmax(logits: &[f32], out: &mut [f32]) -> Result<()> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum();
    if !max.is_finite() || !sum.is_finite() {
        bail!("the model gave logits that are NaN or infinite");
    }
    let log_sum = f64::from(max) + sum.ln();
    for (out, &logit) in out.iter_mut().zip(logits) {
        *out = (f64::from(logit) - log_sum) as f32;
    }
    Ok(())
}

fn argmax(values: &[f32]) -> usize {
    let best =
        values.iter().enumerate().fold((0, f32::NEG_INFINITY), |best, (i, &v)| if v > best.1 { (i, v) } else { best });
    best.0
}

fn shape(chunks: &Chunks, n_vocab: usize) -> LogitsShape {
    LogitsShape { n_vocab, n_chunk: chunks.n_chunk, n_chunks: chunks.n_chunks, n_scored: chunks.n_scored() }
}

/// The value below which the fraction lies, of sorted values.
fn percentile(sorted: &[f64], fraction: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * fraction).round() as usize]
}

fn print_results(args: &Args, chunks: &Chunks, score: &Score, divergence: Option<Divergence>) -> Result<()> {
    let kl = divergence.map(|mut divergence| {
        divergence.values.sort_by(f64::total_cmp);
        let values = &divergence.values;
        json!({
            "mean": values.iter().sum::<f64>() / values.len() as f64,
            "median": percentile(values, 0.5),
            "p99": percentile(values, 0.99),
            "max": percentile(values, 1.0),
            "same_top": divergence.n_same_top as f64 / values.len() as f64,
            "base_perplexity": divergence.base_score.perplexity(),
        })
    });
    if args.output == ReportFormat::Json {
        return print_json(&json!({
            "model": args.model,
            "file": args.file,
            "chunk": chunks.n_chunk,
            "chunks": chunks.n_chunks,
            "scored_tokens": score.n,
            "perplexity": score.perplexity(),
            "uncertainty": score.uncertainty(),
            "kl": kl,
        }));
    }
    let mut out = std::io::stdout().lock();
    let (value, error) = (score.perplexity(), score.uncertainty());
    writeln!(
        out,
        "perplexity     {value:.4} +/- {error:.4} ({} of {})",
        counted(chunks.n_chunks, "chunk"),
        chunks.n_chunk
    )?;
    if let Some(kl) = kl {
        let figure = |name: &str| kl[name].as_f64().unwrap_or(f64::NAN);
        writeln!(out, "base           {:.4}", figure("base_perplexity"))?;
        writeln!(
            out,
            "KL divergence  mean {:.6}, median {:.6}, 99 % below {:.6}, max {:.6}",
            figure("mean"),
            figure("median"),
            figure("p99"),
            figure("max")
        )?;
        writeln!(out, "same best      {:.2} %", 100.0 * figure("same_top"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_softmax_of_known_values() {
        let mut out = [0.0; 3];
        log_softmax(&[1.0, 2.0, 3.0], &mut out).unwrap();
        // ln(e / (e + e^2 + e^3)) and so on.
        let expected = [-2.407_606, -1.407_606, -0.407_606];
        assert!(out.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{out:?}");
        assert!(log_softmax(&[f32::NAN, 0.0], &mut out[..2]).is_err());
        assert!(log_softmax(&[f32::INFINITY, 0.0], &mut out[..2]).is_err());
    }

    #[test]
    fn perplexity_of_a_fair_coin_is_two() {
        let mut score = Score::default();
        (0..10).for_each(|_| score.add(0.5f32.ln()));
        assert!((score.perplexity() - 2.0).abs() < 1e-6);
        assert!(score.uncertainty() < 1e-6);
    }
}
