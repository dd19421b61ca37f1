//! Matrix products: A, B and C are laid into registers as AMD's matrix instruction calculator says, small whole numbers
//! so that every format holds them exactly, and D is read back by the same rules.

use gfx_model::bare::Arg;
use gfx_model::isa::Family;

use super::numbers::{h, hb};
use super::{TARGETS, Target};
use crate::tools::Dice;

/// What an element is: its bits, and what bits mean.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Element {
    F64,
    F32,
    F16,
    Bf16,
    /// Four exponent bits (bias 8), three of mantissa.
    Fp8,
    /// Five (bias 16) and two.
    Bf8,
    I8,
    I4,
}
use Element::*;

impl Element {
    fn n_bits(self) -> usize {
        match self {
            F64 => 64,
            F32 => 32,
            F16 | Bf16 => 16,
            Fp8 | Bf8 | I8 => 8,
            I4 => 4,
        }
    }

    fn bits(self, v: i64) -> u64 {
        // Small floats by search over their definition.
        let small = |bias: i32, n_mantissa: u32| {
            let value = |b: u64| {
                let (e, m) =
                    ((b >> n_mantissa) as i32, (b & ((1 << n_mantissa) - 1)) as f64 / (1 << n_mantissa) as f64);
                if e == 0 { m * 2f64.powi(1 - bias) } else { (1.0 + m) * 2f64.powi(e - bias) }
            };
            (0..128).find(|b| value(*b) == v.abs() as f64).expect("an exact value") | if v < 0 { 128 } else { 0 }
        };
        match self {
            F64 => (v as f64).to_bits(),
            F32 => (v as f32).to_bits() as u64,
            F16 => hb(v as f64),
            Bf16 => (v as f32).to_bits() as u64 >> 16,
            Fp8 => small(8, 3),
            Bf8 => small(16, 2),
            I8 => v as u8 as u64,
            I4 => v as u64 & 15,
        }
    }
}

struct Case {
    name: &'static str,
    family: Family,
    m: usize,
    k: usize,
    n_blocks: usize,
    a: Element,
    b: Element,
    to: Element,
}

/// Several small products side by side (CDNA).
const fn blocks(name: &'static str, m: usize, k: usize, n_blocks: usize, a: Element, to: Element) -> Case {
    Case { name, family: Family::Cdna3, m, k, n_blocks, a, b: a, to }
}

const fn case(family: Family, name: &'static str, m: usize, k: usize, a: Element, b: Element, to: Element) -> Case {
    Case { name, family, m, k, n_blocks: 1, a, b, to }
}

