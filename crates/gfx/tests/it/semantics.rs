//! Single instructions against AMD's published pseudocode: each is assembled by clang into a small kernel that loads
//! operands per lane, runs the instruction and stores the result. Expected values are written from the pseudocode,
//! not from the emulator.

use gfx_model::bare::{Arg, Device};
use gfx_model::dispatch::Options;

use crate::tools::{self, Dice};

/// What a case computes from its operands (64 bits each) and the old destination.
type Expect = fn(u64, u64, u64, u64) -> u64;

/// Vector cases: `D` is v[8:9] (preloaded), `A` v[2:3], `B` v[4:5], `C` v[6:7]; `d`, `a`, `b`, `c` their first words.
struct Case {
    asm: &'static str,
    /// Bits of the result that are defined.
    bits: u32,
    want: Expect,
}

fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

fn fb(x: f32) -> u64 {
    x.to_bits() as u64
}

/// Halves by definition, in f64.
fn h(x: u64) -> f64 {
    let (s, e, m) = (x >> 15 & 1, (x >> 10 & 31) as i32, (x & 0x3ff) as f64);
    let v = match e {
        0 => m * 2f64.powi(-24),
        31 => {
            if m == 0.0 {
                f64::INFINITY
            } else {
                f64::NAN
            }
        }
        _ => (1.0 + m / 1024.0) * 2f64.powi(e - 15),
    };
    if s == 1 { -v } else { v }
}

/// The half nearest to a value, ties to even, by search over all of them.
fn hb(x: f64) -> u64 {
    if x.is_nan() {
        return 0x7e00;
    }
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    let x = x.abs();
    if x >= 65520.0 {
        return sign | 0x7c00;
    }
    let (mut lo, mut hi) = (0u64, 0x7bff);
    while lo < hi {
        let mid = (lo + hi).div_ceil(2);
        if h(mid) <= x { lo = mid } else { hi = mid - 1 }
    }
    let (below, above) = (x - h(lo), h(lo + 1) - x);
    sign | if lo < 0x7bff && (above < below || (above == below && lo & 1 == 1)) { lo + 1 } else { lo }
}

fn i(x: u64) -> i32 {
    x as u32 as i32
}

