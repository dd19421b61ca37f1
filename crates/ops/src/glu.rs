//! Activations of the feed-forward block, gated (`gate = act(gate) * up`) or plain (`x = act(x)`).
//!
//! SwiGLU has a file of its own: it is the common one, and devices fuse it into the next product.

use crate::cpu::exp::exp;
use crate::view::SharedPtr;
use crate::{Error, Exec, View, ViewMut, numbers, swiglu};

const OP: &str = "glu";

#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Activation {
    Silu,
    /// The approximation by a hyperbolic tangent.
    GeluTanh,
    /// By the error function.
    Gelu,
    /// `gate * sigmoid(alpha * gate) * (up + 1)`, with `gate` at most and `up` within `limit`.
    ClampedSwiglu {
        alpha: f32,
        limit: f32,
    },
    /// `max(x, 0)^2`
    ReluSquared,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// `tanh(x)`
    Tanh,
    /// `x`
    Identity,
    /// Quadratic above zero, exponential below. Never gated.
    Xielu(Xielu),
}

/// `x > 0`: `alpha_p * x^2 + beta * x`; else `alpha_n * (exp(min(x, eps)) - 1 - x) + beta * x`.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Xielu {
    pub alpha_p: f32,
    pub alpha_n: f32,
    pub beta: f32,
    pub eps: f32,
}

impl Xielu {
    fn of(self, x: f32) -> f32 {
        let Self { alpha_p, alpha_n, beta, eps } = self;
        let bent = if x > 0.0 { alpha_p * x * x } else { alpha_n * (x.min(eps).exp_m1() - x) };
        bent + beta * x
    }
}

impl Activation {
    /// Its number in kernels/gate.h, alpha and limit.
    pub(crate) fn as_kernels_take_it(self) -> (u32, f32, f32) {
        match self {
            Self::Silu => (0, 0.0, 0.0),
            Self::GeluTanh => (1, 0.0, 0.0),
            Self::Gelu => (2, 0.0, 0.0),
            Self::ClampedSwiglu { alpha, limit } => (3, alpha, limit),
            Self::ReluSquared => (4, 0.0, 0.0),
            Self::Xielu(_) => (5, 0.0, 0.0),
            Self::Sigmoid => (6, 0.0, 0.0),
            Self::Identity => (7, 0.0, 0.0),
            Self::Tanh => (8, 0.0, 0.0),
        }
    }
}

/// `gate = act(gate) * up`; both `[n_rows, n_cols]` f32.
pub fn glu(exec: Exec, activation: Activation, gate: &mut ViewMut, up: View) -> Result<(), Error> {
    if activation == Activation::Silu {
        return swiglu(exec, gate, up);
    }
    if let Activation::Xielu(_) = activation {
        return Err(Error::Argument { op: OP, what: format!("{activation:?} takes no gate") });
    }
    up.expect_shape(OP, "up", gate.shape)?;
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return numbers::glu(gpu, OP, gate, up, activation.as_kernels_take_it()),
    };
    let up = up.f32s(OP, "up")?;
    let gate = SharedPtr::new(gate.f32s(OP, "gate")?);
    pool.run_ranges(up.len(), 4096, |range, _| {
        // SAFETY: ranges do not overlap and lie inside `gate`.
        let gate = unsafe { gate.slice(range.start, range.len()) };
        let up = &up[range];
        #[cfg(target_arch = "x86_64")]
        if pool.isa() >= crate::Isa::Avx2 {
            // SAFETY: the CPU has AVX2 and FMA.
            unsafe { apply_avx2(activation, gate, up) };
            return;
        }
        apply(activation, gate, up);
    });
    Ok(())
}

#[inline(always)]
fn apply(activation: Activation, gate: &mut [f32], up: &[f32]) {
    let pairs = gate.iter_mut().zip(up);
    match activation {
        Activation::Silu => pairs.for_each(|(gate, up)| *gate = silu(*gate) * up),
        Activation::GeluTanh => pairs.for_each(|(gate, up)| *gate = gelu_tanh(*gate) * up),
        Activation::Gelu => pairs.for_each(|(gate, up)| *gate = gelu(*gate) * up),
        Activation::ClampedSwiglu { alpha, limit } => pairs.for_each(|(gate, up)| {
            let g = gate.min(limit);
            *gate = g / (1.0 + exp(-alpha * g)) * (up.clamp(-limit, limit) + 1.0);
        }),
        Activation::ReluSquared => pairs.for_each(|(gate, up)| *gate = relu_squared(*gate) * up),
        Activation::Sigmoid => pairs.for_each(|(gate, up)| *gate = sigmoid(*gate) * up),
        Activation::Tanh => pairs.for_each(|(gate, up)| *gate = tanh(*gate) * up),
        Activation::Identity => pairs.for_each(|(gate, up)| *gate *= up),
        Activation::Xielu(xielu) => pairs.for_each(|(gate, up)| *gate = xielu.of(*gate) * up),
    }
}

