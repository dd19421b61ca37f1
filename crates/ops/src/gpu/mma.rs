//! Products of some to a few hundred rows on NVIDIA's matrix units, from packed or f16 weights as they lie
//! (kernels/matmul_mma.hip). The left side becomes halves on the way, laid out as the kernel reads them
//! (kernels/halves.hip); where there are too few tiles for the chip, the columns are cut into parts that are added up.

use gpu::{Grid, Kernel, Program, Slice, SliceMut};
use weights::Dtype;

use super::matmul::Left;
use crate::gpu::{count, format_number};
use crate::matmul::{Mode, OP, Product};
use crate::{Error, Gpu};

const THREADS: u32 = 128;
const HALVES_THREADS: u32 = 256;
const GROUP: usize = 32;
/// Columns of a step of the kernel, and weight rows of a block.
const STEP: usize = 128;
const BLOCK_OUTS: usize = 128;
/// A part of the columns is at least this many steps: less does not pay for adding it up.
const MIN_PART_STEPS: usize = 2;
const MAX_PARTS: usize = 16;
/// Names of the variants, rows of x of a block in tiles of eight, stages of x in shared memory, and blocks that a
/// multiprocessor gets: H200, Q4_K_M llama-8b at depth 512, tokens/s with 2, 3, 4: of 8 sequences 1544 1691 2199, of 32
/// 5378 5820 5654, of 64 8227 7328 7464, of 128 9844 8940 9486.
const VARIANTS: [(&str, usize, usize, usize); 4] =
    [("matmul_mma_1", 1, 4, 4), ("matmul_mma_2", 2, 4, 4), ("matmul_mma_4", 4, 3, 3), ("matmul_mma_8", 8, 3, 2)];

gpu::args! {
    struct HalvesRows<'a> {
        x: Slice<'a, f32>,
        out: SliceMut<'a, u32>,
        n_cols: u32,
        n_x_rows: u32,
        is_plain: u32,
    }
}

gpu::args! {
    struct HalvesSwiglu<'a> {
        gate: Slice<'a, f32>,
        up: Slice<'a, f32>,
        out: SliceMut<'a, u32>,
        n_cols: u32,
        n_x_rows: u32,
        is_plain: u32,
    }
}

gpu::args! {
    struct HalvesRmsnorm<'a> {
        x: Slice<'a, f32>,
        w: Slice<'a, f32>,
        out: SliceMut<'a, u32>,
        n_cols: u32,
        n_x_rows: u32,
        is_plain: u32,
        eps: f32,
    }
}

gpu::args! {
    struct Mma<'a> {
        x: Slice<'a, u32>,
        w0: Option<Slice<'a, u8>>,
        w1: Option<Slice<'a, u8>>,
        w2: Option<Slice<'a, u8>>,
        o0: Option<SliceMut<'a, f32>>,
        o1: Option<SliceMut<'a, f32>>,
        o2: Option<SliceMut<'a, f32>>,
        parts: SliceMut<'a, f32>,
        n0: u32,
        n1: u32,
        n2: u32,
        n_groups: u32,
        n_rows: u32,
        n_x_rows: u32,
        n_parts: u32,
        adds: u32,
    }
}

gpu::args! {
    struct Sum<'a> {
        parts: Slice<'a, f32>,
        o0: Option<SliceMut<'a, f32>>,
        o1: Option<SliceMut<'a, f32>>,
        o2: Option<SliceMut<'a, f32>>,
        n0: u32,
        n1: u32,
        n2: u32,
        n_rows: u32,
        n_parts: u32,
        adds: u32,
    }
}

#[derive(Clone)]
struct Halves {
    rows: Kernel<HalvesRows<'static>>,
    swiglu: Kernel<HalvesSwiglu<'static>>,
    rmsnorm: Kernel<HalvesRmsnorm<'static>>,
}

