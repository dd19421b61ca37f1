//! Products on a CPU: how they are cut into tasks, how activations are rounded for them, and which kernel runs a task.

use std::cell::RefCell;

use weights::Dtype;

use super::activations::{Activations, RoundedBy, Rounding, Scaling};
#[cfg(target_arch = "aarch64")]
use super::arm::products as neon;
use super::left::HostLeft;
use super::portable::products as plain;
#[cfg(target_arch = "x86_64")]
use super::x86::winograd::PairSum;
#[cfg(target_arch = "x86_64")]
use super::x86::{bytes, clipped, dot, dot_tiles, panel, strip, unpacked};
use crate::formats::for_block;
#[cfg(target_arch = "x86_64")]
use crate::matmul::weights_of;
use crate::matmul::{Mode, OP, Product};
#[cfg(target_arch = "x86_64")]
use crate::plan;
use crate::plan::{FEW_ROWS, ProductKernel, ProductPlan};
use crate::tiles::{GROUP, TILE_ROWS, TileFormat, largest_activation};
use crate::view::SharedPtr;
use crate::{Error, Isa, Layout, Numerics, Pool, View};

/// Rows of weights that a task takes at the least, a *part*: a multiple of every panel width.
pub(crate) const TASK_ROWS: usize = 32;
/// The most parts of a task that many activation rows share: their weights stay in the second-level cache.
pub(crate) const MAX_TASK_PARTS: usize = 4;
/// Tasks per thread that balance well; more only cost.
pub(crate) const TASKS_PER_THREAD: usize = 8;

/// Whether the CPU's kernels can read these weights.
pub(crate) fn check_weight(pool: &Pool, weight: &View) -> Result<(), Error> {
    weight.host_bytes(OP, "weight")?;
    match weight.layout {
        Layout::Tiles if pool.isa() < Isa::Avx2 => Err(Error::Argument { op: OP, what: "tiles need AVX2".into() }),
        Layout::Planes => Err(Error::Argument { op: OP, what: "planes are for a GPU".into() }),
        _ => Ok(()),
    }
}

thread_local! {
    /// The rounded activations of the calling thread; grows to the largest batch once.
    static ACTIVATIONS: RefCell<Activations> = const { RefCell::new(Activations::new()) };
    /// The same in bytes.
    #[cfg(target_arch = "x86_64")]
    static CLIPPED: RefCell<clipped::Clipped> = const { RefCell::new(clipped::Clipped::new()) };
}

/// A product as the kernels see it.
pub(crate) struct ProductJob<'a> {
    pub(crate) kernel: ProductKernel,
    pub(crate) dtype: Dtype,
    pub(crate) weight: &'a [u8],
    /// From one row to the next, or from one strip of sixteen to the next.
    pub(crate) stride: usize,
    pub(crate) n_out: usize,
    pub(crate) out: SharedPtr<f32>,
    pub(crate) mode: Mode,
}

/// The left side, in the forms the kernels want.
pub(crate) struct ProductInput<'a> {
    pub(crate) isa: Isa,
    pub(crate) numerics: Numerics,
    pub(crate) x: &'a [f32],
    pub(crate) n_rows: usize,
    pub(crate) n_in: usize,
    pub(crate) rounded: &'a Activations,
}

