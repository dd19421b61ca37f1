//! ROCr's own threads, kept from spinning: `pthread_create` and `pthread_mutex_lock`, interposed because this library is
//! preloaded.
//!
//! libhsakmt's model answers a wait for several events wrongly once one of them was set early: it hands back age 0 for
//! the others, which every later wait takes for news. ROCr's event thread then asks again and again, without a pause,
//! until the kernel in flight is done: on a machine of few cores, a core less for the emulator. Each question takes
//! libhsakmt's lock; a thread that was started by ROCr and takes locks in a tight loop is made to rest for a moment.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use super::interpose::next_symbol;

type Start = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut u64, *const c_void, Start, *mut c_void) -> c_int;

/// `Dl_info`.
#[repr(C)]
struct Place {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, to: *mut Place) -> c_int;
}

/// So many locks within that time are a loop.
const N_LOCKS: u32 = 32;
const WINDOW: Duration = Duration::from_millis(2);
const REST: Duration = Duration::from_micros(100);
const EAGAIN: c_int = 11;

struct Wrapped {
    start: Start,
    argument: *mut c_void,
}

thread_local! {
    /// Of a thread of ROCr: locks left in this window, and its start.
    static LOCKS: Cell<Option<(u32, Instant)>> = const { Cell::new(None) };
}

unsafe extern "C" fn begin(wrapped: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` below made this pointer from a box and handed it to this thread alone.
    let wrapped = unsafe { Box::from_raw(wrapped.cast::<Wrapped>()) };
    LOCKS.set(Some((N_LOCKS, Instant::now())));
    let Wrapped { start, argument } = *wrapped;
    // SAFETY: the caller's own function and argument.
    unsafe { start(argument) }
}

fn is_of_rocr(start: Start) -> bool {
    let mut place = Place {
        file: std::ptr::null(),
        base: std::ptr::null_mut(),
        symbol: std::ptr::null(),
        address: std::ptr::null_mut(),
    };
    // SAFETY: `place` is `Dl_info`; the address is only looked up.
    let found = unsafe { dladdr(start as *const c_void, &raw mut place) };
    if found == 0 || place.file.is_null() {
        return false;
    }
    // SAFETY: a C string of the loader, alive while the library is.
    let file = unsafe { CStr::from_ptr(place.file) };
    file.to_bytes().windows(b"libhsa-runtime64".len()).any(|w| w == b"libhsa-runtime64")
}

/// # Safety
/// As the C library's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut u64,
    attributes: *const c_void,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    static REAL: OnceLock<Option<Create>> = OnceLock::new();
    let real = REAL.get_or_init(|| {
        // SAFETY: a symbol of this name has this signature (pthread.h).
        next_symbol(c"pthread_create").map(|at| unsafe { std::mem::transmute::<*mut c_void, Create>(at) })
    });
    let Some(real) = *real else { return EAGAIN };
    if !is_of_rocr(start) {
        // SAFETY: the caller's arguments, passed on unchanged.
        return unsafe { real(thread, attributes, start, argument) };
    }
    let wrapped = Box::into_raw(Box::new(Wrapped { start, argument }));
    // SAFETY: the caller's thread and attributes; `wrapped` lives until the thread takes it.
    let status = unsafe { real(thread, attributes, begin, wrapped.cast()) };
    if status != 0 {
        // SAFETY: no thread started, so the box is still ours.
        drop(unsafe { Box::from_raw(wrapped) });
    }
    status
}

fn rest_in_a_loop() {
    let Ok(Some((n_left, since))) = LOCKS.try_with(Cell::get) else { return };
    if n_left > 0 {
        LOCKS.set(Some((n_left - 1, since)));
        return;
    }
    if since.elapsed() < WINDOW {
        std::thread::sleep(REST);
    }
    LOCKS.set(Some((N_LOCKS, Instant::now())));
}

/// # Safety
/// As the C library's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_lock(mutex: *mut c_void) -> c_int {
    type Lock = unsafe extern "C" fn(*mut c_void) -> c_int;
    // No `OnceLock`: this must not wait for itself, and finding the function twice does no harm.
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let mut real = REAL.load(Ordering::Relaxed);
    if real.is_null() {
        let Some(found) = next_symbol(c"pthread_mutex_lock") else { return EAGAIN };
        real = found;
        REAL.store(real, Ordering::Relaxed);
    }
    rest_in_a_loop();
    // SAFETY: a symbol of this name has this signature (pthread.h); the caller's argument, passed on unchanged.
    unsafe { std::mem::transmute::<*mut c_void, Lock>(real)(mutex) }
}
