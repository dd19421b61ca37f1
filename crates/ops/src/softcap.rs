//! A soft bound: `x = cap * tanh(x / cap)` keeps small numbers and bends large ones towards the cap.

use crate::cpu::exp::exp;
use crate::view::SharedPtr;
use crate::{Error, Exec, ViewMut, numbers};

const OP: &str = "softcap";

/// `x` is `[n_rows, n_cols]`, f32; `cap` is above zero.
pub fn softcap(exec: Exec, x: &mut ViewMut, cap: f32) -> Result<(), Error> {
    if cap.is_nan() || cap <= 0.0 {
        return Err(Error::Argument { op: OP, what: format!("a cap of {cap}") });
    }
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return numbers::softcap(gpu, OP, x, cap),
    };
    let x = x.f32s(OP, "x")?;
    let n = x.len();
    let x = SharedPtr::new(x);
    pool.run_ranges(n, 1 << 12, |range, _| {
        // SAFETY: ranges do not overlap and lie inside `x`.
        let x = unsafe { x.slice(range.start, range.len()) };
        #[cfg(target_arch = "x86_64")]
        if pool.isa() >= crate::Isa::Avx2 {
            // SAFETY: the CPU has AVX2 and FMA.
            unsafe { cap_all_avx2(x, cap) };
            return;
        }
        cap_all(x, cap);
    });
    Ok(())
}

#[inline(always)]
pub(crate) fn cap_all(x: &mut [f32], cap: f32) {
    let inverse = 1.0 / cap;
    x.iter_mut().for_each(|x| *x = cap * tanh(*x * inverse));
}

/// # Safety
/// The CPU has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn cap_all_avx2(x: &mut [f32], cap: f32) {
    cap_all(x, cap);
}

/// Within a few units in the last place of 1; symmetric, and never beyond 1.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let square = x * x;
    // Near zero the quotient would lose its digits; both are computed, so that there is no branch.
    let near = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0)));
    let e = exp(-2.0 * x.abs());
    let far = ((1.0 - e) / (1.0 + e)).copysign(x);
    if x.abs() < 0.04 { near } else { far }
}

#[cfg(test)]
mod tests {
    use super::tanh;

    #[test]
    fn close_to_f64() {
        for i in -200_000..200_000 {
            let x = i as f32 * 1e-4;
            let error = (f64::from(tanh(x)) - f64::from(x).tanh()).abs();
            assert!(error <= 1e-6 * f64::from(x).tanh().abs(), "tanh({x}) is off by {error:.2e}");
        }
        assert_eq!((tanh(1e30), tanh(-1e30)), (1.0, -1.0));
        assert!(tanh(f32::NAN).is_nan());
    }
}
