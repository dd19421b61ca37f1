//! Memory apart from its addresses (`hipMemCreate`, `hipMemMap`, `hipMemSetAccess`, and the pools that HIP builds on them):
//! ROCr's functions, interposed because this library is preloaded.
//!
//! The hook has no calls for this. Here a piece of memory is a file without a name, mapped into a reserved range of the
//! process's own addresses, which the emulator uses as they are; its descriptor serves as the handle for other processes.
//! Access is kept for the range as a whole: a GPU that was not named may use what another was given.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::interpose::{NOT_INITIALIZED, SUCCESS, rocr_function};
use super::managed::{INVALID_ALLOCATION, INVALID_ARGUMENT, OUT_OF_RESOURCES, PROT_READ, PROT_WRITE, is_reserved};
use super::model::{locked, unlocked};

/// Linux.
const PROT_NONE: c_int = 0;
const MAP_SHARED: c_int = 1;
const MAP_PRIVATE: c_int = 2;
const MAP_FIXED: c_int = 0x10;
const MAP_ANONYMOUS: c_int = 0x20;
const MAP_NORESERVE: c_int = 0x4000;
const MAP_FAILED: *mut c_void = -1isize as *mut c_void;
const MFD_CLOEXEC: u32 = 1;
const SEEK_END: c_int = 2;

