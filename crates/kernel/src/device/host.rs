//! The host's side of what only a GPU can do: kernels are checked here, never run.

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
    fetch_add(at: *mut u32, value: u32) -> u32;
    shared_fetch_add(base: Base, offset: u32, value: u32) -> u32;
    fetch_max(at: *mut u32, value: u32) -> u32;
    shared_fetch_max(base: Base, offset: u32, value: u32) -> u32;
    fetch_min(at: *mut u32, value: u32) -> u32;
    shared_fetch_min(base: Base, offset: u32, value: u32) -> u32;
    fetch_or(at: *mut u32, value: u32) -> u32;
    shared_fetch_or(base: Base, offset: u32, value: u32) -> u32;
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