#[derive(Clone)]
struct Unit {
    multiply: [Kernel<Mma<'static>>; 4],
    sum: Kernel<Sum<'static>>,
}

fn halves_unit(gpu: &Gpu) -> Result<Halves, Error> {
    const NAME: &str = "halves";
    let program = || {
        Program::new(NAME, include_str!("../../kernels/halves.hip"))
            .overlapping()
            .kernel::<HalvesRows>("halves_rows")
            .kernel::<HalvesSwiglu>("halves_swiglu")
            .kernel::<HalvesRmsnorm>("halves_rmsnorm")
    };
    gpu.kernels.get((NAME, [0; 3]), program, |module| {
        Ok(Halves {
            rows: module.kernel::<HalvesRows>("halves_rows")?,
            swiglu: module.kernel::<HalvesSwiglu>("halves_swiglu")?,
            rmsnorm: module.kernel::<HalvesRmsnorm>("halves_rmsnorm")?,
        })
    })
}

fn unit(gpu: &Gpu, dtype: Dtype) -> Result<Unit, Error> {
    const NAME: &str = "matmul_mma";
    let format = format_number(dtype)?;
    let program = || {
        let program = Program::new(NAME, include_str!("../../kernels/matmul_mma.hip")).overlapping();
        let program = program.define("FORMAT", format).kernel::<Sum>("matmul_mma_sum");
        VARIANTS.iter().fold(program, |program, (name, ..)| program.kernel::<Mma>(name))
    };
    gpu.kernels.get((NAME, [format, 0, 0]), program, |module| {
        let [a, b, c, d] = VARIANTS.map(|(name, ..)| module.kernel::<Mma>(name));
        Ok(Unit { multiply: [a?, b?, c?, d?], sum: module.kernel::<Sum>("matmul_mma_sum")? })
    })
}

/// How rows of x are cut.
#[derive(Copy, Clone)]
struct Rows {
    variant: usize,
    n_blocks: usize,
    /// Rows that the blocks cover.
    n_padded: usize,
}

impl Rows {
    fn of(n_rows: usize) -> Self {
        let variant = VARIANTS.iter().position(|(_, tiles, ..)| n_rows <= 8 * tiles).unwrap_or(VARIANTS.len() - 1);
        let block_rows = 8 * VARIANTS[variant].1;
        let n_blocks = n_rows.div_ceil(block_rows);
        Self { variant, n_blocks, n_padded: n_blocks * block_rows }
    }

    fn shared_bytes(self) -> u32 {
        let (_, tiles, n_stages, _) = VARIANTS[self.variant];
        (n_stages * tiles * 8 * STEP * 2) as u32
    }

