//! Single instructions against AMD's published pseudocode: each is assembled by clang into a small kernel that loads
//! operands per lane, runs the instruction and stores the result, on gfx1100 and gfx1201 with 32 and with 64 lanes and on
//! gfx942.
//! Expected values are written from the pseudocode, not from the emulator. `every_instruction_has_a_case` holds the
//! tables to the emulator's list, so that a wrong meaning cannot go unseen.

mod compare;
mod control;
mod division;
mod float;
mod fp8;
mod integer;
mod lanes;
mod lds;
mod matrix;
mod memory;
mod numbers;
mod packed;
mod rdna4;
mod registers;
mod saturate;
mod scalar;
mod trigonometry;

use std::collections::{BTreeSet, HashSet};
use std::sync::OnceLock;

use gfx_model::bare::{Arg, Buffer, Device, Module};
use gfx_model::code_object::CodeObject;
use gfx_model::dispatch::Options;
use gfx_model::isa::{self, Encoding, Family};

use crate::tools;

#[derive(Clone, Copy, PartialEq)]
pub struct Target {
    pub chip: &'static str,
    pub family: Family,
    pub n_lanes: usize,
}

pub const TARGETS: [Target; 5] = [
    Target { chip: "gfx1100", family: Family::Rdna3, n_lanes: 32 },
    Target { chip: "gfx1100", family: Family::Rdna3, n_lanes: 64 },
    Target { chip: "gfx1201", family: Family::Rdna4, n_lanes: 32 },
    Target { chip: "gfx1201", family: Family::Rdna4, n_lanes: 64 },
    Target { chip: "gfx942", family: Family::Cdna3, n_lanes: 64 },
];

/// RDNA4's, which LLVM 19 does not assemble there; they share their handlers with what is tested.
const IS_UNKNOWN_TO_LLVM: [&str; 2] = ["v_dual_dot2acc_f32_f16", "v_dual_dot2acc_f32_bf16"];

/// What a case computes from its operands (64 bits each) and the old destination.
pub type Expect = fn(u64, u64, u64, u64) -> u64;

/// `D` is the destination pair (preloaded), `A`, `B`, `C` the sources; `d`, `a`, `b`, `c` their first words, `d1` and so
/// on their second. `vcc` and `M` are masks of the wave's width. `x|y` is RDNA3's and CDNA3's name of one instruction,
/// `rdna3: ` or `rdna4: ` stands before what only that family's assembler takes. RDNA4's new names for RDNA3's instructions
/// are put in when a kernel is assembled (`rdna4`).
pub struct Case {
    pub asm: &'static str,
    /// Bits of the result that are defined. `HALF`: the upper half stays on RDNA3 and is cleared on CDNA3.
    pub bits: u32,
    pub want: Expect,
}

pub const HALF: u32 = 17;

macro_rules! cases {
    ($($asm:literal / $bits:tt => |$a:pat_param, $b:pat_param, $c:pat_param, $d:pat_param| $e:expr;)*) => {
        &[$(crate::semantics::Case { asm: $asm, bits: $bits, want: |$a, $b, $c, $d| $e },)*]
    };
}
pub(crate) use cases;

impl Target {
    pub fn is_wide(&self) -> bool {
        self.n_lanes == 64
    }

    /// All names the family has, and those that RDNA3 has for the same.
    pub fn names(&self) -> &'static HashSet<&'static str> {
        static NAMES: [OnceLock<HashSet<&str>>; 3] = [const { OnceLock::new() }; 3];
        let all = || {
            let mut names: HashSet<_> = isa::opcodes(self.family).into_iter().map(|(_, _, name)| name).collect();
            if self.family == Family::Rdna4 {
                let older = isa::opcodes(Family::Rdna3).into_iter().map(|(_, _, name)| name);
                names.extend(older.filter(|name| rdna4::newer(name).is_some()));
                // Its 8-bit floats are of another kind than those of the cases, and are not emulated.
                names.retain(|name| !name.contains("fp8") && !name.contains("bf8"));
                names.retain(|name| !IS_UNKNOWN_TO_LLVM.contains(name));
            }
            names
        };
        NAMES[self.family as usize].get_or_init(all)
    }

