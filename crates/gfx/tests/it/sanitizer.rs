//! Mistakes that silicon would not report, each caught by name.

use gfx_model::bare::{Arg, Device, Module};
use gfx_model::dispatch::Options;

use crate::kernels::on_each_chip;
use crate::semantics::{TARGETS, Target};

#[test]
fn an_access_past_the_end_names_lane_address_and_allocation() {
    on_each_chip(false, |device, module, _| {
        let out = device.alloc(256 * 4);
        let e =
            device.launch(module, "past_end", [1, 1, 1], [64, 1, 1], &[Arg::Buffer(&out), Arg::I32(250)]).unwrap_err();
        let text = e.to_string();
        let want = format!("write of 4 bytes at {:#x} by lane 6", out.address() + 1024);
        assert!(text.contains("kernel `past_end`"), "{text}");
        assert!(text.contains(&want), "{want} in: {text}");
        assert!(text.contains("0 bytes past the end of allocation") && text.contains("1024 bytes)"), "{text}");
        assert!(text.contains("global_store"), "{text}");
    });
}

#[test]
fn a_read_of_unwritten_memory_is_reported_and_a_written_one_is_not() {
    on_each_chip(true, |device, module, _| {
        let (fresh, out) = (device.alloc(256 * 4), device.alloc(256 * 4));
        let args = [Arg::Buffer(&fresh), Arg::Buffer(&out)];
        let text = device.launch(module, "unwritten", [1, 1, 1], [64, 1, 1], &args).unwrap_err().to_string();
        assert!(text.contains("read of 4 bytes of global memory nobody wrote"), "{text}");
        assert!(text.contains(&format!("{:#x} by lane 0", fresh.address())), "{text}");
        let full = device.upload(&[0; 1024]);
        device.launch(module, "unwritten", [1, 1, 1], [64, 1, 1], &[Arg::Buffer(&full), Arg::Buffer(&out)]).unwrap();
        // What a kernel wrote may be read, zeros included.
        device.launch(module, "unwritten", [1, 1, 1], [64, 1, 1], &[Arg::Buffer(&out), Arg::Buffer(&fresh)]).unwrap();
    });
}

#[test]
fn a_race_in_lds_is_found_whatever_the_order() {
    on_each_chip(true, |device, module, _| {
        let out = device.alloc(256 * 4);
        let text = device.launch(module, "race", [1, 1, 1], [256, 1, 1], &[Arg::Buffer(&out)]).unwrap_err().to_string();
        // Wave 0 runs first and reads what the last wave has not written yet.
        assert!(text.contains("LDS") && (text.contains("race") || text.contains("nobody wrote")), "{text}");
    });
}

#[test]
fn unwritten_lds_is_reported() {
    on_each_chip(true, |device, module, _| {
        let out = device.alloc(256 * 4);
        let text = device
            .launch(module, "lds_unwritten", [1, 1, 1], [64, 1, 1], &[Arg::Buffer(&out)])
            .unwrap_err()
            .to_string();
        assert!(text.contains("of LDS nobody wrote") && text.contains("lane 7"), "{text}");
    });
}

#[test]
fn a_freed_buffer_is_out_of_bounds() {
    on_each_chip(false, |device, module, _| {
        // Its middle: a launch's own small buffers may come to lie where a freed one began.
        let out = device.alloc(1 << 20);
        let gone = out.address() + (1 << 19);
        drop(out);
        let args = [Arg::Address(gone), Arg::I32(0)];
        let text = device.launch(module, "past_end", [1, 1, 1], [64, 1, 1], &args).unwrap_err().to_string();
        assert!(text.contains("memory access fault"), "{text}");
    });
}

/// Purposely broken bodies (RDNA3's spelling), each a kernel of its own, on a device that checks. A workgroup has 0x800
/// bytes of LDS, a lane 0x40 bytes of scratch.
struct Broken {
    device: Device,
    module: Module,
    n_threads: u32,
}

impl Broken {
    fn new(target: &Target, bodies: &[&str]) -> Option<Self> {
        let spell = |body: &str| {
            if target.family.is_rdna() {
                return body.to_string();
            }
            let ours = ["ds_load_b32", "ds_store_b32", "load_b32", "store_b32"];
            let theirs = ["ds_read_b32", "ds_write_b32", "load_dword", "store_dword"];
            ours.iter().zip(theirs).fold(body.to_string(), |text, (ours, theirs)| text.replace(ours, theirs))
        };
        let kernels: String =
            bodies.iter().enumerate().map(|(n, body)| target.kernel(&format!("broken{n}"), &spell(body))).collect();
        let options = Options { is_checked: true, max_instructions: 10_000, ..Options::default() };
        let device = Device::new(target.chip, options).expect("an emulator");
        let module = device.load(&target.assemble(&kernels)?).expect("a code object");
        Some(Broken { device, module, n_threads: 2 * target.n_lanes as u32 })
    }

