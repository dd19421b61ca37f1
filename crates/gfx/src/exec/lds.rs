//! Workgroup memory (LDS) and the lane permutes that share its instruction format.

use super::access::{Access, parse};
use super::flat::{data_row, finish};
use super::inst::Inst;
use super::space::{Space, transfer};
use super::wave::{Group, Wave};
use super::{CodeEntry, Flow, bulk};
use crate::error::Cause;
use crate::isa::Family;
use crate::sanitize::{Finding, LdsShadow, Touch};

pub fn find<const N: usize>(op: &str) -> Option<CodeEntry<N>> {
    if !op.starts_with("ds_") {
        return None;
    }
    let run: super::Handler<N> = match op {
        "ds_bpermute_b32" => permute::<N, true, false>,
        "ds_bpermute_fi_b32" => permute::<N, true, true>,
        "ds_permute_b32" => permute::<N, false, false>,
        "ds_swizzle_b32" => swizzle,
        _ => match parse(op) {
            Access::None => return None,
            Access::LoadTwo { .. } | Access::StoreTwo { .. } => two,
            _ => one,
        },
    };
    Some(CodeEntry::raw(run))
}

/// A workgroup's memory, as seen by one wave. An access that ends outside it reads zero and writes nothing, as the
/// hardware does; under the sanitizer it is a fault.
pub struct Lds<'a> {
    bytes: &'a mut [u8],
    shadow: Option<&'a mut LdsShadow>,
    wave: u32,
}

impl Lds<'_> {
    #[inline(always)]
    fn load<const K: usize>(&self, at: u64) -> [u8; K] {
        self.bytes.get(at as usize..at as usize + K).and_then(|b| b.try_into().ok()).unwrap_or([0; K])
    }

    #[inline(always)]
    fn store<const K: usize>(&mut self, at: u64, value: [u8; K]) {
        if let Some(to) = self.bytes.get_mut(at as usize..at as usize + K) {
            to.copy_from_slice(&value);
        }
    }
}

impl Space for Lds<'_> {
    #[inline(always)]
    fn check(&mut self, lane: u32, at: u64, n_bytes: u32, how: Touch) -> Result<(), Cause> {
        let Some(shadow) = &mut self.shadow else { return Ok(()) };
        let is_write = how != Touch::Read;
        let address = at as u32;
        if at + n_bytes as u64 > self.bytes.len() as u64 {
            let lds_bytes = self.bytes.len() as u32;
            return Err(Cause::Lds { lane, address, n_bytes, is_write, lds_bytes });
        }
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
        self.load::<1>(at)[0]
    }
    #[inline(always)]
    fn load16(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.load(at))
    }
    #[inline(always)]
    fn load32(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.load(at))
    }
    #[inline(always)]
    fn store8(&mut self, at: u64, value: u8) {
        self.store(at, [value]);
    }
    #[inline(always)]
    fn store16(&mut self, at: u64, value: u16) {
        self.store(at, value.to_le_bytes());
    }
    #[inline(always)]
    fn store32(&mut self, at: u64, value: u32) {
        self.store(at, value.to_le_bytes());
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
    transfer(&mut w.v, i, (i.dst, data_row(i.code[1])), i.detail.access, lanes, at, &mut space(id, g))
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn one<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>) -> Flow {
    let lanes = w.exec();
    // Addresses are 32-bit and wrap.
    let offset = plus(&w.v[i.src[0] as usize], i.imm as u32);
    if run_bulk(w, g, i.detail.access, (i.dst, i.code[1]), lanes, &offset) {
        return Flow::Next;
    }
    one_by_lanes(w, i, g, lanes, &offset)
}

#[cold]
#[inline(never)]
fn one_by_lanes<const N: usize>(
    w: &mut Wave<N>,
    i: &Inst<N>,
    g: &mut Group<'_>,
    lanes: u64,
    offset: &[u32; N],
) -> Flow {
    finish(run(w, i, g, lanes, &widen(offset)), w)
}

