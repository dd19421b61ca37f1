//! Picks rows: after the last attention, only the rows that somebody wants go on.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::{Error, Exec, Gpu, Indices, View, ViewMut};

const OP: &str = "take_rows";
const THREADS: u32 = 256;

gpu::args! {
    pub(crate) struct TakeRows<'a> {
        x: Slice<'a, f32>,
        rows: Slice<'a, u32>,
        out: SliceMut<'a, f32>,
        n_cols: u32,
    }
}

kernels! {
    pub(crate) struct TakeRowsKernels in "take_rows", overlapping {
        take_rows: Kernel<TakeRows<'static>> = ["take_rows"],
    }
}

/// `out[i] = x[rows[i]]`, f32.
pub fn take_rows<'r>(exec: Exec, x: View, rows: impl Into<Indices<'r>>, out: &mut ViewMut) -> Result<(), Error> {
    let rows = rows.into();
    let [n_rows, n_cols] = x.shape;
    out.expect_shape(OP, "out", [rows.len(), n_cols])?;
    if let Some(row) = rows.host.iter().find(|row| **row as usize >= n_rows) {
        return Err(Error::Argument { op: OP, what: format!("row {row} of {n_rows}") });
    }
    if let Exec::Gpu(gpu) = exec {
        return launch(gpu, x, rows, out);
    }
    let (x, out) = (x.f32s(OP, "x")?, out.f32s(OP, "out")?);
    for (&row, out) in rows.host.iter().zip(out.chunks_exact_mut(n_cols.max(1))) {
        out.copy_from_slice(&x[row as usize * n_cols..][..n_cols]);
    }
    Ok(())
}

fn launch(gpu: &Gpu, x: View, rows: Indices, out: &mut ViewMut) -> Result<(), Error> {
    if rows.is_empty() || x.n_cols() == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 8 * (rows.len() * x.n_cols()) as u64, flops: 0 });
    let args = TakeRows {
        x: x.device_f32s(OP, "x")?,
        rows: rows.on_device(OP, "rows")?,
        out: out.device_f32s(OP, "out")?,
        n_cols: count(OP, "columns", x.n_cols())?,
    };
    let kernels = TakeRowsKernels::get(gpu.kernels, &[])?;
    let grid = Grid::line(count(OP, "rows", rows.len())?, THREADS);
    Ok(gpu.launcher.launch(&kernels.take_rows, grid, &args)?)
}