/// v_max_f32: a number beats a NaN, +0 beats -0.
fn max(a: f32, b: f32) -> f32 {
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

fn min(a: f32, b: f32) -> f32 {
    -max(-a, -b)
}

fn s24(x: u64) -> i64 {
    ((x as u32) << 8) as i32 as i64 >> 8
}

fn byte(x: u64, n: u64) -> u64 {
    x >> (8 * n) & 0xff
}

macro_rules! cases {
    ($($asm:literal / $bits:literal => |$a:pat_param, $b:pat_param, $c:pat_param, $d:pat_param| $e:expr;)*) => {
        &[$(Case { asm: $asm, bits: $bits, want: |$a, $b, $c, $d| $e },)*]
    };
}

const CASES: &[Case] = cases! {
    "v_add_f32_e32 d, a, b" / 32 => |a, b, _, _| fb(f(a) + f(b));
    "v_sub_f32_e64 d, |a|, -b" / 32 => |a, b, _, _| fb(f(a).abs() + f(b));
    "v_subrev_f32_e32 d, a, b" / 32 => |a, b, _, _| fb(f(b) - f(a));
    "v_mul_f32_e32 d, a, b" / 32 => |a, b, _, _| fb(f(a) * f(b));
    "v_fma_f32 d, a, b, c" / 32 => |a, b, c, _| fb(f(a).mul_add(f(b), f(c)));
    "v_fma_f32 d, -a, |b|, c" / 32 => |a, b, c, _| fb((-f(a)).mul_add(f(b).abs(), f(c)));
    "v_fmac_f32_e32 d, a, b" / 32 => |a, b, _, d| fb(f(a).mul_add(f(b), f(d)));
    "v_fmamk_f32 d, a, 0x40490fdb, b" / 32 => |a, b, _, _| fb(f(a).mul_add(f32::from_bits(0x40490fdb), f(b)));
    "v_fmaak_f32 d, a, b, 0x40490fdb" / 32 => |a, b, _, _| fb(f(a).mul_add(f(b), f32::from_bits(0x40490fdb)));
    "v_max_f32_e32 d, a, b" / 32 => |a, b, _, _| fb(max(f(a), f(b)));
    "v_min_f32_e32 d, a, b" / 32 => |a, b, _, _| fb(min(f(a), f(b)));
    "v_max3_f32 d, a, b, c" / 32 => |a, b, c, _| fb(max(max(f(a), f(b)), f(c)));
    "v_med3_f32 d, a, b, c" / 32 => |a, b, c, _| {
        let mut v = [f(a), f(b), f(c)];
        if v.iter().any(|x| x.is_nan()) {
            return fb(min(min(v[0], v[1]), v[2]));
        }
        v.sort_by(f32::total_cmp);
        fb(v[1])
    };
    "v_add_f32_e64 d, a, b clamp" / 32 => |a, b, _, _| { let x = f(a) + f(b); fb(if x > 0.0 { x.min(1.0) } else { 0.0 }) };
    "v_mul_f32_e64 d, a, b mul:2" / 32 => |a, b, _, _| fb(f(a) * f(b) * 2.0);
    "v_mul_f32_e64 d, a, b div:2" / 32 => |a, b, _, _| fb(f(a) * f(b) * 0.5);
    "v_floor_f32_e32 d, a" / 32 => |a, _, _, _| fb(f(a).floor());
    "v_ceil_f32_e32 d, a" / 32 => |a, _, _, _| fb(f(a).ceil());
    "v_trunc_f32_e32 d, a" / 32 => |a, _, _, _| fb(f(a).trunc());
    "v_rndne_f32_e32 d, a" / 32 => |a, _, _, _| fb(f(a).round_ties_even());
    "v_fract_f32_e32 d, a" / 32 => |a, _, _, _| fb((f(a) - f(a).floor()).min(f32::from_bits(0x3f7fffff)));
    "v_ldexp_f32 d, a, 5" / 32 => |a, _, _, _| fb(f(a) * 32.0);
    "v_ldexp_f32 d, a, -7" / 32 => |a, _, _, _| fb(f(a) / 128.0);
    "v_cvt_f32_i32_e32 d, a" / 32 => |a, _, _, _| fb(i(a) as f32);
    "v_cvt_f32_u32_e32 d, a" / 32 => |a, _, _, _| fb(a as u32 as f32);
    "v_cvt_i32_f32_e32 d, a" / 32 => |a, _, _, _| f(a) as i32 as u32 as u64;
    "v_cvt_u32_f32_e32 d, a" / 32 => |a, _, _, _| f(a) as u32 as u64;
    "v_cvt_f32_ubyte2_e32 d, a" / 32 => |a, _, _, _| fb(byte(a, 2) as f32);
    "v_cvt_f32_f16_e32 d, a" / 32 => |a, _, _, _| fb(h(a & 0xffff) as f32);
    "v_cvt_f16_f32_e32 d, a" / 16 => |a, _, _, _| hb(f(a) as f64);
    "v_add_nc_u32_e32 d, a, b" / 32 => |a, b, _, _| a.wrapping_add(b);
    "v_sub_nc_u32_e32 d, a, b" / 32 => |a, b, _, _| a.wrapping_sub(b);
    "v_subrev_nc_u32_e32 d, a, b" / 32 => |a, b, _, _| b.wrapping_sub(a);
    "v_mul_lo_u32 d, a, b" / 32 => |a, b, _, _| (a & 0xffff_ffff).wrapping_mul(b & 0xffff_ffff);
    "v_mul_hi_u32 d, a, b" / 32 => |a, b, _, _| ((a & 0xffff_ffff) * (b & 0xffff_ffff)) >> 32;
    "v_mul_hi_i32 d, a, b" / 32 => |a, b, _, _| ((i(a) as i64 * i(b) as i64) >> 32) as u64;
    "v_mul_i32_i24_e32 d, a, b" / 32 => |a, b, _, _| (s24(a) * s24(b)) as u64;
    "v_mul_u32_u24_e32 d, a, b" / 32 => |a, b, _, _| (a & 0xffffff) * (b & 0xffffff);
    "v_mad_u32_u24 d, a, b, c" / 32 => |a, b, c, _| ((a & 0xffffff) * (b & 0xffffff)).wrapping_add(c);
    "v_mad_i32_i24 d, a, b, c" / 32 => |a, b, c, _| ((s24(a) * s24(b)) as u64).wrapping_add(c);
    "v_add3_u32 d, a, b, c" / 32 => |a, b, c, _| a.wrapping_add(b).wrapping_add(c);
    "v_lshl_add_u32 d, a, b, c" / 32 => |a, b, c, _| (((a as u32) << (b & 31)) as u64).wrapping_add(c);
    "v_add_lshl_u32 d, a, b, c" / 32 => |a, b, c, _| ((a.wrapping_add(b) as u32) << (c & 31)) as u64;
    "v_lshl_or_b32 d, a, b, c" / 32 => |a, b, c, _| ((a as u32) << (b & 31)) as u64 | c;
    "v_and_or_b32 d, a, b, c" / 32 => |a, b, c, _| a & b | c;
    "v_or3_b32 d, a, b, c" / 32 => |a, b, c, _| a | b | c;
    "v_xor_b32_e32 d, a, b" / 32 => |a, b, _, _| a ^ b;
    "v_xnor_b32_e32 d, a, b" / 32 => |a, b, _, _| !(a ^ b);
    "v_not_b32_e32 d, a" / 32 => |a, _, _, _| !a;
    "v_bfrev_b32_e32 d, a" / 32 => |a, _, _, _| (0..32).fold(0, |r, n| r | (a >> n & 1) << (31 - n));
    "v_lshlrev_b32_e32 d, a, b" / 32 => |a, b, _, _| ((b as u32) << (a & 31)) as u64;
    "v_lshrrev_b32_e32 d, a, b" / 32 => |a, b, _, _| (b as u32 >> (a & 31)) as u64;
    "v_ashrrev_i32_e32 d, a, b" / 32 => |a, b, _, _| (i(b) >> (a & 31)) as u64;
    "v_min_i32_e32 d, a, b" / 32 => |a, b, _, _| i(a).min(i(b)) as u64;
    "v_max_u32_e32 d, a, b" / 32 => |a, b, _, _| (a as u32).max(b as u32) as u64;
    "v_max3_i32 d, a, b, c" / 32 => |a, b, c, _| i(a).max(i(b)).max(i(c)) as u64;
    "v_med3_i32 d, a, b, c" / 32 => |a, b, c, _| { let mut v = [i(a), i(b), i(c)]; v.sort(); v[1] as u64 };
    "v_bfe_u32 d, a, 5, 7" / 32 => |a, _, _, _| a >> 5 & 127;
    "v_bfe_i32 d, a, 5, 7" / 32 => |a, _, _, _| ((i(a) << 20) >> 25) as u64;
    "v_bfi_b32 d, a, b, c" / 32 => |a, b, c, _| a & b | !a & c;
    "v_bcnt_u32_b32 d, a, b" / 32 => |a, b, _, _| (0..32).fold(b, |s, n| s.wrapping_add(a >> n & 1));
    "v_alignbit_b32 d, a, b, 11" / 32 => |a, b, _, _| (a << 32 | b & 0xffff_ffff) >> 11;
    "v_alignbyte_b32 d, a, b, 3" / 32 => |a, b, _, _| (a << 32 | b & 0xffff_ffff) >> 24;
    "v_sad_u8 d, a, b, c" / 32 => |a, b, c, _| (0..4).fold(c, |s, n| s.wrapping_add(byte(a, n).abs_diff(byte(b, n))));
    "v_lshlrev_b64 D, 13, A" / 64 => |a, _, _, _| a << 13;
    "v_lshrrev_b64 D, 13, A" / 64 => |a, _, _, _| a >> 13;
    "v_ashrrev_i64 D, 13, A" / 64 => |a, _, _, _| ((a as i64) >> 13) as u64;
    "v_mad_u64_u32 D, null, a, b, C" / 64 => |a, b, c, _| ((a & 0xffff_ffff) * (b & 0xffff_ffff)).wrapping_add(c);
    "v_mad_i64_i32 D, null, a, b, C" / 64 => |a, b, c, _| ((i(a) as i64 * i(b) as i64) as u64).wrapping_add(c);
    "v_add_f64 D, A, B" / 64 => |a, b, _, _| (f64::from_bits(a) + f64::from_bits(b)).to_bits();
    "v_mul_f64 D, A, -B" / 64 => |a, b, _, _| (f64::from_bits(a) * -f64::from_bits(b)).to_bits();
    "v_fma_f64 D, A, B, C" / 64 => |a, b, c, _| f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)).to_bits();
    "v_add_co_u32 d, vcc_lo, a, b\n v_add_co_ci_u32_e32 v9, vcc_lo, v3, v5, vcc_lo" / 64 => |a, b, _, _| a.wrapping_add(b);
    "v_sub_co_u32 d, vcc_lo, a, b\n v_sub_co_ci_u32_e32 v9, vcc_lo, v3, v5, vcc_lo" / 64 => |a, b, _, _| a.wrapping_sub(b);
    "v_cmp_gt_i32_e32 vcc_lo, a, b\n v_cndmask_b32_e32 d, a, b, vcc_lo" / 32 => |a, b, _, _| i(a).min(i(b)) as u64;
    "v_cmp_nlt_f32_e64 s20, a, b\n v_cndmask_b32_e64 d, a, b, s20" / 32 => |a, b, _, _| if f(a) < f(b) { a } else { b };
    "v_cmp_lt_u64_e32 vcc_lo, A, B\n v_cndmask_b32_e32 d, a, b, vcc_lo" / 32 => |a, b, _, _| if a < b { b } else { a };
    "v_dot4_i32_iu8 d, a, b, c neg_lo:[1,1,0]" / 32 => |a, b, c, _| (0..4).fold(c, |s, n| s.wrapping_add((byte(a, n) as i8 as i64 * byte(b, n) as i8 as i64) as u64));
    "v_dot4_i32_iu8 d, a, b, c neg_lo:[0,1,0]" / 32 => |a, b, c, _| (0..4).fold(c, |s, n| s.wrapping_add((byte(a, n) as i64 * byte(b, n) as i8 as i64) as u64));
    "v_dot4_u32_u8 d, a, b, c" / 32 => |a, b, c, _| (0..4).fold(c, |s, n| s.wrapping_add(byte(a, n) * byte(b, n)));
    "v_pk_add_u16 d, a, b" / 32 => |a, b, _, _| (a.wrapping_add(b) & 0xffff) | ((a >> 16).wrapping_add(b >> 16) & 0xffff) << 16;
    "v_pk_mul_lo_u16 d, a, b op_sel_hi:[0,1]" / 32 => |a, b, _, _| (((a & 0xffff) * (b & 0xffff)) & 0xffff) | (((a & 0xffff) * (b >> 16 & 0xffff)) & 0xffff) << 16;
    "v_pk_add_f16 d, a, b neg_lo:[0,1] neg_hi:[0,1]" / 32 => |a, b, _, _| hb(h(a & 0xffff) - h(b & 0xffff)) | hb(h(a >> 16 & 0xffff) - h(b >> 16 & 0xffff)) << 16;
    "v_pk_fma_f16 d, a, b, c" / 32 => |a, b, c, _| hb(h(a & 0xffff) * h(b & 0xffff) + h(c & 0xffff)) | hb(h(a >> 16 & 0xffff) * h(b >> 16 & 0xffff) + h(c >> 16 & 0xffff)) << 16;
    "v_fma_mix_f32 d, a, b, c op_sel:[0,1,0] op_sel_hi:[0,1,0]" / 32 => |a, b, c, _| fb(f(a).mul_add(h(b >> 16 & 0xffff) as f32, f(c)));
    "v_perm_b32 d, a, b, c" / 32 => |a, b, c, _| {
        let all = a << 32 | b & 0xffff_ffff;
        (0..4).fold(0, |r, n| r | match byte(c, n) {
            k @ 0..=7 => byte(all, k),
            k @ 8..=11 => if byte(all, 2 * k - 15) & 0x80 != 0 { 0xff } else { 0 },
            12 => 0,
            _ => 0xff,
        } << (8 * n))
    };
};

