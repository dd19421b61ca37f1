//! Kernels for x86-64 with AVX2 or AVX-512.

pub(crate) mod attention;
pub(crate) mod attention_few;
pub(crate) mod bytes;
pub(crate) mod clipped;
pub(crate) mod dot;
pub(crate) mod dot_tiles;
pub(crate) mod panel;
pub(crate) mod strip;
pub(crate) mod tile;
pub(crate) mod unpacked;
pub(crate) mod winograd;
