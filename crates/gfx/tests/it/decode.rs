//! The decoder against LLVM's disassembler, over random words of every opcode and over real code.
//!
//! Whatever LLVM accepts we must decode to the same name, length, registers, constants and modifiers. Words that LLVM
//! refuses are not compared: hardware reserves them.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::process::{Command, Stdio};

use gfx_model::isa::{self, Decoded, Encoding, Family, code};

use crate::tools::{self, Dice};

/// Words that start an instruction of this opcode, with everything else random.
pub fn random_words(family: Family, encoding: Encoding, number: u16, dice: &mut Dice) -> Option<[u32; 2]> {
    let n = number as u32;
    let r = dice.next() as u32;
    let tail = (dice.next() >> 32) as u32;
    let rdna = family.is_rdna();
    let is_4 = family == Family::Rdna4;
    let first = match encoding {
        Encoding::Sop1 => 0xbe80_0000 | n << 8 | r & 0x7f_00ff,
        Encoding::Sop2 => 0x8000_0000 | n << 23 | r & 0x7f_ffff,
        Encoding::Sopc => 0xbf00_0000 | n << 16 | r & 0xffff,
        Encoding::Sopk => 0xb000_0000 | n << 23 | r & 0x7f_ffff,
        Encoding::Sopp => 0xbf80_0000 | n << 16 | r & 0xffff,
        Encoding::Smem if is_4 => 0xf400_0000 | n << 13 | r & 0x1fff,
        Encoding::Smem if rdna => 0xf400_0000 | n << 18 | r & 0x1fff,
        Encoding::Smem => 0xc000_0000 | n << 18 | r & 0x1fff | 0x2_0000,
        Encoding::Vop1 => 0x7e00_0000 | n << 9 | r & 0x01fe_01ff,
        Encoding::Vop2 => n << 25 | r & 0x01ff_ffff,
        Encoding::Vopc => 0x7c00_0000 | n << 17 | r & 0x1_ffff,
        Encoding::Vop3 | Encoding::Vop3sd => (if rdna { 0xd400_0000 } else { 0xd000_0000 }) | n << 16 | r & 0xffff,
        Encoding::Vop3p => (if rdna { 0xcc00_0000 } else { 0xd380_0000 }) | n << 16 | r & 0xffff,
        Encoding::Vopd => 0xc800_0000 | (n & 15) << 22 | (dice.next() as u32 % 19) << 17 | r & 0x1_ffff,
        Encoding::Ds if rdna => 0xd800_0000 | n << 18 | r & 0xffff,
        Encoding::Ds => 0xd800_0000 | n << 17 | r & 0xffff,
        // Segment and opcode; half of the addresses name no scalar register.
        Encoding::Flat | Encoding::Scratch | Encoding::Global if is_4 => {
            let segment = match encoding {
                Encoding::Flat => 0xec00_0000,
                Encoding::Scratch => 0xed00_0000,
                _ => 0xee00_0000,
            };
            segment | n << 14 | if r & 1 == 0 || encoding == Encoding::Flat { 0x7c } else { r >> 1 & 0x7e }
        }
        Encoding::Flat | Encoding::Scratch | Encoding::Global => {
            let segment =
                [Encoding::Flat, Encoding::Scratch, Encoding::Global].iter().position(|e| *e == encoding)? as u32;
            let at = if rdna { 16 } else { 14 };
            0xdc00_0000 | n << 18 | segment << at | r & if rdna { 0x5fff } else { 0x1fff }
        }
        Encoding::Mubuf => return None,
    };
    // Half of the address fields name no scalar register, as compilers write them.
    let tail = match encoding {
        // The offset alone; and registers, scratch's vector address and the temporal hint.
        Encoding::Smem if is_4 => tail & 0x00ff_ffff | 0xf800_0000,
        Encoding::Global | Encoding::Flat if is_4 => tail & 0x7f90_00ff,
        Encoding::Scratch if is_4 => tail & 0x7f82_00ff,
        // A register that an instruction does not have must be zero.
        Encoding::Ds if is_4 && r & 1 == 0 => tail & 0xff00_00ff,
        Encoding::Ds if is_4 && r & 2 == 0 => tail & 0x0000_ffff,
        Encoding::Vop3 | Encoding::Vop3sd if is_4 && r & 3 != 0 => {
            tail & 0x0003_ffff | if r & 1 == 0 { 0 } else { 0x200_0000 }
        }
        Encoding::Global | Encoding::Scratch | Encoding::Flat if r & 1 == 0 => {
            let none = if rdna { 0x7c } else { 0x7f };
            tail & !0x7f_0000 | none << 16
        }
        _ => tail,
    };
    Some([first, tail])
}