/// A row plus a number. (`map` on arrays is a call for each lane, without the vector instructions handlers may use.)
#[inline(always)]
fn plus<const N: usize>(row: &[u32; N], more: u32) -> [u32; N] {
    let mut out = *row;
    for x in &mut out {
        *x = x.wrapping_add(more);
    }
    out
}

#[inline(always)]
fn widen<const N: usize>(row: &[u32; N]) -> [u64; N] {
    let mut out = [0; N];
    for l in 0..N {
        out[l] = row[l] as u64;
    }
    out
}

/// Carries out an access within the workgroup's memory for all lanes at once, unless it needs a closer look.
#[inline(always)]
fn run_bulk<const N: usize>(
    w: &mut Wave<N>,
    g: &mut Group<'_>,
    access: Access,
    (dst, data): (u16, u16),
    lanes: u64,
    offset: &[u32; N],
) -> bool {
    if lanes == 0 {
        return true;
    }
    let (_, hi) = bulk::range(offset, &w.live);
    let host = g.lds.as_mut_ptr() as u64;
    let is_inside = hi as u64 + access.n_bytes() as u64 <= g.lds.len() as u64;
    if g.lds_shadow.is_some() || !is_inside || !bulk::takes(access) {
        return false;
    }
    w.counters.lds_bytes += access.n_bytes() as u64 * lanes.count_ones() as u64;
    // SAFETY: all of it lies in `g.lds`, which this thread alone uses.
    unsafe { bulk::run(&mut w.v, (dst, data_row(data)), access, lanes, host, offset) };
    true
}

/// Two places per lane: the immediate holds two scaled 8-bit offsets.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn two<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>) -> Flow {
    let lanes = w.exec();
    let base = w.v[i.src[0] as usize];
    for (place, offset) in [i.imm as u32 & 0xff, i.imm as u32 >> 8 & 0xff].into_iter().enumerate() {
        let (access, scale) = match i.detail.access {
            Access::LoadTwo { n_words, scale } => (Access::LoadWords(n_words), scale),
            Access::StoreTwo { n_words, scale } => (Access::StoreWords(n_words), scale),
            other => (other, 0),
        };
        let at = plus(&base, offset * scale);
        let dst = i.dst + place as u16 * (access.n_bytes() / 4) as u16;
        let data = i.code[1 + place];
        if run_bulk(w, g, access, (dst, data), lanes, &at) {
            continue;
        }
        w.counters.lds_bytes += access.n_bytes() as u64 * lanes.count_ones() as u64;
        let mut lds = space(w.id, g);
        let at = widen(&at);
        if let Err(cause) = transfer(&mut w.v, i, (dst, data_row(data)), access, lanes, &at, &mut lds) {
            return w.stop(cause);
        }
    }
    Flow::Next
}

/// Lane permutes: pull (`ds_bpermute`) or push (`ds_permute`). RDNA3 moves within groups of 32 lanes, the others in the whole wave.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
fn permute<const N: usize, const PULL: bool, const ANY: bool>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let exec = w.exec();
    let (address, mut data) = (w.v[i.src[0] as usize], w.v[i.src[1] as usize]);
    let group = if i.detail.family == Family::Rdna3 { 32 } else { N };
    let mut out = [0u32; N];
    if PULL && !ANY && !w.is_full {
        // Nothing comes from a lane that is off, unless that is what was asked for.
        for l in 0..N {
            data[l] &= w.live[l];
        }
    }
    for l in 0..N {
        let other = l & !(group - 1) | (address[l].wrapping_add(i.imm as u32) / 4) as usize & (group - 1);
        if PULL {
            out[l] = data[other % N];
        } else if exec >> l & 1 == 1 {
            out[other] = data[l];
        }
    }
    w.put(i.dst, &out);
    Flow::Next
}

/// A fixed swizzle: any permutation of four lanes, or and/or/xor masks on a group of 32.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
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
    w.put(i.dst, &out);
    Flow::Next
}