/// Operands: random bits, small integers, plain floats and edges, in turns.
fn operands(seed: u64, n: usize) -> Vec<u64> {
    let mut dice = Dice(seed);
    let edges =
        [0u64, 1, 0x8000_0000, 0x7fff_ffff, 0xffff_ffff, 0x3f80_0000, 0xbf80_0000, 0x4049_0fdb, 0x8000_0000_0000_0000];
    (0..n)
        .map(|k| match k % 4 {
            0 => dice.next(),
            1 => dice.next() & 0x0f0f_0f0f | 0x0c00_0000,
            2 => (dice.unit() * 100.0).to_bits() as u64 | ((dice.unit() as f64 * 1e3).to_bits() & !0xffff_ffff),
            _ => edges[dice.next() as usize % edges.len()],
        })
        .collect()
}

fn kernel(name: &str, body: &str) -> String {
    format!(
        "
.globl {name}\n.p2align 8\n.type {name},@function\n{name}:
  s_load_b256 s[8:15], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 3, v0
  s_waitcnt lgkmcnt(0)
  global_load_b64 v[2:3], v1, s[8:9]
  global_load_b64 v[4:5], v1, s[10:11]
  global_load_b64 v[6:7], v1, s[12:13]
  global_load_b64 v[8:9], v1, s[14:15]
  s_waitcnt vmcnt(0)
{body}
  global_store_b64 v1, v[8:9], s[14:15]
  s_endpgm
.rodata\n.p2align 6\n.amdhsa_kernel {name}
  .amdhsa_next_free_vgpr 24\n  .amdhsa_next_free_sgpr 32\n  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_kernarg_size 32\n  .amdhsa_wavefront_size32 1
.end_amdhsa_kernel\n.text\n"
    )
}

