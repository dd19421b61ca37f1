//! A chat in the terminal, with a model that was trained on ChatML: lines from standard input, answers as they are made.

use std::io::{BufRead, Write};

use anyhow::{Context, Result};
use candle_core::{Device, Tensor};
use candle_transformers::generation::LogitsProcessor;
use tokenizers::Tokenizer;

use crate::{Model, Options};

const SEED: u64 = 1;
const TEMPERATURE: f64 = 0.5;
const TOP_P: f64 = 0.9;

pub fn run(options: &Options, tokenizer: &Tokenizer, device: &Device) -> Result<()> {
    let mut model = Model::open(&options.model, options.safetensors.as_deref(), device)?;
    let end =
        tokenizer.token_to_id("<|im_end|>").context("the model's tokenizer has no <|im_end|>: is it a chat model?")?;
    let mut choose = LogitsProcessor::new(SEED, Some(TEMPERATURE), Some(TOP_P));
    let mut conversation: Vec<u32> = Vec::new();
    let mut lines = std::io::stdin().lock().lines();
    loop {
        print!("> ");
        std::io::stdout().flush()?;
        let Some(line) = lines.next().transpose()? else {
            println!();
            return Ok(());
        };
        let turn = format!("<|im_start|>user\n{line}<|im_end|>\n<|im_start|>assistant\n");
        conversation.extend(tokenizer.encode(turn, false).map_err(anyhow::Error::msg)?.get_ids());
        let mut text = tokenizer.decode_stream(true);
        // From the start each time: Candle's Llama takes several tokens only at position 0.
        let (mut next, mut at) = (conversation.clone(), 0);
        for _ in 0..options.n_tokens {
            let input = Tensor::new(next.as_slice(), device)?.unsqueeze(0)?;
            let token = choose.sample(&model.forward(&input, at)?.squeeze(0)?)?;
            if token == end {
                break;
            }
            at += next.len();
            next = vec![token];
            conversation.push(token);
            if let Some(piece) = text.step(token).map_err(anyhow::Error::msg)? {
                print!("{piece}");
                std::io::stdout().flush()?;
            }
        }
        println!();
        let after = tokenizer.encode("<|im_end|>\n", false).map_err(anyhow::Error::msg)?;
        conversation.extend(after.get_ids());
    }
}
