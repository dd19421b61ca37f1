//! Heads turned by a Walsh-Hadamard matrix: a rotation that is its own inverse. Queries and keys that are turned alike have
//! the same products, but what stood out in a few numbers of a head is spread over all of them, so that quantized keys and
//! values lose less. The model decides when.

use gpu::{Grid, Kernel, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, ViewMut};

const OP: &str = "hadamard";
const THREADS: u32 = 256;
/// Columns of a block on a GPU: the widest turn fits in it.
const COLUMNS: usize = 1024;
const MAX_WIDTH: usize = 256;

gpu::args! {
    pub(crate) struct Hadamard<'a> {
        a: SliceMut<'a, f32>,
        b: Option<SliceMut<'a, f32>>,
        c: Option<SliceMut<'a, f32>>,
        n_a: u32,
        n_b: u32,
        n_c: u32,
        width: u32,
        factor: f32,
    }
}

kernels! {
    pub(crate) struct HadamardKernels in "hadamard", overlapping {
        hadamard: Kernel<Hadamard<'static>> = ["hadamard"],
    }
}

/// How many neighbouring numbers of a head are turned together: the largest power of two that its size is a multiple of.
pub fn hadamard_width(head_dim: usize) -> usize {
    if head_dim == 0 { 1 } else { (1 << head_dim.trailing_zeros()).min(MAX_WIDTH) }
}

/// Turns every `width` neighbouring numbers of each row of one to three matrices of as many rows, f32. Doing it twice
/// changes nothing but the last bits.
pub fn hadamard(exec: Exec, matrices: &mut [ViewMut], width: usize) -> Result<(), Error> {
    let bad = |what: String| Err(Error::Argument { op: OP, what });
    if !width.is_power_of_two() || width > MAX_WIDTH {
        return bad(format!("a width of {width}, a power of two up to {MAX_WIDTH} fits"));
    }
    let n_rows = matrices.first().map_or(0, |matrix| matrix.shape[0]);
    if let Some(shape) = matrices.iter().map(|m| m.shape).find(|[n, cols]| *n != n_rows || !cols.is_multiple_of(width))
    {
        return bad(format!("a matrix {shape:?} beside {n_rows} rows, turned by {width} columns"));
    }
    let factor = 1.0 / (width as f32).sqrt();
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return launch(gpu, matrices, n_rows, (width, factor)),
    };
    for matrix in matrices {
        let n_cols = matrix.shape[1];
        let x = SharedPtr::new(matrix.f32s(OP, "x")?);
        pool.run_ranges(n_rows, 4, |rows, _| {
            // SAFETY: each row belongs to one range and lies inside the matrix.
            let rows = unsafe { x.slice(rows.start * n_cols, rows.len() * n_cols) };
            rows.chunks_exact_mut(width).for_each(|numbers| turn(numbers, factor));
        });
    }
    Ok(())
}

fn turn(numbers: &mut [f32], factor: f32) {
    let mut step = 1;
    while step < numbers.len() {
        for pair in numbers.chunks_exact_mut(2 * step) {
            let (low, high) = pair.split_at_mut(step);
            for (low, high) in low.iter_mut().zip(high) {
                (*low, *high) = (*low + *high, *low - *high);
            }
        }
        step *= 2;
    }
    numbers.iter_mut().for_each(|x| *x *= factor);
}

fn launch(gpu: &Gpu, matrices: &mut [ViewMut], n_rows: usize, (width, factor): (usize, f32)) -> Result<(), Error> {
    let n_cols: Vec<u32> =
        matrices.iter().map(|matrix| count(OP, "columns", matrix.shape[1])).collect::<Result<_, _>>()?;
    let widest = n_cols.iter().copied().max().unwrap_or(0);
    if n_rows == 0 || widest == 0 {
        return Ok(());
    }
    let n_matrices = n_cols.len();
    let mut rest = matrices.iter_mut().map(|matrix| matrix.device_f32s(OP, "x"));
    let (Some(a), b, c, None) = (rest.next(), rest.next(), rest.next(), rest.next()) else {
        return Err(Error::Argument { op: OP, what: format!("{n_matrices} matrices, up to three fit") });
    };
    let _op = gpu.launcher.op(OP);
    let n: u64 = n_cols.iter().map(|n| u64::from(*n) * n_rows as u64).sum();
    gpu.launcher.count(gpu::Work { bytes: 8 * n, flops: n * u64::from(width.ilog2()) });
    let kernels = HadamardKernels::get(gpu.kernels, &[])?;
    let columns = |i: usize| n_cols.get(i).copied().unwrap_or(0);
    let args = Hadamard {
        a: a?,
        b: b.transpose()?,
        c: c.transpose()?,
        n_a: columns(0),
        n_b: columns(1),
        n_c: columns(2),
        width: width as u32,
        factor,
    };
    let blocks = [count(OP, "rows", n_rows)?, widest.div_ceil(COLUMNS as u32), n_matrices as u32];
    let grid = Grid { blocks, threads: [THREADS, 1, 1], shared_bytes: 0 };
    Ok(gpu.launcher.launch(&kernels.hadamard, grid, &args)?)
}
