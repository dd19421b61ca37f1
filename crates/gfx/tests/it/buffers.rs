//! Raw buffers: each access is assembled into a small kernel and run at, across and past the end of its range, with
//! the real memory going on behind it. Expected bytes follow AMD's rule, part by part: out of range when
//! `voffset + immediate + bytes of the part > num_records - soffset`, the right side never below zero.

use gfx_model::bare::{Arg, Device};
use gfx_model::dispatch::Options;

use crate::tools;

struct Chip {
    name: &'static str,
    lanes: u32,
    /// The last word of a descriptor: raw range checks where the family has a choice.
    word3: u32,
    head: &'static str,
    tail: &'static str,
    directives: &'static str,
    /// Whether vector offset + immediate wraps at 32 bits.
    wraps: bool,
}

const RDNA3: Chip = Chip {
    name: "gfx1100",
    lanes: 32,
    word3: 0x3101_6000,
    head: "  s_load_b256 s[8:15], s[0:1], 0x0\n  s_load_b32 s16, s[0:1], 0x20
  v_lshlrev_b32_e32 v1, 2, v0\n  v_lshlrev_b32_e32 v3, 4, v0\n  s_waitcnt lgkmcnt(0)
  global_load_b32 v2, v1, s[8:9]\n  global_load_b128 v[4:7], v3, s[10:11]\n  s_waitcnt vmcnt(0)\n",
    tail: "  s_waitcnt vmcnt(0)\n  global_store_b128 v3, v[4:7], s[10:11]\n  s_endpgm\n",
    directives: ".amdhsa_wavefront_size32 1",
    wraps: false,
};

const CDNA3: Chip = Chip {
    name: "gfx942",
    lanes: 64,
    word3: 0x0002_0000,
    head: "  s_load_dwordx8 s[8:15], s[0:1], 0x0\n  s_load_dword s16, s[0:1], 0x20
  v_lshlrev_b32_e32 v1, 2, v0\n  v_lshlrev_b32_e32 v3, 4, v0\n  s_waitcnt lgkmcnt(0)
  global_load_dword v2, v1, s[8:9]\n  global_load_dwordx4 v[4:7], v3, s[10:11]\n  s_waitcnt vmcnt(0)\n",
    tail: "  s_waitcnt vmcnt(0)\n  global_store_dwordx4 v3, v[4:7], s[10:11]\n  s_endpgm\n",
    directives: ".amdhsa_accum_offset 24",
    wraps: true,
};

