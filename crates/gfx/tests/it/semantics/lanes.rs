//! Movement between lanes: permutes, swizzles, lane reads and writes, mask counts, and DPP's controls. Each is a rule
//! that names the lane a lane reads from.

use gfx_model::bare::Arg;
use gfx_model::isa::Family;

use super::numbers::operands;
use super::{TARGETS, Target, upload, vector_registers, words64};

/// What lane `l` of `n` ends with, of all lanes' sources and its old destination.
type Rule = fn(l: usize, n: usize, a: &[u64], b: &[u64], old: u64) -> u64;

struct Case {
    asm: &'static str,
    family: Option<Family>,
    want: Rule,
}

const BOTH: Option<Family> = None;
const RDNA: Option<Family> = Some(Family::Rdna3);
const CDNA: Option<Family> = Some(Family::Cdna3);

const fn case(family: Option<Family>, asm: &'static str, want: Rule) -> Case {
    Case { asm, family, want }
}

/// Lane `to` of the same row of sixteen, or the old value where it lies outside.
fn in_row(l: usize, to: i64, a: &[u64], other: u64) -> u64 {
    if (0..16).contains(&to) { a[l / 16 * 16 + to as usize] } else { other }
}

const CASES: &[Case] = &[
    case(BOTH, "v_mov_b32_dpp d, a quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf", |l, _, a, _, _| a[l ^ 1]),
    case(BOTH, "v_mov_b32_dpp d, a quad_perm:[3,3,0,2] row_mask:0xf bank_mask:0xf", |l, _, a, _, _| {
        a[l & !3 | [3, 3, 0, 2][l % 4]]
    }),
    case(BOTH, "v_mov_b32_dpp d, a row_shl:3 row_mask:0xf bank_mask:0xf", |l, _, a, _, d| {
        in_row(l, l as i64 % 16 + 3, a, d)
    }),
    case(BOTH, "v_mov_b32_dpp d, a row_shl:3 row_mask:0xf bank_mask:0xf bound_ctrl:1", |l, _, a, _, _| {
        in_row(l, l as i64 % 16 + 3, a, 0)
    }),
    case(BOTH, "v_mov_b32_dpp d, a row_shr:5 row_mask:0xf bank_mask:0xf", |l, _, a, _, d| {
        in_row(l, l as i64 % 16 - 5, a, d)
    }),
    case(BOTH, "v_mov_b32_dpp d, a row_ror:5 row_mask:0xf bank_mask:0xf", |l, _, a, _, _| {
        a[l / 16 * 16 + (l + 11) % 16]
    }),
    case(BOTH, "v_mov_b32_dpp d, a row_mirror row_mask:0xf bank_mask:0xf", |l, _, a, _, _| {
        a[l / 16 * 16 + 15 - l % 16]
    }),
    case(BOTH, "v_mov_b32_dpp d, a row_half_mirror row_mask:0xf bank_mask:0xf", |l, _, a, _, _| {
        a[l / 8 * 8 + 7 - l % 8]
    }),
    case(BOTH, "v_mov_b32_dpp d, a row_mirror row_mask:0x5 bank_mask:0xf", |l, _, a, _, d| {
        if l / 16 % 2 == 0 { a[l / 16 * 16 + 15 - l % 16] } else { d }
    }),
    case(BOTH, "v_mov_b32_dpp d, a row_mirror row_mask:0xf bank_mask:0x6", |l, _, a, _, d| {
        if [1, 2].contains(&(l / 4 % 4)) { a[l / 16 * 16 + 15 - l % 16] } else { d }
    }),
    case(BOTH, "v_add_f32_dpp d, a, b row_ror:1 row_mask:0xf bank_mask:0xf", |l, _, a, b, _| {
        let float = |x: u64| f32::from_bits(x as u32);
        (float(a[l / 16 * 16 + (l + 15) % 16]) + float(b[l])).to_bits() as u64
    }),
    case(RDNA, "v_mov_b32_dpp d, a row_share:6 row_mask:0xf bank_mask:0xf", |l, _, a, _, _| a[l / 16 * 16 + 6]),
    case(RDNA, "v_mov_b32_dpp d, a row_xmask:9 row_mask:0xf bank_mask:0xf", |l, _, a, _, _| a[l ^ 9]),
    case(RDNA, "v_mov_b32_dpp d, a dpp8:[7,6,5,4,0,1,2,3]", |l, _, a, _, _| {
        a[l & !7 | [7, 6, 5, 4, 0, 1, 2, 3][l % 8]]
    }),
    case(CDNA, "v_mov_b32_dpp d, a row_bcast:15 row_mask:0xf bank_mask:0xf", |l, _, a, _, d| {
        if l < 16 { d } else { a[l / 16 * 16 - 1] }
    }),
    case(
        CDNA,
        "v_mov_b32_dpp d, a row_bcast:31 row_mask:0xf bank_mask:0xf",
        |l, _, a, _, d| if l < 32 { d } else { a[31] },
    ),
    case(
        CDNA,
        "v_mov_b32_dpp d, a wave_shl:1 row_mask:0xf bank_mask:0xf",
        |l, n, a, _, d| if l + 1 < n { a[l + 1] } else { d },
    ),
    case(
        CDNA,
        "v_mov_b32_dpp d, a wave_shr:1 row_mask:0xf bank_mask:0xf",
        |l, _, a, _, d| if l > 0 { a[l - 1] } else { d },
    ),
    case(CDNA, "v_mov_b32_dpp d, a wave_rol:1 row_mask:0xf bank_mask:0xf", |l, n, a, _, _| a[(l + 1) % n]),
    case(CDNA, "v_mov_b32_dpp d, a wave_ror:1 row_mask:0xf bank_mask:0xf", |l, n, a, _, _| a[(l + n - 1) % n]),
    case(BOTH, "ds_bpermute_b32 d, b, a offset:8", |l, n, a, b, _| {
        let lanes = if n == 64 { group(a, n) } else { 32 };
        a[l / lanes * lanes + ((b[l] as u32).wrapping_add(8) as usize / 4) % lanes]
    }),
    case(BOTH, "v_lshlrev_b32 v12, 2, v0\n v_xor_b32 v12, 20, v12\n ds_permute_b32 d, v12, a", |l, _, a, _, _| {
        a[l ^ 5]
    }),
    case(BOTH, "ds_swizzle_b32 d, a offset:swizzle(QUAD_PERM,2,0,1,3)", |l, _, a, _, _| {
        a[l & !3 | [2, 0, 1, 3][l % 4]]
    }),
    case(BOTH, "ds_swizzle_b32 d, a offset:swizzle(SWAP,8)", |l, _, a, _, _| a[l ^ 8]),
    case(BOTH, "ds_swizzle_b32 d, a offset:swizzle(BROADCAST,8,3)", |l, _, a, _, _| a[l & !7 | 3]),
    case(BOTH, "v_readlane_b32 s20, a, 13\n v_mov_b32 d, s20", |_, _, a, _, _| a[13]),
    case(BOTH, "v_readfirstlane_b32 s20, a\n v_mov_b32 d, s20", |_, _, a, _, _| a[0]),
    case(
        BOTH,
        "s_mov_b32 s20, 0x1234567\n v_writelane_b32 d, s20, 17",
        |l, _, _, _, d| if l == 17 { 0x1234567 } else { d },
    ),
    case(BOTH, "v_mbcnt_lo_u32_b32 d, a, b", |l, _, a, b, _| {
        b[l].wrapping_add((0..l.min(32)).filter(|n| a[l] >> n & 1 == 1).count() as u64)
    }),
    case(BOTH, "v_mbcnt_hi_u32_b32 d, a, b", |l, _, a, b, _| {
        b[l].wrapping_add((0..l.saturating_sub(32)).filter(|n| a[l] >> n & 1 == 1).count() as u64)
    }),
    case(
        RDNA,
        "s_mov_b32 s20, 0x76543210\n s_mov_b32 s21, 0x89abcdef\n v_permlane16_b32 d, a, s20, s21",
        |l, _, a, _, _| a[l / 16 * 16 + if l % 16 < 8 { l % 16 } else { 23 - l % 16 }],
    ),
    case(
        RDNA,
        "s_mov_b32 s20, 0x76543210\n s_mov_b32 s21, 0x89abcdef\n v_permlanex16_b32 d, a, s20, s21",
        |l, _, a, _, _| a[((l / 16 * 16) ^ 16) + if l % 16 < 8 { l % 16 } else { 23 - l % 16 }],
    ),
    case(RDNA, "v_permlane64_b32 d, a", |l, n, a, _, d| if n == 64 { a[l ^ 32] } else { d }),
];

