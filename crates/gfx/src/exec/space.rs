//! Moving data between vector registers and a memory space, one lane at a time.

use super::access::{Access, Half};
use super::flat::data_row;
use super::inst::Inst;
use crate::error::Cause;
use crate::sanitize::Touch;

/// A byte-addressed memory. `check` comes before every load and store of a lane.
pub trait Space {
    fn check(&mut self, lane: u32, at: u64, n_bytes: u32, how: Touch) -> Result<(), Cause>;
    fn load8(&self, at: u64) -> u8;
    fn load16(&self, at: u64) -> u16;
    fn load32(&self, at: u64) -> u32;
    fn store8(&mut self, at: u64, value: u8);
    fn store16(&mut self, at: u64, value: u16);
    fn store32(&mut self, at: u64, value: u32);
    /// Replaces one or two words by `f` of them; returns the old value.
    fn atomic(&mut self, at: u64, n_words: u8, f: &dyn Fn(u64) -> u64) -> Result<u64, Cause>;
}

/// Carries out an access of the instruction for the given lanes at the given addresses, between memory and the rows from
/// `dst` or `data` on.
#[inline(always)]
pub fn transfer<const N: usize, S: Space>(
    v: &mut [[u32; N]],
    i: &Inst<N>,
    (dst, data): (u16, usize),
    access: Access,
    lanes: u64,
    at: &[u64; N],
    space: &mut S,
) -> Result<(), Cause> {
    let dst = dst as usize;
    match access {
        Access::LoadWords(1) => load_words::<N, S, 1>(v, dst, lanes, at, space),
        Access::LoadWords(2) => load_words::<N, S, 2>(v, dst, lanes, at, space),
        Access::LoadWords(3) => load_words::<N, S, 3>(v, dst, lanes, at, space),
        Access::LoadWords(_) => load_words::<N, S, 4>(v, dst, lanes, at, space),
        Access::StoreWords(1) => store_words::<N, S, 1>(v, data, lanes, at, space),
        Access::StoreWords(2) => store_words::<N, S, 2>(v, data, lanes, at, space),
        Access::StoreWords(3) => store_words::<N, S, 3>(v, data, lanes, at, space),
        Access::StoreWords(_) => store_words::<N, S, 4>(v, data, lanes, at, space),
        Access::LoadPart { n_bytes, is_signed, half } => {
            for l in each(lanes) {
                space.check(l as u32, at[l], n_bytes as u32, Touch::Read)?;
                let raw = if n_bytes == 1 { space.load8(at[l]) as u32 } else { space.load16(at[l]) as u32 };
                let value = match (is_signed, n_bytes) {
                    (false, _) => raw,
                    (true, 1) => raw as u8 as i8 as i32 as u32,
                    (true, _) => raw as u16 as i16 as i32 as u32,
                };
                let to = &mut v[dst][l];
                *to = *to & half.kept() | half.place(value);
            }
            Ok(())
        }
        Access::StorePart { n_bytes, half } => {
            for l in each(lanes) {
                space.check(l as u32, at[l], n_bytes as u32, Touch::Write)?;
                let value = v[data][l] >> if half == Half::High { 16 } else { 0 };
                if n_bytes == 1 { space.store8(at[l], value as u8) } else { space.store16(at[l], value as u16) }
            }
            Ok(())
        }
        Access::Atomic { op, n_words } => {
            let wide = n_words == 2;
            let second =
                if i.encoding == crate::isa::Encoding::Ds { data_row(i.code[2]) } else { data + n_words as usize };
            let (value_row, compare_row) = if i.detail.swaps_compare { (second, data) } else { (data, second) };
            for l in each(lanes) {
                space.check(l as u32, at[l], 4 * n_words as u32, Touch::Atomic)?;
                let read = |r: usize| v[r][l] as u64 | if wide { (v[r + 1][l] as u64) << 32 } else { 0 };
                let (value, compare) = (read(value_row), read(compare_row));
                let old = space.atomic(at[l], n_words, &|x| op.apply(x, value, compare, n_words))?;
                if i.detail.returns_old {
                    v[dst][l] = old as u32;
                    if wide {
                        v[dst + 1][l] = (old >> 32) as u32;
                    }
                }
            }
            Ok(())
        }
        Access::LoadTwo { .. } | Access::StoreTwo { .. } | Access::None => {
            Err(Cause::Unsupported(format!("{} outside LDS", i.op)))
        }
    }
}

#[inline(always)]
pub fn load_words<const N: usize, S: Space, const K: usize>(
    v: &mut [[u32; N]],
    dst: usize,
    lanes: u64,
    at: &[u64; N],
    space: &mut S,
) -> Result<(), Cause> {
    let rows = &mut v[dst..dst + K];
    for l in each(lanes) {
        space.check(l as u32, at[l], 4 * K as u32, Touch::Read)?;
        for (k, row) in rows.iter_mut().enumerate() {
            row[l] = space.load32(at[l] + 4 * k as u64);
        }
    }
    Ok(())
}

#[inline(always)]
pub fn store_words<const N: usize, S: Space, const K: usize>(
    v: &[[u32; N]],
    data: usize,
    lanes: u64,
    at: &[u64; N],
    space: &mut S,
) -> Result<(), Cause> {
    let rows = &v[data..data + K];
    for l in each(lanes) {
        space.check(l as u32, at[l], 4 * K as u32, Touch::Write)?;
        for (k, row) in rows.iter().enumerate() {
            space.store32(at[l] + 4 * k as u64, row[l]);
        }
    }
    Ok(())
}

/// The set bits, lowest first.
#[inline(always)]
pub fn each(mut lanes: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if lanes == 0 {
            return None;
        }
        let l = lanes.trailing_zeros() as usize;
        lanes &= lanes - 1;
        Some(l)
    })
}
