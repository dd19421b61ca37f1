//! `roci imatrix`: which columns of each weight matrix matter, measured on a text. The file serves `roci quantize` and
//! llama.cpp's llama-quantize alike.

use crate::drive::{StepDriver, TokenSpan, WantedLogits};
use crate::options::LoadArgs;
use crate::progress::{self, Counted};
use crate::report::{self, HintExt};
use crate::{model_file, store};
use anyhow::{Result, anyhow};
use rocinante::quantize::{self, Column, Importance};
use rocinante::{Device, ModelFiles, StepSizes, Workload};
use std::collections::HashMap;
use std::path::PathBuf;
use text::{Ends, Specials};

const EXAMPLES: &str = "\
Examples:
  roci imatrix model-f16.gguf book.txt model.imatrix.gguf
  roci quantize model-f16.gguf small.gguf --type IQ3_XXS --imatrix model.imatrix.gguf

Use the most precise weights you have, and text similar to what the model will see; 50,000 tokens are plenty.";

/// Compute an importance matrix for `roci quantize`
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A well-known name, a GGUF file, a folder of safetensors, or hf:OWNER/REPO[:FILE]
    model: String,
    /// The text; `-` is standard input
    file: PathBuf,
    /// The file to write
    out: PathBuf,
    /// Tokens per chunk; each starts with an empty context
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    chunk: u32,
    /// Use only the first N chunks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    #[command(flatten)]
    load: LoadArgs,
}

pub fn main(args: &Args) -> Result<()> {
    let text = super::tokenize::read_text(&args.file)?;
    let path = store::resolve(&args.model)?;
    let load_args = LoadArgs { context: Some(args.chunk), device: Device::Cpu, ..args.load.clone() };
    let n_chunk = args.chunk as usize;
    let max_batch_tokens = n_chunk.min(512);
    let steps = StepSizes { n_sequences: 1, max_batch_tokens, max_logits_rows: 1 };
    let options = load_args.options(Workload::Steps(steps));
    let files = model_file::open_with(&path, &options)?;
    // Matrices go by GGUF's names, as `roci quantize` looks for them.
    let files = match files.checkpoint().format() {
        weights::FileFormat::Gguf => files,
        weights::FileFormat::Safetensors => {
            let exported = quantize::as_gguf(files.into_checkpoint(), &path);
            ModelFiles::of(exported.map_err(|error| model_file::hinted(&path, error))?, path.clone())
        }
    };
    let tokenizer = model_file::tokenizer(&files)?;
    let tokens = tokenizer.encode_with(&text, Specials::Plain, Ends::Add);
    let n_chunks = (tokens.len() / n_chunk).min(args.chunks.unwrap_or(u32::MAX) as usize);
    if n_chunks == 0 {
        return Err(anyhow!("the text has {} tokens, a chunk takes {n_chunk}", tokens.len()))
            .hint("use a longer text or a smaller --chunk");
    }
    let mut driver = StepDriver::load(&files, &options, 1, n_chunk)?.0;

    let empty = tokenizer.encode_with("", Specials::Plain, Ends::Add);
    let bos = tokenizer.bos().filter(|bos| empty.first() == Some(bos));
    let bar = progress::bar("chunks", Some(n_chunks as u64), Counted::Things);
    ops::observe();
    for chunk in tokens.chunks_exact(n_chunk).take(n_chunks) {
        let mut chunk = chunk.to_vec();
        if let Some(bos) = bos {
            chunk[0] = bos;
        }
        for (i, tokens) in chunk.chunks(max_batch_tokens).enumerate() {
            // One row of logits, so that the output layer is seen too.
            driver.step(&[TokenSpan { seq_idx: 0, start: i * max_batch_tokens, tokens }], WantedLogits::Last)?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let texts = vec![args.file.display().to_string()];
    let mut importance =
        Importance { n_chunks: n_chunks as u32, chunk_tokens: args.chunk, texts, ..Importance::default() };
    gather(&mut importance, &driver, &ops::observed());
    let written = importance.write(&args.out).map_err(|error| model_file::hinted(&args.out, error));
    written.map_err(report::writing(&args.out, None))?;
    println!("{}: {} matrices, {n_chunks} chunks of {n_chunk} tokens", args.out.display(), importance.by_name.len());
    Ok(())
}

/// Addresses back to names; matrices of one tensor (experts) behind each other.
fn gather(importance: &mut Importance, driver: &StepDriver, seen: &HashMap<usize, ops::Seen>) {
    let addresses = driver.model().addresses();
    let n_matrices = |name: &str| addresses.iter().filter(|at| at.1 == name).map(|at| at.2 + 1).max().unwrap_or(1);
    for &(address, name, matrix) in &addresses {
        let Some(found) = seen.get(&address) else { continue };
        let n_cols = found.squares.len();
        let column = importance.by_name.entry(name.to_owned()).or_insert_with(|| {
            let n = n_matrices(name);
            Column { sums: vec![0.0; n * n_cols], counts: vec![0.0; n] }
        });
        if column.sums.len() == column.counts.len() * n_cols {
            let sums = &mut column.sums[matrix * n_cols..][..n_cols];
            sums.iter_mut().zip(&found.squares).for_each(|(sum, x)| *sum += *x as f32);
            column.counts[matrix] += found.n_rows as f32;
        }
    }
}
