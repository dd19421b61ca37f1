//! Products by tiles of 64 x 64 in f32: for GPUs without matrix units, and for shapes that the other kernels do not take.

use gpu::{Grid, Kernel, Slice, SliceMut};

use super::formats::FormatSet;
use super::unit::{DefineValues, kernels};
use super::{THREADS, count, format_number};
use crate::matmul::{Mode, OP, Product};
use crate::{Error, Gpu, View};

const TILE: usize = 64;

gpu::args! {
    pub(crate) struct MatmulTile<'a> {
        pub x: Slice<'a, f32>,
        pub w: Slice<'a, u8>,
        pub out: SliceMut<'a, f32>,
        pub n_rows: u32,
        pub n_in: u32,
        pub n_out: u32,
        pub adds: u32,
    }
}

impl<'a> MatmulTile<'a> {
    /// The arguments of `product`, whose left side is `x`.
    pub fn of(x: View<'a>, product: &'a mut Product) -> Result<Self, Error> {
        let ([n_rows, n_in], n_out) = (x.shape, product.weight.n_rows());
        Ok(Self {
            x: x.device_f32s(OP, "x")?,
            w: product.weight.device_bytes(OP, "weight")?,
            n_rows: count(OP, "rows", n_rows)?,
            n_in: count(OP, "columns", n_in)?,
            n_out: count(OP, "weight rows", n_out)?,
            adds: u32::from(product.mode == Mode::Add),
            out: product.out.device_f32s(OP, "out")?,
        })
    }
}

kernels! {
    pub(crate) struct FloatTiles in "matmul"; defines { FORMAT: DefineValues::Formats(FormatSet::All) } {
        tile: Kernel<MatmulTile<'static>> = ["matmul_tile"],
    }
}

pub(crate) fn launch(gpu: &Gpu, x: View, product: &mut Product) -> Result<(), Error> {
    let (n_rows, n_out) = (x.n_rows(), product.weight.n_rows());
    let kernels = FloatTiles::get(gpu.kernels, &[format_number(product.weight.dtype)?])?;
    let args = MatmulTile::of(x, product)?;
    let blocks = |n: usize| count(OP, "tiles", n.div_ceil(TILE));
    let grid = Grid::plane(blocks(n_out)?, blocks(n_rows)?, THREADS);
    Ok(gpu.launcher.launch(&kernels.tile, grid, &args)?)
}
