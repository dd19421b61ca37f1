//! Whole-wave loads and stores: one range check for all lanes, then plain moves at 32-bit offsets from one base.
//!
//! Nearly every access of a compiled kernel is like this: the upper halves of its addresses agree and all of it lies in
//! one allocation. What is not (atomics, the sanitizer's shadows) takes the lane-by-lane way of `space`, which also names
//! the culprit of a fault. Words need not be aligned: x86 moves them in one piece all the same, unless they cross a page,
//! and AMD promises no more.

use super::access::{Access, Half};
use super::space::each;

/// The lowest and highest offset of the live lanes.
#[inline(always)]
pub fn range<const N: usize>(offset: &[u32; N], live: &[u32; N]) -> (u32, u32) {
    let (mut lo, mut hi) = (u32::MAX, 0);
    for l in 0..N {
        lo = lo.min(offset[l] | !live[l]);
        hi = hi.max(offset[l] & live[l]);
    }
    (lo, hi)
}

/// Whether the access can be carried out here.
#[inline(always)]
pub fn takes(access: Access) -> bool {
    use Access::{LoadPart, LoadWords, StorePart, StoreWords};
    matches!(access, LoadWords(_) | StoreWords(_) | LoadPart { .. } | StorePart { .. })
}

/// Carries out an access that `takes` accepted, between memory and the rows from the first (loads) or second (stores) on.
///
/// # Safety
/// For every lane of `lanes`, the access's bytes at host address `base + offset` must be readable and writable memory.
#[inline(always)]
pub unsafe fn run<const N: usize>(
    v: &mut [[u32; N]],
    rows: (u16, usize),
    access: Access,
    lanes: u64,
    base: u64,
    offset: &[u32; N],
) {
    let is_full = lanes == u64::MAX >> (64 - N);
    // SAFETY: the caller's promise.
    unsafe {
        if is_full {
            moves::<N, true>(v, rows, access, lanes, base, offset)
        } else {
            moves::<N, false>(v, rows, access, lanes, base, offset)
        }
    }
}

/// Some words of memory at once, at any address.
#[derive(Copy, Clone)]
#[repr(C, packed)]
struct Words<const K: usize>([u32; K]);

/// Half a word, at any address.
#[derive(Copy, Clone)]
#[repr(C, packed)]
struct HalfWord(u16);

/// # Safety
/// `at` must be the host address of `K` readable words.
#[inline(always)]
unsafe fn words<const K: usize>(at: u64) -> [u32; K] {
    // Volatile: other workgroups may write here at the same time, and whatever is found counts.
    // SAFETY: the caller's promise.
    unsafe { std::ptr::read_volatile(at as *const Words<K>).0 }
}

/// # Safety
/// As `run`.
#[inline(always)]
unsafe fn moves<const N: usize, const FULL: bool>(
    v: &mut [[u32; N]],
    (dst, data): (u16, usize),
    access: Access,
    lanes: u64,
    base: u64,
    offset: &[u32; N],
) {
    let dst = dst as usize;
    // SAFETY: the caller's promise.
    unsafe {
        match access {
            Access::LoadWords(1) => load::<N, FULL, 1>(&mut v[dst..], lanes, base, offset),
            Access::LoadWords(2) => load::<N, FULL, 2>(&mut v[dst..], lanes, base, offset),
            Access::LoadWords(3) => load::<N, FULL, 3>(&mut v[dst..], lanes, base, offset),
            Access::LoadWords(_) => load::<N, FULL, 4>(&mut v[dst..], lanes, base, offset),
            Access::StoreWords(1) => store::<N, FULL, 1>(&v[data..], lanes, base, offset),
            Access::StoreWords(2) => store::<N, FULL, 2>(&v[data..], lanes, base, offset),
            Access::StoreWords(3) => store::<N, FULL, 3>(&v[data..], lanes, base, offset),
            Access::StoreWords(_) => store::<N, FULL, 4>(&v[data..], lanes, base, offset),
            Access::LoadPart { n_bytes: 1, is_signed, half } => {
                load_part::<N, FULL, 1>(&mut v[dst], lanes, is_signed, half, base, offset)
            }
            Access::LoadPart { is_signed, half, .. } => {
                load_part::<N, FULL, 2>(&mut v[dst], lanes, is_signed, half, base, offset)
            }
            Access::StorePart { n_bytes, half } => store_part(&v[data], lanes, n_bytes, half, base, offset),
            _ => {}
        }
    }
}

