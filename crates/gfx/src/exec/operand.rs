//! Operands that are no plain register: copied into spare rows before a handler, results finished after it.
//!
//! Here live scalars and constants broadcast to all lanes, absolute value and negation, half selection, lane movement
//! (DPP), byte selection (SDWA), output scaling and clamping.

use super::inst::{Detail, FIX_OLD, FIX_RESULT, FIX_SCALARS, Inst, constant, row};
use super::value::{ValueKind, f32_to_half, half_to_f32};
use super::wave::{ROW_SOURCE, Wave, spread};
use crate::isa::{Dpp, Sdwa};

/// Fills the spare rows that `inst` asks for.
///
/// # Safety
/// On x86-64 the CPU has AVX2 and FMA, which the emulator checks when it starts.
#[inline(never)]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
pub fn prepare<const N: usize>(w: &mut Wave<N>, inst: &Inst<N>) {
    if inst.fix & FIX_SCALARS != 0 {
        for k in 0..3 {
            if inst.fix >> (5 + k) & 1 == 1 {
                scalar(w, inst, k);
            }
        }
    }
    if inst.fix & (7 | FIX_OLD) == 0 {
        return;
    }
    for k in 0..3 {
        if inst.fix >> k & 1 == 1 {
            source(w, inst, k);
        }
    }
    if inst.fix & FIX_OLD != 0 {
        let from = inst.detail.real_dst as usize;
        for r in 0..inst.detail.dst_kind.n_rows() {
            let mut old = w.v[from + r];
            if inst.detail.high & 8 != 0 {
                old.iter_mut().for_each(|x| *x >>= 16);
            }
            w.v[inst.dst as usize + r] = old;
        }
    }
}

/// One register or constant for all lanes.
#[inline(always)]
fn scalar<const N: usize>(w: &mut Wave<N>, inst: &Inst<N>, k: usize) {
    let (at, is_wide) = (inst.code[k], inst.detail.kinds[k].is_64());
    let value = match at {
        0..128 if is_wide => w.scalar64(at, 0),
        0..128 => w.s[at as usize] as u64,
        _ => inst.constant[k],
    };
    let to = ROW_SOURCE as usize + 2 * k;
    w.v[to] = [value as u32; N];
    if is_wide {
        w.v[to + 1] = [(value >> 32) as u32; N];
    }
}

#[inline(always)]
fn source<const N: usize>(w: &mut Wave<N>, inst: &Inst<N>, k: usize) {
    let d = &*inst.detail;
    let kind = d.kinds[k];
    let at = inst.code[k];
    let mut lo;
    let mut hi = [0; N];
    if let Some(r) = row(at) {
        lo = w.v[r as usize];
        if kind.is_64() {
            hi = w.v[r as usize + 1];
        }
    } else if let Some(v) = constant(at, inst.literal, kind) {
        lo = [v as u32; N];
        hi = [(v >> 32) as u32; N];
    } else if kind.is_64() {
        let v = w.scalar64(at, inst.literal);
        lo = [v as u32; N];
        hi = [(v >> 32) as u32; N];
    } else {
        lo = [w.scalar(at, inst.literal); N];
    }
    if d.high >> k & 1 == 1 {
        lo.iter_mut().for_each(|x| *x >>= 16);
    }
    if k < 2
        && let Some(sdwa) = &d.sdwa
    {
        select_bytes(&mut lo, sdwa, k);
    }
    if k == 0
        && let Some(dpp) = &d.dpp
    {
        let exec = w.exec();
        let (moved, _) = move_lanes(&lo, dpp, exec);
        lo = moved;
        if kind.is_64() {
            hi = move_lanes(&hi, dpp, exec).0;
        }
    }
    let is_packed = inst.encoding == crate::isa::Encoding::Vop3p;
    if !is_packed && (d.abs | d.neg) >> k & 1 == 1 {
        let (top, sign) = match kind {
            ValueKind::B64 | ValueKind::F64 => (&mut hi, 0x8000_0000u32),
            ValueKind::B16 | ValueKind::F16 => (&mut lo, 0x8000),
            _ => (&mut lo, 0x8000_0000),
        };
        let clear = if d.abs >> k & 1 == 1 { !sign } else { !0 };
        let flip = if d.neg >> k & 1 == 1 { sign } else { 0 };
        top.iter_mut().for_each(|x| *x = (*x & clear) ^ flip);
    }
    let to = ROW_SOURCE as usize + 2 * k;
    w.v[to] = lo;
    if kind.is_64() {
        w.v[to + 1] = hi;
    }
}

fn select_bytes<const N: usize>(lanes: &mut [u32; N], sdwa: &Sdwa, k: usize) {
    let (sel, sext) = (sdwa.src_sel[k], sdwa.src_sext[k]);
    for x in lanes {
        *x = match sel {
            0..=3 => {
                let b = *x >> (8 * sel) & 0xff;
                if sext { b as u8 as i8 as i32 as u32 } else { b }
            }
            4 | 5 => {
                let h = *x >> (16 * (sel - 4)) & 0xffff;
                if sext { h as u16 as i16 as i32 as u32 } else { h }
            }
            _ => *x,
        };
    }
}

