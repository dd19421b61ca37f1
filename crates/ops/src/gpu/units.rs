//! Products of many rows on the matrix units, by our own kernel: one source for every chip that has them. Weights become
//! f16 tiles on the way; what f16 cannot hold (f32 and bf16 weights) stays with the kernel that computes in f32.

use gpu::{Grid, Program};
use weights::Dtype;

use super::matmul::MatmulTile;
use crate::gpu::{count, format_number};
use crate::matmul::{Mode, OP, Product};
use crate::{Error, Gpu, View};

const NAME: &str = "matmul_units";
const THREADS: u32 = 256;
const ROWS: usize = 64;
const OUTS: usize = 128;
const GROUP: usize = 32;

/// Whether this product can go there; why not is noted once.
pub(crate) fn takes(gpu: &Gpu, [n_rows, n_in]: [usize; 2], dtype: Dtype) -> bool {
    if n_rows < gpu.kernels.tuning.units_rows as usize || n_rows == 0 {
        return false;
    }
    let device = gpu.kernels.device();
    let why = if !device.has_matrix_units() {
        format!("{} has none that the kernels use", device.properties().arch)
    } else if !has_kernel(dtype) {
        format!("{dtype} weights do not fit f16")
    } else if !n_in.is_multiple_of(GROUP) {
        format!("rows of {n_in} are no multiple of {GROUP}")
    } else {
        return true;
    };
    gpu.kernels.refuse(format!("products of many rows on the matrix units: {why}"));
    false
}

/// Formats that the kernel is compiled for.
pub(crate) fn has_kernel(dtype: Dtype) -> bool {
    dtype == Dtype::F16 || (dtype.block_len() > 1 && format_number(dtype).is_ok())
}

pub(crate) fn program(format: u32) -> Program {
    Program::new(NAME, include_str!("../../kernels/matmul_units.hip"))
        .define("FORMAT", format)
        .kernel::<MatmulTile>(NAME)
}

/// Only where [`takes`] says so.
pub(crate) fn launch(gpu: &Gpu, x: View, product: &mut Product) -> Result<(), Error> {
    let ([n_rows, n_in], n_out, dtype) = (x.shape, product.weight.n_rows(), product.weight.dtype);
    let format = format_number(dtype)?;
    let kernel =
        gpu.kernels.get((NAME, [format, 0, 0]), || program(format), |module| module.kernel::<MatmulTile>(NAME))?;
    let args = MatmulTile {
        x: x.device_f32s(OP, "x")?,
        w: product.weight.device_bytes(OP, "weight")?,
        n_rows: count(OP, "rows", n_rows)?,
        n_in: count(OP, "columns", n_in)?,
        n_out: count(OP, "weight rows", n_out)?,
        adds: u32::from(product.mode == Mode::Add),
        out: product.out.device_f32s(OP, "out")?,
    };
    let blocks = |n: usize| count(OP, "tiles", n);
    let grid = Grid::plane(blocks(n_out.div_ceil(OUTS))?, blocks(n_rows.div_ceil(ROWS))?, THREADS);
    Ok(gpu.launcher.launch(&kernel, grid, &args)?)
}
