//! A tiny model with random weights and a byte vocabulary, written as a GGUF file: real enough for every
//! command, small enough to need no download. What it says is noise.

use std::path::{Path, PathBuf};
use weights::{Dtype, Metadata, Value};

const SPECIALS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Writes the model into the folder and returns its path. It says it was trained for any context.
pub fn write(folder: &Path) -> PathBuf {
    write_trained_for(folder, u32::MAX)
}

/// One file for each name. Names of the same file would share an engine.
pub fn write_each(folder: &Path, names: &[&str]) {
    let path = write(folder);
    for name in names {
        std::fs::copy(&path, folder.join(format!("{name}.gguf"))).unwrap();
    }
}

pub fn write_trained_for(folder: &Path, n_ctx: u32) -> PathBuf {
    write_with(folder, n_ctx, None)
}

/// With a chat template that opens the reasoning itself.
pub fn write_thinker(folder: &Path) -> PathBuf {
    let template = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
    write_with(folder, u32::MAX, Some(template))
}

/// With weights of a type, and a norm in which one number is not one.
pub fn write_broken(folder: &Path, dtype: Dtype) -> PathBuf {
    let path = write_as(folder, u32::MAX, None, dtype);
    let checkpoint = weights::Checkpoint::open(&path).unwrap();
    let tensors = checkpoint.tensors().iter().map(|t| {
        let mut bytes = t.bytes.to_vec();
        if t.name == "blk.0.ffn_norm.weight" {
            bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        (t.name.clone(), t.dtype, t.shape.clone(), weights::Bytes::from_vec(bytes))
    });
    let broken = folder.join("broken.gguf");
    weights::gguf::write(&broken, checkpoint.metadata(), tensors.collect::<Vec<_>>()).unwrap();
    broken
}

fn write_with(folder: &Path, n_ctx: u32, template: Option<&str>) -> PathBuf {
    write_as(folder, n_ctx, template, Dtype::F32)
}

fn write_as(folder: &Path, n_ctx: u32, template: Option<&str>, dtype: Dtype) -> PathBuf {
    let checkpoint = model::synthetic(model::Synthetic::Tiny, model::Recipe::Uniform(dtype), 7).unwrap();
    let n_vocab = model::Config::from_metadata(checkpoint.metadata()).unwrap().n_vocab;
    let mut metadata = Metadata::new();
    for (key, value) in checkpoint.metadata().iter().filter(|(key, _)| !key.starts_with("tokenizer.")) {
        metadata.set(key, value.clone());
    }
    metadata.set("llama.context_length", n_ctx);
    for (key, value) in vocabulary(n_vocab) {
        metadata.set(key, value);
    }
    if let Some(template) = template {
        metadata.set("tokenizer.chat_template", template);
    }
    let tensors = checkpoint.tensors().iter().map(|t| (t.name.clone(), t.dtype, t.shape.clone(), t.bytes.clone()));
    let checkpoint_path = folder.join("tiny.gguf");
    weights::gguf::write(&checkpoint_path, &metadata, tensors).unwrap();
    checkpoint_path
}

/// A file with the vocabulary and one tensor: enough for `inspect` and `tokenize`.
pub fn write_vocabulary(folder: &Path) -> PathBuf {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    for (key, value) in vocabulary(SPECIALS.len() + 256) {
        metadata.set(key, value);
    }
    let path = folder.join("vocabulary.gguf");
    let tensors = [("token_embd.weight".to_owned(), Dtype::F32, vec![2, 4], weights::Bytes::from_vec(vec![0; 32]))];
    weights::gguf::write(&path, &metadata, tensors).unwrap();
    path
}

fn vocabulary(n_vocab: usize) -> Vec<(&'static str, Value)> {
    let mut tokens: Vec<String> = SPECIALS.iter().map(|&token| token.to_owned()).collect();
    tokens.extend((0..=255).map(|byte| byte_char(byte).to_string()));
    assert!(tokens.len() <= n_vocab, "the tiny model's vocabulary of {n_vocab} holds no bytes");
    let n_real = tokens.len();
    tokens.extend((n_real..n_vocab).map(|i| format!("filler{i}")));
    let types = (0..n_vocab).map(|i| if i < SPECIALS.len() { 3 } else { 1 }).collect::<Vec<i32>>();
    vec![
        ("tokenizer.ggml.model", Value::from("gpt2")),
        ("tokenizer.ggml.pre", Value::from("smollm")),
        ("tokenizer.ggml.tokens", Value::from(tokens)),
        ("tokenizer.ggml.token_type", Value::from(types)),
        ("tokenizer.ggml.merges", Value::from(Vec::<String>::new())),
        ("tokenizer.ggml.bos_token_id", Value::from(1u32)),
        ("tokenizer.ggml.eos_token_id", Value::from(2u32)),
        ("tokenizer.ggml.add_bos_token", Value::from(false)),
    ]
}

/// GPT-2's printable character for a byte: itself where it is printable, else the next free one from 256 on.
fn byte_char(byte: u8) -> char {
    let is_printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if is_printable(byte) {
        return char::from(byte);
    }
    let n_before = (0..byte).filter(|&b| !is_printable(b)).count() as u32;
    char::from_u32(256 + n_before).unwrap()
}
