//! Several streams side by side that predict and correct each other (AltUp, of Gemma 3n): the first is the one that layers
//! work on, the others follow it. There are four in all.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, View, ViewMut};

const OP: &str = "streams";
const THREADS: u32 = 256;
/// All of them.
pub const N_STREAMS: usize = 4;
/// The smallest mean square that another row is matched to.
const MIN_SQUARE: f32 = 1e-5;

gpu::args! {
    pub(crate) struct Predict<'a> {
        states: Slice<'a, f32>,
        w: Slice<'a, f32>,
        x0: SliceMut<'a, f32>,
        x1: SliceMut<'a, f32>,
        x2: SliceMut<'a, f32>,
        x3: SliceMut<'a, f32>,
        n: u64,
        n_cols: u32,
    }
}

gpu::args! {
    pub(crate) struct Correct<'a> {
        states: Slice<'a, f32>,
        w: Slice<'a, f32>,
        predicted: Slice<'a, f32>,
        factors: Slice<'a, f32>,
        x0: SliceMut<'a, f32>,
        x1: SliceMut<'a, f32>,
        x2: SliceMut<'a, f32>,
        x3: SliceMut<'a, f32>,
        scaled: SliceMut<'a, f32>,
        n: u64,
        n_cols: u32,
    }
}

gpu::args! {
    pub(crate) struct MatchRows<'a> {
        x: Slice<'a, f32>,
        y: SliceMut<'a, f32>,
        n_cols: u32,
        min_square: f32,
    }
}

kernels! {
    pub(crate) struct StreamKernels in "streams", overlapping {
        predict: Kernel<Predict<'static>> = ["predict_streams"],
        correct: Kernel<Correct<'static>> = ["correct_streams"],
        match_rows: Kernel<MatchRows<'static>> = ["match_rows"],
    }
}

/// `x_i += sum_j c_ij x_j`, where `c_ij` of a row is row `4 i + j` of `weights` (`[16, 4]`) times `states` (`[n_rows, 4]`).
pub fn predict_streams(
    exec: Exec,
    states: View,
    weights: View,
    streams: [&mut ViewMut; N_STREAMS],
) -> Result<(), Error> {
    let [n_rows, n_cols] = check(states, &streams)?;
    weights.expect_shape(OP, "weights", [N_STREAMS * N_STREAMS, N_STREAMS])?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => {
            let Some((grid, n)) = grid(gpu, n_rows * n_cols)? else { return Ok(()) };
            let [x0, x1, x2, x3] = streams;
            let (states, w) = (states.device_f32s(OP, "states")?, weights.device_f32s(OP, "weights")?);
            let [x0, x1] = [x0.device_f32s(OP, "x0")?, x1.device_f32s(OP, "x1")?];
            let [x2, x3] = [x2.device_f32s(OP, "x2")?, x3.device_f32s(OP, "x3")?];
            let args = Predict { states, w, x0, x1, x2, x3, n, n_cols: count(OP, "columns", n_cols)? };
            let _op = gpu.launcher.op(OP);
            return Ok(gpu.launcher.launch(&StreamKernels::get(gpu.kernels, &[])?.predict, grid, &args)?);
        }
    };
    let (states, weights) = (states.f32s(OP, "states")?, weights.f32s(OP, "weights")?);
    let [x0, x1, x2, x3] = streams;
    let all = [x0.f32s(OP, "x0")?, x1.f32s(OP, "x1")?, x2.f32s(OP, "x2")?, x3.f32s(OP, "x3")?].map(SharedPtr::new);
    pool.run_ranges(n_rows, 4, |rows, _| {
        for row in rows {
            let c: Vec<f32> = weights.chunks_exact(N_STREAMS).map(|w| dot(w, &states[row * N_STREAMS..])).collect();
            // SAFETY: each row belongs to one range and lies inside its stream.
            let [a, b, e, f] = all.each_ref().map(|x| unsafe { x.slice(row * n_cols, n_cols) });
            for col in 0..n_cols {
                let x = [a[col], b[col], e[col], f[col]];
                let made = |i: usize| x[i] + dot(&c[i * N_STREAMS..][..N_STREAMS], &x);
                (a[col], b[col], e[col], f[col]) = (made(0), made(1), made(2), made(3));
            }
        }
    });
    Ok(())
}

