//! Low-rank changes of a product, as adapters (LoRA, DoRA) make them: `out[r] = gain * (out[r] + scale * B (A x[r]))`, each
//! row of a batch with the matrices of one adapter, or with none.
//!
//! The numbers of all adapters lie in one place, and a table says where each has its matrices, so that one call serves
//! all rows whatever adapters they belong to. A row's result does not depend on the other rows. Reading the matrices is what
//! takes the time, so they may be narrower than f32: f16, with their scale as a number beside them, or on a CPU 24 bits.

mod vectors;

use gpu::{Grid, Kernel, Slice, SliceMut};
use half::f16;

use crate::gpu::count;
use crate::gpu::unit::{DefineValues, kernels};
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, Indices, Isa, Pool, View, ViewMut};
#[cfg(target_arch = "x86_64")]
use vectors::x86;
use vectors::{AdapterNumber, Plain, Vectors};
pub use vectors::{F24, to_f24};

const OP: &str = "low_rank";
const THREADS: u32 = 256;
/// Rows that one pass over an adapter's matrices serves on a CPU.
const ROWS: usize = 4;

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
    /// What `A` and `B` consist of.
    pub width: MatrixWidth,
}

/// The numbers of an adapter's matrices.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub enum MatrixWidth {
    #[default]
    F32,
    F16,
    /// The upper 24 bits of an f32, three bytes a number; on a CPU only.
    F24,
}

impl LowRankEntry {
    pub const WORDS: usize = 6;
    /// In place of a slot: the row belongs to no adapter. In place of `gain`: there is none.
    pub const NONE: u32 = u32::MAX;

    pub fn words(self) -> [u32; Self::WORDS] {
        let gain = self.gain.unwrap_or(Self::NONE);
        [self.rank, self.a, self.b, gain, self.scale.to_bits(), self.width as u32]
    }

    /// The place that a matrix takes, in f32 numbers.
    pub fn matrix_len(n: usize, width: MatrixWidth) -> usize {
        match width {
            MatrixWidth::F32 => n,
            MatrixWidth::F16 => n.div_ceil(2),
            MatrixWidth::F24 => (3 * n).div_ceil(4),
        }
    }

    fn of(words: &[u32], slot: u32) -> Option<Self> {
        if slot == Self::NONE {
            return None;
        }
        let words = &words[slot as usize * Self::WORDS..][..Self::WORDS];
        let gain = (words[3] != Self::NONE).then_some(words[3]);
        let width = [MatrixWidth::F32, MatrixWidth::F16, MatrixWidth::F24].get(words[5] as usize).copied();
        let (scale, width) = (f32::from_bits(words[4]), width.unwrap_or_default());
        (words[0] > 0).then_some(Self { rank: words[0], a: words[1], b: words[2], gain, scale, width })
    }
}

/// A product of `x` that adapters change, `[n_rows, n_out]`.
pub struct LowRankProduct<'a> {
    pub change: LowRank<'a>,
    pub out: ViewMut<'a>,
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

/// `x` is `[n_rows, n_in]`, `slots` the adapter of each row or [`LowRankEntry::NONE`]. `hidden` is room for
/// `[n_rows, max_rank]` numbers, which GPUs need.
pub fn low_rank(
    exec: Exec,
    x: View,
    slots: Indices,
    hidden: &mut ViewMut,
    products: &mut [LowRankProduct],
) -> Result<(), Error> {
    let [n_rows, n_in] = x.shape;
    for LowRankProduct { change, out } in &*products {
        out.expect_shape(OP, "out", [n_rows, out.shape[1]])?;
        let n_slots = change.entries.len() / LowRankEntry::WORDS;
        check(*change, slots, n_rows, n_slots, [n_in, out.shape[1]], hidden)?;
    }
    match exec {
        Exec::Cpu(pool) => on_cpu(pool, x, slots.host, products),
        Exec::Gpu(gpu) => products
            .iter_mut()
            .try_for_each(|product| launch(gpu, x, product.change, slots, None, hidden, &mut product.out)),
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
    check(change, pairs.slots, n_rows, n_slots, [n_in, out.shape[1]], hidden)?;
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
            on_cpu(pool, x, &slots, &mut [LowRankProduct { change, out: out.reborrow() }])
        }
        Exec::Gpu(gpu) => launch(gpu, x, change, pairs.slots, Some((pairs.chosen, n_used, n_slots)), hidden, out),
    }
}

