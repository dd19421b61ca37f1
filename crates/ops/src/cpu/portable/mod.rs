//! Kernels in portable Rust: slow, simple, and what the others are measured against.

pub(crate) mod attention;
pub(crate) mod products;