unsafe extern "C" {
    fn mmap(at: *mut c_void, n_bytes: usize, access: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
    fn mprotect(at: *mut c_void, n_bytes: usize, access: c_int) -> c_int;
    fn memfd_create(name: *const c_char, flags: u32) -> c_int;
    fn ftruncate(fd: c_int, n_bytes: i64) -> c_int;
    fn lseek(fd: c_int, offset: i64, whence: c_int) -> i64;
    fn dup(fd: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
}

/// `hsa_access_permission_t` is a set of these: read, write.
const READ: u32 = 1;
const WRITE: u32 = 2;

/// `hsa_amd_memory_access_desc_t`.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct Access {
    permissions: u32,
    agent: u64,
}

struct Piece {
    file: c_int,
    n_bytes: u64,
    pool: u64,
    kind: c_int,
    n_handles: usize,
    n_maps: usize,
}

struct Mapping {
    n_bytes: u64,
    handle: u64,
    access: HashMap<u64, u32>,
}

#[derive(Default)]
struct Known {
    n_pieces: u64,
    pieces: HashMap<u64, Piece>,
    mappings: BTreeMap<u64, Mapping>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    fn add(&mut self, file: c_int, n_bytes: u64, pool: u64, kind: c_int) -> u64 {
        self.n_pieces += 1;
        self.pieces.insert(self.n_pieces, Piece { file, n_bytes, pool, kind, n_handles: 1, n_maps: 0 });
        self.n_pieces
    }

    /// Memory lives while a handle or a mapping has it.
    fn drop_unused(&mut self, handle: u64) {
        if self.pieces.get(&handle).is_some_and(|piece| piece.n_handles == 0 && piece.n_maps == 0)
            && let Some(piece) = self.pieces.remove(&handle)
        {
            // SAFETY: the piece's own descriptor, used no more.
            unsafe { close(piece.file) };
        }
    }

    fn mapping_at(&mut self, address: u64) -> Option<(u64, &mut Mapping)> {
        let (start, mapping) = self.mappings.range_mut(..=address).next_back()?;
        (address < start + mapping.n_bytes).then_some((*start, mapping))
    }
}

/// # Safety
/// As ROCr's own function: `to` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_vmem_handle_create(
    pool: u64,
    n_bytes: usize,
    kind: c_int,
    _flags: u64,
    to: *mut u64,
) -> c_int {
    if to.is_null() || n_bytes == 0 {
        return INVALID_ARGUMENT;
    }
    // SAFETY: a C string; a descriptor of our own is given its size.
    let file = unsafe { memfd_create(c"gfx-memory".as_ptr(), MFD_CLOEXEC) };
    if file < 0 {
        return OUT_OF_RESOURCES;
    }
    // SAFETY: as above.
    if unsafe { ftruncate(file, n_bytes as i64) } != 0 {
        // SAFETY: as above.
        unsafe { close(file) };
        return OUT_OF_RESOURCES;
    }
    // SAFETY: writable by the caller's promise.
    unsafe { *to = known().add(file, n_bytes as u64, pool, kind) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_vmem_handle_release(handle: u64) -> c_int {
    let mut known = known();
    match known.pieces.get_mut(&handle) {
        Some(piece) if piece.n_handles > 0 => piece.n_handles -= 1,
        _ => return INVALID_ALLOCATION,
    }
    known.drop_unused(handle);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_vmem_map(start: u64, n_bytes: usize, offset: usize, handle: u64, _flags: u64) -> c_int {
    let mut known = known();
    let end = start.saturating_add(n_bytes as u64);
    let is_taken = known.mappings.range(..end).next_back().is_some_and(|(at, m)| at + m.n_bytes > start);
    let Some(piece) = known.pieces.get_mut(&handle) else { return INVALID_ALLOCATION };
    if n_bytes == 0 || is_taken || (offset + n_bytes) as u64 > piece.n_bytes || !is_reserved(start, n_bytes as u64) {
        return INVALID_ARGUMENT;
    }
    let flags = MAP_SHARED | MAP_FIXED;
    // SAFETY: the range was reserved for this and nothing is mapped in it; access comes later.
    let at = unsafe { mmap(start as *mut c_void, n_bytes, PROT_NONE, flags, piece.file, offset as i64) };
    if at == MAP_FAILED {
        return OUT_OF_RESOURCES;
    }
    piece.n_maps += 1;
    known.mappings.insert(start, Mapping { n_bytes: n_bytes as u64, handle, access: HashMap::new() });
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_vmem_unmap(start: u64, n_bytes: usize) -> c_int {
    let mut known = known();
    match known.mappings.get(&start) {
        Some(mapping) if mapping.n_bytes == n_bytes as u64 => {}
        Some(_) => return INVALID_ARGUMENT,
        None => return INVALID_ALLOCATION,
    }
    unlocked(start);
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    // SAFETY: the mapping's own range, which is a bare reservation again.
    if unsafe { mmap(start as *mut c_void, n_bytes, PROT_NONE, flags, -1, 0) } == MAP_FAILED {
        return OUT_OF_RESOURCES;
    }
    if let Some(mapping) = known.mappings.remove(&start) {
        if let Some(piece) = known.pieces.get_mut(&mapping.handle) {
            piece.n_maps -= 1;
        }
        known.drop_unused(mapping.handle);
    }
    SUCCESS
}

/// # Safety
/// As ROCr's own function: `access` must point at `n` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_vmem_set_access(start: u64, n_bytes: usize, access: *const Access, n: usize) -> c_int {
    if access.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's promise.
    let access = unsafe { std::slice::from_raw_parts(access, n) };
    let mut known = known();
    // HIP names a range of several mappings at once.
    let end = start.saturating_add(n_bytes as u64);
    let ranges = known.mappings.range_mut(start..end).collect::<Vec<_>>();
    if ranges.iter().map(|(_, mapping)| mapping.n_bytes).sum::<u64>() != n_bytes as u64 {
        return INVALID_ALLOCATION;
    }
    for (start, mapping) in ranges {
        mapping.access.extend(access.iter().map(|a| (a.agent, a.permissions)));
        let all = mapping.access.values().fold(0, |all, one| all | one);
        let protection = if all & READ != 0 { PROT_READ } else { 0 } | if all & WRITE != 0 { PROT_WRITE } else { 0 };
        unlocked(*start);
        // SAFETY: a live mapping of ours; nobody uses it before it has access.
        if unsafe { mprotect(*start as *mut c_void, mapping.n_bytes as usize, protection) } != 0 {
            return OUT_OF_RESOURCES;
        }
        if all != 0 {
            locked(*start, mapping.n_bytes);
        }
    }
    SUCCESS
}

/// # Safety
/// As ROCr's own function: `to` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_vmem_get_access(address: u64, to: *mut u32, agent: u64) -> c_int {
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    let mut known = known();
    let found = known.mapping_at(address).and_then(|(_, mapping)| mapping.access.get(&agent));
    let Some(permissions) = found else { return INVALID_ALLOCATION };
    // SAFETY: writable by the caller's promise.
    unsafe { *to = *permissions };
    SUCCESS
}

/// # Safety
/// As ROCr's own function: `to` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_vmem_export_shareable_handle(to: *mut c_int, handle: u64, _flags: u64) -> c_int {
    let known = known();
    let Some(piece) = known.pieces.get(&handle) else { return INVALID_ALLOCATION };
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: a live descriptor; `to` is writable by the caller's promise.
    match unsafe { dup(piece.file) } {
        fd if fd < 0 => OUT_OF_RESOURCES,
        fd => {
            // SAFETY: as above.
            unsafe { *to = fd };
            SUCCESS
        }
    }
}

/// # Safety
/// As ROCr's own function: `to` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_vmem_import_shareable_handle(fd: c_int, to: *mut u64) -> c_int {
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: a descriptor that is not a file of a size gives an error.
    let (n_bytes, file) = unsafe { (lseek(fd, 0, SEEK_END), dup(fd)) };
    if n_bytes <= 0 || file < 0 {
        return INVALID_ALLOCATION;
    }
    // SAFETY: writable by the caller's promise.
    unsafe { *to = known().add(file, n_bytes as u64, 0, 0) };
    SUCCESS
}

/// # Safety
/// As ROCr's own function: `to` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_vmem_retain_alloc_handle(to: *mut u64, address: u64) -> c_int {
    let mut known = known();
    let Some(handle) = known.mapping_at(address).map(|(_, mapping)| mapping.handle) else { return INVALID_ALLOCATION };
    let (Some(piece), false) = (known.pieces.get_mut(&handle), to.is_null()) else { return INVALID_ARGUMENT };
    piece.n_handles += 1;
    // SAFETY: writable by the caller's promise.
    unsafe { *to = handle };
    SUCCESS
}

