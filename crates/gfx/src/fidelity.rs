//! How faithful each instruction is, told from the emulator's own tables: docs/developer/gfx-fidelity.md is written by
//! `report`, and a test keeps it current.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::chip::CHIPS;
use crate::exec;
use crate::isa::{self, Decoded, Encoding, Family};

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Fidelity {
    /// AMD's pseudocode, to the bit.
    Exact,
    /// What may differ from silicon.
    Approximate(&'static str),
    /// A hint or a wait: nothing is left to do where everything happens in program order.
    Nothing,
    /// Stops the kernel with its name.
    Missing,
}

const TRANSCENDENTAL: &str = "computed in f64 and rounded once; silicon may be a unit in the last place off";
const PRODUCTS: &str = "products are fused and added in order of k; silicon's order is not published";
const DOT: &str = "each addition is rounded; silicon's intermediate width is not published";
const CLOCK: &str = "the wave's instruction count stands for the clock";

/// First of the rows whose stem the name starts with.
const APPROXIMATE: &[(&str, &str)] = &[
    ("v_exp_f", TRANSCENDENTAL),
    ("v_log_f", TRANSCENDENTAL),
    ("v_sin_f", TRANSCENDENTAL),
    ("v_cos_f", TRANSCENDENTAL),
    ("v_rcp_", TRANSCENDENTAL),
    ("v_rsq_f", TRANSCENDENTAL),
    ("v_sqrt_f", TRANSCENDENTAL),
    ("v_s_", TRANSCENDENTAL),
    ("v_wmma_f", PRODUCTS),
    ("v_wmma_bf", PRODUCTS),
    ("v_mfma_f", PRODUCTS),
    ("v_dot2_f32", DOT),
    ("v_dot2acc", DOT),
    ("v_dot2c_f32", DOT),
    ("v_dual_dot2acc", DOT),
    ("s_memtime", CLOCK),
    ("s_memrealtime", CLOCK),
    ("s_sendmsg_rtn", CLOCK),
];

/// What an instruction with a meaning refuses, with an error that names it.
const LIMITS: &[(&str, &str)] = &[
    ("buffer_*", "indexed, swizzled and thread-numbered descriptors"),
    ("v_mfma_*", "lane controls (cbsz, abid, blgp) and constants as factors"),
    ("v_dot4_*, v_dot8_*, v_dot2_[iu]32*", "the clamp bit"),
    ("s_setreg_*, s_round_mode", "rounding other than nearest even; registers but MODE"),
    ("s_getreg_b32", "registers but MODE and the cycle counter"),
    ("s_sendmsg_rtn_*", "messages but the clock's"),
    ("s_barrier_signal, s_barrier_wait", "named barriers"),
    ("atomics on global memory", "addresses that are not aligned"),
    ("floats of all kinds", "flushing of denormals: they are kept whatever MODE says"),
];

const NOTHING: &[&str] = &[
    "s_wait",
    "s_nop",
    "s_sleep",
    "s_clause",
    "s_delay_alu",
    "s_setprio",
    "s_dcache",
    "s_icache",
    "s_inst_prefetch",
    "s_set_inst_prefetch",
    "s_prefetch",
    "s_buffer_prefetch",
    "s_gl1_inv",
    "s_incperf",
    "s_decperf",
    "s_ttrace",
    "s_version",
    "s_code_end",
    "s_sethalt",
    "s_setvskip",
    "s_wakeup",
    "s_sendmsg",
    "buffer_gl",
    "buffer_inv",
    "buffer_wb",
    "global_inv",
    "global_wb",
    "v_nop",
    "v_pipeflush",
    "ds_nop",
];

/// How an instruction is carried out on a family's chips.
pub fn of(family: Family, encoding: Encoding, name: &'static str) -> Fidelity {
    let plain = Decoded::new(family, encoding, name, 1);
    if exec::find::<64>(&plain).is_none() {
        return Fidelity::Missing;
    }
    let starts = |stem: &&str| name.starts_with(*stem);
    match APPROXIMATE.iter().find(|(stem, _)| starts(stem)) {
        Some((_, why)) => Fidelity::Approximate(why),
        None if NOTHING.iter().any(starts) => Fidelity::Nothing,
        None => Fidelity::Exact,
    }
}

/// The instructions of a family by name: an encoding may repeat what another has.
fn names(family: Family) -> BTreeMap<&'static str, Fidelity> {
    let mut all = BTreeMap::new();
    for (encoding, _, name) in isa::opcodes(family) {
        let found = of(family, encoding, name);
        let known = all.entry(name).or_insert(found);
        if *known == Fidelity::Missing {
            *known = found;
        }
    }
    all
}

