//! Products of many rows on the matrix units, by our own kernel: one source for every chip that has them. Weights become
//! f16 tiles on the way; what f16 cannot hold (f32 and bf16 weights) stays with the kernel that computes in f32.

use gpu::{Grid, Kernel};

use super::float_tiles::MatmulTile;
use super::formats::FormatSet;
use super::unit::{DefineValues, kernels};
use super::{count, format_number};
use crate::matmul::{OP, Product};
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
    let (n_rows, n_out, dtype) = (x.n_rows(), product.weight.n_rows(), product.weight.dtype);
    let kernels = MatrixTiles::get(gpu.kernels, &[format_number(dtype)?])?;
    let args = MatmulTile::of(x, product)?;
    let blocks = |n: usize| count(OP, "tiles", n);
    let grid = Grid::plane(blocks(n_out.div_ceil(OUTS))?, blocks(n_rows.div_ceil(ROWS))?, THREADS);
    Ok(gpu.launcher.launch(&kernels.tile, grid, &args)?)
}
