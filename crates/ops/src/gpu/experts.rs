//! A mixture of experts on a GPU: the choice is made there and nothing is read back, so a step with experts can be
//! captured like any other. Row r's j-th expert is pair `r * n_used + j`.
//!
//! Here each pair reads its expert's matrix by itself: right for one token at a time, when every pair has a different
//! expert. On chips with matrix units, more rows are first grouped by expert (`grouped.rs`).

use gpu::{Grid, Kernel, Slice, SliceMut};

use weights::Dtype;

use super::THREADS;
use super::count;
use super::grouped::ExpertMatrices;
use super::left::DeviceLeft;
use super::matvec::{PackedMatvec, PlainMatvec, ROUNDED_BYTES, ROUNDED_SCALES_BYTES, round, waves_and_outs};
use super::unit::kernels;
use crate::embed::expect_device_layout;
use crate::matmul::{Mode, OP};
use crate::route::{Gating, Routing};
use crate::tiles::GROUP;
use crate::{Activation, Error, Exec, Gpu, View, ViewMut};

const CHOOSE: &str = "choose_experts";
/// As many as the kernel has room for.
pub const MAX_GPU_EXPERTS: usize = 1024;
/// Groups of experts: a lane each.
pub const MAX_GPU_GROUPS: usize = 32;
/// The most blocks in the second direction of a grid, with room to spare.
const MAX_PAIRS: usize = 1 << 15;

gpu::args! {
    pub(crate) struct ChooseExperts<'a> {
        scores: Slice<'a, f32>,
        bias: Option<Slice<'a, f32>>,
        chosen: SliceMut<'a, u32>,
        weights: SliceMut<'a, f32>,
        n_experts: u32,
        n_used: u32,
        gating: u32,
        is_normalized: u32,
        scale: f32,
        n_groups: u32,
        n_groups_used: u32,
    }
}

gpu::args! {
    pub(crate) struct ScaleShares<'a> {
        weights: SliceMut<'a, f32>,
        chosen: Slice<'a, u32>,
        factors: Slice<'a, f32>,
        n: u64,
    }
}

gpu::args! {
    pub(crate) struct AddExpertBias<'a> {
        out: SliceMut<'a, f32>,
        bias: Slice<'a, f32>,
        chosen: Slice<'a, u32>,
        step: u64,
        n_cols: u32,
        n: u64,
    }
}

gpu::args! {
    pub(crate) struct SumExperts<'a> {
        y: Slice<'a, f32>,
        weights: Slice<'a, f32>,
        out: SliceMut<'a, f32>,
        n_cols: u32,
        n_used: u32,
        adds: u32,
        n: u64,
    }
}

gpu::args! {
    pub(crate) struct AddGated<'a> {
        y: Slice<'a, f32>,
        scores: Slice<'a, f32>,
        out: SliceMut<'a, f32>,
        n_cols: u32,
        n: u64,
    }
}

gpu::args! {
    pub(crate) struct ExpertPacked<'a> {
        q: Slice<'a, u8>,
        scales: Slice<'a, f32>,
        w0: Slice<'a, u8>,
        w1: Option<Slice<'a, u8>>,
        o0: SliceMut<'a, f32>,
        o1: Option<SliceMut<'a, f32>>,
        chosen: Slice<'a, u32>,
        step0: u64,
        step1: u64,
        n_out: u32,
        n_groups: u32,
        share: u32,
    }
}

gpu::args! {
    pub(crate) struct ExpertPlain<'a> {
        x: Slice<'a, f32>,
        w0: Slice<'a, u8>,
        w1: Option<Slice<'a, u8>>,
        o0: SliceMut<'a, f32>,
        o1: Option<SliceMut<'a, f32>>,
        chosen: Slice<'a, u32>,
        step0: u64,
        step1: u64,
        n_out: u32,
        n_in: u32,
        share: u32,
    }
}

kernels! {
    pub(crate) struct ExpertKernels in "experts", overlapping {
        choose: Kernel<ChooseExperts<'static>> = ["choose_experts"],
        add_bias: Kernel<AddExpertBias<'static>> = ["add_expert_bias"],
        scale_shares: Kernel<ScaleShares<'static>> = ["scale_shares"],
        sum: Kernel<SumExperts<'static>> = ["sum_experts"],
        add_gated: Kernel<AddGated<'static>> = ["add_gated"],
    }
}

fn numbers(op: &'static str, n: usize) -> Result<Grid, Error> {
    Ok(Grid::line(count(op, "numbers", n.div_ceil(THREADS as usize))?, THREADS))
}

/// The matrices of all experts as one range of memory, and how many bytes lie from each to the next.
pub(super) fn evenly<'a>(op: &'static str, all: &[View<'a>]) -> Result<(Slice<'a, u8>, usize), Error> {
    let slices = all.iter().map(|view| view.device_bytes(op, "weight")).collect::<Result<Vec<_>, _>>()?;
    Slice::evenly(&slices)
        .ok_or_else(|| Error::Argument { op, what: "the experts' matrices do not lie evenly spaced".into() })
}

