//! Reserved addresses, and memory that host and GPUs share at them (`hipMallocManaged`): ROCr's functions, interposed
//! because this library is preloaded.
//!
//! On a machine with a card the kernel driver reserves the addresses and moves their pages to and fro. The hook has neither;
//! here such memory is the process's own, which the emulator uses at its host address. A GPU may use it once an attribute
//! says so, as the hardware does without page faults.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::interpose::{SUCCESS, rocr_function};
use super::model::{locked, unlocked};

/// Statuses of HSA.
pub const INVALID_ARGUMENT: c_int = 0x1001;
pub const INVALID_ALLOCATION: c_int = 0x1003;
pub const OUT_OF_RESOURCES: c_int = 0x1008;

/// `HSA_AMD_VMEM_ADDRESS_NO_REGISTER`: plain memory of the process.
const NO_REGISTER: u64 = 1;
const PAGE: u64 = 4096;

/// Linux.
const PROT_NONE: c_int = 0;
pub const PROT_READ: c_int = 1;
pub const PROT_WRITE: c_int = 2;
const MAP_PRIVATE: c_int = 2;
const MAP_ANONYMOUS: c_int = 0x20;
const MAP_NORESERVE: c_int = 0x4000;
const MAP_FAILED: *mut c_void = -1isize as *mut c_void;

unsafe extern "C" {
    fn mmap(at: *mut c_void, n_bytes: usize, access: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
    fn munmap(at: *mut c_void, n_bytes: usize) -> c_int;
}

/// Attributes of managed memory: `HSA_AMD_SVM_ATTRIB_*`.
const PREFETCH_LOCATION: u64 = 5;
const AGENT_ACCESSIBLE: u64 = 0x200;
const AGENT_ACCESSIBLE_IN_PLACE: u64 = 0x201;
const AGENT_NO_ACCESS: u64 = 0x202;
const ACCESS_QUERY: u64 = 0x203;

/// `hsa_amd_svm_attribute_pair_t`.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct Attribute {
    kind: u64,
    value: u64,
}

/// What was said of a range: plain attributes by kind, access by agent.
#[derive(Default)]
struct Managed {
    n_bytes: u64,
    plain: BTreeMap<u64, u64>,
    access: BTreeMap<u64, u64>,
}

#[derive(Default)]
struct Known {
    /// Reserved ranges: what was mapped for them, which is at least what was asked.
    reserved: BTreeMap<u64, u64>,
    managed: BTreeMap<u64, Managed>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maps `n_bytes` at a multiple of `alignment`, if the kernel can at the address wished for.
fn map(wish: u64, n_bytes: u64, alignment: u64, access: c_int) -> Option<u64> {
    let more = if alignment > PAGE { alignment } else { 0 };
    let length = n_bytes.checked_add(more)?;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: without MAP_FIXED nothing that is mapped already is touched.
    let at = unsafe { mmap(wish as *mut c_void, length as usize, access, flags, -1, 0) };
    if at == MAP_FAILED {
        return None;
    }
    let start = (at as u64).next_multiple_of(alignment.max(PAGE));
    let (before, after) = (start - at as u64, at as u64 + length - start - n_bytes);
    for (at, n_bytes) in [(at as u64, before), (start + n_bytes, after)] {
        if n_bytes > 0 {
            // SAFETY: a part of what was mapped above, which nobody else knows of.
            unsafe { munmap(at as *mut c_void, n_bytes as usize) };
        }
    }
    Some(start)
}

/// The reserved range that holds all of `n_bytes` from `start` on.
pub fn is_reserved(start: u64, n_bytes: u64) -> bool {
    let known = known();
    let found = known.reserved.range(..=start).next_back();
    found.is_some_and(|(at, length)| start.checked_add(n_bytes).is_some_and(|end| end <= at + length))
}

/// # Safety
/// As ROCr's own function: `to` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_vmem_address_reserve_align(
    to: *mut u64,
    n_bytes: usize,
    wish: u64,
    alignment: u64,
    flags: u64,
) -> c_int {
    let n_bytes = (n_bytes as u64).next_multiple_of(PAGE);
    if to.is_null() || n_bytes == 0 || !(alignment == 0 || alignment.is_power_of_two()) {
        return INVALID_ARGUMENT;
    }
    let access = if flags & NO_REGISTER != 0 { PROT_READ | PROT_WRITE } else { PROT_NONE };
    let Some(start) = map(wish, n_bytes, alignment, access) else { return OUT_OF_RESOURCES };
    known().reserved.insert(start, n_bytes);
    // SAFETY: writable by the caller's promise.
    unsafe { *to = start };
    SUCCESS
}

