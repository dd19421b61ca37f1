//! Private memory: a few bytes per lane, for spills and indexed locals.

use super::Flow;
use super::flat::{data_row, finish};
use super::inst::Inst;
use super::space::{Space, transfer};
use super::wave::{Group, Wave};
use crate::error::Cause;
use crate::isa::code;
use crate::sanitize::Touch;

/// One wave's scratch; addresses are offsets within the lane that `check` saw last.
pub struct Scratch<'a> {
    bytes: &'a mut [u8],
    written: &'a mut [bool],
    per_lane: u32,
    lane_base: usize,
}

impl Scratch<'_> {
    /// Runs the access on scratch offsets; also the private part of flat instructions.
    pub fn run<const N: usize>(
        w: &mut Wave<N>,
        i: &Inst<N>,
        _: &mut Group<'_>,
        lanes: u64,
        at: &[u64; N],
    ) -> Result<(), Cause> {
        w.counters.scratch_bytes += i.detail.access.n_bytes() as u64 * lanes.count_ones() as u64;
        let per_lane = w.scratch_bytes;
        let mut space = Scratch { bytes: &mut w.scratch, written: &mut w.scratch_written, per_lane, lane_base: 0 };
        transfer(&mut w.v, i, (i.dst, data_row(i.code[1])), i.detail.access, lanes, at, &mut space)
    }

    fn place(&self, at: u64) -> usize {
        self.lane_base + at as usize
    }
}

impl Space for Scratch<'_> {
    fn check(&mut self, lane: u32, at: u64, n_bytes: u32, how: Touch) -> Result<(), Cause> {
        if at.checked_add(n_bytes as u64).is_none_or(|end| end > self.per_lane as u64) {
            let (is_write, scratch_bytes) = (how != Touch::Read, self.per_lane);
            return Err(Cause::Scratch { lane, address: at as i64, n_bytes, is_write, scratch_bytes });
        }
        self.lane_base = lane as usize * self.per_lane as usize;
        if !self.written.is_empty() {
            let from = self.place(at);
            let cells = &mut self.written[from..from + n_bytes as usize];
            if how == Touch::Read && cells.iter().all(|c| !*c) {
                let nearest = format!("a lane has {} bytes", self.per_lane);
                return Err(Cause::Uninitialised { space: "scratch", lane, address: at, n_bytes, nearest });
            }
            if how != Touch::Read {
                cells.fill(true);
            }
        }
        Ok(())
    }

    fn load8(&self, at: u64) -> u8 {
        self.bytes[self.place(at)]
    }
    fn load16(&self, at: u64) -> u16 {
        let p = self.place(at);
        u16::from_le_bytes([self.bytes[p], self.bytes[p + 1]])
    }
    fn load32(&self, at: u64) -> u32 {
        let p = self.place(at);
        u32::from_le_bytes([self.bytes[p], self.bytes[p + 1], self.bytes[p + 2], self.bytes[p + 3]])
    }
    fn store8(&mut self, at: u64, value: u8) {
        let p = self.place(at);
        self.bytes[p] = value;
    }
    fn store16(&mut self, at: u64, value: u16) {
        let p = self.place(at);
        self.bytes[p..p + 2].copy_from_slice(&value.to_le_bytes());
    }
    fn store32(&mut self, at: u64, value: u32) {
        let p = self.place(at);
        self.bytes[p..p + 4].copy_from_slice(&value.to_le_bytes());
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

/// `scratch_*`: an immediate, plus a vector offset, plus a scalar offset, each optional.
pub fn scratch<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>) -> Flow {
    let lanes = w.exec();
    let base = if i.saddr == code::NULL { 0 } else { w.scalar(i.saddr, 0) as i32 as i64 } + i.imm as i64;
    let mut at = [0u64; N];
    for (l, to) in at.iter_mut().enumerate() {
        let offset = if i.detail.uses_vaddr { w.v[i.src[0] as usize][l] as i32 as i64 } else { 0 };
        *to = (base + offset) as u64;
    }
    finish(Scratch::run(w, i, g, lanes, &at), w)
}
