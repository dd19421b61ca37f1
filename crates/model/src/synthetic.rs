//! Random checkpoints of known shapes: for benchmarks that need no model file, and for tests.
//!
//! Packed types get random bits with sane scales, which costs no quantising; the numbers are as hard to compute with
//! as real ones, and the text is noise.

use weights::{Bytes, Checkpoint, Dtype, Metadata, Tensor, Value};

use crate::Error;

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Synthetic {
    /// Two small layers, for tests.
    Tiny,
    /// The shape of Llama 3.2 1B.
    Llama1b,
    /// The shape of Llama 3.1 8B.
    Llama8b,
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

struct Shape {
    name: &'static str,
    n_vocab: u32,
    n_ctx: u32,
    n_layers: u32,
    n_embd: u32,
    n_ff: u32,
    n_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    rope_base: f32,
    is_tied: bool,
}

impl Synthetic {
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Tiny, Self::Llama1b, Self::Llama8b].into_iter().find(|kind| kind.shape().name == name)
    }

    fn shape(self) -> Shape {
        let llama3 = Shape {
            name: "llama-1b",
            n_vocab: 128_256,
            n_ctx: 131_072,
            n_layers: 16,
            n_embd: 2048,
            n_ff: 8192,
            n_heads: 32,
            n_kv_heads: 8,
            head_dim: 64,
            rope_base: 500_000.0,
            is_tied: true,
        };
        match self {
            Self::Llama1b => llama3,
            Self::Llama8b => Shape {
                name: "llama-8b",
                n_layers: 32,
                n_embd: 4096,
                n_ff: 14_336,
                head_dim: 128,
                is_tied: false,
                ..llama3
            },
            Self::Tiny => Shape {
                name: "tiny",
                n_vocab: 320,
                n_ctx: 1024,
                n_layers: 2,
                n_embd: 256,
                n_ff: 512,
                n_heads: 4,
                n_kv_heads: 2,
                head_dim: 64,
                rope_base: 10_000.0,
                is_tied: true,
            },
        }
    }
}

/// A checkpoint in memory. The same seed gives the same bytes.
pub fn synthetic(kind: Synthetic, recipe: Recipe, seed: u64) -> Result<Checkpoint, Error> {
    let shape = kind.shape();
    let mut tensors = Vec::new();
    let mut n_made = 0;
    let (n_embd, n_ff, n_vocab) = (shape.n_embd as usize, shape.n_ff as usize, shape.n_vocab as usize);
    let (q_dim, kv_dim) = ((shape.n_heads * shape.head_dim) as usize, (shape.n_kv_heads * shape.head_dim) as usize);
    let mut matrix = |name: String, layer_idx: usize, rows: usize, cols: usize| {
        let dtype = recipe.dtype(&name, layer_idx, shape.n_layers as usize);
        let n_bytes = dtype.row_bytes(cols).ok_or_else(|| Error::Tensor {
            name: name.clone(),
            what: format!("rows of {cols} do not fill blocks of {dtype}"),
        })? * rows;
        let mut bytes = vec![0; n_bytes];
        n_made += 1;
        // Rows of unit length, roughly: activations neither fade nor grow.
        randomize(dtype, 1.0 / (cols as f32).sqrt(), seed ^ (n_made << 32), &mut bytes);
        tensors.push(Tensor::new(name, dtype, vec![rows, cols], Bytes::from_vec(bytes))?);
        Ok::<(), Error>(())
    };
    matrix("token_embd.weight".into(), 0, n_vocab, n_embd)?;
    if !shape.is_tied {
        matrix("output.weight".into(), 0, n_vocab, n_embd)?;
    }
    let mut norms = vec!["output_norm.weight".to_string()];
    for layer_idx in 0..shape.n_layers as usize {
        let name = |name| format!("blk.{layer_idx}.{name}.weight");
        norms.extend([name("attn_norm"), name("ffn_norm")]);
        matrix(name("attn_q"), layer_idx, q_dim, n_embd)?;
        matrix(name("attn_k"), layer_idx, kv_dim, n_embd)?;
        matrix(name("attn_v"), layer_idx, kv_dim, n_embd)?;
        matrix(name("attn_output"), layer_idx, n_embd, q_dim)?;
        matrix(name("ffn_gate"), layer_idx, n_ff, n_embd)?;
        matrix(name("ffn_up"), layer_idx, n_ff, n_embd)?;
        matrix(name("ffn_down"), layer_idx, n_embd, n_ff)?;
    }
    for name in norms {
        let ones: Vec<u8> = (0..n_embd).flat_map(|_| 1.0_f32.to_le_bytes()).collect();
        tensors.push(Tensor::new(name, Dtype::F32, vec![n_embd], Bytes::from_vec(ones))?);
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
                    let mut random = Random(seed.wrapping_add((thread_idx * (share / piece_bytes) + i) as u64));
                    random.0 = random.bits();
                    ops::quant::randomize(dtype, std, || random.bits(), piece);
                }
            });
        }
    });
}

fn metadata(shape: &Shape) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", Value::String("llama".into()));
    metadata.set("general.name", Value::String(format!("synthetic {}", shape.name)));
    for (key, value) in [
        ("context_length", shape.n_ctx),
        ("embedding_length", shape.n_embd),
        ("block_count", shape.n_layers),
        ("feed_forward_length", shape.n_ff),
        ("attention.head_count", shape.n_heads),
        ("attention.head_count_kv", shape.n_kv_heads),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        ("rope.dimension_count", shape.head_dim),
        ("vocab_size", shape.n_vocab),
    ] {
        metadata.set(format!("llama.{key}"), Value::U32(value));
    }
    metadata.set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    metadata.set("llama.rope.freq_base", Value::F32(shape.rope_base));
    // No vocabulary: other programs take such a file for benchmarks too.
    metadata.set("tokenizer.ggml.model", Value::String("no_vocab".into()));
    metadata
}

/// A small generator; weights need noise, not secrets.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
