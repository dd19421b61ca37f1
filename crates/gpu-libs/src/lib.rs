//! AMD's and NVIDIA's numerical libraries through one set of types, on the device layer `gpu`.
//!
//! | module | AMD | NVIDIA |
//! |---|---|---|
//! | [`blas`] | rocBLAS | cuBLAS |
//! | [`blas_lt`] | hipBLASLt | cuBLASLt |
//! | [`dnn`] | MIOpen | cuDNN |
//! | [`fft`] | rocFFT | cuFFT |
//! | [`rand`] | rocRAND | cuRAND |
//! | [`solver`] | rocSOLVER | cuSOLVER |
//! | [`sparse`] | rocSPARSE | cuSPARSE |
//! | [`collectives`] | RCCL | NCCL |
//!
//! Libraries are opened at run time, by their sonames; the crate builds on a machine without any GPU
//! software, and an absent library is an error that says what was looked for. Every handle is made for one
//! queue and works on it alone. Shapes, strides, lengths and owners are checked before a library is called.
//!
//! What this crate does not know: models, layers, tensors with more meaning than their shape. It computes
//! nothing itself: what a library lacks is an error, not a slow replacement.

pub mod blas;
pub mod blas_lt;
pub mod collectives;
pub mod dnn;
mod error;
pub mod fft;
pub mod rand;
mod scalar;
pub mod solver;
pub mod sparse;
#[doc(hidden)]
pub mod table;
mod view;
mod workspace;

pub use error::{Error, Result};
pub use scalar::{Real, Scalar, ScalarKind};
pub use view::{Matrix, MatrixBatch, MatrixBatchMut, MatrixMut, MatrixOrder, Vector, VectorMut};
