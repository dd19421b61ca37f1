//! Scalar loads: up to sixteen registers from global memory.

use super::inst::Inst;
use super::wave::{Group, Wave};
use super::{CodeEntry, Flow};
use crate::isa::code;

pub fn find<const N: usize>(op: &str) -> Option<CodeEntry<N>> {
    let run: super::Handler<N> = match op {
        "s_load_b32" => load::<N, 1>,
        "s_load_b64" => load::<N, 2>,
        "s_load_b128" => load::<N, 4>,
        "s_load_b256" => load::<N, 8>,
        "s_load_b512" => load::<N, 16>,
        _ => return None,
    };
    Some(CodeEntry::raw(run))
}

fn load<const N: usize, const WORDS: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>) -> Flow {
    let base = w.scalar64(i.code[0], 0);
    let offset = if i.code[1] == code::NULL { 0 } else { w.scalar(i.code[1], 0) as u64 };
    let address = base.wrapping_add(i.imm as i64 as u64).wrapping_add(offset) & !3;
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
