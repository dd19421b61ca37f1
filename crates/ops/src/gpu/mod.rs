//! What runs on GPUs: the compiled kernels of a device, its launch parameters, and the launches of products and attention.

pub(crate) mod attention;
pub(crate) mod blas;
mod experts;
#[cfg(test)]
mod files;
pub(crate) mod float_tiles;
pub(crate) mod formats;
mod grouped;
mod kernels;
pub(crate) mod left;
pub(crate) mod matrix_tiles;
pub(crate) mod matvec;
pub(crate) mod mma;
mod tuning;
pub(crate) mod unit;
pub(crate) mod wide;

pub use experts::{
    ExpertLeft, ExpertProduct, MAX_GPU_EXPERTS, MAX_GPU_GROUPS, add_gated, choose_experts, expert_matmul, scale_shares,
    sum_experts,
};
pub use formats::device_dtype;
pub(crate) use formats::format_number;
pub use grouped::{ExpertMatrices, grouped_experts};
pub use kernels::{Gpu, Kernels, Workspace};
pub(crate) use kernels::{PARTS_BYTES, count};
pub use tuning::Tuning;

/// Threads of a block, for kernels that a chip's tuning says nothing about.
pub(crate) const THREADS: u32 = 256;
