//! Keeps what stands out of a row: `x = max(0, x - mean - k * deviation)`, a row at a time. Gemma 3n lets only a few
//! columns of a feed-forward gate through this way.

use gpu::{Grid, Kernel, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::view::SharedPtr;
use crate::{Error, Exec, ViewMut};

const OP: &str = "sparsify";
const THREADS: u32 = 256;

gpu::args! {
    pub(crate) struct Sparsify<'a> {
        x: SliceMut<'a, f32>,
        n_cols: u32,
        k: f32,
    }
}

kernels! {
    pub(crate) struct SparsifyKernels in "sparsify", overlapping {
        sparsify: Kernel<Sparsify<'static>> = ["sparsify"],
    }
}

/// `x` is `[n_rows, n_cols]` f32; `k` counts standard deviations.
pub fn sparsify(exec: Exec, x: &mut ViewMut, k: f32) -> Result<(), Error> {
    let [n_rows, n_cols] = x.shape;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => {
            if n_rows * n_cols == 0 {
                return Ok(());
            }
            let _op = gpu.launcher.op(OP);
            gpu.launcher.count(gpu::Work { bytes: 16 * (n_rows * n_cols) as u64, flops: 0 });
            let args = Sparsify { x: x.device_f32s(OP, "x")?, n_cols: count(OP, "columns", n_cols)?, k };
            let grid = Grid::line(count(OP, "rows", n_rows)?, THREADS);
            return Ok(gpu.launcher.launch(&SparsifyKernels::get(gpu.kernels, &[])?.sparsify, grid, &args)?);
        }
    };
    let x = SharedPtr::new(x.f32s(OP, "x")?);
    pool.run_ranges(n_rows, 8, |rows, _| {
        for row in rows {
            // SAFETY: each row belongs to one range and lies inside `x`.
            let x = unsafe { x.slice(row * n_cols, n_cols) };
            let n = n_cols.max(1) as f64;
            let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
            let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
            let cutoff = (mean + variance.sqrt() * f64::from(k)) as f32;
            x.iter_mut().for_each(|x| *x = (*x - cutoff).max(0.0));
        }
    });
    Ok(())
}
