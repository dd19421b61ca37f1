//! How fast the emulator is: packed matrix-vector products, in multiply-adds per second.
//!
//! `cargo run -p gfx --example matvec-speed [CODE_OBJECT]`; without one, clang-19 builds the test kernels.

use std::process::Command;
use std::time::Instant;

use gfx_model::bare::{Arg, Device};
use gfx_model::dispatch::Options;

fn main() {
    let path = std::env::args().nth(1).unwrap_or_else(build);
    let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let device = Device::new("gfx1100", Options::default()).expect("an emulator");
    let module = device.load(&file).expect("a code object");
    let (n_rows, n) = (1024usize, 2048usize);
    for (kernel, weight_bytes) in [("matvec_q4_0", n / 32 * 18), ("matvec_q8_0", n / 32 * 34), ("matvec_f16", n * 2)] {
        let w = device.upload(&vec![0x21; n_rows * weight_bytes]);
        let x = device.upload(&vec![0x11; if kernel == "matvec_f16" { n * 4 } else { n / 32 * 34 }]);
        let y = device.alloc(n_rows * 4);
        let k = if kernel == "matvec_f16" { n } else { n / 32 } as i32;
        let args = [Arg::Buffer(&w), Arg::Buffer(&x), Arg::Buffer(&y), Arg::I32(n_rows as i32), Arg::I32(k)];
        let start = Instant::now();
        let n_runs = 10;
        let mut instructions = 0;
        for _ in 0..n_runs {
            let report = device.launch(&module, kernel, [n_rows as u32 / 8, 1, 1], [256, 1, 1], &args).expect(kernel);
            instructions += report.counters.instructions;
        }
        let s = start.elapsed().as_secs_f64();
        let macs = (n_runs * n_rows * n) as f64 / s / 1e6;
        println!("{kernel}: {macs:.0} M MAC/s, {:.1} M wave instructions/s", instructions as f64 / s / 1e6);
    }
}

fn build() -> String {
    let out = std::env::temp_dir().join(format!("gfx-speed-{}.co", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/kernels.hip");
    let flags = "-x hip --offload-arch=gfx1100 --offload-device-only --no-gpu-bundle-output -nogpuinc -nogpulib -O3 -std=c++17 -DWAVE=32";
    let status = Command::new("clang-19").args(flags.split(' ')).args([source, "-o"]).arg(&out).status();
    assert!(status.is_ok_and(|s| s.success()), "clang-19 is needed to build the kernels (apt-get install clang-19)");
    out.display().to_string()
}
