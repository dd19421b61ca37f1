//! Where the recurrent state of a sequence lies: a row of a pool for what it had before its rows of a step, and one for
//! what it has after them. Reading one row and writing another is how a sequence starts from a checkpoint.

use crate::{Error, Pool};

/// The rows of one sequence in a step, and the slots of its state.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct StateSpan {
    pub first_row: usize,
    pub n_rows: usize,
    /// Holds the state before the first row; `None` starts from zeros.
    pub from: Option<u32>,
    /// Gets the state after the last row.
    pub to: u32,
    /// Gets a copy of it.
    pub copy: Option<u32>,
}

impl StateSpan {
    /// Spans must lie inside the rows, and no slot may be written twice, or read by one sequence and written by another.
    pub(crate) fn check(op: &'static str, spans: &[Self], n_rows: usize, n_slots: usize) -> Result<(), Error> {
        let bad = |what: String| Err(Error::Argument { op, what });
        for (i, span) in spans.iter().enumerate() {
            let slots = [span.from, Some(span.to), span.copy];
            if slots.into_iter().flatten().any(|slot| slot as usize >= n_slots) {
                return bad(format!("slots {slots:?} of a pool of {n_slots}"));
            }
            if span.n_rows == 0 || span.first_row + span.n_rows > n_rows {
                return bad(format!("rows {}..+{} of {n_rows}", span.first_row, span.n_rows));
            }
            let touches = |other: &Self, slot: u32| [other.from, Some(other.to), other.copy].contains(&Some(slot));
            let written = [Some(span.to), span.copy];
            let others = spans.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, other)| other);
            let is_shared = others.clone().any(|other| written.into_iter().flatten().any(|slot| touches(other, slot)));
            let overlaps = others.clone().any(|other| {
                span.first_row < other.first_row + other.n_rows && other.first_row < span.first_row + span.n_rows
            });
            if is_shared || overlaps || span.copy == Some(span.to) || span.copy.is_some() && span.copy == span.from {
                return bad(format!("{span:?} shares its slots or rows"));
            }
        }
        Ok(())
    }
}

/// An op over spans whose work falls into parts (heads, groups of columns) that touch different memory.
pub(crate) trait SpanParts: Sync {
    /// Computes one part of one span; to be inlined, so that it is compiled for the instructions of its caller.
    ///
    /// # Safety
    /// [`StateSpan::check`] has seen the spans, and no other task has the same part of this one.
    unsafe fn part(&self, span: &StateSpan, part: usize);
}

/// Every part of every span on the pool, with AVX2 where the CPU has it.
///
/// # Safety
/// [`StateSpan::check`] has seen the spans, and parts below `n_parts` of one span touch different memory.
pub(crate) unsafe fn run_parts(pool: &Pool, spans: &[StateSpan], n_parts: usize, work: &impl SpanParts) {
    pool.run(spans.len() * n_parts, |task, _| {
        let (span, part) = (&spans[task / n_parts], task % n_parts);
        #[cfg(target_arch = "x86_64")]
        if pool.isa() >= crate::Isa::Avx2 {
            // SAFETY: the CPU has AVX2 and FMA; the caller's promise, and each task has a part of its own.
            unsafe { part_avx2(work, span, part) };
            return;
        }
        // SAFETY: the caller's promise, and each task has a part of its own.
        unsafe { work.part(span, part) };
    });
}

/// # Safety
/// As [`SpanParts::part`]; and the CPU has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn part_avx2(work: &impl SpanParts, span: &StateSpan, part: usize) {
    // SAFETY: the caller's promise.
    unsafe { work.part(span, part) };
}
