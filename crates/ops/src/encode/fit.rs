//! What the encoders share: the scale, or scale and minimum, that makes a group's rounding error least, each weight's
//! error counted by how much it matters.
//!
//! Both fits try a row of starting scales, round, solve for the best scale of those roundings (least squares), and keep
//! the best; the winner is rounded and solved once more.

/// Weights of the largest block.
pub(super) const MAX_LEN: usize = 256;

/// Rounds to the nearest integer, without a call: adding 1.5 * 2^23 leaves no bits for a fraction.
#[inline(always)]
pub(super) fn nearest(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// How much an error at each weight counts: what the importance matrix says of its column, more for large weights,
/// which carry more of the product.
pub(super) fn error_weights(values: &[f32], importance: Option<&[f32]>, out: &mut [f32]) {
    let mean = values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
    for (i, (out, x)) in out.iter_mut().zip(values).enumerate() {
        let columns = importance.map_or(1.0, |importance| importance[i]);
        *out = columns * (mean + x * x).sqrt();
    }
    // A group that no activation ever touched still has to be rounded somehow.
    if out.iter().all(|w| *w == 0.0) {
        out.fill(1.0);
    }
}

/// The levels a scaled weight can be rounded to.
pub(super) trait Levels {
    const LOW: f32;
    const HIGH: f32;
    fn round(x: f32) -> f32;
}

/// All integers of a range.
pub(super) struct Integers<const LOW: i32, const HIGH: i32>;

impl<const LOW: i32, const HIGH: i32> Levels for Integers<LOW, HIGH> {
    const LOW: f32 = LOW as f32;
    const HIGH: f32 = HIGH as f32;

    #[inline(always)]
    fn round(x: f32) -> f32 {
        nearest(x.clamp(Self::LOW, Self::HIGH))
    }
}

/// Sums of `w * x * level` and `w * level * level` after rounding with `inverse`.
#[inline(always)]
fn moments<L: Levels>(x: &[f32], w: &[f32], inverse: f32) -> (f32, f32) {
    let (mut xl, mut ll) = (0.0, 0.0);
    for (x, w) in x.iter().zip(w) {
        let level = L::round(x * inverse);
        xl += w * x * level;
        ll += w * level * level;
    }
    (xl, ll)
}

/// The scale with which `scale * level` comes closest to the weights; it may be negative.
pub(super) fn scale<L: Levels>(x: &[f32], w: &[f32]) -> f32 {
    let extreme = x.iter().copied().fold(0.0_f32, |most, x| if x.abs() > most.abs() { x } else { most });
    if extreme.abs() < 1e-30 {
        return 0.0;
    }
    let (mut best, mut best_gain) = (0.0, 0.0);
    let mut keep = |inverse: f32| {
        let (xl, ll) = moments::<L>(x, w, inverse);
        // The error falls by this much from that of all zeros.
        if ll > 0.0 && xl * xl > best_gain * ll {
            (best, best_gain) = (xl / ll, xl * xl / ll);
        }
    };
    let reach = if L::LOW.abs() > L::HIGH { L::LOW } else { L::HIGH };
    let step = reach.abs() / 80.0;
    for k in -10..=10 {
        keep((reach + step.max(0.1) * k as f32 * reach.signum()) / extreme);
    }
    // The largest weight at the other end of an uneven range.
    let other = if reach == L::LOW { L::HIGH } else { L::LOW };
    for k in -2..=2 {
        keep((other + step.max(0.1) * k as f32) / extreme);
    }
    for _ in 0..2 {
        if best != 0.0 {
            let (xl, ll) = moments::<L>(x, w, 1.0 / best);
            if ll > 0.0 && xl * xl > best_gain * ll {
                (best, best_gain) = (xl / ll, xl * xl / ll);
            }
        }
    }
    best
}

/// `(scale, min)`, neither negative, with which `scale * q - min` comes closest, q being an integer up to `high`.
pub(super) fn scale_and_min(x: &[f32], w: &[f32], high: f32) -> (f32, f32) {
    let low = x.iter().copied().fold(0.0_f32, f32::min);
    let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if top <= low {
        return (0.0, -low);
    }
    let (mut sum_w, mut sum_x) = (0.0, 0.0);
    for (x, w) in x.iter().zip(w) {
        sum_w += w;
        sum_x += w * x;
    }
    let span = top - low;
    let (mut best, mut best_error) = ((span / high, -low), f32::INFINITY);
    let attempt = |inverse: f32, low: f32, best: &mut (f32, f32), best_error: &mut f32| {
        let (mut sum_q, mut sum_qq, mut sum_xq) = (0.0, 0.0, 0.0);
        for (x, w) in x.iter().zip(w) {
            let q = nearest(((x - low) * inverse).clamp(0.0, high));
            sum_q += w * q;
            sum_qq += w * q * q;
            sum_xq += w * x * q;
        }
        let determinant = sum_w * sum_qq - sum_q * sum_q;
        if determinant <= 0.0 || sum_qq <= 0.0 {
            return;
        }
        let mut scale = (sum_w * sum_xq - sum_x * sum_q) / determinant;
        let mut min = (sum_qq * sum_x - sum_q * sum_xq) / determinant;
        if min > 0.0 {
            (scale, min) = (sum_xq / sum_qq, 0.0);
        }
        if scale <= 0.0 {
            return;
        }
        let (mut error, back) = (0.0, 1.0 / scale);
        for (x, w) in x.iter().zip(w) {
            let q = nearest(((x - min) * back).clamp(0.0, high));
            let off = scale * q + min - x;
            error += w * off * off;
        }
        if error < *best_error {
            (*best, *best_error) = ((scale, -min), error);
        }
    };
    let step = high / 100.0;
    for k in -10..=10 {
        attempt((high + step.max(0.1) * k as f32) / span, low, &mut best, &mut best_error);
    }
    // Small ranges gain from leaving the ends out.
    if high <= 7.0 {
        for k in 1..=6 {
            let cut = span * k as f32 / 40.0;
            attempt(high / (span - cut), low + cut, &mut best, &mut best_error);
            attempt(high / (span - cut), (low + cut / 2.0).min(0.0), &mut best, &mut best_error);
        }
    }
    let (scale, min) = best;
    if scale > 0.0 {
        attempt(1.0 / scale, -min, &mut best, &mut best_error);
    }
    best
}

/// The f16 that a block will hold.
pub(super) fn as_f16(x: f32) -> f32 {
    half::f16::from_f32(x).to_f32_const()
}
