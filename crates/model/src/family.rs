//! What differs between families of models, as rows of data: the decoder reads the row and has no branch on a name.
//!
//! Much needs no row because a checkpoint says it by what it holds: biases, norms of queries and keys, experts, a tied
//! output. A row states what the tensors do not tell.

mod rows;

use ops::{Activation, Gating, NormKind, Pairing};

use crate::Error;
use crate::config::Temperature;
use crate::names::Rename;
use crate::recurrent_config::RecurrentKind;
pub use rows::FAMILIES;

#[derive(Copy, Clone, Debug)]
pub struct Family {
    /// `general.architecture`, also the prefix of its keys.
    pub name: &'static str,
    /// `model_type` in `config.json`.
    pub hub_types: &'static [&'static str],
    /// Which numbers of a head rope turns together: GGUF's converter reorders the rows of some families.
    pub pairing: Pairing,
    pub hub_pairing: Pairing,
    /// Which numbers an indexer turns together, in either form.
    pub index_pairing: Pairing,
    pub norm: NormKind,
    pub placement: Placement,
    /// Whether the first layer reads the stream as it is: the norm behind the embedding is its own.
    pub skips_first_norm: bool,
    /// What safetensors leave out of their norm weights; of those with a row of their own, another number.
    pub hub_norm_offset: f32,
    pub hub_norm_offsets: &'static [(&'static str, f32)],
    pub activation: Activation,
    /// Whether embeddings are scaled by the root of their width.
    pub scales_embedding: bool,
    pub windows: Windows,
    pub rotation: Rotation,
    /// Whether layers with a window turn by the unscaled base where the file names none for them.
    pub has_plain_local_rope: bool,
    /// Whether queries and keys are normed after rope, not before.
    pub norms_rotated_heads: bool,
    /// Whether both blocks of a layer read the same stream, where the file says nothing.
    pub is_parallel: bool,
    /// The largest slope of scores that fall with the distance (ALiBi), where the file says nothing.
    pub alibi: Option<f32>,
    /// Whether the file's scale of logits multiplies them; else it divides.
    pub multiplies_logits: bool,
    /// What scales the stream where the file says nothing.
    pub scales: Option<Scales>,
    pub gating: Gating,
    /// How experts are weighed where a bias steers the choice and the file does not say it.
    pub biased_gating: Gating,
    /// Whether the weights of chosen experts sum up to one where the file says nothing.
    pub normalizes_experts: bool,
    /// Whether YaRN's range of pairs is rounded to whole pairs.
    pub yarn_truncates: bool,
    /// Whether positions are learned, so that nothing is rotated.
    pub learns_positions: bool,
    /// The base of rope in layers with a window, where the file says nothing and it is not that of the others.
    pub local_rope_base: Option<f32>,
    /// The model of this many layers scales its scores by the width of a head's share of the embedding, not by that of the
    /// head; GGUF does not say so.
    pub scales_by_share: Option<usize>,
    /// Whether windows do not slide: a token sees what is before it in its own stretch of so many.
    pub chunked: Option<Chunked>,
    /// Whether queries and keys of rotated layers are normed without weights, where the file does not say otherwise.
    pub has_plain_head_norms: bool,
    /// Where a dense block stands beside the experts: what their sum is multiplied with.
    pub dense_beside_experts: Option<f32>,
    /// Numbers of keys that old GGUF files leave out.
    pub usual_numbers: &'static [(&'static str, f32)],
    /// Whether experts get their inputs by their weights, instead of giving their outputs by them.
    pub weighs_inputs: bool,
    /// Whether scores are scaled by the width of a head.
    pub scales_scores: bool,
    /// Whether values are normed, each head by itself and without weights.
    pub norms_values: bool,
    /// Whether several streams predict and correct each other.
    pub has_streams: bool,
    /// Whether layers may have a factor for the stream behind them.
    pub scales_layers: bool,
    /// What its recurrent layers compute, if it has any.
    pub recurrent: Option<RecurrentKind>,
    /// Whether products are multiplied with numbers of the configuration, which GGUF has in the weights.
    pub has_multipliers: bool,
    /// Whether GGUF's heads of values take turns with the heads of keys; else neighbours share one.
    pub tiles_value_heads: bool,
    pub kind: FamilyKind,
    /// Tensor names in safetensors that differ from llama's. A name with several rows has several spellings.
    pub renames: &'static [Rename],
    pub hub_qkv: FusedRows,
    /// Tensors that safetensors keep as `[inputs, outputs]`.
    pub hub_transposed: &'static [&'static str],
    /// Whether gate and up of safetensors' fused experts alternate row by row.
    pub hub_gate_alternates: bool,
    /// Whether safetensors can be written as GGUF.
    pub is_exported: bool,
}

