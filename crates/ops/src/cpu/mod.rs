//! What runs on CPUs: the thread pool, the instruction sets, activations as the integer products want them, and the
//! kernels, by machine.

pub(crate) mod activations;
#[cfg(target_arch = "aarch64")]
pub(crate) mod arm;
pub(crate) mod attention;
pub(crate) mod chunk_product;
pub(crate) mod exp;
mod groups;
mod isa;
pub(crate) mod left;
pub(crate) mod matmul;
mod part;
mod pool;
pub(crate) mod portable;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

pub use groups::{GroupProduct, RowGroup, group_matmul};
pub use isa::Isa;
pub use pool::Pool;