fn check(
    change: LowRank,
    slots: Indices,
    n_rows: usize,
    n_slots: usize,
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
        let LowRankEntry { rank, a, b, gain, width, .. } = entry;
        let fits = |start: u32, n: usize| start as usize + n <= n_numbers;
        let matrix_fits = |start, n_cols| fits(start, LowRankEntry::matrix_len(rank as usize * n_cols, width));
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
fn on_cpu(pool: &Pool, x: View, slots: &[u32], products: &mut [LowRankProduct]) -> Result<(), Error> {
    let [n_x, n_in] = x.shape;
    let x = x.f32s(OP, "x")?;
    let mut jobs = Vec::with_capacity(products.len());
    for LowRankProduct { change, out } in products {
        let [n_rows, n_out] = out.shape;
        let (numbers, out) = (change.numbers.f32s(OP, "numbers")?, SharedPtr::new(out.f32s(OP, "out")?));
        let job = AdapterRows { x, share: n_rows / n_x.max(1), numbers, n_in, n_out, out };
        jobs.push((job, change.entries.host));
    }
    let is_adapted = |slot: u32| jobs.iter().any(|(_, entries)| LowRankEntry::of(entries, slot).is_some());
    let mut rows: Vec<(u32, usize)> = slots.iter().copied().zip(0..).collect();
    rows.retain(|(slot, _)| is_adapted(*slot));
    rows.sort_unstable();
    let runs: Vec<&[(u32, usize)]> =
        rows.chunk_by(|(one, _), (other, _)| one == other).flat_map(|run| run.chunks(ROWS)).collect();
    let isa = pool.isa();
    pool.run(runs.len() * jobs.len(), |task_idx, _| {
        let (run, (job, entries)) = (runs[task_idx / jobs.len()], &jobs[task_idx % jobs.len()]);
        let Some(entry) = LowRankEntry::of(entries, run[0].0) else { return };
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: `Isa` says that this CPU has these instructions. Each row is in one run, so its part of `out` is this task's.
            unsafe {
                match isa {
                    Isa::Avx512 | Isa::Zen4 => return rows_avx512(job, entry, run),
                    Isa::Avx2 => return rows_avx2(job, entry, run),
                    _ => {}
                }
            }
        }
        let _ = isa;
        // SAFETY: each row is in one run, so its part of `out` is this task's.
        unsafe { rows_of_one::<Plain>(job, entry, run) };
    });
    Ok(())
}

/// # Safety
/// As [`rows_of_one`], on a CPU with AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows_avx2(job: &AdapterRows, entry: LowRankEntry, rows: &[(u32, usize)]) {
    // SAFETY: the caller's promise.
    unsafe { rows_of_one::<x86::Avx2>(job, entry, rows) }
}

/// # Safety
/// As [`rows_of_one`], on a CPU with AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn rows_avx512(job: &AdapterRows, entry: LowRankEntry, rows: &[(u32, usize)]) {
    // SAFETY: the caller's promise.
    unsafe { rows_of_one::<x86::Avx512>(job, entry, rows) }
}

/// # Safety
/// No other task touches these rows of `out` during this region. The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn rows_of_one<V: Vectors>(job: &AdapterRows, entry: LowRankEntry, rows: &[(u32, usize)]) {
    let [a, b] = [(entry.a, job.n_in), (entry.b, job.n_out)].map(|(start, n_cols)| {
        &job.numbers[start as usize..][..LowRankEntry::matrix_len(entry.rank as usize * n_cols, entry.width)]
    });
    // SAFETY: the caller's promise.
    unsafe {
        match entry.width {
            MatrixWidth::F32 => change_rows::<f32, V>(job, entry, [a, b], rows),
            MatrixWidth::F16 => {
                change_rows::<f16, V>(job, entry, [bytemuck::cast_slice(a), bytemuck::cast_slice(b)], rows);
            }
            MatrixWidth::F24 => {
                let triples = [a, b].map(|numbers| bytemuck::cast_slice::<f32, u8>(numbers).as_chunks::<3>().0);
                change_rows::<F24, V>(job, entry, triples, rows);
            }
        }
    }
}

/// # Safety
/// As [`rows_of_one`].
#[inline(always)]
unsafe fn change_rows<T: AdapterNumber, V: Vectors>(
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
            *hidden = entry.scale * unsafe { V::dot(a, &x[row / share * n_in..][..n_in]) };
        }
    }
    for (i, (_, row)) in rows.iter().enumerate() {
        // SAFETY: the caller's promise; the row lies inside `out`.
        let out = unsafe { out.slice(row * n_out, n_out) };
        // Two rows of `B` at a time: more that are read side by side come from memory more slowly.
        let (pairs, last) = hidden.as_chunks::<2>();
        for (k, pair) in pairs.iter().enumerate() {
            let b = [2 * k, 2 * k + 1].map(|k| &b[k * n_out..][..n_out]);
            // SAFETY: the caller's promise.
            unsafe { V::add_rows(out, b, [pair[0][i], pair[1][i]]) };
        }
        if let [last] = last {
            // SAFETY: the caller's promise.
            unsafe { V::add_rows(out, [&b[(rank - 1) * n_out..][..n_out]], [last[i]]) };
        }
        if let Some(gain) = entry.gain {
            out.iter_mut().zip(&numbers[gain as usize..][..n_out]).for_each(|(out, gain)| *out *= gain);
        }
    }
}

/// With experts: the chosen ones, how many a row has, and the slots of each in the table.
type ChosenExperts<'a> = Option<(View<'a>, usize, usize)>;

fn launch(
    gpu: &Gpu,
    x: View,
    change: LowRank,
    slots: Indices,
    experts: ChosenExperts,
    hidden: &mut ViewMut,
    out: &mut ViewMut,
) -> Result<(), Error> {
    let ([n_x, n_in], [n_rows, n_out]) = (x.shape, out.shape);
    if n_rows == 0 || n_out == 0 {
        return Ok(());
    }
    hidden.expect_shape(OP, "hidden", [n_rows, hidden.shape[1]])?;
    if change.entries.host.chunks_exact(LowRankEntry::WORDS).any(|entry| entry[5] == MatrixWidth::F24 as u32) {
        return Err(Error::Argument { op: OP, what: "numbers of 24 bits on a GPU".into() });
    }
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