const CASES: &[Case] = &[
    case(Family::Rdna3, "v_wmma_f32_16x16x16_f16", 16, 16, F16, F16, F32),
    case(Family::Rdna3, "v_wmma_f32_16x16x16_bf16", 16, 16, Bf16, Bf16, F32),
    case(Family::Rdna3, "v_wmma_f16_16x16x16_f16", 16, 16, F16, F16, F16),
    case(Family::Rdna3, "v_wmma_bf16_16x16x16_bf16", 16, 16, Bf16, Bf16, Bf16),
    case(Family::Rdna3, "v_wmma_i32_16x16x16_iu8", 16, 16, I8, I8, I8),
    case(Family::Rdna3, "v_wmma_i32_16x16x16_iu4", 16, 16, I4, I4, I8),
    case(Family::Rdna4, "v_wmma_f32_16x16x16_f16", 16, 16, F16, F16, F32),
    case(Family::Rdna4, "v_wmma_f32_16x16x16_bf16", 16, 16, Bf16, Bf16, F32),
    case(Family::Rdna4, "v_wmma_f16_16x16x16_f16", 16, 16, F16, F16, F16),
    case(Family::Rdna4, "v_wmma_bf16_16x16x16_bf16", 16, 16, Bf16, Bf16, Bf16),
    case(Family::Rdna4, "v_wmma_i32_16x16x16_iu8", 16, 16, I8, I8, I8),
    case(Family::Rdna4, "v_wmma_i32_16x16x16_iu4", 16, 16, I4, I4, I8),
    case(Family::Cdna3, "v_mfma_f32_16x16x4_f32", 16, 4, F32, F32, F32),
    case(Family::Cdna3, "v_mfma_f32_32x32x2_f32", 32, 2, F32, F32, F32),
    case(Family::Cdna3, "v_mfma_f32_16x16x8_xf32", 16, 8, F32, F32, F32),
    case(Family::Cdna3, "v_mfma_f32_32x32x4_xf32", 32, 4, F32, F32, F32),
    case(Family::Cdna3, "v_mfma_f32_16x16x16_f16", 16, 16, F16, F16, F32),
    case(Family::Cdna3, "v_mfma_f32_32x32x8_f16", 32, 8, F16, F16, F32),
    case(Family::Cdna3, "v_mfma_f32_16x16x16_bf16", 16, 16, Bf16, Bf16, F32),
    case(Family::Cdna3, "v_mfma_f32_32x32x8_bf16", 32, 8, Bf16, Bf16, F32),
    case(Family::Cdna3, "v_mfma_i32_16x16x32_i8", 16, 32, I8, I8, I8),
    case(Family::Cdna3, "v_mfma_i32_32x32x16_i8", 32, 16, I8, I8, I8),
    case(Family::Cdna3, "v_mfma_f32_16x16x32_fp8_fp8", 16, 32, Fp8, Fp8, F32),
    case(Family::Cdna3, "v_mfma_f32_16x16x32_fp8_bf8", 16, 32, Fp8, Bf8, F32),
    case(Family::Cdna3, "v_mfma_f32_16x16x32_bf8_fp8", 16, 32, Bf8, Fp8, F32),
    case(Family::Cdna3, "v_mfma_f32_16x16x32_bf8_bf8", 16, 32, Bf8, Bf8, F32),
    case(Family::Cdna3, "v_mfma_f32_32x32x16_fp8_fp8", 32, 16, Fp8, Fp8, F32),
    case(Family::Cdna3, "v_mfma_f32_32x32x16_fp8_bf8", 32, 16, Fp8, Bf8, F32),
    case(Family::Cdna3, "v_mfma_f32_32x32x16_bf8_fp8", 32, 16, Bf8, Fp8, F32),
    case(Family::Cdna3, "v_mfma_f32_32x32x16_bf8_bf8", 32, 16, Bf8, Bf8, F32),
    case(Family::Cdna3, "v_mfma_f64_16x16x4_f64", 16, 4, F64, F64, F64),
    blocks("v_mfma_f32_32x32x1_2b_f32", 32, 1, 2, F32, F32),
    blocks("v_mfma_f32_16x16x1_4b_f32", 16, 1, 4, F32, F32),
    blocks("v_mfma_f32_4x4x1_16b_f32", 4, 1, 16, F32, F32),
    blocks("v_mfma_f32_32x32x4_2b_f16", 32, 4, 2, F16, F32),
    blocks("v_mfma_f32_16x16x4_4b_f16", 16, 4, 4, F16, F32),
    blocks("v_mfma_f32_4x4x4_16b_f16", 4, 4, 16, F16, F32),
    blocks("v_mfma_f32_32x32x4_2b_bf16", 32, 4, 2, Bf16, F32),
    blocks("v_mfma_f32_16x16x4_4b_bf16", 16, 4, 4, Bf16, F32),
    blocks("v_mfma_f32_4x4x4_16b_bf16", 4, 4, 16, Bf16, F32),
    blocks("v_mfma_i32_32x32x4_2b_i8", 32, 4, 2, I8, I8),
    blocks("v_mfma_i32_16x16x4_4b_i8", 16, 4, 4, I8, I8),
    blocks("v_mfma_i32_4x4x4_16b_i8", 4, 4, 16, I8, I8),
];

