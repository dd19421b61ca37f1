//! Gathers rows of any type into one piece and scatters them back, bit for bit: how blocks of a KV pool are copied to
//! another place and later into other blocks.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::{Error, Exec, Gpu, Indices, View, ViewMut};

const GATHER: &str = "gather_rows";
const SCATTER: &str = "scatter_rows";
const THREADS: u32 = 256;

gpu::args! {
    pub(crate) struct CopyRows<'a> {
        from: Slice<'a, u32>,
        rows: Slice<'a, u32>,
        to: SliceMut<'a, u32>,
        n_words: u32,
    }
}

kernels! {
    pub(crate) struct CopyRowsKernels in "copy_rows" {
        gather_rows: Kernel<CopyRows<'static>> = ["gather_rows"],
        scatter_rows: Kernel<CopyRows<'static>> = ["scatter_rows"],
    }
}

/// `to[i] = from[rows[i]]`, bit for bit.
pub fn gather_rows<'r>(exec: Exec, from: View, rows: impl Into<Indices<'r>>, to: &mut ViewMut) -> Result<(), Error> {
    let rows = rows.into();
    to.expect_shape(GATHER, "to", [rows.len(), from.n_cols()])?;
    check(GATHER, rows, from.n_rows(), from.dtype, to.dtype)?;
    if let Exec::Gpu(gpu) = exec {
        let (from, to) = (from.device_bytes(GATHER, "from")?, to.device_bytes(GATHER, "to")?);
        return launch(gpu, GATHER, from, rows, to);
    }
    let row_bytes = to.as_view().host_bytes(GATHER, "to")?.len().checked_div(rows.len()).unwrap_or(0);
    let (from, to) = (from.host_bytes(GATHER, "from")?, to.host_bytes(GATHER, "to")?);
    for (&row, to) in rows.host.iter().zip(to.chunks_exact_mut(row_bytes.max(1))) {
        to.copy_from_slice(&from[row as usize * row_bytes..][..row_bytes]);
    }
    Ok(())
}

/// `to[rows[i]] = from[i]`, bit for bit. No row may stand twice.
pub fn scatter_rows<'r>(exec: Exec, from: View, rows: impl Into<Indices<'r>>, to: &mut ViewMut) -> Result<(), Error> {
    let rows = rows.into();
    from.expect_shape(SCATTER, "from", [rows.len(), to.shape[1]])?;
    check(SCATTER, rows, to.shape[0], from.dtype, to.dtype)?;
    if let Exec::Gpu(gpu) = exec {
        let (from, to) = (from.device_bytes(SCATTER, "from")?, to.device_bytes(SCATTER, "to")?);
        return launch(gpu, SCATTER, from, rows, to);
    }
    let from = from.host_bytes(SCATTER, "from")?;
    let row_bytes = from.len().checked_div(rows.len()).unwrap_or(0);
    let to = to.host_bytes(SCATTER, "to")?;
    for (&row, from) in rows.host.iter().zip(from.chunks_exact(row_bytes.max(1))) {
        to[row as usize * row_bytes..][..row_bytes].copy_from_slice(from);
    }
    Ok(())
}

fn check(
    op: &'static str,
    rows: Indices,
    n_rows: usize,
    from: weights::Dtype,
    to: weights::Dtype,
) -> Result<(), Error> {
    if from != to {
        return Err(Error::Argument { op, what: format!("{from} into {to}") });
    }
    match rows.host.iter().find(|row| **row as usize >= n_rows) {
        Some(row) => Err(Error::Argument { op, what: format!("row {row} of {n_rows}") }),
        None => Ok(()),
    }
}

fn launch(gpu: &Gpu, op: &'static str, from: Slice<u8>, rows: Indices, to: gpu::SliceMut<u8>) -> Result<(), Error> {
    let n_bytes = if op == GATHER { to.len() } else { from.len() };
    if rows.is_empty() || n_bytes == 0 {
        return Ok(());
    }
    let row_bytes = n_bytes / rows.len();
    if !row_bytes.is_multiple_of(4) {
        return Err(Error::Argument { op, what: format!("rows of {row_bytes} bytes are no whole words") });
    }
    let _op = gpu.launcher.op(op);
    gpu.launcher.count(gpu::Work { bytes: 2 * n_bytes as u64, flops: 0 });
    let args = CopyRows {
        from: from.cast()?,
        rows: rows.on_device(op, "rows")?,
        to: to.cast()?,
        n_words: count(op, "words", row_bytes / 4)?,
    };
    let kernels = CopyRowsKernels::get(gpu.kernels, &[])?;
    let kernel = if op == GATHER { &kernels.gather_rows } else { &kernels.scatter_rows };
    let grid = Grid::line(count(op, "rows", rows.len())?, THREADS);
    Ok(gpu.launcher.launch(kernel, grid, &args)?)
}
