//! Products on a GPU. Five roads, by the number of rows:
//! - `matvec`: few rows, on packed weights, bound by reading them; up to three products in one launch;
//! - `mma`: some to a few hundred rows on packed or f16 weights, where the chip has such matrix units;
//! - `vendor`: its library, where it works and there are enough rows to pay for decoding the weights;
//! - `matmul_units`: the matrix units from f16 tiles, where the chip has them (`units.rs`);
//! - `matmul_tile`: f32 from tiles in shared memory, for everything else.

use gpu::{Args, Grid, Kernel, Program, Slice, SliceMut};
use weights::Dtype;

use super::experts::{ExpertPacked, ExpertPlain};
use super::{blas, mma, units};
use crate::embed::expect_device_layout;
use crate::gpu::{count, format_number};
use crate::matmul::{Mode, OP, Product};
use crate::{Error, Gpu, View};

/// Rows that one pass of `matvec` takes, and rows up to which passes of it are the way to go.
const PASS_ROWS: usize = 8;
const FEW_ROWS: usize = 16;
/// As [`FEW_ROWS`], where the vendor's library takes the weights without decoding.
const FEW_READY_ROWS: usize = 1;
const TILE: usize = 64;
pub(crate) const THREADS: u32 = 256;
pub(crate) const GROUP: usize = 32;

gpu::args! {
    struct RoundRows<'a> {
        x: Slice<'a, f32>,
        q: SliceMut<'a, u8>,
        scales: SliceMut<'a, f32>,
        n_groups: u32,
        n_all: u32,
    }
}

gpu::args! {
    struct SwigluRound<'a> {
        gate: Slice<'a, f32>,
        up: Slice<'a, f32>,
        q: SliceMut<'a, u8>,
        scales: SliceMut<'a, f32>,
        n_groups: u32,
        n_all: u32,
    }
}

gpu::args! {
    struct NormRound<'a> {
        x: Slice<'a, f32>,
        w: Slice<'a, f32>,
        q: SliceMut<'a, u8>,
        scales: SliceMut<'a, f32>,
        n_groups: u32,
        n_all: u32,
    }
}

#[derive(Clone)]
struct RoundUnit {
    rows: Kernel<RoundRows<'static>>,
    swiglu: Kernel<SwigluRound<'static>>,
    norm: Kernel<NormRound<'static>>,
}

fn round_unit(gpu: &Gpu) -> Result<RoundUnit, Error> {
    const ROUND: &str = "round";
    let program = || {
        Program::new(ROUND, include_str!("../../kernels/round.hip"))
            .overlapping()
            .kernel::<RoundRows>("round_rows")
            .kernel::<SwigluRound>("swiglu_round")
            .kernel::<NormRound>("norm_round")
    };
    gpu.kernels.get((ROUND, [0; 3]), program, |module| {
        Ok(RoundUnit {
            rows: module.kernel::<RoundRows>("round_rows")?,
            swiglu: module.kernel::<SwigluRound>("swiglu_round")?,
            norm: module.kernel::<NormRound>("norm_round")?,
        })
    })
}

/// What the left side of a product is made from, where nothing else reads it.
#[derive(Copy, Clone)]
pub(crate) enum Left<'a> {
    Plain(View<'a>),
    /// x, weight, eps
    Norm(View<'a>, View<'a>, f32),
    /// gate, up
    Gated(View<'a>, View<'a>),
}

impl Left<'_> {
    pub(crate) fn shape(&self) -> [usize; 2] {
        match self {
            Left::Plain(x) | Left::Norm(x, ..) | Left::Gated(x, _) => x.shape,
        }
    }
}

/// Rows up to which `matvec` is the way to go.
fn few(gpu: &Gpu, products: &[Product]) -> usize {
    // H200, F16 llama-8b, 8 sequences: 378 tokens/s by matvec. The library reads such weights as they are.
    let is_ready = products.iter().all(|p| p.weight.dtype == Dtype::F16) && blas::can(gpu, blas::HALVES);
    if is_ready { FEW_READY_ROWS } else { FEW_ROWS }
}

