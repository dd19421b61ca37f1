//! Every load, store and atomic of the opcode table, by its name, on global memory (both address forms), generic
//! addresses, LDS and scratch. A lane works in 32 bytes of its own; the model below is plain bytes.

use gfx_model::bare::Arg;
use gfx_model::isa::{self, Encoding, Family};

use super::numbers::*;
use super::{TARGETS, Target};

const CELL: usize = 32;
/// Where in its cell an access begins.
const OFFSET: usize = 8;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Room {
    Global,
    GlobalBase,
    Flat,
    FlatShared,
    FlatPrivate,
    Lds,
    Scratch,
}

/// What an instruction does, told by its name.
#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Load { n_bytes: usize, is_signed: bool, half: Option<bool> },
    Store { n_bytes: usize, is_high: bool },
    Two { is_load: bool, n_bytes: usize, is_far: bool },
    Atomic { what: String, n_bytes: usize, returns: bool },
}

struct Access {
    room: Room,
    name: &'static str,
    kind: Kind,
}

/// Plain words for both families' spellings.
fn kind(name: &str) -> Kind {
    let stem = name.split_once('_').unwrap().1;
    let mut stem = stem.to_string();
    let spellings = [
        ("dwordx4", "b128"),
        ("dwordx3", "b96"),
        ("dwordx2", "b64"),
        ("dword", "b32"),
        ("ubyte", "u8"),
        ("sbyte", "i8"),
        ("ushort", "u16"),
        ("sshort", "i16"),
        ("short", "b16"),
        ("byte", "b8"),
        ("read", "load"),
        ("write", "store"),
        ("2addr_stride64", "2st64"),
        ("2st64", "_2st64"),
        ("_2addr", "2"),
        ("load2", "load_2"),
        ("store2", "store_2"),
        ("__", "_"),
        ("_num", ""),
    ];
    for (theirs, ours) in spellings {
        stem = stem.replace(theirs, ours);
    }
    let parts: Vec<&str> = stem.split('_').collect();
    let width =
        |p: &str| p.trim_start_matches(['b', 'u', 'i', 'f']).parse::<usize>().ok().map(|n| n / 8).filter(|n| *n > 0);
    let is_load = parts[0] == "load";
    if is_load || parts[0] == "store" {
        let n_bytes =
            parts.iter().skip(1).filter(|p| **p != "d16" && !p.starts_with('2')).find_map(|p| width(p)).unwrap();
        if parts.contains(&"2") || parts.contains(&"2st64") {
            return Kind::Two { is_load, n_bytes, is_far: parts.contains(&"2st64") };
        }
        let is_high = parts.contains(&"hi");
        let half = parts.contains(&"d16").then_some(is_high);
        let is_signed = parts.iter().any(|p| ["i8", "i16"].contains(p));
        return if is_load { Kind::Load { n_bytes, is_signed, half } } else { Kind::Store { n_bytes, is_high } };
    }
    let n_bytes = if parts.contains(&"x2") || stem.ends_with("64") { 8 } else { 4 };
    let kept: Vec<&str> = parts.iter().filter(|p| !["atomic", "rtn", "x2"].contains(p)).copied().collect();
    let what = match kept.join("_").trim_end_matches("_b32").trim_end_matches("_b64") {
        "smin" => "min_i32".into(),
        "smax" => "max_i32".into(),
        "umin" => "min_u32".into(),
        "umax" => "max_u32".into(),
        "storexchg" | "wrxchg" | "swap" => "swap".into(),
        "cmpstore" | "cmpst" | "cmpswap" => "cmpswap".into(),
        other => other.to_string(),
    };
    Kind::Atomic { what, n_bytes, returns: name.contains("_rtn") }
}

