//! The shapes of known models: what their files say, and which tensors a layer has.

use super::Synthetic;

#[derive(Copy, Clone)]
pub(super) struct SyntheticShape {
    pub name: &'static str,
    /// The family's name in GGUF.
    pub arch: &'static str,
    pub n_vocab: u32,
    pub n_ctx: u32,
    pub n_layers: u32,
    pub n_embd: u32,
    pub n_ff: u32,
    pub n_heads: u32,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    pub rope_base: f32,
    pub is_tied: bool,
    /// Norms of queries and keys.
    pub has_head_norms: bool,
    /// Norms behind attention and feed-forward, too.
    pub has_post_norms: bool,
    /// Biases of attention, router and experts, and sinks.
    pub has_biases: bool,
    pub window: Option<u32>,
    pub experts: Option<SyntheticExperts>,
    pub compressed: Option<SyntheticCompressed>,
}

#[derive(Copy, Clone)]
pub(super) struct SyntheticExperts {
    pub n: u32,
    pub n_used: u32,
    pub n_ff: u32,
    /// Experts that every token takes.
    pub n_shared: u32,
    /// Layers in front that have none.
    pub n_dense_layers: u32,
}

/// Attention over compressed keys and values. `head_dim` is the keys' length before compression.
#[derive(Copy, Clone)]
pub(super) struct SyntheticCompressed {
    pub kv_rank: u32,
    /// The part of a key that rope turns.
    pub rope_dim: u32,
    pub value_dim: u32,
}

const LLAMA_1B: SyntheticShape = SyntheticShape {
    name: "llama-1b",
    arch: "llama",
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
    has_head_norms: false,
    has_post_norms: false,
    has_biases: false,
    window: None,
    experts: None,
    compressed: None,
};

const LLAMA_8B: SyntheticShape = SyntheticShape {
    name: "llama-8b",
    n_layers: 32,
    n_embd: 4096,
    n_ff: 14_336,
    head_dim: 128,
    is_tied: false,
    ..LLAMA_1B
};

const QWEN3_8B: SyntheticShape = SyntheticShape {
    name: "qwen3-8b",
    arch: "qwen3",
    n_vocab: 151_936,
    n_ctx: 40_960,
    n_layers: 36,
    n_ff: 12_288,
    rope_base: 1_000_000.0,
    has_head_norms: true,
    ..LLAMA_8B
};

impl Synthetic {
    pub(super) fn shape(self) -> SyntheticShape {
        match self {
            Self::Llama1b => LLAMA_1B,
            Self::Llama8b => LLAMA_8B,
            Self::Qwen38b => QWEN3_8B,
            Self::Qwen330bA3b => SyntheticShape {
                name: "qwen3-30b-a3b",
                arch: "qwen3moe",
                n_layers: 48,
                n_embd: 2048,
                n_ff: 6144,
                n_kv_heads: 4,
                experts: Some(SyntheticExperts { n: 128, n_used: 8, n_ff: 768, n_shared: 0, n_dense_layers: 0 }),
                ..QWEN3_8B
            },
            Self::GptOss20b => SyntheticShape {
                name: "gpt-oss-20b",
                arch: "gpt-oss",
                n_vocab: 201_088,
                n_layers: 24,
                n_embd: 2880,
                n_ff: 2880,
                n_heads: 64,
                head_dim: 64,
                rope_base: 150_000.0,
                has_head_norms: false,
                has_biases: true,
                window: Some(128),
                experts: Some(SyntheticExperts { n: 32, n_used: 4, n_ff: 2880, n_shared: 0, n_dense_layers: 0 }),
                ..QWEN3_8B
            },
            Self::Gemma312b => SyntheticShape {
                name: "gemma3-12b",
                arch: "gemma3",
                n_vocab: 262_208,
                n_ctx: 131_072,
                n_layers: 48,
                n_embd: 3840,
                n_ff: 15_360,
                n_heads: 16,
                head_dim: 256,
                is_tied: true,
                has_post_norms: true,
                window: Some(1024),
                ..QWEN3_8B
            },
            Self::DeepseekV2Lite => SyntheticShape {
                name: "deepseek-v2-lite",
                arch: "deepseek2",
                n_vocab: 102_400,
                n_ctx: 163_840,
                n_layers: 27,
                n_embd: 2048,
                n_ff: 10_944,
                n_heads: 16,
                n_kv_heads: 1,
                head_dim: 192,
                rope_base: 10_000.0,
                is_tied: false,
                experts: Some(SyntheticExperts { n: 64, n_used: 6, n_ff: 1408, n_shared: 2, n_dense_layers: 1 }),
                compressed: Some(SyntheticCompressed { kv_rank: 512, rope_dim: 64, value_dim: 128 }),
                ..LLAMA_1B
            },
            Self::Tiny => SyntheticShape {
                name: "tiny",
                n_vocab: 320,
                n_ctx: 1024,
                n_layers: 2,
                n_embd: 256,
                n_ff: 512,
                n_heads: 4,
                n_kv_heads: 2,
                rope_base: 10_000.0,
                ..LLAMA_1B
            },
        }
    }
}

/// `n` matrices of one shape behind each other, where `n` is not 1.
pub(super) struct SyntheticMatrix {
    pub name: &'static str,
    pub n: usize,
    pub rows: usize,
    pub cols: usize,
}

