//! RDNA4's new names for RDNA3's instructions, its waits and barriers, and what it alone has.

use std::collections::HashSet;
use std::sync::OnceLock;

use gfx_model::bare::Arg;
use gfx_model::isa::{self, Family};

use super::{TARGETS, Target, upload, words64};

/// What RDNA4 calls an instruction that RDNA3 has under this name: minima that skip NaN are `num`, additions `co`.
pub fn newer(name: &str) -> Option<String> {
    static NAMES: OnceLock<HashSet<&str>> = OnceLock::new();
    let names = NAMES.get_or_init(|| isa::opcodes(Family::Rdna4).into_iter().map(|(_, _, name)| name).collect());
    if names.contains(name) {
        return None;
    }
    let guess = match name {
        "s_addc_u32" => "s_add_co_ci_u32".into(),
        "s_subb_u32" => "s_sub_co_ci_u32".into(),
        "s_add_u32" => "s_add_co_u32".into(),
        "s_add_i32" => "s_add_co_i32".into(),
        "s_sub_u32" => "s_sub_co_u32".into(),
        "s_sub_i32" => "s_sub_co_i32".into(),
        "s_addk_i32" => "s_addk_co_i32".into(),
        "v_mad_u64_u32" => "v_mad_co_u64_u32".into(),
        "v_mad_i64_i32" => "v_mad_co_i64_i32".into(),
        _ => String::new(),
    };
    let float = || {
        let stems = ["minmax", "maxmin", "min3", "max3", "med3", "min", "max"];
        let stem = stems.iter().find(|s| name.contains(&format!("_{s}_")))?;
        Some(name.replacen(&format!("_{stem}_"), &format!("_{stem}_num_"), 1))
    };
    [Some(guess), float()].into_iter().flatten().find(|guess| names.contains(guess.as_str()))
}

/// A kernel's text in RDNA4's words.
pub fn spell(source: &str) -> String {
    source.lines().map(|line| spell_line(line) + "\n").collect()
}

fn spell_line(line: &str) -> String {
    let text = line.trim_start();
    let (op, rest) = text.split_once(' ').unwrap_or((text, ""));
    match op {
        "s_waitcnt" => "  s_wait_loadcnt 0x0\n  s_wait_storecnt 0x0\n  s_wait_dscnt 0x0\n  s_wait_kmcnt 0x0".into(),
        "s_barrier" => "  s_barrier_signal -1\n  s_barrier_wait 0xffff".into(),
        _ => {
            let stem = op.trim_end_matches("_e32").trim_end_matches("_e64").trim_end_matches("_dpp");
            let name = newer(stem).map_or(op.to_string(), |new| op.replacen(stem, &new, 1));
            // Dual instructions have two names.
            let rest = rest.split(":: ").map(|part| {
                let (second, more) = part.split_once(' ').unwrap_or((part, ""));
                newer(second).map_or(part.to_string(), |new| format!("{new} {more}"))
            });
            let rest = rest.collect::<Vec<_>>().join(":: ");
            let rest = rest.strip_suffix(" glc").map_or(rest.clone(), |rest| format!("{rest} th:TH_ATOMIC_RETURN"));
            format!("  {name} {rest}")
        }
    }
}

