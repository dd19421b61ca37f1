//! Allocation failures on demand: ROCr's pool allocator, interposed when this library is preloaded.
//!
//! The model hook cannot refuse memory. With `LD_PRELOAD` naming this library and `GFX_FAIL_ALLOC=n[@bytes]`, the n-th
//! call of `hsa_amd_memory_pool_allocate` (of at least that many bytes) and all later ones return "out of resources",
//! as a full card would; everything else goes to AMD's own function.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub const SUCCESS: c_int = 0;
/// `HSA_STATUS_INFO_BREAK`: iterate no further.
pub const BREAK: c_int = 1;
/// `HSA_STATUS_ERROR_OUT_OF_RESOURCES`.
const OUT_OF_RESOURCES: c_int = 0x1008;
/// `HSA_STATUS_ERROR_NOT_INITIALIZED`.
pub const NOT_INITIALIZED: c_int = 0x100b;

type Allocate = unsafe extern "C" fn(u64, usize, u32, *mut *mut c_void) -> c_int;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// glibc: a handle only if the library is loaded already.
const RTLD_LAZY: c_int = 1;
const RTLD_NOLOAD: c_int = 4;

/// glibc: the next object that defines the symbol.
const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;

/// What the C library, or another preloaded library, defines under a name that this one defines too.
pub fn next_symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string.
    let found = unsafe { dlsym(RTLD_NEXT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// A function of ROCr itself, where ROCr is loaded, as type `F`.
pub fn rocr_function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) }
    // SAFETY: each caller names a function of ROCr's public headers together with that function's type, and `F` is as
    // wide as a pointer.
    rocr_symbol(name).map(|at| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&at) })
}

fn rocr_symbol(name: &CStr) -> Option<*mut c_void> {
    // ROCr is loaded into a scope of its own, so "the next object" would not find it.
    // SAFETY: both names are C strings; the handle is used while ROCr, our caller's caller, stays loaded.
    let found = unsafe {
        let rocr = dlopen(c"libhsa-runtime64.so.1".as_ptr(), RTLD_LAZY | RTLD_NOLOAD);
        if rocr.is_null() { rocr } else { dlsym(rocr, name.as_ptr()) }
    };
    (!found.is_null()).then_some(found)
}

fn real() -> Option<Allocate> {
    static REAL: OnceLock<Option<Allocate>> = OnceLock::new();
    *REAL.get_or_init(|| rocr_function(c"hsa_amd_memory_pool_allocate"))
}

/// `n` or `n@bytes`.
pub fn parse(text: &str) -> Option<(u64, usize)> {
    let (n, min_bytes) = text.split_once('@').unwrap_or((text, "0"));
    Some((n.parse().ok()?, min_bytes.parse().ok()?))
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
    static FAIL_AT: OnceLock<Option<(u64, usize)>> = OnceLock::new();
    let fail_at = FAIL_AT.get_or_init(|| parse(&std::env::var("GFX_FAIL_ALLOC").ok()?));
    if let Some((first, min_bytes)) = *fail_at
        && n_bytes >= min_bytes
    {
        let n = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
        if n >= first {
            eprintln!("gfx: allocation {n} ({n_bytes} bytes) fails, as GFX_FAIL_ALLOC asks");
            return OUT_OF_RESOURCES;
        }
    }
    match real() {
        // SAFETY: the caller's arguments, passed on unchanged.
        Some(real) => unsafe { real(pool, n_bytes, flags, to) },
        None => NOT_INITIALIZED,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_request_reads_as_documented() {
        assert_eq!(super::parse("3"), Some((3, 0)));
        assert_eq!(super::parse("2@4096"), Some((2, 4096)));
        assert_eq!(super::parse("many"), None);
    }
}
