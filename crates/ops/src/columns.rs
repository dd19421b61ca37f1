//! Puts rows together from two matrices, and takes a part of rows: compressed attention keeps what rope rotates
//! beside what is not.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::{Error, Exec, Gpu, View, ViewMut};

const OP: &str = "columns";
const THREADS: u32 = 256;

gpu::args! {
    pub(crate) struct JoinColumns<'a> {
        a: Slice<'a, f32>,
        b: Option<Slice<'a, f32>>,
        out: SliceMut<'a, f32>,
        a_step: u32,
        n_a: u32,
        n_b: u32,
        n_out: u32,
        n: u64,
    }
}

gpu::args! {
    pub(crate) struct TurnRows<'a> {
        x: Slice<'a, f32>,
        out: SliceMut<'a, f32>,
        n_outer: u32,
        n_inner: u32,
        n_cols: u32,
        n: u64,
    }
}

gpu::args! {
    pub(crate) struct NumberRows<'a> {
        out: SliceMut<'a, u32>,
        modulus: u32,
        n: u64,
    }
}

kernels! {
    pub(crate) struct ColumnKernels in "columns", overlapping {
        join: Kernel<JoinColumns<'static>> = ["join_columns"],
        turn: Kernel<TurnRows<'static>> = ["turn_rows"],
        number: Kernel<NumberRows<'static>> = ["number_rows"],
    }
}

/// A thread for each number of `out`.
fn grid(gpu: &Gpu, n: u64) -> Result<Grid, Error> {
    gpu.launcher.count(gpu::Work { bytes: 8 * n, flops: 0 });
    Ok(Grid::line(count(OP, "numbers", n.div_ceil(u64::from(THREADS)) as usize)?, THREADS))
}

/// `out[r] = [a[r][..n_a], b[r], 0...]` on a GPU.
fn launch_join(gpu: &Gpu, a: View, n_a: usize, b: Option<View>, out: &mut ViewMut) -> Result<(), Error> {
    let [n_rows, n_out] = out.shape;
    let n = (n_rows * n_out) as u64;
    if n == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    let args = JoinColumns {
        a: a.device_f32s(OP, "a")?,
        b: b.map(|b| b.device_f32s(OP, "b")).transpose()?,
        out: out.device_f32s(OP, "out")?,
        a_step: count(OP, "columns", a.shape[1])?,
        n_a: count(OP, "columns", n_a)?,
        n_b: count(OP, "columns", b.map_or(0, |b| b.shape[1]))?,
        n_out: count(OP, "columns", n_out)?,
        n,
    };
    Ok(gpu.launcher.launch(&ColumnKernels::get(gpu.kernels, &[])?.join, grid(gpu, n)?, &args)?)
}

/// Rows in another order: `x` is `[n_outer * n_inner, n_cols]`, and `out[i * n_outer + o] = x[o * n_inner + i]`.
pub fn turn_rows(exec: Exec, x: View, n_outer: usize, out: &mut ViewMut) -> Result<(), Error> {
    let [n_rows, n_cols] = x.shape;
    out.expect_shape(OP, "out", x.shape)?;
    if n_outer == 0 || !n_rows.is_multiple_of(n_outer) {
        return Err(Error::Argument { op: OP, what: format!("{n_rows} rows as {n_outer} times some") });
    }
    let n_inner = n_rows / n_outer;
    if n_rows * n_cols == 0 {
        return Ok(());
    }
    if let Exec::Gpu(gpu) = exec {
        let _op = gpu.launcher.op(OP);
        let n = (n_rows * n_cols) as u64;
        let args = TurnRows {
            x: x.device_f32s(OP, "x")?,
            out: out.device_f32s(OP, "out")?,
            n_outer: count(OP, "rows", n_outer)?,
            n_inner: count(OP, "rows", n_inner)?,
            n_cols: count(OP, "columns", n_cols)?,
            n,
        };
        return Ok(gpu.launcher.launch(&ColumnKernels::get(gpu.kernels, &[])?.turn, grid(gpu, n)?, &args)?);
    }
    let (x, out) = (x.f32s(OP, "x")?, out.f32s(OP, "out")?);
    for (row, out) in out.chunks_exact_mut(n_cols).enumerate() {
        out.copy_from_slice(&x[(row % n_outer * n_inner + row / n_outer) * n_cols..][..n_cols]);
    }
    Ok(())
}

/// `out[i] = i % modulus`, as bits; on a GPU only, whose products by experts read which matrix a row goes to.
pub fn number_rows(exec: Exec, modulus: usize, out: &mut ViewMut) -> Result<(), Error> {
    let gpu = exec.gpu_only(OP)?;
    let n = out.shape[0] as u64;
    out.expect_shape(OP, "out", [out.shape[0], 1])?;
    if n == 0 || modulus == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    let args = NumberRows { out: out.device_bytes(OP, "out")?.cast()?, modulus: count(OP, "rows", modulus)?, n };
    Ok(gpu.launcher.launch(&ColumnKernels::get(gpu.kernels, &[])?.number, grid(gpu, n)?, &args)?)
}

/// `out[r] = [a[r], b[r], 0...]`: `out` may be wider than both.
pub fn join_columns(exec: Exec, a: View, b: View, out: &mut ViewMut) -> Result<(), Error> {
    let ([n_rows, n_a], [_, n_b], n_out) = (a.shape, b.shape, out.shape[1]);
    b.expect_shape(OP, "b", [n_rows, n_b])?;
    out.expect_shape(OP, "out", [n_rows, n_out])?;
    if n_a + n_b > n_out || n_out == 0 {
        return Err(Error::Argument { op: OP, what: format!("{n_a} and {n_b} columns into {n_out}") });
    }
    if let Exec::Gpu(gpu) = exec {
        return launch_join(gpu, a, n_a, (n_b > 0).then_some(b), out);
    }
    // A matrix without columns has no bytes to look at.
    let b = if n_b == 0 { &[] } else { b.f32s(OP, "b")? };
    let (a, out) = (a.f32s(OP, "a")?, out.f32s(OP, "out")?);
    for (row, out) in out.chunks_exact_mut(n_out).enumerate() {
        let (left, rest) = out.split_at_mut(n_a);
        let (right, zeros) = rest.split_at_mut(n_b);
        left.copy_from_slice(&a[row * n_a..][..n_a]);
        right.copy_from_slice(&b[row * n_b..][..n_b]);
        zeros.fill(0.0);
    }
    Ok(())
}

/// The first columns: `out[r] = x[r][..n_out]`.
pub fn take_columns(exec: Exec, x: View, out: &mut ViewMut) -> Result<(), Error> {
    let ([n_rows, n_in], n_out) = (x.shape, out.shape[1]);
    out.expect_shape(OP, "out", [n_rows, n_out])?;
    if n_out > n_in || n_out == 0 {
        return Err(Error::Argument { op: OP, what: format!("{n_out} columns of {n_in}") });
    }
    if let Exec::Gpu(gpu) = exec {
        return launch_join(gpu, x, n_out, None, out);
    }
    let (x, out) = (x.f32s(OP, "x")?, out.f32s(OP, "out")?);
    for (row, out) in out.chunks_exact_mut(n_out).enumerate() {
        out.copy_from_slice(&x[row * n_in..][..n_out]);
    }
    Ok(())
}
