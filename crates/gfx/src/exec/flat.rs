//! Vector memory: global and flat instructions, and the check that buffers share.
//!
//! Addresses of all live lanes are formed first, so that a load may overwrite its own address registers. A range check
//! over the whole wave covers the common case; only when it fails is each lane looked at, to name the culprit.

use super::access::{Access, parse};
use super::inst::{Inst, row};
use super::scratch::Scratch;
use super::space::{Space, transfer};
use super::wave::{Group, PRIVATE_BASE, SHARED_BASE, Wave};
use super::{CodeEntry, Flow, bulk, lds};
use crate::error::Cause;
use crate::isa::{Decoded, Encoding, code};
use crate::memory::{Lease, Memory, load8, load16, load32, store8, store16, store32};
use crate::sanitize::Touch;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub fn find<const N: usize>(op: &str, d: &Decoded) -> Option<CodeEntry<N>> {
    if parse(op) == Access::None {
        return None;
    }
    let run: super::Handler<N> = match d.encoding {
        Encoding::Global => global,
        Encoding::Flat => flat,
        Encoding::Scratch => super::scratch::scratch,
        Encoding::Mubuf => super::buffer::buffer,
        _ => return None,
    };
    Some(CodeEntry::raw(run))
}

/// Global memory as a place to load from and store to; every access was or is checked against the allocations.
pub struct Global<'a> {
    memory: &'a Memory,
    lease: &'a mut Lease,
    is_checked: bool,
    reports_unwritten: bool,
    /// The whole wave lies in this slot of the lease.
    slot: Option<usize>,
}

impl Space for Global<'_> {
    #[inline(always)]
    fn check(&mut self, lane: u32, at: u64, n_bytes: u32, how: Touch) -> Result<(), Cause> {
        if self.slot.is_some() && !self.is_checked {
            return Ok(());
        }
        let Some(slot) = self.memory.covers(self.lease, at, at.wrapping_add(n_bytes as u64)) else {
            let (is_write, nearest) = (how != Touch::Read, self.memory.nearest(at));
            return Err(Cause::Global { lane, address: at, n_bytes, is_write, nearest });
        };
        if !self.is_checked {
            return Ok(());
        }
        if how == Touch::Write {
            self.memory.mark_written(self.lease, slot, at, n_bytes);
        } else if self.memory.is_unwritten(self.lease, slot, at, n_bytes) {
            // SAFETY: `covers` found the range in a live allocation.
            let is_zero = (0..n_bytes as u64).all(|k| unsafe { load8(self.memory.host(at) + k) } == 0);
            if is_zero && how == Touch::Read && self.reports_unwritten {
                let nearest = self.memory.nearest(at);
                return Err(Cause::Uninitialised { space: "global memory", lane, address: at, n_bytes, nearest });
            }
            if how == Touch::Atomic {
                self.memory.mark_written(self.lease, slot, at, n_bytes);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn load8(&self, at: u64) -> u8 {
        // SAFETY: `check` (or the wave-wide check that set `slot`) found these bytes in a live allocation.
        unsafe { load8(self.memory.host(at)) }
    }
    #[inline(always)]
    fn load16(&self, at: u64) -> u16 {
        // SAFETY: as for `load8`.
        unsafe { load16(self.memory.host(at)) }
    }
    #[inline(always)]
    fn load32(&self, at: u64) -> u32 {
        // SAFETY: as for `load8`.
        unsafe { load32(self.memory.host(at)) }
    }
    #[inline(always)]
    fn store8(&mut self, at: u64, value: u8) {
        // SAFETY: as for `load8`; allocations are writable.
        unsafe { store8(self.memory.host(at), value) }
    }
    #[inline(always)]
    fn store16(&mut self, at: u64, value: u16) {
        // SAFETY: as for `store8`.
        unsafe { store16(self.memory.host(at), value) }
    }
    #[inline(always)]
    fn store32(&mut self, at: u64, value: u32) {
        // SAFETY: as for `store8`.
        unsafe { store32(self.memory.host(at), value) }
    }

    /// Other workgroups run at the same time on other cores, so these are real atomics.
    fn atomic(&mut self, at: u64, n_words: u8, f: &dyn Fn(u64) -> u64) -> Result<u64, Cause> {
        let host = self.memory.host(at);
        if !host.is_multiple_of(4 * n_words as u64) {
            return Err(Cause::Unsupported(format!("atomic on the unaligned address {at:#x}")));
        }
        if n_words == 2 {
            // SAFETY: checked as for `store8`, aligned by the test above.
            let cell = unsafe { AtomicU64::from_ptr(host as *mut u64) };
            return Ok(cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |x| Some(f(x))).unwrap_or_else(|x| x));
        }
        // SAFETY: as above.
        let cell = unsafe { AtomicU32::from_ptr(host as *mut u32) };
        let old = cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |x| Some(f(x as u64) as u32));
        Ok(old.unwrap_or_else(|x| x) as u64)
    }
}

