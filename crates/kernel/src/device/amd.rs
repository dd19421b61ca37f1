//! AMD. What needs an address space, the scope of a fence or an instruction without an intrinsic is in `amdgpu.ll`.

use core::arch::amdgpu;
use core::intrinsics::gpu::amdgpu_dispatch_ptr;

unsafe extern "C" {
    pub safe fn gpu_shared() -> *mut u8;
    pub safe fn gpu_barrier();
    pub safe fn gpu_blocks() -> u32;
    pub safe fn gpu_wave_size() -> u32;
    pub safe fn gpu_lane() -> u32;
    pub safe fn gpu_ballot(value: u32) -> u64;
    pub safe fn gpu_shuffle(value: u32, from: u32) -> u32;
    pub safe fn gpu_device_fence();
    pub fn gpu_fetch_add(at: *mut u32, value: u32) -> u32;
    pub fn gpu_fetch_max(at: *mut u32, value: u32) -> u32;
    pub fn gpu_fetch_min(at: *mut u32, value: u32) -> u32;
    pub fn gpu_fetch_or(at: *mut u32, value: u32) -> u32;
}

pub use gpu_barrier as barrier;
pub use gpu_blocks as blocks;
pub use gpu_device_fence as device_fence;
pub use gpu_lane as lane;
pub use gpu_shared as shared;
pub use gpu_shuffle as shuffle;
pub use gpu_wave_size as wave_size;

#[inline(always)]
pub fn thread() -> u32 {
    amdgpu::workitem_id_x()
}

#[inline(always)]
pub fn block() -> u32 {
    amdgpu::workgroup_id_x()
}

/// From the dispatch packet: a u16 at byte 4.
#[inline(always)]
pub fn block_size() -> u32 {
    // SAFETY: the packet is there for as long as the kernel runs.
    unsafe { amdgpu_dispatch_ptr().cast::<u16>().add(2).read() as u32 }
}

/// A bit for each lane of the widest wave.
pub type Lanes = u64;

#[inline(always)]
pub fn ballot(value: bool) -> Lanes {
    gpu_ballot(value as u32)
}

#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    core::intrinsics::fmaf32(a, b, c)
}

/// Where shared memory is: an address like any other, which the compiler knows to be in LDS.
pub type Base = *mut u8;

#[inline(always)]
pub fn shared_at(base: Base, offset: u32) -> Base {
    base.wrapping_add(offset as usize)
}

#[inline(always)]
pub unsafe fn shared_read<T: Copy>(base: Base, offset: u32) -> T {
    // SAFETY: the caller's.
    unsafe { shared_at(base, offset).cast::<T>().read() }
}

#[inline(always)]
pub unsafe fn shared_write<T: Copy>(base: Base, offset: u32, value: T) {
    // SAFETY: the caller's.
    unsafe { shared_at(base, offset).cast::<T>().write(value) }
}

macro_rules! atomics {
    ($($name:ident $shared:ident $function:ident;)*) => {$(
        #[inline(always)]
        pub fn $name(at: *mut u32, value: u32) -> u32 {
            // SAFETY: the view that gave the address checked it.
            unsafe { $function(at, value) }
        }

        #[inline(always)]
        pub fn $shared(base: Base, offset: u32, value: u32) -> u32 {
            $name(shared_at(base, offset).cast(), value)
        }
    )*};
}
atomics! {
    fetch_add shared_fetch_add gpu_fetch_add;
    fetch_max shared_fetch_max gpu_fetch_max;
    fetch_min shared_fetch_min gpu_fetch_min;
    fetch_or shared_fetch_or gpu_fetch_or;
}
