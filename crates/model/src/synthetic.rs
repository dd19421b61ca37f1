//! Random checkpoints of known shapes: for benchmarks that need no model file, and for tests.
//!
//! Packed types get random bits with sane scales, which costs no quantising; the numbers are as hard to compute with
//! as real ones, and the text is noise.

use weights::{Bytes, Checkpoint, Dtype, Metadata, Tensor, Value};

use crate::Error;

mod shape;
use shape::{SyntheticMatrix, SyntheticShape};

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Synthetic {
    /// Two small layers, for tests.
    Tiny,
    /// The shape of Llama 3.2 1B.
    Llama1b,
    /// The shape of Llama 3.1 8B.
    Llama8b,
    /// The shape of Qwen3 8B.
    Qwen38b,
    /// The shape of Qwen3 30B A3B: 128 experts, 8 of them used.
    Qwen330bA3b,
    /// The shape of gpt-oss 20B: 32 experts, 4 of them used, windows and sinks.
    GptOss20b,
    /// The shape of Gemma 3 12B: windows.
    Gemma312b,
    /// The shape of DeepSeek V2 Lite: compressed keys and values, 64 experts and two shared ones. llama.cpp takes its
    /// files with all 27 layers only.
    DeepseekV2Lite,
}

/// Which type each matrix gets.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Recipe {
    Uniform(Dtype),
    /// Q4_K, with Q6_K for the output and for half of the values and of the last feed-forward products.
    Q4KM,
}

impl Recipe {
    /// From a type's name, or `Q4_K_M`.
    pub fn from_name(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case("Q4_K_M") { Some(Self::Q4KM) } else { Dtype::from_name(name).map(Self::Uniform) }
    }

    fn dtype(self, name: &str, layer_idx: usize, n_layers: usize) -> Dtype {
        let Self::Uniform(dtype) = self else {
            let is_output = name == "token_embd.weight" || name == "output.weight";
            let is_delicate = name.contains("attn_v") || name.contains("ffn_down");
            let is_chosen = layer_idx < n_layers / 8 || layer_idx >= 7 * n_layers / 8 || layer_idx % 3 == 2;
            return if is_output || (is_delicate && is_chosen) { Dtype::Q6K } else { Dtype::Q4K };
        };
        dtype
    }
}

impl Synthetic {
    pub const ALL: [Self; 8] = [
        Self::Tiny,
        Self::Llama1b,
        Self::Llama8b,
        Self::Qwen38b,
        Self::Qwen330bA3b,
        Self::GptOss20b,
        Self::Gemma312b,
        Self::DeepseekV2Lite,
    ];