/// What a layer made of the first stream corrects all of them: `x_i = p_i + (x_0 - p_0) * (1 + c_i)`, where `p_0` is
/// `predicted`, the other streams are `p_i`, and `c_i` is row `i` of `weights` (`[4, 4]`) times `states`. `scaled` becomes
/// the new `x_0` times `factors` (`[1, n_cols]`).
pub fn correct_streams(
    exec: Exec,
    (states, weights): (View, View),
    (predicted, factors): (View, View),
    streams: [&mut ViewMut; N_STREAMS],
    scaled: &mut ViewMut,
) -> Result<(), Error> {
    let [n_rows, n_cols] = check(states, &streams)?;
    weights.expect_shape(OP, "weights", [N_STREAMS, N_STREAMS])?;
    predicted.expect_shape(OP, "predicted", [n_rows, n_cols])?;
    factors.expect_shape(OP, "factors", [1, n_cols])?;
    scaled.expect_shape(OP, "scaled", [n_rows, n_cols])?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => {
            let Some((grid, n)) = grid(gpu, n_rows * n_cols)? else { return Ok(()) };
            let [x0, x1, x2, x3] = streams;
            let (states, w) = (states.device_f32s(OP, "states")?, weights.device_f32s(OP, "weights")?);
            let [x0, x1] = [x0.device_f32s(OP, "x0")?, x1.device_f32s(OP, "x1")?];
            let [x2, x3] = [x2.device_f32s(OP, "x2")?, x3.device_f32s(OP, "x3")?];
            let (predicted, factors) = (predicted.device_f32s(OP, "predicted")?, factors.device_f32s(OP, "factors")?);
            let (scaled, n_cols) = (scaled.device_f32s(OP, "scaled")?, count(OP, "columns", n_cols)?);
            let args = Correct { states, w, predicted, factors, x0, x1, x2, x3, scaled, n, n_cols };
            let _op = gpu.launcher.op(OP);
            return Ok(gpu.launcher.launch(&StreamKernels::get(gpu.kernels, &[])?.correct, grid, &args)?);
        }
    };
    let (states, weights) = (states.f32s(OP, "states")?, weights.f32s(OP, "weights")?);
    let (predicted, factors) = (predicted.f32s(OP, "predicted")?, factors.f32s(OP, "factors")?);
    let [x0, x1, x2, x3] = streams;
    let all = [x0.f32s(OP, "x0")?, x1.f32s(OP, "x1")?, x2.f32s(OP, "x2")?, x3.f32s(OP, "x3")?].map(SharedPtr::new);
    let scaled = SharedPtr::new(scaled.f32s(OP, "scaled")?);
    pool.run_ranges(n_rows, 4, |rows, _| {
        for row in rows {
            let at = row * n_cols;
            let c: Vec<f32> =
                weights.chunks_exact(N_STREAMS).map(|w| 1.0 + dot(w, &states[row * N_STREAMS..])).collect();
            // SAFETY: each row belongs to one range and lies inside its matrix.
            let ([a, b, e, f], scaled) =
                unsafe { (all.each_ref().map(|x| x.slice(at, n_cols)), scaled.slice(at, n_cols)) };
            for col in 0..n_cols {
                let first = predicted[at + col];
                let change = a[col] - first;
                a[col] = first + change * c[0];
                b[col] += change * c[1];
                e[col] += change * c[2];
                f[col] += change * c[3];
                scaled[col] = a[col] * factors[col];
            }
        }
    });
    Ok(())
}

/// Scales each row of `y` to the mean square of the same row of `x`; both `[n_rows, n_cols]`.
pub fn match_rows(exec: Exec, x: View, y: &mut ViewMut) -> Result<(), Error> {
    let [n_rows, n_cols] = x.shape;
    y.expect_shape(OP, "y", x.shape)?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => {
            if n_rows * n_cols == 0 {
                return Ok(());
            }
            let _op = gpu.launcher.op(OP);
            gpu.launcher.count(gpu::Work { bytes: 16 * (n_rows * n_cols) as u64, flops: 0 });
            let (x, y) = (x.device_f32s(OP, "x")?, y.device_f32s(OP, "y")?);
            let args = MatchRows { x, y, n_cols: count(OP, "columns", n_cols)?, min_square: MIN_SQUARE };
            let grid = Grid::line(count(OP, "rows", n_rows)?, THREADS);
            return Ok(gpu.launcher.launch(&StreamKernels::get(gpu.kernels, &[])?.match_rows, grid, &args)?);
        }
    };
    let x = x.f32s(OP, "x")?;
    let y = SharedPtr::new(y.f32s(OP, "y")?);
    pool.run_ranges(n_rows, 8, |rows, _| {
        for row in rows {
            // SAFETY: each row belongs to one range and lies inside `y`.
            let y = unsafe { y.slice(row * n_cols, n_cols) };
            let factor = (square(&x[row * n_cols..][..n_cols]) / square(y).max(f64::from(MIN_SQUARE))).sqrt() as f32;
            y.iter_mut().for_each(|y| *y *= factor);
        }
    });
    Ok(())
}

fn square(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / x.len().max(1) as f64
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The shape of all streams.
fn check(states: View, streams: &[&mut ViewMut; N_STREAMS]) -> Result<[usize; 2], Error> {
    let shape = streams[0].shape;
    states.expect_shape(OP, "states", [shape[0], N_STREAMS])?;
    streams.iter().try_for_each(|stream| stream.expect_shape(OP, "stream", shape))?;
    Ok(shape)
}

/// A thread for each number of a stream; `None` where there are none.
fn grid(gpu: &Gpu, n: usize) -> Result<Option<(Grid, u64)>, Error> {
    gpu.launcher.count(gpu::Work { bytes: 32 * n as u64, flops: 0 });
    let n_blocks = count(OP, "numbers", n.div_ceil(THREADS as usize))?;
    Ok((n > 0).then(|| (Grid::line(n_blocks, THREADS), n as u64)))
}
