//! Products of few rows on a GPU, limited by reading the weights: packed weights with activations rounded to 16 bits
//! (kernels/round.hip), plain numbers with f32. Up to three products of one left side share a launch.

use gpu::{Grid, Kernel, Slice, SliceMut};
use weights::Dtype;

use super::THREADS;
use super::experts::{ExpertPacked, ExpertPlain};
use super::formats::FormatSet;
use super::left::DeviceLeft;
use super::unit::{DefineValues, kernels};
use super::{count, format_number};
use crate::matmul::{Mode, OP, Product};
use crate::tiles::GROUP;
use crate::{Activation, Error, Gpu};

/// Rows that one pass takes.
const PASS_ROWS: usize = 8;
/// Bytes of a group of rounded activations: 16 bits each, then four numbers that belong to the group (kernels/round.h).
pub(crate) const ROUNDED_BYTES: usize = 64;
pub(crate) const ROUNDED_SCALES_BYTES: usize = 16;
/// The `eps` of products whose left side is not normed.
const NO_NORM: f32 = -1.0;

gpu::args! {
    pub(crate) struct RoundRows<'a> {
        x: Slice<'a, f32>,
        q: SliceMut<'a, u8>,
        scales: SliceMut<'a, f32>,
        n_groups: u32,
        n_all: u32,
    }
}

gpu::args! {
    pub(crate) struct SwigluRound<'a> {
        gate: Slice<'a, f32>,
        up: Slice<'a, f32>,
        q: SliceMut<'a, u8>,
        scales: SliceMut<'a, f32>,
        n_groups: u32,
        n_all: u32,
    }
}

gpu::args! {
    pub(crate) struct GatedRound<'a> {
        gate: Slice<'a, f32>,
        up: Slice<'a, f32>,
        q: SliceMut<'a, u8>,
        scales: SliceMut<'a, f32>,
        n_groups: u32,
        n_all: u32,
        kind: u32,
        alpha: f32,
        limit: f32,
    }
}

gpu::args! {
    pub(crate) struct NormRound<'a> {
        x: Slice<'a, f32>,
        w: Slice<'a, f32>,
        q: SliceMut<'a, u8>,
        scales: SliceMut<'a, f32>,
        n_groups: u32,
        n_all: u32,
    }
}

kernels! {
    pub(crate) struct RoundKernels in "round", overlapping {
        rows: Kernel<RoundRows<'static>> = ["round_rows"],
        swiglu: Kernel<SwigluRound<'static>> = ["swiglu_round"],
        gated: Kernel<GatedRound<'static>> = ["gated_round"],
        norm: Kernel<NormRound<'static>> = ["norm_round"],
    }
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

/// The activations of packed products.
struct Rounded<'a> {
    q: Slice<'a, u8>,
    scales: Slice<'a, f32>,
}

/// The left side of `matvec`.
struct FewRows<'a> {
    x: Slice<'a, f32>,
    rounded: Option<Rounded<'a>>,
    /// [`NO_NORM`] where there is none.
    eps: f32,
    n_in: usize,
    rows: std::ops::Range<usize>,
}

