//! More than one GPU over a hook that was made for one.
//!
//! libhsakmt keeps the address of one GPU's register page in a variable that nobody reads, and asserts that it is still
//! null when it sets it: the second GPU ends the process. The page is announced to the model first, so when the second
//! one comes, the variable is looked for by its value in ROCr's writable data, and cleared.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

/// `struct dl_phdr_info`, as far as it is read.
#[repr(C)]
struct Object {
    base: u64,
    name: *const c_char,
    headers: *const Header,
    n_headers: u16,
}

/// `Elf64_Phdr`.
#[repr(C)]
struct Header {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    n_file_bytes: u64,
    n_bytes: u64,
    align: u64,
}

const LOAD: u32 = 1;
const WRITABLE: u32 = 2;

unsafe extern "C" {
    fn dl_iterate_phdr(
        visit: unsafe extern "C" fn(*mut Object, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
}

/// The register page announced last.
static PAGE: AtomicU64 = AtomicU64::new(0);

/// Called inside the allocation of a register page, before libhsakmt notes it.
pub fn announced(page: u64) {
    let mut before = PAGE.swap(page, Ordering::Relaxed);
    if before != 0 {
        // SAFETY: `clear` reads and writes mapped data of a loaded library only.
        unsafe { dl_iterate_phdr(clear, (&raw mut before).cast()) };
    }
}

/// Clears the words of ROCr's own variables that hold the page.
unsafe extern "C" fn clear(object: *mut Object, _: usize, page: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid structure, and `announced` its own number.
    let (object, page) = unsafe { (&*object, *page.cast::<u64>()) };
    if object.name.is_null() {
        return 0;
    }
    // SAFETY: names are C strings.
    let name = unsafe { CStr::from_ptr(object.name) };
    if !name.to_bytes().windows(16).any(|w| w == b"libhsa-runtime64") {
        return 0;
    }
    // SAFETY: the loader's own table.
    let headers = unsafe { std::slice::from_raw_parts(object.headers, object.n_headers as usize) };
    for header in headers.iter().filter(|h| h.kind == LOAD && h.flags & WRITABLE != 0) {
        let first = (object.base + header.address).next_multiple_of(8);
        let end = object.base + header.address + header.n_bytes;
        for at in (first..end.saturating_sub(7)).step_by(8) {
            // SAFETY: an aligned word of a writable segment; atomics, since other threads may use their own words.
            let word = unsafe { AtomicU64::from_ptr(at as *mut u64) };
            // Read first: part of the segment is read-only by now, and no such part holds the page.
            if word.load(Ordering::Relaxed) == page {
                word.store(0, Ordering::Relaxed);
            }
        }
    }
    1
}
