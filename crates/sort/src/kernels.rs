//! The kernels: for the host, functions that give typed calls; for a GPU, the root of what `roci-kernel-build` compiles.

// Loops over several arrays at once read best by index, and unroll so.
#[allow(clippy::needless_range_loop)]
#[path = "kernels/radix.rs"]
pub mod radix;
#[path = "kernels/reduce.rs"]
pub mod reduce;
#[path = "kernels/scan.rs"]
pub mod scan;
