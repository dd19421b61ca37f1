//! The gate of the feed-forward block: `gate = silu(gate) * up`.

use crate::exp::exp;
use crate::isa::Isa;
use crate::view::Shared;
use crate::{Error, Exec, View, ViewMut};

const OP: &str = "swiglu";

/// `gate[i] = gate[i] / (1 + e^-gate[i]) * up[i]`; both `[n_rows, n_cols]` f32.
pub fn swiglu(exec: Exec, gate: &mut ViewMut, up: View) -> Result<(), Error> {
    up.expect_shape(OP, "up", gate.shape)?;
    let up = up.f32s(OP, "up")?;
    let gate = Shared::new(gate.f32s(OP, "gate")?);
    let Exec::Cpu(pool) = exec;
    pool.run_ranges(up.len(), 4096, |range, _| {
        // SAFETY: ranges do not overlap and lie inside `gate`.
        let gate = unsafe { gate.slice(range.start, range.len()) };
        let up = &up[range];
        #[cfg(target_arch = "x86_64")]
        if pool.isa() >= Isa::Avx2 {
            // SAFETY: the CPU has AVX2 and FMA.
            unsafe { apply_avx2(gate, up) };
            return;
        }
        apply(gate, up);
    });
    Ok(())
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