/// # Safety
/// As ROCr's own function: `to` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_vmem_address_reserve(to: *mut u64, n_bytes: usize, wish: u64, flags: u64) -> c_int {
    // SAFETY: the caller's call, passed on.
    unsafe { hsa_amd_vmem_address_reserve_align(to, n_bytes, wish, 0, flags) }
}

#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_vmem_address_free(start: u64, n_bytes: usize) -> c_int {
    let mut known = known();
    match known.reserved.get(&start) {
        Some(length) if *length == (n_bytes as u64).next_multiple_of(PAGE) => {}
        Some(_) => return INVALID_ARGUMENT,
        None => return INVALID_ALLOCATION,
    }
    let length = known.reserved.remove(&start).unwrap_or(0);
    let managed = known.managed.range(start..start + length).map(|(at, _)| *at).collect::<Vec<_>>();
    for at in managed {
        known.managed.remove(&at);
        unlocked(at);
    }
    // SAFETY: mapped by `map` and freed once, since it is no longer known.
    unsafe { munmap(start as *mut c_void, length as usize) };
    SUCCESS
}

/// Whole pages around a range.
fn pages(start: u64, n_bytes: usize) -> (u64, u64) {
    let first = start & !(PAGE - 1);
    (first, (start + n_bytes as u64).next_multiple_of(PAGE) - first)
}

/// # Safety
/// As ROCr's own function: `attributes` must point at `n` of them, and the range must be mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_svm_attributes_set(
    start: u64,
    n_bytes: usize,
    attributes: *const Attribute,
    n: usize,
) -> c_int {
    if n_bytes == 0 || attributes.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's promise.
    let attributes = unsafe { std::slice::from_raw_parts(attributes, n) };
    if attributes.iter().any(|a| matches!(a.kind, PREFETCH_LOCATION | ACCESS_QUERY)) {
        return INVALID_ARGUMENT;
    }
    let (start, n_bytes) = pages(start, n_bytes);
    let mut known = known();
    let range = known.managed.entry(start).or_default();
    range.n_bytes = range.n_bytes.max(n_bytes);
    for a in attributes {
        match a.kind {
            AGENT_ACCESSIBLE | AGENT_ACCESSIBLE_IN_PLACE | AGENT_NO_ACCESS => _ = range.access.insert(a.value, a.kind),
            kind => _ = range.plain.insert(kind, a.value),
        }
    }
    unlocked(start);
    if range.access.values().any(|kind| *kind != AGENT_NO_ACCESS) {
        locked(start, range.n_bytes);
    }
    SUCCESS
}

/// # Safety
/// As ROCr's own function: `attributes` must point at `n` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_svm_attributes_get(
    start: u64,
    n_bytes: usize,
    attributes: *mut Attribute,
    n: usize,
) -> c_int {
    if n_bytes == 0 || attributes.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's promise.
    let attributes = unsafe { std::slice::from_raw_parts_mut(attributes, n) };
    let known = known();
    let found = known.managed.range(..=start).next_back().filter(|(at, range)| start < *at + range.n_bytes);
    for a in attributes {
        let range = found.map(|(_, range)| range);
        match a.kind {
            AGENT_ACCESSIBLE | AGENT_ACCESSIBLE_IN_PLACE | AGENT_NO_ACCESS => return INVALID_ARGUMENT,
            ACCESS_QUERY => a.kind = range.and_then(|r| r.access.get(&a.value)).copied().unwrap_or(AGENT_NO_ACCESS),
            kind => a.value = range.and_then(|r| r.plain.get(&kind)).copied().unwrap_or(0),
        }
    }
    SUCCESS
}

