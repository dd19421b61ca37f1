//! A mixture's feed-forward block with rows grouped by expert, on the matrix units: the rows are sorted on the device
//! (kernels/experts_group.hip), and two launches make the products of every expert of the layer, from packed or f16
//! weights as stored. Each expert is read once for every tile of its rows, the left side is gathered on the way in, and
//! the gate is applied on the way out. Nothing is read back, so a step with experts can be captured like any other.
//!
//! NVIDIA runs kernels/experts_mma.hip, other chips kernels/experts_units.hip: the same kernels by name and parameters.

use gpu::{Grid, Kernel, Slice, SliceMut};
use half::f16;
use weights::Dtype;

use super::experts::{MAX_GPU_EXPERTS, evenly};
use super::formats::FormatSet;
use super::unit::{DefineValues, kernels};
use super::{count, format_number};
use crate::embed::expect_device_layout;
use crate::matmul::OP;
use crate::plan::fits_f16;
use crate::tiles::GROUP;
use crate::{Activation, Error, Exec, Gpu, Numerics, View, ViewMut};

/// Columns that rows of halves are padded to.
const STEP: usize = 128;
const GROUP_THREADS: u32 = 512;
const ROWS_THREADS: u32 = 256;

/// One of the three matrices of every expert, with its biases where there are any.
pub struct ExpertMatrices<'a> {
    pub weights: Vec<View<'a>>,
    pub biases: Vec<View<'a>>,
}

gpu::args! {
    pub(crate) struct GroupExperts<'a> {
        chosen: Slice<'a, u32>,
        order: SliceMut<'a, u32>,
        tiles: SliceMut<'a, u32>,
        n_pairs: u32,
        n_experts: u32,
        tile_rows: u32,
    }
}

gpu::args! {
    pub(crate) struct ExpertRows<'a> {
        x: Slice<'a, f32>,
        out: SliceMut<'a, u32>,
        n_cols: u32,
        n_eights: u32,
        layout: u32,
    }
}

gpu::args! {
    pub(crate) struct Gated<'a> {
        x: Slice<'a, u32>,
        w0: Slice<'a, u8>,
        w1: Slice<'a, u8>,
        b0: Option<Slice<'a, f32>>,
        b1: Option<Slice<'a, f32>>,
        order: Slice<'a, u32>,
        tiles: Slice<'a, u32>,
        out: SliceMut<'a, f16>,
        step0: u64,
        step1: u64,
        bias_step0: u64,
        bias_step1: u64,
        n_out: u32,
        n_groups: u32,
        row_words: u32,
        out_words: u32,
        share: u32,
        layout: u32,
        alpha: f32,
        limit: f32,
    }
}

gpu::args! {
    pub(crate) struct Down<'a> {
        x: Slice<'a, u32>,
        w: Slice<'a, u8>,
        bias: Option<Slice<'a, f32>>,
        order: Slice<'a, u32>,
        tiles: Slice<'a, u32>,
        out: SliceMut<'a, f32>,
        step: u64,
        bias_step: u64,
        n_out: u32,
        n_groups: u32,
        row_words: u32,
    }
}

/// Weight rows of a block, or half as many of the gate and of its partner.
const BLOCK_OUTS: usize = 128;
/// Positions of a tile, in eights, that a kernel is compiled for.
const MMA_TILES: [usize; 4] = [1, 2, 4, 8];
const WGMMA_TILES: [usize; 5] = [1, 2, 4, 8, WIDE_TILES];
/// As many as only the wider units take, and types for which their results were compared with f64 on an H200.
const WIDE_TILES: usize = 16;
const WIDE_DTYPES: [Dtype; 4] = [Dtype::Q4_0, Dtype::Q4K, Dtype::Q6K, Dtype::F16];
const UNIT_TILES: [usize; 2] = [4, 8];

/// The kernels of a chip, and what they want.
#[derive(Copy, Clone)]
struct GroupedChip {
    tiles: &'static [usize],
    threads: u32,
    has_mma: bool,
}