    /// Words of the left side as halves.
    fn n_words(self, n_in: usize) -> usize {
        self.n_padded * n_in.next_multiple_of(STEP) / 2
    }
}

/// Whether the kernel takes such products: the device has the units, types and room fit.
pub(crate) fn takes([n_rows, n_in]: [usize; 2], products: &[Product], gpu: &Gpu) -> bool {
    let tuning = gpu.kernels.tuning;
    let is_half = |p: &Product| p.weight.dtype == Dtype::F16;
    let is_packed = |p: &Product| p.weight.dtype.block_len() > 1;
    let (first, last) = if products.iter().all(is_half) {
        (tuning.mma_f16_from, tuning.mma_f16_to)
    } else {
        (tuning.mma_from, tuning.mma_to)
    };
    gpu.kernels.device().has_mma()
        && (first..=last).contains(&n_rows)
        && n_in > 0
        && n_in.is_multiple_of(GROUP)
        && (products.iter().all(is_packed) || products.iter().all(is_half))
        && Rows::of(n_rows).n_words(n_in) * 4 <= gpu.workspace.borrow().activations.len()
}

/// Only where [`takes`] says so.
pub(crate) fn launch(gpu: &Gpu, left: Left, products: &mut [Product]) -> Result<(), Error> {
    let [n_rows, n_in] = left.shape();
    let rows = Rows::of(n_rows);
    let mut workspace = gpu.workspace.borrow_mut();
    let workspace = &mut *workspace;
    let mut x = workspace.activations.slice_mut(..rows.n_words(n_in) * 4)?.cast::<u32>()?;
    let is_plain = products.iter().all(|p| p.weight.dtype == Dtype::F16);
    halve(gpu, left, x.reborrow(), rows, is_plain)?;
    let x = x.as_slice();
    let mut rest = products;
    while let Some(lead) = rest.first() {
        let (dtype, mode) = (lead.weight.dtype, lead.mode);
        let n = rest.iter().take(3).take_while(|p| p.weight.dtype == dtype && p.mode == mode).count();
        let (now, later) = rest.split_at_mut(n);
        multiply(gpu, x, [n_rows, n_in], rows, workspace.weights.all_mut().cast()?, now)?;
        rest = later;
    }
    Ok(())
}

fn halve(gpu: &Gpu, left: Left, out: SliceMut<u32>, rows: Rows, is_plain: bool) -> Result<(), Error> {
    let [n_rows, n_in] = left.shape();
    let unit = halves_unit(gpu)?;
    let (n_cols, n_x_rows) = (count(OP, "columns", n_in)?, count(OP, "rows", rows.n_padded)?);
    let is_plain = u32::from(is_plain);
    let n_rows = count(OP, "rows", n_rows)?;
    // A thread a quarter of a group.
    let n_threads = count(OP, "groups", n_in.next_multiple_of(STEP) / GROUP * 4)?;
    let grid = Grid::plane(n_threads.div_ceil(HALVES_THREADS), n_rows, HALVES_THREADS);
    match left {
        Left::Plain(x) => {
            let args = HalvesRows { x: x.device_f32s(OP, "x")?, out, n_cols, n_x_rows, is_plain };
            gpu.launcher.launch(&unit.rows, grid, &args)?;
        }
        Left::Gated(gate, up) => {
            let (gate, up) = (gate.device_f32s(OP, "gate")?, up.device_f32s(OP, "up")?);
            gpu.launcher.launch(&unit.swiglu, grid, &HalvesSwiglu { gate, up, out, n_cols, n_x_rows, is_plain })?;
        }
        Left::Norm(x, weight, eps) => {
            let (x, w) = (x.device_f32s(OP, "x")?, weight.device_f32s(OP, "weight")?);
            let args = HalvesRmsnorm { x, w, out, n_cols, n_x_rows, is_plain, eps };
            gpu.launcher.launch(&unit.rmsnorm, Grid::line(n_rows, HALVES_THREADS), &args)?;
        }
    }
    Ok(())
}

/// Up to three products of one type and mode.
fn multiply(
    gpu: &Gpu,
    x: Slice<u32>,
    [n_rows, n_in]: [usize; 2],
    rows: Rows,
    mut space: SliceMut<f32>,
    products: &mut [Product],
) -> Result<(), Error> {
    let (dtype, adds) = (products[0].weight.dtype, u32::from(products[0].mode == Mode::Add));
    let unit = unit(gpu, dtype)?;
    let n_out: Vec<usize> = products.iter().map(|p| p.weight.n_rows()).collect();
    let n_tiles: usize = n_out.iter().map(|n| n.div_ceil(BLOCK_OUTS)).sum();
    if n_tiles == 0 {
        return Ok(());
    }
    let n_all: usize = n_out.iter().sum();
    let blocks = VARIANTS[rows.variant].3.min(gpu.kernels.tuning.mma_blocks);
    // As many blocks as run at once, where the columns are long enough to be cut.
    let slots = gpu.kernels.device().properties().n_multiprocessors as usize * blocks;
    let most = (n_in.div_ceil(STEP) / MIN_PART_STEPS).min(MAX_PARTS).min(space.len() / (n_rows * n_all).max(1));
    let n_parts = (slots / (n_tiles * rows.n_blocks)).min(most).max(1);
    let mut sized = [0_u32; 3];
    for (to, n) in sized.iter_mut().zip(&n_out) {
        *to = count(OP, "weight rows", *n)?;
    }
    let [n0, n1, n2] = sized;
    let (n_rows, n_parts) = (count(OP, "rows", n_rows)?, count(OP, "parts", n_parts)?);
    let weight = |i: usize| products.get(i).map(|p| p.weight.device_bytes(OP, "weight")).transpose();
    let [w0, w1, w2] = [weight(0)?, weight(1)?, weight(2)?];
    {
        let [o0, o1, o2] = outs(products)?;
        let args = Mma {
            x,
            w0,
            w1,
            w2,
            o0,
            o1,
            o2,
            parts: space.reborrow(),
            n0,
            n1,
            n2,
            n_groups: count(OP, "groups", n_in / GROUP)?,
            n_rows,
            n_x_rows: count(OP, "rows", rows.n_padded)?,
            n_parts,
            adds,
        };
        let blocks = [count(OP, "blocks", rows.n_blocks)?, n_parts, count(OP, "tiles", n_tiles)?];
        let grid = Grid { blocks, threads: [THREADS, 1, 1], shared_bytes: rows.shared_bytes() };
        gpu.launcher.launch(&unit.multiply[rows.variant], grid, &args)?;
    }
    if n_parts > 1 {
        let [o0, o1, o2] = outs(products)?;
        let args = Sum { parts: space.as_slice(), o0, o1, o2, n0, n1, n2, n_rows, n_parts, adds };
        let grid = Grid::plane(count(OP, "blocks", n_all.div_ceil(256))?, n_rows, 256);
        gpu.launcher.launch(&unit.sum, grid, &args)?;
    }
    Ok(())
}

fn outs<'a>(products: &'a mut [Product]) -> Result<[Option<SliceMut<'a, f32>>; 3], Error> {
    let mut outs = [None, None, None];
    for (to, product) in outs.iter_mut().zip(products) {
        *to = Some(product.out.device_f32s(OP, "out")?);
    }
    Ok(outs)
}