/// Nothing moves: the memory is where host and GPUs both see it. What waits for the move still learns of its end.
///
/// # Safety
/// As ROCr's own function: `signals` must point at `n_signals` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_svm_prefetch_async(
    start: u64,
    n_bytes: usize,
    agent: u64,
    n_signals: u32,
    signals: *const u64,
    completion: u64,
) -> c_int {
    type Wait = unsafe extern "C" fn(u64, c_int, i64, u64, c_int) -> i64;
    type Subtract = unsafe extern "C" fn(u64, i64);
    const EQUAL: c_int = 0;
    const BLOCKED: c_int = 0;
    let (start, _) = pages(start, n_bytes);
    if let Some(range) = known().managed.get_mut(&start) {
        range.plain.insert(PREFETCH_LOCATION, agent);
    }
    let before: Vec<u64> = if n_signals == 0 || signals.is_null() {
        Vec::new()
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(signals, n_signals as usize) }.to_vec()
    };
    let finish = move || {
        if let Some(wait) = rocr_function::<Wait>(c"hsa_signal_wait_scacquire") {
            for signal in before {
                // SAFETY: the caller keeps the signals until the move is complete.
                unsafe { wait(signal, EQUAL, 0, u64::MAX, BLOCKED) };
            }
        }
        if let Some(subtract) = rocr_function::<Subtract>(c"hsa_signal_subtract_screlease").filter(|_| completion != 0)
        {
            // SAFETY: as above.
            unsafe { subtract(completion, 1) };
        }
    };
    if n_signals == 0 {
        finish();
    } else {
        std::thread::spawn(finish);
    }
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_addresses_are_aligned_and_freed_once() {
        let mut at = 0u64;
        // SAFETY: `at` is writable.
        assert_eq!(unsafe { hsa_amd_vmem_address_reserve_align(&mut at, 5000, 0, 1 << 21, NO_REGISTER) }, SUCCESS);
        assert_eq!(at % (1 << 21), 0);
        assert!(is_reserved(at, 8192) && is_reserved(at + 4096, 4096) && !is_reserved(at, 8193));
        // SAFETY: reserved for reading and writing.
        unsafe { *(at as *mut u64) = 7 };
        assert_eq!(hsa_amd_vmem_address_free(at, 1 << 20), INVALID_ARGUMENT, "another size");
        assert_eq!(hsa_amd_vmem_address_free(at, 5000), SUCCESS);
        assert_eq!(hsa_amd_vmem_address_free(at, 5000), INVALID_ALLOCATION, "twice");
        // SAFETY: `at` is writable.
        let odd = unsafe { hsa_amd_vmem_address_reserve_align(&mut at, 4096, 0, 3, 0) };
        assert_eq!(odd, INVALID_ARGUMENT, "an alignment that is no power of two");
    }

    #[test]
    fn attributes_read_as_they_were_set() {
        let page = [0u8; 1];
        let start = page.as_ptr() as u64;
        let set = [Attribute { kind: 6, value: 1 }, Attribute { kind: AGENT_ACCESSIBLE_IN_PLACE, value: 42 }];
        // SAFETY: two attributes of a page of this program, which no kernel uses here.
        assert_eq!(unsafe { hsa_amd_svm_attributes_set(start, 1, set.as_ptr(), 2) }, SUCCESS);
        let mut get = [6, ACCESS_QUERY, ACCESS_QUERY, 5].map(|kind| Attribute { kind, value: 42 });
        get[2].value = 43;
        // SAFETY: four attributes.
        assert_eq!(unsafe { hsa_amd_svm_attributes_get(start, 1, get.as_mut_ptr(), 4) }, SUCCESS);
        assert_eq!((get[0].value, get[1].kind), (1, AGENT_ACCESSIBLE_IN_PLACE));
        assert_eq!((get[2].kind, get[3].value), (AGENT_NO_ACCESS, 0));
        // SAFETY: as above.
        let refused = unsafe { hsa_amd_svm_attributes_set(start, 1, [Attribute { kind: 5, value: 0 }].as_ptr(), 1) };
        assert_eq!(refused, INVALID_ARGUMENT, "where it was moved to cannot be set");
    }
}
