//! Kernels for 64-bit ARM with NEON.

pub(crate) mod blocks;
pub(crate) mod products;