/// The new value of an atomic, by AMD's pseudocode.
fn atomic(what: &str, n_bytes: usize, old: u64, data: u64, compare: u64) -> u64 {
    let is_wide = n_bytes == 8;
    let cut = |x: u64| if is_wide { x } else { x & 0xffff_ffff };
    let signed = |x: u64| if is_wide { x as i64 } else { i(x) as i64 };
    let float = |pick: fn(f64, f64) -> bool| {
        let (o, d) = if is_wide { (g(old), g(data)) } else { (f(old) as f64, f(data) as f64) };
        if pick(d, o) { data } else { old }
    };
    let (stem, ty) = what.split_once('_').unwrap_or((what, "u"));
    cut(match (stem, ty) {
        ("swap", _) => data,
        ("cmpswap", _) => {
            if old == compare {
                data
            } else {
                old
            }
        }
        ("add", "f32") => fb(f(old) + f(data)),
        ("add", "f64") => gb(g(old) + g(data)),
        ("pk", "add_f16") => two(hb(h(old) + h(data)), hb(h(up(old)) + h(up(data)))),
        ("pk", "add_bf16") => two(bfb(bf(u16_(old)) + bf(u16_(data))), bfb(bf(up(old)) + bf(up(data)))),
        ("add", _) => old.wrapping_add(data),
        ("sub", t) if t.starts_with("clamp") => old.saturating_sub(data),
        ("cond", _) => {
            if old >= data {
                old - data
            } else {
                old
            }
        }
        ("sub", _) => old.wrapping_sub(data),
        ("rsub", _) => data.wrapping_sub(old),
        ("csub", _) => old.saturating_sub(data),
        ("min", "f32" | "f64") => float(|d, o| d < o),
        ("max", "f32" | "f64") => float(|d, o| d > o),
        ("min", t) if t.starts_with('i') => {
            if signed(data) < signed(old) {
                data
            } else {
                old
            }
        }
        ("max", t) if t.starts_with('i') => {
            if signed(data) > signed(old) {
                data
            } else {
                old
            }
        }
        ("min", _) => old.min(data),
        ("max", _) => old.max(data),
        ("and", _) => old & data,
        ("or", _) => old | data,
        ("xor", _) => old ^ data,
        ("inc", _) => {
            if old >= data {
                0
            } else {
                old + 1
            }
        }
        ("dec", _) => {
            if old == 0 || old > data {
                data
            } else {
                old - 1
            }
        }
        _ => panic!("no atomic {what}"),
    })
}

fn accesses(target: &Target) -> Vec<Access> {
    let mut all = Vec::new();
    for (encoding, number, name) in isa::opcodes(target.family) {
        let rooms: &[Room] = match encoding {
            Encoding::Global => &[Room::Global, Room::GlobalBase],
            Encoding::Flat => &[Room::Flat, Room::FlatShared, Room::FlatPrivate],
            Encoding::Ds => &[Room::Lds],
            Encoding::Scratch => &[Room::Scratch],
            _ => continue,
        };
        let is_access = |n: &str| {
            let skipped = [
                "permute",
                "swizzle",
                "nop",
                "addtid",
                "_lds",
                "gws",
                "ordered",
                "append",
                "consume",
                "wrap",
                "mskor",
                "condxchg",
                "2addr_rtn",
                "xchg_2addr",
                "wrxchg2",
                "bvh",
                "gs_reg",
                "_tr_",
                "inv",
                "wb",
                "flat_atomic_csub",
                "block",
            ];
            !skipped.iter().any(|s| n.contains(s))
        };
        // Two swaps at once, and what no compiler emits, have no meaning here either.
        if !is_access(name) || !crate::coverage::has_meaning(target.family, encoding, number, name) {
            continue;
        }
        all.extend(rooms.iter().map(|room| Access { room: *room, name, kind: kind(name) }));
    }
    all.sort_by_key(|a| (a.name, a.room as u8));
    all
}

