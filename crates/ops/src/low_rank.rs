//! Low-rank changes of a product, as adapters (LoRA, DoRA) make them: `out[r] = gain * (out[r] + scale * B (A x[r]))`, each
//! row of a batch with the matrices of one adapter, or with none.
//!
//! The numbers of all adapters lie in one place, and a table says where each has its matrices, so that one call serves
//! all rows whatever adapters they belong to. A row's result does not depend on the other rows. Matrices are f16 where
//! that loses nothing, because reading them is what takes the time; their scale is a number beside them.

use gpu::{Grid, Kernel, Slice, SliceMut};
use half::f16;

use crate::gpu::count;
use crate::gpu::unit::{DefineValues, kernels};
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, Indices, Isa, Pool, View, ViewMut};

const OP: &str = "low_rank";
const THREADS: u32 = 256;
/// Rows that one pass over an adapter's matrices serves on a CPU.
const ROWS: usize = 4;
/// Sums that a dot product keeps apart, so that it can be computed with vectors.
const LANES: usize = 32;

/// What adapters do to one matrix.
#[derive(Copy, Clone)]
pub struct LowRank<'a> {
    /// The numbers of all adapters. Where they are f16, two lie in the place of one.
    pub numbers: View<'a>,
    /// [`LowRankEntry::words`] of each adapter, by its slot.
    pub entries: Indices<'a>,
}

/// Where one adapter has its change of one matrix; offsets count f32 numbers.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct LowRankEntry {
    /// 0: this adapter leaves the matrix as it is.
    pub rank: u32,
    /// `[rank, n_in]`
    pub a: u32,
    /// `[rank, n_out]`
    pub b: u32,
    /// `[n_out]`: what the sum is multiplied with.
    pub gain: Option<u32>,
    /// What the product of the two is multiplied with.
    pub scale: f32,
    /// Whether `A` and `B` are f16.
    pub is_half: bool,
}

impl LowRankEntry {
    pub const WORDS: usize = 6;
    /// In place of a slot: the row belongs to no adapter. In place of `gain`: there is none.
    pub const NONE: u32 = u32::MAX;

    pub fn words(self) -> [u32; Self::WORDS] {
        let gain = self.gain.unwrap_or(Self::NONE);
        [self.rank, self.a, self.b, gain, self.scale.to_bits(), u32::from(self.is_half)]
    }

    /// The place that a matrix takes, in f32 numbers.
    pub fn matrix_len(n: usize, is_half: bool) -> usize {
        if is_half { n.div_ceil(2) } else { n }
    }

    fn of(words: &[u32], slot: u32) -> Option<Self> {
        if slot == Self::NONE {
            return None;
        }
        let words = &words[slot as usize * Self::WORDS..][..Self::WORDS];
        let gain = (words[3] != Self::NONE).then_some(words[3]);
        let (scale, is_half) = (f32::from_bits(words[4]), words[5] != 0);
        (words[0] > 0).then_some(Self { rank: words[0], a: words[1], b: words[2], gain, scale, is_half })
    }
}

/// Rows that go to several experts each: pair `p` is of row `p / n_used`.
#[derive(Copy, Clone)]
pub struct ExpertPairs<'a> {
    /// `[n_pairs, 1]`, the expert of each pair, as [`choose_experts`](crate::choose_experts) writes them.
    pub chosen: View<'a>,
    /// The adapter of each row.
    pub slots: Indices<'a>,
    pub n_experts: usize,
}

gpu::args! {
    pub(crate) struct LowRankIn<'a> {
        x: Slice<'a, f32>,
        numbers: Slice<'a, f32>,
        entries: Slice<'a, u32>,
        slots: Slice<'a, u32>,
        chosen: Slice<'a, u32>,
        hidden: SliceMut<'a, f32>,
        n_in: u32,
        max_rank: u32,
        share: u32,
        n_used: u32,
        n_slots: u32,
    }
}

gpu::args! {
    pub(crate) struct LowRankOut<'a> {
        hidden: Slice<'a, f32>,
        numbers: Slice<'a, f32>,
        entries: Slice<'a, u32>,
        slots: Slice<'a, u32>,
        chosen: Slice<'a, u32>,
        out: SliceMut<'a, f32>,
        n_out: u32,
        max_rank: u32,
        n_used: u32,
        n_slots: u32,
    }
}

kernels! {
    pub(crate) struct LowRankKernels in "low_rank", overlapping; defines {
        EXPERTS: DefineValues::Flag
    } {
        reduce: Kernel<LowRankIn<'static>> = ["low_rank_in"],
        expand: Kernel<LowRankOut<'static>> = ["low_rank_out"],
    }
}

