//! The device's memory: which addresses are live, and checked access to them.
//!
//! A device address inside the aperture is an offset into the host's address space (`base` + address); one beyond it is
//! the host address of memory that the program locked. Every access is checked against the live allocations; a wave
//! keeps the ranges it used last in a `Lease`, so that the common check is two compares. GPUs of one process share the
//! list, since the runtime announces an allocation to one of them and maps it for the others.
//! Reads and writes are relaxed atomics where aligned: kernels may race, this process must not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::Cause;
use crate::sanitize::Shadow;

/// Who may have written an allocation before a kernel did.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Origin {
    /// Only kernels write here: reads of what none wrote can be reported.
    Device,
    /// The host can write here unseen.
    Host,
}

#[derive(Clone, Debug)]
pub struct Allocation {
    pub start: u64,
    pub n_bytes: u64,
    pub id: u64,
    /// The GPU it was announced to.
    owner: u64,
    shadow: Option<Arc<Shadow>>,
}

/// How many starts are looked back at for a range that holds an address.
const NESTED: usize = 8;

/// The allocations of all GPUs of a process.
#[derive(Default)]
pub struct Live {
    allocations: RwLock<BTreeMap<u64, Allocation>>,
    /// Grows with every change, so that leases know when they are stale.
    generation: AtomicU64,
    n_allocated: AtomicU64,
    n_owners: AtomicU64,
}

/// One GPU's view of them.
pub struct Memory {
    base: AtomicU64,
    aperture_bytes: AtomicU64,
    live: Arc<Live>,
    owner: u64,
    is_tracking: bool,
}

/// Ranges a wave used lately.
#[derive(Default, Clone)]
pub struct Lease {
    generation: u64,
    ranges: [(u64, u64); 4],
    shadows: [Option<Arc<Shadow>>; 4],
    turn: usize,
}

impl Memory {
    /// `is_tracking` keeps a shadow of what kernels wrote (an eighth of the memory, allocated as touched).
    pub fn new(is_tracking: bool) -> Self {
        Self::shared(is_tracking, Arc::default())
    }

    /// One more GPU on the same allocations.
    pub fn shared(is_tracking: bool, live: Arc<Live>) -> Self {
        let owner = live.n_owners.fetch_add(1, Ordering::Relaxed);
        live.generation.fetch_add(1, Ordering::Relaxed);
        Memory { base: AtomicU64::new(0), aperture_bytes: AtomicU64::new(0), live, owner, is_tracking }
    }