/// Parts of a word, three words, a lane's own choice of a lane, one scalar through the slow functions, and any lane's value.
pub fn source(target: &Target) -> String {
    if target.family != Family::Rdna4 {
        return String::new();
    }
    let (exec, mov) = if target.is_wide() { ("exec", "s_mov_b64") } else { ("exec_lo", "s_mov_b32") };
    let loads = "  s_load_u8 s16, s[8:9], 0x5\n  s_load_i8 s17, s[8:9], 0x5\n  s_load_u16 s18, s[8:9], 0x6\n  s_load_i16 s19, s[8:9], 0x6\n  s_load_b96 s[20:22], s[8:9], 0x4\n  s_wait_kmcnt 0x0
  s_lshl_b32 s16, s16, 8\n  s_xor_b32 s16, s16, s17\n  s_lshl_b32 s18, s18, 4\n  s_xor_b32 s18, s18, s19\n  s_xor_b32 s20, s20, s21\n  s_xor_b32 s20, s20, s22
  s_xor_b32 s16, s16, s18\n  v_mov_b32 v8, s16\n  v_mov_b32 v9, s20\n";
    // ds_bpermute_fi_b32 v11, v10, v2, which LLVM 19 does not know.
    let fetch = ".long 0xdb340000, 0x0b00020a";
    let lanes = format!(
        "  v_permlane16_var_b32 v8, v2, v4 op_sel:[1,0]\n  v_permlanex16_var_b32 v9, v2, v4 op_sel:[1,0]\n  v_lshlrev_b32 v10, 2, v4\n  {mov} {exec}, 1\n  {fetch}\n  s_wait_dscnt 0x0\n  v_xor_b32 v9, v9, v11\n  {mov} {exec}, -1\n"
    );
    let mut slow = String::from(
        "  v_readfirstlane_b32 s16, v2\n  v_readfirstlane_b32 s17, v4\n  v_mov_b32 v8, 0\n  v_mov_b32 v9, 0\n",
    );
    for (n, name) in ["exp", "log", "rcp", "rsq", "sqrt"].iter().enumerate() {
        slow += &format!("  v_s_{name}_f32 s20, |s16|\n  s_nop 1\n  v_writelane_b32 v8, s20, {n}\n");
        slow += &format!("  v_s_{name}_f16 s20, s17\n  s_nop 1\n  v_writelane_b32 v9, s20, {n}\n");
    }
    target.lane_kernel("parts", loads) + &target.lane_kernel("own_lanes", &lanes) + &target.lane_kernel("slow", &slow)
}

#[test]
fn what_rdna4_alone_has() {
    for target in TARGETS.iter().filter(|t| t.family == Family::Rdna4) {
        let Some((device, module)) = target.load(&source(target)) else { return };
        let n = target.n_lanes;
        let run = |kernel: &str, a: &[u64], b: &[u64]| {
            let zero = vec![0; n];
            let buffers = [a, b, &zero, &zero].map(|x| upload(&device, x));
            let args: Vec<_> = buffers.iter().map(Arg::Buffer).collect();
            let launched = device.launch(&module, kernel, [1, 1, 1], [n as u32, 1, 1], &args);
            launched.unwrap_or_else(|e| panic!("{kernel} with {n} lanes: {e}"));
            words64(&buffers[3])
        };
        // Bytes 4 to 15 of the first operand: 0x84 0x95 0xa6 0xb7 and two words more.
        let bytes = run("parts", &[0xb7a6_9584_0302_0100, 0x1122_3344_5566_7788].repeat(n / 2), &vec![0; n]);
        let part = (0x95u32 << 8) ^ 0xffff_ff95 ^ (0xb7a6 << 4) ^ 0xffff_b7a6;
        let words = 0xb7a6_9584u32 ^ 0x5566_7788 ^ 0x1122_3344;
        assert_eq!((bytes[0] as u32, (bytes[0] >> 32) as u32), (part, words));

        let a: Vec<u64> = (0..n as u64).map(|l| 1000 + l).collect();
        let b: Vec<u64> = (0..n as u64).map(|l| l * 7 + 3).collect();
        for (l, got) in run("own_lanes", &a, &b).into_iter().enumerate() {
            let (row, pick) = (l / 16, (l * 7 + 3) % 16);
            let here = a[row * 16 + pick];
            let across = a[(row ^ 1) * 16 + pick] ^ if l == 0 { a[3] } else { 0 };
            // v11 is what it was where exec was off; only lane 0 adds it.
            assert_eq!((got & 0xffff_ffff, got >> 32), (here, across), "lane {l} of {n}");
        }

        let got = run("slow", &vec![2.25f32.to_bits() as u64 | 1 << 31; n], &vec![0x4480; n]);
        let x = [|x: f64| x.exp2(), |x: f64| x.log2(), |x: f64| 1.0 / x, |x: f64| 1.0 / x.sqrt(), |x: f64| x.sqrt()];
        for (l, f) in x.into_iter().enumerate() {
            let (single, half) = (f32::from_bits(got[l] as u32) as f64, super::numbers::h(got[l] >> 32));
            assert!((single - f(2.25)).abs() < 1e-6, "{l}: {single}");
            assert!((half - f(4.5)).abs() < 0.02, "{l}: {half}");
        }
    }
}