/// Which experts each row goes to and with which weights: `chosen` (expert numbers, as bits) and `weights` are
/// `[n_rows * n_used, 1]`, `scores` `[n_rows, n_experts]`; `bias` is added for choosing only.
pub fn choose_experts(
    exec: Exec,
    scores: View,
    bias: Option<View>,
    routing: &Routing,
    chosen: &mut ViewMut,
    weights: &mut ViewMut,
) -> Result<(), Error> {
    let gpu = exec.gpu_only(CHOOSE)?;
    let [n_rows, n_experts] = scores.shape;
    let Routing { n_used, gating, is_normalized, scale, n_groups, n_groups_used } = *routing;
    let are_groups_good = n_groups == 1 || n_groups <= MAX_GPU_GROUPS && routing.are_groups_good(n_experts);
    if n_used == 0 || n_used > n_experts || n_experts > MAX_GPU_EXPERTS || !are_groups_good {
        let what = format!(
            "{n_used} of {n_experts} experts, {n_groups_used} of {n_groups} groups; at most {MAX_GPU_EXPERTS} experts and \
             {MAX_GPU_GROUPS} groups"
        );
        return Err(Error::Argument { op: CHOOSE, what });
    }
    if let Some(bias) = bias {
        bias.expect_shape(CHOOSE, "bias", [1, n_experts])?;
    }
    chosen.expect_shape(CHOOSE, "chosen", [n_rows * n_used, 1])?;
    weights.expect_shape(CHOOSE, "weights", [n_rows * n_used, 1])?;
    if n_rows == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(CHOOSE);
    let args = ChooseExperts {
        scores: scores.device_f32s(CHOOSE, "scores")?,
        bias: bias.map(|bias| bias.device_f32s(CHOOSE, "bias")).transpose()?,
        chosen: chosen.device_bytes(CHOOSE, "chosen")?.cast()?,
        weights: weights.device_f32s(CHOOSE, "weights")?,
        n_experts: n_experts as u32,
        n_used: n_used as u32,
        gating: match gating {
            Gating::Softmax => 0,
            Gating::Sigmoid => 1,
            Gating::SoftmaxOfBest => 2,
            Gating::NearBest => 3,
        },
        is_normalized: u32::from(is_normalized),
        scale,
        n_groups: n_groups as u32,
        n_groups_used: n_groups_used as u32,
    };
    let wave = gpu.kernels.device().properties().wave_width;
    Ok(gpu.launcher.launch(
        &ExpertKernels::get(gpu.kernels, &[])?.choose,
        Grid::line(count(CHOOSE, "rows", n_rows)?, wave),
        &args,
    )?)
}

/// Multiplies the weight of each pair by the factor of its expert; `factors` is `[1, n_experts]`.
pub fn scale_shares(exec: Exec, chosen: View, factors: View, weights: &mut ViewMut) -> Result<(), Error> {
    const OP: &str = "scale_shares";
    let gpu = exec.gpu_only(OP)?;
    chosen.expect_shape(OP, "chosen", weights.shape)?;
    let n = weights.shape[0] * weights.shape[1];
    if n == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    let args = ScaleShares {
        weights: weights.device_f32s(OP, "weights")?,
        chosen: chosen.device_bytes(OP, "chosen")?.cast()?,
        factors: factors.device_f32s(OP, "factors")?,
        n: n as u64,
    };
    Ok(gpu.launcher.launch(&ExpertKernels::get(gpu.kernels, &[])?.scale_shares, numbers(OP, n)?, &args)?)
}

/// The left side of experts' products: a row for each pair, or one for all pairs of a row.
#[derive(Copy, Clone)]
pub enum ExpertLeft<'a> {
    Rows(View<'a>),
    /// `activation(gate) * up`, for packed weights.
    Gated {
        activation: Activation,
        gate: View<'a>,
        up: View<'a>,
    },
}

/// `out[p] = x[p / share] * weights[chosen[p]] + biases[chosen[p]]`.
pub struct ExpertProduct<'a> {
    pub matrices: &'a ExpertMatrices<'a>,
    pub out: ViewMut<'a>,
}

