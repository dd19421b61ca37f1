//! A Llama of any size with weights that mean nothing: a GGUF file in memory, for machines that models cannot be brought to.

use std::borrow::Cow;
use std::io::Cursor;

use anyhow::Result;
use candle_core::Device;
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};

/// Of Llama 3 8B: its width is 4096, and the rest in proportion.
pub struct Size {
    pub width: usize,
    pub n_layers: usize,
    pub vocabulary: usize,
}

impl Size {
    /// Of keys and values.
    pub fn kv_width(&self) -> usize {
        self.width / 4
    }

    /// Of the feed-forward layers.
    pub fn inner(&self) -> usize {
        self.width * 7 / 2
    }

    fn n_heads(&self) -> usize {
        // 128 numbers a head, as there; fewer where a width has no four such heads.
        (self.width / 128).max(4)
    }
}

/// The bytes of Q4_K blocks with small positive scales, so that sums stay numbers.
pub fn q4_k(rows: usize, columns: usize) -> Vec<u8> {
    let (block, size) = (GgmlDType::Q4K.block_size(), GgmlDType::Q4K.type_size());
    let n = rows * columns / block * size;
    (0..n).map(|i| if i % size < 4 { [0, 0x10][i % 2] } else { (i * 37 % 251) as u8 }).collect()
}

fn weights(rows: usize, columns: usize) -> Result<QTensor> {
    let storage = QStorage::from_data(Cow::Owned(q4_k(rows, columns)), &Device::Cpu, GgmlDType::Q4K)?;
    Ok(QTensor::new(storage, (rows, columns))?)
}

/// A whole GGUF file. All layers have the same weights, each a copy of its own.
pub fn llama(size: &Size) -> Result<Cursor<Vec<u8>>> {
    let (width, kv_width, inner) = (size.width, size.kv_width(), size.inner());
    let ones: Vec<u8> = std::iter::repeat_n(1f32.to_le_bytes(), width).flatten().collect();
    let norm = QTensor::new(QStorage::from_data(Cow::Owned(ones), &Device::Cpu, GgmlDType::F32)?, width)?;
    let (square, to_kv) = (weights(width, width)?, weights(kv_width, width)?);
    let (to_inner, from_inner) = (weights(inner, width)?, weights(width, inner)?);
    let tokens = weights(size.vocabulary, width)?;
    let mut tensors =
        vec![("token_embd".to_owned(), &tokens), ("output_norm".to_owned(), &norm), ("output".to_owned(), &tokens)];
    for layer in 0..size.n_layers {
        for (name, tensor) in [
            ("attn_norm", &norm),
            ("attn_q", &square),
            ("attn_k", &to_kv),
            ("attn_v", &to_kv),
            ("attn_output", &square),
            ("ffn_norm", &norm),
            ("ffn_gate", &to_inner),
            ("ffn_up", &to_inner),
            ("ffn_down", &from_inner),
        ] {
            tensors.push((format!("blk.{layer}.{name}"), tensor));
        }
    }
    let tensors: Vec<(String, &QTensor)> =
        tensors.into_iter().map(|(name, tensor)| (format!("{name}.weight"), tensor)).collect();
    let number = |n: usize| Value::U32(n as u32);
    let metadata = [
        ("general.architecture", Value::String("llama".to_owned())),
        ("llama.attention.head_count", number(size.n_heads())),
        ("llama.attention.head_count_kv", number(size.n_heads() / 4)),
        ("llama.block_count", number(size.n_layers)),
        ("llama.embedding_length", number(width)),
        ("llama.rope.dimension_count", number(width / size.n_heads())),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
    ];
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(name, value)| (*name, value)).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), *tensor)).collect();
    let mut file = Cursor::new(Vec::new());
    gguf_file::write(&mut file, &metadata, &tensors)?;
    file.set_position(0);
    Ok(file)
}
