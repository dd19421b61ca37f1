//! Workgroup memory (LDS) and the lane permutes that share its instruction format.

use super::access::{Access, parse};
use super::flat::{data_row, finish};
use super::inst::Inst;
use super::space::{Space, each, transfer};
use super::wave::{Group, Wave};
use super::{Entry, Flow};
use crate::error::Cause;
use crate::isa::Family;
use crate::sanitize::{Finding, LdsShadow, Touch};

pub fn find<const N: usize>(op: &str) -> Option<Entry<N>> {
    if !op.starts_with("ds_") {
        return None;
    }
    let run: super::Handler<N> = match op {
        "ds_bpermute_b32" => permute::<N, true>,
        "ds_permute_b32" => permute::<N, false>,
        "ds_swizzle_b32" => swizzle,
        _ => match parse(op) {
            Access::None => return None,
            Access::LoadTwo { .. } | Access::StoreTwo { .. } => two,
            _ => one,
        },
    };
    Some(Entry::raw(run))
}

/// A workgroup's memory, as seen by one wave.
pub struct Lds<'a> {
    bytes: &'a mut [u8],
    shadow: Option<&'a mut LdsShadow>,
    wave: u32,
}

impl Space for Lds<'_> {
    #[inline(always)]
    fn check(&mut self, lane: u32, at: u64, n_bytes: u32, how: Touch) -> Result<(), Cause> {
        let is_write = how != Touch::Read;
        let address = at as u32;
        if at + n_bytes as u64 > self.bytes.len() as u64 {
            let lds_bytes = self.bytes.len() as u32;
            return Err(Cause::Lds { lane, address, n_bytes, is_write, lds_bytes });
        }
        let Some(shadow) = &mut self.shadow else { return Ok(()) };
        match shadow.touch(self.wave, at as usize, n_bytes as usize, how) {
            Ok(()) => Ok(()),
            Err(Finding::Race { other }) => Err(Cause::LdsRace { lane, address, other, is_write }),
            Err(Finding::Uninitialised) => {
                let nearest = format!("the workgroup has {} bytes", self.bytes.len());
                Err(Cause::Uninitialised { space: "LDS", lane, address: at, n_bytes, nearest })
            }
        }
    }

    #[inline(always)]
    fn load8(&self, at: u64) -> u8 {
        self.bytes[at as usize]
    }
    #[inline(always)]
    fn load16(&self, at: u64) -> u16 {
        let p = at as usize;
        u16::from_le_bytes([self.bytes[p], self.bytes[p + 1]])
    }
    #[inline(always)]
    fn load32(&self, at: u64) -> u32 {
        let p = at as usize;
        self.bytes[p..p + 4].try_into().map_or(0, u32::from_le_bytes)
    }
    #[inline(always)]
    fn store8(&mut self, at: u64, value: u8) {
        self.bytes[at as usize] = value;
    }
    #[inline(always)]
    fn store16(&mut self, at: u64, value: u16) {
        self.bytes[at as usize..at as usize + 2].copy_from_slice(&value.to_le_bytes());
    }
    #[inline(always)]
    fn store32(&mut self, at: u64, value: u32) {
        self.bytes[at as usize..at as usize + 4].copy_from_slice(&value.to_le_bytes());
    }
    fn atomic(&mut self, at: u64, n_words: u8, f: &dyn Fn(u64) -> u64) -> Result<u64, Cause> {
        let old = self.load32(at) as u64 | if n_words == 2 { (self.load32(at + 4) as u64) << 32 } else { 0 };
        let new = f(old);
        self.store32(at, new as u32);
        if n_words == 2 {
            self.store32(at + 4, (new >> 32) as u32);
        }
        Ok(old)
    }
}

fn space<'a>(wave: u32, g: &'a mut Group<'_>) -> Lds<'a> {
    Lds { bytes: &mut g.lds, shadow: g.lds_shadow.as_mut(), wave }
}