/// One product for every pair, or two of the same shape and type.
pub fn expert_matmul(exec: Exec, x: ExpertLeft, products: &mut [ExpertProduct], chosen: View) -> Result<(), Error> {
    let gpu = exec.gpu_only(OP)?;
    let left = match x {
        ExpertLeft::Rows(x) => DeviceLeft::Rows(x),
        ExpertLeft::Gated { activation, gate, up } => DeviceLeft::Gated { activation, gate, up },
    };
    let (1 | 2, Some(first)) = (products.len(), products.first()) else {
        return Err(Error::Argument { op: OP, what: format!("{} products of experts", products.len()) });
    };
    let ([n_rows, n_in], [n_pairs, n_out]) = (left.shape(), first.out.shape);
    let Some(model) = first.matrices.weights.first().copied() else {
        return Err(Error::Argument { op: OP, what: "no experts".into() });
    };
    chosen.expect_shape(OP, "chosen", [n_pairs, 1])?;
    if n_pairs == 0 || n_out == 0 {
        return Ok(());
    }
    if n_rows == 0 || !n_pairs.is_multiple_of(n_rows) {
        return Err(Error::Argument { op: OP, what: format!("{n_pairs} pairs of {n_rows} rows") });
    }
    if matches!(left, DeviceLeft::Gated { .. }) && model.dtype.block_len() == 1 {
        return Err(Error::Argument { op: OP, what: format!("a gate on the way into {} weights", model.dtype) });
    }
    for product in &*products {
        product.out.as_view().expect_shape(OP, "out", [n_pairs, n_out])?;
        for matrix in &product.matrices.weights {
            matrix.expect_shape(OP, "weight", [n_out, n_in])?;
            expect_device_layout(OP, matrix)?;
            if (matrix.dtype, matrix.layout) != (model.dtype, model.layout) {
                return Err(Error::Argument { op: OP, what: "experts of different types".into() });
            }
        }
    }
    let _op = gpu.launcher.op(OP);
    let n = (n_pairs * products.len()) as u64;
    gpu.launcher.count(gpu::Work { bytes: n * model.n_bytes(), flops: 2 * n * (n_out * n_in) as u64 });
    multiply(gpu, left, model.dtype, products, chosen)?;
    products.iter_mut().try_for_each(|product| add_biases(gpu, product, chosen))
}

fn add_biases(gpu: &Gpu, product: &mut ExpertProduct, chosen: View) -> Result<(), Error> {
    if product.matrices.biases.is_empty() {
        return Ok(());
    }
    let [n_pairs, n_out] = product.out.shape;
    let (bias, step) = evenly(OP, &product.matrices.biases)?;
    let args = AddExpertBias {
        bias: bias.cast()?,
        chosen: chosen.device_bytes(OP, "chosen")?.cast()?,
        step: (step / 4) as u64,
        n_cols: count(OP, "columns", n_out)?,
        n: (n_pairs * n_out) as u64,
        out: product.out.device_f32s(OP, "out")?,
    };
    Ok(gpu.launcher.launch(&ExpertKernels::get(gpu.kernels, &[])?.add_bias, numbers(OP, n_pairs * n_out)?, &args)?)
}

fn multiply(
    gpu: &Gpu,
    left: DeviceLeft,
    dtype: Dtype,
    products: &mut [ExpertProduct],
    chosen: View,
) -> Result<(), Error> {
    let ([n_rows, n_in], [n_pairs, n_out]) = (left.shape(), products[0].out.shape);
    let share = n_pairs / n_rows;
    let (is_packed, (waves, outs)) = (dtype.block_len() > 1, waves_and_outs(gpu, dtype));
    let n_blocks = count(OP, "weight rows", n_out)?.div_ceil(outs).div_ceil(waves);
    let threads = waves * gpu.kernels.device().properties().wave_width;
    let chosen = chosen.device_bytes(OP, "chosen")?.cast::<u32>()?;
    let n_products = products.len() as u32;
    let mut parts = Vec::with_capacity(2);
    for product in products {
        let (w, step) = evenly(OP, &product.matrices.weights)?;
        parts.push((w, step as u64, product.out.device_f32s(OP, "out")?));
    }
    let most = (MAX_PAIRS / share).max(1) * share;
    let mut workspace = gpu.workspace.borrow_mut();
    let n_groups = n_in / GROUP;
    let (q_bytes, s_bytes) = (n_rows * n_groups * ROUNDED_BYTES, n_rows * n_groups * ROUNDED_SCALES_BYTES);
    if is_packed {
        let (q, scales) = workspace.activations.slice_mut(..q_bytes + s_bytes)?.split_at(q_bytes)?;
        round(gpu, left, q, scales.cast()?)?;
    }
    let space = workspace.activations.all();
    let (n_out_words, n_groups_words) = (count(OP, "weight rows", n_out)?, count(OP, "groups", n_groups)?);
    for first in (0..n_pairs).step_by(most) {
        let pairs = first..(first + most).min(n_pairs);
        let rows = pairs.start / share..pairs.end / share;
        let blocks = [n_blocks, count(OP, "pairs", pairs.len())?, n_products];
        let grid = Grid { blocks, threads: [threads, 1, 1], shared_bytes: 0 };
        let (chosen, share) = (chosen.slice(pairs.clone())?, share as u32);
        let mut each = parts
            .iter_mut()
            .map(|(w, step, out)| Ok::<_, Error>((*w, *step, out.slice_mut(pairs.start * n_out..pairs.end * n_out)?)));
        let (w0, step0, o0) = each.next().expect("one product at least")?;
        let (w1, step1, o1) = match each.next().transpose()? {
            Some((w, step, out)) => (Some(w), step, Some(out)),
            None => (None, 0, None),
        };
        let n_out = n_out_words;
        if is_packed {
            let q = space.slice(rows.start * n_groups * ROUNDED_BYTES..rows.end * n_groups * ROUNDED_BYTES)?;
            let scales = q_bytes + rows.start * n_groups * ROUNDED_SCALES_BYTES
                ..q_bytes + rows.end * n_groups * ROUNDED_SCALES_BYTES;
            let scales = space.slice(scales)?.cast()?;
            let n_groups = n_groups_words;
            let args = ExpertPacked { q, scales, w0, w1, o0, o1, chosen, step0, step1, n_out, n_groups, share };
            gpu.launcher.launch(&PackedMatvec::of(gpu, dtype)?.expert, grid, &args)?;
        } else {
            let DeviceLeft::Rows(x) = left else { unreachable!("checked: only packed weights take a gate") };
            let x = x.device_f32s(OP, "x")?.slice(rows.start * n_in..rows.end * n_in)?;
            let n_in = count(OP, "columns", n_in)?;
            let args = ExpertPlain { x, w0, w1, o0, o1, chosen, step0, step1, n_out, n_in, share };
            gpu.launcher.launch(&PlainMatvec::of(gpu, dtype)?.expert, grid, &args)?;
        }
    }
    Ok(())
}