    pub fn name(self) -> &'static str {
        self.shape().name
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A checkpoint in memory. The same seed gives the same bytes.
pub fn synthetic(kind: Synthetic, recipe: Recipe, seed: u64) -> Result<Checkpoint, Error> {
    synthetic_layers(kind, None, recipe, seed)
}

/// As [`synthetic`], with so many layers instead of the model's.
pub fn synthetic_layers(
    kind: Synthetic,
    n_layers: Option<u32>,
    recipe: Recipe,
    seed: u64,
) -> Result<Checkpoint, Error> {
    let mut shape = kind.shape();
    shape.n_layers = n_layers.unwrap_or(shape.n_layers);
    let mut tensors = Vec::new();
    let mut n_made = 0;
    let (n_embd, n_vocab) = (shape.n_embd as usize, shape.n_vocab as usize);
    let mut matrix = |name: String, dtype: Dtype, dims: Vec<usize>| {
        let cols = *dims.last().expect("a matrix has columns");
        let dtype = dtype.for_rows_of(cols);
        let rows: usize = dims[..dims.len() - 1].iter().product();
        let n_bytes = dtype.row_bytes(cols).ok_or_else(|| Error::Tensor {
            name: name.clone(),
            what: format!("rows of {cols} do not fill blocks of {dtype}"),
        })? * rows;
        let mut bytes = vec![0; n_bytes];
        n_made += 1;
        // Rows of unit length, roughly: activations neither fade nor grow.
        randomize(dtype, 1.0 / (cols as f32).sqrt(), seed ^ (n_made << 32), &mut bytes);
        tensors.push(Tensor::new(name, dtype, dims, Bytes::from_vec(bytes))?);
        Ok::<(), Error>(())
    };
    let of = |name: &str, layer_idx: usize| recipe.dtype(name, layer_idx, shape.n_layers as usize);
    matrix("token_embd.weight".into(), of("token_embd.weight", 0), vec![n_vocab, n_embd])?;
    if !shape.is_tied {
        matrix("output.weight".into(), of("output.weight", 0), vec![n_vocab, n_embd])?;
    }
    for layer_idx in 0..shape.n_layers {
        for SyntheticMatrix { name, n, rows, cols } in shape.matrices(layer_idx) {
            let name = format!("blk.{layer_idx}.{name}.weight");
            let dtype = of(&name, layer_idx as usize);
            let dims = if n > 1 { vec![n, rows, cols] } else { vec![rows, cols] };
            matrix(name, dtype, dims)?;
        }
        if let Some(experts) = shape.experts_of(layer_idx) {
            let dims = vec![experts.n as usize, n_embd];
            matrix(format!("blk.{layer_idx}.ffn_gate_inp.weight"), Dtype::F32, dims)?;
        }
    }
    let mut vector = |name: String, dims: Vec<usize>, value: f32| {
        let n = dims.iter().product();
        let bytes = std::iter::repeat_n(value.to_le_bytes(), n).flatten().collect();
        tensors.push(Tensor::new(name, Dtype::F32, dims, Bytes::from_vec(bytes))?);
        Ok::<(), Error>(())
    };
    vector("output_norm.weight".into(), vec![n_embd], 1.0)?;
    for layer_idx in 0..shape.n_layers {
        for (name, dims, value) in shape.vectors() {
            vector(format!("blk.{layer_idx}.{name}"), dims, value)?;
        }
    }
    Ok(Checkpoint::from_parts(metadata(&shape), tensors)?)
}

/// Fills a matrix with several threads: each piece has a seed of its own, so that the bytes do not depend on how many
/// there are.
fn randomize(dtype: Dtype, std: f32, seed: u64, bytes: &mut [u8]) {
    const PIECE_BLOCKS: usize = 1 << 14;
    let piece_bytes = PIECE_BLOCKS * dtype.block_bytes();
    let n_threads =
        std::thread::available_parallelism().map_or(1, usize::from).min(bytes.len().div_ceil(piece_bytes)).max(1);
    let share = bytes.len().div_ceil(n_threads).next_multiple_of(piece_bytes);
    std::thread::scope(|scope| {
        for (thread_idx, share_bytes) in bytes.chunks_mut(share).enumerate() {
            scope.spawn(move || {
                for (i, piece) in share_bytes.chunks_mut(piece_bytes).enumerate() {
                    let mut random = WeightNoise(seed.wrapping_add((thread_idx * (share / piece_bytes) + i) as u64));
                    random.0 = random.bits();
                    ops::quant::randomize(dtype, std, || random.bits(), piece);
                }
            });
        }
    });
}

fn metadata(shape: &SyntheticShape) -> Metadata {
    let mut metadata = Metadata::default();
    let arch = shape.arch;
    metadata.set("general.architecture", Value::String(arch.into()));
    metadata.set("general.name", Value::String(format!("synthetic {}", shape.name)));
    for (key, value) in counts(shape) {
        metadata.set(format!("{arch}.{key}"), Value::U32(value));
    }
    metadata.set(format!("{arch}.attention.layer_norm_rms_epsilon"), Value::F32(1e-5));
    metadata.set(format!("{arch}.rope.freq_base"), Value::F32(shape.rope_base));
    // No vocabulary: other programs take such a file for benchmarks too.
    metadata.set("tokenizer.ggml.model", Value::String("no_vocab".into()));
    metadata
}

/// What files say in whole numbers, below the family's name.
fn counts(shape: &SyntheticShape) -> Vec<(&'static str, u32)> {
    // Compressed attention has one head, of the compressed keys and what rope turns beside them.
    let (key_dim, value_dim, rope_dim) = match shape.compressed {
        Some(compressed) => (compressed.kv_rank + compressed.rope_dim, compressed.kv_rank, compressed.rope_dim),
        None => (shape.head_dim, shape.head_dim, shape.head_dim),
    };
    let mut counts = vec![
        ("context_length", shape.n_ctx),
        ("embedding_length", shape.n_embd),
        ("block_count", shape.n_layers),
        ("feed_forward_length", shape.n_ff),
        ("attention.head_count", shape.n_heads),
        ("attention.head_count_kv", shape.n_kv_heads),
        ("attention.key_length", key_dim),
        ("attention.value_length", value_dim),
        ("rope.dimension_count", rope_dim),
        ("vocab_size", shape.n_vocab),
    ];
    if let Some(compressed) = shape.compressed {
        counts.extend([
            ("attention.kv_lora_rank", compressed.kv_rank),
            ("attention.key_length_mla", shape.head_dim),
            ("attention.value_length_mla", compressed.value_dim),
        ]);
    }
    if let Some(experts) = shape.experts {
        counts.extend([
            ("expert_count", experts.n),
            ("expert_used_count", experts.n_used),
            ("expert_feed_forward_length", experts.n_ff),
        ]);
        if experts.n_shared > 0 {
            counts.push(("expert_shared_count", experts.n_shared));
        }
        if experts.n_dense_layers > 0 {
            counts.push(("leading_dense_block_count", experts.n_dense_layers));
        }
    }
    counts.extend(shape.window.map(|window| ("attention.sliding_window", window)));
    counts
}

/// A small generator; weights need noise, not secrets.
struct WeightNoise(u64);

impl WeightNoise {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
