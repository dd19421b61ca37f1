//! How fast the emulator is: packed matrix-vector products, in multiply-adds per second.
//!
//! `cargo run -p roci-gfx --example matvec-speed [RUNS]` (10 runs of each kernel); clang-19 builds the kernels: the small ones of the tests, with activations of
//! 8 bits, and those that models run on (crates/ops/kernels/matvec.hip), with activations of 16 bits, that is two integer
//! products for each weight.

use std::process::Command;
use std::time::Instant;

use gfx_model::bare::{Arg, Buffer, Device, Module};
use gfx_model::dispatch::Options;

const N_ROWS: usize = 1024;
const N: usize = 2048;
const GROUPS: usize = N / 32;

fn main() {
    let n_runs = std::env::args().nth(1).map_or(10, |n| n.parse().expect("a number of runs"));
    let device = Device::new("gfx1100", Options::default()).expect("an emulator");
    let x = device.upload(&vec![0x11; N * 4]);
    let y = device.alloc(N_ROWS * 4);
    let module = build(&device, "testdata/kernels.hip", "-DWAVE=32");
    for (kernel, weight_bytes) in [("matvec_q4_0", GROUPS * 18), ("matvec_q8_0", GROUPS * 34), ("matvec_f16", N * 2)] {
        let w = device.upload(&vec![0x21; N_ROWS * weight_bytes]);
        let k = if kernel == "matvec_f16" { N } else { GROUPS } as i32;
        let args = [Arg::Buffer(&w), Arg::Buffer(&x), Arg::Buffer(&y), Arg::I32(N_ROWS as i32), Arg::I32(k)];
        measure(&device, &module, (kernel, kernel), 256, &args, n_runs);
    }
    // Bytes of a group of 32 weights: Q4_K's head is 16 bytes for eight groups.
    for (name, format, group_bytes) in [("q4_0", 3, 18), ("q8_0", 5, 34), ("q4_k", 6, 18), ("f16", 1, 64)] {
        let flags = format!("-DGPU_WAVE=32 -DWAVES=4 -DOUTS=2 -DFORMAT={format}");
        let module = build(&device, "../ops/kernels/matvec.hip", &flags);
        let w = device.upload(&vec![0x21; N_ROWS * GROUPS * group_bytes]);
        let name = format!("matvec.hip {name}");
        measure(&device, &module, ("matvec_1", &name), 128, &ours(&w, &x, &y, format), n_runs);
    }
}

/// The parameters of `matvec_1`: one product of the three that a launch may hold.
fn ours<'a>(w: &'a Buffer, x: &'a Buffer, y: &'a Buffer, format: u32) -> Vec<Arg<'a>> {
    let (w, x, y) = (Arg::Buffer(w), Arg::Buffer(x), Arg::Buffer(y));
    let is_plain = format == 1;
    let mut args = if is_plain { vec![x] } else { vec![x, x] };
    args.extend([w, w, w, y, y, y]);
    let k = if is_plain { N } else { GROUPS };
    args.extend([N_ROWS as i32, 0, 0, k as i32, 1, 0].map(Arg::I32));
    if !is_plain {
        args.push(Arg::F32(-1.0));
    }
    args
}

/// Eight rows a workgroup.
fn measure(
    device: &Device,
    module: &Module,
    (kernel, name): (&str, &str),
    n_threads: u32,
    args: &[Arg<'_>],
    n_runs: usize,
) {
    let start = Instant::now();
    let mut instructions = 0;
    for _ in 0..n_runs {
        let report =
            device.launch(module, kernel, [N_ROWS as u32 / 8, 1, 1], [n_threads, 1, 1], args).expect("the kernel runs");
        instructions += report.counters.instructions;
    }
    let s = start.elapsed().as_secs_f64();
    let macs = (n_runs * N_ROWS * N) as f64 / s / 1e6;
    println!("{name}: {macs:.0} M MAC/s, {:.1} M wave instructions/s", instructions as f64 / s / 1e6);
}

/// `source` is a path from this crate on.
fn build(device: &Device, source: &str, more: &str) -> Module {
    let out = std::env::temp_dir().join(format!("gfx-speed-{}.co", std::process::id()));
    let flags = "-x hip --offload-arch=gfx1100 --offload-device-only --no-gpu-bundle-output -nogpuinc -nogpulib -O3 \
                 -fno-math-errno -std=c++17";
    let source = format!("{}/{source}", env!("CARGO_MANIFEST_DIR"));
    let flags = flags.split_whitespace().chain(more.split(' '));
    let status = Command::new("clang-19").args(flags).args([&source, "-o"]).arg(&out).status();
    assert!(status.is_ok_and(|s| s.success()), "clang-19 is needed to build the kernels (apt-get install clang-19)");
    let file = std::fs::read(&out).expect("clang-19 wrote it");
    let _ = std::fs::remove_file(&out);
    device.load(&file).expect("a code object")
}