#[test]
fn vector_instructions_follow_the_pseudocode() {
    let names = |asm: &str| {
        let mut out = String::new();
        for line in asm.lines() {
            let (op, rest) = line.trim().split_once(' ').unwrap_or((line, ""));
            let mut args = String::new();
            for (n, token) in rest.split(", ").enumerate() {
                let replaced = token
                    .split(' ')
                    .map(|t| match t.trim_matches(['-', '|']) {
                        "d" => t.replace('d', "v8"),
                        "a" => t.replace('a', "v2"),
                        "b" => t.replace('b', "v4"),
                        "c" => t.replace('c', "v6"),
                        "D" => t.replace('D', "v[8:9]"),
                        "A" => t.replace('A', "v[2:3]"),
                        "B" => t.replace('B', "v[4:5]"),
                        "C" => t.replace('C', "v[6:7]"),
                        _ => t.to_string(),
                    })
                    .collect::<Vec<_>>()
                    .join(" ");
                args += if n > 0 { ", " } else { "" };
                args += &replaced;
            }
            out += &format!("  {op} {args}\n");
        }
        out
    };
    let source: String = CASES.iter().enumerate().map(|(n, c)| kernel(&format!("case{n}"), &names(c.asm))).collect();
    let source = format!(".amdgcn_target \"amdgcn-amd-amdhsa--gfx1100\"\n.text\n{source}");
    let Some(file) = tools::assemble(&source, "gfx1100") else { return };
    let device = Device::new("gfx1100", Options::default()).expect("an emulator");
    let module = device.load(&file).expect("a code object");
    let n = 32;
    for (k, case) in CASES.iter().enumerate() {
        for round in 0..8 {
            let x: Vec<Vec<u64>> = (0..4).map(|s| operands(k as u64 * 64 + round * 8 + s, n)).collect();
            let bytes = |v: &[u64]| v.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
            let b: Vec<_> = x.iter().map(|v| device.upload(&bytes(v))).collect();
            let args: Vec<_> = b.iter().map(Arg::Buffer).collect();
            device
                .launch(&module, &format!("case{k}"), [1, 1, 1], [32, 1, 1], &args)
                .unwrap_or_else(|e| panic!("{}: {e}", case.asm));
            let got: Vec<u64> = b[3].bytes().as_chunks::<8>().0.iter().map(|c| u64::from_le_bytes(*c)).collect();
            for l in 0..n {
                let mask = if case.bits == 64 { !0 } else { (1u64 << case.bits) - 1 };
                let (a, b, c, d) = (x[0][l], x[1][l], x[2][l], x[3][l]);
                let (want, got) = ((case.want)(a, b, c, d) & mask, got[l] & mask);
                assert!(
                    got == want || both_nan(got, want, case.bits),
                    "`{}` of {a:#x} {b:#x} {c:#x} {d:#x}: {got:#x}, pseudocode says {want:#x}",
                    case.asm
                );
            }
        }
    }
}