/// # Safety
/// The CPU has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn apply_avx2(activation: Activation, gate: &mut [f32], up: &[f32]) {
    apply(activation, gate, up);
}

/// `x = act(x)`; `x` is `[n_rows, n_cols]` f32.
pub fn activate(exec: Exec, activation: Activation, x: &mut ViewMut) -> Result<(), Error> {
    if let Activation::ClampedSwiglu { .. } = activation {
        return Err(Error::Argument { op: OP, what: format!("{activation:?} needs a gate") });
    }
    let pool = match exec {
        Exec::Cpu(pool) => pool,
        Exec::Gpu(gpu) => return numbers::activate(gpu, OP, x, activation),
    };
    let x = x.f32s(OP, "x")?;
    let n = x.len();
    let x = SharedPtr::new(x);
    pool.run_ranges(n, 4096, |range, _| {
        // SAFETY: ranges do not overlap and lie inside `x`.
        let x = unsafe { x.slice(range.start, range.len()) };
        let each = |x: &mut [f32], f: &dyn Fn(f32) -> f32| x.iter_mut().for_each(|x| *x = f(*x));
        match activation {
            Activation::Silu | Activation::ClampedSwiglu { .. } => each(x, &silu),
            Activation::GeluTanh => each(x, &gelu_tanh),
            Activation::Gelu => each(x, &gelu),
            Activation::ReluSquared => each(x, &relu_squared),
            Activation::Sigmoid => each(x, &sigmoid),
            Activation::Tanh => each(x, &tanh),
            Activation::Identity => {}
            Activation::Xielu(xielu) => each(x, &|x| xielu.of(x)),
        }
    });
    Ok(())
}

#[inline(always)]
fn relu_squared(x: f32) -> f32 {
    let x = x.max(0.0);
    x * x
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    2.0 * sigmoid(2.0 * x) - 1.0
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `x / 2 * (1 + tanh(u))` is `x * sigmoid(2 u)`, which has no branch.
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    const TWICE_ROOT: f32 = 1.595_769_2; // 2 * sqrt(2 / pi)
    x / (1.0 + exp(-TWICE_ROOT * (x + 0.044_715 * x * x * x)))
}

/// [`Activation::Gelu`] of one number.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(f64::from(x) * std::f64::consts::FRAC_1_SQRT_2) as f32)
}

/// The error function: its series near zero, a continued fraction of the complement beyond. Within 1e-12.
fn erf(x: f64) -> f64 {
    let size = x.abs();
    if size > 6.0 {
        return 1.0_f64.copysign(x);
    }
    if size < 2.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..60 {
            term *= -x * x / f64::from(n);
            let part = term / f64::from(2 * n + 1);
            sum += part;
            if part.abs() < 1e-17 {
                break;
            }
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let mut fraction = size;
    for n in (1..60).rev() {
        fraction = size + 0.5 * f64::from(n) / fraction;
    }
    let rest = (-size * size).exp() / (fraction * std::f64::consts::PI.sqrt());
    (1.0 - rest).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gelus_are_what_pytorch_gives() {
        // torch.nn.functional.gelu in f64.
        for (x, exact, by_tanh) in [
            (-3.0, -0.004_049_694_094_9, -0.003_637_392_081_8),
            (-0.5, -0.154_268_769_363_0, -0.154_285_990_174_9),
            (0.0, 0.0, 0.0),
            (0.1, 0.053_982_783_727_7, 0.053_982_751_045_4),
            (1.0, 0.841_344_746_068_5, 0.841_191_990_608_3),
            (4.0, 3.999_873_315_032_7, 3.999_929_754_051_8),
        ] {
            assert!((f64::from(gelu(x as f32)) - exact).abs() < 3e-7, "gelu({x})");
            assert!((f64::from(gelu_tanh(x as f32)) - by_tanh).abs() < 3e-7, "gelu_tanh({x})");
        }
    }
}
