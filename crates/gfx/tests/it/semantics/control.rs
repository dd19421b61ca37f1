//! Branches, calls, exec's combined moves, scalar loads and the mode register.

use gfx_model::bare::Arg;
use gfx_model::isa::Family;

use super::numbers::operands;
use super::{TARGETS, Target, upload, words64};

/// What becomes of exec, from the source and its old value.
type Rule = fn(u64, u64) -> u64;

/// `s_*_saveexec` and `s_*_wrexec`, by RDNA3's and CDNA3's names.
const EXEC: [(&str, Rule); 10] = [
    ("s_and|s_and", |a, e| a & e),
    ("s_or|s_or", |a, e| a | e),
    ("s_xor|s_xor", |a, e| a ^ e),
    ("s_nand|s_nand", |a, e| !(a & e)),
    ("s_nor|s_nor", |a, e| !(a | e)),
    ("s_xnor|s_xnor", |a, e| !(a ^ e)),
    ("s_and_not0|s_andn1", |a, e| !a & e),
    ("s_or_not0|s_orn1", |a, e| !a | e),
    ("s_and_not1|s_andn2", |a, e| a & !e),
    ("s_or_not1|s_orn2", |a, e| a | !e),
];

const SOURCE: u64 = 0x0f0f_33cc_5a5a_1234;
const BEFORE: u64 = 0x00ff_aa55_0ff0_8765;

/// The name for a target, and whether the family has it.
fn exec_name(target: &Target, stem: &str, kind: &str) -> Option<String> {
    let (rdna, cdna) = stem.split_once('|')?;
    let stem = if target.family.is_rdna() { rdna } else { cdna };
    let name = format!("{stem}_{kind}_b{}", if target.is_wide() { 64 } else { 32 });
    target.names().contains(name.as_str()).then_some(name)
}

/// Each lane that is on afterwards gets 1; lane 0 also what the destination got and the condition bit.
fn exec_kernel(target: &Target, name: &str, kernel: &str) -> String {
    let is_wide = target.is_wide();
    let (mov, exec) = if is_wide { ("s_mov_b64", "exec") } else { ("s_mov_b32", "exec_lo") };
    let s = |n: u32| if is_wide { format!("s[{n}:{}]", n + 1) } else { format!("s{n}") };
    let set = |n: u32, value: u64| {
        format!("  s_mov_b32 s{n}, {:#x}\n  s_mov_b32 s{}, {:#x}\n", value as u32, n + 1, value >> 32)
    };
    let body = format!(
        "{}{}  v_mov_b32_e32 v8, 0\n  s_mov_b32 s21, 0\n  {mov} {exec}, {}\n  {name} {}, {}\n  s_cselect_b32 s24, 1, 0\n  v_mov_b32_e32 v8, 1
  {mov} {exec}, -1\n  v_mov_b32_e32 v9, s24\n  v_writelane_b32 v9, s20, 1\n  v_writelane_b32 v9, s21, 2\n",
        set(16, SOURCE),
        set(18, BEFORE),
        s(18),
        s(20),
        s(16),
    );
    target.lane_kernel(kernel, &body)
}

fn exec_cases(target: &Target) -> Vec<(String, bool, Rule)> {
    let mut cases = Vec::new();
    for (stem, rule) in EXEC {
        for kind in ["saveexec", "wrexec"] {
            if let Some(name) = exec_name(target, stem, kind) {
                cases.push((name, kind == "wrexec", rule));
            }
        }
    }
    cases
}