/// `out[r] (+)= sum of weights[p] * y[p]` over the pairs of row r.
pub fn sum_experts(exec: Exec, y: View, weights: View, mode: Mode, out: &mut ViewMut) -> Result<(), Error> {
    const OP: &str = "sum_experts";
    let gpu = exec.gpu_only(OP)?;
    let ([n_rows, n_cols], n_pairs) = (out.shape, y.n_rows());
    y.expect_shape(OP, "y", [n_pairs, n_cols])?;
    weights.expect_shape(OP, "weights", [n_pairs, 1])?;
    if n_rows == 0 || n_cols == 0 {
        return Ok(());
    }
    if !n_pairs.is_multiple_of(n_rows) {
        return Err(Error::Argument { op: OP, what: format!("{n_pairs} pairs of {n_rows} rows") });
    }
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 4 * ((n_pairs + n_rows) * n_cols) as u64, flops: 0 });
    let args = SumExperts {
        y: y.device_f32s(OP, "y")?,
        weights: weights.device_f32s(OP, "weights")?,
        out: out.device_f32s(OP, "out")?,
        n_cols: count(OP, "columns", n_cols)?,
        n_used: count(OP, "experts", n_pairs / n_rows)?,
        adds: u32::from(mode == Mode::Add),
        n: (n_rows * n_cols) as u64,
    };
    Ok(gpu.launcher.launch(&ExpertKernels::get(gpu.kernels, &[])?.sum, numbers(OP, n_rows * n_cols)?, &args)?)
}

/// `out[r] += sigmoid(scores[r]) * y[r]`; `scores` is `[n_rows, 1]`.
pub fn add_gated(exec: Exec, y: View, scores: View, out: &mut ViewMut) -> Result<(), Error> {
    const OP: &str = "add_gated";
    let [n_rows, n_cols] = out.shape;
    y.expect_shape(OP, "y", out.shape)?;
    scores.expect_shape(OP, "scores", [n_rows, 1])?;
    if n_rows == 0 || n_cols == 0 {
        return Ok(());
    }
    let Exec::Gpu(gpu) = exec else {
        let (y, scores, out) = (y.f32s(OP, "y")?, scores.f32s(OP, "scores")?, out.f32s(OP, "out")?);
        for ((y, score), out) in y.chunks_exact(n_cols).zip(scores).zip(out.chunks_exact_mut(n_cols)) {
            let gate = 1.0 / (1.0 + (-score).exp());
            out.iter_mut().zip(y).for_each(|(out, y)| *out += gate * y);
        }
        return Ok(());
    };
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 12 * (n_rows * n_cols) as u64, flops: 0 });
    let args = AddGated {
        y: y.device_f32s(OP, "y")?,
        scores: scores.device_f32s(OP, "scores")?,
        out: out.device_f32s(OP, "out")?,
        n_cols: count(OP, "columns", n_cols)?,
        n: (n_rows * n_cols) as u64,
    };
    Ok(gpu.launcher.launch(&ExpertKernels::get(gpu.kernels, &[])?.add_gated, numbers(OP, n_rows * n_cols)?, &args)?)
}