struct Case {
    /// RDNA3's and CDNA3's names; operands follow.
    op: [&'static str; 2],
    is_store: bool,
    n_parts: usize,
    part_bytes: usize,
    /// First byte of the register a part of a word goes to, and how many bytes of it change.
    place: (usize, usize),
}

const fn case(op: [&'static str; 2], is_store: bool, n_parts: usize, part_bytes: usize) -> Case {
    Case { op, is_store, n_parts, part_bytes, place: (0, 4) }
}

const CASES: &[Case] = &[
    case(["buffer_load_b32 v4", "buffer_load_dword v4"], false, 1, 4),
    case(["buffer_load_b64 v[4:5]", "buffer_load_dwordx2 v[4:5]"], false, 2, 4),
    case(["buffer_load_b96 v[4:6]", "buffer_load_dwordx3 v[4:6]"], false, 3, 4),
    case(["buffer_load_b128 v[4:7]", "buffer_load_dwordx4 v[4:7]"], false, 4, 4),
    case(["buffer_load_u8 v4", "buffer_load_ubyte v4"], false, 1, 1),
    case(["buffer_load_u16 v4", "buffer_load_ushort v4"], false, 1, 2),
    Case { place: (0, 2), ..case(["buffer_load_d16_b16 v4", "buffer_load_short_d16 v4"], false, 1, 2) },
    Case { place: (2, 2), ..case(["buffer_load_d16_hi_b16 v4", "buffer_load_short_d16_hi v4"], false, 1, 2) },
    case(["buffer_store_b8 v4", "buffer_store_byte v4"], true, 1, 1),
    case(["buffer_store_b16 v4", "buffer_store_short v4"], true, 1, 2),
    case(["buffer_store_b32 v4", "buffer_store_dword v4"], true, 1, 4),
    case(["buffer_store_b64 v[4:5]", "buffer_store_dwordx2 v[4:5]"], true, 2, 4),
    case(["buffer_store_b128 v[4:7]", "buffer_store_dwordx4 v[4:7]"], true, 4, 4),
];

/// `num_records`, `soffset`, immediate. The memory behind is larger than any of them.
const RANGES: &[(u32, u32, u32)] =
    &[(64, 0, 0), (64, 0, 4), (64, 32, 0), (64, 60, 0), (64, 64, 0), (64, 80, 0), (62, 0, 8), (63, 13, 0), (0, 0, 0)];

const MEMORY_BYTES: usize = 1024;

fn kernel(chip: &Chip, name: &str, body: &str) -> String {
    format!(
        ".globl {name}\n.p2align 8\n.type {name},@function\n{name}:\n{}{body}{}
.rodata\n.p2align 6\n.amdhsa_kernel {name}\n  .amdhsa_next_free_vgpr 24\n  .amdhsa_next_free_sgpr 32
  .amdhsa_user_sgpr_kernarg_segment_ptr 1\n  .amdhsa_kernarg_size 40\n  {}\n.end_amdhsa_kernel\n.text\n",
        chip.head, chip.tail, chip.directives
    )
}

/// Which parts of a lane's access are in range, and where the access starts.
fn in_range(chip: &Chip, case: &Case, range: (u32, u32, u32), voffset: u32) -> (Vec<bool>, usize) {
    let (n_records, soffset, imm) = (range.0 as u64, range.1 as u64, range.2 as u64);
    let sum = voffset as u64 + imm;
    let offset = if chip.wraps { sum % (1 << 32) } else { sum };
    let end = |part: usize| offset + ((part + 1) * case.part_bytes) as u64;
    let parts = (0..case.n_parts).map(|part| end(part) <= n_records.saturating_sub(soffset)).collect();
    (parts, (soffset + offset) as usize)
}

fn check(chip: &Chip) {
    let column = (chip.name == CDNA3.name) as usize;
    let mut source = format!(".amdgcn_target \"amdgcn-amd-amdhsa--{}\"\n.text\n", chip.name);
    for (c, case) in CASES.iter().enumerate() {
        for imm in [0, 4, 8] {
            let body = format!("  {}, v2, s[12:15], s16 offen offset:{imm}\n", case.op[column]);
            source += &kernel(chip, &format!("case{c}_{imm}"), &body);
        }
    }
    let Some(file) = tools::assemble(&source, chip.name) else { return };
    let device = Device::new(chip.name, Options::default()).expect("an emulator");
    let module = device.load(&file).expect("a code object");
    let n = chip.lanes as usize;
    let memory: Vec<u8> = (0..MEMORY_BYTES).map(|k| (k * 7 + 1) as u8 | 1).collect();
    let registers: Vec<u8> = (0..16 * n).map(|k| (k * 11) as u8 | 0x80).collect();
    for (c, case) in CASES.iter().enumerate() {
        for &range in RANGES {
            // Lanes 16 bytes apart for stores, so that none writes what another does.
            let step = if case.is_store { 16 } else { 4 };
            let mut voffsets: Vec<u32> = (0..n as u32).map(|l| (l * step) % 512).collect();
            voffsets[n - 2..].copy_from_slice(&[0x8000_0000, if case.is_store { 0x8000_0100 } else { 0xffff_fffc }]);
            let (data, out) = (device.upload(&memory), device.upload(&registers));
            let offsets = device.upload_u32(&voffsets);
            let args = [
                Arg::Buffer(&offsets),
                Arg::Buffer(&out),
                Arg::Buffer(&data),
                Arg::I32(range.0 as i32),
                Arg::I32(chip.word3 as i32),
                Arg::I32(range.1 as i32),
            ];
            let what = format!("{} {} with range {range:?}", chip.name, case.op[column]);
            device
                .launch(&module, &format!("case{c}_{}", range.2), [1, 1, 1], [chip.lanes, 1, 1], &args)
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            let (mut want_data, mut want_out) = (memory.clone(), registers.clone());
            for (l, voffset) in voffsets.iter().enumerate() {
                let (parts, start) = in_range(chip, case, range, *voffset);
                for (part, is_in) in parts.into_iter().enumerate() {
                    let (at, row) = (start + part * case.part_bytes, 16 * l + 4 * part);
                    if case.is_store && is_in {
                        want_data[at..][..case.part_bytes].copy_from_slice(&registers[row..][..case.part_bytes]);
                    } else if !case.is_store {
                        if chip.name == CDNA3.name {
                            want_out[row..][..4].fill(0); // SRAM-ECC: whole registers are written
                        }
                        let to = &mut want_out[row + case.place.0..][..case.place.1];
                        to.fill(0);
                        if is_in {
                            to[..case.part_bytes].copy_from_slice(&memory[at..][..case.part_bytes]);
                        }
                    }
                }
            }
            assert!(data.bytes() == want_data, "{what}: memory differs");
            for l in 0..n {
                let (got, want) = (&out.bytes()[16 * l..][..16], &want_out[16 * l..][..16]);
                assert_eq!(got, want, "{what}: lane {l}, offset {:#x}", voffsets[l]);
            }
        }
    }
}

#[test]
fn raw_buffers_end_where_the_descriptor_says_on_gfx1100() {
    check(&RDNA3);
}

#[test]
fn raw_buffers_end_where_the_descriptor_says_on_gfx942() {
    check(&CDNA3);
}

#[test]
fn a_descriptor_that_is_not_understood_stops_the_kernel() {
    let source = kernel(&RDNA3, "load", "  buffer_load_b32 v4, v2, s[12:15], s16 offen\n");
    let source = format!(".amdgcn_target \"amdgcn-amd-amdhsa--gfx1100\"\n.text\n{source}");
    let Some(file) = tools::assemble(&source, "gfx1100") else { return };
    let device = Device::new("gfx1100", Options::default()).expect("an emulator");
    let module = device.load(&file).expect("a code object");
    let (data, out, offsets) = (device.upload(&[1; 512]), device.upload(&[0; 512]), device.upload_u32(&[0; 32]));
    let run = |word3: i32| {
        let buffers = [Arg::Buffer(&offsets), Arg::Buffer(&out), Arg::Buffer(&data)];
        let args = [&buffers[..], &[Arg::I32(4), Arg::I32(word3), Arg::I32(16)]].concat();
        device.launch(&module, "load", [1, 1, 1], [32, 1, 1], &args).map(|_| out.u32s()[0]).map_err(|e| e.to_string())
    };
    assert_eq!(run(0x3101_6000), Ok(0), "past its end");
    assert_eq!(run(0x2101_6000), Ok(0x0101_0101), "checks turned off");
    for word3 in [0x0101_6000, 0x1101_6000, 0x3181_6000] {
        let error = run(word3).expect_err("structured, or numbered by thread");
        assert!(error.contains("descriptor") && error.contains("buffer_load_b32"), "{error}");
    }
}
