//! Products of activations with weights: `out[r, o] = sum_k x[r, k] * weight[o, k]`.
//!
//! Few rows and many rows are different problems. Few rows (decode) are bound by reading the weights, many rows
//! (prompts) by arithmetic. Four kernels share the work:
//! - `strip`: packed weights in tiles, unpacked in registers, 16-bit integers; few rows on AVX2, any number on AVX-512
//!   (its paired multiply-add does twice the work of f32);
//! - `panel`: weights decoded to f32 once into a layout for the registers, then used for every row; many rows;
//! - `dot`: plain numbers (F32, F16, BF16), few rows;
//! - `plain`: portable Rust for everything else.
//!
//! Faithfulness decides the arithmetic: activations are rounded to 16 bits per 32 of them where integers are used,
//! never to 8 (a model with outliers shows the difference in its text), and weights are never rounded again.

mod activations;
#[cfg(target_arch = "x86_64")]
mod dot;
mod launch;
#[cfg(target_arch = "x86_64")]
mod panel;
mod plain;
#[cfg(target_arch = "x86_64")]
mod strip;

use std::cell::RefCell;

use weights::Dtype;

use crate::isa::Isa;
use crate::quant::{Float, Format, TILE_ROWS, for_dtype};
use crate::view::Shared;
use crate::{Error, Exec, Layout, Pool, View, ViewMut, rmsnorm, swiglu};
use activations::Activations;

const OP: &str = "matmul";

/// Rows of weights that a task takes at the least: a multiple of every panel width.
const TASK_ROWS: usize = 32;
/// And at the most where many activation rows pass by: these weights stay in the second-level cache meanwhile.
const MAX_TASK_ROWS: usize = 128;
/// Tasks per thread that balance well; more only cost.
const TASKS_PER_THREAD: usize = 8;

/// One weight matrix and where its product goes.
pub struct Product<'w, 'o> {
    /// `[n_out, n_in]`
    pub weight: View<'w>,
    /// `[n_rows, n_out]`, f32
    pub out: ViewMut<'o>,
    pub mode: Mode,
}

impl<'w, 'o> Product<'w, 'o> {
    pub fn write(weight: View<'w>, out: ViewMut<'o>) -> Self {
        Self { weight, out, mode: Mode::Write }
    }

    pub fn add(weight: View<'w>, out: ViewMut<'o>) -> Self {
        Self { weight, out, mode: Mode::Add }
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
        product.weight.host_bytes(OP, "weight")?;
        if product.weight.layout == Layout::Tiles && pool.isa() == Isa::Plain {
            return Err(Error::Argument { op: OP, what: "tiles need AVX2".into() });
        }
        if product.weight.layout == Layout::Planes {
            return Err(Error::Argument { op: OP, what: "planes are for a GPU".into() });
        }
        product.out.f32s(OP, "out")?;
    }
    if n_rows == 0 || n_in == 0 {
        return Ok(());
    }
    match exec {
        Exec::Cpu(pool) => matmul_cpu(pool, x.f32s(OP, "x")?, n_rows, n_in, products),
        Exec::Gpu(gpu) => launch::launch(gpu, x, products),
    }
}

/// Products of `h = rmsnorm(x)`. Where the device can make `h` on the way into the product it is not written at all:
/// nobody else may read it.
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
        if launch::takes_left(left, products) {
            weight.expect_shape(OP, "weight", [1, x.n_cols()])?;
            check_shapes(x.shape, products)?;
            return launch::fused(gpu, left, products);
        }
    }
    rmsnorm(exec, x, weight, eps, h)?;
    matmul(exec, h.as_view(), products)
}

