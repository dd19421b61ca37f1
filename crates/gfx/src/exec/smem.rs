//! Scalar loads: up to sixteen registers from global memory.

use super::inst::Inst;
use super::wave::{Group, Wave};
use super::{CodeEntry, Flow};
use crate::isa::code;

pub fn find<const N: usize>(op: &str) -> Option<CodeEntry<N>> {
    let run: super::Handler<N> = match op {
        "s_load_b32" => load::<N, 1>,
        "s_load_b64" => load::<N, 2>,
        "s_load_b96" => load::<N, 3>,
        "s_load_b128" => load::<N, 4>,
        "s_load_b256" => load::<N, 8>,
        "s_load_b512" => load::<N, 16>,
        "s_load_u8" => part::<N, 1, false>,
        "s_load_i8" => part::<N, 1, true>,
        "s_load_u16" => part::<N, 2, false>,
        "s_load_i16" => part::<N, 2, true>,
        _ => return None,
    };
    Some(CodeEntry::raw(run))
}

fn load<const N: usize, const WORDS: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>) -> Flow {
    let address = address(w, i) & !3;
    let mut words = [0u32; WORDS];
    w.counters.global_read_bytes += 4 * WORDS as u64;
    if let Err(cause) = g.memory.read_words(&mut w.lease, address, &mut words, g.is_checked && g.reports_unwritten) {
        return w.stop(cause);
    }
    for (k, word) in words.iter().enumerate() {
        w.set_scalar(i.sdst + k as u16, *word);
    }
    Flow::Next
}

/// One or two bytes, extended to a register (RDNA4).
fn part<const N: usize, const BYTES: u32, const SIGNED: bool>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>) -> Flow {
    let address = address(w, i) & !(BYTES as u64 - 1);
    // The word it lies in: an allocation ends on one.
    let mut word = [0];
    w.counters.global_read_bytes += BYTES as u64;
    if let Err(cause) = g.memory.read_words(&mut w.lease, address & !3, &mut word, g.is_checked && g.reports_unwritten)
    {
        return w.stop(cause);
    }
    let top = word[0] >> (8 * (address & 3)) << (32 - 8 * BYTES);
    w.set_scalar(i.sdst, if SIGNED { ((top as i32) >> (32 - 8 * BYTES)) as u32 } else { top >> (32 - 8 * BYTES) });
    Flow::Next
}

fn address<const N: usize>(w: &Wave<N>, i: &Inst<N>) -> u64 {
    let offset = if i.code[1] == code::NULL { 0 } else { w.scalar(i.code[1], 0) as u64 };
    w.scalar64(i.code[0], 0).wrapping_add(i.imm as i64 as u64).wrapping_add(offset)
}