/// The lowest and highest address of the given lanes.
#[inline(always)]
fn bounds<const N: usize>(lanes: u64, at: &[u64; N]) -> (u64, u64) {
    let (mut lo, mut hi) = (u64::MAX, 0);
    for (l, a) in at.iter().enumerate() {
        if lanes >> l & 1 == 1 {
            lo = lo.min(*a);
            hi = hi.max(*a);
        }
    }
    (lo, hi)
}

/// Carries out `access`, which is the instruction's own or, for a buffer that ends inside it, its first words.
#[inline(always)]
pub fn run_global<const N: usize>(
    w: &mut Wave<N>,
    i: &Inst<N>,
    g: &mut Group<'_>,
    access: Access,
    lanes: u64,
    at: &[u64; N],
) -> Result<(), Cause> {
    let n = access.n_bytes() as u64;
    let (lo, hi) = bounds(lanes, at);
    let slot = g.memory.covers(&mut w.lease, lo, hi.wrapping_add(n));
    let moved = n * lanes.count_ones() as u64;
    if access.is_write() {
        w.counters.global_written_bytes += moved;
    } else {
        w.counters.global_read_bytes += moved;
    }
    let mut space = Global {
        memory: g.memory,
        lease: &mut w.lease,
        is_checked: g.is_checked,
        reports_unwritten: g.reports_unwritten,
        slot,
    };
    transfer(&mut w.v, i, (i.dst, data_row(i.code[1])), access, lanes, at, &mut space)
}

/// Carries out an access whose addresses are one base plus 32-bit offsets, if it can be done for the whole wave at once.
#[inline(always)]
pub fn run_bulk<const N: usize>(
    w: &mut Wave<N>,
    i: &Inst<N>,
    g: &mut Group<'_>,
    lanes: u64,
    base: u64,
    offset: &[u32; N],
) -> bool {
    let access = i.detail.access;
    let n = access.n_bytes() as u64;
    let (lo, hi) = bulk::range(offset, &w.live);
    let (start, end) = (base.wrapping_add(lo as u64), base.wrapping_add(hi as u64).wrapping_add(n));
    // All of it lies on one side of the aperture's end, or in no allocation.
    let host = g.memory.host(start).wrapping_sub(lo as u64);
    if g.is_checked || !bulk::takes(access) || g.memory.covers(&mut w.lease, start, end).is_none() {
        return false;
    }
    let moved = n * lanes.count_ones() as u64;
    if access.is_write() {
        w.counters.global_written_bytes += moved;
    } else {
        w.counters.global_read_bytes += moved;
    }
    // SAFETY: `covers` found all of it, from the lowest address to the end of the highest, in one live allocation.
    unsafe { bulk::run(&mut w.v, (i.dst, data_row(i.code[1])), access, lanes, host, offset) };
    true
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn global<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>) -> Flow {
    let lanes = w.exec();
    if lanes == 0 {
        return Flow::Next;
    }
    // Copied: a load may overwrite its own addresses.
    let offset = w.v[i.src[0] as usize];
    let imm = i.imm as i64 as u64;
    let is_done = if i.saddr == code::NULL {
        match uniform(&w.v[i.src[0] as usize + 1], &w.live, lanes) {
            Some(upper) => run_bulk(w, i, g, lanes, ((upper as u64) << 32).wrapping_add(imm), &offset),
            None => false,
        }
    } else {
        let base = w.scalar64(i.saddr, 0).wrapping_add(imm);
        run_bulk(w, i, g, lanes, base, &offset)
    };
    if is_done { Flow::Next } else { global_by_lanes(w, i, g, lanes) }
}