/// Products of `gate = silu(gate) * up`; else as [`norm_matmul`].
pub fn swiglu_matmul(exec: Exec, gate: &mut ViewMut, up: View, products: &mut [Product]) -> Result<(), Error> {
    if let Exec::Gpu(gpu) = exec {
        let left = launch::Left::Gated(gate.as_view(), up);
        if launch::takes_left(left, products) {
            up.expect_shape(OP, "up", gate.shape)?;
            check_shapes(gate.shape, products)?;
            return launch::fused(gpu, left, products);
        }
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

thread_local! {
    /// The rounded activations of the calling thread; grows to the largest batch once.
    static ACTIVATIONS: RefCell<Activations> = const { RefCell::new(Activations::new()) };
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

fn matmul_cpu(pool: &Pool, x: &[f32], n_rows: usize, n_in: usize, products: &mut [Product]) -> Result<(), Error> {
    let needs_rounding = products.iter().any(|p| p.weight.layout == Layout::Tiles && uses_integers(pool.isa(), n_rows));
    let jobs = products
        .iter_mut()
        .map(|p| {
            let weight = p.weight.host_bytes(OP, "weight")?;
            let n_out = p.weight.n_rows();
            let layout = p.weight.layout;
            let n_units = if layout == Layout::Tiles { n_out.div_ceil(TILE_ROWS) } else { n_out };
            let stride = weight.len().checked_div(n_units).unwrap_or(0);
            let out = Shared::new(p.out.f32s(OP, "out")?);
            Ok(Job { dtype: p.weight.dtype, layout, weight, stride, n_out, out, mode: p.mode })
        })
        .collect::<Result<Vec<Job>, Error>>()?;
    ACTIVATIONS.with_borrow_mut(|rounded| {
        if needs_rounding {
            let largest = jobs.iter().map(|job| {
                for_dtype!(job.dtype,
                    P => P::LARGEST_ACTIVATION,
                    P => { let _: Option<P> = None; f32::INFINITY },
                    P => P::ANY_ACTIVATION
                )
            });
            rounded.round(pool, x, n_rows, n_in, largest.fold(f32::INFINITY, f32::min));
        }
        let input = Input { isa: pool.isa(), x, n_rows, n_in, rounded };
        let n_out: usize = jobs.iter().map(|job| job.n_out).sum();
        let mut rows = n_out.div_ceil(pool.n_threads() * TASKS_PER_THREAD).next_multiple_of(TASK_ROWS);
        if n_rows > FEW_ROWS {
            rows = rows.min(MAX_TASK_ROWS);
        }
        let n_tasks: usize = jobs.iter().map(|job| job.n_out.div_ceil(rows)).sum();
        pool.run(n_tasks, |task_idx, _| {
            let (job, first) = locate(&jobs, task_idx, rows);
            run_task(&input, job, first..(first + rows).min(job.n_out));
        });
    });
    Ok(())
}

/// Which job and which first weight row a task means.
fn locate<'a, 'j>(jobs: &'j [Job<'a>], mut task_idx: usize, rows: usize) -> (&'j Job<'a>, usize) {
    for job in jobs {
        let n_tasks = job.n_out.div_ceil(rows);
        if task_idx < n_tasks {
            return (job, task_idx * rows);
        }
        task_idx -= n_tasks;
    }
    unreachable!("a task past the last job")
}

/// Whether products with tiles round their activations: always with AVX-512, for few rows with AVX2.
fn uses_integers(isa: Isa, n_rows: usize) -> bool {
    match isa {
        Isa::Plain => false,
        Isa::Avx2 => n_rows <= FEW_ROWS,
        Isa::Avx512 => true,
    }
}

/// Up to how many rows the kernels for few rows are used (AVX2 on Zen 4: 8 rows 66 GMAC/s here, 16 rows as much in
/// panels).
const FEW_ROWS: usize = 8;

#[cfg(target_arch = "x86_64")]
fn run_task(input: &Input, job: &Job, cols: std::ops::Range<usize>) {
    match (input.isa, job.layout) {
        (Isa::Plain, Layout::Rows) => plain::rows(input, job, cols),
        (Isa::Plain, Layout::Tiles) => unreachable!("tiles were refused"),
        (_, Layout::Planes) => unreachable!("planes were refused"),
        (isa, Layout::Tiles) if uses_integers(isa, input.n_rows) => strip::cols(input, job, cols),
        (_, Layout::Rows) if job.dtype.block_len() > 1 => plain::rows(input, job, cols),
        (_, Layout::Rows) if input.n_rows <= FEW_ROWS => dot::cols(input, job, cols),
        _ => cols
            .clone()
            .step_by(TASK_ROWS)
            .for_each(|first| panel::cols(input, job, first..(first + TASK_ROWS).min(cols.end))),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn run_task(input: &Input, job: &Job, cols: std::ops::Range<usize>) {
    plain::rows(input, job, cols)
}

impl Job<'_> {
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