impl GroupedChip {
    fn of(gpu: &Gpu) -> Option<Self> {
        let device = gpu.kernels.device();
        if device.has_mma() {
            // The wider units add in another order.
            let is_wide = device.has_wgmma() && gpu.kernels.numerics() == Numerics::Fastest;
            let tiles: &[usize] = if is_wide { &WGMMA_TILES } else { &MMA_TILES };
            return Some(Self { tiles, threads: 128, has_mma: true });
        }
        let units = Self { tiles: &UNIT_TILES, threads: 256, has_mma: false };
        device.has_matrix_units().then_some(units)
    }

    /// The smallest tile that holds the rows of most experts, in eights.
    fn tiles_for(&self, shape: &ExpertShape, dtypes: [Dtype; 2]) -> usize {
        let usual = shape.n_pairs.div_ceil(shape.n_experts);
        let is_wide = dtypes.iter().all(|dtype| WIDE_DTYPES.contains(dtype));
        let mut tiles = self.tiles.iter().copied().filter(|tiles| is_wide || *tiles < WIDE_TILES);
        let last = tiles.clone().next_back().expect("every chip has a tile");
        tiles.find(|tiles| usual + usual / 2 <= 8 * tiles).unwrap_or(last)
    }

    /// How activations lie for weights of a type (kernels/experts.h).
    fn layout(&self, dtype: Dtype, tiles: usize) -> u32 {
        let turned = if tiles == WIDE_TILES { 2 } else { 0 };
        match (self.has_mma, dtype) {
            (false, _) => 0,
            (true, Dtype::F16) => 1 + turned,
            (true, _) => 2 + turned,
        }
    }

    /// As kernels/experts_mma.hip lays its stages out; the other kernels ask for none.
    fn shared_bytes(&self, tiles: usize) -> u32 {
        let (n_stages, padding) = (if tiles < 4 { 4 } else { 3 }, if tiles == WIDE_TILES { 0 } else { 16 });
        if self.has_mma { (n_stages * 4 * (tiles * 8 * 16 + padding) * 4) as u32 } else { 0 }
    }

    fn kernels(&self, gpu: &Gpu, dtype: Dtype, tiles: usize, act: u32) -> Result<GroupedKernels, Error> {
        let values = [format_number(dtype)?, tiles as u32, act];
        if self.has_mma {
            let MmaExperts { gated, down } = MmaExperts::get(gpu.kernels, &values)?;
            return Ok(GroupedKernels { gated, down });
        }
        let UnitExperts { gated, down } = UnitExperts::get(gpu.kernels, &values)?;
        Ok(GroupedKernels { gated, down })
    }
}

struct GroupedKernels {
    gated: Kernel<Gated<'static>>,
    down: Kernel<Down<'static>>,
}

kernels! {
    /// NVIDIA's. The scripts compile the smallest and the largest tiles.
    pub(crate) struct MmaExperts in "experts_mma", overlapping; defines {
        FORMAT: DefineValues::Formats(FormatSet::Halves),
        TILES: DefineValues::Numbers(&[1, 8, 16]),
        ACT: DefineValues::Numbers(&[0])
    } {
        gated: Kernel<Gated<'static>> = ["experts_gated"],
        down: Kernel<Down<'static>> = ["experts_down"],
    }
}

kernels! {
    /// Those of every other chip with matrix units.
    pub(crate) struct UnitExperts in "experts_units"; defines {
        FORMAT: DefineValues::Formats(FormatSet::Halves),
        TILES: DefineValues::Numbers(&[4, 8]),
        ACT: DefineValues::Numbers(&[0])
    } {
        gated: Kernel<Gated<'static>> = ["experts_gated"],
        down: Kernel<Down<'static>> = ["experts_down"],
    }
}

kernels! {
    pub(crate) struct GroupKernels in "experts_group", overlapping {
        group: Kernel<GroupExperts<'static>> = ["group_experts"],
        rows: Kernel<ExpertRows<'static>> = ["expert_rows"],
    }
}

/// What a call needs to know of its shapes.
#[derive(Copy, Clone)]
struct ExpertShape {
    n_rows: usize,
    n_pairs: usize,
    n_experts: usize,
    n_in: usize,
    n_ff: usize,
    n_out: usize,
}

impl ExpertShape {
    /// Words of a row of halves.
    fn row_words(n_cols: usize) -> usize {
        n_cols.next_multiple_of(STEP) / 2
    }

