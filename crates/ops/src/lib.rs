//! MATH: one file per op, with its CPU code and its shape checks side by side.
//!
//! Absences: an op never allocates device memory, never waits, never reads back, and never decides where it runs.
//! This crate knows no model, no file and no request.

#![allow(
    clippy::needless_range_loop,
    reason = "kernels index register arrays with constants; iterators over them are not always unrolled"
)]

mod arena;
mod attention;
mod embed;
mod error;
mod exec;
mod exp;
mod isa;
mod kv_store;
mod matmul;
mod pack;
mod pool;
pub mod quant;
mod rmsnorm;
mod rope;
mod swiglu;
mod take_rows;
#[cfg(target_arch = "x86_64")]
mod tile;
mod view;

pub use arena::{Arena, Tensor};
pub use attention::{Heads, Kv, QuerySpan, attention};
pub use embed::embed;
pub use error::Error;
pub use exec::Exec;
pub use isa::Isa;
pub use kv_store::{KV_BLOCK, MAX_HEAD_DIM, Slot, kv_store};
pub use matmul::{Mode, Product, matmul};
pub use pack::{pack, packed};
pub use pool::Pool;
pub use rmsnorm::rmsnorm;
pub use rope::{Pairing, rope};
pub use swiglu::swiglu;
pub use take_rows::take_rows;
pub use view::{Layout, Place, PlaceMut, View, ViewMut};
