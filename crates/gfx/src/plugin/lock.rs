//! Locked host memory: ROCr's functions that pin a range for the GPUs, interposed because this library is preloaded.
//!
//! Over the hook, ROCr accepts such a range and hands out its host address as the GPUs' own, but the model never hears of
//! it. So the ranges are noted here: the emulator takes addresses beyond its aperture for host addresses.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{LazyLock, Mutex, PoisonError};

use super::interpose::{NOT_INITIALIZED, SUCCESS, rocr_function};
use super::model::{locked, unlocked};

type Lock = unsafe extern "C" fn(*mut c_void, usize, *mut u64, c_int, *mut *mut c_void) -> c_int;
type LockToPool = unsafe extern "C" fn(*mut c_void, usize, *mut u64, c_int, u64, u32, *mut *mut c_void) -> c_int;
type Unlock = unsafe extern "C" fn(*mut c_void) -> c_int;

/// A locked range in whole pages, and how often its pointer was locked: the last unlock counts.
struct Range {
    start: u64,
    n_bytes: u64,
    n_locks: usize,
}

/// By the host pointer that was locked.
static LOCKED: LazyLock<Mutex<HashMap<u64, Range>>> = LazyLock::new(Mutex::default);

const PAGE: u64 = 4096;

/// # Safety
/// `agent_pointer` must be null or readable.
unsafe fn note(status: c_int, host: *mut c_void, n_bytes: usize, agent_pointer: *mut *mut c_void) -> c_int {
    if status != SUCCESS || agent_pointer.is_null() {
        return status;
    }
    // SAFETY: ROCr has written it.
    let start = unsafe { *agent_pointer } as u64;
    let end = (start + n_bytes as u64).next_multiple_of(PAGE);
    let start = start & !(PAGE - 1);
    let mut known = LOCKED.lock().unwrap_or_else(PoisonError::into_inner);
    let range = known.entry(host as u64).or_insert(Range { start, n_bytes: 0, n_locks: 0 });
    range.n_bytes = range.n_bytes.max(end - start);
    range.n_locks += 1;
    announce(&known, start);
    status
}

/// Tells the GPUs how far memory from this page on is locked now: pages are shared by neighbouring ranges.
fn announce(known: &HashMap<u64, Range>, start: u64) {
    match known.values().filter(|r| r.start == start).map(|r| r.n_bytes).max() {
        Some(n_bytes) => locked(start, n_bytes),
        None => unlocked(start),
    }
}

/// # Safety
/// As ROCr's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_memory_lock(
    host: *mut c_void,
    n_bytes: usize,
    agents: *mut u64,
    n_agents: c_int,
    agent_pointer: *mut *mut c_void,
) -> c_int {
    let Some(real) = rocr_function::<Lock>(c"hsa_amd_memory_lock") else { return NOT_INITIALIZED };
    // SAFETY: the caller's call, passed on.
    let status = unsafe { real(host, n_bytes, agents, n_agents, agent_pointer) };
    // SAFETY: as above.
    unsafe { note(status, host, n_bytes, agent_pointer) }
}

/// # Safety
/// As ROCr's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_memory_lock_to_pool(
    host: *mut c_void,
    n_bytes: usize,
    agents: *mut u64,
    n_agents: c_int,
    pool: u64,
    flags: u32,
    agent_pointer: *mut *mut c_void,
) -> c_int {
    let Some(real) = rocr_function::<LockToPool>(c"hsa_amd_memory_lock_to_pool") else { return NOT_INITIALIZED };
    // SAFETY: the caller's call, passed on.
    let status = unsafe { real(host, n_bytes, agents, n_agents, pool, flags, agent_pointer) };
    // SAFETY: as above.
    unsafe { note(status, host, n_bytes, agent_pointer) }
}

/// # Safety
/// As ROCr's own function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_memory_unlock(host: *mut c_void) -> c_int {
    let Some(real) = rocr_function::<Unlock>(c"hsa_amd_memory_unlock") else { return NOT_INITIALIZED };
    let mut known = LOCKED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(range) = known.get_mut(&(host as u64)) {
        range.n_locks -= 1;
        let (start, is_last) = (range.start, range.n_locks == 0);
        if is_last {
            known.remove(&(host as u64));
            announce(&known, start);
        }
    }
    drop(known);
    // SAFETY: the caller's call, passed on.
    unsafe { real(host) }
}
