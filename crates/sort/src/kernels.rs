//! The kernels: for the host, functions that give typed calls; for a GPU, the root of what `roci-kernel-build` compiles.

#[allow(clippy::needless_range_loop, reason = "loops over several arrays at once are unrolled when they use an index")]
#[path = "kernels/radix.rs"]
pub mod radix;
#[path = "kernels/reduce.rs"]
pub mod reduce;
#[path = "kernels/scan.rs"]
pub mod scan;