/// RDNA3 moves within 32 lanes, the others within all: told by a mark the test puts in bit 63.
fn group(a: &[u64], n: usize) -> usize {
    if a[0] >> 63 == 1 { n } else { 32 }
}

fn kernels(target: &Target) -> Vec<(usize, String)> {
    let is_here = |c: &Case| c.family.is_none_or(|f| f.is_rdna() == target.family.is_rdna());
    CASES
        .iter()
        .enumerate()
        .filter(|(_, c)| is_here(c))
        .map(|(n, c)| {
            let body = target.spell(c.asm, &vector_registers).unwrap_or_else(|| panic!("{}: an unknown name", c.asm));
            (n, target.lane_kernel(&format!("case{n}"), &(body + "  s_waitcnt lgkmcnt(0)\n")))
        })
        .collect()
}

pub fn source(target: &Target) -> String {
    kernels(target).into_iter().map(|(_, text)| text).collect()
}

#[test]
fn lanes_move_by_the_rules() {
    for target in TARGETS {
        let Some((device, module)) = target.load(&source(&target)) else { return };
        let n = target.n_lanes;
        let mark = if target.family == Family::Rdna3 { 0 } else { 1 << 63 };
        for (k, _) in kernels(&target) {
            // Every lane its own value; floats among them, so that sums mean something.
            let a: Vec<u64> = (0..n).map(|l| (l as f32 * 1.5 - 20.25).to_bits() as u64 | mark).collect();
            let b: Vec<u64> = operands(k as u64, n).iter().map(|x| x & 0x3fff_ffff).collect();
            let old: Vec<u64> = (0..n as u64).map(|l| 0xdead_0000 + l).collect();
            let buffers = [&a, &b, &b, &old].map(|x| upload(&device, x));
            let args: Vec<_> = buffers.iter().map(Arg::Buffer).collect();
            let asm = CASES[k].asm;
            device
                .launch(&module, &format!("case{k}"), [1, 1, 1], [n as u32, 1, 1], &args)
                .unwrap_or_else(|e| panic!("{asm}: {e}"));
            for (l, got) in words64(&buffers[3]).into_iter().enumerate() {
                let want = (CASES[k].want)(l, n, &a, &b, old[l]) & 0xffff_ffff;
                assert_eq!(got & 0xffff_ffff, want, "`{asm}` on {} with {n} lanes, lane {l}", target.chip);
            }
        }
    }
}
