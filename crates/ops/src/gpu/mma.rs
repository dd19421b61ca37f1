//! Products of some to a few hundred rows on the matrix units, from packed or f16 weights as stored: NVIDIA's
//! (kernels/matmul_mma.hip) and AMD's (kernels/matmul_few.hip). The left side is converted to f16 first, in the layout
//! that both read (kernels/halves.hip). If there are too few tiles for the chip, the columns are split into parts that
//! are added up. Hopper has another kernel for more than a few rows of packed weights (`wide.rs`).

use std::ops::Range;

use gpu::{Grid, Kernel, Slice, SliceMut};
use weights::Dtype;

use super::formats::FormatSet;
use super::left::DeviceLeft;
use super::unit::{DefineValues, kernels};
use super::{count, format_number, wide};
use crate::matmul::{Mode, OP, Product};
use crate::tiles::GROUP;
use crate::{Activation, Error, Gpu, Numerics};

/// Waves of a block.
const WAVES: u32 = 4;
const HALVES_THREADS: u32 = 256;
const SUM_THREADS: u32 = 256;
/// Columns of a step of the kernel, and weight rows of a block.
const STEP: usize = 128;
const BLOCK_OUTS: usize = 128;
/// A part of the columns is at least this many steps: less does not pay for adding it up.
const MIN_PART_STEPS: usize = 2;
const MAX_PARTS: usize = 16;
const HALF_BYTES: usize = 2;
/// A variant of the kernel.
#[derive(Copy, Clone)]
struct Variant {
    /// Rows of x of a block, in tiles of eight.
    n_tiles: usize,
    /// Stages of x in shared memory that the host asks for.
    n_stages: usize,
    /// Blocks that a multiprocessor gets.
    n_blocks: usize,
}

/// In the order of [`MmaKernels::multiply`].
/// H200, Q4_K_M llama-8b at depth 512, tokens/s with 2, 3, 4 blocks: of 8 sequences 1544 1691 2199, of 32 5378 5820 5654,
/// of 64 8227 7328 7464, of 128 9844 8940 9486.
const VARIANTS: [Variant; 4] = [
    Variant { n_tiles: 1, n_stages: 4, n_blocks: 4 },
    Variant { n_tiles: 2, n_stages: 4, n_blocks: 4 },
    Variant { n_tiles: 4, n_stages: 3, n_blocks: 3 },
    Variant { n_tiles: 8, n_stages: 3, n_blocks: 2 },
];
/// The same for AMD, in the order of [`MatmulFewKernels::multiply`]. Not measured: as many blocks as registers allow on gfx11.
const FEW_VARIANTS: [Variant; 3] = [
    Variant { n_tiles: 2, n_stages: 0, n_blocks: 4 },
    Variant { n_tiles: 4, n_stages: 0, n_blocks: 3 },
    Variant { n_tiles: 8, n_stages: 0, n_blocks: 2 },
];
/// Rows of a tile.
const TILE_ROWS: usize = 8;
/// Rows of the largest block.
const MOST_BLOCK_ROWS: usize = TILE_ROWS * VARIANTS[VARIANTS.len() - 1].n_tiles;
/// The variant whose parts every number of rows gets where rows must not matter: the one for 32 sequences.
const INVARIANT: Variant = Variant { n_tiles: 4, n_stages: 3, n_blocks: 3 };
/// Words of one row of x in a quarter of a step (kernels/matmul_mma.hip).
const QUARTER_WORDS: usize = 16;

gpu::args! {
    pub(crate) struct HalvesRows<'a> {
        x: Slice<'a, f32>,
        out: SliceMut<'a, u32>,
        n_cols: u32,
        n_x_rows: u32,
        layout: u32,
    }
}

gpu::args! {
    pub(crate) struct HalvesSwiglu<'a> {
        gate: Slice<'a, f32>,
        up: Slice<'a, f32>,
        out: SliceMut<'a, u32>,
        n_cols: u32,
        n_x_rows: u32,
        layout: u32,
    }
}

gpu::args! {
    pub(crate) struct HalvesGated<'a> {
        gate: Slice<'a, f32>,
        up: Slice<'a, f32>,
        out: SliceMut<'a, u32>,
        n_cols: u32,
        n_x_rows: u32,
        layout: u32,
        kind: u32,
        alpha: f32,
        limit: f32,
    }
}

gpu::args! {
    pub(crate) struct HalvesRmsnorm<'a> {
        x: Slice<'a, f32>,
        w: Slice<'a, f32>,
        out: SliceMut<'a, u32>,
        n_cols: u32,
        n_x_rows: u32,
        layout: u32,
        eps: f32,
    }
}

