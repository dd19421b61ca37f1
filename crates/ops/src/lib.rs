//! MATH: one file per op, with its CPU code, its launch and its shape checks side by side.
//!
//! Absences: an op never allocates device memory, never waits, never reads back, and never decides where it runs. No
//! vendor's name appears here, outside of `kernels/prelude.h` and `tuning/`.
//! This crate knows no model, no file and no request.

#![allow(
    clippy::needless_range_loop,
    reason = "kernels index register arrays with constants; iterators over them are not always unrolled"
)]

mod add_bias;
mod add_rows;
mod add_scaled;
mod arena;
mod attention;
mod columns;
mod embed;
mod error;
mod exec;
mod exp;
mod glu;
mod indices;
mod isa;
mod kernels;
mod kv_store;
mod layernorm;
mod matmul;
mod norm_heads;
mod numbers;
mod observe;
mod pack;
mod pool;
pub mod quant;
mod rmsnorm;
mod rope;
mod rope_store;
mod route;
mod sample;
mod scale;
mod softcap;
mod swiglu;
mod take_rows;
#[cfg(target_arch = "x86_64")]
mod tile;
mod tuning;
mod view;

pub use add_bias::add_bias;
pub use add_rows::add_rows;
pub use add_scaled::add_scaled;
pub use arena::{Arena, Tensor};
pub use attention::{Chip, DeviceSpans, Heads, Kv, Plan, QuerySpan, Road, Shaping, Spans, attention, attention_with};
pub use columns::{join_columns, take_columns};
pub use embed::embed;
pub use error::Error;
pub use exec::Exec;
pub use glu::{Activation, activate, glu};
pub use indices::Indices;
pub use isa::Isa;
pub use kernels::{Gpu, Kernels, Workspace, device_dtype};
pub use kv_store::{KV_BLOCK, MAX_GPU_HEAD_DIM, MAX_HEAD_DIM, Slot, kv_store};
pub use layernorm::layernorm;
pub use matmul::{
    ExpertMatrices, Group, GroupProduct, MAX_GPU_EXPERTS, Mode, Product, add_gated, choose_experts, expert_matmul,
    group_matmul, grouped_experts, matmul, norm_matmul, sum_experts, swiglu_matmul,
};
pub use norm_heads::{NormKind, norm_heads};
pub use observe::{Seen, observe, observed};
pub use pack::{pack, pack_rows, packed, packed_on_device};
pub use pool::Pool;
pub use rmsnorm::rmsnorm;
pub use rope::{Pairing, rope};
pub use rope_store::{Projected, rope_store};
pub use route::{Gating, Routes, Routing, route};
pub use sample::{Choice, NOT_NUMBERS, sample};
pub use scale::scale;
pub use softcap::softcap;
pub use swiglu::swiglu;
pub use take_rows::take_rows;
pub use tuning::Tuning;
pub use view::{Layout, Place, PlaceMut, View, ViewMut};