/// `x` is `[n_rows, n_in]`, `out` `[n_rows, n_out]`, `slots` the adapter of each row or [`LowRankEntry::NONE`]. `hidden` is
/// room for `[n_rows, max_rank]` numbers, which GPUs need.
pub fn low_rank(
    exec: Exec,
    x: View,
    change: LowRank,
    slots: Indices,
    hidden: &mut ViewMut,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let [n_rows, n_in] = x.shape;
    out.expect_shape(OP, "out", [n_rows, out.shape[1]])?;
    let n_slots = change.entries.len() / LowRankEntry::WORDS;
    check(change, slots, (n_rows, n_slots), [n_in, out.shape[1]], hidden)?;
    match exec {
        Exec::Cpu(pool) => on_cpu(pool, x, change, slots.host, out),
        Exec::Gpu(gpu) => launch(gpu, x, change, (slots, None), hidden, out),
    }
}

/// As [`low_rank`] for the products of experts: `out` is `[n_pairs, n_out]`, `x` the pairs' rows or the rows that they come
/// from, and the table has every adapter's change of the first expert, then of the second, and so on.
pub fn low_rank_experts(
    exec: Exec,
    x: View,
    change: LowRank,
    pairs: ExpertPairs,
    hidden: &mut ViewMut,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let (n_rows, n_pairs, [n_x, n_in]) = (pairs.slots.len(), out.shape[0], x.shape);
    let n_slots = change.entries.len() / LowRankEntry::WORDS / pairs.n_experts.max(1);
    pairs.chosen.expect_shape(OP, "chosen", [n_pairs, 1])?;
    if n_rows == 0 || !n_pairs.is_multiple_of(n_rows) || ![n_rows, n_pairs].contains(&n_x) {
        let what = format!("{n_x} rows of x, {n_rows} slots, {n_pairs} pairs");
        return Err(Error::Argument { op: OP, what });
    }
    check(change, pairs.slots, (n_rows, n_slots), [n_in, out.shape[1]], hidden)?;
    let n_used = n_pairs / n_rows;
    match exec {
        Exec::Cpu(pool) => {
            let chosen = pairs.chosen.host_bytes(OP, "chosen")?.as_chunks::<4>().0.iter();
            let slot = |(pair, chosen): (usize, &[u8; 4])| {
                let (slot, expert) = (pairs.slots.host[pair / n_used], u32::from_ne_bytes(*chosen));
                if slot == LowRankEntry::NONE || expert as usize >= pairs.n_experts {
                    return LowRankEntry::NONE;
                }
                expert * n_slots as u32 + slot
            };
            let slots: Vec<u32> = chosen.enumerate().map(slot).collect();
            on_cpu(pool, x, change, &slots, out)
        }
        Exec::Gpu(gpu) => launch(gpu, x, change, (pairs.slots, Some((pairs.chosen, n_used, n_slots))), hidden, out),
    }
}

fn check(
    change: LowRank,
    slots: Indices,
    (n_rows, n_slots): (usize, usize),
    [n_in, n_out]: [usize; 2],
    hidden: &ViewMut,
) -> Result<(), Error> {
    let wrong = |what: String| Err(Error::Argument { op: OP, what });
    if slots.len() != n_rows {
        return wrong(format!("{} slots for {n_rows} rows", slots.len()));
    }
    if let Some(slot) = slots.host.iter().find(|slot| **slot != LowRankEntry::NONE && **slot as usize >= n_slots) {
        return wrong(format!("slot {slot} of {n_slots}"));
    }
    let n_numbers = change.numbers.shape[0] * change.numbers.shape[1];
    let n_entries = (change.entries.len() / LowRankEntry::WORDS) as u32;
    for entry in (0..n_entries).filter_map(|slot| LowRankEntry::of(change.entries.host, slot)) {
        let LowRankEntry { rank, a, b, gain, is_half, .. } = entry;
        let fits = |start: u32, n: usize| start as usize + n <= n_numbers;
        let matrix_fits = |start, n_cols| fits(start, LowRankEntry::matrix_len(rank as usize * n_cols, is_half));
        let is_inside = matrix_fits(a, n_in) && matrix_fits(b, n_out);
        let is_gain_inside = gain.is_none_or(|gain| fits(gain, n_out));
        if !is_inside || !is_gain_inside || rank as usize > hidden.shape[1] {
            return wrong(format!("{entry:?} in {n_numbers} numbers, {:?}", hidden.shape));
        }
    }
    Ok(())
}

struct AdapterRows<'a> {
    x: &'a [f32],
    /// Rows of `out` to a row of `x`.
    share: usize,
    numbers: &'a [f32],
    n_in: usize,
    n_out: usize,
    out: SharedPtr<f32>,
}

