//! A random llama as a folder of safetensors, written as transformers leaves one: two shards, a tokenizer, a template.
//! What it says is noise, unless a constraint holds it to something.

use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const TOKENIZER: &str = include_str!("../../../text/testdata/json/digits.json");
const N_VOCAB: usize = 430;
const N_EMBD: usize = 64;

/// A chat template of the Hermes kind: it tells the model about tools, and its answers may reason.
#[allow(dead_code, reason = "not every test program that includes this file chats with tools")]
pub const TOOLS_TEMPLATE: &str = "\
{% if tools %}Tools: {{ tools | tojson }} Call one with <tool_call></tool_call>. {% endif %}\
{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
{% if add_generation_prompt %}assistant: {% endif %}{# <think> </think> #}";

/// Writes it as `little-llama`; `template`: its chat template, `change`: what its config.json says.
pub fn write(home: &Path, template: Option<&str>, change: impl Fn(&mut Value)) -> PathBuf {
    let folder = home.join("little-llama");
    fs::create_dir(&folder).unwrap();
    let mut config = json!({
        "model_type": "llama", "hidden_size": N_EMBD, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "vocab_size": N_VOCAB, "tie_word_embeddings": false,
    });
    change(&mut config);
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("tokenizer.json"), TOKENIZER).unwrap();
    let mut tokens = json!({"bos_token": "<|begin|>", "eos_token": "<|im_end|>"});
    if let Some(template) = template {
        tokens["chat_template"] = template.into();
    }
    fs::write(folder.join("tokenizer_config.json"), tokens.to_string()).unwrap();
    let mut map = Map::new();
    let mut state = 5u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    for (i, shard) in tensors().chunks(11).enumerate() {
        let name = format!("model-{:05}-of-00002.safetensors", i + 1);
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (tensor, shape) in shard {
            let start = data.len();
            let scale = if shape.len() == 1 { 1.0 } else { 0.4 };
            data.extend((0..shape.iter().product::<usize>()).flat_map(|_| (scale * number()).to_le_bytes()));
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
            header.insert(format!("{tensor}.weight"), entry);
            map.insert(format!("{tensor}.weight"), name.clone().into());
        }
        let header = Value::Object(header).to_string();
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        fs::write(folder.join(name), file).unwrap();
    }
    fs::write(folder.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    folder
}

fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![
        ("model.embed_tokens".to_owned(), vec![N_VOCAB, N_EMBD]),
        ("model.norm".to_owned(), vec![N_EMBD]),
        ("lm_head".to_owned(), vec![N_VOCAB, N_EMBD]),
    ];
    for layer in 0..2 {
        let parts: [(&str, Vec<usize>); 9] = [
            ("input_layernorm", vec![N_EMBD]),
            ("self_attn.q_proj", vec![64, N_EMBD]),
            ("self_attn.k_proj", vec![32, N_EMBD]),
            ("self_attn.v_proj", vec![32, N_EMBD]),
            ("self_attn.o_proj", vec![N_EMBD, 64]),
            ("post_attention_layernorm", vec![N_EMBD]),
            ("mlp.gate_proj", vec![96, N_EMBD]),
            ("mlp.up_proj", vec![96, N_EMBD]),
            ("mlp.down_proj", vec![N_EMBD, 96]),
        ];
        tensors.extend(parts.map(|(name, shape)| (format!("model.layers.{layer}.{name}"), shape)));
    }
    tensors
}

/// Bytes of its weights on disk.
#[allow(dead_code, reason = "not every test program that includes this file asks")]
pub fn weights_bytes(folder: &Path) -> u64 {
    let shard = |i: usize| folder.join(format!("model-{i:05}-of-00002.safetensors"));
    (1..=2).map(|i| fs::metadata(shard(i)).unwrap().len()).sum()
}
