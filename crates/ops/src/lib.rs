//! All the math: one file per op, with its CPU code, its launch and its shape checks side by side. Products, attention and
//! the weight formats, whose code differs from machine to machine, are split by where it runs: `cpu/` (x86, arm, portable)
//! and `gpu/`; `plan.rs` decides which kernel multiplies.
//!
//! - `formats/`: block formats, decoded exactly; `encode/`: numbers into blocks; `tiles/`: blocks as a CPU's vectors want
//!   them; `kernels/quant.h`: blocks as a GPU wants them.
//! - `kernels/`: one source for both vendors; `tuning/`: launch parameters per chip, as data.
//!
//! Absences: an op never allocates device memory, never waits, never reads back, and never decides where it runs. This
//! crate knows no model, no file and no request.

#![allow(
    clippy::needless_range_loop,
    reason = "kernels index register arrays with constants; iterators over them are not always unrolled"
)]

mod add_bias;
mod add_rows;
mod add_scaled;
mod adjust;
mod arena;
mod attention;
mod choose_tokens;
mod clamp;
mod cluster_logits;
mod columns;
mod conv1d;
mod copy_rows;
mod cpu;
mod delta_scan;
mod embed;
mod encode;
mod error;
mod exec;
mod feed;
mod formats;
mod glu;
mod gpu;
mod hadamard;
mod indices;
mod kv_format;
mod kv_store;
mod layernorm;
mod low_rank;
mod matmul;
mod norm_heads;
mod numbers;
mod numerics;
mod observe;
mod pack;
mod plan;
mod rmsnorm;
mod rope;
mod rope_store;
mod route;
mod sample;
mod scale;
mod scale_rows;
mod selective_scan;
mod slice_columns;
mod softcap;
mod sparsify;
mod ssm_scan;
mod state_span;
mod streams;
mod swiglu;
mod take_rows;
mod tiles;
mod view;
mod wkv_scan;

pub use self::gpu::attention::{AttentionChip, AttentionKernel, AttentionPlan, DeviceSpans};
pub use self::gpu::{
    ExpertLeft, ExpertMatrices, ExpertProduct, Gpu, Kernels, MAX_GPU_EXPERTS, MAX_GPU_GROUPS, Tuning, Workspace,
    add_gated, choose_experts, device_dtype, expert_matmul, grouped_experts, scale_shares, sum_experts,
};
pub use add_bias::add_bias;
pub use add_rows::add_rows;
pub use add_scaled::add_scaled;
pub use adjust::{Adjustments, RowAdjustment, RowPenalties, adjust};
pub use arena::{Arena, Tensor};
pub use attention::{Heads, Kv, QuerySpan, Shaping, Spans, attention, attention_with};
pub use choose_tokens::{IndexQueries, MAX_INDEX_DIM, choose_tokens, chosen_words, store_index_keys};
pub use clamp::clamp;
pub use cluster_logits::{ClusterRoom, Clusters, MAX_CLUSTERS, cluster_logits};
pub use columns::{join_columns, number_rows, take_columns, turn_rows};
pub use conv1d::{ConvFilter, ConvOutput, conv1d};
pub use copy_rows::{gather_rows, scatter_rows};
pub use cpu::{GroupProduct, Isa, Pool, RowGroup, group_matmul};
pub use delta_scan::{DeltaRows, DeltaShape, HeadOrder, MAX_DELTA_DIM, delta_scan};
pub use embed::embed;
pub use error::Error;
pub use exec::Exec;
pub use feed::{GIVEN, feed};
pub use glu::{Activation, Xielu, activate, gelu, glu};
pub use hadamard::{hadamard, hadamard_width};
pub use indices::Indices;
pub use kv_store::{KV_BLOCK, KvSlot, MAX_HEAD_DIM, kv_store};
pub use layernorm::layernorm;
pub use low_rank::{
    ExpertPairs, F24, LowRank, LowRankEntry, LowRankProduct, MatrixWidth, low_rank, low_rank_experts, to_f24,
};
pub use matmul::{Mode, Product, glu_matmul, matmul, norm_matmul, swiglu_matmul};
pub use norm_heads::{NormKind, norm_both_heads, norm_heads};
pub use numerics::Numerics;
pub use observe::{Seen, observe, observed};
pub use pack::{pack, pack_rows, packed, packed_on_device};
pub use rmsnorm::{add_rmsnorm, rmsnorm};
pub use rope::{Pairing, rope};
pub use rope_store::{HeadNorms, Projected, rope_store};
pub use route::{Gating, Routes, Routing, route};
pub use sample::{DESCRIBED_WORDS, MAX_TOP, NOT_ASKED, NOT_NUMBERS, SampleParams, describe, sample};
pub use scale::scale;
pub use scale_rows::scale_rows;
pub use selective_scan::{Selected, selective_scan};
pub use slice_columns::slice_columns;
pub use softcap::softcap;
pub use sparsify::sparsify;
pub use ssm_scan::{SsmRows, SsmShape, SsmWeights, ssm_scan};
pub use state_span::{MAX_GPU_STATE, StateSpan, StateSpans};
pub use streams::{N_STREAMS, correct_streams, match_rows, predict_streams};
pub use swiglu::swiglu;
pub use take_rows::take_rows;
pub use view::{Layout, Place, PlaceMut, View, ViewMut};
pub use wkv_scan::{MAX_WKV_DIM, WkvOut, WkvRows, WkvWeights, wkv_scan};

/// Block formats for those who read and write files: from blocks to numbers and back.
pub mod quant {
    pub use crate::encode::{quantize, quantize_for};
    pub use crate::formats::{dequantize, randomize};
    pub use crate::tiles::has_tiles;
}
