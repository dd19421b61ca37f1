//! Products of activations with weights: `out[r, o] = sum_k x[r, k] * weight[o, k]`.
//!
//! Few rows and many rows are different problems. Few rows (decode) are bound by reading the weights, many rows
//! (prompts) by arithmetic. Eight kernels share the work:
//! - `strip`: packed weights in tiles, unpacked in registers, 16-bit integers; some rows;
//! - `unpacked`: the same weights unpacked once into pairs of 16 bits, then used for every row; many rows;
//! - `crossed`: as `unpacked` with half the multiplications, on AMD's cores;
//! - `bytes`: packed weights of two types against bytes and outliers, with AVX-512; still more rows;
//! - `panel`: plain numbers as f32 in a layout for the registers, used for every row; many rows;
//! - `dot`: plain numbers (F32, F16, BF16), few rows;
//! - `neon`: all of these on 64-bit ARM, from rows;
//! - `plain`: portable Rust for everything else.
//!
//! Faithfulness decides the arithmetic: activations are rounded to 16 bits per 32 of them where integers are used (many
//! rows with AVX-512: 13 to 16 bits per up to 256 of them), never plainly to 8 (a model with outliers shows the difference
//! in its text): the types that 16 bits cannot serve fast enough get bytes for what is small and f32 for what is not
//! (`clipped`), where a product may be coarse. Weights are never rounded again, but for those that meet an outlier there:
//! to 15 bits of a row's largest.

mod activations;
#[cfg(target_arch = "x86_64")]
mod bytes;
#[cfg(target_arch = "x86_64")]
mod clipped;
#[cfg(target_arch = "x86_64")]
mod crossed;
#[cfg(target_arch = "x86_64")]
mod dot;
mod experts;
mod grouped;
mod groups;
mod launch;
mod left;
mod mma;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod panel;
mod plain;
#[cfg(target_arch = "x86_64")]
mod strip;
mod units;
#[cfg(target_arch = "x86_64")]
mod unpacked;
mod vendor;

pub use experts::{MAX_GPU_EXPERTS, add_gated, choose_experts, expert_matmul, sum_experts};
pub use grouped::{ExpertMatrices, grouped_experts};
pub use groups::{Group, GroupProduct, group_matmul};

use std::cell::RefCell;

use weights::Dtype;

use crate::isa::Isa;
use crate::quant::{Format, GROUP, TILE_ROWS, for_block, largest_activation};
use crate::view::Shared;
use crate::{Error, Exec, Layout, Pool, View, ViewMut, observe, rmsnorm, swiglu};
use activations::{Activations, By, Rounding, Scaling};
#[cfg(target_arch = "x86_64")]
use crossed::Crossing;
use left::Left;

const OP: &str = "matmul";

/// Rows of weights that a task takes at the least, a *part*: a multiple of every panel width.
const TASK_ROWS: usize = 32;
/// Parts of a task at the most where many activation rows pass by: these weights stay in the second-level cache meanwhile.
const MAX_TASK_PARTS: usize = 4;
/// Tasks per thread that balance well; more only cost.
const TASKS_PER_THREAD: usize = 8;

/// One weight matrix and where its product goes.
pub struct Product<'w, 'o> {
    /// `[n_out, n_in]`
    pub weight: View<'w>,
    /// `[n_rows, n_out]`, f32
    pub out: ViewMut<'o>,
    pub mode: Mode,
    /// Whether activations may go in bytes, outliers apart, where the type of the weights gains by it.
    pub may_be_coarse: bool,
}

impl<'w, 'o> Product<'w, 'o> {
    pub fn write(weight: View<'w>, out: ViewMut<'o>) -> Self {
        Self { weight, out, mode: Mode::Write, may_be_coarse: false }
    }

    pub fn add(weight: View<'w>, out: ViewMut<'o>) -> Self {
        Self { weight, out, mode: Mode::Add, may_be_coarse: false }
    }

