//! The gate of the feed-forward block: `gate = silu(gate) * up`.

use gpu::{Grid, Kernel, Slice, SliceMut};

use crate::Isa;
use crate::cpu::exp::exp;
use crate::gpu::count;
use crate::gpu::unit::kernels;
use crate::view::SharedPtr;
use crate::{Error, Exec, Gpu, View, ViewMut};

const OP: &str = "swiglu";
const THREADS: u32 = 256;

gpu::args! {
    pub(crate) struct Swiglu<'a> {
        gate: SliceMut<'a, f32>,
        up: Slice<'a, f32>,
        n: u64,
    }
}

kernels! {
    pub(crate) struct SwigluKernels in "swiglu", overlapping {
        swiglu: Kernel<Swiglu<'static>> = ["swiglu"],
    }
}

/// `gate[i] = gate[i] / (1 + e^-gate[i]) * up[i]`; both `[n_rows, n_cols]` f32.
pub fn swiglu(exec: Exec, gate: &mut ViewMut, up: View) -> Result<(), Error> {
    up.expect_shape(OP, "up", gate.shape)?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return launch(gpu, gate, up),
    };
    let up = up.f32s(OP, "up")?;
    let gate = SharedPtr::new(gate.f32s(OP, "gate")?);
    pool.run_ranges(up.len(), 4096, |range, _| {
        // SAFETY: ranges do not overlap and lie inside `gate`.
        let gate = unsafe { gate.slice(range.start, range.len()) };
        gate_numbers(pool.isa(), gate, &up[range]);
    });
    Ok(())
}

/// `gate = silu(gate) * up` for as many numbers as both have.
pub(crate) fn gate_numbers(isa: Isa, gate: &mut [f32], up: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx2 {
        // SAFETY: the CPU has AVX2 and FMA.
        unsafe { apply_avx2(gate, up) };
        return;
    }
    let _ = isa;
    apply(gate, up);
}

fn launch(gpu: &Gpu, gate: &mut ViewMut, up: View) -> Result<(), Error> {
    let n = up.n_rows() * up.n_cols();
    if n == 0 {
        return Ok(());
    }
    let _op = gpu.launcher.op(OP);
    gpu.launcher.count(gpu::Work { bytes: 12 * n as u64, flops: 0 });
    let kernels = SwigluKernels::get(gpu.kernels, &[])?;
    let args = Swiglu { gate: gate.device_f32s(OP, "gate")?, up: up.device_f32s(OP, "up")?, n: n as u64 };
    let grid = Grid::line(count(OP, "numbers", n.div_ceil(THREADS as usize))?, THREADS);
    Ok(gpu.launcher.launch(&kernels.swiglu, grid, &args)?)
}

#[inline(always)]
fn apply(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp(-*gate)) * up;
    }
}

/// # Safety
/// The CPU has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn apply_avx2(gate: &mut [f32], up: &[f32]) {
    apply(gate, up);
}
