//! NVIDIA. `gpu_shared` is declared by `roci-kernel-build`, in the PTX: an assembly block of a library would not get there.

use core::arch::{asm, nvptx};

use super::atomic::{AtomicNumber, AtomicWord, Memory};

/// An address in the shared window, not a pointer.
pub type Base = u32;

#[inline(always)]
pub fn shared() -> Base {
    let base: u32;
    // SAFETY: the address of the block's own memory; it touches nothing.
    unsafe { asm!("mov.u32 {}, gpu_shared;", out(reg32) base, options(pure, nomem, nostack)) };
    base
}

#[inline(always)]
pub fn shared_at(base: Base, offset: u32) -> Base {
    base + offset
}

/// A load by the size of the type. A type of another size than a power of two does not compile.
#[inline(always)]
pub unsafe fn shared_read<T: Copy>(base: Base, offset: u32) -> T {
    let at = base + offset;
    // SAFETY: the caller's address, and bits that a value of the type was stored with.
    unsafe {
        match size_of::<T>() {
            1 => {
                let bits: u16;
                asm!("ld.shared.u8 {}, [{}];", out(reg16) bits, in(reg32) at, options(nostack));
                core::mem::transmute_copy(&(bits as u8))
            }
            2 => {
                let bits: u16;
                asm!("ld.shared.u16 {}, [{}];", out(reg16) bits, in(reg32) at, options(nostack));
                core::mem::transmute_copy(&bits)
            }
            4 => {
                let bits: u32;
                asm!("ld.shared.u32 {}, [{}];", out(reg32) bits, in(reg32) at, options(nostack));
                core::mem::transmute_copy(&bits)
            }
            8 => {
                let bits: u64;
                asm!("ld.shared.u64 {}, [{}];", out(reg64) bits, in(reg32) at, options(nostack));
                core::mem::transmute_copy(&bits)
            }
            _ => unreachable!(),
        }
    }
}

#[inline(always)]
pub unsafe fn shared_write<T: Copy>(base: Base, offset: u32, value: T) {
    let at = base + offset;
    // SAFETY: the caller's address; a value's bits are read as a number of its size.
    unsafe {
        match size_of::<T>() {
            1 => {
                asm!("st.shared.u8 [{}], {};", in(reg32) at, in(reg16) core::mem::transmute_copy::<T, u8>(&value) as u16, options(nostack))
            }
            2 => {
                asm!("st.shared.u16 [{}], {};", in(reg32) at, in(reg16) core::mem::transmute_copy::<T, u16>(&value), options(nostack))
            }
            4 => {
                asm!("st.shared.u32 [{}], {};", in(reg32) at, in(reg32) core::mem::transmute_copy::<T, u32>(&value), options(nostack))
            }
            8 => {
                asm!("st.shared.u64 [{}], {};", in(reg32) at, in(reg64) core::mem::transmute_copy::<T, u64>(&value), options(nostack))
            }
            _ => unreachable!(),
        }
    }
}

#[inline(always)]
pub fn barrier() {
    // SAFETY: every thread of the block comes here, as the caller promised.
    unsafe { nvptx::_syncthreads() }
}

#[inline(always)]
pub fn thread() -> u32 {
    // SAFETY: reads a register.
    unsafe { nvptx::_thread_idx_x() as u32 }
}

#[inline(always)]
pub fn block() -> u32 {
    // SAFETY: reads a register.
    unsafe { nvptx::_block_idx_x() as u32 }
}

#[inline(always)]
pub fn block_size() -> u32 {
    // SAFETY: reads a register.
    unsafe { nvptx::_block_dim_x() as u32 }
}

#[inline(always)]
pub fn blocks() -> u32 {
    // SAFETY: reads a register.
    unsafe { nvptx::_grid_dim_x() as u32 }
}

#[inline(always)]
pub fn wave_size() -> u32 {
    32
}

#[inline(always)]
pub fn lane() -> u32 {
    let lane: u32;
    // SAFETY: reads a register.
    unsafe { asm!("mov.u32 {}, %laneid;", out(reg32) lane, options(pure, nomem, nostack)) };
    lane
}

