//! The exponential, in a form the compiler vectorises: softmax and SwiGLU call it for every element.

/// `e^x` within 2 units in the last place for finite results; 0 below -87.3, and NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // 1.5 * 2^23: adding it rounds to an integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    let x = if x > 88.72 { 88.72 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 in two parts, so that the remainder keeps its bits.
    let r = n.mul_add(-0.693_145_75, x);
    let r = n.mul_add(-1.428_606_8e-6, r);
    let p = 1.388_889e-3_f32;
    let p = p.mul_add(r, 8.333_334e-3);
    let p = p.mul_add(r, 4.166_666_6e-2);
    let p = p.mul_add(r, 0.166_666_67);
    let p = p.mul_add(r, 0.5);
    let p = p.mul_add(r, 1.0);
    let p = p.mul_add(r, 1.0);
    // Two halves of the power, so that neither leaves the range of an exponent.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let power = |n: i32| f32::from_bits(((n.wrapping_add(127)) as u32) << 23);
    let value = p * power(half) * power(n.wrapping_sub(half));
    if x < -87.3 { 0.0 } else { value }
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn close_to_f64() {
        for i in -870_000..880_000 {
            let x = i as f32 * 1e-4;
            let truth = f64::from(x).exp();
            let error = (f64::from(exp(x)) - truth).abs() / truth;
            assert!(error < 2.5e-7, "exp({x}) is off by {error:.2e}");
        }
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(1e30).is_finite());
    }
}