    /// Two waves of one of them.
    fn run(&self, n: usize) -> Result<(), String> {
        let out = self.device.upload(&[0; 64]);
        let args = [Arg::Buffer(&out); 4];
        let run = self.device.launch(&self.module, &format!("broken{n}"), [1, 1, 1], [self.n_threads, 1, 1], &args);
        run.map(|_| ()).map_err(|e| e.to_string())
    }
}

/// Each mistake with the words that name it. Every text has the kernel, the instruction, where it stands and its bytes.
const BROKEN: &[(&str, &str)] = &[
    ("v_mov_b32 v2, 0x7fe\nds_store_b32 v2, v0", "LDS write of 4 bytes at 0x7fe by lane 0, the workgroup has 0x800"),
    ("v_mov_b32 v2, 0x800\nds_load_b32 v3, v2", "LDS read of 4 bytes at 0x800 by lane 0, the workgroup has 0x800"),
    ("v_mov_b32 v2, 0\nds_load_b32 v3, v2", "read of 4 bytes of LDS nobody wrote at 0x0 by lane 0"),
    ("v_mov_b32 v2, 4\nds_store_b32 v2, v0\nv_mov_b32 v3, 1", "LDS race: write at 0x4 by lane 0 with no barrier since"),
    (
        "v_lshlrev_b32 v2, 2, v0\nds_store_b32 v2, v0\nv_xor_b32 v2, 0x1fc, v2\nds_load_b32 v3, v2",
        "read of 4 bytes of LDS nobody wrote",
    ),
    ("v_mov_b32 v2, 62\nscratch_store_b32 v2, v0, off", "scratch write of 4 bytes at 0x3e by lane 0, a lane has 0x40"),
    ("v_mov_b32 v2, 64\nscratch_load_b32 v3, v2, off", "scratch read of 4 bytes at 0x40 by lane 0, a lane has 0x40"),
    ("v_mov_b32 v2, 8\nscratch_load_b32 v3, v2, off", "read of 4 bytes of scratch nobody wrote at 0x8 by lane 0"),
    ("v_mov_b32 v2, 60\nglobal_load_b32 v3, v2, s[8:9] offset:4", "memory access fault: read of 4 bytes at"),
    (
        "v_lshlrev_b32 v2, 2, v0\nglobal_store_b32 v2, v0, s[8:9]",
        "by lane 16, outside every allocation; 0 bytes past the end",
    ),
    ("s_trap 2", "the kernel trapped (s_trap 2)"),
    ("s_cmp_eq_u32 0, 0\n.Lagain:\ns_cbranch_scc1 .Lagain", "instructions of one wave in s_cbranch_scc1 at +0x"),
    ("s_mov_b32 s4, 64\ns_mov_b32 s5, 0\ns_setpc_b64 s[4:5]", "jump to 0x40, which is no code"),
];

#[test]
fn each_mistake_is_named() {
    for target in TARGETS {
        // The same kinds of access where they belong, with a barrier between.
        let right = format!(
            "v_lshlrev_b32 v2, 2, v0\nds_store_b32 v2, v0\ns_waitcnt lgkmcnt(0)\ns_barrier\nv_xor_b32 v2, {:#x}, v2
            ds_load_b32 v3, v2\ns_waitcnt lgkmcnt(0)\nv_mov_b32 v2, 60\nscratch_store_b32 v2, v3, off\nscratch_load_b32 v4, v2, off",
            8 * target.n_lanes - 4
        );
        let bodies: Vec<&str> = BROKEN.iter().map(|(body, _)| *body).chain([right.as_str()]).collect();
        let Some(broken) = Broken::new(&target, &bodies) else { return };
        for (n, (body, want)) in BROKEN.iter().enumerate() {
            let text = broken.run(n).expect_err(body);
            assert!(text.contains(want), "`{want}` in: {text}");
            assert!(text.contains("kernel `broken") && text.contains(" at +0x") && text.contains("wave "), "{text}");
        }
        assert_eq!(broken.run(BROKEN.len()), Ok(()), "{} with {} lanes", target.chip, target.n_lanes);
    }
}

/// Never a guess: bytes that are no instruction, and instructions that are not emulated, end the kernel with their words.
#[test]
fn an_unknown_instruction_is_named_with_its_bytes() {
    for target in TARGETS {
        let bodies = [
            "v_cubeid_f32 v1, v2, v3, v4",
            // A word with an encoding that neither family has; and one that nobody comes by.
            ".long 0xdeadbeef\n.long 0xffffffff",
            "s_branch .Lpast\n.long 0xdeadbeef\n.Lpast:",
        ];
        let Some(broken) = Broken::new(&target, &bodies) else { return };
        let text = broken.run(0).expect_err("not emulated");
        let words = if target.family.is_rdna() { "d60c0001 04120702" } else { "d1c40001 04120702" };
        assert!(text.contains("kernel `broken0`: not emulated: v_cubeid_f32 in v_cubeid_f32 at +0x"), "{text}");
        assert!(text.contains(words), "{words} in {text}");
        let text = broken.run(1).expect_err("no code");
        assert!(text.contains("kernel `broken1`: unknown instruction: ") && text.contains("deadbeef"), "{text}");
        assert_eq!(broken.run(2), Ok(()));
    }
}