impl Case {
    /// Lane groups: RDNA3's all hold the same, the others' share k.
    fn n_groups(&self, n_lanes: usize) -> usize {
        if self.family == Family::Rdna3 { 1 } else { n_lanes / self.m / self.n_blocks }
    }

    fn n_words(&self, n_lanes: usize, element: Element) -> usize {
        (self.k / self.n_groups(n_lanes) * element.n_bits()).div_ceil(32)
    }

    /// Results of a lane.
    fn n_elements(&self, n_lanes: usize) -> usize {
        self.m * self.m * self.n_blocks / n_lanes
    }

    /// How many results share a register.
    fn n_shared(&self) -> usize {
        if self.family == Family::Rdna4 && [F16, Bf16].contains(&self.to) { 2 } else { 1 }
    }

    /// Registers of the accumulator.
    fn n_results(&self, n_lanes: usize) -> usize {
        self.n_elements(n_lanes) / self.n_shared() * if self.to == F64 { 2 } else { 1 }
    }

    /// Row and column of result `r` of lane `l`; blocks stand below each other.
    fn place(&self, n_lanes: usize, l: usize, r: usize) -> (usize, usize) {
        let row = match (self.family, self.m, self.to) {
            (Family::Rdna3, _, _) => n_lanes / 16 * r + l / 16,
            (Family::Rdna4, _, _) => r + 256 / n_lanes * (l / 16),
            (_, _, F64) => 4 * r + l / 16,
            (_, 16, _) => 16 * (r / 4) + 4 * (l / 16) + r % 4,
            (_, 4, _) => 4 * (l / 4) + r,
            _ => 32 * (r / 16) + 8 * (r % 16 / 4) + 4 * (l / 32) + r % 4,
        };
        (row, l % self.m)
    }
}

/// A in v[32..], B in v[48..], C and D in v[64..]; each lane's words lie one after the other in memory.
fn kernel(target: &Target, case: &Case) -> String {
    let (load, store) = match target.family {
        Family::Rdna3 | Family::Rdna4 => ("global_load_b32", "global_store_b32"),
        Family::Cdna3 => ("global_load_dword", "global_store_dword"),
    };
    let n = target.n_lanes;
    let (na, nb, nc) = (case.n_words(n, case.a), case.n_words(n, case.b), case.n_results(n));
    let mut body = String::new();
    for (first, n, base) in [(32, na, 8), (48, nb, 10), (64, nc, 12)] {
        body += &format!("  v_mul_u32_u24_e32 v1, {:#x}, v0\n", 4 * n);
        for j in 0..n {
            body += &format!("  {load} v{}, v1, s[{base}:{}] offset:{}\n", first + j, base + 1, 4 * j);
        }
        body += "  s_waitcnt vmcnt(0)\n";
    }
    let range =
        |first: usize, n: usize| if n == 1 { format!("v{first}") } else { format!("v[{first}:{}]", first + n - 1) };
    let signs = if case.name.contains("_iu") { " neg_lo:[1,1,0]" } else { "" };
    let name = case.name;
    body += &format!(
        "  {name} {}, {}, {}, {}{signs}\n  s_nop 15\n  s_nop 15\n",
        range(64, nc),
        range(32, na),
        range(48, nb),
        range(64, nc)
    );
    for j in 0..nc {
        body += &format!("  {store} v1, v{}, s[12:13] offset:{}\n", 64 + j, 4 * j);
    }
    target.kernel(name, &body)
}

pub fn source(target: &Target) -> String {
    CASES.iter().filter(|c| c.family == target.family).map(|c| kernel(target, c)).collect()
}

