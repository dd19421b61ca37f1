//! Names of tensors in a checkpoint, as data: another container or family is another row.

#[derive(Copy, Clone, Debug)]
pub struct Names {
    pub embedding: &'static str,
    pub output_norm: &'static str,
    /// Missing where the output is tied to the embedding.
    pub output: &'static str,
    /// Optional divisors of rope's frequencies.
    pub rope_factors: &'static str,
    /// Names inside a layer stand between `layer_prefix`, the layer's number and a dot, and `.weight`.
    pub layer_prefix: &'static str,
    pub attn_norm: &'static str,
    pub q: &'static str,
    pub k: &'static str,
    pub v: &'static str,
    pub attn_out: &'static str,
    pub ffn_norm: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
}

pub const GGUF: Names = Names {
    embedding: "token_embd.weight",
    output_norm: "output_norm.weight",
    output: "output.weight",
    rope_factors: "rope_freqs.weight",
    layer_prefix: "blk.",
    attn_norm: "attn_norm",
    q: "attn_q",
    k: "attn_k",
    v: "attn_v",
    attn_out: "attn_output",
    ffn_norm: "ffn_norm",
    gate: "ffn_gate",
    up: "ffn_up",
    down: "ffn_down",
};

impl Names {
    pub fn in_layer(&self, layer_idx: usize, name: &str) -> String {
        format!("{}{layer_idx}.{name}.weight", self.layer_prefix)
    }
}
