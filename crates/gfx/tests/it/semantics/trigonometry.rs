//! `v_trig_preop_f64` against bits of 2 / pi that are computed here, from Machin's formula in whole numbers.

use std::sync::OnceLock;

use super::numbers::*;
use super::{Case, cases, check_vector};

/// Whole numbers of this many 32-bit limbs, lowest first; fractions have `POINT` of them after the point.
const LIMBS: usize = 48;
const POINT: usize = 44;
type Big = [u32; LIMBS];

fn divide(x: &Big, by: u64) -> Big {
    let (mut out, mut rest) = ([0; LIMBS], 0u64);
    for n in (0..LIMBS).rev() {
        rest = rest << 32 | x[n] as u64;
        out[n] = (rest / by) as u32;
        rest %= by;
    }
    out
}

fn add(x: &Big, y: &Big) -> Big {
    let mut carry = 0u64;
    std::array::from_fn(|n| {
        carry += x[n] as u64 + y[n] as u64;
        let limb = carry as u32;
        carry >>= 32;
        limb
    })
}

fn subtract(x: &Big, y: &Big) -> Big {
    let mut borrow = 0i64;
    std::array::from_fn(|n| {
        let limb = x[n] as i64 - y[n] as i64 + borrow;
        borrow = limb >> 32;
        limb as u32
    })
}

fn times(x: &Big, by: u32) -> Big {
    (1..by).fold(*x, |sum, _| add(&sum, x))
}

fn arctan_of_inverse(n: u64) -> Big {
    let mut one = [0; LIMBS];
    one[POINT] = 1;
    let mut power = divide(&one, n);
    let mut sum = power;
    for k in 1.. {
        power = divide(&power, n * n);
        if power == [0; LIMBS] {
            break;
        }
        let term = divide(&power, 2 * k + 1);
        sum = if k % 2 == 1 { subtract(&sum, &term) } else { add(&sum, &term) };
    }
    sum
}

/// The first bits of 2 / pi after the point, by long division.
fn bits() -> &'static [u8] {
    static BITS: OnceLock<Vec<u8>> = OnceLock::new();
    BITS.get_or_init(|| {
        let pi = subtract(&times(&arctan_of_inverse(5), 16), &times(&arctan_of_inverse(239), 4));
        let mut rest = [0; LIMBS];
        rest[POINT] = 2;
        let mut next = || {
            rest = add(&rest, &rest);
            let is_more = rest.iter().rev().ge(pi.iter().rev());
            if is_more {
                rest = subtract(&rest, &pi);
            }
            is_more as u8
        };
        (0..1201).map(|_| next()).collect()
    })
}

fn preop(x: u64, segment: u64) -> u64 {
    let exponent = x >> 52 & 0x7ff;
    let first = (segment & 31) * 53 + exponent.saturating_sub(1077);
    let whole = (0..53).fold(0u64, |w, k| w << 1 | *bits().get((first + k) as usize).unwrap_or(&0) as u64);
    gb(ldexp(whole as f64, -53 - first as i64 + if exponent >= 1968 { 128 } else { 0 }))
}

pub const CASES: &[Case] = cases! {
    "v_trig_preop_f64 D, A, b" / 64 => |a, b, _, _| preop(a, b);
    "v_trig_preop_f64 D, A, 0" / 64 => |a, _, _, _| preop(a, 0);
    "v_trig_preop_f64 D, A, 2" / 64 => |a, _, _, _| preop(a, 2);
};

#[test]
fn the_bits_of_two_over_pi() {
    check_vector(CASES, |_, got, want| got == want);
}