/// Elements [rows, k] as the lanes' words: a lane's row, and its group's share of k in order.
fn pack(case: &Case, n_lanes: usize, element: Element, values: &[i64]) -> Vec<u32> {
    let n_groups = case.n_groups(n_lanes);
    let (n_words, share) = (case.n_words(n_lanes, element), case.k / n_groups);
    let mut words = vec![0u32; n_lanes * n_words];
    for l in 0..n_lanes {
        let group = if n_groups == 1 { 0 } else { l / case.m };
        let block = if case.n_blocks == 1 { 0 } else { l / case.m };
        for j in 0..share {
            let bits = element.bits(values[(block * case.m + l % case.m) * case.k + group * share + j]);
            let at = j * element.n_bits();
            words[l * n_words + at / 32] |= (bits << (at % 32)) as u32;
            if element == F64 {
                words[l * n_words + at / 32 + 1] = (bits >> 32) as u32;
            }
        }
    }
    words
}

#[test]
fn matrix_products_are_laid_out_as_amd_says() {
    for target in TARGETS {
        let Some((device, module)) = target.load(&source(&target)) else { return };
        for case in CASES.iter().filter(|c| c.family == target.family) {
            let mut dice = Dice(case.name.len() as u64 * 31 + case.k as u64);
            let mut values = |n: usize| -> Vec<i64> { (0..n).map(|_| dice.next() as i64 % 5).collect() };
            let rows = case.m * case.n_blocks;
            let (a, b, c) = (values(rows * case.k), values(rows * case.k), values(rows * case.m));
            let n = target.n_lanes;
            let nc = case.n_results(n);
            let (per, shared) = (if case.to == F64 { 2 } else { 1 }, case.n_shared());
            let mut words = vec![0xdead_0000u32; n * nc];
            for l in 0..n {
                for r in 0..case.n_elements(n) {
                    let (row, column) = case.place(n, l, r);
                    let value = c[row * case.m + column];
                    let shift = 16 * (r % shared);
                    let word = &mut words[l * nc + r / shared * per..];
                    match case.to {
                        F64 => {
                            (word[0], word[1]) =
                                ((value as f64).to_bits() as u32, ((value as f64).to_bits() >> 32) as u32)
                        }
                        F32 => word[0] = (value as f32).to_bits(),
                        F16 | Bf16 => word[0] = word[0] & !(0xffff << shift) | (case.to.bits(value) as u32) << shift,
                        _ => word[0] = value as u32,
                    }
                }
            }
            let buffers = [pack(case, n, case.a, &a), pack(case, n, case.b, &b), words].map(|x| device.upload_u32(&x));
            let args: Vec<_> = buffers.iter().chain([&buffers[0]]).map(Arg::Buffer).collect();
            device
                .launch(&module, case.name, [1, 1, 1], [n as u32, 1, 1], &args)
                .unwrap_or_else(|e| panic!("{}: {e}", case.name));
            let found = buffers[2].u32s();
            for l in 0..n {
                for r in 0..case.n_elements(n) {
                    let (row, column) = case.place(n, l, r);
                    let other = row / case.m * case.m + column;
                    let dot: i64 = (0..case.k).map(|j| a[row * case.k + j] * b[other * case.k + j]).sum();
                    let want = (dot + c[row * case.m + column]) as f64;
                    let shift = 16 * (r % shared);
                    let word = &found[l * nc + r / shared * per..];
                    let got = match case.to {
                        F64 => f64::from_bits(word[0] as u64 | (word[1] as u64) << 32),
                        F32 => f32::from_bits(word[0]) as f64,
                        F16 => h((word[0] >> shift) as u64),
                        Bf16 => f32::from_bits(word[0] >> shift << 16) as f64,
                        _ => word[0] as i32 as f64,
                    };
                    // A bfloat of this size keeps eight bits.
                    let near = if case.to == Bf16 { want.abs() / 128.0 } else { 0.0 };
                    assert!((got - want).abs() <= near, "{} row {row} column {column}: {got}, not {want}", case.name);
                    if [F16, Bf16].contains(&case.to) && shared == 1 {
                        assert_eq!(word[0] >> 16, 0xdead, "{}: the other half", case.name);
                    }
                }
            }
        }
    }
}
