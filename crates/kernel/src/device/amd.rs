//! AMD. What needs an address space, the scope of a fence or an instruction without an intrinsic is in `amdgpu.ll`.

use core::arch::amdgpu;
use core::intrinsics::gpu::amdgpu_dispatch_ptr;

use super::atomic::{AtomicNumber, AtomicWord, Memory};

unsafe extern "C" {
    pub safe fn gpu_shared() -> *mut u8;
    pub safe fn gpu_barrier();
    pub safe fn gpu_blocks() -> u32;
    pub safe fn gpu_wave_size() -> u32;
    pub safe fn gpu_lane() -> u32;
    pub safe fn gpu_ballot(value: u32) -> u64;
    pub safe fn gpu_shuffle(value: u32, from: u32) -> u32;
    pub safe fn gpu_device_fence();
    pub safe fn gpu_system_fence();
}

pub use gpu_barrier as barrier;
pub use gpu_blocks as blocks;
pub use gpu_device_fence as device_fence;
pub use gpu_lane as lane;
pub use gpu_shared as shared;
pub use gpu_shuffle as shuffle;
pub use gpu_system_fence as system_fence;
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

/// The functions of `amdgpu.ll`: of the device's scope, which also serves for shared memory, and of the system's.
macro_rules! atomics {
    ($($ty:ident: $trait:ident { $($name:ident($($arg:ident),*) $device:ident $system:ident;)* })*) => {$(
        unsafe extern "C" {
            $(
                fn $device(at: *mut $ty, $($arg: $ty),*) -> $ty;
                fn $system(at: *mut $ty, $($arg: $ty),*) -> $ty;
            )*
        }

        impl $trait for $ty {
            $(
                #[inline(always)]
                fn $name(memory: Memory<Self>, $($arg: Self),*) -> Self {
                    // SAFETY: the view that gave the place checked it.
                    unsafe {
                        match memory {
                            Memory::Device(at) => $device(at, $($arg),*),
                            Memory::System(at) => $system(at, $($arg),*),
                            Memory::Shared(base, offset) => $device(shared_at(base, offset).cast(), $($arg),*),
                        }
                    }
                }
            )*
        }
    )*};
}
atomics! {
    u32: AtomicNumber { add(value) gpu_add_u32 gpu_system_add_u32; }
    u64: AtomicNumber { add(value) gpu_add_u64 gpu_system_add_u64; }
    f32: AtomicNumber { add(value) gpu_add_f32 gpu_system_add_f32; }
    u32: AtomicWord {
        max(value) gpu_max_u32 gpu_system_max_u32;
        min(value) gpu_min_u32 gpu_system_min_u32;
        or(value) gpu_or_u32 gpu_system_or_u32;
        swap(value) gpu_swap_u32 gpu_system_swap_u32;
        compare_swap(expected, value) gpu_compare_swap_u32 gpu_system_compare_swap_u32;
    }
    u64: AtomicWord {
        max(value) gpu_max_u64 gpu_system_max_u64;
        min(value) gpu_min_u64 gpu_system_min_u64;
        or(value) gpu_or_u64 gpu_system_or_u64;
        swap(value) gpu_swap_u64 gpu_system_swap_u64;
        compare_swap(expected, value) gpu_compare_swap_u64 gpu_system_compare_swap_u64;
    }
}