/// Whether the left side can be made on the way into the products.
pub(crate) fn takes_left(gpu: &Gpu, left: Left, products: &[Product]) -> bool {
    let [n_rows, n_in] = left.shape();
    let is_packed = |p: &Product| p.weight.dtype.block_len() > 1;
    if mma::takes([n_rows, n_in], products, gpu) {
        return true;
    }
    if n_rows > few(gpu, products) {
        return products.iter().all(|p| blas::takes_left(gpu, left, p));
    }
    n_in.is_multiple_of(GROUP) && products.iter().all(is_packed)
}

gpu::args! {
    pub(crate) struct MatvecPacked<'a> {
        q: Slice<'a, u8>,
        scales: Slice<'a, f32>,
        w0: Option<Slice<'a, u8>>,
        w1: Option<Slice<'a, u8>>,
        w2: Option<Slice<'a, u8>>,
        o0: Option<SliceMut<'a, f32>>,
        o1: Option<SliceMut<'a, f32>>,
        o2: Option<SliceMut<'a, f32>>,
        n0: u32,
        n1: u32,
        n2: u32,
        n_groups: u32,
        n_rows: u32,
        adds: u32,
        eps: f32,
    }
}

gpu::args! {
    pub(crate) struct MatvecPlain<'a> {
        x: Slice<'a, f32>,
        w0: Option<Slice<'a, u8>>,
        w1: Option<Slice<'a, u8>>,
        w2: Option<Slice<'a, u8>>,
        o0: Option<SliceMut<'a, f32>>,
        o1: Option<SliceMut<'a, f32>>,
        o2: Option<SliceMut<'a, f32>>,
        n0: u32,
        n1: u32,
        n2: u32,
        n_in: u32,
        n_rows: u32,
        adds: u32,
    }
}

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

/// The activations of packed products.
struct Rounded<'a> {
    q: Slice<'a, u8>,
    scales: Slice<'a, f32>,
}

/// The left side of `matvec`.
struct Few<'a> {
    x: Slice<'a, f32>,
    rounded: Option<Rounded<'a>>,
    /// Less than nothing where there is no norm.
    eps: f32,
    n_in: usize,
    rows: std::ops::Range<usize>,
}

pub(crate) fn launch(gpu: &Gpu, x: View, products: &mut [Product]) -> Result<(), Error> {
    let [n_rows, n_in] = x.shape;
    for product in products.iter() {
        expect_device_layout(OP, &product.weight)?;
    }
    let _op = gpu.launcher.op(OP);
    if mma::takes(x.shape, products, gpu) {
        return mma::launch(gpu, Left::Plain(x), products);
    }
    if n_rows <= few(gpu, products) {
        return few_rows(gpu, Left::Plain(x), products);
    }
    let mut made = blas::Made::default();
    for product in products {
        if product.weight.n_rows() == 0 {
            continue;
        }
        if blas::is_wanted(gpu, x.shape, product) && blas::launch(gpu, Left::Plain(x), &mut made, product)? {
            continue;
        }
        if units::takes(gpu, x.shape, product.weight.dtype) {
            units::launch(gpu, x, product)?;
            continue;
        }
        let args = MatmulTile {
            x: x.device_f32s(OP, "x")?,
            w: product.weight.device_bytes(OP, "weight")?,
            n_rows: count(OP, "rows", n_rows)?,
            n_in: count(OP, "columns", n_in)?,
            n_out: count(OP, "weight rows", product.weight.n_rows())?,
            adds: u32::from(product.mode == Mode::Add),
            out: product.out.device_f32s(OP, "out")?,
        };
        let format = format_number(product.weight.dtype)?;
        let program = || {
            Program::new(OP, include_str!("../../kernels/matmul.hip"))
                .define("FORMAT", format)
                .kernel::<MatmulTile>("matmul_tile")
        };
        let kernel =
            gpu.kernels.get((OP, [format, 0, 0]), program, |module| module.kernel::<MatmulTile>("matmul_tile"))?;
        let blocks = |n: usize| count(OP, "tiles", n.div_ceil(TILE));
        let grid = Grid::plane(blocks(product.weight.n_rows())?, blocks(n_rows)?, THREADS);
        gpu.launcher.launch(&kernel, grid, &args)?;
    }
    Ok(())
}