/// # Safety
/// As ROCr's own function: `pool` and `kind` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_amd_vmem_get_alloc_properties_from_handle(
    handle: u64,
    pool: *mut u64,
    kind: *mut c_int,
) -> c_int {
    let known = known();
    let Some(piece) = known.pieces.get(&handle) else { return INVALID_ALLOCATION };
    if pool.is_null() || kind.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: writable by the caller's promise.
    unsafe { (*pool, *kind) = (piece.pool, piece.kind) };
    SUCCESS
}

/// ROCr asks the kernel driver whether these calls work. Here they do.
///
/// # Safety
/// As ROCr's own function: `to` must be as large as the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_system_get_info(what: c_int, to: *mut c_void) -> c_int {
    const VIRTUAL_MEMORY: c_int = 0x205;
    type Info = unsafe extern "C" fn(c_int, *mut c_void) -> c_int;
    let Some(real) = rocr_function::<Info>(c"hsa_system_get_info") else { return NOT_INITIALIZED };
    // SAFETY: the caller's call, passed on.
    let status = unsafe { real(what, to) };
    if what == VIRTUAL_MEMORY && status == SUCCESS && !to.is_null() {
        // SAFETY: this answer is a `bool`.
        unsafe { *to.cast::<bool>() = true };
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::managed::{hsa_amd_vmem_address_free, hsa_amd_vmem_address_reserve};

    /// Two addresses of one piece of memory, and what is refused.
    #[test]
    fn memory_is_seen_wherever_it_is_mapped() {
        const N: usize = 1 << 16;
        let (mut handle, mut at, mut fd, mut again) = (0u64, 0u64, 0, 0u64);
        let all = [Access { permissions: READ | WRITE, agent: 9 }];
        // SAFETY: all pointers are to live locals; the ranges are reserved before they are used.
        unsafe {
            assert_eq!(hsa_amd_vmem_address_reserve(&mut at, 2 * N, 0, 0), SUCCESS);
            assert_eq!(hsa_amd_vmem_handle_create(5, N, 1, 0, &mut handle), SUCCESS);
            assert_eq!(hsa_amd_vmem_map(at, N, 0, handle, 0), SUCCESS);
            assert_eq!(hsa_amd_vmem_map(at, N, 0, handle, 0), INVALID_ARGUMENT, "taken");
            assert_eq!(hsa_amd_vmem_map(at + N as u64, 2 * N, 0, handle, 0), INVALID_ARGUMENT, "beyond the range");
            assert_eq!(hsa_amd_vmem_export_shareable_handle(&mut fd, handle, 0), SUCCESS);
            assert_eq!(hsa_amd_vmem_import_shareable_handle(fd, &mut again), SUCCESS);
            assert_eq!(hsa_amd_vmem_map(at + N as u64, N, 0, again, 0), SUCCESS);
            assert_eq!(hsa_amd_vmem_set_access(at, 2 * N, all.as_ptr(), 1), SUCCESS);
            let mut permissions = 0;
            assert_eq!(hsa_amd_vmem_get_access(at + 100, &mut permissions, 9), SUCCESS);
            assert_eq!(permissions, READ | WRITE);
            assert_eq!(hsa_amd_vmem_get_access(at, &mut permissions, 8), INVALID_ALLOCATION, "another agent");
            *(at as *mut u32) = 0x1234;
            assert_eq!(*((at + N as u64) as *const u32), 0x1234);
            let mut retained = 0;
            assert_eq!(hsa_amd_vmem_retain_alloc_handle(&mut retained, at + 4), SUCCESS);
            assert_eq!(retained, handle);
            let (mut pool, mut kind) = (0, 0);
            assert_eq!(hsa_amd_vmem_get_alloc_properties_from_handle(handle, &mut pool, &mut kind), SUCCESS);
            assert_eq!((pool, kind), (5, 1));
            close(fd);
        }
        for handle in [handle, handle, again] {
            assert_eq!(hsa_amd_vmem_handle_release(handle), SUCCESS);
        }
        assert_eq!(hsa_amd_vmem_handle_release(handle), INVALID_ALLOCATION, "no handle is left");
        assert_eq!(hsa_amd_vmem_unmap(at, 2 * N), INVALID_ARGUMENT);
        assert_eq!(hsa_amd_vmem_unmap(at, N), SUCCESS);
        assert_eq!(hsa_amd_vmem_unmap(at, N), INVALID_ALLOCATION, "twice");
        assert_eq!(hsa_amd_vmem_unmap(at + N as u64, N), SUCCESS);
        assert!(!known().pieces.contains_key(&handle) && !known().pieces.contains_key(&again));
        assert_eq!(hsa_amd_vmem_address_free(at, 2 * N), SUCCESS);
    }
}