pub(crate) fn matmul_cpu(
    pool: &Pool,
    left: HostLeft,
    [n_rows, n_in]: [usize; 2],
    products: &mut [Product],
    plan: &ProductPlan,
) -> Result<(), Error> {
    #[cfg(target_arch = "x86_64")]
    let outliers = if plan.is(ProductKernel::Bytes) { plan::outliers(&weights_of(products)) } else { None };
    let jobs = products
        .iter_mut()
        .zip(&plan.kernels)
        .map(|(p, kernel)| ProductJob::new(*kernel, p.weight, SharedPtr::new(p.out.f32s(OP, "out")?), p.mode))
        .collect::<Result<Vec<ProductJob>, Error>>()?;
    let tasks = tasks(&jobs, pool.n_threads(), n_rows);
    #[cfg(target_arch = "x86_64")]
    if let Some(outliers) = outliers {
        CLIPPED.with_borrow_mut(|clipped| {
            clipped.round(pool, &left, [n_rows, n_in], outliers, bytes::K_CHUNK);
            pool.run(tasks.len(), |task_idx, _| {
                let Task { job_idx, cols } = &tasks[task_idx];
                bytes::cols(clipped, n_rows, n_in, &jobs[*job_idx], cols.clone());
            });
        });
        return Ok(());
    }
    ACTIVATIONS.with_borrow_mut(|rounded| {
        if jobs.iter().any(|job| takes_rounded(job.kernel, job.dtype)) {
            let rounding = rounding(pool.isa(), &jobs);
            rounded.round(pool, RoundedBy::Pool, &left, [n_rows, n_in], tile_rows(pool.isa(), n_rows), rounding);
        }
        let (isa, numerics) = (pool.isa(), pool.numerics());
        let input = ProductInput { isa, numerics, x: left.plain(), n_rows, n_in, rounded };
        pool.run(tasks.len(), |task_idx, _| {
            let Task { job_idx, cols } = &tasks[task_idx];
            run_task(&input, &jobs[*job_idx], cols.clone());
        });
    });
    Ok(())
}

/// How the left side is rounded for these jobs: as the kernel wants it, with what every format needs.
pub(crate) fn rounding(isa: Isa, jobs: &[ProductJob]) -> Rounding {
    let mut rounding = Rounding {
        largest: f32::INFINITY,
        scaling: Scaling::Exact,
        together: 1,
        #[cfg(target_arch = "x86_64")]
        pair_sum: None,
        has_sums: false,
        has_halves: false,
    };
    let packed = || jobs.iter().filter(|job| takes_rounded(job.kernel, job.dtype));
    let is_many = |job: &ProductJob| matches!(job.kernel, ProductKernel::Unpacked | ProductKernel::Winograd);
    if isa >= Isa::Avx512 && packed().any(is_many) {
        rounding.scaling = Scaling::Power;
        let together = packed().map(|job| {
            for_block!(job.dtype,
                P => P::SUM_GROUPS,
                P => { let _: Option<P> = None; 1 }
            )
        });
        rounding.together = together.min().unwrap_or(1);
    }
    for job in packed() {
        for_block!(job.dtype,
            P => {
                rounding.largest = rounding.largest.min(largest_activation::<P>(rounding.together) as f32);
                rounding.has_sums |= P::HAS_MIN;
                rounding.has_halves |= P::HAS_MIN && P::SPAN < GROUP;
            },
            P => { let _: Option<P> = None; }
        );
    }
    #[cfg(target_arch = "x86_64")]
    if packed().any(|job| job.kernel == ProductKernel::Winograd) {
        let largest_weight = packed().map(|job| largest_weight(job.dtype)).max().unwrap_or(0);
        let pair_sum = PairSum::of(rounding.largest, largest_weight);
        rounding.largest = rounding.largest.min(pair_sum.largest_activation(largest_weight) as f32);
        rounding.pair_sum = Some(pair_sum);
    }
    rounding
}

/// The largest integer, of either sign, of a packed format.
#[cfg(target_arch = "x86_64")]
fn largest_weight(dtype: Dtype) -> i32 {
    for_block!(dtype,
        P => P::LARGEST,
        P => { let _: Option<P> = None; 0 }
    )
}

/// Some columns of one product.
pub(crate) struct Task {
    pub(crate) job_idx: usize,
    pub(crate) cols: std::ops::Range<usize>,
}

