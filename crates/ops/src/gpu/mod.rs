//! What runs on GPUs: the compiled kernels of a device, its launch parameters, and the launches of products and attention.

pub(crate) mod attention;
pub(crate) mod blas;
mod experts;
mod grouped;
mod kernels;
pub(crate) mod matmul;
pub(crate) mod mma;
mod tuning;
pub(crate) mod units;

pub use experts::{MAX_GPU_EXPERTS, add_gated, choose_experts, expert_matmul, sum_experts};
pub use grouped::{ExpertMatrices, grouped_experts};
pub use kernels::{Gpu, Kernels, Workspace, device_dtype};
pub(crate) use kernels::{PARTS_BYTES, count, format_number};
pub use tuning::Tuning;