/// v[2:3]: the lane's cell, v12: its offset, v[4:7] data, v[16:19] more data, v[8:11] the result.
fn kernel(target: &Target, n: usize, access: &Access) -> String {
    let is_rdna = target.family.is_rdna();
    let (load, store) = if is_rdna { ("load_b128", "store_b128") } else { ("load_dwordx4", "store_dwordx4") };
    let (ds_load, ds_store) =
        if is_rdna { ("ds_load_b128", "ds_store_b128") } else { ("ds_read_b128", "ds_write_b128") };
    let (vcc, carry) = match (is_rdna, target.is_wide()) {
        (true, false) => ("vcc_lo", "v_add_co_ci_u32_e32"),
        (true, true) => ("vcc", "v_add_co_ci_u32_e32"),
        (false, _) => ("vcc", "v_addc_co_u32_e32"),
    };
    let mut body = format!(
        "  v_lshlrev_b32_e32 v12, 5, v0\n  v_mov_b32_e32 v13, s9\n  v_add_co_u32 v2, {vcc}, s8, v12\n  {carry} v3, {vcc}, 0, v13, {vcc}
  global_{load} v[4:7], v12, s[10:11]\n  global_{load} v[16:19], v12, s[10:11] offset:16\n  global_{load} v[8:11], v12, s[12:13]
  global_{load} v[20:23], v12, s[8:9]\n  global_{load} v[24:27], v12, s[8:9] offset:16\n  s_waitcnt vmcnt(0)\n"
    );
    // The cell's bytes go to the room before, and back after.
    let (fill, drain) = match access.room {
        Room::Lds | Room::FlatShared => (
            format!("  {ds_store} v12, v[20:23]\n  {ds_store} v12, v[24:27] offset:16\n  s_waitcnt lgkmcnt(0)\n"),
            format!("  {ds_load} v[20:23], v12\n  {ds_load} v[24:27], v12 offset:16\n  s_waitcnt lgkmcnt(0)\n"),
        ),
        Room::Scratch | Room::FlatPrivate => (
            format!("  scratch_{store} off, v[20:23], off offset:16\n  scratch_{store} off, v[24:27], off offset:32\n"),
            format!(
                "  s_waitcnt vmcnt(0)\n  s_mov_b32 s20, 16\n  scratch_{load} v[20:23], off, s20\n  scratch_{load} v[24:27], off, s20 offset:16\n  s_waitcnt vmcnt(0)\n"
            ),
        ),
        _ => (
            String::new(),
            format!(
                "  s_waitcnt vmcnt(0)\n  global_{load} v[20:23], v12, s[8:9]\n  global_{load} v[24:27], v12, s[8:9] offset:16\n  s_waitcnt vmcnt(0)\n"
            ),
        ),
    };
    body += &fill;
    match access.room {
        Room::FlatShared => {
            body += "  s_mov_b64 s[16:17], src_shared_base\n  v_mov_b32_e32 v2, v12\n  v_mov_b32_e32 v3, s17\n"
        }
        Room::FlatPrivate => {
            body += "  s_mov_b64 s[16:17], src_private_base\n  v_mov_b32_e32 v2, 16\n  v_mov_b32_e32 v3, s17\n"
        }
        Room::Scratch => body += "  v_mov_b32_e32 v14, 16\n",
        _ => {}
    }
    if matches!(access.kind, Kind::Two { .. }) {
        body += "  v_lshlrev_b32_e32 v14, 3, v0\n";
    }
    let range = |first: u32, n_bytes: usize| match n_bytes.div_ceil(4) {
        1 => format!("v{first}"),
        n => format!("v[{first}:{}]", first as usize + n - 1),
    };
    let (address, off) = match access.room {
        Room::Global => ("v[2:3]", ", off"),
        Room::GlobalBase => ("v12", ", s[8:9]"),
        Room::Flat | Room::FlatShared | Room::FlatPrivate => ("v[2:3]", ""),
        Room::Lds => ("v12", ""),
        Room::Scratch => ("v14", ", off"),
    };
    let name = access.name;
    body += &match &access.kind {
        Kind::Load { n_bytes, .. } => format!("  {name} {}, {address}{off} offset:{OFFSET}\n", range(8, *n_bytes)),
        Kind::Store { n_bytes, .. } => format!("  {name} {address}, {}{off} offset:{OFFSET}\n", range(4, *n_bytes)),
        Kind::Two { is_load: true, n_bytes, is_far } => {
            format!("  {name} {}, v14 offset1:{}\n", range(8, 2 * n_bytes), second_offset(*n_bytes, *is_far))
        }
        Kind::Two { n_bytes, is_far, .. } => {
            let (first, second) = (range(4, *n_bytes), range(16, *n_bytes));
            format!("  {name} v14, {first}, {second} offset1:{}\n", second_offset(*n_bytes, *is_far))
        }
        Kind::Atomic { what, n_bytes, returns } if access.room == Room::Lds => {
            let to = if *returns { format!("{}, ", range(8, *n_bytes)) } else { String::new() };
            let second = if what == "cmpswap" { format!(", {}", range(16, *n_bytes)) } else { String::new() };
            format!("  {name} {to}{address}, {}{second} offset:{OFFSET}\n", range(4, *n_bytes))
        }
        Kind::Atomic { what, n_bytes, .. } => {
            let data = range(4, if what == "cmpswap" { 2 * n_bytes } else { *n_bytes });
            let flag = if is_rdna { "glc" } else { "sc0" };
            format!("  {name} {}, {address}, {data}{off} offset:{OFFSET} {flag}\n", range(8, *n_bytes))
        }
    };
    body += "  s_waitcnt vmcnt(0) lgkmcnt(0)\n";
    body += &drain;
    body += &format!(
        "  global_{store} v12, v[20:23], s[8:9]\n  global_{store} v12, v[24:27], s[8:9] offset:16\n  global_{store} v12, v[8:11], s[12:13]\n"
    );
    target.kernel(&format!("access{n}"), &body)
}