/// A kernel with every kind of branch and call. Each target that should be reached sets its own bit of v8, and the
/// places that must not be reached hold an `s_trap`.
fn branches(target: &Target) -> String {
    let (vcc, exec, mov) =
        if target.is_wide() { ("vcc", "exec", "s_mov_b64") } else { ("vcc_lo", "exec_lo", "s_mov_b32") };
    let mut body = String::from("  v_mov_b32_e32 v8, 0\n");
    let mut bit = 0;
    let mut station = |name: &str, set_taken: String, set_not: String| {
        let add = |bit: u32| format!("  v_or_b32_e32 v8, {:#x}, v8\n", 1u32 << bit);
        body += &format!("{set_taken}  {name} .Ltaken_{name}\n  s_trap 3\n.Ltaken_{name}:\n{}", add(bit));
        body += &format!(
            "{set_not}  {name} .Lwrong_{name}\n{}  s_branch .Lnext_{name}\n.Lwrong_{name}:\n  s_trap 4\n.Lnext_{name}:\n",
            add(bit + 1)
        );
        bit += 2;
    };
    let cmp = |is_set: bool| format!("  s_cmp_eq_u32 0, {}\n", !is_set as u32);
    station("s_cbranch_scc0", cmp(false), cmp(true));
    station("s_cbranch_scc1", cmp(true), cmp(false));
    station("s_cbranch_vccz", format!("  {mov} {vcc}, 0\n"), format!("  {mov} {vcc}, 4\n"));
    station("s_cbranch_vccnz", format!("  {mov} {vcc}, 4\n"), format!("  {mov} {vcc}, 0\n"));
    body += &format!(
        "  {mov} {exec}, 0\n  s_cbranch_execnz .Lbad\n  s_cbranch_execz .Lgood\n.Lbad:\n  s_trap 5\n.Lgood:\n  {mov} {exec}, -1\n"
    );
    body += "  s_cbranch_execz .Lbad\n  s_cbranch_execnz .Lgood2\n  s_trap 6\n.Lgood2:\n  v_or_b32_e32 v8, 0x100, v8\n";
    // A call by address, one by distance, and back again.
    body += "  s_getpc_b64 s[20:21]\n.Lhere:\n  s_add_u32 s20, s20, .Lfar-.Lhere\n  s_addc_u32 s21, s21, 0\n  s_swappc_b64 s[22:23], s[20:21]\n";
    body +=
        "  v_or_b32_e32 v8, 0x400, v8\n  s_call_b64 s[22:23], .Lfar\n  v_or_b32_e32 v8, 0x800, v8\n  s_branch .Lend\n";
    body += ".Lfar:\n  v_add_u32 v9, 1, v9\n  s_setpc_b64 s[22:23]\n  s_trap 7\n.Lend:\n";
    // The mode register: denormals off and on, by field and by hint.
    body += "  s_getreg_b32 s20, hwreg(HW_REG_MODE, 4, 4)\n  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 2\n";
    body += "  s_getreg_b32 s21, hwreg(HW_REG_MODE, 4, 2)\n  s_mov_b32 s22, 1\n  s_setreg_b32 hwreg(HW_REG_MODE, 4, 2), s22\n";
    body += "  s_getreg_b32 s22, hwreg(HW_REG_MODE, 4, 2)\n  s_lshl_b32 s21, s21, 8\n  s_lshl_b32 s22, s22, 12\n  s_or_b32 s21, s21, s22\n";
    if target.family.is_rdna() {
        body = body.replace("v_add_u32", "v_add_nc_u32");
        body += "  s_denorm_mode 11\n  s_round_mode 0\n  s_getreg_b32 s22, hwreg(HW_REG_MODE, 4, 4)\n  s_lshl_b32 s22, s22, 16\n  s_or_b32 s21, s21, s22\n";
    }
    body += "  s_mov_b32 s22, 0\n  v_readfirstlane_b32 s22, v9\n  s_or_b32 s21, s21, s22\n  v_mov_b32_e32 v9, s21\n";
    target.lane_kernel("branches", &body)
}

/// A barrier between a store by the last wave and a load by the first.
fn meeting(target: &Target) -> String {
    let (load, store) = match target.family {
        Family::Rdna3 | Family::Rdna4 => ("ds_load_b32", "ds_store_b32"),
        Family::Cdna3 => ("ds_read_b32", "ds_write_b32"),
    };
    let body = format!(
        "  v_lshlrev_b32_e32 v12, 2, v0\n  {store} v12, v0\n  s_waitcnt lgkmcnt(0)\n  s_barrier\n  v_xor_b32_e32 v12, 0x1fc, v12\n  {load} v8, v12\n  s_waitcnt lgkmcnt(0)\n"
    );
    target.lane_kernel("meeting", &body)
}

const N_LOADED: [u32; 5] = [1, 2, 4, 8, 16];