/// Products of few rows, in passes of eight.
pub(crate) fn launch(gpu: &Gpu, left: DeviceLeft, products: &mut [Product]) -> Result<(), Error> {
    let [n_rows, n_in] = left.shape();
    let mut workspace = gpu.workspace.borrow_mut();
    let mut space = workspace.activations.all_mut();
    let (DeviceLeft::Rows(x) | DeviceLeft::Norm { x, .. } | DeviceLeft::Gated { gate: x, .. }) = left;
    let x = x.device_f32s(OP, "x")?;
    let is_packed = |product: &Product| product.weight.dtype.block_len() > 1;
    let n_groups = n_in / GROUP;
    let (q_bytes, s_bytes) = (n_rows * n_groups * ROUNDED_BYTES, n_rows * n_groups * ROUNDED_SCALES_BYTES);
    let rounded = if products.iter().any(is_packed) {
        let (mut q, rest) = space.slice_mut(..q_bytes + s_bytes)?.split_at(q_bytes)?;
        let mut scales = rest.cast::<f32>()?;
        round(gpu, left, q.reborrow(), scales.reborrow())?;
        true
    } else {
        false
    };
    let space = workspace.activations.all();
    let eps = if let DeviceLeft::Norm { eps, .. } = left { eps } else { NO_NORM };
    for first in (0..n_rows).step_by(PASS_ROWS) {
        let rows = first..(first + PASS_ROWS).min(n_rows);
        let x = x.slice(rows.start * n_in..rows.end * n_in)?;
        let activations = if rounded {
            let q = space.slice(rows.start * n_groups * ROUNDED_BYTES..rows.end * n_groups * ROUNDED_BYTES)?;
            let scales = space.slice(
                q_bytes + rows.start * n_groups * ROUNDED_SCALES_BYTES
                    ..q_bytes + rows.end * n_groups * ROUNDED_SCALES_BYTES,
            )?;
            Some(Rounded { q, scales: scales.cast()? })
        } else {
            None
        };
        let few = FewRows { x, rounded: activations, eps, n_in, rows };
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

pub(crate) fn round(gpu: &Gpu, left: DeviceLeft, q: SliceMut<u8>, scales: SliceMut<f32>) -> Result<(), Error> {
    let [n_rows, n_in] = left.shape();
    let unit = RoundKernels::get(gpu.kernels, &[])?;
    let n_groups = count(OP, "groups", n_in / GROUP)?;
    let n_all = count(OP, "groups", n_rows * (n_in / GROUP))?;
    let grid = Grid::line((n_all * 32).div_ceil(THREADS), THREADS);
    match left {
        DeviceLeft::Rows(x) => {
            let args = RoundRows { x: x.device_f32s(OP, "x")?, q, scales, n_groups, n_all };
            gpu.launcher.launch(&unit.rows, grid, &args)?;
        }
        DeviceLeft::Gated { activation, gate, up } => {
            let (gate, up) = (gate.device_f32s(OP, "gate")?, up.device_f32s(OP, "up")?);
            if activation == Activation::Silu {
                return Ok(gpu.launcher.launch(
                    &unit.swiglu,
                    grid,
                    &SwigluRound { gate, up, q, scales, n_groups, n_all },
                )?);
            }
            let (kind, alpha, limit) = activation.as_kernels_take_it();
            let args = GatedRound { gate, up, q, scales, n_groups, n_all, kind, alpha, limit };
            gpu.launcher.launch(&unit.gated, grid, &args)?;
        }
        DeviceLeft::Norm { x, weight, .. } => {
            let (x, w) = (x.device_f32s(OP, "x")?, weight.device_f32s(OP, "weight")?);
            gpu.launcher.launch(&unit.norm, grid, &NormRound { x, w, q, scales, n_groups, n_all })?;
        }
    }
    Ok(())
}

/// Up to three products of one type and mode, some rows of the whole batch.
fn matvec(gpu: &Gpu, few: &FewRows, products: &mut [Product]) -> Result<(), Error> {
    let FewRows { x, rounded, eps, n_in, rows } = few;
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
        let unit = PackedMatvec::of(gpu, dtype)?;
        let n_groups = count(OP, "groups", n_in / GROUP)?;
        let (q, scales) = (*q, *scales);
        let args = MatvecPacked { q, scales, w0, w1, w2, o0, o1, o2, n0, n1, n2, n_groups, n_rows, adds, eps };
        return Ok(gpu.launcher.launch(&unit.few[variant], grid, &args)?);
    }
    let unit = PlainMatvec::of(gpu, dtype)?;
    let n_in = count(OP, "columns", n_in)?;
    let args = MatvecPlain { x, w0, w1, w2, o0, o1, o2, n0, n1, n2, n_in, n_rows, adds };
    Ok(gpu.launcher.launch(&unit.few[variant], grid, &args)?)
}

kernels! {
    /// For 1, 2, 4 and 8 rows, and for pairs of row and expert.
    pub(crate) struct PackedMatvec in "matvec", overlapping; defines {
        FORMAT: DefineValues::Formats(FormatSet::Packed),
        WAVES: DefineValues::Numbers(&[4]),
        OUTS: DefineValues::Numbers(&[1, 2])
    } {
        few: [Kernel<MatvecPacked<'static>>; 4] = ["matvec_1", "matvec_2", "matvec_4", "matvec_8"],
        expert: Kernel<ExpertPacked<'static>> = ["matvec_expert"],
    }
}

kernels! {
    /// The same for plain numbers.
    pub(crate) struct PlainMatvec in "matvec", overlapping; defines {
        FORMAT: DefineValues::Formats(FormatSet::Plain),
        WAVES: DefineValues::Numbers(&[4]),
        OUTS: DefineValues::Numbers(&[1, 2])
    } {
        few: [Kernel<MatvecPlain<'static>>; 4] = ["matvec_1", "matvec_2", "matvec_4", "matvec_8"],
        expert: Kernel<ExpertPlain<'static>> = ["matvec_expert"],
    }
}

impl PackedMatvec {
    pub(crate) fn of(gpu: &Gpu, dtype: Dtype) -> Result<Self, Error> {
        let (waves, outs) = waves_and_outs(gpu, dtype);
        Self::get(gpu.kernels, &[format_number(dtype)?, waves, outs])
    }
}

impl PlainMatvec {
    pub(crate) fn of(gpu: &Gpu, dtype: Dtype) -> Result<Self, Error> {
        let (waves, outs) = waves_and_outs(gpu, dtype);
        Self::get(gpu.kernels, &[format_number(dtype)?, waves, outs])
    }
}

/// Waves of a block and weight rows of a wave, as matvec.hip is compiled for this chip.
pub(crate) fn waves_and_outs(gpu: &Gpu, dtype: Dtype) -> (u32, u32) {
    let tuning = gpu.kernels.tuning;
    (tuning.waves, if dtype.block_len() > 1 { tuning.packed_outs } else { tuning.plain_outs })
}