    /// The text for this target, or `None` where the family lacks an instruction of it. `registers` names operands.
    pub fn spell(&self, asm: &str, registers: &dyn Fn(&str) -> Option<&'static str>) -> Option<String> {
        let (is_here, asm) = match asm.strip_prefix("rdna3: ") {
            Some(rest) => (self.family == Family::Rdna3, rest),
            None => match asm.strip_prefix("rdna4: ") {
                Some(rest) => (self.family == Family::Rdna4, rest),
                None => (true, asm),
            },
        };
        let names = self.names();
        let mut text = String::new();
        for line in asm.lines().map(str::trim) {
            let (op, rest) = line.split_once(' ').unwrap_or((line, ""));
            let is_known = |name: &&str| {
                let suffixes = ["_e32", "_e64", "_dpp", "_sdwa"];
                names.contains(suffixes.iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name))
            };
            let op = if op == ".long" { op } else { op.split('|').find(is_known)? };
            text += &format!("  {op} {}\n", self.operands(rest, registers));
        }
        is_here.then_some(text)
    }

    fn operands(&self, rest: &str, registers: &dyn Fn(&str) -> Option<&'static str>) -> String {
        let mut out = String::new();
        let mut word = String::new();
        for c in rest.chars().chain([' ']) {
            if c.is_ascii_alphanumeric() || c == '_' {
                word.push(c);
                continue;
            }
            out += match word.as_str() {
                "vcc" if !self.is_wide() => "vcc_lo",
                "exec" if !self.is_wide() => "exec_lo",
                "M" => {
                    if self.is_wide() {
                        "s[24:25]"
                    } else {
                        "s24"
                    }
                }
                // CDNA has no register that takes nothing.
                "null" if self.family == Family::Cdna3 => "s[30:31]",
                word => registers(word).unwrap_or(word),
            };
            out.push(c);
            word.clear();
        }
        out.trim_end().to_string()
    }

    /// A kernel: `body` between the load of four pointers into s[8:15] and the end.
    pub fn kernel(&self, name: &str, body: &str) -> String {
        let (load, directives) = match self.family {
            Family::Rdna3 | Family::Rdna4 if self.is_wide() => ("s_load_b256", ".amdhsa_wavefront_size32 0"),
            Family::Rdna3 | Family::Rdna4 => ("s_load_b256", ".amdhsa_wavefront_size32 1"),
            Family::Cdna3 => ("s_load_dwordx8", ".amdhsa_accum_offset 64"),
        };
        format!(
            "
.globl {name}\n.p2align 8\n.type {name},@function\n{name}:
  {load} s[8:15], s[0:1], 0x0
  s_waitcnt lgkmcnt(0)
{body}
  s_endpgm
.L{name}_end:\n.size {name}, .L{name}_end-{name}
.rodata\n.p2align 6\n.amdhsa_kernel {name}
  .amdhsa_next_free_vgpr 96\n  .amdhsa_next_free_sgpr 64\n  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_kernarg_size 32\n  .amdhsa_group_segment_fixed_size 2048\n  .amdhsa_private_segment_fixed_size 64
  .amdhsa_enable_private_segment 1\n  {directives}
.end_amdhsa_kernel\n.text\n"
        )
    }

    /// Four operands of 64 bits a lane around `body`: v[2:3], v[4:5], v[6:7] and, also stored, v[8:9].
    pub fn lane_kernel(&self, name: &str, body: &str) -> String {
        let (load, store) = match self.family {
            Family::Rdna3 | Family::Rdna4 => ("global_load_b64", "global_store_b64"),
            Family::Cdna3 => ("global_load_dwordx2", "global_store_dwordx2"),
        };
        let loads: String = (0..4)
            .map(|k| format!("  {load} v[{}:{}], v1, s[{}:{}]\n", 2 * k + 2, 2 * k + 3, 2 * k + 8, 2 * k + 9))
            .collect();
        self.kernel(
            name,
            &format!(
                "  v_lshlrev_b32_e32 v1, 3, v0\n{loads}  s_waitcnt vmcnt(0)\n{body}  {store} v1, v[8:9], s[14:15]\n"
            ),
        )
    }

    pub fn assemble(&self, kernels: &str) -> Option<Vec<u8>> {
        let newer;
        let kernels = if self.family == Family::Rdna4 {
            newer = rdna4::spell(kernels);
            &newer
        } else {
            kernels
        };
        let wide = if self.is_wide() && self.family.is_rdna() { "-mwavefrontsize64" } else { "" };
        let source = format!(".amdgcn_target \"amdgcn-amd-amdhsa--{}\"\n.text\n{kernels}", self.chip);
        tools::assemble_with(&source, self.chip, &[wide][..!wide.is_empty() as usize])
    }

    /// A device with these kernels; `None` without an assembler.
    pub fn load(&self, kernels: &str) -> Option<(Device, Module)> {
        let file = self.assemble(kernels)?;
        let device = Device::new(self.chip, Options { n_threads: 1, ..Options::default() }).expect("an emulator");
        let module = device.load(&file).expect("a code object");
        Some((device, module))
    }
}