/// Runs the access on LDS offsets; also the shared part of flat instructions.
pub fn run<const N: usize>(
    w: &mut Wave<N>,
    i: &Inst<N>,
    g: &mut Group<'_>,
    lanes: u64,
    at: &[u64; N],
) -> Result<(), Cause> {
    w.counters.lds_bytes += i.detail.access.n_bytes() as u64 * lanes.count_ones() as u64;
    let id = w.id;
    transfer(&mut w.v, i, i.detail.access, lanes, at, &mut space(id, g))
}

fn one<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>) -> Flow {
    let lanes = w.exec();
    let base = &w.v[i.src[0] as usize];
    let mut at = [0u64; N];
    for l in 0..N {
        // Addresses are 32-bit and wrap.
        at[l] = base[l].wrapping_add(i.imm as u32) as u64;
    }
    finish(run(w, i, g, lanes, &at), w)
}

/// Two places per lane: the immediate holds two scaled 8-bit offsets.
fn two<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>) -> Flow {
    let lanes = w.exec();
    let result = two_places(w, i, g, lanes);
    finish(result, w)
}

fn two_places<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>, lanes: u64) -> Result<(), Cause> {
    let offsets = [i.imm as u32 & 0xff, i.imm as u32 >> 8 & 0xff];
    let base = w.v[i.src[0] as usize];
    w.counters.lds_bytes += 2 * i.detail.access.n_bytes() as u64 * lanes.count_ones() as u64;
    let mut lds = space(w.id, g);
    for (place, offset) in offsets.iter().enumerate() {
        match i.detail.access {
            Access::LoadTwo { n_words, scale } => {
                let dst = i.dst as usize + place * n_words as usize;
                for l in each(lanes) {
                    let at = base[l].wrapping_add(offset * scale) as u64;
                    lds.check(l as u32, at, 4 * n_words as u32, Touch::Read)?;
                    for k in 0..n_words as usize {
                        w.v[dst + k][l] = lds.load32(at + 4 * k as u64);
                    }
                }
            }
            Access::StoreTwo { n_words, scale } => {
                let data = data_row(i, 1 + place);
                for l in each(lanes) {
                    let at = base[l].wrapping_add(offset * scale) as u64;
                    lds.check(l as u32, at, 4 * n_words as u32, Touch::Write)?;
                    for k in 0..n_words as usize {
                        lds.store32(at + 4 * k as u64, w.v[data + k][l]);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Lane permutes: pull (`ds_bpermute`) or push (`ds_permute`). RDNA moves within groups of 32 lanes, CDNA of 64.
fn permute<const N: usize, const PULL: bool>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let exec = w.exec();
    let (address, data) = (w.v[i.src[0] as usize], w.v[i.src[1] as usize]);
    let group = if i.detail.family == Family::Rdna3 { 32 } else { N };
    let mut out = [0u32; N];
    for l in 0..N {
        let other = l & !(group - 1) | (address[l].wrapping_add(i.imm as u32) / 4) as usize & (group - 1);
        if PULL {
            out[l] = if exec >> other & 1 == 1 { data[other] } else { 0 };
        } else if exec >> l & 1 == 1 {
            out[other] = data[l];
        }
    }
    let live = w.live;
    for (l, to) in w.v[i.dst as usize].iter_mut().enumerate() {
        *to = (out[l] & live[l]) | (*to & !live[l]);
    }
    Flow::Next
}

/// A fixed swizzle: any permutation of four lanes, or and/or/xor masks on a group of 32.
fn swizzle<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let exec = w.exec();
    let data = w.v[i.src[0] as usize];
    let pattern = i.imm as u32;
    let mut out = [0u32; N];
    for (l, to) in out.iter_mut().enumerate() {
        let other = if pattern & 0x8000 != 0 {
            l & !3 | (pattern >> (2 * (l & 3)) & 3) as usize
        } else {
            let lane = l as u32 & 31;
            l & !31 | (((lane & pattern | pattern >> 5) ^ pattern >> 10) & 31) as usize
        };
        *to = if exec >> other & 1 == 1 { data[other] } else { 0 };
    }
    let live = w.live;
    for (l, to) in w.v[i.dst as usize].iter_mut().enumerate() {
        *to = (out[l] & live[l]) | (*to & !live[l]);
    }
    Flow::Next
}