/// A bit for each lane of a warp.
pub type Lanes = u32;

#[inline(always)]
pub fn ballot(value: bool) -> Lanes {
    let mask: u32;
    // SAFETY: all lanes take part, as the caller promised. Not `pure`: the answer depends on the other lanes.
    unsafe {
        asm!(
            "{{ .reg .pred %p; setp.ne.u32 %p, {value}, 0; vote.sync.ballot.b32 {mask}, %p, 0xffffffff; }}",
            value = in(reg32) value as u32,
            mask = out(reg32) mask,
            options(nomem, nostack),
        )
    };
    mask
}

#[inline(always)]
pub fn shuffle(value: u32, from: u32) -> u32 {
    let result: u32;
    // SAFETY: as for `ballot`.
    unsafe {
        asm!(
            "shfl.sync.idx.b32 {result}, {value}, {from}, 0x1f, 0xffffffff;",
            result = out(reg32) result,
            value = in(reg32) value,
            from = in(reg32) from,
            options(nomem, nostack),
        )
    };
    result
}

#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    core::intrinsics::fmaf32(a, b, c)
}

#[inline(always)]
pub fn device_fence() {
    // SAFETY: orders memory, touches none.
    unsafe { asm!("fence.acq_rel.gpu;", options(nostack)) }
}

#[inline(always)]
pub fn system_fence() {
    // SAFETY: orders memory, touches none.
    unsafe { asm!("fence.acq_rel.sys;", options(nostack)) }
}

macro_rules! atomic {
    // The register a type goes in; how it is done in memory of the device, of the system, of the block.
    ($reg:ident $kind:literal $memory:ident $($arg:ident)*) => {{
        let old;
        // SAFETY: the view that gave the place checked it.
        unsafe {
            match $memory {
                Memory::Device(at) => asm!(
                    concat!("atom.", $kind, " {old}, [{at}]", $(", {", stringify!($arg), "}",)* ";"),
                    old = out($reg) old, at = in(reg64) at, $($arg = in($reg) $arg,)* options(nostack),
                ),
                Memory::System(at) => asm!(
                    concat!("atom.relaxed.sys.", $kind, " {old}, [{at}]", $(", {", stringify!($arg), "}",)* ";"),
                    old = out($reg) old, at = in(reg64) at, $($arg = in($reg) $arg,)* options(nostack),
                ),
                Memory::Shared(base, offset) => asm!(
                    concat!("atom.shared.", $kind, " {old}, [{at}]", $(", {", stringify!($arg), "}",)* ";"),
                    old = out($reg) old, at = in(reg32) base + offset, $($arg = in($reg) $arg,)* options(nostack),
                ),
            }
        }
        old
    }};
}

macro_rules! atomics {
    ($($ty:ident $reg:ident: $trait:ident { $($name:ident($($arg:ident),*) $kind:literal;)* })*) => {$(
        impl $trait for $ty {
            $(
                #[inline(always)]
                fn $name(memory: Memory<Self>, $($arg: Self),*) -> Self {
                    atomic!($reg $kind memory $($arg)*)
                }
            )*
        }
    )*};
}
atomics! {
    u32 reg32: AtomicNumber { add(value) "add.u32"; }
    u64 reg64: AtomicNumber { add(value) "add.u64"; }
    u32 reg32: AtomicWord {
        max(value) "max.u32";
        min(value) "min.u32";
        or(value) "or.b32";
        swap(value) "exch.b32";
        compare_swap(expected, value) "cas.b32";
    }
    u64 reg64: AtomicWord {
        max(value) "max.u64";
        min(value) "min.u64";
        or(value) "or.b64";
        swap(value) "exch.b64";
        compare_swap(expected, value) "cas.b64";
    }
}

impl AtomicNumber for f32 {
    #[inline(always)]
    fn add(memory: Memory<Self>, value: Self) -> Self {
        atomic!(reg32 "add.f32" memory value)
    }
}
