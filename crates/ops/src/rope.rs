//! Rotary positions: each pair of a head's numbers is rotated by an angle that grows with the token's position.
//!
//! The angles come from a table that the model fills per batch, because a table is exact (sines in f64), the same on
//! every device, and takes any scaling of the frequencies.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, View, ViewMut};

const OP: &str = "rope";
const THREADS: u32 = 256;

gpu::args! {
    pub(crate) struct Rope<'a> {
        x: SliceMut<'a, f32>,
        angles: Slice<'a, f32>,
        n_all: u32,
        n_heads: u32,
        head_dim: u32,
        n_rot: u32,
        is_halves: u32,
    }
}

kernels! {
    pub(crate) struct RopeKernels in "rope" {
        rope: Kernel<Rope<'static>> = ["rope"],
    }
}

/// Which two numbers of a head make a pair.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Pairing {
    /// Neighbours: (0, 1), (2, 3) ... (GGUF's llama).
    Adjacent,
    /// Halves: (0, n/2), (1, n/2 + 1) ...
    Halves,
}

/// Turns the first `2 * n_pairs` numbers of every head of `x` (`[n_rows, n_heads * head_dim]`) in place. `angles` is
/// `[n_rows, 2 * n_pairs]`: cosine and sine of each pair.
pub fn rope(exec: Exec, x: &mut ViewMut, angles: View, head_dim: usize, pairing: Pairing) -> Result<(), Error> {
    let [n_rows, n_cols] = x.shape;
    let n_rot = angles.n_cols();
    angles.expect_shape(OP, "angles", [n_rows, n_rot])?;
    if head_dim == 0 || !n_cols.is_multiple_of(head_dim) || n_rot > head_dim || !n_rot.is_multiple_of(2) {
        let what = format!("{n_cols} columns in heads of {head_dim}, {n_rot} of each rotated");
        return Err(Error::Argument { op: OP, what });
    }
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return launch(gpu, x, angles, head_dim, pairing),
    };
    let angles = angles.f32s(OP, "angles")?;
    let x = SharedPtr::new(x.f32s(OP, "x")?);
    pool.run_ranges(n_rows, 16, |rows, _| {
        for row in rows {
            let angles = &angles[row * n_rot..][..n_rot];
            // SAFETY: each row belongs to one range and lies inside `x`.
            let x = unsafe { x.slice(row * n_cols, n_cols) };
            x.chunks_exact_mut(head_dim).for_each(|head| turn(&mut head[..n_rot], angles, pairing));
        }
    });
    Ok(())
}

fn launch(gpu: &Gpu, x: &mut ViewMut, angles: View, head_dim: usize, pairing: Pairing) -> Result<(), Error> {
    let ([n_rows, n_cols], n_rot) = (x.shape, angles.n_cols());
    let n_heads = n_cols / head_dim;
    let n_all = count(OP, "pairs", n_rows * n_heads * n_rot / 2)?;
    if n_all == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 8 * (n_rows * n_cols) as u64, flops: 0 });
    let kernels = RopeKernels::get(gpu.kernels, &[])?;
    let args = Rope {
        x: x.device_f32s(OP, "x")?,
        angles: angles.device_f32s(OP, "angles")?,
        n_all,
        n_heads: count(OP, "heads", n_heads)?,
        head_dim: count(OP, "head size", head_dim)?,
        n_rot: count(OP, "rotated numbers", n_rot)?,
        is_halves: u32::from(pairing == Pairing::Halves),
    };
    Ok(gpu.launcher.launch(&kernels.rope, Grid::line(n_all.div_ceil(THREADS), THREADS), &args)?)
}

fn turn(x: &mut [f32], angles: &[f32], pairing: Pairing) {
    let rotate = |a: f32, b: f32, angle: &[f32]| (a * angle[0] - b * angle[1], a * angle[1] + b * angle[0]);
    match pairing {
        Pairing::Adjacent => {
            for (pair, angle) in x.chunks_exact_mut(2).zip(angles.chunks_exact(2)) {
                (pair[0], pair[1]) = rotate(pair[0], pair[1], angle);
            }
        }
        Pairing::Halves => {
            let (low, high) = x.split_at_mut(x.len() / 2);
            for ((a, b), angle) in low.iter_mut().zip(high).zip(angles.chunks_exact(2)) {
                (*a, *b) = rotate(*a, *b, angle);
            }
        }
    }
}
