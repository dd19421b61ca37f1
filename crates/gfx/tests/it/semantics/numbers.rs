//! Numbers as AMD's pseudocode means them, written from the formats' definitions, and the operands that cases run on.

use crate::tools::Dice;

pub fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

pub fn fb(x: f32) -> u64 {
    x.to_bits() as u64
}

pub fn g(x: u64) -> f64 {
    f64::from_bits(x)
}

pub fn gb(x: f64) -> u64 {
    x.to_bits()
}

/// Halves by definition, in f64; bits above the sixteenth are not looked at.
pub fn h(x: u64) -> f64 {
    let (s, e, m) = (x >> 15 & 1, (x >> 10 & 31) as i32, (x & 0x3ff) as f64);
    let v = match e {
        0 => m * 2f64.powi(-24),
        31 if m == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + m / 1024.0) * 2f64.powi(e - 15),
    };
    if s == 1 { -v } else { v }
}

/// The largest half not above a magnitude, by search over all of them.
fn half_below(x: f64) -> u64 {
    let (mut lo, mut hi) = (0u64, 0x7bff);
    while lo < hi {
        let mid = (lo + hi).div_ceil(2);
        if h(mid) <= x { lo = mid } else { hi = mid - 1 }
    }
    lo
}

/// The half nearest to a value, ties to even.
pub fn hb(x: f64) -> u64 {
    if x.is_nan() {
        return 0x7e00;
    }
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    let x = x.abs();
    if x >= 65520.0 {
        return sign | 0x7c00;
    }
    let lo = half_below(x);
    let (below, above) = (x - h(lo), h(lo + 1) - x);
    sign | if lo < 0x7bff && (above < below || (above == below && lo & 1 == 1)) { lo + 1 } else { lo }
}

/// The half next to a value on zero's side.
pub fn hb_to_zero(x: f64) -> u64 {
    if x.is_nan() || x.is_infinite() {
        return hb(x);
    }
    half_below(x.abs()) | if x.is_sign_negative() { 0x8000 } else { 0 }
}

/// The upper half, and both put together.
pub fn up(x: u64) -> u64 {
    x >> 16 & 0xffff
}

pub fn two(lo: u64, hi: u64) -> u64 {
    lo & 0xffff | (hi & 0xffff) << 16
}

/// A bfloat is the upper half of a float.
pub fn bf(x: u64) -> f32 {
    f32::from_bits((x as u32) << 16)
}

pub fn bfb(x: f32) -> u64 {
    if x.is_nan() {
        return 0x7fc0;
    }
    let bits = x.to_bits() as u64;
    let (lo, rest) = (bits >> 16, bits & 0xffff);
    lo + (rest > 0x8000 || rest == 0x8000 && lo & 1 == 1) as u64
}

pub fn i(x: u64) -> i32 {
    x as u32 as i32
}

pub fn u(x: u64) -> u32 {
    x as u32
}

pub fn s16(x: u64) -> i64 {
    x as u16 as i16 as i64
}

pub fn u16_(x: u64) -> u64 {
    x & 0xffff
}

pub fn s24(x: u64) -> i64 {
    ((x as u32) << 8) as i32 as i64 >> 8
}

pub fn u24(x: u64) -> u64 {
    x & 0xff_ffff
}

pub fn byte(x: u64, n: u64) -> u64 {
    x >> (8 * n) & 0xff
}

pub fn s8(x: u64, n: u64) -> i64 {
    byte(x, n) as i8 as i64
}

pub fn nibble(x: u64, n: u64) -> u64 {
    x >> (4 * n) & 15
}

pub fn s4(x: u64, n: u64) -> i64 {
    let v = nibble(x, n) as i64;
    if v > 7 { v - 16 } else { v }
}

/// maxNum: a number beats a NaN, +0 beats -0.
pub fn max(a: f64, b: f64) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == 0.0 && b == 0.0 => {
            if a.is_sign_positive() {
                a
            } else {
                b
            }
        }
        _ => {
            if a > b {
                a
            } else {
                b
            }
        }
    }
}

pub fn min(a: f64, b: f64) -> f64 {
    -max(-a, -b)
}

/// IEEE's newer maximum: no number wins.
pub fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { max(a, b) }
}