    /// The most tiles that pairs can make: every expert may have one that is not full.
    fn max_tiles(&self, tile_rows: usize) -> usize {
        self.n_pairs / tile_rows + self.n_experts.min(self.n_pairs)
    }
}

/// Whether such rows are worth grouping here, and can be.
fn takes(gpu: &Gpu, chip: &GroupedChip, shape: &ExpertShape, sets: [&ExpertMatrices; 3]) -> bool {
    let ExpertShape { n_rows, n_pairs, n_experts, n_in, n_ff, .. } = *shape;
    let first = |set: &ExpertMatrices| (set.weights[0].dtype, set.weights[0].layout);
    let is_alike = |set: &&ExpertMatrices| set.weights.iter().all(|view| (view.dtype, view.layout) == first(set));
    let n_index_words = n_pairs + 8 + 4 * shape.max_tiles(8 * chip.tiles[0]);
    let workspace = gpu.workspace.borrow();
    // Where rows must not matter there is one kernel for any number of them: on other chips the one that takes few.
    let is_wanted = match gpu.kernels.numerics() {
        Numerics::Fastest => n_rows >= gpu.kernels.tuning.experts_from,
        Numerics::RowInvariant => chip.has_mma,
    };
    is_wanted
        && n_experts <= MAX_GPU_EXPERTS
        && n_in.is_multiple_of(GROUP)
        && n_ff.is_multiple_of(GROUP)
        && sets.iter().all(is_alike)
        && sets.iter().all(|set| fits_f16(first(set).0))
        && first(sets[0]) == first(sets[1])
        && ExpertShape::row_words(n_ff) <= n_ff
        && n_rows * ExpertShape::row_words(n_in) * 4 <= workspace.activations.len()
        && n_index_words * 4 <= workspace.parts.len()
}

/// `y[p] = down(act(gate(x[p / n_used])) * up(x[p / n_used]))` for every pair p, each by the expert `chosen[p]`.
/// `x` is `[n_rows, n_in]`, `y` `[n_pairs, n_out]`, and `space` is `[n_pairs, n_ff]` of memory to work in. `false` where
/// nothing was done: few rows, a chip without matrix units, or weights that they do not take.
pub fn grouped_experts(
    exec: Exec,
    x: View,
    [gate, up, down]: [&ExpertMatrices; 3],
    activation: Activation,
    chosen: View,
    space: &mut ViewMut,
    y: &mut ViewMut,
) -> Result<bool, Error> {
    let gpu = exec.gpu_only(OP)?;
    let ([n_rows, n_in], [n_pairs, n_ff], n_out) = (x.shape, space.shape, y.shape[1]);
    let shape = ExpertShape { n_rows, n_pairs, n_experts: gate.weights.len(), n_in, n_ff, n_out };
    let Some(chip) = GroupedChip::of(gpu).filter(|_| n_pairs > 0 && n_ff > 0 && n_out > 0) else { return Ok(false) };
    check(&shape, [gate, up, down], chosen, y)?;
    if !takes(gpu, &chip, &shape, [gate, up, down]) {
        return Ok(false);
    }
    let _op = gpu.launcher.op(OP);
    count_work(gpu, &shape, [gate, up, down]);
    let call =
        GroupedCall { gpu, chip, shape, tiles: chip.tiles_for(&shape, [gate.weights[0].dtype, down.weights[0].dtype]) };
    let mut workspace = gpu.workspace.borrow_mut();
    let workspace = &mut *workspace;
    let n_order = n_pairs.next_multiple_of(4);
    let n_index = n_order + 4 + 4 * call.max_tiles();
    let index = workspace.parts.slice_mut(..n_index * 4)?.cast::<u32>()?;
    let (mut order, mut list) = index.split_at(n_order)?;
    let mut halves = workspace.activations.slice_mut(..n_rows * ExpertShape::row_words(n_in) * 4)?.cast::<u32>()?;
    call.sort_rows(chosen, order.reborrow(), list.reborrow())?;
    call.round_rows(x, chip.layout(gate.weights[0].dtype, call.tiles), halves.reborrow())?;
    let sorted = SortedRows { order: order.as_slice(), tiles: list.as_slice() };
    let (act, alpha, limit) = activation.as_kernels_take_it();
    let mut gated = space.device_bytes(OP, "space")?.into_slice(..n_pairs * ExpertShape::row_words(n_ff) * 4)?;
    // What the next product reads.
    let layout = chip.layout(down.weights[0].dtype, call.tiles);
    let gate_args = GateParameters { act, alpha, limit, layout };
    call.launch_gated([gate, up], halves.as_slice(), sorted, gate_args, gated.reborrow().cast()?)?;
    call.launch_down(down, gated.as_slice().cast()?, sorted, act, y.device_f32s(OP, "y")?)?;
    Ok(true)
}