impl SyntheticShape {
    pub fn q_dim(&self) -> usize {
        (self.n_heads * self.head_dim) as usize
    }

    pub fn kv_dim(&self) -> usize {
        (self.n_kv_heads * self.head_dim) as usize
    }

    /// The experts of a layer, if it has any.
    pub fn experts_of(&self, layer_idx: u32) -> Option<SyntheticExperts> {
        self.experts.filter(|experts| layer_idx >= experts.n_dense_layers)
    }

    /// A layer's matrices.
    pub fn matrices(&self, layer_idx: u32) -> Vec<SyntheticMatrix> {
        let (n_embd, n_ff) = (self.n_embd as usize, self.n_ff as usize);
        let one = |name, rows, cols| SyntheticMatrix { name, n: 1, rows, cols };
        let mut all = match self.compressed {
            Some(compressed) => self.compressed_attention(compressed),
            None => vec![
                one("attn_q", self.q_dim(), n_embd),
                one("attn_k", self.kv_dim(), n_embd),
                one("attn_v", self.kv_dim(), n_embd),
                one("attn_output", n_embd, self.q_dim()),
            ],
        };
        let Some(experts) = self.experts_of(layer_idx) else {
            all.extend([one("ffn_gate", n_ff, n_embd), one("ffn_up", n_ff, n_embd), one("ffn_down", n_embd, n_ff)]);
            return all;
        };
        let (n, n_ff) = (experts.n as usize, experts.n_ff as usize);
        all.extend([
            SyntheticMatrix { name: "ffn_gate_exps", n, rows: n_ff, cols: n_embd },
            SyntheticMatrix { name: "ffn_up_exps", n, rows: n_ff, cols: n_embd },
            SyntheticMatrix { name: "ffn_down_exps", n, rows: n_embd, cols: n_ff },
        ]);
        if experts.n_shared > 0 {
            let n_ff = n_ff * experts.n_shared as usize;
            all.extend([
                one("ffn_gate_shexp", n_ff, n_embd),
                one("ffn_up_shexp", n_ff, n_embd),
                one("ffn_down_shexp", n_embd, n_ff),
            ]);
        }
        all
    }

    fn compressed_attention(&self, compressed: SyntheticCompressed) -> Vec<SyntheticMatrix> {
        let (n_embd, n_heads) = (self.n_embd as usize, self.n_heads as usize);
        let SyntheticCompressed { kv_rank, rope_dim, value_dim } = compressed;
        let (kv_rank, rope_dim, value_dim) = (kv_rank as usize, rope_dim as usize, value_dim as usize);
        vec![
            SyntheticMatrix { name: "attn_q", n: 1, rows: self.q_dim(), cols: n_embd },
            SyntheticMatrix { name: "attn_kv_a_mqa", n: 1, rows: kv_rank + rope_dim, cols: n_embd },
            SyntheticMatrix { name: "attn_k_b", n: n_heads, rows: kv_rank, cols: self.head_dim as usize - rope_dim },
            SyntheticMatrix { name: "attn_v_b", n: n_heads, rows: value_dim, cols: kv_rank },
            SyntheticMatrix { name: "attn_output", n: 1, rows: n_embd, cols: n_heads * value_dim },
        ]
    }

    /// Full name, shape and value of a layer's vectors.
    pub fn vectors(&self) -> Vec<(&'static str, Vec<usize>, f32)> {
        let (n_embd, head_dim) = (self.n_embd as usize, self.head_dim as usize);
        // gpt-oss calls the second norm by the name of another.
        let second = if self.has_biases { "post_attention_norm.weight" } else { "ffn_norm.weight" };
        let mut all = vec![("attn_norm.weight", vec![n_embd], 1.0), (second, vec![n_embd], 1.0)];
        if self.has_head_norms {
            all.extend([("attn_q_norm.weight", vec![head_dim], 1.0), ("attn_k_norm.weight", vec![head_dim], 1.0)]);
        }
        if let Some(compressed) = self.compressed {
            all.push(("attn_kv_a_norm.weight", vec![compressed.kv_rank as usize], 1.0));
        }
        if self.has_post_norms {
            let post = ["post_attention_norm.weight", "post_ffw_norm.weight"];
            all.extend(post.map(|name| (name, vec![n_embd], 1.0)));
        }
        if let (Some(experts), true) = (self.experts, self.has_biases) {
            let (n, n_ff) = (experts.n as usize, experts.n_ff as usize);
            all.extend([
                ("attn_q.bias", vec![self.q_dim()], 0.01),
                ("attn_k.bias", vec![self.kv_dim()], 0.01),
                ("attn_v.bias", vec![self.kv_dim()], 0.01),
                ("attn_output.bias", vec![n_embd], 0.01),
                ("attn_sinks.weight", vec![self.n_heads as usize], 0.5),
                ("ffn_gate_inp.bias", vec![n], 0.01),
                ("ffn_gate_exps.bias", vec![n, n_ff], 0.01),
                ("ffn_up_exps.bias", vec![n, n_ff], 0.01),
                ("ffn_down_exps.bias", vec![n, n_embd], 0.01),
            ]);
        }
        all
    }
}