/// The second place of a pair, in the instruction's own units, such that no two lanes meet.
fn second_offset(n_bytes: usize, is_far: bool) -> usize {
    match (n_bytes, is_far) {
        (4, false) => 1,
        (4, true) => 2,
        (8, false) => 64,
        _ => 1,
    }
}

pub fn source(target: &Target) -> String {
    accesses(target).iter().enumerate().map(|(n, a)| kernel(target, n, a)).collect()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |v, b| v << 8 | *b as u64)
}

fn put(bytes: &mut [u8], value: u64) {
    let n = bytes.len().min(8);
    bytes[..n].copy_from_slice(&value.to_le_bytes()[..n]);
}

/// The model: what becomes of memory and of a lane's result registers (16 bytes).
fn apply(target: &Target, access: &Access, lane: usize, memory: &mut [u8], data: &[u8], result: &mut [u8]) {
    let at = lane * CELL + OFFSET;
    match &access.kind {
        Kind::Load { n_bytes, is_signed, half } => {
            let raw = number(&memory[at..at + (*n_bytes).min(8)]);
            let value = match (*is_signed, *n_bytes) {
                (true, 1) => raw as u8 as i8 as i64 as u64,
                (true, _) => raw as u16 as i16 as i64 as u64,
                _ => raw,
            };
            match half {
                Some(is_high) => {
                    // With SRAM-ECC, which Instinct accelerators have, whole registers are written.
                    if target.family == Family::Cdna3 {
                        result[..4].fill(0);
                    }
                    put(&mut result[2 * *is_high as usize..][..2], value);
                }
                None if *n_bytes < 4 => put(&mut result[..4], value),
                None => result[..*n_bytes].copy_from_slice(&memory[at..at + n_bytes]),
            }
        }
        Kind::Store { n_bytes, is_high } => {
            memory[at..at + n_bytes].copy_from_slice(&data[2 * *is_high as usize..][..*n_bytes]);
        }
        Kind::Two { is_load, n_bytes, is_far } => {
            let second = second_offset(*n_bytes, *is_far) * n_bytes * if *is_far { 64 } else { 1 };
            for (k, at) in [lane * 8, lane * 8 + second].into_iter().enumerate() {
                if *is_load {
                    result[k * n_bytes..][..*n_bytes].copy_from_slice(&memory[at..at + n_bytes]);
                } else {
                    memory[at..at + n_bytes].copy_from_slice(&data[16 * k..][..*n_bytes]);
                }
            }
        }
        Kind::Atomic { what, n_bytes, returns } => {
            let n = *n_bytes;
            let old = number(&memory[at..at + n]);
            let is_lds = access.room == Room::Lds;
            let (first, second) =
                (number(&data[..n]), number(if is_lds { &data[16..16 + n] } else { &data[n..2 * n] }));
            // CDNA's LDS names the comparand first.
            let (new, compare) = if is_lds && target.family == Family::Cdna3 && what == "cmpswap" {
                (second, first)
            } else {
                (first, second)
            };
            put(&mut memory[at..at + n], atomic(what, n, old, new, compare));
            if *returns || !is_lds {
                put(&mut result[..n], old);
            }
        }
    }
}

