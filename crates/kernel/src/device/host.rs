//! The host's side of what only a GPU can do: kernels are checked here, never run.

use super::atomic::{AtomicNumber, AtomicWord, Memory};

pub type Base = *mut u8;
pub type Lanes = u64;

macro_rules! missing {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $result:ty;)*) => {$(
        pub fn $name($($arg: $ty),*) -> $result {
            $( let _ = $arg; )*
            unreachable!("a kernel was called on the host")
        }
    )*};
}

missing! {
    thread() -> u32;
    block() -> u32;
    block_size() -> u32;
    blocks() -> u32;
    barrier() -> ();
    shared() -> Base;
    shared_at(base: Base, offset: u32) -> Base;
    wave_size() -> u32;
    lane() -> u32;
    ballot(value: bool) -> Lanes;
    shuffle(value: u32, from: u32) -> u32;
    fma(a: f32, b: f32, c: f32) -> f32;
    device_fence() -> ();
    system_fence() -> ();
}

/// # Safety
/// None is needed: it never returns.
pub unsafe fn shared_read<T: Copy>(_: Base, _: u32) -> T {
    unreachable!("a kernel was called on the host")
}

/// # Safety
/// None is needed: it never returns.
pub unsafe fn shared_write<T: Copy>(_: Base, _: u32, _: T) {
    unreachable!("a kernel was called on the host")
}

macro_rules! atomics {
    ($($ty:ident)*) => {$(
        impl AtomicNumber for $ty {
            fn add(_: Memory<Self>, _: Self) -> Self {
                unreachable!("a kernel was called on the host")
            }
        }
    )*};
}
atomics!(u32 u64 f32);

macro_rules! words {
    ($($ty:ident: $($name:ident)*;)*) => {$(
        impl AtomicWord for $ty {
            $(
                fn $name(_: Memory<Self>, _: Self) -> Self {
                    unreachable!("a kernel was called on the host")
                }
            )*

            fn compare_swap(_: Memory<Self>, _: Self, _: Self) -> Self {
                unreachable!("a kernel was called on the host")
            }
        }
    )*};
}
words! {
    u32: max min or swap;
    u64: max min or swap;
}
