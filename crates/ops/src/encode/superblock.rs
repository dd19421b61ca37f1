//! Encoding of 256 weights in groups that have a small integer scale (and minimum) each, times one f16 for all: the
//! K-quants and IQ4_XS.
//!
//! Groups are fitted one by one, their scales rounded, then every group tries the neighbours of its rounded scale with
//! its weights rounded again, and the f16 is solved for once more.

use super::fit::{self, Levels, MAX_LEN, as_f16, nearest};

/// `weight = (d * code) * level`, with `code` in `low..=high`.
pub(super) struct Scaled {
    pub d: f32,
    pub codes: [i32; 16],
    pub levels: [f32; MAX_LEN],
}

pub(super) fn scaled<L: Levels>(x: &[f32], w: &[f32], n_groups: usize, low: i32, high: i32) -> Scaled {
    let len = x.len() / n_groups;
    let part = |g: usize| g * len..(g + 1) * len;
    let mut scales = [0.0_f32; 16];
    for g in 0..n_groups {
        scales[g] = fit::scale::<L>(&x[part(g)], &w[part(g)]);
    }
    let extreme = scales.iter().copied().fold(0.0_f32, |most, s| if s.abs() > most.abs() { s } else { most });
    let mut out = Scaled { d: as_f16(extreme / low as f32), codes: [0; 16], levels: [0.0; MAX_LEN] };
    if out.d == 0.0 {
        out.levels.fill(L::round(0.0));
        return out;
    }
    for g in 0..n_groups {
        out.codes[g] = (nearest(scales[g] / out.d) as i32).clamp(low, high);
    }
    for round in 0..2 {
        for g in 0..n_groups {
            let best = (-1..=1).map(|step| (out.codes[g] + step).clamp(low, high)).min_by(|&a, &b| {
                let error = |code: i32| error::<L>(&x[part(g)], &w[part(g)], out.d * code as f32);
                error(a).total_cmp(&error(b))
            });
            out.codes[g] = best.expect("three candidates");
        }
        if round == 0 {
            let (mut xl, mut ll) = (0.0, 0.0);
            for g in 0..n_groups {
                let (code, scale) = (out.codes[g] as f32, out.d * out.codes[g] as f32);
                if scale != 0.0 {
                    for i in part(g) {
                        let level = code * L::round(x[i] / scale);
                        xl += w[i] * x[i] * level;
                        ll += w[i] * level * level;
                    }
                }
            }
            if ll > 0.0 && as_f16(xl / ll) != 0.0 {
                out.d = as_f16(xl / ll);
            }
        }
    }
    for g in 0..n_groups {
        let scale = out.d * out.codes[g] as f32;
        for i in part(g) {
            out.levels[i] = L::round(if scale == 0.0 { 0.0 } else { x[i] / scale });
        }
    }
    out
}

fn error<L: Levels>(x: &[f32], w: &[f32], scale: f32) -> f32 {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let off = |x: f32| scale * L::round(x * inverse) - x;
    x.iter().zip(w).map(|(x, w)| w * off(*x) * off(*x)).sum()
}

/// `weight = (d * scale) * q - (dmin * min)`, scales and minima up to `high`, q up to `q_high`.
pub(super) struct Affine {
    pub d: f32,
    pub dmin: f32,
    pub scales: [u8; 16],
    pub mins: [u8; 16],
    pub q: [u8; MAX_LEN],
}