pub fn minimum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { min(a, b) }
}

/// The middle one; with a NaN among them the smallest.
pub fn med(a: f64, b: f64, c: f64) -> f64 {
    if a.is_nan() || b.is_nan() || c.is_nan() {
        return min(min(a, b), c);
    }
    let mut v = [a, b, c];
    v.sort_by(f64::total_cmp);
    v[1]
}

pub fn middle<T: Ord + Copy>(mut v: [T; 3]) -> T {
    v.sort();
    v[1]
}

/// x = mantissa * 2^exponent with the mantissa in [0.5, 1), by halving and doubling.
pub fn frexp(mut x: f64) -> (f64, i64) {
    if x == 0.0 || !x.is_finite() {
        return (x, 0);
    }
    let mut e = 0;
    while x.abs() >= 1.0 {
        x /= 2.0;
        e += 1;
    }
    while x.abs() < 0.5 {
        x *= 2.0;
        e -= 1;
    }
    (x, e)
}

/// x * 2^e with one rounding, in whole numbers.
pub fn ldexp(x: f64, e: i64) -> f64 {
    let (m, mut at) = frexp(x);
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    at += e.clamp(-5000, 5000);
    // m is 53 bits below the point; the last bit of a double is worth 2^-1074 at least.
    let whole = (m.abs() * 2f64.powi(53)) as u128;
    let last = (at - 53).max(-1074);
    let drop = last - (at - 53);
    let kept = if drop > 60 {
        0
    } else {
        let (q, r, half) = (whole >> drop, whole & ((1 << drop) - 1), if drop == 0 { 1 } else { 1u128 << (drop - 1) });
        q + (r > half || r == half && drop > 0 && q & 1 == 1) as u128
    };
    let (mut value, mut left) = (kept as f64, last);
    while left > 0 {
        value *= 2.0;
        left -= 1;
        if value.is_infinite() {
            break;
        }
    }
    while left < 0 && value != 0.0 {
        value /= 2.0; // exact: `kept` fits above the last bit
        left += 1;
    }
    value.copysign(x)
}

/// Operands: random bits, small fields, plain floats, halves and doubles, and edges, in turns.
pub fn operands(seed: u64, n: usize) -> Vec<u64> {
    let mut dice = Dice(seed);
    const EDGES: [u64; 22] = [
        0,
        1,
        0x8000_0000,
        0x7fff_ffff,
        0xffff_ffff,
        0x3f80_0000,
        0xbf80_0000,
        0x4049_0fdb,
        1 << 63,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x007f_ffff,
        0x3c00_bc00,
        0x7c00_8000,
        0x0001_7e00,
        0xfc00_03ff,
        0x3ff0 << 48,
        0x7ff0 << 48,
        0xfff0 << 48,
        0x7ff8 << 48,
        0x000f << 48,
    ];
    (0..n)
        .map(|k| match (k as u64 + seed) % 6 {
            0 => dice.next(),
            1 => dice.next() & 0x0f0f_0f0f | 0x0c00_0000,
            2 => (dice.unit() * 100.0).to_bits() as u64 | ((dice.unit() as f64 * 1e3).to_bits() & !0xffff_ffff),
            3 => (0..4).fold(0, |v, _| v << 16 | hb(dice.unit() as f64 * 12.0)),
            4 => (dice.unit() as f64 * 1e4 + dice.unit() as f64 * 1e-7).to_bits(),
            _ => EDGES[dice.next() as usize % EDGES.len()],
        })
        .collect()
}

/// Equal bits, or NaNs whose payloads are not compared; 32 bits may be two halves.
pub fn is_same(bits: u32, x: u64, y: u64) -> bool {
    let both = |a: bool, b: bool| a && b;
    x == y
        || match bits {
            64 => both(g(x).is_nan(), g(y).is_nan()),
            16 | super::HALF => x >> 16 == y >> 16 && both(h(x).is_nan(), h(y).is_nan()),
            _ => {
                let half = |s: u32| x >> s & 0xffff == y >> s & 0xffff || both(h(x >> s).is_nan(), h(y >> s).is_nan());
                both(f(x).is_nan(), f(y).is_nan()) || half(0) && half(16)
            }
        }
}