/// NaN payloads are not compared.
fn both_nan(x: u64, y: u64, bits: u32) -> bool {
    match bits {
        64 => f64::from_bits(x).is_nan() && f64::from_bits(y).is_nan(),
        16 => h(x).is_nan() && h(y).is_nan(),
        _ => {
            let halves = |x: u64| (h(x & 0xffff).is_nan(), h(x >> 16).is_nan());
            let same = |shift: u32| x >> shift & 0xffff == y >> shift & 0xffff;
            let (a, b) = (halves(x), halves(y));
            f(x).is_nan() && f(y).is_nan() || ((same(0) || a.0 && b.0) && (same(16) || a.1 && b.1))
        }
    }
}

/// Scalar cases: `d` is s20 (preloaded), `D` s[20:21], `A` s[16:17], `B` s[18:19]; the condition bit goes to bit 63.
const SCALAR: &[Case] = cases! {
    "s_add_u32 d, a, b" / 32 => |a, b, _, _| sum(a as u32, b as u32, 0);
    "s_sub_u32 d, a, b" / 32 => |a, b, _, _| (a as u32).wrapping_sub(b as u32) as u64 | scc((a as u32) < b as u32);
    "s_add_i32 d, a, b" / 32 => |a, b, _, _| i(a).wrapping_add(i(b)) as u32 as u64 | scc(i(a).checked_add(i(b)).is_none());
    "s_sub_i32 d, a, b" / 32 => |a, b, _, _| i(a).wrapping_sub(i(b)) as u32 as u64 | scc(i(a).checked_sub(i(b)).is_none());
    "s_cmp_eq_u32 a, a\n s_addc_u32 d, a, b" / 32 => |a, b, _, _| sum(a as u32, b as u32, 1);
    "s_mul_i32 d, a, b" / 32 => |a, b, _, _| (a as u32).wrapping_mul(b as u32) as u64;
    "s_mul_hi_u32 d, a, b" / 32 => |a, b, _, _| ((a & 0xffff_ffff) * (b & 0xffff_ffff)) >> 32;
    "s_mul_hi_i32 d, a, b" / 32 => |a, b, _, _| ((i(a) as i64 * i(b) as i64) >> 32) as u32 as u64;
    "s_min_i32 d, a, b" / 32 => |a, b, _, _| i(a).min(i(b)) as u32 as u64 | scc(i(a) < i(b));
    "s_max_u32 d, a, b" / 32 => |a, b, _, _| (a as u32).max(b as u32) as u64 | scc(a as u32 >= b as u32);
    "s_and_b32 d, a, b" / 32 => |a, b, _, _| nonzero(a & b & 0xffff_ffff);
    "s_and_not1_b32 d, a, b" / 32 => |a, b, _, _| nonzero(a & !b & 0xffff_ffff);
    "s_xor_b64 D, A, B" / 63 => |a, b, _, _| a ^ b;
    "s_lshl_b32 d, a, b" / 32 => |a, b, _, _| nonzero(((a as u32) << (b & 31)) as u64);
    "s_ashr_i32 d, a, b" / 32 => |a, b, _, _| nonzero((i(a) >> (b & 31)) as u32 as u64);
    "s_lshl_b64 D, A, b" / 63 => |a, b, _, _| a << (b & 63);
    "s_ashr_i64 D, A, b" / 63 => |a, b, _, _| ((a as i64) >> (b & 63)) as u64;
    "s_lshl2_add_u32 d, a, b" / 32 => |a, b, _, _| { let v = (a & 0xffff_ffff) * 4 + (b & 0xffff_ffff); v & 0xffff_ffff | scc(v >> 32 != 0) };
    "s_bfe_u32 d, a, 0x70005" / 32 => |a, _, _, _| nonzero(a >> 5 & 127);
    "s_bfe_i32 d, a, 0x70005" / 32 => |a, _, _, _| nonzero((i(a) << 20 >> 25) as u32 as u64);
    "s_abs_i32 d, a" / 32 => |a, _, _, _| nonzero(i(a).wrapping_abs() as u32 as u64);
    "s_brev_b32 d, a" / 32 => |a, _, _, _| (a as u32).reverse_bits() as u64;
    "s_bcnt1_i32_b32 d, a" / 32 => |a, _, _, _| nonzero((a as u32).count_ones() as u64);
    "s_clz_i32_u32 d, a" / 32 => |a, _, _, _| if a as u32 == 0 { 0xffff_ffff } else { (a as u32).leading_zeros() as u64 };
    "s_ctz_i32_b32 d, a" / 32 => |a, _, _, _| if a as u32 == 0 { 0xffff_ffff } else { (a as u32).trailing_zeros() as u64 };
    "s_sext_i32_i8 d, a" / 32 => |a, _, _, _| a as i8 as i32 as u32 as u64;
    "s_cmp_lt_i32 a, b\n s_cselect_b32 d, a, b" / 32 => |a, b, _, _| i(a).min(i(b)) as u32 as u64 | scc(i(a) < i(b));
    "s_cmp_ge_u32 a, b\n s_cselect_b32 d, a, b" / 32 => |a, b, _, _| (a as u32).max(b as u32) as u64 | scc(a as u32 >= b as u32);
    "s_bitcmp1_b32 a, b\n s_cselect_b32 d, 1, 2" / 32 => |a, b, _, _| if a >> (b & 31) & 1 == 1 { 1 | scc(true) } else { 2 };
    "s_pack_lh_b32_b16 d, a, b" / 32 => |a, b, _, _| a & 0xffff | b & 0xffff_0000;
    "s_movk_i32 d, 0x8123" / 32 => |_, _, _, _| 0xffff_8123;
    "s_addk_i32 d, 0x7f" / 32 => |_, _, _, d| i(d).wrapping_add(127) as u32 as u64 | scc(i(d).checked_add(127).is_none());
};

