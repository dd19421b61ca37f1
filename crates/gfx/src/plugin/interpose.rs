//! Allocation failures on demand: ROCr's pool allocator, interposed when this library is preloaded.
//!
//! The model hook cannot refuse memory. With `LD_PRELOAD` naming this library and `GFX_FAIL_ALLOC=n`, the n-th call of
//! `hsa_amd_memory_pool_allocate` returns "out of resources"; all others go to AMD's own function.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// `HSA_STATUS_ERROR_OUT_OF_RESOURCES`.
const OUT_OF_RESOURCES: c_int = 0x1008;
/// `HSA_STATUS_ERROR_NOT_INITIALIZED`.
const NOT_INITIALIZED: c_int = 0x100b;

type Allocate = unsafe extern "C" fn(u64, usize, u32, *mut *mut c_void) -> c_int;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// glibc's "the next object after mine".
const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;

fn real() -> Option<Allocate> {
    static REAL: OnceLock<Option<Allocate>> = OnceLock::new();
    *REAL.get_or_init(|| {
        // SAFETY: the name is a C string; dlsym has no other precondition.
        let found = unsafe { dlsym(RTLD_NEXT, c"hsa_amd_memory_pool_allocate".as_ptr()) };
        // SAFETY: a symbol of this name has this signature in every ROCr (hsa_ext_amd.h).
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Allocate>(found) })
    })
}

/// # Safety
/// As ROCr's own function: `to` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_memory_pool_allocate(
    pool: u64,
    n_bytes: usize,
    flags: u32,
    to: *mut *mut c_void,
) -> c_int {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    static FAIL_AT: OnceLock<Option<u64>> = OnceLock::new();
    let fail_at = *FAIL_AT.get_or_init(|| std::env::var("GFX_FAIL_ALLOC").ok().and_then(|v| v.parse().ok()));
    let n = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    if fail_at == Some(n) {
        eprintln!("gfx: allocation {n} ({n_bytes} bytes) fails, as GFX_FAIL_ALLOC asks");
        return OUT_OF_RESOURCES;
    }
    match real() {
        // SAFETY: the caller's arguments, passed on unchanged.
        Some(real) => unsafe { real(pool, n_bytes, flags, to) },
        None => NOT_INITIALIZED,
    }
}
