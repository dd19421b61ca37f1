//! The same model from a safetensors file, as Hugging Face lays it out, through Candle's plain Llama. Where there is no such
//! file yet, it is written from the GGUF file.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama};

/// GGUF's names of a layer's weights, and Hugging Face's.
const OF_LAYER: [(&str, &str); 9] = [
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
];

pub fn config(content: &Content) -> Result<Config> {
    let value = |name: &str| -> Result<&Value> {
        content.metadata.get(name).with_context(|| format!("the GGUF file has no {name}"))
    };
    let size = |name: &str| -> Result<usize> { Ok(value(&format!("llama.{name}"))?.to_u32()? as usize) };
    let embeddings = content.tensor_infos.get("token_embd.weight").context("the GGUF file has no token_embd.weight")?;
    Ok(Config {
        hidden_size: size("embedding_length")?,
        intermediate_size: size("feed_forward_length")?,
        vocab_size: embeddings.shape.dims()[0],
        num_hidden_layers: size("block_count")?,
        num_attention_heads: size("attention.head_count")?,
        num_key_value_heads: size("attention.head_count_kv")?,
        use_flash_attn: false,
        rms_norm_eps: f64::from(value("llama.attention.layer_norm_rms_epsilon")?.to_f32()?),
        rope_theta: value("llama.rope.freq_base")?.to_f32()?,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: 2048,
        tie_word_embeddings: !content.tensor_infos.contains_key("output.weight"),
    })
}

/// GGUF keeps the two halves of a head's rotated pairs side by side; Hugging Face has first halves first.
fn halves_first(weight: &Tensor, n_heads: usize) -> Result<Tensor> {
    let (rows, columns) = weight.dims2()?;
    let pairs = weight.reshape((n_heads, rows / n_heads / 2, 2, columns))?;
    Ok(pairs.transpose(1, 2)?.contiguous()?.reshape((rows, columns))?)
}

fn write(gguf: &str, to: &Path) -> Result<()> {
    let mut file = File::open(gguf).with_context(|| gguf.to_owned())?;
    let content = Content::read(&mut file)?;
    let config = config(&content)?;
    let mut take = |name: &str| -> Result<Tensor> {
        Ok(content.tensor(&mut file, &format!("{name}.weight"), &Device::Cpu)?.dequantize(&Device::Cpu)?)
    };
    let mut all = HashMap::new();
    all.insert("model.embed_tokens.weight".to_owned(), take("token_embd")?);
    all.insert("model.norm.weight".to_owned(), take("output_norm")?);
    if !config.tie_word_embeddings {
        all.insert("lm_head.weight".to_owned(), take("output")?);
    }
    for layer in 0..config.num_hidden_layers {
        for (ours, theirs) in OF_LAYER {
            let weight = take(&format!("blk.{layer}.{ours}"))?;
            let weight = match ours {
                "attn_q" => halves_first(&weight, config.num_attention_heads)?,
                "attn_k" => halves_first(&weight, config.num_key_value_heads)?,
                _ => weight,
            };
            all.insert(format!("model.layers.{layer}.{theirs}.weight"), weight);
        }
    }
    Ok(candle_core::safetensors::save(&all, to)?)
}

pub struct Model {
    llama: Llama,
    cache: Cache,
}

impl Model {
    pub fn open(gguf: &str, safetensors: &Path, device: &Device) -> Result<Self> {
        if !safetensors.exists() {
            write(gguf, safetensors)?;
        }
        let config = config(&Content::read(&mut File::open(gguf).with_context(|| gguf.to_owned())?)?)?;
        let tensors = candle_core::safetensors::load(safetensors, &Device::Cpu)?;
        let weights = VarBuilder::from_tensors(tensors, DType::F32, device);
        Ok(Self { llama: Llama::load(weights, &config)?, cache: Cache::new(true, DType::F32, &config, device)? })
    }

    pub fn forward(&mut self, input: &Tensor, at: usize) -> candle_core::Result<Tensor> {
        self.llama.forward(input, at, &mut self.cache)
    }
}