/// # Safety
/// As `run`.
#[inline(always)]
unsafe fn load<const N: usize, const FULL: bool, const K: usize>(
    rows: &mut [[u32; N]],
    lanes: u64,
    base: u64,
    offset: &[u32; N],
) {
    let Some(rows) = rows.first_chunk_mut::<K>() else { return };
    if !FULL {
        for l in each(lanes) {
            // SAFETY: readable by the caller's promise.
            let got = unsafe { words::<K>(base.wrapping_add(offset[l] as u64)) };
            for k in 0..K {
                rows[k][l] = got[k];
            }
        }
        return;
    }
    let is_run = K == 1 && (0..N).fold(0, |d, l| d | (offset[l] ^ offset[0].wrapping_add(4 * l as u32))) == 0;
    if is_run {
        for n in 0..N / 8 {
            // SAFETY: as above: the lanes' words follow each other.
            let got = unsafe { words::<8>(base.wrapping_add(offset[8 * n] as u64)) };
            rows[0][8 * n..8 * n + 8].copy_from_slice(&got);
        }
        return;
    }
    for n in 0..N / 4 {
        // Four lanes at a time, so that the compiler can turn them around in registers.
        let mut got = [[0; K]; 4];
        for (l, got) in got.iter_mut().enumerate() {
            // SAFETY: as above.
            *got = unsafe { words::<K>(base.wrapping_add(offset[4 * n + l] as u64)) };
        }
        for k in 0..K {
            let four = [got[0][k], got[1][k], got[2][k], got[3][k]];
            rows[k][4 * n..4 * n + 4].copy_from_slice(&four);
        }
    }
}

/// # Safety
/// As `run`.
#[inline(always)]
unsafe fn store<const N: usize, const FULL: bool, const K: usize>(
    rows: &[[u32; N]],
    lanes: u64,
    base: u64,
    offset: &[u32; N],
) {
    let Some(rows) = rows.first_chunk::<K>() else { return };
    let put = |l: usize| {
        let value = Words(std::array::from_fn::<u32, K, _>(|k| rows[k][l]));
        // SAFETY: writable by the caller's promise. Volatile as in `words`.
        unsafe { std::ptr::write_volatile(base.wrapping_add(offset[l] as u64) as *mut Words<K>, value) };
    };
    if FULL {
        for l in 0..N {
            put(l);
        }
    } else {
        each(lanes).for_each(put);
    }
}

/// # Safety
/// As `run`.
#[inline(always)]
unsafe fn load_part<const N: usize, const FULL: bool, const BYTES: usize>(
    row: &mut [u32; N],
    lanes: u64,
    is_signed: bool,
    half: Half,
    base: u64,
    offset: &[u32; N],
) {
    let get = |l: usize| {
        let at = base.wrapping_add(offset[l] as u64);
        // SAFETY: readable by the caller's promise. Volatile as in `words`.
        let raw = unsafe {
            match BYTES {
                1 => std::ptr::read_volatile(at as *const u8) as u32,
                _ => std::ptr::read_volatile(at as *const HalfWord).0 as u32,
            }
        };
        let shift = if is_signed { 32 - 8 * BYTES as u32 } else { 0 };
        ((raw << shift) as i32 >> shift) as u32
    };
    let put = |to: &mut u32, value: u32| *to = *to & half.kept() | half.place(value);
    if FULL {
        for l in 0..N {
            put(&mut row[l], get(l));
        }
    } else {
        for l in each(lanes) {
            put(&mut row[l], get(l));
        }
    }
}

/// # Safety
/// As `run`.
#[inline(always)]
unsafe fn store_part<const N: usize>(
    row: &[u32; N],
    lanes: u64,
    n_bytes: u8,
    half: Half,
    base: u64,
    offset: &[u32; N],
) {
    let shift = if half == Half::High { 16 } else { 0 };
    for l in each(lanes) {
        let (at, value) = (base.wrapping_add(offset[l] as u64), row[l] >> shift);
        // SAFETY: writable by the caller's promise. Volatile as in `words`.
        unsafe {
            match n_bytes {
                1 => std::ptr::write_volatile(at as *mut u8, value as u8),
                _ => std::ptr::write_volatile(at as *mut HalfWord, HalfWord(value as u16)),
            }
        }
    }
}
