//! Candle's own quantised Llama on the GPU: loads a GGUF file and writes what the model says next.
//!
//!     cargo run --bin smollm2 -- MODEL.gguf [--cpu] [--check] [--tokens N] [--safetensors FILE] [PROMPT]
//!
//! Without a file it takes `$ROCI_SMOLLM2`. `--check` compares the tokens with those of Candle's CPU backend.
//! `--safetensors` takes the weights, unquantised, from that file, which is written from the GGUF file where there is none.
//! Nothing here knows of AMD: `Device::new_cuda(0)` is whatever GPU the patched `cudarc` finds.

mod safetensors;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use candle_core::quantized::gguf_file;
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use tokenizers::Tokenizer;

struct Options {
    model: String,
    prompt: String,
    n_tokens: usize,
    on_cpu: bool,
    check: bool,
    safetensors: Option<PathBuf>,
}

fn options() -> Result<Options> {
    let (mut words, mut n_tokens, mut on_cpu, mut check, mut safetensors) = (Vec::new(), 32, false, false, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--cpu" => on_cpu = true,
            "--check" => check = true,
            "--tokens" => n_tokens = arguments.next().context("--tokens needs a number")?.parse()?,
            "--safetensors" => safetensors = Some(arguments.next().context("--safetensors needs a file")?.into()),
            _ => words.push(argument),
        }
    }
    let mut words = words.into_iter().peekable();
    let model = match words.next_if(|word| word.ends_with(".gguf")) {
        Some(path) => path,
        None => std::env::var("ROCI_SMOLLM2").context("no model: name a GGUF file, or set ROCI_SMOLLM2")?,
    };
    let prompt = words.next().unwrap_or_else(|| "The capital of France is".to_owned());
    Ok(Options { model, prompt, n_tokens, on_cpu, check, safetensors })
}

enum Model {
    Quantized(ModelWeights),
    Plain(safetensors::Model),
}

impl Model {
    fn open(path: &str, safetensors: Option<&Path>, device: &Device) -> Result<Self> {
        if let Some(safetensors) = safetensors {
            return Ok(Self::Plain(safetensors::Model::open(path, safetensors, device)?));
        }
        let mut file = File::open(path).with_context(|| path.to_owned())?;
        let content = gguf_file::Content::read(&mut file)?;
        Ok(Self::Quantized(ModelWeights::from_gguf(content, &mut file, device)?))
    }

    fn forward(&mut self, input: &Tensor, at: usize) -> Result<Tensor> {
        Ok(match self {
            Self::Quantized(model) => model.forward(input, at)?,
            Self::Plain(model) => model.forward(input, at)?,
        })
    }
}

/// The model's most likely continuation, token by token; `tell` sees each as it comes.
fn greedy(options: &Options, prompt: &[u32], device: &Device, mut tell: impl FnMut(u32)) -> Result<Vec<u32>> {
    let mut model = Model::open(&options.model, options.safetensors.as_deref(), device)?;
    let (mut made, mut next, mut at) = (Vec::new(), prompt.to_vec(), 0);
    for _ in 0..options.n_tokens {
        let input = Tensor::new(next.as_slice(), device)?.unsqueeze(0)?;
        let logits = model.forward(&input, at)?.squeeze(0)?;
        let token = logits.argmax(0)?.to_scalar::<u32>()?;
        at += next.len();
        next = vec![token];
        made.push(token);
        tell(token);
    }
    Ok(made)
}

fn main() -> Result<()> {
    let options = options()?;
    let mut file = File::open(&options.model).with_context(|| options.model.clone())?;
    let tokenizer = Tokenizer::from_gguf(&gguf_file::Content::read(&mut file)?)?;
    let encoded = tokenizer.encode(options.prompt.as_str(), true).map_err(anyhow::Error::msg)?;
    let device = if options.on_cpu { Device::Cpu } else { Device::new_cuda(0)? };
    print!("{}", options.prompt);
    let show = |token: u32| {
        print!("{}", tokenizer.decode(&[token], true).unwrap_or_default());
        let _ = std::io::stdout().flush();
    };
    let made = greedy(&options, encoded.get_ids(), &device, show)?;
    println!();
    if options.check {
        let want = greedy(&options, encoded.get_ids(), &Device::Cpu, |_| ())?;
        if made != want {
            bail!("the device's tokens {made:?} are not the CPU's {want:?}");
        }
        println!("{} tokens, equal to the CPU's", made.len());
    }
    Ok(())
}