    /// For products that are most of a prompt's work and little of its error: those of a feed-forward layer, which make 80 %
    /// of the one and half of the other.
    pub fn coarse(self) -> Self {
        Self { may_be_coarse: true, ..self }
    }
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Mode {
    Write,
    /// Add to what is there: the residual connection.
    Add,
}

/// Several products of the same `x` (`[n_rows, n_in]`, f32) in one parallel region.
pub fn matmul(exec: Exec, x: View, products: &mut [Product]) -> Result<(), Error> {
    let [n_rows, n_in] = x.shape;
    for product in products.iter_mut() {
        let n_out = product.weight.n_rows();
        product.weight.expect_shape(OP, "weight", [n_out, n_in])?;
        product.out.expect_shape(OP, "out", [n_rows, n_out])?;
        let Exec::Cpu(pool) = exec else { continue };
        check_weight(pool, &product.weight)?;
        product.out.f32s(OP, "out")?;
    }
    if n_rows == 0 || n_in == 0 {
        return Ok(());
    }
    match exec {
        Exec::Cpu(pool) => {
            let x = x.f32s(OP, "x")?;
            observe::see(x, n_in, products.iter().filter_map(|product| product.weight.host_bytes(OP, "weight").ok()));
            matmul_cpu(pool, Left::Plain(x), [n_rows, n_in], products)
        }
        Exec::Gpu(gpu) => {
            gpu.launcher.count(work(x.shape, products));
            launch::launch(gpu, x, products)
        }
    }
}

/// Whether the CPU's kernels can read these weights.
fn check_weight(pool: &Pool, weight: &View) -> Result<(), Error> {
    weight.host_bytes(OP, "weight")?;
    match weight.layout {
        Layout::Tiles if pool.isa() < Isa::Avx2 => Err(Error::Argument { op: OP, what: "tiles need AVX2".into() }),
        Layout::Planes => Err(Error::Argument { op: OP, what: "planes are for a GPU".into() }),
        _ => Ok(()),
    }
}

/// Products of `h = rmsnorm(x)`. Where `h` can be made on the way into the product it is not written at all: nobody else
/// may read it.
pub fn norm_matmul(
    exec: Exec,
    x: View,
    weight: View,
    eps: f32,
    h: &mut ViewMut,
    products: &mut [Product],
) -> Result<(), Error> {
    if let Exec::Gpu(gpu) = exec {
        let left = launch::Left::Norm(x, weight, eps);
        if launch::takes_left(gpu, left, products) {
            weight.expect_shape(OP, "weight", [1, x.n_cols()])?;
            check_shapes(x.shape, products)?;
            gpu.launcher.count(work(x.shape, products));
            if launch::fused(gpu, left, products)? {
                return Ok(());
            }
        }
    }
    if let Exec::Cpu(pool) = exec
        && left::fuses(x.shape, products)
        && !observe::is_on()
    {
        weight.expect_shape(OP, "weight", [1, x.n_cols()])?;
        check_shapes(x.shape, products)?;
        let left = Left::Norm { x: x.f32s(OP, "x")?, weight: weight.f32s(OP, "weight")?, eps };
        return matmul_cpu(pool, left, x.shape, products);
    }
    rmsnorm(exec, x, weight, eps, h)?;
    matmul(exec, h.as_view(), products)
}

/// Products of `gate = silu(gate) * up`; else as [`norm_matmul`].
pub fn swiglu_matmul(exec: Exec, gate: &mut ViewMut, up: View, products: &mut [Product]) -> Result<(), Error> {
    if let Exec::Gpu(gpu) = exec {
        let left = launch::Left::Gated(gate.as_view(), up);
        if launch::takes_left(gpu, left, products) {
            up.expect_shape(OP, "up", gate.shape)?;
            check_shapes(gate.shape, products)?;
            gpu.launcher.count(work(gate.shape, products));
            if launch::fused(gpu, left, products)? {
                return Ok(());
            }
        }
    }
    if let Exec::Cpu(pool) = exec
        && left::fuses(gate.shape, products)
        && !observe::is_on()
    {
        up.expect_shape(OP, "up", gate.shape)?;
        check_shapes(gate.shape, products)?;
        let shape = gate.shape;
        let left = Left::Gated { gate: gate.f32s(OP, "gate")?, up: up.f32s(OP, "up")? };
        return matmul_cpu(pool, left, shape, products);
    }
    swiglu(exec, gate, up)?;
    matmul(exec, gate.as_view(), products)
}

fn check_shapes([n_rows, n_in]: [usize; 2], products: &[Product]) -> Result<(), Error> {
    for product in products {
        let n_out = product.weight.n_rows();
        product.weight.expect_shape(OP, "weight", [n_out, n_in])?;
        product.out.expect_shape(OP, "out", [n_rows, n_out])?;
    }
    Ok(())
}

/// The weights once, what goes in and what comes out; two operations a weight and row.
fn work([n_rows, n_in]: [usize; 2], products: &[Product]) -> gpu::Work {
    let n_out: usize = products.iter().map(|product| product.weight.n_rows()).sum();
    let weights: u64 = products.iter().map(|product| product.weight.n_bytes()).sum();
    gpu::Work {
        bytes: weights + 4 * (n_rows * (n_in + n_out)) as u64,
        flops: 2 * n_rows as u64 * n_in as u64 * n_out as u64,
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
struct Job<'a> {
    dtype: Dtype,
    layout: Layout,
    weight: &'a [u8],
    /// From one row to the next, or from one strip of sixteen to the next.
    stride: usize,
    n_out: usize,
    out: Shared<f32>,
    mode: Mode,
}

/// The left side, in the forms the kernels want.
struct Input<'a> {
    isa: Isa,
    x: &'a [f32],
    n_rows: usize,
    n_in: usize,
    rounded: &'a Activations,
}

/// Where all of these products go in bytes: one in how many numbers is left out of them.
#[cfg(target_arch = "x86_64")]
fn outliers(isa: Isa, jobs: &[Job], n_rows: usize) -> Option<usize> {
    if isa < Isa::Avx512 || n_rows < MANY_ROWS {
        return None;
    }
    let of_job = |job: &Job| match job.layout {
        Layout::Tiles => for_block!(job.dtype,
            P => P::OUTLIERS,
            P => { let _: Option<P> = None; None }
        ),
        _ => None,
    };
    jobs.iter().map(of_job).try_fold(usize::MAX, |least, outliers| Some(least.min(outliers?)))
}

fn matmul_cpu(pool: &Pool, left: Left, [n_rows, n_in]: [usize; 2], products: &mut [Product]) -> Result<(), Error> {
    let needs_rounding = products.iter().any(|p| takes_rounded(pool.isa(), &p.weight));
    #[cfg(target_arch = "x86_64")]
    let may_be_coarse = products.iter().all(|p| p.may_be_coarse);
    let jobs = products
        .iter_mut()
        .map(|p| Job::new(p.weight, Shared::new(p.out.f32s(OP, "out")?), p.mode))
        .collect::<Result<Vec<Job>, Error>>()?;
    #[cfg(target_arch = "x86_64")]
    if may_be_coarse && let Some(outliers) = outliers(pool.isa(), &jobs, n_rows) {
        return CLIPPED.with_borrow_mut(|clipped| {
            clipped.round(pool, &left, [n_rows, n_in], outliers, bytes::K_CHUNK);
            let tasks = tasks(&jobs, pool.n_threads(), n_rows);
            pool.run(tasks.len(), |task_idx, _| {
                let Task { job_idx, cols } = &tasks[task_idx];
                bytes::cols(clipped, n_rows, n_in, &jobs[*job_idx], cols.clone());
            });
            Ok(())
        });
    }
    ACTIVATIONS.with_borrow_mut(|rounded| {
        if needs_rounding {
            let rounding = rounding(pool.isa(), &jobs, n_rows);
            rounded.round(pool, By::Pool, &left, [n_rows, n_in], tile_rows(pool.isa(), n_rows), rounding);
        }
        let input = Input { isa: pool.isa(), x: left.plain(), n_rows, n_in, rounded };
        let tasks = tasks(&jobs, pool.n_threads(), n_rows);
        pool.run(tasks.len(), |task_idx, _| {
            let Task { job_idx, cols } = &tasks[task_idx];
            run_task(&input, &jobs[*job_idx], cols.clone());
        });
    });
    Ok(())
}

/// How the left side is rounded for these jobs: as the kernel wants it, with what every format needs.
fn rounding(isa: Isa, jobs: &[Job], n_rows: usize) -> Rounding {
    let mut rounding = Rounding {
        largest: f32::INFINITY,
        scaling: Scaling::Exact,
        together: 1,
        #[cfg(target_arch = "x86_64")]
        crossing: None,
        has_sums: false,
        has_halves: false,
    };
    let packed = || jobs.iter().filter(|job| is_rounded(isa, job.dtype, job.layout));
    if isa >= Isa::Avx512 && n_rows > SOME_ROWS {
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
    if isa == Isa::Zen4
        && rounding.scaling == Scaling::Power
        && let Some(largest_weight) = largest_to_cross(packed().map(|job| job.dtype))
    {
        let crossing = Crossing::of(rounding.largest, largest_weight);
        rounding.largest = rounding.largest.min(crossing.largest_activation(largest_weight) as f32);
        rounding.crossing = Some(crossing);
    }
    rounding
}

/// The largest integer of these formats, if a group has one scale in each.
#[cfg(target_arch = "x86_64")]
fn largest_to_cross(mut dtypes: impl Iterator<Item = Dtype>) -> Option<i32> {
    dtypes.try_fold(0, |largest, dtype| {
        for_block!(dtype,
            P => (P::SPAN == GROUP).then_some(largest.max(P::LARGEST)),
            P => { let _: Option<P> = None; None }
        )
    })
}

/// Some columns of one product.
struct Task {
    job_idx: usize,
    cols: std::ops::Range<usize>,
}

/// Cuts the products into tasks. Few rows: equal ones. Many rows: large ones first, small ones at the end, so that the
/// threads end together.
fn tasks(jobs: &[Job], n_threads: usize, n_rows: usize) -> Vec<Task> {
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

/// Up to how many rows the kernels for few rows are used.
const FEW_ROWS: usize = 8;
/// Up to how many rows weights are unpacked anew for every tile of activations.
const SOME_ROWS: usize = 24;
/// From how many rows on bytes and outliers pay for weights that are unpacked twice.
#[cfg(target_arch = "x86_64")]
const MANY_ROWS: usize = 64;

#[cfg(target_arch = "x86_64")]
fn tile_rows(isa: Isa, n_rows: usize) -> usize {
    strip::tile_rows(isa, n_rows)
}

#[cfg(target_arch = "aarch64")]
fn tile_rows(_isa: Isa, n_rows: usize) -> usize {
    neon::tile_rows(n_rows)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn tile_rows(_isa: Isa, _n_rows: usize) -> usize {
    1
}

/// Whether the kernel for these weights wants activations in 16 bits.
fn takes_rounded(isa: Isa, weight: &View) -> bool {
    is_rounded(isa, weight.dtype, weight.layout)
}

fn is_rounded(isa: Isa, dtype: Dtype, layout: Layout) -> bool {
    #[cfg(target_arch = "aarch64")]
    if isa == Isa::Neon {
        return neon::rounds(dtype);
    }
    let _ = (isa, dtype);
    layout == Layout::Tiles
}

#[cfg(target_arch = "x86_64")]
fn run_task(input: &Input, job: &Job, cols: std::ops::Range<usize>) {
    match (input.isa, job.layout) {
        (Isa::Plain | Isa::Neon, Layout::Rows) => plain::rows(input, job, cols),
        (Isa::Plain | Isa::Neon, Layout::Tiles) => unreachable!("tiles were refused"),
        (_, Layout::Planes) => unreachable!("planes were refused"),
        (_, Layout::Tiles) if input.n_rows <= SOME_ROWS => strip::cols(input, job, cols),
        (_, Layout::Tiles) => unpacked::cols(input, job, cols),
        (_, Layout::Rows) if job.dtype.block_len() > 1 => plain::rows(input, job, cols),
        (_, Layout::Rows) if input.n_rows <= FEW_ROWS => dot::cols(input, job, cols),
        _ => cols
            .clone()
            .step_by(TASK_ROWS)
            .for_each(|first| panel::cols(input, job, first..(first + TASK_ROWS).min(cols.end))),
    }
}

#[cfg(target_arch = "aarch64")]
fn run_task(input: &Input, job: &Job, cols: std::ops::Range<usize>) {
    if input.isa == Isa::Neon { neon::cols(input, job, cols) } else { plain::rows(input, job, cols) }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn run_task(input: &Input, job: &Job, cols: std::ops::Range<usize>) {
    plain::rows(input, job, cols)
}

impl<'a> Job<'a> {
    /// `out` is `[n_rows, n_out]`.
    fn new(weight: View<'a>, out: Shared<f32>, mode: Mode) -> Result<Self, Error> {
        let (dtype, layout, n_out) = (weight.dtype, weight.layout, weight.n_rows());
        let weight = weight.host_bytes(OP, "weight")?;
        let n_units = if layout == Layout::Tiles { n_out.div_ceil(TILE_ROWS) } else { n_out };
        let stride = weight.len().checked_div(n_units).unwrap_or(0);
        Ok(Self { dtype, layout, weight, stride, n_out, out, mode })
    }

    /// Writes or adds one number of the output.
    ///
    /// # Safety
    /// `row < n_rows`, `col < n_out`, and this task alone owns column `col`.
    unsafe fn put(&self, row: usize, col: usize, value: f32) {
        // SAFETY: inside `[n_rows, n_out]`; columns are split over tasks, so no other task touches this element.
        let out = unsafe { &mut self.out.slice(row * self.n_out + col, 1)[0] };
        match self.mode {
            Mode::Write => *out = value,
            Mode::Add => *out += value,
        }
    }
}