/// Names under their first two words: `ds_gws_barrier` and `ds_gws_init` are `ds_gws_{barrier, init}`.
fn folded<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut groups: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for name in names {
        let at = name.match_indices('_').nth(1).map_or(name.len(), |(at, _)| at + 1);
        groups.entry(name[..at].to_string()).or_default().insert(&name[at..]);
    }
    let text = groups.into_iter().map(|(stem, rest)| match rest.len() {
        1 => format!("`{stem}{}`", rest.into_iter().collect::<String>()),
        _ => format!("`{stem}{{{}}}`", rest.into_iter().collect::<Vec<_>>().join(", ")),
    });
    text.collect::<Vec<_>>().join(", ")
}

fn chips(family: Family) -> String {
    let names = CHIPS.iter().filter(|c| c.family == family).map(|c| c.name);
    names.collect::<Vec<_>>().join(", ")
}

/// The page, in Markdown.
pub fn report() -> String {
    let mut page = String::from(
        "# How faithful the software GPU is\n\n\
         Every instruction of AMD's opcode tables, by what the emulator does with it. Written from its tables by\n\
         `ROCI_WRITE_DOCS=1 cargo nextest run -p roci-gfx -E 'test(fidelity)'`; a test keeps it current.\n\n\
         - **exact**: AMD's pseudocode, to the bit. A test demands a case for each, written from the pseudocode.\n\
         - **approximate**: silicon may differ in the way that is named below.\n\
         - **nothing to do**: waits, hints and cache controls; everything happens in program order here.\n\
         - **missing**: stops the kernel with the instruction's name, bytes and place. Nothing is guessed.\n\n\
         | chips | instructions | exact | approximate | nothing to do | missing |\n|---|--:|--:|--:|--:|--:|\n",
    );
    let families = Family::ALL.map(|family| (family, names(family)));
    for (family, names) in &families {
        let count = |is: fn(&Fidelity) -> bool| names.values().filter(|f| is(f)).count();
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} |",
            chips(*family),
            names.len(),
            count(|f| *f == Fidelity::Exact),
            count(|f| matches!(f, Fidelity::Approximate(_))),
            count(|f| *f == Fidelity::Nothing),
            count(|f| *f == Fidelity::Missing),
        );
    }
    page += "\ngfx1100 has no scalar floats (`s_add_f32` and so on); gfx1151 has. Images, exports and interpolation have\n\
             encodings of their own, which are not in these tables: they are unknown instructions here.\n\n## Approximate\n\n\
             | what differs | instructions |\n|---|---|\n";
    for why in [TRANSCENDENTAL, PRODUCTS, DOT, CLOCK] {
        let all = families.iter().flat_map(|(_, names)| names);
        let here = all.filter(|(_, f)| **f == Fidelity::Approximate(why)).map(|(name, _)| *name);
        let _ = writeln!(page, "| {why} | {} |", folded(here));
    }
    page += "\n## Exact within limits\n\n| instructions | refused, with an error that names it |\n|---|---|\n";
    for (what, refused) in LIMITS {
        let _ = writeln!(page, "| {what} | {refused} |");
    }
    page += "\n## Missing\n";
    for (family, names) in &families {
        let missing = names.iter().filter(|(_, f)| **f == Fidelity::Missing).map(|(name, _)| *name);
        let _ = write!(page, "\n{}: {}.\n", chips(*family), folded(missing));
    }
    page
}
