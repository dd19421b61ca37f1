//! Registers picked by m0: relative moves on both families, and CDNA's indexed mode.
//!
//! A relative move names a register and adds m0 to its number. In indexed mode (`s_set_gpr_idx_on` to `_off`) every
//! vector instruction does so for the operands that m0's upper bits name; compilers put one move between the two. A sum
//! outside the register file stops the kernel: hardware then reads another register or drops the write.

use super::inst::{FIX_RESULT, Inst, row};
use super::value::ValueKind;
use super::wave::{Group, Wave};
use super::{CodeEntry, Flow, Handler};
use crate::error::Cause;
use crate::isa::code;

/// Which side of a move m0 is added to; `FIELDS`: its two halves to either side.
const SOURCE: u8 = 0;
const DESTINATION: u8 = 1;
const BOTH: u8 = 2;
const FIELDS: u8 = 3;

/// The mode register's bit for indexed mode.
pub const INDEXED: u32 = 1 << 27;
/// Of 128 scalar registers the last 20 have names of their own.
const N_SGPRS: u32 = 108;

pub fn find<const N: usize>(op: &str) -> Option<CodeEntry<N>> {
    let run: Handler<N> = match op {
        "v_movrels_b32" => vector::<N, SOURCE>,
        "v_movreld_b32" => vector::<N, DESTINATION>,
        "v_movrelsd_b32" => vector::<N, BOTH>,
        "v_movrelsd_2_b32" => vector::<N, FIELDS>,
        "v_swaprel_b32" => swap,
        "s_movrels_b32" => scalar::<N, SOURCE>,
        "s_movreld_b32" => scalar::<N, DESTINATION>,
        "s_movrelsd_2_b32" => scalar::<N, FIELDS>,
        "s_movrels_b64" => scalar64::<N, SOURCE>,
        "s_movreld_b64" => scalar64::<N, DESTINATION>,
        "s_set_gpr_idx_on" => index_on,
        "s_set_gpr_idx_off" => |w, _, _| {
            w.mode &= !INDEXED;
            Flow::Mode
        },
        "s_set_gpr_idx_idx" => |w, i, _| {
            let index = w.scalar(i.code[0], i.literal) & 0xff;
            set_m0(w, 0xff, index)
        },
        "s_set_gpr_idx_mode" => |w, i, _| set_m0(w, 0xf000, (i.imm as u32 & 15) << 12),
        _ => return None,
    };
    Some(CodeEntry::raw(run))
}

fn m0<const N: usize>(w: &Wave<N>) -> u32 {
    w.s[code::M0 as usize]
}

fn set_m0<const N: usize>(w: &mut Wave<N>, field: u32, value: u32) -> Flow {
    let rest = m0(w) & !field;
    w.set_scalar(code::M0, rest | value);
    Flow::Next
}

/// The second field of the instruction is not an operand but the four bits themselves.
fn index_on<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let index = w.scalar(i.code[0], i.literal) & 0xff;
    set_m0(w, 0xf0ff, index | (i.code[1] as u32 & 15) << 12);
    w.mode |= INDEXED;
    Flow::Mode
}

fn offsets<const HOW: u8>(m0: u32) -> (u32, u32) {
    match HOW {
        SOURCE => (m0, 0),
        DESTINATION => (0, m0),
        BOTH => (m0, m0),
        _ => (m0 & 0x3ff, m0 >> 16 & 0x3ff),
    }
}

/// A register's number with an offset, below `end`.
fn moved(register: u16, by: u32, end: u32) -> Option<u16> {
    (register as u32).checked_add(by).filter(|n| *n < end).map(|n| n as u16)
}

fn outside<const N: usize>(w: &mut Wave<N>, i: &Inst<N>) -> Flow {
    let m0 = m0(w);
    w.stop(Cause::Unsupported(format!("{} outside the register file (m0 {m0:#x})", i.op)))
}

fn put<const N: usize>(w: &mut Wave<N>, dst: u16, value: &[u32; N]) {
    let live = w.live;
    for (l, to) in w.v[dst as usize].iter_mut().enumerate() {
        *to = (value[l] & live[l]) | (*to & !live[l]);
    }
}

fn vector<const N: usize, const HOW: u8>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (from, to) = offsets::<HOW>(m0(w));
    let value = match row(i.code[0]) {
        Some(r) => moved(r, from, 256).map(|r| w.v[r as usize]),
        None => (HOW == DESTINATION).then(|| [w.scalar(i.code[0], i.literal); N]),
    };
    match (value, moved(i.dst, to, 256)) {
        (Some(value), Some(dst)) => {
            put(w, dst, &value);
            Flow::Next
        }
        _ => outside(w, i),
    }
}

fn swap<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (from, to) = offsets::<FIELDS>(m0(w));
    let (Some(a), Some(b)) = (moved(i.src[0], from, 256), moved(i.dst, to, 256)) else { return outside(w, i) };
    let (first, second) = (w.v[a as usize], w.v[b as usize]);
    put(w, b, &first);
    put(w, a, &second);
    Flow::Next
}

fn scalar<const N: usize, const HOW: u8>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (from, to) = offsets::<HOW>(m0(w));
    let value = match HOW {
        DESTINATION => Some(w.scalar(i.code[0], i.literal)),
        _ => moved(i.code[0], from, N_SGPRS).map(|at| w.scalar(at, 0)),
    };
    match (value, moved(i.sdst, to, if to == 0 { 128 } else { N_SGPRS })) {
        (Some(value), Some(dst)) => {
            w.set_scalar(dst, value);
            Flow::Next
        }
        _ => outside(w, i),
    }
}

fn scalar64<const N: usize, const HOW: u8>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let (from, to) = offsets::<HOW>(m0(w));
    let value = match HOW {
        DESTINATION => Some(w.scalar64(i.code[0], i.literal)),
        _ => moved(i.code[0], from, N_SGPRS - 1).map(|at| w.scalar64(at, 0)),
    };
    match (value, moved(i.sdst, to, if to == 0 { 128 } else { N_SGPRS - 1 })) {
        (Some(value), Some(dst)) => {
            w.set_scalar64(dst, value);
            Flow::Next
        }
        _ => outside(w, i),
    }
}

/// A vector instruction with its registers moved as m0 says; `None` where indexed mode has no meaning for it: lane reads
/// and writes, sub-dword selection and lane movement, and sums outside the register file.
pub fn indexed<const N: usize>(inst: &Inst<N>, m0: u32) -> Option<Inst<N>> {
    let by = m0 & 0xff;
    let d = &*inst.detail;
    if d.kinds[0] == ValueKind::None || d.dpp.is_some() || d.sdwa.is_some() {
        return None;
    }
    let mut out = inst.clone();
    for k in 0..3 {
        let at = inst.code[k];
        if m0 >> (12 + k) & 1 == 1 && d.kinds[k] != ValueKind::None && (code::VGPR..code::AGPR).contains(&at) {
            out.code[k] = code::VGPR + moved(at - code::VGPR, by, 256)?;
            if inst.fix >> k & 1 == 0 {
                out.src[k] = out.code[k] - code::VGPR;
            }
        }
    }
    if m0 >> 15 & 1 == 1 && d.dst_kind != ValueKind::None {
        out.detail.real_dst = moved(d.real_dst, by, 256)?;
        if inst.fix & FIX_RESULT == 0 {
            out.dst = out.detail.real_dst;
        }
    }
    Some(out)
}