/// Cuts the products into tasks. Few rows: equal ones. Many rows: large ones first, small ones at the end, so that the
/// threads end together.
pub(crate) fn tasks(jobs: &[ProductJob], n_threads: usize, n_rows: usize) -> Vec<Task> {
    let parts = |n: usize| n.div_ceil(TASK_ROWS);
    let mut n_left: usize = jobs.iter().map(|job| parts(job.n_out)).sum();
    let equal = n_left.div_ceil(n_threads * TASKS_PER_THREAD);
    let mut tasks = Vec::with_capacity(2 * n_threads * TASKS_PER_THREAD);
    for (job_idx, job) in jobs.iter().enumerate() {
        let mut first = 0;
        while first < job.n_out {
            let n = match n_rows {
                0..=FEW_ROWS => equal,
                _ => (n_left / (2 * n_threads)).clamp(1, MAX_TASK_PARTS),
            };
            let end = (first + n * TASK_ROWS).min(job.n_out);
            n_left -= parts(end - first);
            tasks.push(Task { job_idx, cols: first..end });
            first = end;
        }
    }
    tasks
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn tile_rows(isa: Isa, n_rows: usize) -> usize {
    strip::tile_rows(isa, n_rows)
}

#[cfg(target_arch = "aarch64")]
pub(crate) fn tile_rows(_isa: Isa, n_rows: usize) -> usize {
    neon::tile_rows(n_rows)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn tile_rows(_isa: Isa, _n_rows: usize) -> usize {
    1
}

/// Whether this kernel wants activations in 16 bits.
pub(crate) fn takes_rounded(kernel: ProductKernel, dtype: Dtype) -> bool {
    match kernel {
        ProductKernel::Strip | ProductKernel::Unpacked | ProductKernel::Winograd => true,
        #[cfg(target_arch = "aarch64")]
        ProductKernel::Neon => neon::rounds(dtype),
        _ => {
            let _ = dtype;
            false
        }
    }
}

/// Some columns of one product.
pub(crate) fn run_task(input: &ProductInput, job: &ProductJob, cols: std::ops::Range<usize>) {
    match job.kernel {
        #[cfg(target_arch = "x86_64")]
        ProductKernel::Strip => strip::cols(input, job, cols),
        #[cfg(target_arch = "x86_64")]
        ProductKernel::Unpacked | ProductKernel::Winograd => unpacked::cols(input, job, cols),
        #[cfg(target_arch = "x86_64")]
        ProductKernel::Dot => dot::cols(input, job, cols),
        #[cfg(target_arch = "x86_64")]
        ProductKernel::DotTiles => dot_tiles::cols(input, job, cols),
        #[cfg(target_arch = "x86_64")]
        ProductKernel::Panel => cols
            .clone()
            .step_by(TASK_ROWS)
            .for_each(|first| panel::cols(input, job, first..(first + TASK_ROWS).min(cols.end))),
        #[cfg(target_arch = "aarch64")]
        ProductKernel::Neon => neon::cols(input, job, cols),
        ProductKernel::Portable => plain::rows(input, job, cols),
        kernel => unreachable!("{kernel:?} is planned for another machine"),
    }
}

impl<'a> ProductJob<'a> {
    /// `out` is `[n_rows, n_out]`.
    pub(crate) fn new(kernel: ProductKernel, weight: View<'a>, out: SharedPtr<f32>, mode: Mode) -> Result<Self, Error> {
        let (dtype, layout, n_out) = (weight.dtype, weight.layout, weight.n_rows());
        let weight = weight.host_bytes(OP, "weight")?;
        let n_units = if layout == Layout::Tiles { n_out.div_ceil(TILE_ROWS) } else { n_out };
        let stride = weight.len().checked_div(n_units).unwrap_or(0);
        Ok(Self { kernel, dtype, weight, stride, n_out, out, mode })
    }

    /// Writes or adds one number of the output.
    ///
    /// # Safety
    /// `row < n_rows`, `col < n_out`, and this task alone owns column `col`.
    pub(crate) unsafe fn put(&self, row: usize, col: usize, value: f32) {
        // SAFETY: inside `[n_rows, n_out]`; columns are split over tasks, so no other task touches this element.
        let out = unsafe { &mut self.out.slice(row * self.n_out + col, 1)[0] };
        match self.mode {
            Mode::Write => *out = value,
            Mode::Add => *out += value,
        }
    }
}
