//! Code decoded once: every instruction reachable from an address by falling through and by relative branches.

use std::collections::BTreeMap;

use crate::error::Cause;
use crate::exec::{Class, Flow, Group, Inst, Wave};
use crate::isa::{self, Decoded, Family};
use crate::memory::{Lease, Memory};

pub struct Program<const N: usize> {
    /// Address of the first instruction.
    pub base: u64,
    pub insts: Vec<Inst<N>>,
    /// Instructions of each class before the one of this index, and before the end.
    before: Vec<Tally>,
    /// Instruction index by word offset from `base`.
    index: Vec<u32>,
    words: Vec<u32>,
}

/// Instructions by class.
pub type Tally = [u32; Class::N];

const NO_INST: u32 = u32::MAX;
/// The longest instruction: two words and a literal, or RDNA4's memory instructions.
const MAX_WORDS: u64 = 3;
/// Larger code than any compiler emits for one kernel; a runaway walk ends here.
const MAX_INSTRUCTIONS: usize = 1 << 20;

impl<const N: usize> Program<N> {
    pub fn load(family: Family, base: u64, memory: &Memory) -> Result<Self, Cause> {
        let decoded = walk(family, base, memory)?;
        let mut insts: Vec<Inst<N>> = Vec::with_capacity(decoded.len());
        let n_words = decoded
            .last_key_value()
            .map_or(0, |(o, (d, _))| *o as usize / 4 + d.as_ref().map_or(1, |d| d.n_words as usize));
        let mut index = vec![NO_INST; n_words];
        let mut words = vec![0; n_words];
        for (offset, (d, raw)) in &decoded {
            let at = *offset as usize / 4;
            index[at] = insts.len() as u32;
            words[at..at + raw.len().min(n_words - at)].copy_from_slice(&raw[..raw.len().min(n_words - at)]);
            let lowered = match d {
                Ok(d) => crate::exec::lower(d, *offset).map_err(|cause| (cause, d.op)),
                Err(cause) => Err((cause.clone(), "?")),
            };
            match lowered {
                Ok(parts) => insts.extend(parts),
                Err((cause, op)) => insts.push(Inst::failing(cause, op, *offset, raw.len() as u8, refuse::<N>)),
            }
        }
        for inst in &mut insts {
            if is_relative_branch(inst.op) {
                let target = (inst.offset as i64 + 4 + 4 * inst.imm as i64) / 4;
                inst.target = index.get(target as usize).copied().unwrap_or(NO_INST);
            }
        }
        let before = tallies(&insts);
        Ok(Program { base, insts, before, index, words })
    }

    /// Adds the instructions from index `from` up to `to` to `sum`, by class.
    #[inline(always)]
    pub fn tally(&self, from: u32, to: u32, sum: &mut [u64; Class::N]) {
        let (from, to) = (&self.before[from as usize], &self.before[to as usize]);
        for k in 0..Class::N {
            sum[k] += (to[k] - from[k]) as u64;
        }
    }

    /// The instruction at an absolute address, if it belongs to this program.
    pub fn index(&self, address: u64) -> Option<u32> {
        let offset = address.checked_sub(self.base)?;
        let idx = *self.index.get(offset as usize / 4)?;
        (offset.is_multiple_of(4) && idx != NO_INST).then_some(idx)
    }

    /// The words of an instruction, for reports.
    pub fn words(&self, inst: &Inst<N>) -> Vec<u32> {
        let at = inst.offset as usize / 4;
        self.words.get(at..at + inst.n_words as usize).unwrap_or(&[]).to_vec()
    }

    pub fn is_current(&self, memory: &Memory) -> bool {
        let mut now = vec![0; self.words.len()];
        let is_readable = memory.read_words(&mut Lease::default(), self.base, &mut now, false).is_ok();
        // Words between reachable instructions were never read and stay zero here.
        is_readable && self.words.iter().zip(&now).all(|(a, b)| a == b || *a == 0)
    }
}

fn tallies<const N: usize>(insts: &[Inst<N>]) -> Vec<Tally> {
    let mut sum = [0; Class::N];
    let mut before = vec![sum];
    for inst in insts {
        sum[inst.class as usize] += 1;
        before.push(sum);
    }
    before
}

fn refuse<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, _: &mut Group<'_>) -> Flow {
    let cause = i.detail.cause.clone().unwrap_or(Cause::Unsupported(i.op.to_string()));
    w.stop(cause)
}

fn is_relative_branch(op: &str) -> bool {
    op == "s_branch" || op.starts_with("s_cbranch_")
}

type Walked = BTreeMap<u32, (Result<Decoded, Cause>, Vec<u32>)>;

/// Follows the code from `base`; an instruction that cannot be decoded ends its path and fails if it is reached.
fn walk(family: Family, base: u64, memory: &Memory) -> Result<Walked, Cause> {
    let mut found = Walked::new();
    let mut open = vec![0u32];
    let mut lease = Lease::default();
    while let Some(mut offset) = open.pop() {
        while !found.contains_key(&offset) {
            if found.len() > MAX_INSTRUCTIONS {
                return Err(Cause::Unsupported("a kernel of more than a million instructions".into()));
            }
            let at = base + offset as u64;
            let mut words = vec![0; MAX_WORDS as usize];
            // Near the end of an allocation fewer words are there.
            while memory.read_words(&mut lease, at, &mut words, false).is_err() {
                words.pop();
                if words.is_empty() {
                    return Err(Cause::BadJump(at));
                }
            }
            match isa::decode(family, &words) {
                Ok(d) => {
                    words.truncate(d.n_words as usize);
                    let next = offset + 4 * d.n_words as u32;
                    if is_relative_branch(d.op)
                        && let Ok(target) = u32::try_from(offset as i64 + 4 + 4 * d.imm as i64)
                    {
                        open.push(target);
                    }
                    let is_end =
                        matches!(d.op, "s_endpgm" | "s_endpgm_saved" | "s_branch" | "s_setpc_b64" | "s_code_end");
                    found.insert(offset, (Ok(d), words));
                    if is_end {
                        break;
                    }
                    offset = next;
                }
                Err(e) => {
                    words.truncate(2);
                    found.insert(offset, (Err(Cause::UnknownOpcode(e.to_string())), words));
                    break;
                }
            }
        }
    }
    Ok(found)
}
