//! Candle's own quantised Llama on the GPU: loads a GGUF file and writes what the model says next.
//!
//!     cargo run --bin smollm2 -- MODEL.gguf [--cpu] [--chat] [--check] [--tokens N] [--safetensors FILE] [PROMPT]
//!
//! Without a file it takes `$ROCI_SMOLLM2`. `--chat` answers lines of standard input. `--check` compares the tokens with those of Candle's CPU backend.
//! `--safetensors` takes the weights, unquantised, from that file, which is written from the GGUF file where there is none.
//! Nothing here knows of AMD: `Device::new_cuda(0)` is whatever GPU the patched `cudarc` finds.

mod chat;
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
    chat: bool,
    check: bool,
    safetensors: Option<PathBuf>,
}

fn options() -> Result<Options> {
    let (mut words, mut n_tokens, mut safetensors) = (Vec::new(), None, None);
    let (mut on_cpu, mut chat, mut check) = (false, false, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--cpu" => on_cpu = true,
            "--chat" => chat = true,
            "--check" => check = true,
            "--tokens" => n_tokens = Some(arguments.next().context("--tokens needs a number")?.parse()?),
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
    let n_tokens = n_tokens.unwrap_or(if chat { 400 } else { 32 });
    Ok(Options { model, prompt, n_tokens, on_cpu, chat, check, safetensors })
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

/// A token, and how much larger its logit was than the next one's.
type Choice = (u32, f32);

fn best(logits: &[f32]) -> Choice {
    let (mut token, mut most, mut second) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (i, &logit) in logits.iter().enumerate() {
        if logit > most {
            (token, most, second) = (i as u32, logit, most);
        } else {
            second = second.max(logit);
        }
    }
    (token, most - second)
}

/// The model's most likely continuation, token by token; `tell` sees each as it comes.
fn greedy(options: &Options, prompt: &[u32], device: &Device, mut tell: impl FnMut(u32)) -> Result<Vec<Choice>> {
    let mut model = Model::open(&options.model, options.safetensors.as_deref(), device)?;
    let (mut made, mut next, mut at) = (Vec::new(), prompt.to_vec(), 0);
    for _ in 0..options.n_tokens {
        let input = Tensor::new(next.as_slice(), device)?.unsqueeze(0)?;
        let logits = model.forward(&input, at)?.squeeze(0)?;
        let choice @ (token, _) = best(&logits.to_vec1()?);
        at += next.len();
        next = vec![token];
        made.push(choice);
        tell(token);
    }
    Ok(made)
}

fn main() -> Result<()> {
    let options = options()?;
    let mut file = File::open(&options.model).with_context(|| options.model.clone())?;
    let tokenizer = Tokenizer::from_gguf(&gguf_file::Content::read(&mut file)?)?;
    let device = if options.on_cpu { Device::Cpu } else { Device::new_cuda(0)? };
    if options.chat {
        return chat::run(&options, &tokenizer, &device);
    }
    let encoded = tokenizer.encode(options.prompt.as_str(), true).map_err(anyhow::Error::msg)?;
    print!("{}", options.prompt);
    let show = |token: u32| {
        print!("{}", tokenizer.decode(&[token], true).unwrap_or_default());
        let _ = std::io::stdout().flush();
    };
    let made = greedy(&options, encoded.get_ids(), &device, show)?;
    println!();
    if options.check {
        let want = greedy(&options, encoded.get_ids(), &Device::Cpu, |_| ())?;
        if let Some(at) = made.iter().zip(&want).position(|(a, b)| a.0 != b.0) {
            let ((token, by), (cpus, cpus_by)) = (made[at], want[at]);
            bail!("token {at} is {token} by {by} on the device and {cpus} by {cpus_by} on the CPU");
        }
        let least = want.iter().map(|choice| choice.1).fold(f32::INFINITY, f32::min);
        println!("{} tokens, equal to the CPU's, whose best two were never closer than {least}", made.len());
    }
    Ok(())
}