/// Lane movement: the moved row, and which lanes may write their result.
pub fn move_lanes<const N: usize>(from: &[u32; N], dpp: &Dpp, exec: u64) -> ([u32; N], u64) {
    let mut out = *from;
    let mut writes = 0u64;
    for lane in 0..N {
        let (source, is_enabled, zero_when_invalid, fetch_inactive) = match *dpp {
            Dpp::Eight { select, fetch_inactive } => {
                let s = (lane & !7) + (select >> (3 * (lane & 7)) & 7) as usize;
                (Some(s), true, true, fetch_inactive)
            }
            Dpp::Row { ctrl, row_mask, bank_mask, bound_ctrl, fetch_inactive } => {
                let on = row_mask >> (lane / 16 & 3) & 1 == 1 && bank_mask >> (lane / 4 & 3) & 1 == 1;
                (row_source(lane, ctrl, N), on, bound_ctrl, fetch_inactive)
            }
        };
        if !is_enabled {
            continue;
        }
        match source.filter(|s| fetch_inactive || exec >> s & 1 == 1) {
            Some(s) => {
                out[lane] = from[s];
                writes |= 1 << lane;
            }
            None if zero_when_invalid => {
                out[lane] = 0;
                writes |= 1 << lane;
            }
            None => {}
        }
    }
    (out, writes)
}

/// Where a lane reads from under a DPP16 control code; `None` is out of bounds.
fn row_source(lane: usize, ctrl: u16, n: usize) -> Option<usize> {
    let (base, pos, amount) = (lane & !15, lane & 15, (ctrl & 15) as usize);
    match ctrl {
        0..=0xff => Some(lane & !3 | (ctrl as usize >> (2 * (lane & 3)) & 3)),
        0x101..=0x10f => (pos + amount < 16).then_some(base + pos + amount),
        0x111..=0x11f => (pos >= amount).then(|| base + pos - amount),
        0x121..=0x12f => Some(base + ((pos + 16 - amount) & 15)),
        0x130 => (lane + 1 < n).then_some(lane + 1),
        0x134 => Some((lane + 1) % n),
        0x138 => lane.checked_sub(1),
        0x13c => Some((lane + n - 1) % n),
        0x140 => Some(base + 15 - pos),
        0x141 => Some(base + (pos ^ 7)),
        // Broadcast the last lane of the row (or half) before; rows with none before are out of bounds.
        0x142 => base.checked_sub(1),
        0x143 => (lane >= 32).then_some(31),
        0x150..=0x15f => Some(base + amount),
        0x160..=0x16f => Some(base + (pos ^ amount)),
        _ => None,
    }
}

/// Scales, clamps and merges a result from its spare row into the destination.
///
/// # Safety
/// On x86-64 the CPU has AVX2 and FMA, which the emulator checks when it starts.
#[inline(never)]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
pub fn finish<const N: usize>(w: &mut Wave<N>, inst: &Inst<N>) {
    debug_assert!(inst.fix & FIX_RESULT != 0);
    let d = &*inst.detail;
    let from = inst.dst as usize;
    let to = d.real_dst as usize;
    let mut write = w.live;
    if let Some(dpp) = &d.dpp {
        let (_, lanes) = move_lanes(&[0; N], dpp, w.exec());
        let allowed: [u32; N] = spread(lanes);
        write.iter_mut().zip(allowed).for_each(|(x, a)| *x &= a);
    }
    for r in 0..d.dst_kind.n_rows() {
        let mut value = w.v[from + r];
        if r + 1 == d.dst_kind.n_rows() && !d.dst_kind.is_64() {
            value.iter_mut().for_each(|x| *x = scale(*x, d));
        }
        let old = w.v[to + r];
        for lane in 0..N {
            let merged = merge(value[lane], old[lane], d);
            w.v[to + r][lane] = (merged & write[lane]) | (old[lane] & !write[lane]);
        }
    }
    if d.dst_kind.is_64() && (d.omod != 0 || d.is_clamped) {
        for lane in 0..N {
            if write[lane] != 0 {
                let bits = w.v[from][lane] as u64 | (w.v[from + 1][lane] as u64) << 32;
                let mut x = f64::from_bits(bits) * [1.0, 2.0, 4.0, 0.5][d.omod as usize];
                if d.is_clamped {
                    x = if x > 0.0 { x.min(1.0) } else { 0.0 };
                }
                w.v[to][lane] = x.to_bits() as u32;
                w.v[to + 1][lane] = (x.to_bits() >> 32) as u32;
            }
        }
    }
}

/// Output modifier and clamp; a NaN clamps to zero.
fn scale(bits: u32, d: &Detail) -> u32 {
    let apply = |x: f32| {
        let x = x * [1.0, 2.0, 4.0, 0.5][d.omod as usize];
        match d.is_clamped {
            true if x > 0.0 => x.min(1.0),
            true => 0.0,
            false => x,
        }
    };
    match d.dst_kind {
        ValueKind::F32 if d.omod != 0 || d.is_clamped => apply(f32::from_bits(bits)).to_bits(),
        ValueKind::F16 if d.omod != 0 || d.is_clamped => f32_to_half(apply(half_to_f32(bits as u16))) as u32,
        _ => bits,
    }
}

fn merge(value: u32, old: u32, d: &Detail) -> u32 {
    if let Some(sdwa) = &d.sdwa {
        let (shift, mask) = match sdwa.dst_sel {
            s @ 0..=3 => (8 * s, 0xffu32),
            s @ 4..=5 => (16 * (s - 4), 0xffff),
            _ => (0, !0),
        };
        // The upper half of a 16-bit result is zero; the row may still hold what was there before.
        let value = if d.dst_kind.is_16() { value & 0xffff } else { value };
        let placed = (value & mask) << shift;
        return match sdwa.dst_unused {
            // Pad with zeros, with the sign above, or keep what was there.
            0 => placed,
            1 if value & (mask ^ mask >> 1) != 0 => placed | !(mask << shift | ((1u32 << shift) - 1)),
            1 => placed,
            _ => placed | (old & !(mask << shift)),
        };
    }
    if !d.dst_kind.is_16() {
        return value;
    }
    match (d.high & 8 != 0, d.zero_high) {
        (true, _) => old & 0xffff | value << 16,
        (false, true) => value & 0xffff,
        (false, false) => old & 0xffff_0000 | value & 0xffff,
    }
}
