//! Where the recurrent state of a sequence lies: a row of a pool for what it had before its rows of a step, and one for
//! what it has after them. Reading one row and writing another is how a sequence starts from a checkpoint.

use std::ops::Range;

use gpu::{Grid, Slice};

use crate::gpu::count;
use crate::{Error, Gpu, Numerics, Pool};

/// Words of a span on a device, and what stands for no slot (kernels/scan.h, conv1d.hip).
const SPAN_WORDS: usize = 5;
const NO_SLOT: u32 = u32::MAX;
/// Columns of a state that a block of the scans' kernels takes, its threads, and lanes that share a column (scan.h).
pub(crate) const SCAN_COLUMNS: usize = 32;
const SCAN_THREADS: u32 = 128;
const SCAN_PARTS: usize = 4;
/// Rows of a span from which a GPU takes some of them at once: as many as it takes (chunk.h). With fewer a chunk does the
/// same work.
const MIN_GPU_CHUNK: u32 = 16;
/// The fewest numbers that a lane of those kernels keeps of the state.
pub(crate) const MIN_CHUNK_SLOTS: u32 = 16;
/// The longest column of a state that a GPU's registers hold.
pub const MAX_GPU_STATE: usize = 256;

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

/// The spans of a batch; the host's copy is checked, a GPU reads its own.
#[derive(Copy, Clone)]
pub struct StateSpans<'a> {
    pub host: &'a [StateSpan],
    /// [`StateSpan::words`] of each.
    pub device: Option<Slice<'a, u32>>,
}

impl<'a> From<&'a [StateSpan]> for StateSpans<'a> {
    fn from(host: &'a [StateSpan]) -> Self {
        Self { host, device: None }
    }
}

impl<'a> StateSpans<'a> {
    pub(crate) fn on_device(&self, op: &'static str) -> Result<Slice<'a, u32>, Error> {
        let needed = SPAN_WORDS * self.host.len();
        match self.device {
            Some(words) if words.len() >= needed => Ok(words),
            Some(words) => Err(Error::Bytes { op, what: "spans", found: words.bytes(), needed: 4 * needed }),
            None => Err(Error::Place { op, what: "spans", expected: "device memory" }),
        }
    }

    /// Which kernels of a GPU the spans need.
    pub(crate) fn kinds(&self, gpu: &Gpu) -> SpanKinds {
        let is_invariant = gpu.kernels.numerics() == Numerics::RowInvariant;
        let chunk_rows = if is_invariant { u32::MAX } else { MIN_GPU_CHUNK };
        let is_chunked = |span: &StateSpan| span.n_rows >= chunk_rows as usize;
        SpanKinds {
            chunk_rows,
            has_walks: self.host.iter().any(|span| !is_chunked(span)),
            has_chunks: self.host.iter().any(is_chunked),
        }
    }

    /// Blocks of a scan's kernel: so many for each span.
    pub(crate) fn grid(&self, op: &'static str, n_parts: usize) -> Result<Grid, Error> {
        Ok(Grid::plane(count(op, "columns", n_parts)?, count(op, "spans", self.host.len())?, SCAN_THREADS))
    }
}

/// Spans of a step by what a GPU does with them: some rows at a time (chunk.h) from `chunk_rows` rows on, else row by row.
/// Each kernel leaves out the spans that are the other's.
pub(crate) struct SpanKinds {
    pub chunk_rows: u32,
    pub has_walks: bool,
    pub has_chunks: bool,
}

/// What a scan's kernel is compiled with for states of this depth: numbers that a lane keeps of a column.
pub(crate) fn scan_slots(op: &'static str, depth: usize) -> Result<u32, Error> {
    if depth > MAX_GPU_STATE {
        return Err(Error::Argument {
            op,
            what: format!("states of {depth} numbers a column, at most {MAX_GPU_STATE}"),
        });
    }
    Ok(depth.div_ceil(SCAN_PARTS).next_power_of_two().max(4) as u32)
}

impl StateSpan {
    /// As a device reads it.
    pub fn words(&self) -> [u32; SPAN_WORDS] {
        let slot = |slot: Option<u32>| slot.unwrap_or(NO_SLOT);
        [self.first_row as u32, self.n_rows as u32, slot(self.from), self.to, slot(self.copy)]
    }

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

/// Tokens of a chunk that passes a recurrence as matrices. EPYC with AVX2, two virtual cores of a busy machine, 2026-11-18,
/// `cargo bench -p roci-ops --bench scans`, 512 tokens by chunks and token by token: delta net of 16 heads of 128 x 128
/// 8.9 and 13.9 ms, Mamba 2 of 48 heads of 64 x 128 9.6 and 13.1 ms.
pub(crate) const CHUNK: usize = 32;
/// Fewer go token by token: what a chunk costs besides its tokens would be more.
pub(crate) const MIN_CHUNK: usize = 8;

/// Whether recurrences run by chunks. Where rows must not matter they do not: a sum over a chunk depends on where it
/// begins.
pub(crate) fn runs_chunks(pool: &Pool) -> bool {
    cfg!(target_arch = "x86_64") && pool.isa() >= crate::Isa::Avx2 && pool.numerics() != Numerics::RowInvariant
}

/// The rows of a span in pieces: chunks while at least [`MIN_CHUNK`] rows are left and recurrences run by chunks, then the
/// rest.
#[inline(always)]
pub(crate) fn pieces(span: &StateSpan, runs_chunks: bool) -> impl Iterator<Item = SpanPiece> {
    let (mut first, end) = (span.first_row, span.first_row + span.n_rows);
    std::iter::from_fn(move || {
        let is_chunk = runs_chunks && end - first >= MIN_CHUNK;
        let rows = first..if is_chunk { end.min(first + CHUNK) } else { end };
        first = rows.end;
        (!rows.is_empty()).then_some(SpanPiece { rows, is_chunk })
    })
}

/// Some rows of a span, which pass a recurrence as matrices or token by token.
pub(crate) struct SpanPiece {
    pub rows: Range<usize>,
    pub is_chunk: bool,
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
