//! Sums of exponentials over a whole vocabulary, written so that the compiler turns the inner loops into vector code:
//! a polynomial exponential without calls or branches, partial sums in lanes, totals in f64.

const LANES: usize = 16;
/// Below this, `exp` is taken as 0: 2^-125, still a normal number.
const LOWEST: f32 = -86.6;

/// e^x for x <= 0, to about 1e-7 relative; 0 below -86.6.
#[inline]
pub fn exp(x: f32) -> f32 {
    // Adding and subtracting 1.5 * 2^23 rounds to an integer in f32.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first with trailing zeros, so that n * LN2_HIGH is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.max(LOWEST);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    // Taylor to r^7/7!: |r| <= ln 2 / 2, the rest is below 6e-9.
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    let value = p * f32::from_bits(exponent);
    if x < LOWEST { 0.0 } else { value }
}

/// The sum of e^((x - max) * scale) over `logits`.
pub fn sum_exp(logits: &[f32], max: f32, scale: f32) -> f64 {
    // Short runs, so that the f32 lanes never add numbers of very different size.
    logits.chunks(64 * LANES).map(|run| f64::from(sum_exp_run(run, max, scale))).sum()
}

fn sum_exp_run(logits: &[f32], max: f32, scale: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let mut chunks = logits.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += exp((x - max) * scale);
        }
    }
    let rest: f32 = chunks.remainder().iter().map(|&x| exp((x - max) * scale)).sum();
    lanes.iter().sum::<f32>() + rest
}

/// The index at which the running sum of e^((x - max) * scale) passes the fraction `u` of the whole.
pub fn pick(logits: &[f32], max: f32, scale: f32, u: f64, run_sums: &mut Vec<f64>) -> usize {
    const RUN: usize = 16 * LANES;
    run_sums.clear();
    run_sums.extend(logits.chunks(RUN).map(|run| f64::from(sum_exp_run(run, max, scale))));
    let mut left = u * run_sums.iter().sum::<f64>();
    // The last run with any weight takes what rounding leaves over.
    let last_run = run_sums.iter().rposition(|&sum| sum > 0.0).unwrap_or(0);
    let mut run_idx = 0;
    while run_idx < last_run && (left >= run_sums[run_idx]) {
        left -= run_sums[run_idx];
        run_idx += 1;
    }
    let first = run_idx * RUN;
    let run = &logits[first..(first + RUN).min(logits.len())];
    first + pick_weight(run.iter().map(|&x| f64::from(exp((x - max) * scale))), left)
}

/// The index at which the running sum of `weights` passes `left`; the last one with any weight if none does.
pub fn pick_weight(weights: impl Iterator<Item = f64>, mut left: f64) -> usize {
    let mut last = 0;
    for (idx, weight) in weights.enumerate() {
        if weight > 0.0 {
            last = idx;
            if left < weight {
                break;
            }
            left -= weight;
        }
    }
    last
}

/// The largest value, or `None` if one is NaN or positive infinity, or all are negative infinity.
pub fn finite_max(logits: &[f32]) -> Option<f32> {
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut is_nan = [false; LANES];
    let mut chunks = logits.chunks_exact(LANES);
    for chunk in &mut chunks {
        for ((max, is_nan), &x) in max.iter_mut().zip(&mut is_nan).zip(chunk) {
            *max = if x > *max { x } else { *max };
            *is_nan |= x.is_nan();
        }
    }
    let mut all = max.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut has_nan = is_nan.contains(&true);
    for &x in chunks.remainder() {
        all = all.max(x);
        has_nan |= x.is_nan();
    }
    (all.is_finite() && !has_nan).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw;

    #[test]
    fn exp_is_right_to_single_precision() {
        let mut worst = 0.0f64;
        for i in 0..200_000 {
            let x = -86.5 * i as f32 / 200_000.0;
            let truth = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - truth).abs() / truth);
        }
        assert!(worst < 2.5e-7, "relative error {worst:e}");
        assert_eq!((exp(0.0), exp(-87.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
    }

    #[test]
    fn sums_agree_with_f64() {
        for n in [1, 15, 16, 17, 1023, 1025, 49_152, 100_003] {
            let logits: Vec<f32> = (0..n).map(|i| draw::uniform(n, i) as f32 * 30.0 - 20.0).collect();
            let max = finite_max(&logits).unwrap();
            let truth: f64 = logits.iter().map(|&x| (f64::from(x) - f64::from(max)).exp()).sum();
            assert!((sum_exp(&logits, max, 1.0) / truth - 1.0).abs() < 1e-6, "{n} logits");
        }
    }

    #[test]
    fn pick_walks_the_whole_distribution() {
        let logits: Vec<f32> = (0..1000).map(|i| ((i * 37) % 11) as f32 - 5.0).collect();
        let weights: Vec<f64> = logits.iter().map(|&x| f64::from(x - 5.0).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let mut sums = Vec::new();
        for (i, weight) in weights.iter().enumerate() {
            let middle = (sum + weight / 2.0) / total;
            assert_eq!(pick(&logits, 5.0, 1.0, middle, &mut sums), i);
            sum += weight;
        }
    }

    #[test]
    fn forbidden_tokens_are_never_picked() {
        let mut logits = vec![f32::NEG_INFINITY; 600];
        logits[300] = 1.0;
        for u in [0.0, 0.5, 1.0 - 1e-16, 1.0] {
            assert_eq!(pick(&logits, 1.0, 1.0, u, &mut Vec::new()), 300);
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for (bad, n) in [(f32::NAN, 40), (f32::INFINITY, 40), (f32::NAN, 3)] {
            for at in 0..n {
                let mut logits = vec![0.5; n];
                logits[at] = bad;
                assert_eq!(finite_max(&logits), None, "{bad} at {at} of {n}");
            }
        }
        assert_eq!(finite_max(&[f32::NEG_INFINITY; 5]), None);
        assert_eq!(finite_max(&[]), None);
        assert_eq!(finite_max(&[f32::NEG_INFINITY, -3.0]), Some(-3.0));
    }
}
