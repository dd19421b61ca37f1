//! A lean start: ROCr's `hsa_init` and three functions of the C library, interposed because this library is preloaded.
//!
//! Over the hook, libhsakmt opens with a node count that nobody has set, a number from the stack. For so many nodes it
//! makes two tables: one of as many bytes, which it clears (up to 4 GiB and seconds at every start), and one of eight
//! times that for counters, which it walks at the end. While a thread opens ROCr, the first comes out of fresh pages,
//! which are zero and stay untouched, and the second is refused: libhsakmt does without counters.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::interpose::{NOT_INITIALIZED, next_symbol, rocr_function};

type Fill = unsafe extern "C" fn(*mut c_void, c_int, usize) -> *mut c_void;

unsafe extern "C" {
    fn pthread_self() -> usize;
    // glibc's own allocator, under names that stay its own when `malloc` is replaced.
    fn __libc_malloc(n_bytes: usize) -> *mut c_void;
    fn __libc_calloc(n: usize, n_bytes: usize) -> *mut c_void;
}

/// More than anything ROCr needs at once while it opens, and than glibc takes from anywhere but fresh pages.
const LARGE: usize = 64 << 20;

/// The thread inside `hsa_init`, or zero. No thread-local: looking one up may itself allocate.
static OPENER: AtomicUsize = AtomicUsize::new(0);
/// The large table made last, which is zero.
static FRESH: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

fn is_odd(n_bytes: usize) -> bool {
    // SAFETY: always callable.
    n_bytes >= LARGE && OPENER.load(Ordering::Relaxed) == unsafe { pthread_self() }
}

/// # Safety
/// As ROCr's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_init() -> c_int {
    let Some(real) = rocr_function::<unsafe extern "C" fn() -> c_int>(c"hsa_init") else { return NOT_INITIALIZED };
    // SAFETY: always callable.
    let before = OPENER.swap(unsafe { pthread_self() }, Ordering::Relaxed);
    // SAFETY: the caller's call, passed on.
    let status = unsafe { real() };
    OPENER.store(before, Ordering::Relaxed);
    FRESH.store(std::ptr::null_mut(), Ordering::Relaxed);
    status
}

/// # Safety
/// As the C library's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(n_bytes: usize) -> *mut c_void {
    if !is_odd(n_bytes) {
        // SAFETY: the caller's call, passed on.
        return unsafe { __libc_malloc(n_bytes) };
    }
    // SAFETY: memory of the same size from the same allocator; that it is zero as well breaks no promise.
    let fresh = unsafe { __libc_calloc(1, n_bytes) };
    FRESH.store(fresh, Ordering::Relaxed);
    fresh
}

/// # Safety
/// As the C library's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(n: usize, n_bytes: usize) -> *mut c_void {
    if is_odd(n.saturating_mul(n_bytes)) {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's call, passed on.
    unsafe { __libc_calloc(n, n_bytes) }
}

/// # Safety
/// As the C library's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(to: *mut c_void, value: c_int, n_bytes: usize) -> *mut c_void {
    if is_odd(n_bytes) && value == 0 && to == FRESH.load(Ordering::Relaxed) {
        return to;
    }
    match real_memset() {
        // SAFETY: the caller's call, passed on.
        Some(real) => unsafe { real(to, value, n_bytes) },
        None => {
            fill(to, value as u8, n_bytes);
            to
        }
    }
}

/// The C library's own function; `None` while it is being looked up, which may itself clear memory.
fn real_memset() -> Option<Fill> {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    const LOOKING: *mut c_void = std::ptr::dangling_mut();
    let mut real = REAL.load(Ordering::Relaxed);
    if real.is_null() && REAL.compare_exchange(real, LOOKING, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        real = next_symbol(c"memset").unwrap_or(LOOKING);
        REAL.store(real, Ordering::Relaxed);
    }
    if real.is_null() || real == LOOKING {
        return None;
    }
    // SAFETY: a symbol of this name has this signature (string.h).
    Some(unsafe { std::mem::transmute::<*mut c_void, Fill>(real) })
}

/// In assembly, since a loop in Rust would become a call of `memset`.
fn fill(to: *mut c_void, value: u8, n_bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: writes the bytes that `memset`'s caller promised to be writable; the direction flag is clear by the ABI.
    unsafe {
        std::arch::asm!("rep stosb", inout("rcx") n_bytes => _, inout("rdi") to => _, in("al") value, options(nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    for k in 0..n_bytes {
        // SAFETY: as above.
        unsafe { to.cast::<u8>().add(k).write_volatile(value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_thread_that_opens_gets_odd_tables() {
        assert!(!is_odd(LARGE));
        // SAFETY: always callable.
        OPENER.store(unsafe { pthread_self() }, Ordering::Relaxed);
        let here = (is_odd(LARGE), is_odd(LARGE - 1));
        let there = std::thread::spawn(|| is_odd(LARGE)).join().unwrap();
        OPENER.store(0, Ordering::Relaxed);
        assert_eq!((here, there), ((true, false), false));
    }

    #[test]
    fn bytes_are_set_with_and_without_the_c_library() {
        let mut bytes = [1u8; 100];
        fill(bytes[10..].as_mut_ptr().cast(), 7, 80);
        assert!(bytes[10..90].iter().all(|b| *b == 7) && bytes[..10].iter().chain(&bytes[90..]).all(|b| *b == 1));
        // SAFETY: inside the array.
        unsafe { memset(bytes[20..].as_mut_ptr().cast(), 9, 10) };
        assert!(bytes[20..30].iter().all(|b| *b == 9) && bytes[30] == 7);
    }
}
