//! Products on a GPU, launched as `plan.rs` says.

use gpu::{Grid, Kernel, Slice, SliceMut};

use super::formats::FormatSet;
use super::unit::{Values, kernels};
use super::{blas, count, format_number, matrix_tiles, matvec, mma};
use crate::embed::expect_device_layout;
use crate::matmul::{Mode, OP, Product};
use crate::plan::{self, BlasTypes, Machine, ProductChip, ProductKernel, ProductPlan, ProductShape};
use crate::{Error, Gpu, View};

const TILE: usize = 64;
pub(crate) const THREADS: u32 = 256;

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

kernels! {
    pub(crate) struct FloatTiles in "matmul"; defines { FORMAT: Values::Formats(FormatSet::All) } {
        tile: Kernel<MatmulTile<'static>> = ["matmul_tile"],
    }
}

/// What the left side of a product is made from, where nothing else reads it.
#[derive(Copy, Clone)]
pub(crate) enum DeviceLeft<'a> {
    Rows(View<'a>),
    Norm { x: View<'a>, weight: View<'a>, eps: f32 },
    Gated { gate: View<'a>, up: View<'a> },
}

impl DeviceLeft<'_> {
    pub(crate) fn shape(&self) -> [usize; 2] {
        match self {
            DeviceLeft::Rows(x) | DeviceLeft::Norm { x, .. } | DeviceLeft::Gated { gate: x, .. } => x.shape,
        }
    }
}

/// What a plan has to know of this device.
pub(crate) fn chip(gpu: &Gpu) -> ProductChip {
    let device = gpu.kernels.device();
    let can = |kinds| gpu.blas.is_some_and(|blas| blas.can(kinds));
    ProductChip {
        tuning: gpu.kernels.tuning,
        has_mma: device.has_mma(),
        has_matrix_units: device.has_matrix_units(),
        blas: BlasTypes { is_there: gpu.blas.is_some(), halves: can(blas::HALVES), floats: can(blas::FLOATS) },
        activation_bytes: gpu.workspace.borrow().activations.len(),
    }
}

/// `false` where the vendor's library failed on a left side that is not plain rows: the products are still to be made.
pub(crate) fn launch(gpu: &Gpu, left: DeviceLeft, products: &mut [Product], plan: &ProductPlan) -> Result<bool, Error> {
    for product in products.iter() {
        expect_device_layout(OP, &product.weight)?;
    }
    if left.shape().contains(&0) {
        return Ok(true);
    }
    if let Some(refused) = plan.refused {
        gpu.kernels.refuse(refused.to_string());
    }
    let _op = gpu.launcher.op(OP);
    if plan.is(ProductKernel::Mma) {
        return mma::launch(gpu, left, products).map(|()| true);
    }
    if plan.is(ProductKernel::Matvec) {
        return matvec::launch(gpu, left, products).map(|()| true);
    }
    let mut made = blas::Made::default();
    for (product, kernel) in products.iter_mut().zip(&plan.kernels) {
        if product.weight.n_rows() == 0 {
            continue;
        }
        match (kernel, left) {
            (ProductKernel::Blas, _) => {
                let is_done = blas::launch(gpu, left, &mut made, product)?;
                let DeviceLeft::Rows(x) = left else {
                    if is_done {
                        continue;
                    }
                    return Ok(false);
                };
                if !is_done {
                    many_rows(gpu, x, product, without_blas(gpu, x.shape, product))?;
                }
            }
            (_, DeviceLeft::Rows(x)) => many_rows(gpu, x, product, *kernel)?,
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// The kernel for a product that the library was meant for and failed on.
fn without_blas(gpu: &Gpu, [n_rows, n_in]: [usize; 2], product: &Product) -> ProductKernel {
    let chip = ProductChip { blas: BlasTypes::default(), ..chip(gpu) };
    let weights = [product.weight.kind()];
    let shape = ProductShape { n_rows, n_in, weights: &weights, may_be_coarse: false };
    plan::plan(Machine::Gpu(chip), gpu.kernels.numerics(), &shape).kernels[0]
}

fn many_rows(gpu: &Gpu, x: View, product: &mut Product, kernel: ProductKernel) -> Result<(), Error> {
    match kernel {
        ProductKernel::MatrixTiles => matrix_tiles::launch(gpu, x, product),
        ProductKernel::Mma => mma::launch(gpu, DeviceLeft::Rows(x), std::slice::from_mut(product)),
        ProductKernel::Matvec => matvec::launch(gpu, DeviceLeft::Rows(x), std::slice::from_mut(product)),
        _ => float_tiles(gpu, x, product),
    }
}

fn float_tiles(gpu: &Gpu, x: View, product: &mut Product) -> Result<(), Error> {
    let ([n_rows, n_in], n_out) = (x.shape, product.weight.n_rows());
    let kernels = FloatTiles::get(gpu.kernels, &[format_number(product.weight.dtype)?])?;
    let args = MatmulTile {
        x: x.device_f32s(OP, "x")?,
        w: product.weight.device_bytes(OP, "weight")?,
        n_rows: count(OP, "rows", n_rows)?,
        n_in: count(OP, "columns", n_in)?,
        n_out: count(OP, "weight rows", n_out)?,
        adds: u32::from(product.mode == Mode::Add),
        out: product.out.device_f32s(OP, "out")?,
    };
    let blocks = |n: usize| count(OP, "tiles", n.div_ceil(TILE));
    let grid = Grid::plane(blocks(n_out)?, blocks(n_rows)?, THREADS);
    Ok(gpu.launcher.launch(&kernels.tile, grid, &args)?)
}