/// One call of [`grouped_experts`] that the matrix units take.
struct GroupedCall<'a> {
    gpu: &'a Gpu<'a>,
    chip: GroupedChip,
    shape: ExpertShape,
    /// Positions of a tile, in eights.
    tiles: usize,
}

/// Pairs sorted by expert, and the tiles they make.
#[derive(Copy, Clone)]
struct SortedRows<'a> {
    order: Slice<'a, u32>,
    tiles: Slice<'a, u32>,
}

/// The gate's function as the kernels take it, and the layout of what comes out.
struct GateParameters {
    act: u32,
    alpha: f32,
    limit: f32,
    layout: u32,
}

impl GroupedCall<'_> {
    fn max_tiles(&self) -> usize {
        self.shape.max_tiles(8 * self.tiles)
    }

    fn sort_rows(&self, chosen: View, order: SliceMut<u32>, tiles: SliceMut<u32>) -> Result<(), Error> {
        let n_experts = count(OP, "experts", self.shape.n_experts)?;
        let args = GroupExperts {
            chosen: chosen.device_bytes(OP, "chosen")?.cast()?,
            order,
            tiles,
            n_pairs: count(OP, "pairs", self.shape.n_pairs)?,
            n_experts,
            tile_rows: 8 * self.tiles as u32,
        };
        let kernels = GroupKernels::get(self.gpu.kernels, &[])?;
        Ok(self.gpu.launcher.launch(&kernels.group, Grid::line(n_experts, GROUP_THREADS), &args)?)
    }

    /// The activations as halves, padded and in the layout that the first product reads.
    fn round_rows(&self, x: View, layout: u32, out: SliceMut<u32>) -> Result<(), Error> {
        let ExpertShape { n_rows, n_in, .. } = self.shape;
        let n_eights = count(OP, "columns", ExpertShape::row_words(n_in) / 4)?;
        let n_cols = count(OP, "columns", n_in)?;
        let args = ExpertRows { x: x.device_f32s(OP, "x")?, out, n_cols, n_eights, layout };
        let grid = Grid::plane(n_eights.div_ceil(ROWS_THREADS), count(OP, "rows", n_rows)?, ROWS_THREADS);
        let kernels = GroupKernels::get(self.gpu.kernels, &[])?;
        Ok(self.gpu.launcher.launch(&kernels.rows, grid, &args)?)
    }

    fn launch_gated(
        &self,
        [gate, up]: [&ExpertMatrices; 2],
        x: Slice<u32>,
        sorted: SortedRows,
        parameters: GateParameters,
        out: SliceMut<f16>,
    ) -> Result<(), Error> {
        let ExpertShape { n_rows, n_pairs, n_in, n_ff, .. } = self.shape;
        let GateParameters { act, alpha, limit, layout } = parameters;
        let (w0, step0) = evenly(OP, &gate.weights)?;
        let (w1, step1) = evenly(OP, &up.weights)?;
        let [(b0, bias_step0), (b1, bias_step1)] = [biases(gate)?, biases(up)?];
        let args = Gated {
            x,
            w0,
            w1,
            b0,
            b1,
            order: sorted.order,
            tiles: sorted.tiles,
            out,
            step0: step0 as u64,
            step1: step1 as u64,
            bias_step0,
            bias_step1,
            n_out: count(OP, "weight rows", n_ff)?,
            n_groups: count(OP, "groups", n_in / GROUP)?,
            row_words: count(OP, "columns", ExpertShape::row_words(n_in))?,
            out_words: count(OP, "columns", ExpertShape::row_words(n_ff))?,
            share: count(OP, "experts", n_pairs / n_rows)?,
            layout,
            alpha,
            limit,
        };
        // Padding is written, too: the next product reads it.
        let grid = self.grid(n_ff.next_multiple_of(STEP), BLOCK_OUTS / 2)?;
        let kernels = self.chip.kernels(self.gpu, gate.weights[0].dtype, self.tiles, act)?;
        Ok(self.gpu.launcher.launch(&kernels.gated, grid, &args)?)
    }

    fn launch_down(
        &self,
        down: &ExpertMatrices,
        x: Slice<u32>,
        sorted: SortedRows,
        act: u32,
        out: SliceMut<f32>,
    ) -> Result<(), Error> {
        let ExpertShape { n_ff, n_out, .. } = self.shape;
        let ((w, step), (bias, bias_step)) = (evenly(OP, &down.weights)?, biases(down)?);
        let args = Down {
            x,
            w,
            bias,
            order: sorted.order,
            tiles: sorted.tiles,
            out,
            step: step as u64,
            bias_step,
            n_out: count(OP, "weight rows", n_out)?,
            n_groups: count(OP, "groups", n_ff / GROUP)?,
            row_words: count(OP, "columns", ExpertShape::row_words(n_ff))?,
        };
        let kernels = self.chip.kernels(self.gpu, down.weights[0].dtype, self.tiles, act)?;
        Ok(self.gpu.launcher.launch(&kernels.down, self.grid(n_out, BLOCK_OUTS)?, &args)?)
    }

    fn grid(&self, n_outs: usize, outs_per_block: usize) -> Result<Grid, Error> {
        let n_blocks = count(OP, "weight rows", n_outs.div_ceil(outs_per_block))?;
        let blocks = [count(OP, "tiles", self.max_tiles())?, n_blocks, 1];
        Ok(Grid { blocks, threads: [self.chip.threads, 1, 1], shared_bytes: self.chip.shared_bytes(self.tiles) })
    }
}