#[cold]
#[inline(never)]
fn global_by_lanes<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>, lanes: u64) -> Flow {
    let v = i.src[0] as usize;
    let imm = i.imm as i64 as u64;
    let base = if i.saddr == code::NULL { imm } else { w.scalar64(i.saddr, 0).wrapping_add(imm) };
    let mut at = [0u64; N];
    for l in 0..N {
        let upper = if i.saddr == code::NULL { w.v[v + 1][l] } else { 0 };
        at[l] = base.wrapping_add(w.v[v][l] as u64 | (upper as u64) << 32);
    }
    finish(run_global(w, i, g, i.detail.access, lanes, &at), w)
}

/// The word that all live lanes hold, if they agree.
#[inline(always)]
fn uniform<const N: usize>(row: &[u32; N], live: &[u32; N], lanes: u64) -> Option<u32> {
    let first = row[lanes.trailing_zeros() as usize % N];
    let differs = row.iter().zip(live).fold(0, |d, (x, live)| d | (x ^ first) & live);
    (differs == 0).then_some(first)
}

/// Generic addresses: by aperture to LDS, scratch or global memory.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn flat<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>) -> Flow {
    let lanes = w.exec();
    let v = i.src[0] as usize;
    let (offset, hi) = (w.v[v], w.v[v + 1]);
    if lanes == 0 {
        return Flow::Next;
    }
    if let Some(upper) = uniform(&hi, &w.live, lanes)
        && upper != (SHARED_BASE >> 32) as u32
        && upper != (PRIVATE_BASE >> 32) as u32
        && run_bulk(w, i, g, lanes, ((upper as u64) << 32).wrapping_add(i.imm as i64 as u64), &offset)
    {
        return Flow::Next;
    }
    flat_by_lanes(w, i, g, lanes)
}

#[cold]
#[inline(never)]
fn flat_by_lanes<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>, lanes: u64) -> Flow {
    let v = i.src[0] as usize;
    let (offset, hi) = (w.v[v], w.v[v + 1]);
    let mut at = [0u64; N];
    let (mut shared, mut private) = (0u64, 0u64);
    for l in 0..N {
        at[l] = (offset[l] as u64 | (hi[l] as u64) << 32).wrapping_add(i.imm as i64 as u64);
        shared |= ((at[l] >> 32 == SHARED_BASE >> 32) as u64) << l;
        private |= ((at[l] >> 32 == PRIVATE_BASE >> 32) as u64) << l;
    }
    let local = at.map(|a| a & 0xffff_ffff);
    let mut result = Ok(());
    if lanes & !(shared | private) != 0 {
        result = run_global(w, i, g, i.detail.access, lanes & !(shared | private), &at);
    }
    if result.is_ok() && lanes & shared != 0 {
        result = lds::run(w, i, g, lanes & shared, &local);
    }
    if result.is_ok() && lanes & private != 0 {
        result = Scratch::run(w, i, g, lanes & private, &local);
    }
    finish(result, w)
}

pub fn finish<const N: usize>(result: Result<(), Cause>, w: &mut Wave<N>) -> Flow {
    match result {
        Ok(()) => Flow::Next,
        Err(cause) => w.stop(cause),
    }
}

/// The register row of a data operand.
pub fn data_row(at: u16) -> usize {
    row(at).unwrap_or(0) as usize
}
