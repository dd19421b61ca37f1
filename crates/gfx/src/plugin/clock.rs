//! Times of packets: when this process began and ended one, in the clock that ROCr calls the system's.
//!
//! A card counts ticks of its own, and ROCr translates them with pairs of both clocks that the driver reads. The hook
//! answers zero for both, so every time would come out as nothing. The plug-in writes nanoseconds of the system clock
//! into the signals instead, and the two functions that translate are interposed to hand them on. They tell how long
//! the emulator took, never how long a card would.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

/// `struct timespec` of x86-64.
#[repr(C)]
#[derive(Default)]
struct Timespec {
    seconds: i64,
    nanoseconds: c_long,
}

unsafe extern "C" {
    fn clock_gettime(clock: c_int, to: *mut Timespec) -> c_int;
}

/// The clock behind ROCr's `HSA_SYSTEM_INFO_TIMESTAMP`.
const CLOCK_BOOTTIME: c_int = 7;
const INVALID_ARGUMENT: c_int = 0x1001;

pub fn now_ns() -> u64 {
    let mut now = Timespec::default();
    // SAFETY: a structure of the C library's own layout; this clock is always there.
    unsafe { clock_gettime(CLOCK_BOOTTIME, &raw mut now) };
    now.seconds as u64 * 1_000_000_000 + now.nanoseconds as u64
}

/// `start_ts` and `end_ts` of `amd_signal_t`.
pub const START: u64 = 32;
pub const END: u64 = 40;

/// `hsa_amd_profiling_dispatch_time_t`, and the same for copies.
#[repr(C)]
pub struct Times {
    start: u64,
    end: u64,
}

/// # Safety
/// `signal` must be the handle of a live signal, `to` writable.
unsafe fn read(signal: u64, to: *mut Times) -> c_int {
    if signal == 0 || to.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: a handle is the host address of an `amd_signal_t`, whose times lie at fixed, aligned offsets; the caller
    // promises that it lives.
    let field = |offset: u64| unsafe { AtomicU64::from_ptr((signal + offset) as *mut u64) }.load(Ordering::Relaxed);
    // SAFETY: writable by the caller's promise.
    unsafe { to.write(Times { start: field(START), end: field(END) }) };
    super::interpose::SUCCESS
}

/// # Safety
/// As ROCr's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_profiling_get_dispatch_time(_agent: u64, signal: u64, to: *mut c_void) -> c_int {
    // SAFETY: the caller's arguments, under the same promises.
    unsafe { read(signal, to.cast()) }
}

/// # Safety
/// As ROCr's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_profiling_get_async_copy_time(signal: u64, to: *mut c_void) -> c_int {
    // SAFETY: the caller's arguments, under the same promises.
    unsafe { read(signal, to.cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signals_times_are_handed_on() {
        let signal = [0u64, 0, 0, 0, 17, 23, 0, 0];
        let mut times = Times { start: 0, end: 0 };
        // SAFETY: `signal` has the size and alignment of an `amd_signal_t`.
        let status = unsafe { read(signal.as_ptr() as u64, &raw mut times) };
        assert_eq!((status, times.start, times.end), (0, 17, 23));
        // SAFETY: a null signal is refused before it is read.
        assert_ne!(unsafe { read(0, &raw mut times) }, 0);
    }

    #[test]
    fn the_clock_goes_forward() {
        let first = now_ns();
        assert!(first > 0 && now_ns() >= first);
    }
}