/// Products whose left side is made on the way; only where [`takes_left`] says so. `false` where the vendor's library
/// failed: they are still to be made.
pub(crate) fn fused(gpu: &Gpu, left: Left, products: &mut [Product]) -> Result<bool, Error> {
    for product in products.iter() {
        expect_device_layout(OP, &product.weight)?;
    }
    if left.shape().contains(&0) {
        return Ok(true);
    }
    let _op = gpu.launcher.op(OP);
    if mma::takes(left.shape(), products, gpu) {
        mma::launch(gpu, left, products)?;
    } else if left.shape()[0] <= few(gpu, products) {
        few_rows(gpu, left, products)?;
    } else {
        let mut made = blas::Made::default();
        for product in products {
            if !blas::launch(gpu, left, &mut made, product)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn few_rows(gpu: &Gpu, left: Left, products: &mut [Product]) -> Result<(), Error> {
    let [n_rows, n_in] = left.shape();
    let mut workspace = gpu.workspace.borrow_mut();
    let mut space = workspace.activations.all_mut();
    let (Left::Plain(x) | Left::Norm(x, ..) | Left::Gated(x, _)) = left;
    let x = x.device_f32s(OP, "x")?;
    let is_packed = |product: &Product| product.weight.dtype.block_len() > 1;
    let n_groups = n_in / GROUP;
    let (q_bytes, s_bytes) = (n_rows * n_groups * 64, n_rows * n_groups * 16);
    let rounded = if products.iter().any(is_packed) {
        let (mut q, rest) = space.slice_mut(..q_bytes + s_bytes)?.split_at(q_bytes)?;
        let mut scales = rest.cast::<f32>()?;
        round(gpu, left, q.reborrow(), scales.reborrow())?;
        true
    } else {
        false
    };
    let space = workspace.activations.all();
    let eps = if let Left::Norm(_, _, eps) = left { eps } else { -1.0 };
    for first in (0..n_rows).step_by(PASS_ROWS) {
        let rows = first..(first + PASS_ROWS).min(n_rows);
        let x = x.slice(rows.start * n_in..rows.end * n_in)?;
        let activations = if rounded {
            let q = space.slice(rows.start * n_groups * 64..rows.end * n_groups * 64)?;
            let scales = space.slice(q_bytes + rows.start * n_groups * 16..q_bytes + rows.end * n_groups * 16)?;
            Some(Rounded { q, scales: scales.cast()? })
        } else {
            None
        };
        let few = Few { x, rounded: activations, eps, n_in, rows };
        let mut rest = &mut *products;
        while let Some(lead) = rest.first() {
            let (dtype, mode) = (lead.weight.dtype, lead.mode);
            let alike = |p: &&Product| p.weight.dtype == dtype && p.mode == mode;
            let n = rest.iter().take(3).take_while(alike).count();
            let (now, later) = rest.split_at_mut(n);
            matvec(gpu, &few, now)?;
            rest = later;
        }
    }
    Ok(())
}

pub(crate) fn round(gpu: &Gpu, left: Left, q: SliceMut<u8>, scales: SliceMut<f32>) -> Result<(), Error> {
    let [n_rows, n_in] = left.shape();
    let unit = round_unit(gpu)?;
    let n_groups = count(OP, "groups", n_in / GROUP)?;
    let n_all = count(OP, "groups", n_rows * (n_in / GROUP))?;
    let grid = Grid::line((n_all * 32).div_ceil(THREADS), THREADS);
    match left {
        Left::Plain(x) => {
            let args = RoundRows { x: x.device_f32s(OP, "x")?, q, scales, n_groups, n_all };
            gpu.launcher.launch(&unit.rows, grid, &args)?;
        }
        Left::Gated(gate, up) => {
            let (gate, up) = (gate.device_f32s(OP, "gate")?, up.device_f32s(OP, "up")?);
            gpu.launcher.launch(&unit.swiglu, grid, &SwigluRound { gate, up, q, scales, n_groups, n_all })?;
        }
        Left::Norm(x, weight, _) => {
            let (x, w) = (x.device_f32s(OP, "x")?, weight.device_f32s(OP, "weight")?);
            gpu.launcher.launch(&unit.norm, grid, &NormRound { x, w, q, scales, n_groups, n_all })?;
        }
    }
    Ok(())
}

/// Up to three products of one type and mode, some rows of the whole batch.
fn matvec(gpu: &Gpu, few: &Few, products: &mut [Product]) -> Result<(), Error> {
    let Few { x, rounded, eps, n_in, rows } = few;
    let (x, eps, n_in) = (*x, *eps, *n_in);
    let (dtype, adds) = (products[0].weight.dtype, u32::from(products[0].mode == Mode::Add));
    let (waves, outs) = waves_and_outs(gpu, dtype);
    let mut parts = Vec::with_capacity(3);
    let mut n_units = 0;
    for product in products {
        let n_out = product.weight.n_rows();
        let out = product.out.device_f32s(OP, "out")?.into_slice(rows.start * n_out..rows.end * n_out)?;
        let n_out = count(OP, "weight rows", n_out)?;
        n_units += n_out.div_ceil(outs);
        parts.push((product.weight.device_bytes(OP, "weight")?, out, n_out));
    }
    if n_units == 0 {
        return Ok(());
    }
    let mut parts = parts.into_iter();
    let mut next = || parts.next().map_or((None, None, 0), |(w, o, n)| (Some(w), Some(o), n));
    let [(w0, o0, n0), (w1, o1, n1), (w2, o2, n2)] = [next(), next(), next()];
    let n_rows = count(OP, "rows", rows.len())?;
    let variant = rows.len().next_power_of_two().trailing_zeros() as usize;
    let wave = gpu.kernels.device().properties().wave_width;
    let grid = Grid::line(n_units.div_ceil(waves), waves * wave);
    if let Some(Rounded { q, scales }) = rounded.as_ref().filter(|_| dtype.block_len() > 1) {
        let unit = matvec_unit::<MatvecPacked, ExpertPacked>(gpu, dtype)?;
        let n_groups = count(OP, "groups", n_in / GROUP)?;
        let (q, scales) = (*q, *scales);
        let args = MatvecPacked { q, scales, w0, w1, w2, o0, o1, o2, n0, n1, n2, n_groups, n_rows, adds, eps };
        return Ok(gpu.launcher.launch(&unit.few[variant], grid, &args)?);
    }
    let unit = matvec_unit::<MatvecPlain, ExpertPlain>(gpu, dtype)?;
    let n_in = count(OP, "columns", n_in)?;
    let args = MatvecPlain { x, w0, w1, w2, o0, o1, o2, n0, n1, n2, n_in, n_rows, adds };
    Ok(gpu.launcher.launch(&unit.few[variant], grid, &args)?)
}

/// The kernels of matvec.hip for one type of weights: for 1, 2, 4 and 8 rows, and for pairs of row and expert.
pub(crate) struct MatvecUnit<F, E> {
    few: [Kernel<F>; 4],
    pub expert: Kernel<E>,
}

impl<F, E> Clone for MatvecUnit<F, E> {
    fn clone(&self) -> Self {
        Self { few: self.few.clone(), expert: self.expert.clone() }
    }
}

pub(crate) fn matvec_unit<F: Args, E: Args>(gpu: &Gpu, dtype: Dtype) -> Result<MatvecUnit<F::Key, E::Key>, Error> {
    const NAME: &str = "matvec";
    const VARIANTS: [&str; 4] = ["matvec_1", "matvec_2", "matvec_4", "matvec_8"];
    let format = format_number(dtype)?;
    let (waves, outs) = waves_and_outs(gpu, dtype);
    let program = || {
        let program = Program::new(NAME, include_str!("../../kernels/matvec.hip"))
            .overlapping()
            .define("FORMAT", format)
            .define("WAVES", waves)
            .define("OUTS", outs)
            .kernel::<E>("matvec_expert");
        VARIANTS.iter().fold(program, |program, name| program.kernel::<F>(name))
    };
    gpu.kernels.get((NAME, [format, 0, 0]), program, |module| {
        let [a, b, c, d] = VARIANTS.map(|name| module.kernel::<F>(name));
        Ok(MatvecUnit { few: [a?, b?, c?, d?], expert: module.kernel::<E>("matvec_expert")? })
    })
}

/// Waves of a block and weight rows of a wave, as matvec.hip is compiled for this chip.
pub(crate) fn waves_and_outs(gpu: &Gpu, dtype: Dtype) -> (u32, u32) {
    let tuning = gpu.kernels.tuning;
    (tuning.waves, if dtype.block_len() > 1 { tuning.packed_outs } else { tuning.plain_outs })
}