    /// Device addresses 0 to `n_bytes` lie at this host address.
    pub fn set_aperture(&self, base: u64, n_bytes: u64) {
        self.base.store(base, Ordering::Relaxed);
        self.aperture_bytes.store(n_bytes, Ordering::Relaxed);
        self.live.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Where a device address lies in this process.
    #[inline(always)]
    pub fn host(&self, at: u64) -> u64 {
        if at < self.aperture_bytes.load(Ordering::Relaxed) {
            self.base.load(Ordering::Relaxed).wrapping_add(at)
        } else {
            at
        }
    }

    /// Declares a range live. The caller promises that it stays mapped, readable and writable until `release`.
    ///
    /// # Safety
    /// `host(start) .. + n_bytes` must be mapped memory of this process whenever a kernel runs.
    pub unsafe fn insert(&self, start: u64, n_bytes: u64, origin: Origin) -> u64 {
        let id = self.live.n_allocated.fetch_add(1, Ordering::Relaxed) + 1;
        let shadow = (self.is_tracking && origin == Origin::Device).then(|| Arc::new(Shadow::new(n_bytes)));
        let mut live = self.live.allocations.write().unwrap_or_else(PoisonError::into_inner);
        live.insert(start, Allocation { start, n_bytes, id, owner: self.owner, shadow });
        self.live.generation.fetch_add(1, Ordering::Relaxed);
        id
    }

    pub fn release(&self, start: u64) -> bool {
        let mut live = self.live.allocations.write().unwrap_or_else(PoisonError::into_inner);
        self.live.generation.fetch_add(1, Ordering::Relaxed);
        live.remove(&start).is_some()
    }

    /// Another number after every change to the list of allocations.
    pub fn generation(&self) -> u64 {
        self.live.generation.load(Ordering::Relaxed)
    }

    pub fn n_live(&self) -> usize {
        self.live.allocations.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub fn live_bytes(&self) -> u64 {
        self.live.allocations.read().unwrap_or_else(PoisonError::into_inner).values().map(|a| a.n_bytes).sum()
    }

    /// The allocation that holds all of `lo..hi`.
    pub fn find(&self, lo: u64, hi: u64) -> Option<Allocation> {
        let live = self.live.allocations.read().unwrap_or_else(PoisonError::into_inner);
        // Locked ranges may lie within each other, so the nearest start need not be the right one.
        let mut before = live.range(..=lo).rev().take(NESTED).map(|(_, a)| a);
        before.find(|a| hi <= a.start + a.n_bytes && lo <= hi && self.is_mapped(a)).cloned()
    }

    /// Whether this GPU may use the allocation: another's is mapped here only while peer access is on.
    fn is_mapped(&self, a: &Allocation) -> bool {
        a.owner == self.owner || is_readable(self.host(a.start))
    }

    /// Whether `lo..hi` lies in one live allocation; remembers it. Returns the lease's slot.
    #[inline(always)]
    pub fn covers(&self, lease: &mut Lease, lo: u64, hi: u64) -> Option<usize> {
        if lease.generation == self.live.generation.load(Ordering::Relaxed) {
            for (slot, (start, end)) in lease.ranges.iter().enumerate() {
                if lo >= *start && hi <= *end && lo <= hi {
                    return Some(slot);
                }
            }
        }
        self.renew(lease, lo, hi)
    }

    #[inline(never)]
    fn renew(&self, lease: &mut Lease, lo: u64, hi: u64) -> Option<usize> {
        let generation = self.live.generation.load(Ordering::Relaxed);
        if lease.generation != generation {
            *lease = Lease { generation, ..Lease::default() };
        }
        let found = self.find(lo, hi)?;
        let slot = lease.turn;
        lease.turn = (slot + 1) % lease.ranges.len();
        lease.ranges[slot] = (found.start, found.start + found.n_bytes);
        lease.shadows[slot] = found.shadow;
        Some(slot)
    }

    /// Where the address lies relative to what is allocated, in words.
    pub fn nearest(&self, address: u64) -> String {
        let live = self.live.allocations.read().unwrap_or_else(PoisonError::into_inner);
        let before = live.range(..=address).next_back().map(|(_, a)| a);
        let after = live.range(address..).next().map(|(_, a)| a);
        let name = |a: &Allocation| format!("allocation {} ({:#x}, {} bytes)", a.id, a.start, a.n_bytes);
        match (before, after) {
            (Some(a), _) if address - a.start < a.n_bytes => {
                format!("it starts {} bytes into {}", address - a.start, name(a))
            }
            (Some(a), Some(b)) if b.start - address < address - a.start - a.n_bytes => {
                let gap = address - a.start - a.n_bytes;
                format!("{} bytes before {} (and {gap} past the end of {})", b.start - address, name(b), a.id)
            }
            (Some(a), _) => format!("{} bytes past the end of {}", address - a.start - a.n_bytes, name(a)),
            (None, Some(b)) => format!("{} bytes before {}", b.start - address, name(b)),
            (None, None) => "nothing is allocated".into(),
        }
    }

    /// Reads words for a scalar load.
    pub fn read_words(&self, lease: &mut Lease, at: u64, to: &mut [u32], is_checked: bool) -> Result<(), Cause> {
        let n_bytes = 4 * to.len() as u32;
        let Some(slot) = self.covers(lease, at, at.wrapping_add(n_bytes as u64)) else {
            return Err(Cause::Global { lane: 0, address: at, n_bytes, is_write: false, nearest: self.nearest(at) });
        };
        for (k, word) in to.iter_mut().enumerate() {
            // SAFETY: `covers` found the whole range in one live allocation, which its owner keeps mapped.
            *word = unsafe { load32(self.host(at) + 4 * k as u64) };
        }
        // The first word that nobody wrote: a wide load may run over padding, so only an all-unwritten one counts.
        if is_checked && self.is_unwritten(lease, slot, at, n_bytes) && to.iter().all(|w| *w == 0) {
            let nearest = self.nearest(at);
            return Err(Cause::Uninitialised { space: "global memory", lane: 0, address: at, n_bytes, nearest });
        }
        Ok(())
    }

    #[inline]
    pub fn is_unwritten(&self, lease: &Lease, slot: usize, at: u64, n_bytes: u32) -> bool {
        lease.shadows[slot].as_ref().is_some_and(|s| s.is_untouched(at - lease.ranges[slot].0, n_bytes as u64))
    }

    #[inline]
    pub fn mark_written(&self, lease: &Lease, slot: usize, at: u64, n_bytes: u32) {
        if let Some(shadow) = &lease.shadows[slot] {
            shadow.touch(at - lease.ranges[slot].0, n_bytes as u64);
        }
    }

    /// Copies bytes out, for callers that parse structures in device memory.
    pub fn read_bytes(&self, at: u64, n_bytes: usize) -> Option<Vec<u8>> {
        self.find(at, at.checked_add(n_bytes as u64)?)?;
        let host = self.host(at);
        let mut bytes = Vec::with_capacity(n_bytes);
        // Code objects have megabytes: in words, as far as these are aligned.
        while bytes.len() < n_bytes {
            let from = host + bytes.len() as u64;
            // SAFETY: `find` says the range is live; its owner keeps it mapped.
            unsafe {
                if from.is_multiple_of(4) && bytes.len() + 4 <= n_bytes {
                    bytes.extend_from_slice(&load32(from).to_le_bytes());
                } else {
                    bytes.push(load8(from));
                }
            }
        }
        Some(bytes)
    }
}

/// Whether the process may read a byte, asked of the kernel: a page that is reserved only must not be touched.
fn is_readable(at: u64) -> bool {
    #[repr(C)]
    struct Part {
        at: *mut u8,
        n_bytes: usize,
    }
    unsafe extern "C" {
        fn getpid() -> i32;
        fn process_vm_readv(pid: i32, to: *const Part, n_to: u64, from: *const Part, n_from: u64, flags: u64) -> isize;
    }
    let mut byte = 0u8;
    let (to, from) = (Part { at: &raw mut byte, n_bytes: 1 }, Part { at: at as *mut u8, n_bytes: 1 });
    // SAFETY: one byte goes to `byte`; an address that cannot be read is an error, not a fault.
    unsafe { process_vm_readv(getpid(), &raw const to, 1, &raw const from, 1, 0) == 1 }
}

/// # Safety
/// `at` must be the host address of a readable byte.
#[inline(always)]
pub unsafe fn load8(at: u64) -> u8 {
    // SAFETY: readable by the caller's promise; a byte is always aligned.
    unsafe { AtomicU8::from_ptr(at as *mut u8).load(Ordering::Relaxed) }
}

/// # Safety
/// `at` must be the host address of two readable bytes.
#[inline(always)]
pub unsafe fn load16(at: u64) -> u16 {
    if at.is_multiple_of(2) {
        // SAFETY: readable by the caller's promise, aligned by the test.
        unsafe { AtomicU16::from_ptr(at as *mut u16).load(Ordering::Relaxed) }
    } else {
        // SAFETY: both bytes are readable by the caller's promise.
        unsafe { u16::from_le_bytes([load8(at), load8(at + 1)]) }
    }
}

/// # Safety
/// `at` must be the host address of four readable bytes.
#[inline(always)]
pub unsafe fn load32(at: u64) -> u32 {
    if at.is_multiple_of(4) {
        // SAFETY: readable by the caller's promise, aligned by the test.
        unsafe { AtomicU32::from_ptr(at as *mut u32).load(Ordering::Relaxed) }
    } else {
        // SAFETY: all four bytes are readable by the caller's promise.
        unsafe { load16(at) as u32 | (load16(at + 2) as u32) << 16 }
    }
}

/// # Safety
/// `at` must be the host address of a writable byte.
#[inline(always)]
pub unsafe fn store8(at: u64, value: u8) {
    // SAFETY: writable by the caller's promise.
    unsafe { AtomicU8::from_ptr(at as *mut u8).store(value, Ordering::Relaxed) }
}

/// # Safety
/// `at` must be the host address of two writable bytes.
#[inline(always)]
pub unsafe fn store16(at: u64, value: u16) {
    if at.is_multiple_of(2) {
        // SAFETY: writable by the caller's promise, aligned by the test.
        unsafe { AtomicU16::from_ptr(at as *mut u16).store(value, Ordering::Relaxed) }
    } else {
        // SAFETY: both bytes are writable by the caller's promise.
        unsafe {
            store8(at, value as u8);
            store8(at + 1, (value >> 8) as u8);
        }
    }
}

/// # Safety
/// `at` must be the host address of four writable bytes.
#[inline(always)]
pub unsafe fn store32(at: u64, value: u32) {
    if at.is_multiple_of(4) {
        // SAFETY: writable by the caller's promise, aligned by the test.
        unsafe { AtomicU32::from_ptr(at as *mut u32).store(value, Ordering::Relaxed) }
    } else {
        // SAFETY: all four bytes are writable by the caller's promise.
        unsafe {
            store16(at, value as u16);
            store16(at + 2, (value >> 16) as u16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(m: &Memory, start: u64, n: u64) {
        // SAFETY: these tests never access the memory itself.
        unsafe { m.insert(start, n, Origin::Host) };
    }

    #[test]
    fn ranges_are_checked_to_the_byte() {
        let m = Memory::new(false);
        insert(&m, 0x1000, 0x100);
        let mut lease = Lease::default();
        assert!(m.covers(&mut lease, 0x1000, 0x1100).is_some());
        assert!(m.covers(&mut lease, 0x10ff, 0x1100).is_some());
        assert!(m.covers(&mut lease, 0x10ff, 0x1101).is_none());
        assert!(m.covers(&mut lease, 0xfff, 0x1001).is_none());
        assert!(m.covers(&mut lease, u64::MAX - 3, 0).is_none(), "a range that wraps");
        assert!(m.release(0x1000));
        assert!(m.covers(&mut lease, 0x1000, 0x1004).is_none(), "a lease must not outlive the allocation");
    }

    /// Two GPUs of a process: one list, an address space each, and locked memory at its host address in both.
    #[test]
    fn gpus_share_allocations_but_not_apertures() {
        let here = [7u8; 64];
        let host = here.as_ptr() as u64;
        let first = Memory::new(false);
        let second = Memory::shared(false, first.live.clone());
        first.set_aperture(host - 0x1000, 1 << 38);
        second.set_aperture(0x10_0000, 1 << 38);
        insert(&first, 0x1000, 64);
        assert_eq!(first.read_bytes(0x1000, 2), Some(vec![7, 7]));
        assert!(second.find(0x1000, 0x1004).is_none(), "not mapped for the second: nothing lies there");
        second.set_aperture(host - 0x1000, 1 << 38);
        assert!(second.find(0x1000, 0x1004).is_some(), "peer access maps it");
        insert(&second, host, 64);
        assert_eq!(first.read_bytes(host, 1), Some(vec![7]), "an address beyond the aperture is the host's own");
        assert!(second.release(0x1000) && first.find(0x1000, 0x1004).is_none());
    }

    #[test]
    fn nearest_names_the_neighbour() {
        let m = Memory::new(false);
        assert_eq!(m.nearest(0x10), "nothing is allocated");
        insert(&m, 0x1000, 0x100);
        insert(&m, 0x2000, 0x100);
        assert_eq!(m.nearest(0x1104), "4 bytes past the end of allocation 1 (0x1000, 256 bytes)");
        assert_eq!(m.nearest(0x1ffc), "4 bytes before allocation 2 (0x2000, 256 bytes) (and 3836 past the end of 1)");
        assert_eq!(m.nearest(0x1010), "it starts 16 bytes into allocation 1 (0x1000, 256 bytes)");
    }
}
