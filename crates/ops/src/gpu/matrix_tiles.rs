//! Products of many rows on the matrix units, by our own kernel: one source for every chip that has them. Weights become
//! f16 tiles on the way; what f16 cannot hold (f32 and bf16 weights) stays with the kernel that computes in f32.

use gpu::{Grid, Kernel};

use super::float_tiles::MatmulTile;
use super::formats::FormatSet;
use super::unit::{DefineValues, kernels};
use super::{count, format_number};
use crate::matmul::{Mode, OP, Product};
use crate::{Error, Gpu, View};

const THREADS: u32 = 256;
const ROWS: usize = 64;
const OUTS: usize = 128;

kernels! {
    pub(crate) struct MatrixTiles in "matmul_units"; defines { FORMAT: DefineValues::Formats(FormatSet::Halves) } {
        tile: Kernel<MatmulTile<'static>> = ["matmul_units"],
    }
}

pub(crate) fn launch(gpu: &Gpu, x: View, product: &mut Product) -> Result<(), Error> {
    let ([n_rows, n_in], n_out, dtype) = (x.shape, product.weight.n_rows(), product.weight.dtype);
    let kernels = MatrixTiles::get(gpu.kernels, &[format_number(dtype)?])?;
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
    Ok(gpu.launcher.launch(&kernels.tile, grid, &args)?)
}
