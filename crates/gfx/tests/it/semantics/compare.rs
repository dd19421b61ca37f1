//! Every comparison of the opcode table, by its name: condition, type, and whether exec is written too.

use std::cmp::Ordering;

use gfx_model::bare::Arg;

use super::numbers::*;
use super::{TARGETS, Target, upload, words64};

fn names(target: &Target) -> Vec<&'static str> {
    let mut names: Vec<_> = target.names().iter().copied().filter(|n| n.starts_with("v_cmp")).collect();
    names.sort();
    names
}

/// A comparison into vcc (and for `v_cmpx` exec); bit 0 of the result is the mask's, bit 1 exec's.
pub fn source(target: &Target) -> String {
    let (vcc, exec, all) =
        if target.is_wide() { ("vcc", "exec", "s_mov_b64") } else { ("vcc_lo", "exec_lo", "s_mov_b32") };
    let kernel = |name: &&str| {
        let is_64 = name.ends_with("64");
        let (a, b) =
            if is_64 { ("v[2:3]", if name.contains("class") { "v4" } else { "v[4:5]" }) } else { ("v2", "v4") };
        let writes_exec = name.starts_with("v_cmpx");
        let to = if writes_exec && target.family.is_rdna() { "" } else { &format!("{vcc}, ") };
        let body = format!(
            "  v_mov_b32_e32 v8, 0\n  v_mov_b32_e32 v9, 0\n  {all} {vcc}, 0\n  {name} {to}{a}, {b}\n  v_mov_b32_e32 v8, 2\n  {all} {exec}, -1
  v_cndmask_b32_e64 v9, 0, 1, {vcc}\n  v_or_b32_e32 v8, v8, v9\n"
        );
        target.lane_kernel(name, &body)
    };
    names(target).iter().map(kernel).collect()
}

/// The order of two operands of a type; none with a NaN.
fn order(ty: &str, a: u64, b: u64) -> Option<Ordering> {
    match ty {
        "f16" => h(a).partial_cmp(&h(b)),
        "f32" => f(a).partial_cmp(&f(b)),
        "f64" => g(a).partial_cmp(&g(b)),
        "i16" => Some(s16(a).cmp(&s16(b))),
        "u16" => Some(u16_(a).cmp(&u16_(b))),
        "i32" => Some(i(a).cmp(&i(b))),
        "u32" => Some(u(a).cmp(&u(b))),
        "i64" => Some((a as i64).cmp(&(b as i64))),
        "u64" => Some(a.cmp(&b)),
        _ => panic!("no type {ty}"),
    }
}

fn is_true(condition: &str, ty: &str, a: u64, b: u64) -> bool {
    use Ordering::*;
    let order = || order(ty, a, b);
    match condition {
        "f" => false,
        "t" | "tru" => true,
        "lt" => order() == Some(Less),
        "eq" => order() == Some(Equal),
        "le" => matches!(order(), Some(Less | Equal)),
        "gt" => order() == Some(Greater),
        "ge" => matches!(order(), Some(Greater | Equal)),
        "ne" | "lg" => matches!(order(), Some(Less | Greater)),
        "o" => order().is_some(),
        "u" => order().is_none(),
        "class" => class(ty, a) & b != 0,
        _ => !is_true(condition.strip_prefix('n').expect("a negation"), ty, a, b),
    }
}

/// The class bit: signalling and quiet NaN, then -inf, -normal, -denormal, -0, and the same upwards.
fn class(ty: &str, x: u64) -> u64 {
    let (exponent, mantissa) = match ty {
        "f16" => (5, 10),
        "f32" => (8, 23),
        _ => (11, 52),
    };
    let (e, m) = (x >> mantissa & ((1 << exponent) - 1), x & ((1 << mantissa) - 1));
    let is_negative = x >> (mantissa + exponent) & 1 == 1;
    let from_zero = match (e, m) {
        (0, 0) => 0,
        (0, _) => 1,
        (e, 0) if e == (1 << exponent) - 1 => 3,
        (e, m) if e == (1 << exponent) - 1 => return 1 << (m >> (mantissa - 1)),
        _ => 2,
    };
    1 << if is_negative { 5 - from_zero } else { 6 + from_zero }
}

#[test]
fn comparisons_follow_their_names() {
    for target in TARGETS {
        let Some((device, module)) = target.load(&source(&target)) else { return };
        for (k, name) in names(&target).into_iter().enumerate() {
            let writes_exec = name.starts_with("v_cmpx");
            let (condition, ty) = name.split_once('_').unwrap().1.split_once('_').unwrap().1.rsplit_once('_').unwrap();
            for round in 0..4 {
                let n = target.n_lanes;
                let a = operands(k as u64 * 32 + round, n);
                let mut b = operands(k as u64 * 32 + round + 5, n);
                // Equal ones, and ones that differ in their last bits only, or in the sign.
                for (l, b) in b.iter_mut().enumerate() {
                    *b = match l % 5 {
                        0 => a[l],
                        1 => a[l] ^ 1,
                        2 if l % 2 == 0 => a[l] ^ 0x8000_0000_8000_8000,
                        _ => *b,
                    };
                }
                let signalling = [0x7f80_0001, 0x7c01, 0x7ff0_0000_0000_0001];
                let a: Vec<u64> =
                    a.iter().enumerate().map(|(l, a)| if l % 16 == 7 { signalling[l / 16 % 3] } else { *a }).collect();
                let zero = vec![0; n];
                let buffers =
                    [upload(&device, &a), upload(&device, &b), upload(&device, &zero), upload(&device, &zero)];
                let args: Vec<_> = buffers.iter().map(Arg::Buffer).collect();
                device
                    .launch(&module, name, [1, 1, 1], [n as u32, 1, 1], &args)
                    .unwrap_or_else(|e| panic!("{name}: {e}"));
                for (l, got) in words64(&buffers[3]).into_iter().enumerate() {
                    let hit = is_true(condition, ty, a[l], b[l]);
                    let mask = hit && !(writes_exec && target.family.is_rdna());
                    let want = mask as u64 | if hit || !writes_exec { 2 } else { 0 };
                    assert_eq!(got & 3, want, "{name} on {} of {:#x} and {:#x}", target.chip, a[l], b[l]);
                }
            }
        }
    }
}