fn check(shape: &ExpertShape, sets: [&ExpertMatrices; 3], chosen: View, y: &ViewMut) -> Result<(), Error> {
    let ExpertShape { n_rows, n_pairs, n_experts, n_in, n_ff, n_out } = *shape;
    chosen.expect_shape(OP, "chosen", [n_pairs, 1])?;
    y.expect_shape(OP, "y", [n_pairs, n_out])?;
    if n_rows == 0 || !n_pairs.is_multiple_of(n_rows) || n_experts == 0 {
        return Err(Error::Argument { op: OP, what: format!("{n_pairs} pairs of {n_rows} rows, {n_experts} experts") });
    }
    for (set, expected) in sets.into_iter().zip([[n_ff, n_in], [n_ff, n_in], [n_out, n_ff]]) {
        if set.weights.len() != n_experts || !(set.biases.is_empty() || set.biases.len() == n_experts) {
            let what = format!("{} matrices and {} biases of {n_experts} experts", set.weights.len(), set.biases.len());
            return Err(Error::Argument { op: OP, what });
        }
        for matrix in &set.weights {
            matrix.expect_shape(OP, "weight", expected)?;
            expect_device_layout(OP, matrix)?;
        }
    }
    Ok(())
}

/// Each expert that can have a row is read once; that is what the bytes count.
fn count_work(gpu: &Gpu, shape: &ExpertShape, sets: [&ExpertMatrices; 3]) {
    let expert_bytes: u64 = sets.iter().map(|set| set.weights[0].n_bytes()).sum();
    let n_read = shape.n_experts.min(shape.n_pairs) as u64;
    let products = shape.n_ff * (2 * shape.n_in + shape.n_out);
    gpu.launcher.count(gpu::Work { bytes: n_read * expert_bytes, flops: 2 * (shape.n_pairs * products) as u64 });
}

/// The biases of all experts, and how many numbers lie from each to the next.
fn biases<'a>(set: &ExpertMatrices<'a>) -> Result<(Option<Slice<'a, f32>>, u64), Error> {
    if set.biases.is_empty() {
        return Ok((None, 0));
    }
    let (bias, step) = evenly(OP, &set.biases)?;
    Ok((Some(bias.cast()?), (step / 4) as u64))
}
