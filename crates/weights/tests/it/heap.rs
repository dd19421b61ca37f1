//! Counts what this test binary allocates, per thread, so that a test can hold a parser to a limit.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The most bytes that were allocated at one time while `work` ran, over what was before.
pub fn peak_bytes<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.get();
    PEAK.set(before);
    let result = work();
    (PEAK.get().saturating_sub(before), result)
}

struct Counting;

impl Counting {
    fn grow(&self, n_bytes: usize) {
        let held = HELD.get().wrapping_add(n_bytes);
        HELD.set(held);
        PEAK.set(PEAK.get().max(held));
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged; the counters are thread-local cells without
// destructors or lazy state, so that touching them here can neither allocate nor fail.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.grow(layout.size());
        // SAFETY: the caller's promises are those of `System::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.grow(layout.size());
        // SAFETY: the caller's promises are those of `System::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // Memory may be freed by another thread than took it, so this may wrap; peaks are measured within one thread.
        HELD.set(HELD.get().wrapping_sub(layout.size()));
        // SAFETY: the caller's promises are those of `System::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Old and new may both be held while the bytes are moved.
        self.grow(new_size);
        HELD.set(HELD.get().wrapping_sub(layout.size()));
        // SAFETY: the caller's promises are those of `System::realloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
