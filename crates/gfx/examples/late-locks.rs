//! A library for `LD_PRELOAD` that makes every thread but the main one late at each lock.
//!
//! It turns races that need a badly timed pre-emption into certainties: `LATE_LOCKS_US=n` sleeps n microseconds before
//! each `pthread_mutex_lock` of a thread that is not the main one. Tests preload it under AMD's runtime.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

#[repr(C)]
struct Time {
    seconds: c_long,
    nanoseconds: c_long,
}

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn getenv(name: *const c_char) -> *const c_char;
    fn atol(text: *const c_char) -> c_long;
    fn gettid() -> c_int;
    fn getpid() -> c_int;
    fn nanosleep(time: *const Time, left: *mut Time) -> c_int;
    fn abort() -> !;
}

/// glibc: the next object that defines the symbol.
const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;

type Lock = unsafe extern "C" fn(*mut c_void) -> c_int;

/// # Safety
/// As the C library's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_lock(mutex: *mut c_void) -> c_int {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    static DELAY_US: AtomicI64 = AtomicI64::new(-1);
    let mut real = REAL.load(Ordering::Relaxed);
    if real == 0 {
        // SAFETY: the name is a C string; the C library that defines it stays loaded.
        real = unsafe { dlsym(RTLD_NEXT, c"pthread_mutex_lock".as_ptr()) } as usize;
        REAL.store(real, Ordering::Relaxed);
    }
    let mut us = DELAY_US.load(Ordering::Relaxed);
    if us < 0 {
        // SAFETY: C strings in, a C string or null out; nobody changes the environment while a test runs.
        us = unsafe {
            let text = getenv(c"LATE_LOCKS_US".as_ptr());
            if text.is_null() { 0 } else { atol(text) }
        };
        DELAY_US.store(us, Ordering::Relaxed);
    }
    // SAFETY: plain system calls; `Time` is the C library's `timespec`.
    unsafe {
        if real == 0 {
            abort();
        }
        if us > 0 && gettid() != getpid() {
            nanosleep(&Time { seconds: us / 1_000_000, nanoseconds: us % 1_000_000 * 1000 }, std::ptr::null_mut());
        }
        std::mem::transmute::<usize, Lock>(real)(mutex)
    }
}