/// The names of vector operands.
pub fn vector_registers(word: &str) -> Option<&'static str> {
    Some(match word {
        "d" => "v8",
        "a" => "v2",
        "b" => "v4",
        "c" => "v6",
        "d1" => "v9",
        "a1" => "v3",
        "b1" => "v5",
        "c1" => "v7",
        "D" => "v[8:9]",
        "A" => "v[2:3]",
        "B" => "v[4:5]",
        "C" => "v[6:7]",
        _ => return None,
    })
}

/// The kernels of those cases the target has, and the cases' indices.
pub fn vector_source(target: &Target, cases: &[Case]) -> (Vec<usize>, String) {
    // Only waves of 32 lanes have dual instructions.
    let is_here = |c: &Case| !(target.is_wide() && c.asm.contains("v_dual_"));
    let bodies = cases
        .iter()
        .enumerate()
        .filter(|(_, c)| is_here(c))
        .filter_map(|(n, c)| Some((n, target.spell(c.asm, &vector_registers)?)));
    let (known, kernels): (Vec<_>, Vec<_>) =
        bodies.map(|(n, body)| (n, target.lane_kernel(&format!("case{n}"), &body))).unzip();
    (known, kernels.concat())
}

pub fn upload(device: &Device, values: &[u64]) -> Buffer {
    device.upload(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

pub fn words64(buffer: &Buffer) -> Vec<u64> {
    buffer.bytes().as_chunks::<8>().0.iter().map(|c| u64::from_le_bytes(*c)).collect()
}

/// Runs every case on every target and compares with `is_right(case, got, want)`; says which cases are wrong, and how.
pub fn check_vector(cases: &[Case], is_right: fn(&Case, u64, u64) -> bool) {
    let mut wrong = Vec::new();
    for target in TARGETS {
        let (known, source) = vector_source(&target, cases);
        let Some((device, module)) = target.load(&source) else { return };
        for k in known {
            let run = |round| run_case(&target, (&device, &module), k, &cases[k], round, is_right);
            wrong.extend((0..6).find_map(|round| run(round).err()));
        }
    }
    assert!(wrong.is_empty(), "{} cases are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// One case on a wave of operands; the first lane that is wrong.
fn run_case(
    target: &Target,
    (device, module): (&Device, &Module),
    k: usize,
    case: &Case,
    round: u64,
    is_right: fn(&Case, u64, u64) -> bool,
) -> Result<(), String> {
    let n = target.n_lanes;
    let mut x: Vec<Vec<u64>> = (0..4).map(|s| numbers::operands(k as u64 * 64 + round * 8 + s, n)).collect();
    if round == 0 {
        // Zeros of either sign against each other, as floats, doubles and halves.
        for l in 0..24 {
            let negative = [1 << 31, 1 << 63, 1 << 15][l / 8];
            x.iter_mut().enumerate().for_each(|(s, x)| x[l] = if l >> s & 1 == 1 { negative } else { 0 });
        }
    }
    let b: Vec<_> = x.iter().map(|v| upload(device, v)).collect();
    let args: Vec<_> = b.iter().map(Arg::Buffer).collect();
    device
        .launch(module, &format!("case{k}"), [1, 1, 1], [n as u32, 1, 1], &args)
        .map_err(|e| format!("{}: {e}", case.asm))?;
    for (l, got) in words64(&b[3]).into_iter().enumerate() {
        let (a, b, c, d) = (x[0][l], x[1][l], x[2][l], x[3][l]);
        let mut want = (case.want)(a, b, c, d);
        let mut mask = if case.bits == 64 { !0 } else { (1u64 << case.bits) - 1 };
        if case.bits == HALF {
            let kept = if target.family.is_rdna() { d & 0xffff_0000 } else { 0 };
            (want, mask) = (want & 0xffff | kept, 0xffff_ffff);
        }
        let (got, want) = (got & mask, want & mask);
        if !is_right(case, got, want) {
            let (asm, chip) = (case.asm, target.chip);
            return Err(format!(
                "`{asm}` on {chip} with {n} lanes, of {a:#x} {b:#x} {c:#x} {d:#x}: {got:#x}, the pseudocode says {want:#x}"
            ));
        }
    }
    Ok(())
}

/// Instructions with a meaning that no table runs, and why.
fn needs_no_case(family: Family, name: &str) -> bool {
    // Waits, hints, cache and power controls: nothing an emulator in program order could get wrong.
    let is_nothing = |n: &str| {
        let stems = [
            "s_wait",
            "s_dcache",
            "s_ttrace",
            "s_incperf",
            "s_decperf",
            "buffer_",
            "s_gl1",
            "s_icache",
            "s_prefetch",
            "s_buffer_prefetch",
            "global_inv",
            "global_wb",
            "s_sleep",
        ];
        let whole = [
            "s_nop",
            "s_clause",
            "s_delay_alu",
            "s_sleep",
            "s_setprio",
            "s_sendmsg",
            "s_wakeup",
            "s_sethalt",
            "s_code_end",
            "s_set_inst_prefetch_distance",
            "s_version",
            "v_nop",
            "v_pipeflush",
            "ds_nop",
            "s_setvskip",
        ];
        stems.iter().any(|s| n.starts_with(s)) || whole.contains(&n)
    };
    // Scalar floats are gfx1150's, whose cases run on RDNA4, as do those of gfx950's minima; gfx950's bfloat conversions
    // run nowhere.
    let is_newer = |n: &str| {
        family == Family::Rdna3
            && n.starts_with("s_")
            && (n.ends_with("_f32") || n.ends_with("_f16") || n.starts_with("s_cvt_"))
            || ["v_cvt_f32_bf16", "v_cvt_pk_bf16_f32", "v_dot2_f32_bf16", "v_dot2c_f32_bf16"].contains(&n)
            || family == Family::Cdna3 && ["v_maximum3_f32", "v_minimum3_f32"].contains(&n)
    };
    // The clock, an end that saves for a debugger, what LLVM assembles on global memory only, and what it does not know
    // (it shares its handler with the dot product of halves).
    let is_other = |n: &str| {
        n.contains("time")
            || n.starts_with("s_sendmsg_rtn")
            || ["s_endpgm_saved", "flat_atomic_csub_u32", "v_dual_dot2acc_f32_bf16"].contains(&n)
            || family == Family::Rdna4 && IS_UNKNOWN_TO_LLVM.contains(&n)
    };
    is_nothing(name) || is_newer(name) || is_other(name)
}

#[test]
fn every_instruction_has_a_case() {
    for target in TARGETS {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let sources = [
            vector_source(&target, float::CASES).1,
            vector_source(&target, float::NEAR).1,
            vector_source(&target, integer::CASES).1,
            vector_source(&target, packed::CASES).1,
            vector_source(&target, division::CASES).1,
            vector_source(&target, fp8::CASES).1,
            vector_source(&target, registers::CASES).1,
            vector_source(&target, saturate::CASES).1,
            vector_source(&target, trigonometry::CASES).1,
            compare::source(&target),
            scalar::source(&target),
            lanes::source(&target),
            memory::source(&target),
            rdna4::source(&target),
            matrix::source(&target),
            control::source(&target),
        ];
        for source in sources {
            let Some(file) = target.assemble(&source) else { return };
            let object = CodeObject::parse(&file).expect("a code object");
            for symbol in object.symbols.iter().filter(|s| !s.name.ends_with(".kd")) {
                let (mut at, end) = (symbol.address as usize, (symbol.address + symbol.n_bytes) as usize);
                while at < end {
                    let words: Vec<u32> = object.image[at..end]
                        .as_chunks::<4>()
                        .0
                        .iter()
                        .take(3)
                        .map(|b| u32::from_le_bytes(*b))
                        .collect();
                    let d = isa::decode(target.family, &words).expect("what clang assembled decodes");
                    seen.insert(d.op);
                    seen.extend(d.dual.as_ref().map(|second| second.op));
                    at += 4 * d.n_words as usize;
                }
            }
        }
        // Raw buffers have tests of their own.
        let known = isa::opcodes(target.family).into_iter().filter(|(e, _, _)| *e != Encoding::Mubuf);
        let without: BTreeSet<_> = known
            .filter(|(e, n, name)| crate::coverage::has_meaning(target.family, *e, *n, name))
            .map(|(_, _, name)| name)
            .filter(|name| !seen.contains(name) && !needs_no_case(target.family, name))
            .filter(|name| !(target.is_wide() && name.starts_with("v_dual_")))
            // Exec in the wave's own width.
            .filter(|name| !(name.contains("exec_b") && name.ends_with(if target.is_wide() { "b32" } else { "b64" })))
            .collect();
        eprintln!("{} with {} lanes: {} instructions run", target.chip, target.n_lanes, seen.len());
        assert!(without.is_empty(), "{}: no case runs {without:?}", target.chip);
    }
}