fn scc(is_set: bool) -> u64 {
    (is_set as u64) << 63
}

fn nonzero(v: u64) -> u64 {
    v | scc(v != 0)
}

fn sum(a: u32, b: u32, carry: u64) -> u64 {
    let v = a as u64 + b as u64 + carry;
    v & 0xffff_ffff | scc(v >> 32 != 0)
}

#[test]
fn scalar_instructions_follow_the_pseudocode() {
    let names = |asm: &str| {
        let swap = |t: &str| match t {
            "d" => "s20".to_string(),
            "a" => "s16".into(),
            "b" => "s18".into(),
            "D" => "s[20:21]".into(),
            "A" => "s[16:17]".into(),
            "B" => "s[18:19]".into(),
            _ => t.to_string(),
        };
        let line = |l: &str| {
            let (op, rest) = l.trim().split_once(' ').unwrap_or((l, ""));
            format!("  {op} {}\n", rest.split(", ").map(swap).collect::<Vec<_>>().join(", "))
        };
        asm.lines().map(line).collect::<String>()
    };
    // Scalar operands come from lane 0's vector registers; the condition bit is folded into the top of the result.
    let wrap = |body: String| {
        let mut text = String::new();
        for (s, v) in [(16, 2), (17, 3), (18, 4), (19, 5), (20, 8), (21, 9)] {
            text += &format!("  v_readfirstlane_b32 s{s}, v{v}\n");
        }
        text += "  s_cmp_lg_u32 0, 0\n";
        text + &body
            + "  s_cselect_b32 s22, 0x80000000, 0\n  v_mov_b32_e32 v8, s20\n  v_mov_b32_e32 v9, s21\n  v_mov_b32_e32 v10, s22\n"
    };
    let source: String = SCALAR
        .iter()
        .enumerate()
        .map(|(n, c)| {
            let fold = if c.bits == 32 { "  v_mov_b32_e32 v9, v10\n" } else { "" };
            kernel(&format!("case{n}"), &(wrap(names(c.asm)) + fold))
        })
        .collect();
    let Some(file) =
        tools::assemble(&format!(".amdgcn_target \"amdgcn-amd-amdhsa--gfx1100\"\n.text\n{source}"), "gfx1100")
    else {
        return;
    };
    let device = Device::new("gfx1100", Options { n_threads: 1, ..Options::default() }).expect("an emulator");
    let module = device.load(&file).expect("a code object");
    for (k, case) in SCALAR.iter().enumerate() {
        for round in 0..40 {
            let x: Vec<u64> = (0..4).map(|s| operands(k as u64 * 999 + round * 8 + s, 8)[round as usize % 8]).collect();
            let b: Vec<_> = x.iter().map(|v| device.upload(&v.to_le_bytes())).collect();
            let args: Vec<_> = b.iter().map(Arg::Buffer).collect();
            device
                .launch(&module, &format!("case{k}"), [1, 1, 1], [1, 1, 1], &args)
                .unwrap_or_else(|e| panic!("{}: {e}", case.asm));
            let got = u64::from_le_bytes(b[3].bytes().try_into().expect("eight bytes"));
            let want = (case.want)(x[0], x[1], x[2], x[3]);
            let mask = if case.bits == 63 { !0 } else { 0x8000_0000_ffff_ffff };
            assert_eq!(got & mask, want & mask, "`{}` of {:#x} {:#x} {:#x}", case.asm, x[0], x[1], x[3]);
        }
    }
}
