//! Buffer instructions on raw buffers: base, size and range rule from a descriptor in four scalar registers.
//!
//! A part that ends past `num_records - soffset` reads as zero and is not written. A part is one word of a load or
//! store of words; bytes, halves and atomics are whole. The sum of vector offset and immediate that passes 32 bits is
//! out of range on RDNA and wraps on CDNA. Indexed, swizzled and thread-numbered buffers stop the kernel.

use super::Flow;
use super::access::Access;
use super::flat::{finish, run_bulk, run_global};
use super::inst::Inst;
use super::wave::{Group, Wave};
use crate::error::Cause;
use crate::isa::Family;

/// What a descriptor says.
struct Resource {
    /// The base, with the scalar offset in it.
    start: u64,
    /// Bytes from there to the end; `None` where the descriptor turns the check off.
    limit: Option<u64>,
}

impl Resource {
    fn read(words: [u32; 4], soffset: u32, family: Family) -> Result<Self, Cause> {
        let unsupported = |what: &str| {
            let [a, b, c, d] = words;
            Err(Cause::Unsupported(format!("{what} (descriptor {a:08x} {b:08x} {c:08x} {d:08x})")))
        };
        let is_swizzled = match family {
            Family::Rdna3 | Family::Rdna4 => words[1] >> 30 != 0,
            Family::Cdna3 => words[1] >> 31 != 0,
        };
        if is_swizzled || words[3] >> 23 & 1 == 1 {
            return unsupported("swizzled or thread-numbered buffer");
        }
        let n_records = words[2] as u64;
        let in_range = Some(n_records.saturating_sub(soffset as u64));
        // RDNA's OOB_SELECT; CDNA derives the rule from the instruction, and here that is always the raw one.
        let limit = match (family, words[3] >> 28 & 3) {
            (Family::Cdna3, _) | (_, 3) => in_range,
            (_, 2) => (n_records == 0).then_some(0),
            _ => return unsupported("buffer with structured range checks"),
        };
        let base = words[0] as u64 | (words[1] as u64 & 0xffff) << 32;
        Ok(Resource { start: base + soffset as u64, limit })
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
pub fn buffer<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>) -> Flow {
    let result = run(w, i, g);
    finish(result, w)
}

#[inline(always)]
fn run<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>) -> Result<(), Cause> {
    let s = i.saddr as usize;
    let (family, access) = (i.detail.family, i.detail.access);
    let words = std::array::from_fn(|k| w.s[s + k]);
    let resource = Resource::read(words, w.scalar(i.code[2], 0), family)?;
    let (n_parts, part_bytes) = match access {
        Access::LoadWords(n) | Access::StoreWords(n) => (n as u64, 4),
        _ => (1, access.n_bytes() as u64),
    };
    let lanes = w.exec();
    if lanes == 0 || is_inside(w, i, g, &resource, part_bytes * n_parts) {
        return Ok(());
    }
    let mut at = [0u64; N];
    // by_parts[k]: the lanes of which exactly k parts are in range.
    let mut by_parts = [0u64; 5];
    for (l, to) in at.iter_mut().enumerate() {
        let voffset = if i.detail.uses_vaddr { w.v[i.src[0] as usize][l] as u64 } else { 0 };
        let sum = voffset + i.imm as u64;
        let offset = if family == Family::Cdna3 { sum & 0xffff_ffff } else { sum };
        let n_in = resource.limit.map_or(n_parts, |end| (end.saturating_sub(offset) / part_bytes).min(n_parts));
        by_parts[n_in as usize] |= (lanes >> l & 1) << l;
        *to = resource.start + offset;
    }
    for n_in in 0..n_parts {
        drop_parts(w, i, by_parts[n_in as usize], n_in as usize)?;
    }
    for n_in in (1..=n_parts).rev().filter(|n| by_parts[*n as usize] != 0) {
        let first = match access {
            Access::LoadWords(_) => Access::LoadWords(n_in as u8),
            Access::StoreWords(_) => Access::StoreWords(n_in as u8),
            whole => whole,
        };
        run_global(w, i, g, first, by_parts[n_in as usize], &at)?;
    }
    Ok(())
}

/// Carries out an access of which every lane's `n_bytes` are in range, if it can be done for the whole wave at once.
#[inline(always)]
fn is_inside<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, g: &mut Group<'_>, r: &Resource, n_bytes: u64) -> bool {
    let mut offset = if i.detail.uses_vaddr { w.v[i.src[0] as usize] } else { [0; N] };
    let (_, highest) = super::bulk::range(&offset, &w.live);
    // The sum with the immediate must not pass 32 bits, where the families differ.
    let end = highest as u64 + i.imm as u64 + n_bytes;
    if end > u32::MAX as u64 || r.limit.is_some_and(|limit| end > limit) {
        return false;
    }
    for x in &mut offset {
        *x = x.wrapping_add(i.imm as u32);
    }
    run_bulk(w, i, g, w.exec(), r.start, &offset)
}

/// Zeroes what a load would have brought from part `n_in` on.
fn drop_parts<const N: usize>(w: &mut Wave<N>, i: &Inst<N>, lanes: u64, n_in: usize) -> Result<(), Cause> {
    if lanes == 0 {
        return Ok(());
    }
    let (n_rows, keep) = match i.detail.access {
        Access::LoadWords(n) => (n as usize, 0),
        Access::LoadPart { half, .. } => (1, half.kept()),
        Access::Atomic { .. } if i.detail.returns_old => {
            return Err(Cause::Unsupported("an atomic out of its buffer's range that returns a value".into()));
        }
        _ => (0, 0),
    };
    for row in n_in..n_rows {
        for l in super::space::each(lanes) {
            w.v[i.dst as usize + row][l] &= keep;
        }
    }
    Ok(())
}