/// Scalar loads of each width, with the immediate and with a register offset.
fn loads(target: &Target) -> String {
    let kernel = |(k, n): (usize, &u32)| {
        let name = match target.family {
            Family::Rdna3 | Family::Rdna4 => format!("s_load_b{}", 32 * n),
            Family::Cdna3 if *n == 1 => "s_load_dword".into(),
            Family::Cdna3 => format!("s_load_dwordx{n}"),
        };
        let to = if *n == 1 { "s32".to_string() } else { format!("s[32:{}]", 31 + n) };
        let mut body = format!(
            "  s_mov_b32 s16, 8\n  {name} {to}, s[8:9], 0x4\n  s_waitcnt lgkmcnt(0)\n  v_mov_b32_e32 v8, 0\n  v_mov_b32_e32 v9, 0\n"
        );
        let sum = |body: &mut String, to: &str| {
            for j in 0..*n {
                *body += &format!(
                    "  v_mul_lo_u32 v12, v2, s{}\n  v_xor_b32_e32 {to}, {to}, v12\n  v_alignbit_b32 {to}, {to}, {to}, 7\n",
                    32 + j
                );
            }
        };
        sum(&mut body, "v8");
        body += &format!("  {name} {to}, s[8:9], s16\n  s_waitcnt lgkmcnt(0)\n");
        sum(&mut body, "v9");
        target.lane_kernel(&format!("load{k}"), &body)
    };
    N_LOADED.iter().enumerate().map(kernel).collect()
}

pub fn source(target: &Target) -> String {
    let exec: String = exec_cases(target)
        .iter()
        .enumerate()
        .map(|(n, (name, _, _))| exec_kernel(target, name, &format!("exec{n}")))
        .collect();
    exec + &branches(target) + &meeting(target) + &loads(target)
}

#[test]
fn control_follows_the_pseudocode() {
    for target in TARGETS {
        let Some((device, module)) = target.load(&source(&target)) else { return };
        let n = target.n_lanes;
        let run = |kernel: &str, n: usize, first: &[u64]| {
            let zero = vec![0u64; n];
            let buffers = [first, &zero, &zero, &zero].map(|x| upload(&device, x));
            let args: Vec<_> = buffers.iter().map(Arg::Buffer).collect();
            device
                .launch(&module, kernel, [1, 1, 1], [n as u32, 1, 1], &args)
                .unwrap_or_else(|e| panic!("{kernel} on {}: {e}", target.chip));
            words64(&buffers[3])
        };
        let zero = vec![0u64; n];
        for (k, (name, writes_new, rule)) in exec_cases(&target).into_iter().enumerate() {
            let got = run(&format!("exec{k}"), n, &zero);
            let mask = if target.is_wide() { !0 } else { 0xffff_ffff };
            let (old, new) = (BEFORE & mask, rule(SOURCE, BEFORE) & mask);
            let on = got.iter().enumerate().fold(0, |m, (l, x)| m | (x & 1) << l);
            assert_eq!(on, new, "{name}: exec");
            let saved = got[1] >> 32 | (got[2] >> 32) << 32;
            assert_eq!(saved, if writes_new { new } else { old }, "{name}: the destination");
            assert_eq!(got[0] >> 32, (new != 0) as u64, "{name}: the condition bit");
        }

        let got = run("branches", n, &zero);
        let mode = if target.family.is_rdna() { 0xb_0000 } else { 0 };
        for (l, x) in got.into_iter().enumerate() {
            assert_eq!(x & 0xffff_ffff, 0xdff, "stations passed by lane {l} of {}", target.chip);
            assert_eq!(x >> 32, 2 | 0x200 | 0x1000 | mode, "calls and modes, lane {l} of {}", target.chip);
        }

        let got = run("meeting", 128, &vec![0; 128]);
        assert!(got.iter().enumerate().all(|(l, x)| *x as u32 as usize == l ^ 127), "{got:?}");

        let words = operands(5, 64);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        for (k, n_words) in N_LOADED.into_iter().enumerate() {
            let got = run(&format!("load{k}"), n, &words);
            let sum = |at: usize, l: usize| {
                let key = words[l] as u32;
                (0..n_words as usize).fold(0u32, |s, j| (s ^ key.wrapping_mul(word(at + 4 * j))).rotate_right(7)) as u64
            };
            for (l, x) in got.into_iter().enumerate() {
                assert_eq!(x, sum(4, l) | sum(8, l) << 32, "{n_words} words, lane {l} of {}", target.chip);
            }
        }
    }
}