/// Rows of one adapter go together, a few at a time.
fn on_cpu(pool: &Pool, x: View, change: LowRank, slots: &[u32], out: &mut ViewMut) -> Result<(), Error> {
    let ([n_x, n_in], [n_rows, n_out]) = (x.shape, out.shape);
    let (x, numbers, entries) = (x.f32s(OP, "x")?, change.numbers.f32s(OP, "numbers")?, change.entries.host);
    let out = SharedPtr::new(out.f32s(OP, "out")?);
    let job = &AdapterRows { x, share: n_rows / n_x.max(1), numbers, n_in, n_out, out };
    let mut rows: Vec<(u32, usize)> = slots.iter().copied().zip(0..).collect();
    rows.retain(|(slot, _)| LowRankEntry::of(entries, *slot).is_some());
    rows.sort_unstable();
    let runs: Vec<&[(u32, usize)]> =
        rows.chunk_by(|(one, _), (other, _)| one == other).flat_map(|run| run.chunks(ROWS)).collect();
    let isa = pool.isa();
    pool.run(runs.len(), |run_idx, _| {
        let run = runs[run_idx];
        let Some(entry) = LowRankEntry::of(entries, run[0].0) else { return };
        #[cfg(target_arch = "x86_64")]
        if isa >= Isa::Avx2 {
            // SAFETY: `Isa` says that this CPU has AVX2, FMA and F16C. Each row is in one run, so its part of `out` is this task's.
            return unsafe { rows_avx2(job, entry, run) };
        }
        let _ = isa;
        // SAFETY: each row is in one run, so its part of `out` is this task's.
        unsafe { rows_of_one::<false>(job, entry, run) };
    });
    Ok(())
}

/// # Safety
/// As [`rows_of_one`], on a CPU with AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows_avx2(job: &AdapterRows, entry: LowRankEntry, rows: &[(u32, usize)]) {
    // SAFETY: the caller's promise.
    unsafe { rows_of_one::<true>(job, entry, rows) }
}

/// # Safety
/// No other task touches these rows of `out` during this region. With `F16C` the CPU has AVX2, FMA and F16C.
#[inline(always)]
unsafe fn rows_of_one<const F16C: bool>(job: &AdapterRows, entry: LowRankEntry, rows: &[(u32, usize)]) {
    let [a, b] = [(entry.a, job.n_in), (entry.b, job.n_out)].map(|(start, n_cols)| {
        &job.numbers[start as usize..][..LowRankEntry::matrix_len(entry.rank as usize * n_cols, entry.is_half)]
    });
    // SAFETY: the caller's promise.
    unsafe {
        match entry.is_half {
            true => change_rows::<f16, F16C>(job, entry, [bytemuck::cast_slice(a), bytemuck::cast_slice(b)], rows),
            false => change_rows::<f32, F16C>(job, entry, [a, b], rows),
        }
    }
}

/// # Safety
/// As [`rows_of_one`].
#[inline(always)]
unsafe fn change_rows<T: Number, const F16C: bool>(
    job: &AdapterRows,
    entry: LowRankEntry,
    [a, b]: [&[T]; 2],
    rows: &[(u32, usize)],
) {
    let AdapterRows { x, share, numbers, n_in, n_out, out } = *job;
    let rank = entry.rank as usize;
    // [rank, ROWS]
    let mut hidden = vec![[0.0_f32; ROWS]; rank];
    for (k, hidden) in hidden.iter_mut().enumerate() {
        let a = &a[k * n_in..][..n_in];
        for (hidden, (_, row)) in hidden.iter_mut().zip(rows) {
            // SAFETY: the caller's promise.
            *hidden = entry.scale * unsafe { dot::<T, F16C>(a, &x[row / share * n_in..][..n_in]) };
        }
    }
    for (i, (_, row)) in rows.iter().enumerate() {
        // SAFETY: the caller's promise; the row lies inside `out`.
        let out = unsafe { out.slice(row * n_out, n_out) };
        for (b, hidden) in b.chunks_exact(n_out).zip(&hidden) {
            // SAFETY: the caller's promise.
            unsafe { add_row::<T, F16C>(out, b, hidden[i]) };
        }
        if let Some(gain) = entry.gain {
            out.iter_mut().zip(&numbers[gain as usize..][..n_out]).for_each(|(out, gain)| *out *= gain);
        }
    }
}

/// Adds a row of `B` times its factor. One after another: rows that are read side by side come from memory more slowly.
///
/// # Safety
/// With `F16C` the CPU has AVX2, FMA and F16C.
#[inline(always)]
unsafe fn add_row<T: Number, const F16C: bool>(out: &mut [f32], b: &[T], factor: f32) {
    let (wholes, rest) = out.as_chunks_mut::<LANES>();
    let (b_wholes, b_rest) = b.as_chunks::<LANES>();
    for (out, b) in wholes.iter_mut().zip(b_wholes) {
        // SAFETY: the caller's promise.
        let b = unsafe { T::block::<F16C>(b) };
        for i in 0..LANES {
            out[i] += factor * b[i];
        }
    }
    rest.iter_mut().zip(b_rest).for_each(|(out, b)| *out += factor * b.widened());
}

