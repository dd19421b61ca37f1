//! Products of more than 32 rows of packed weights on Hopper's matrix units (kernels/matmul_wide.hip): as `mma.rs`,
//! with larger tiles and activations that the units read from shared memory. Other chips have no counterpart, because
//! their units cannot read operands from shared memory: they use `mma.rs`, or decode weights into tiles.

use gpu::{Grid, Kernel, Slice, SliceMut};

use super::formats::FormatSet;
use super::left::DeviceLeft;
use super::mma::{HalvesLayout, MmaKernels, add_parts, each_type, halve, n_outs, outs, weights};
use super::unit::{DefineValues, kernels};
use super::{count, format_number};
use crate::matmul::{Mode, OP, Product};
use crate::tiles::GROUP;
use crate::{Error, Gpu};

const THREADS: u32 = 512;
/// Columns of a step of the kernel, and weight rows of a block.
const STEP: usize = 128;
const BLOCK_OUTS: usize = 256;
/// Steps of x in shared memory, each with two signals of 8 bytes.
const N_STAGES: usize = 4;
const SIGNAL_BYTES: usize = 16;
/// A part of the columns is at least this many steps: less does not pay for adding it up.
const MIN_PART_STEPS: usize = 2;
const MAX_PARTS: usize = 16;
const HALF_BYTES: usize = 2;
/// Rows of x of a block, in the order of [`WideKernels::multiply`].
const BLOCK_ROWS: [usize; 2] = [64, 128];

gpu::args! {
    pub(crate) struct Wide<'a> {
        x: Slice<'a, u8>,
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
        n_parts: u32,
        adds: u32,
    }
}

kernels! {
    pub(crate) struct WideKernels in "matmul_wide", overlapping; defines { FORMAT: DefineValues::Formats(FormatSet::Packed) } {
        multiply: [Kernel<Wide<'static>>; 2] = ["matmul_wide_64", "matmul_wide_128"],
    }
}

/// How rows of x are cut.
#[derive(Copy, Clone)]
struct WideRowBlocks {
    variant: usize,
    n_blocks: usize,
}

impl WideRowBlocks {
    fn of(n_rows: usize) -> Self {
        let variant = usize::from(n_rows > BLOCK_ROWS[0]);
        Self { variant, n_blocks: n_rows.div_ceil(BLOCK_ROWS[variant]) }
    }

    fn block_rows(self) -> usize {
        BLOCK_ROWS[self.variant]
    }

    /// Bytes of the left side as halves.
    fn n_bytes(self, n_in: usize) -> usize {
        self.n_blocks * self.block_rows() * n_in.next_multiple_of(STEP) * HALF_BYTES
    }

    fn shared_bytes(self) -> u32 {
        (N_STAGES * (self.block_rows() * STEP * HALF_BYTES + SIGNAL_BYTES)) as u32
    }
}

/// Bytes of the left side as halves.
pub(super) fn n_bytes([n_rows, n_in]: [usize; 2]) -> usize {
    WideRowBlocks::of(n_rows).n_bytes(n_in)
}

pub(crate) fn launch(gpu: &Gpu, left: DeviceLeft, products: &mut [Product]) -> Result<(), Error> {
    let [n_rows, n_in] = left.shape();
    let rows = WideRowBlocks::of(n_rows);
    let mut workspace = gpu.workspace.borrow_mut();
    let workspace = &mut *workspace;
    let mut x = workspace.activations.slice_mut(..rows.n_bytes(n_in))?;
    halve(gpu, left, x.reborrow().cast()?, rows.block_rows(), HalvesLayout::Sheets)?;
    let x = x.as_slice();
    each_type(products, |now| multiply(gpu, x, [n_rows, n_in], rows, workspace.weights.all_mut().cast()?, now))
}

/// Up to three products of one type and mode.
fn multiply(
    gpu: &Gpu,
    x: Slice<u8>,
    [n_rows, n_in]: [usize; 2],
    rows: WideRowBlocks,
    mut space: SliceMut<f32>,
    products: &mut [Product],
) -> Result<(), Error> {
    let (format, adds) = (format_number(products[0].weight.dtype)?, u32::from(products[0].mode == Mode::Add));
    let [n0, n1, n2] = n_outs(products)?;
    let n_all = (n0 + n1 + n2) as usize;
    let n_tiles: usize = [n0, n1, n2].iter().map(|n| (*n as usize).div_ceil(BLOCK_OUTS)).sum();
    if n_tiles == 0 {
        return Ok(());
    }
    // One block runs on a multiprocessor at a time; where there are fewer, the columns are cut.
    let slots = gpu.kernels.device().properties().n_multiprocessors as usize;
    let most = (n_in.div_ceil(STEP) / MIN_PART_STEPS).min(MAX_PARTS).min(space.len() / (n_rows * n_all).max(1));
    let n_parts = (slots / (n_tiles * rows.n_blocks)).min(most).max(1);
    let run = 0..n_rows;
    let (n_rows, n_parts) = (count(OP, "rows", n_rows)?, count(OP, "parts", n_parts)?);
    let [w0, w1, w2] = weights(products)?;
    {
        let [o0, o1, o2] = outs(products, &run)?;
        let n_groups = count(OP, "groups", n_in / GROUP)?;
        let parts = space.reborrow();
        let args = Wide { x, w0, w1, w2, o0, o1, o2, parts, n0, n1, n2, n_groups, n_rows, n_parts, adds };
        let blocks = [count(OP, "blocks", rows.n_blocks)?, n_parts, count(OP, "tiles", n_tiles)?];
        let grid = Grid { blocks, threads: [THREADS, 1, 1], shared_bytes: rows.shared_bytes() };
        let unit = WideKernels::get(gpu.kernels, &[format])?;
        gpu.launcher.launch(&unit.multiply[rows.variant], grid, &args)?;
    }
    if n_parts > 1 {
        let unit = MmaKernels::get(gpu.kernels, &[format])?;
        add_parts(gpu, &unit.sum, space.as_slice(), n_rows, &run, n_parts, products)?;
    }
    Ok(())
}
