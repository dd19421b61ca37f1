//! What a kernel may use. On a GPU this file is the root of the crate `kernel`; on the host its functions are there for the
//! compiler alone and panic if they are called.

mod atomic;
#[cfg(gpu)]
#[macro_use]
mod macros;
#[cfg(any(gpu, feature = "host"))]
mod matrix;
mod shared;
#[cfg(any(gpu, feature = "host"))]
mod units;
mod view;

#[cfg_attr(target_arch = "amdgpu", path = "amd.rs")]
#[cfg_attr(target_arch = "nvptx64", path = "nvidia.rs")]
#[cfg_attr(not(any(target_arch = "amdgpu", target_arch = "nvptx64")), path = "host.rs")]
mod arch;

pub use atomic::{AtomicNumber, AtomicView, AtomicWord, SystemView};
#[cfg(any(gpu, feature = "host"))]
pub use matrix::{TileA, TileB, TileSum};
pub use shared::{Shared, shared};
pub use view::{View, ViewMut};

/// Half precision. On a GPU it is the compiler's own type, which stable Rust does not have yet.
#[cfg(gpu)]
pub use compilers::F16 as f16;
#[cfg(all(not(gpu), feature = "host"))]
pub use half::f16;

#[cfg(gpu)]
mod compilers {
    pub type F16 = f16;
}

#[cfg(gpu)]
#[inline(always)]
pub fn to_f16(x: f32) -> f16 {
    x as f16
}

/// The nearest number in half precision.
#[cfg(all(not(gpu), feature = "host"))]
pub fn to_f16(x: f32) -> f16 {
    f16::from_f32(x)
}

#[cfg(gpu)]
#[inline(always)]
pub fn to_f32(x: f16) -> f32 {
    x as f32
}

/// The same number in single precision.
#[cfg(all(not(gpu), feature = "host"))]
pub fn to_f32(x: f16) -> f32 {
    x.to_f32()
}

/// The index of this thread in its block.
#[inline(always)]
pub fn thread() -> u32 {
    arch::thread()
}

/// The index of this thread's block in the grid.
#[inline(always)]
pub fn block() -> u32 {
    arch::block()
}

/// Threads in a block.
#[inline(always)]
pub fn block_size() -> u32 {
    arch::block_size()
}

/// Blocks in the grid.
#[inline(always)]
pub fn blocks() -> u32 {
    arch::blocks()
}

/// The index of this thread in the grid.
#[inline(always)]
pub fn global_id() -> u32 {
    block() * block_size() + thread()
}

/// Waits until every thread of the block is here. What they wrote before, all may read after. Every thread of the block must
/// come to the same barrier.
#[inline(always)]
pub fn barrier() {
    arch::barrier()
}

/// Threads in a wave (AMD: 32 or 64) or warp (NVIDIA: 32), which run together.
#[inline(always)]
pub fn wave_size() -> u32 {
    arch::wave_size()
}

/// The index of this thread in its wave.
#[inline(always)]
pub fn lane() -> u32 {
    arch::lane()
}

/// One bit for each lane of the wave: whether its `value` is true. All lanes of the wave take part.
#[inline(always)]
pub fn ballot(value: bool) -> u64 {
    arch::ballot(value) as u64
}

/// The `value` of another lane. All lanes of the wave take part.
#[inline(always)]
pub fn shuffle(value: u32, from: u32) -> u32 {
    arch::shuffle(value, from)
}

/// The lanes below this one.
#[inline(always)]
pub fn lanes_below() -> u64 {
    (1 << lane()) - 1
}

/// The lanes whose lowest `n_bits` bits of `value` are this lane's. All lanes of the wave take part. A ballot for each bit:
/// NVIDIA's own instruction takes a turn for each value that occurs.
#[inline(always)]
pub fn match_any(value: u32, n_bits: u32) -> u64 {
    let mut same: arch::Lanes = !0;
    for bit in 0..n_bits {
        let is_set = value >> bit & 1 == 1;
        let set = arch::ballot(is_set);
        same &= if is_set { set } else { !set };
    }
    same as u64 & !0 >> (64 - wave_size())
}

/// `a * b + c` with one rounding, one instruction. Rust never fuses `a * b + c` by itself.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    arch::fma(a, b, c)
}

/// Makes what this thread wrote visible to the whole device before what it writes next.
#[inline(always)]
pub fn device_fence() {
    arch::device_fence()
}

/// Makes what this thread wrote visible to other devices and the host before what it writes next.
#[inline(always)]
pub fn system_fence() {
    arch::system_fence()
}

/// Never called: with `panic=immediate-abort` every panic is a trap where it happens.
#[cfg(gpu)]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