/// # Safety
/// With `F16C` the CPU has AVX2, FMA and F16C.
#[inline(always)]
unsafe fn dot<T: Number, const F16C: bool>(a: &[T], x: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (wholes, rest) = a.as_chunks::<LANES>();
    let (x_wholes, x_rest) = x.as_chunks::<LANES>();
    for (a, x) in wholes.iter().zip(x_wholes) {
        // SAFETY: the caller's promise.
        let a = unsafe { T::block::<F16C>(a) };
        for i in 0..LANES {
            sums[i] += a[i] * x[i];
        }
    }
    let rest: f32 = rest.iter().zip(x_rest).map(|(a, x)| a.widened() * x).sum();
    sums.iter().sum::<f32>() + rest
}

trait Number: Copy {
    fn widened(self) -> f32;

    /// # Safety
    /// With `F16C` the CPU has AVX2, FMA and F16C.
    unsafe fn block<const F16C: bool>(numbers: &[Self; LANES]) -> [f32; LANES];
}

impl Number for f32 {
    #[inline(always)]
    fn widened(self) -> f32 {
        self
    }

    #[inline(always)]
    unsafe fn block<const F16C: bool>(numbers: &[Self; LANES]) -> [f32; LANES] {
        *numbers
    }
}

impl Number for f16 {
    /// For finite numbers, in steps that compilers make vectors of: the exponent's bias is made up for by a product, which is
    /// exact for subnormal numbers too.
    #[inline(always)]
    fn widened(self) -> f32 {
        /// 2^112, by which the biases of the two types differ.
        const BIAS: f32 = f32::from_bits(0x7780_0000);
        let bits = u32::from(self.to_bits());
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * BIAS;
        f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
    }

    #[inline(always)]
    unsafe fn block<const F16C: bool>(numbers: &[Self; LANES]) -> [f32; LANES] {
        #[cfg(target_arch = "x86_64")]
        if F16C {
            use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
            let mut out = [0.0; LANES];
            for (numbers, out) in numbers.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<8>().0) {
                // SAFETY: eight numbers each, and the caller's promise.
                unsafe {
                    _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(numbers.as_ptr().cast())))
                };
            }
            return out;
        }
        numbers.map(Self::widened)
    }
}

/// With experts: the chosen ones, how many a row has, and the slots of each in the table.
type Chosen<'a> = Option<(View<'a>, usize, usize)>;

fn launch(
    gpu: &Gpu,
    x: View,
    change: LowRank,
    (slots, experts): (Indices, Chosen),
    hidden: &mut ViewMut,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let ([n_x, n_in], [n_rows, n_out]) = (x.shape, out.shape);
    if n_rows == 0 || n_out == 0 {
        return Ok(());
    }
    hidden.expect_shape(OP, "hidden", [n_rows, hidden.shape[1]])?;
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 4 * (n_rows * (n_in + 2 * n_out)) as u64, flops: 0 });
    let kernels = LowRankKernels::get(gpu.kernels, &[u32::from(experts.is_some())])?;
    let (rows, max_rank) = (count(OP, "rows", n_rows)?, count(OP, "rank", hidden.shape[1])?);
    let numbers = change.numbers.device_f32s(OP, "numbers")?;
    let (entries, slots) = (change.entries.on_device(OP, "entries")?, slots.on_device(OP, "slots")?);
    let (chosen, n_used, n_slots) = match experts {
        Some((chosen, n_used, n_slots)) => (chosen.device_bytes(OP, "chosen")?.cast()?, n_used, n_slots),
        // Not read.
        None => (slots, 1, 0),
    };
    let (n_used, n_slots) = (count(OP, "experts of a row", n_used)?, count(OP, "slots", n_slots)?);
    let reduce = LowRankIn {
        x: x.device_f32s(OP, "x")?,
        numbers,
        entries,
        slots,
        chosen,
        hidden: hidden.device_f32s(OP, "hidden")?,
        n_in: count(OP, "inputs", n_in)?,
        max_rank,
        share: count(OP, "rows", n_rows / n_x.max(1))?,
        n_used,
        n_slots,
    };
    gpu.launcher.launch(&kernels.reduce, Grid::line(rows, THREADS), &reduce)?;
    let n_out = count(OP, "outputs", n_out)?;
    let expand = LowRankOut {
        hidden: hidden.as_view().device_f32s(OP, "hidden")?,
        numbers,
        entries,
        slots,
        chosen,
        out: out.device_f32s(OP, "out")?,
        n_out,
        max_rank,
        n_used,
        n_slots,
    };
    let grid = Grid::plane(n_out.div_ceil(THREADS), rows, THREADS);
    Ok(gpu.launcher.launch(&kernels.expand, grid, &expand)?)
}
