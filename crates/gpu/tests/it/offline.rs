//! The kernels compile with the vendors' own compilers for many chips, without any GPU. nvrtc comes
//! with PyPI's nvidia-cuda-nvrtc, hiprtc with AMD's packages (`tests/fetch-headers` says how).

use std::time::Duration;

use gpu::discovery::Probe;
use gpu::{Cache, Error, Program, Target, Vendor};

use crate::checks::kernels;

fn programs() -> [Program; 3] {
    [kernels::rmsnorm_program(), kernels::prelude_program(), kernels::small_program()]
}

#[test]
fn kernels_compile_for_nvidia_chips() {
    if let Err(error) = gpu::compiler(Vendor::Nvidia) {
        return crate::skip("compiling for NVIDIA", &error.to_string(), "ROCI_REQUIRE_NVRTC");
    }
    for arch in ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90"] {
        let target = Target::without_device(Vendor::Nvidia, arch, 32);
        for program in programs() {
            let code = program.compile(&target, &Cache::off()).unwrap_or_else(|error| panic!("{error}"));
            assert!(code.bytes.starts_with(b"\x7fELF"), "{} for {arch} is no ELF", program.name());
        }
    }
}

#[test]
fn an_unknown_nvidia_chip_is_an_error() {
    if let Err(error) = gpu::compiler(Vendor::Nvidia) {
        return crate::skip("compiling for NVIDIA", &error.to_string(), "ROCI_REQUIRE_NVRTC");
    }
    let target = Target::without_device(Vendor::Nvidia, "sm_7", 32);
    let error = kernels::rmsnorm_program().compile(&target, &Cache::off()).map(drop).unwrap_err();
    assert!(matches!(error, Error::Compile { .. }), "{error}");
}

#[test]
fn kernels_compile_for_amd_chips() {
    if let Err(error) = gpu::compiler(Vendor::Amd) {
        return crate::skip("compiling for AMD", &error.to_string(), "ROCI_REQUIRE_HIPRTC");
    }
    let (program, arguments) = crate::child_command();
    let mut probe = Probe::through(program, arguments.into_iter().map(Into::into));
    probe.selftest_limit = Duration::from_secs(120);
    let mut n_known = 0;
    for (arch, wave) in
        [("gfx1100", 32), ("gfx1201", 32), ("gfx1030", 32), ("gfx90a", 64), ("gfx942", 64), ("gfx906", 64)]
    {
        // A chip this hiprtc does not know would abort the test: a child finds out.
        if let Err(error) = probe.knows_arch(Vendor::Amd, arch) {
            eprintln!("skipped: {arch}: {error}");
            continue;
        }
        n_known += 1;
        for program in programs() {
            let target = Target::without_device(Vendor::Amd, arch, wave);
            let code = program.compile(&target, &Cache::off()).unwrap_or_else(|error| panic!("{error}"));
            assert!(code.bytes.len() > 1000, "{} for {arch}: {} bytes", program.name(), code.bytes.len());
        }
    }
    assert!(n_known > 0, "this hiprtc knows no chip at all");
    assert!(probe.knows_arch(Vendor::Amd, "gfx9999").is_err(), "an unknown chip compiled");
}