/// LLVM's text per encoding, for everything it accepts.
fn disassemble(cpu: &str, words: &[[u32; 2]]) -> Option<HashMap<Vec<u32>, String>> {
    let mut child = match Command::new("llvm-mc-19")
        .args(["--disassemble", "-triple=amdgcn-amd-amdhsa", &format!("-mcpu={cpu}"), "--show-encoding"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
    {
        Ok(child) => child,
        Err(_) => {
            tools::skip("llvm-mc-19 is missing (apt-get install llvm-19)");
            return None;
        }
    };
    let mut stdin = child.stdin.take().expect("a pipe");
    // A literal may follow; three words give every instruction room, and what it leaves is decoded as more.
    let input: String = words
        .iter()
        .map(|w| {
            [w[0], w[1], 0x1234_5678]
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .map(|b| format!("{b:#04x} "))
                .collect::<String>()
                + "\n"
        })
        .collect();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let out = child.wait_with_output().expect("llvm-mc ends");
    writer.join().expect("no panic").expect("llvm-mc reads its input");
    let mut found = HashMap::new();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let Some((text, encoding)) = line.split_once("; encoding: [") else { continue };
        let bytes: Vec<u8> = encoding
            .trim_end_matches(']')
            .split(',')
            .filter_map(|b| u8::from_str_radix(b.trim_start_matches("0x"), 16).ok())
            .collect();
        let words = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        found.insert(words, text.trim().to_string());
    }
    Some(found)
}

/// One operand of LLVM's text as our code; `None` for what we do not model as one.
fn operand(token: &str, literal: u32, high_bit: u16) -> Option<u16> {
    let t =
        token.trim().trim_start_matches('-').trim_matches('|').trim_start_matches("neg(").trim_start_matches("abs(");
    let t = t.trim_end_matches(')').trim_matches('|').trim_end_matches(".l").trim_end_matches(".h");
    // A sign before a bare number belongs to it; before a register or bars it is a modifier.
    let is_negative = token.trim().strip_prefix('-').is_some_and(|r| r.starts_with(|c: char| c.is_ascii_digit()));
    // Short forms keep the half in register bit 7.
    let high = if token.contains(".h") { high_bit } else { 0 };
    let first = |prefix: &str| {
        let rest = t.strip_prefix(prefix)?;
        let inner = rest.strip_prefix('[').map_or(rest, |r| r.split([':', ']']).next().unwrap_or(r));
        inner.parse::<u16>().ok()
    };
    let number = || -> Option<u16> {
        let value = if let Some(hex) = t.strip_prefix("0x") {
            i64::from_str_radix(hex, 16).ok()?
        } else {
            t.parse::<i64>().ok()?
        };
        let value = if is_negative { -value } else { value };
        if value as u32 == literal && !(-16..=64).contains(&value) {
            return Some(code::LITERAL);
        }
        match value {
            0..=64 => Some(128 + value as u16),
            -16..=-1 => Some((192 - value) as u16),
            _ => Some(code::LITERAL),
        }
    };
    Some(match t {
        "vcc" | "vcc_lo" => 106,
        "vcc_hi" => 107,
        "exec" | "exec_lo" => 126,
        "exec_hi" => 127,
        "m0" => 125,
        "null" | "off" => 124,
        "src_scc" | "scc" => 253,
        "src_vccz" => 251,
        "src_execz" => 252,
        "src_shared_base" => 235,
        "src_shared_limit" => 236,
        "src_private_base" => 237,
        "src_private_limit" => 238,
        "0.5" => {
            if is_negative {
                241
            } else {
                240
            }
        }
        "1.0" => {
            if is_negative {
                243
            } else {
                242
            }
        }
        "2.0" => {
            if is_negative {
                245
            } else {
                244
            }
        }
        "4.0" => {
            if is_negative {
                247
            } else {
                246
            }
        }
        "0.15915494" | "0.15915494309189532" | "0.1592" => 248,
        _ => first("v")
            .map(|n| 256 + n + high)
            .or_else(|| first("a").map(|n| 512 + n))
            .or_else(|| first("s"))
            .or_else(|| first("ttmp").map(|n| 108 + n))
            .or_else(number)?,
    })
}

/// The operands in the order LLVM prints them, for the forms we compare.
fn ours(d: &Decoded) -> Option<Vec<u16>> {
    let [a, b, c] = d.src;
    Some(match d.encoding {
        Encoding::Sop1 => vec![d.sdst, a],
        // The constant is an operand of its own.
        Encoding::Sop2 if d.op == "s_fmaak_f32" => vec![d.sdst, a, b, code::LITERAL],
        Encoding::Sop2 if d.op == "s_fmamk_f32" => vec![d.sdst, a, code::LITERAL, b],
        Encoding::Sop2 => vec![d.sdst, a, b],
        Encoding::Sopc => vec![a, b],
        Encoding::Vop1 if d.op == "v_readfirstlane_b32" => vec![d.sdst, a],
        Encoding::Vop1 => vec![d.dst, a],
        Encoding::Vop2 if d.op.contains("_co_") => vec![d.dst, d.sdst, a, b, c],
        Encoding::Vop2 => vec![d.dst, a, b, c],
        Encoding::Vopc if d.op.starts_with("v_cmpx") && d.family.is_rdna() => vec![a, b],
        Encoding::Vopc => vec![d.sdst, a, b],
        Encoding::Vop3 if d.op.starts_with("v_cmpx") && d.family.is_rdna() => vec![a, b],
        Encoding::Vop3 if d.op.starts_with("v_cmp") || d.op.starts_with("v_read") => vec![d.sdst, a, b],
        Encoding::Vop3 | Encoding::Vop3p => vec![d.dst, a, b, c],
        Encoding::Vop3sd => vec![d.dst, d.sdst, a, b, c],
        _ => return None,
    })
}

/// Everything that differs between LLVM's text and our decoding.
fn differences(text: &str, d: &Decoded, n_words: usize) -> Vec<String> {
    let mut found = Vec::new();
    let (mnemonic, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let stem = |m: &str| {
        let m = m.strip_suffix("_e32").or(m.strip_suffix("_e64")).unwrap_or(m);
        let m = m.strip_suffix("_dpp").or(m.strip_suffix("_sdwa")).unwrap_or(m);
        m.strip_suffix("_e64").unwrap_or(m).to_string()
    };
    if stem(mnemonic) != d.op {
        found.push(format!("name {} for {}", d.op, mnemonic));
    }
    if d.n_words as usize != n_words {
        found.push(format!("{} words for {n_words}", d.n_words));
    }
    if let Some(dual) = &d.dual {
        let second = text.split("::").nth(1).unwrap_or("").split_whitespace().next().unwrap_or("").to_string();
        if second != dual.op {
            found.push(format!("second name {} for {second}", dual.op));
        }
        return found;
    }
    if d.dpp.is_some() || d.sdwa.is_some() {
        return found;
    }
    // Operands stop at the first modifier (`clamp`, `offset:4`, `op_sel:[0,1]`).
    let mut tokens = Vec::new();
    for part in rest.split(", ") {
        let mut words = part.trim().split(' ');
        tokens.push(words.next().unwrap_or("").to_string());
        if words.next().is_some() {
            break;
        }
    }
    tokens.retain(|t| !t.is_empty());
    if let Some(ours) = ours(d) {
        let theirs: Option<Vec<u16>> =
            tokens.iter().map(|t| operand(t, d.literal, if d.is_short { 128 } else { 0 })).collect();
        if let Some(theirs) = theirs
            && (ours.len() < theirs.len() || ours[..theirs.len()] != theirs)
        {
            found.push(format!("operands {ours:?} for {theirs:?}"));
        }
    }
    if matches!(d.encoding, Encoding::Ds | Encoding::Flat | Encoding::Global | Encoding::Scratch) {
        let registers: Vec<u16> =
            tokens.iter().filter_map(|t| operand(t, 0, 0)).filter(|c| *c >= 256 || *c == d.saddr).collect();
        let all = [d.dst, d.src[0], d.src[1], d.src[2], d.saddr];
        if let Some(odd) = registers.iter().find(|r| !all.contains(r)) {
            found.push(format!("register {odd} is none of {all:?}"));
        }
        let offset = rest.split("offset:").nth(1).and_then(|t| t.split_whitespace().next()?.parse::<i32>().ok());
        if !rest.contains("offset0") && !rest.contains("offset1") && !rest.contains("swizzle") {
            let theirs = offset.unwrap_or(0);
            if theirs != d.imm {
                found.push(format!("offset {} for {theirs}", d.imm));
            }
        }
    }
    if matches!(d.encoding, Encoding::Vop3 | Encoding::Vop3sd) {
        if rest.contains(" clamp") != d.is_clamped {
            found.push("clamp".into());
        }
        let omod = [" mul:2", " mul:4", " div:2"].iter().position(|m| rest.contains(m)).map_or(0, |n| n as u8 + 1);
        if omod != d.omod {
            found.push(format!("omod {} for {omod}", d.omod));
        }
    }
    found
}

/// Known differences in spelling, not in meaning.
fn is_excused(text: &str, difference: &str) -> bool {
    // LLVM prints fixed or symbolic operands for these, and folds unused fields.
    let names = [
        "s_sendmsg_rtn",
        "s_set_gpr_idx",
        "s_getpc",
        "s_setpc",
        "s_rfe",
        "s_waitcnt",
        "v_nop",
        "s_barrier",
        "v_movrel",
        "v_swaprel",
        "s_getreg",
        "s_setreg",
        "v_interp",
        "v_writelane",
        "v_mov_fed",
        "v_clrexcp",
        "s_call",
        "v_pipeflush",
        "ds_gws",
        "ds_ordered",
        "s_cbranch",
        "s_subvector",
        "v_permlane",
        "v_swap",
        "v_wmma",
        "v_swmmac",
        "v_s_",
        "s_prefetch",
        "s_buffer_prefetch",
        "s_wait_alu",
        "s_get_barrier",
        "s_wakeup_barrier",
        "s_barrier",
        "s_alloc_vgpr",
        "s_sleep_var",
        "v_mfma",
        "v_smfmac",
        "ds_append",
        "ds_consume",
        "ds_bvh",
    ];
    names.iter().any(|n| text.starts_with(n)) && !difference.starts_with("name") && !difference.contains("words")
}

fn compare(cpu: &str, family: Family, n_each: usize) {
    let mut dice = Dice(0x5eed);
    let mut words = Vec::new();
    for (encoding, number, _) in isa::opcodes(family) {
        for _ in 0..n_each {
            words.extend(random_words(family, encoding, number, &mut dice));
        }
    }
    // Its memory instructions have a third word, which `disassemble` adds.
    let Some(theirs) = disassemble(cpu, &words) else { return };
    let (mut n_compared, mut wrong, mut missing) = (0, Vec::new(), BTreeMap::new());
    let mut covered = std::collections::BTreeSet::new();
    for (words, text) in &theirs {
        if text.contains("Invalid") {
            continue;
        }
        match isa::decode(family, &[words.as_slice(), &[0; 3]].concat()) {
            Ok(d) => {
                n_compared += 1;
                covered.insert(d.op);
                for difference in differences(text, &d, words.len()) {
                    if !is_excused(text, &difference) {
                        wrong.push(format!("{words:08x?} `{text}`: {difference}"));
                    }
                }
            }
            Err(e) => {
                missing.entry(text.split_whitespace().next().unwrap_or("").to_string()).or_insert(e.to_string());
            }
        }
    }
    eprintln!("{cpu}: {n_compared} instructions of {} kinds compared", covered.len());
    // Families of instructions an inference engine's compiler never emits: images, exports, interpolation, buffers.
    missing.retain(|name, why: &mut String| {
        !why.contains("global data share")
            && ![
                "image_",
                "buffer_",
                "tbuffer_",
                "exp",
                "v_interp",
                "lds_direct",
                "lds_param",
                "s_buffer",
                "s_scratch",
                "s_atomic",
                "s_dcache",
                "ds_param",
                "ds_direct",
            ]
            .iter()
            .any(|p| name.starts_with(p))
    });
    wrong.sort();
    let shown: Vec<_> = wrong.iter().take(25).collect();
    assert!(wrong.is_empty(), "{} differences of {n_compared}; first: {shown:#?}", wrong.len());
    assert!(missing.is_empty(), "LLVM decodes these and we do not: {missing:#?}");
    assert!(n_compared > 5_000 && covered.len() > 500, "only {n_compared} of {} kinds compared", covered.len());
}

#[test]
fn random_gfx1100_words_decode_as_llvm_says() {
    compare("gfx1100", Family::Rdna3, 40);
}

/// Every instruction of the test kernels, as llvm-objdump prints them.
fn compare_real(cpu: &str, family: Family, wave: u32) {
    let Some(file) = tools::clang(&tools::crate_dir().join("testdata/kernels.hip"), cpu, wave) else { return };
    let path = std::env::temp_dir().join(format!("gfx-objdump-{cpu}-{}.co", std::process::id()));
    std::fs::write(&path, file).expect("a temporary file");
    let Ok(out) = Command::new("llvm-objdump-19").arg("-d").arg(&path).output() else {
        tools::skip("llvm-objdump-19 is missing (apt-get install llvm-19)");
        return;
    };
    let _ = std::fs::remove_file(&path);
    let (mut n, mut wrong) = (0, Vec::new());
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let Some((text, tail)) = line.split_once("//") else { continue };
        let Some((_, words)) = tail.split_once(':') else { continue };
        let parse = |w: &str| u32::from_str_radix(w, 16).ok();
        let words: Vec<u32> = words.split('<').next().unwrap_or("").split_whitespace().map_while(parse).collect();
        match isa::decode(family, &words) {
            Ok(d) => {
                n += 1;
                let all = differences(text.trim(), &d, words.len());
                wrong.extend(
                    all.into_iter().filter(|w| !is_excused(text.trim(), w)).map(|w| format!("`{}`: {w}", text.trim())),
                );
            }
            Err(e) => wrong.push(format!("`{}`: {e}", text.trim())),
        }
    }
    assert!(wrong.is_empty(), "{} differences of {n}; first: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
    assert!(n > 1000, "only {n} instructions");
}

#[test]
fn real_gfx1100_code_decodes_as_llvm_says() {
    compare_real("gfx1100", Family::Rdna3, 32);
}

/// The same table, with the scalar floats that gfx1100 lacks.
#[test]
fn random_gfx1151_words_decode_as_llvm_says() {
    compare("gfx1151", Family::Rdna3, 40);
}

#[test]
fn random_gfx1201_words_decode_as_llvm_says() {
    compare("gfx1201", Family::Rdna4, 60);
}

#[test]
fn real_gfx1151_code_decodes_as_llvm_says() {
    compare_real("gfx1151", Family::Rdna3, 32);
}

#[test]
fn real_gfx1201_code_decodes_as_llvm_says() {
    compare_real("gfx1201", Family::Rdna4, 32);
}

#[test]
fn random_gfx942_words_decode_as_llvm_says() {
    compare("gfx942", Family::Cdna3, 40);
}

#[test]
fn real_gfx942_code_decodes_as_llvm_says() {
    compare_real("gfx942", Family::Cdna3, 64);
}