pub(super) fn affine(x: &[f32], w: &[f32], n_groups: usize, high: u8, q_high: f32) -> Affine {
    let len = x.len() / n_groups;
    let part = |g: usize| g * len..(g + 1) * len;
    let mut fits = [(0.0_f32, 0.0_f32); 16];
    for g in 0..n_groups {
        fits[g] = fit::scale_and_min(&x[part(g)], &w[part(g)], q_high);
    }
    let largest = |of: fn(&(f32, f32)) -> f32| fits.iter().map(of).fold(0.0, f32::max);
    let mut out = Affine {
        d: as_f16(largest(|fit| fit.0) / f32::from(high)),
        dmin: as_f16(largest(|fit| fit.1) / f32::from(high)),
        scales: [0; 16],
        mins: [0; 16],
        q: [0; MAX_LEN],
    };
    let code = |x: f32, unit: f32| if unit == 0.0 { 0 } else { nearest((x / unit).clamp(0.0, f32::from(high))) as u8 };
    for g in 0..n_groups {
        (out.scales[g], out.mins[g]) = (code(fits[g].0, out.d), code(fits[g].1, out.dmin));
    }
    for round in 0..2 {
        for g in 0..n_groups {
            out.improve(g, &x[part(g)], &w[part(g)], high, q_high);
        }
        if round == 0 {
            out.solve(x, w, n_groups, q_high);
        }
    }
    for g in 0..n_groups {
        let (scale, min) = out.of(out.scales[g], out.mins[g]);
        for i in part(g) {
            out.q[i] = round_q(x[i], scale, min, q_high) as u8;
        }
    }
    out
}

#[inline(always)]
fn round_q(x: f32, scale: f32, min: f32, q_high: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { nearest(((x + min) / scale).clamp(0.0, q_high)) }
}

impl Affine {
    fn of(&self, scale: u8, min: u8) -> (f32, f32) {
        (self.d * f32::from(scale), self.dmin * f32::from(min))
    }

    /// Lets a group take the neighbours of its scale and minimum, where that makes its error less.
    fn improve(&mut self, g: usize, x: &[f32], w: &[f32], high: u8, q_high: f32) {
        let near = |code: u8| [code, code.saturating_sub(1), (code + 1).min(high)];
        let mut best = (f32::INFINITY, 0, 0);
        for scale_code in near(self.scales[g]) {
            for min_code in near(self.mins[g]) {
                let (scale, min) = self.of(scale_code, min_code);
                let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
                let mut error = 0.0;
                for (x, w) in x.iter().zip(w) {
                    let q = nearest(((x + min) * inverse).clamp(0.0, q_high));
                    let off = scale * q - min - x;
                    error += w * off * off;
                }
                if error < best.0 {
                    best = (error, scale_code, min_code);
                }
            }
        }
        if best.0 < f32::INFINITY {
            (self.scales[g], self.mins[g]) = (best.1, best.2);
        }
    }

    /// The best `d` and `dmin` for the roundings as they are.
    fn solve(&mut self, x: &[f32], w: &[f32], n_groups: usize, q_high: f32) {
        let len = x.len() / n_groups;
        let (mut aa, mut ab, mut bb, mut ax, mut bx) = (0.0_f64, 0.0_f64, 0.0_f64, 0.0_f64, 0.0_f64);
        for (i, (x, w)) in x.iter().zip(w).enumerate() {
            let g = i / len;
            let (scale, min) = self.of(self.scales[g], self.mins[g]);
            let a = f64::from(self.scales[g]) * f64::from(round_q(*x, scale, min, q_high));
            let (b, x, w) = (-f64::from(self.mins[g]), f64::from(*x), f64::from(*w));
            aa += w * a * a;
            ab += w * a * b;
            bb += w * b * b;
            ax += w * a * x;
            bx += w * b * x;
        }
        let determinant = aa * bb - ab * ab;
        let (d, dmin) = if determinant > aa * bb * 1e-9 {
            ((ax * bb - bx * ab) / determinant, (bx * aa - ax * ab) / determinant)
        } else if aa > 0.0 {
            (ax / aa, f64::from(self.dmin))
        } else {
            return;
        };
        if d > 0.0 && dmin >= 0.0 && d.is_finite() && dmin.is_finite() {
            (self.d, self.dmin) = (as_f16(d as f32), as_f16(dmin as f32));
        }
    }
}