#[test]
fn memory_follows_the_names() {
    for target in TARGETS {
        let Some((device, module)) = target.load(&source(&target)) else { return };
        let lanes = target.n_lanes;
        for (k, access) in accesses(&target).iter().enumerate() {
            for round in 0..6 {
                let bytes = |seed: u64| -> Vec<u8> {
                    operands(k as u64 * 100 + round * 10 + seed, lanes * CELL / 8)
                        .iter()
                        .flat_map(|w| w.to_le_bytes())
                        .collect()
                };
                let (mut memory, mut data, mut result) = (bytes(0), bytes(1), bytes(2));
                for l in 0..lanes {
                    let cell = l * CELL;
                    // Comparands that match now and then, at either place they may stand; limits that are met.
                    let old: Vec<u8> = memory[cell + OFFSET..cell + OFFSET + 8].to_vec();
                    match l % 6 {
                        0 => data[cell..cell + 8].copy_from_slice(&old),
                        1 => data[cell + 16..cell + 24].copy_from_slice(&old),
                        2 => data[cell + 8..cell + 16].copy_from_slice(&old),
                        3 => data[cell + 4..cell + 8].copy_from_slice(&old[..4]),
                        4 => memory[cell + OFFSET..cell + OFFSET + 8].fill(0),
                        _ => {}
                    }
                }
                let buffers = [&memory, &data, &result].map(|x| device.upload(x));
                let args: Vec<_> = buffers.iter().chain([&buffers[0]]).map(Arg::Buffer).collect();
                let name = format!("{} ({:?}) on {}", access.name, access.room, target.chip);
                device
                    .launch(&module, &format!("access{k}"), [1, 1, 1], [lanes as u32, 1, 1], &args)
                    .unwrap_or_else(|e| panic!("{name}: {e}"));
                let before = memory.clone();
                for l in 0..lanes {
                    apply(&target, access, l, &mut memory, &data[l * CELL..][..CELL], &mut result[l * CELL..][..16]);
                }
                let (found, returned) = (buffers[0].bytes(), buffers[2].bytes());
                for l in 0..lanes {
                    let cell = l * CELL..(l + 1) * CELL;
                    let show = || {
                        format!("{name}, lane {l}: {:02x?} with {:02x?}", &before[cell.clone()], &data[cell.clone()])
                    };
                    assert!(
                        is_close(access, &found[cell.clone()], &memory[cell.clone()]),
                        "{}\nleft {:02x?}\nnot  {:02x?}",
                        show(),
                        &found[cell.clone()],
                        &memory[cell.clone()]
                    );
                    let want = &result[l * CELL..][..16];
                    assert_eq!(&returned[l * CELL..][..16], want, "{}", show());
                }
            }
        }
    }
}

/// Equal, but for the payload of a NaN that an atomic made.
fn is_close(access: &Access, got: &[u8], want: &[u8]) -> bool {
    let Kind::Atomic { what, n_bytes, .. } = &access.kind else { return got == want };
    let (a, b) = (number(&got[OFFSET..OFFSET + n_bytes]), number(&want[OFFSET..OFFSET + n_bytes]));
    let same = match what.as_str() {
        "add_f32" => is_same(32, a, b),
        "add_f64" => is_same(64, a, b),
        "pk_add_f16" => is_same(32, a, b),
        "pk_add_bf16" => [0, 16].iter().all(|s| {
            a >> s & 0xffff == b >> s & 0xffff || bf(a >> s & 0xffff).is_nan() && bf(b >> s & 0xffff).is_nan()
        }),
        _ => a == b,
    };
    same && got[..OFFSET] == want[..OFFSET] && got[OFFSET + n_bytes..] == want[OFFSET + n_bytes..]
}