impl Family {
    /// What safetensors leave out of the weights of a norm, by GGUF's name for it.
    pub fn hub_norm_offset(&self, name: &str) -> f32 {
        let own = self.hub_norm_offsets.iter().find(|row| row.0 == name);
        own.map_or(self.hub_norm_offset, |row| row.1)
    }
}

/// How MiniCPM scales the stream.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Scales {
    pub embedding: f32,
    /// Over the root of the number of layers: what a block's output is multiplied with.
    pub depth: f32,
    /// Over the width of the embedding: what logits are multiplied with.
    pub base_width: f32,
}

/// What a family with chunked windows has where the file says nothing.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Chunked {
    pub window: usize,
    /// Of layers without rotation: how queries grow, with the position counted from one.
    pub temperature: Temperature,
}

/// Which layers turn queries and keys by their positions.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Rotation {
    All,
    /// Those with a window, where there are any.
    Windowed,
    /// All but every n-th.
    AllBut(usize),
    None,
}

/// The rows of a fused projection.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum FusedRows {
    /// All queries, all keys, all values.
    Apart,
    /// For each KV head its queries, its key and its value.
    ByHead,
}

/// Where the norms of a layer stand.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Placement {
    /// Before each block.
    Before,
    /// After each block, before it joins the stream.
    After,
    /// Both.
    Around,
    /// Of the stream, after each block joined it.
    OfSum,
}

/// Which layers look back only so far, where there is a window at all.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Windows {
    All,
    /// All but every n-th.
    AllBut(usize),
    /// All but the first of every n.
    AllButFirstOf(usize),
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum FamilyKind {
    /// Tokens see what stands before them; the model gives logits.
    Decoder,
    /// Tokens see each other; the model gives hidden states.
    Encoder,
    /// Guesses what another model will say, from that model's keys and values: nothing by itself.
    Assistant,
}

/// What keeps families that people ask for from running, by the start of their names in GGUF and on the Hub.
const MISSING: &[(&str, &[&str])] = &[
    (
        "recurrent state of another kind",
        &["rwkv5", "rwkv6", "arwkv", "zamba", "recurrent_gemma", "minimax-01", "olmo_hybrid"],
    ),
    ("sparse attention by blocks", &["minimax-m3", "minimax_m3"]),
    ("compressed keys and values of several kinds", &["deepseek4", "deepseek_v4"]),
    ("attention that decays with the distance", &["bailing_hybrid", "bailing-hybrid"]),
    ("an encoder with a decoder", &["t5", "mt5", "umt5", "bart"]),
    ("checkpoints to judge it by: transformers does not have it", &["neo-bert", "neobert"]),
];

/// The error for a family that has no row, with what it would need where that is known.
pub fn unknown(name: &str) -> Error {
    let is_meant = |row: &&(&str, &[&str])| row.1.iter().any(|start| name.starts_with(start));
    let missing = MISSING.iter().find(is_meant).map_or(String::new(), |row| format!(": it needs {}", row.0));
    Error::Architecture { name: name.to_owned(), missing, supported: supported() }
}

/// The names of all of them, for an error that says what there is.
pub fn supported() -> String {
    let mut names: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
    names.dedup();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_family_is_told_what_is_missing() {
        let said = |name: &str| unknown(name).to_string();
        assert!(said("rwkv6").starts_with("architecture `rwkv6` is not supported: it needs recurrent state"));
        assert!(said("nobody").starts_with("architecture `nobody` is not supported (supported: llama, granite, qwen2"));
        // A family that runs is not in the list of those that do not.
        for family in FAMILIES {
            for name in family.hub_types.iter().chain([&family.name]) {
                assert!(!said(name).contains("it needs"), "{name}");
            }
        }
    }

    #[test]
    fn a_name_has_one_row() {
        for (i, family) in FAMILIES.iter().enumerate() {
            for other in &FAMILIES[i + 1..] {
                assert!(family.hub_types.iter().all(|name| !other.hub_types.contains(name)), "{:?}", other.hub_types);
            }
        }
    }
}