gpu::args! {
    pub(crate) struct Mma<'a> {
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
    pub(crate) struct PartialSum<'a> {
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

kernels! {
    pub(crate) struct HalvesKernels in "halves", overlapping {
        rows: Kernel<HalvesRows<'static>> = ["halves_rows"],
        swiglu: Kernel<HalvesSwiglu<'static>> = ["halves_swiglu"],
        gated: Kernel<HalvesGated<'static>> = ["halves_gated"],
        rmsnorm: Kernel<HalvesRmsnorm<'static>> = ["halves_rmsnorm"],
    }
}

kernels! {
    pub(crate) struct MmaKernels in "matmul_mma", overlapping; defines { FORMAT: DefineValues::Formats(FormatSet::Halves) } {
        multiply: [Kernel<Mma<'static>>; 4] = ["matmul_mma_1", "matmul_mma_2", "matmul_mma_4", "matmul_mma_8"],
        sum: Kernel<PartialSum<'static>> = ["matmul_mma_sum"],
    }
}

kernels! {
    pub(crate) struct MatmulFewKernels in "matmul_few"; defines { FORMAT: DefineValues::Formats(FormatSet::Halves) } {
        multiply: [Kernel<Mma<'static>>; 3] = ["matmul_few_16", "matmul_few_32", "matmul_few_64"],
        sum: Kernel<PartialSum<'static>> = ["matmul_few_sum"],
    }
}

/// Which of the two kernels a device runs.
#[derive(Copy, Clone, Eq, PartialEq)]
enum MatrixUnits {
    Nvidia,
    Amd,
}

impl MatrixUnits {
    fn of(gpu: &Gpu) -> Self {
        if gpu.kernels.device().has_mma() { Self::Nvidia } else { Self::Amd }
    }

    fn variants(self) -> &'static [Variant] {
        match self {
            Self::Nvidia => &VARIANTS,
            Self::Amd => &FEW_VARIANTS,
        }
    }

    /// One variant, and the sum of parts.
    fn kernels(self, gpu: &Gpu, dtype: Dtype, variant: usize) -> Result<UnitKernels, Error> {
        let values = [format_number(dtype)?];
        let (multiply, sum) = match self {
            Self::Nvidia => {
                let MmaKernels { multiply, sum } = MmaKernels::get(gpu.kernels, &values)?;
                (multiply.into_iter().nth(variant), sum)
            }
            Self::Amd => {
                let MatmulFewKernels { multiply, sum } = MatmulFewKernels::get(gpu.kernels, &values)?;
                (multiply.into_iter().nth(variant), sum)
            }
        };
        Ok((multiply.expect("a kernel for each variant"), sum))
    }
}

type UnitKernels = (Kernel<Mma<'static>>, Kernel<PartialSum<'static>>);

/// How the left side lies as halves (kernels/halves.hip).
#[derive(Copy, Clone)]
pub(super) enum HalvesLayout {
    AsPacked = 0,
    AsPlain = 1,
    Sheets = 2,
}

/// How rows of x are cut.
#[derive(Copy, Clone)]
struct RowBlocks {
    units: MatrixUnits,
    variant: usize,
    n_blocks: usize,
    block_rows: usize,
    /// Rows that the blocks cover.
    n_padded: usize,
}

impl RowBlocks {
    fn of(units: MatrixUnits, n_rows: usize) -> Self {
        let variants = units.variants();
        let variant =
            variants.iter().position(|variant| n_rows <= TILE_ROWS * variant.n_tiles).unwrap_or(variants.len() - 1);
        let block_rows = TILE_ROWS * variants[variant].n_tiles;
        let n_blocks = n_rows.div_ceil(block_rows);
        Self { units, variant, n_blocks, block_rows, n_padded: n_blocks * block_rows }
    }

    fn shared_bytes(self) -> u32 {
        let Variant { n_tiles, n_stages, .. } = self.units.variants()[self.variant];
        (n_stages * n_tiles * TILE_ROWS * STEP * HALF_BYTES) as u32
    }

    /// Words of the left side as halves.
    fn n_words(self, n_in: usize) -> usize {
        self.n_padded * n_in.next_multiple_of(STEP) / 2
    }
}

/// Bytes of the left side as halves, on any chip.
pub(crate) fn n_bytes([n_rows, n_in]: [usize; 2]) -> usize {
    let own = [MatrixUnits::Nvidia, MatrixUnits::Amd].map(|units| RowBlocks::of(units, n_rows).n_words(n_in) * 4);
    own.into_iter().fold(wide::n_bytes([n_rows, n_in]), usize::max)
}

pub(crate) fn launch(gpu: &Gpu, left: DeviceLeft, products: &mut [Product]) -> Result<(), Error> {
    let [n_rows, n_in] = left.shape();
    let is_plain = products.iter().all(|p| p.weight.dtype == Dtype::F16);
    let rows = RowBlocks::of(MatrixUnits::of(gpu), n_rows);
    let mut workspace = gpu.workspace.borrow_mut();
    let workspace = &mut *workspace;
    let mut x = workspace.activations.slice_mut(..rows.n_words(n_in) * 4)?.cast::<u32>()?;
    let layout = if is_plain { HalvesLayout::AsPlain } else { HalvesLayout::AsPacked };
    halve(gpu, left, x.reborrow(), rows.n_padded, layout)?;
    let x = x.as_slice();
    each_type(products, |now| multiply(gpu, x, [n_rows, n_in], rows, workspace.weights.all_mut().cast()?, now))
}

/// Calls for up to three neighbouring products of one type and mode at a time.
pub(super) fn each_type(
    products: &mut [Product],
    mut multiply: impl FnMut(&mut [Product]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut rest = products;
    while let Some(lead) = rest.first() {
        let (dtype, mode) = (lead.weight.dtype, lead.mode);
        let n = rest.iter().take(3).take_while(|p| p.weight.dtype == dtype && p.mode == mode).count();
        let (now, later) = rest.split_at_mut(n);
        multiply(now)?;
        rest = later;
    }
    Ok(())
}

/// `n_x_rows`: rows with padding, or rows of a block of sheets.
pub(super) fn halve(
    gpu: &Gpu,
    left: DeviceLeft,
    out: SliceMut<u32>,
    n_x_rows: usize,
    layout: HalvesLayout,
) -> Result<(), Error> {
    let [n_rows, n_in] = left.shape();
    let unit = HalvesKernels::get(gpu.kernels, &[])?;
    let (n_cols, n_x_rows) = (count(OP, "columns", n_in)?, count(OP, "rows", n_x_rows)?);
    let layout = layout as u32;
    let n_rows = count(OP, "rows", n_rows)?;
    // A thread a quarter of a group.
    let n_threads = count(OP, "groups", n_in.next_multiple_of(STEP) / GROUP * 4)?;
    let grid = Grid::plane(n_threads.div_ceil(HALVES_THREADS), n_rows, HALVES_THREADS);
    match left {
        DeviceLeft::Rows(x) => {
            let args = HalvesRows { x: x.device_f32s(OP, "x")?, out, n_cols, n_x_rows, layout };
            gpu.launcher.launch(&unit.rows, grid, &args)?;
        }
        DeviceLeft::Gated { activation, gate, up } => {
            let (gate, up) = (gate.device_f32s(OP, "gate")?, up.device_f32s(OP, "up")?);
            if activation == Activation::Silu {
                let args = HalvesSwiglu { gate, up, out, n_cols, n_x_rows, layout };
                return Ok(gpu.launcher.launch(&unit.swiglu, grid, &args)?);
            }
            let (kind, alpha, limit) = activation.as_kernels_take_it();
            let args = HalvesGated { gate, up, out, n_cols, n_x_rows, layout, kind, alpha, limit };
            gpu.launcher.launch(&unit.gated, grid, &args)?;
        }
        DeviceLeft::Norm { x, weight, eps } => {
            let (x, w) = (x.device_f32s(OP, "x")?, weight.device_f32s(OP, "weight")?);
            let args = HalvesRmsnorm { x, w, out, n_cols, n_x_rows, layout, eps };
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
    rows: RowBlocks,
    mut space: SliceMut<f32>,
    products: &mut [Product],
) -> Result<(), Error> {
    let n_out = products.iter().map(|p| p.weight.n_rows());
    let n_tiles: usize = n_out.clone().map(|n| n.div_ceil(BLOCK_OUTS)).sum();
    if n_tiles == 0 {
        return Ok(());
    }
    let n_all: usize = n_out.sum();
    let n_parts = n_parts(gpu, [n_rows, n_in], rows, n_tiles, space.len() / n_all.max(1));
    // All rows at once, unless their parts would take too much room.
    let run_rows = (space.len() / (n_parts * n_all).max(1) / rows.block_rows).max(1) * rows.block_rows;
    let run_rows = if n_parts == 1 { rows.n_padded } else { run_rows };
    for first in (0..n_rows).step_by(run_rows) {
        let run = first..n_rows.min(first + run_rows);
        multiply_rows(gpu, x, run, n_in, (rows, n_parts), space.reborrow(), products)?;
    }
    Ok(())
}

/// Into how many parts the columns are cut; `room` is how many rows of sums there is room for.
fn n_parts(gpu: &Gpu, [n_rows, n_in]: [usize; 2], rows: RowBlocks, n_tiles: usize, room: usize) -> usize {
    let is_invariant = gpu.kernels.numerics() == Numerics::RowInvariant;
    // Where rows must not matter, always as for one block of these.
    let (variant, n_blocks) =
        if is_invariant { (&INVARIANT, 1) } else { (&rows.units.variants()[rows.variant], rows.n_blocks) };
    let n_rows = if is_invariant { MOST_BLOCK_ROWS } else { n_rows };
    let blocks = variant.n_blocks.min(gpu.kernels.tuning.mma_blocks);
    // As many blocks as run at once, where the columns are long enough to be cut.
    let slots = gpu.kernels.device().properties().n_multiprocessors as usize * blocks;
    let most = (n_in.div_ceil(STEP) / MIN_PART_STEPS).min(MAX_PARTS).min(room / n_rows);
    (slots / (n_tiles * n_blocks)).min(most).max(1)
}

/// Some rows, from the first of a block on.
fn multiply_rows(
    gpu: &Gpu,
    x: Slice<u32>,
    run: Range<usize>,
    n_in: usize,
    (rows, n_parts): (RowBlocks, usize),
    mut space: SliceMut<f32>,
    products: &mut [Product],
) -> Result<(), Error> {
    let (dtype, adds) = (products[0].weight.dtype, u32::from(products[0].mode == Mode::Add));
    let (kernel, sum) = rows.units.kernels(gpu, dtype, rows.variant)?;
    let n_tiles: usize = products.iter().map(|p| p.weight.n_rows().div_ceil(BLOCK_OUTS)).sum();
    let x = x.slice(run.start * QUARTER_WORDS..)?;
    let [n0, n1, n2] = n_outs(products)?;
    let (n_rows, n_parts) = (count(OP, "rows", run.len())?, count(OP, "parts", n_parts)?);
    let [w0, w1, w2] = weights(products)?;
    {
        let [o0, o1, o2] = outs(products, &run)?;
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
        let n_blocks = run.len().div_ceil(rows.block_rows);
        let blocks = [count(OP, "blocks", n_blocks)?, n_parts, count(OP, "tiles", n_tiles)?];
        let threads = WAVES * gpu.kernels.device().properties().wave_width;
        let grid = Grid { blocks, threads: [threads, 1, 1], shared_bytes: rows.shared_bytes() };
        gpu.launcher.launch(&kernel, grid, &args)?;
    }
    if n_parts > 1 {
        add_parts(gpu, &sum, space.as_slice(), n_rows, &run, n_parts, products)?;
    }
    Ok(())
}

/// Adds up the parts of products whose columns were cut.
pub(super) fn add_parts(
    gpu: &Gpu,
    kernel: &Kernel<PartialSum<'static>>,
    parts: Slice<f32>,
    n_rows: u32,
    run: &Range<usize>,
    n_parts: u32,
    products: &mut [Product],
) -> Result<(), Error> {
    let adds = u32::from(products[0].mode == Mode::Add);
    let [n0, n1, n2] = n_outs(products)?;
    let [o0, o1, o2] = outs(products, run)?;
    let args = PartialSum { parts, o0, o1, o2, n0, n1, n2, n_rows, n_parts, adds };
    let grid = Grid::plane((n0 + n1 + n2).div_ceil(SUM_THREADS), n_rows, SUM_THREADS);
    Ok(gpu.launcher.launch(kernel, grid, &args)?)
}

/// Weight rows of up to three products.
pub(super) fn n_outs(products: &[Product]) -> Result<[u32; 3], Error> {
    let mut sized = [0_u32; 3];
    for (to, product) in sized.iter_mut().zip(products) {
        *to = count(OP, "weight rows", product.weight.n_rows())?;
    }
    Ok(sized)
}

/// Their weights.
pub(super) fn weights<'a>(products: &[Product<'a, '_>]) -> Result<[Option<Slice<'a, u8>>; 3], Error> {
    let weight = |i: usize| products.get(i).map(|p| p.weight.device_bytes(OP, "weight")).transpose();
    Ok([weight(0)?, weight(1)?, weight(2)?])
}

/// Where they go, for some of the rows.
pub(super) fn outs<'a>(
    products: &'a mut [Product],
    run: &Range<usize>,
) -> Result<[Option<SliceMut<'a, f32>>; 3], Error> {
    let mut outs = [None, None, None];
    for (to, product) in outs.iter_mut().zip(products) {
        let n_out = product.weight.n_rows();
        *to = Some(product.out.device_f32s(OP, "out")?.into_slice(run.start * n_out..run.end * n_out)?);
    }
    Ok(outs)
}
