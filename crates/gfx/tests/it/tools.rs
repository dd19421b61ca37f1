//! Finding what other people's programs these tests lean on.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Skips a test with a reason; under `CI=true` that is a failure.
pub fn skip(reason: &str) {
    assert!(!std::env::var("CI").is_ok_and(|v| v == "true"), "under CI=true this may not be skipped: {reason}");
    eprintln!("skipped: {reason}");
}

/// The crate's own folder.
pub fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What cargo built beside this test.
pub fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    exe.ancestors().nth(2).expect("target/debug/deps/test").to_path_buf()
}

/// AMD's library folder, fetched when it is not there yet; `None` when no mirror answers.
pub fn rocm() -> Option<PathBuf> {
    let out = Command::new(crate_dir().join("fetch-rocm")).output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout);
    match (out.status.success(), text.lines().last()) {
        (true, Some(path)) => Some(PathBuf::from(path)),
        _ => {
            skip(&format!("AMD's packages: {}", String::from_utf8_lossy(&out.stderr).trim()));
            None
        }
    }
}

/// `patchelf`, which the run script needs.
pub fn has_patchelf() -> bool {
    let found = Command::new("patchelf").arg("--version").output().is_ok();
    if !found {
        skip("patchelf is missing (apt-get install patchelf)");
    }
    found
}

/// Runs the smoke program through the run script with extra environment.
pub fn smoke(env: &[(&str, &str)]) -> Option<Output> {
    smoke_on(&[], env)
}

/// The same with more arguments for the script.
pub fn smoke_on(options: &[&str], env: &[(&str, &str)]) -> Option<Output> {
    run(options, &target_dir().join("examples/hip-smoke"), env)
}

/// Runs any program through the run script.
pub fn run(options: &[&str], program: &Path, env: &[(&str, &str)]) -> Option<Output> {
    rocm()?;
    if !has_patchelf() {
        return None;
    }
    let mut command = Command::new(crate_dir().join("run"));
    command.args(options).arg(program).env("GFX_MODEL_LIB", target_dir().join("deps/libgfx_model.so"));
    command.envs(env.iter().copied());
    Some(command.output().expect("the run script starts"))
}

/// A C program of `testdata`, built with Debian's clang; `None` (with a reason) when that is missing.
pub fn c_program(name: &str) -> Option<PathBuf> {
    let (from, to) = (crate_dir().join("testdata").join(format!("{name}.c")), target_dir().join(format!("gfx-{name}")));
    let Ok(out) = Command::new("clang-19").args([from.as_os_str(), "-o".as_ref(), to.as_os_str()]).arg("-ldl").output()
    else {
        skip("clang-19 is missing (apt-get install clang-19)");
        return None;
    };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Some(to)
}

/// Everything a program said.
pub fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Builds a HIP source for a chip with Debian's clang; `None` (with a reason) when it is missing.
pub fn clang(source: &Path, chip: &str, wave: u32) -> Option<Vec<u8>> {
    let out =
        std::env::temp_dir().join(format!("gfx-{chip}-{}-{:?}.co", std::process::id(), std::thread::current().id()));
    let flags =
        "-x hip --offload-device-only --no-gpu-bundle-output -nogpuinc -nogpulib -O3 -fno-math-errno -std=c++17";
    let result = Command::new("clang-19")
        .args(flags.split(' '))
        .args([format!("--offload-arch={chip}"), format!("-DWAVE={wave}")])
        .args([source.as_os_str(), "-o".as_ref(), out.as_os_str()])
        .output();
    let Ok(result) = result else {
        skip("clang-19 is missing (apt-get install clang-19)");
        return None;
    };
    assert!(result.status.success(), "clang-19: {}", String::from_utf8_lossy(&result.stderr));
    let file = std::fs::read(&out).expect("clang wrote its output");
    let _ = std::fs::remove_file(&out);
    Some(file)
}

/// Assembles a source for a chip with Debian's clang; `None` (with a reason) when it is missing.
pub fn assemble(source: &str, chip: &str) -> Option<Vec<u8>> {
    assemble_with(source, chip, &[])
}

/// The same with more options.
pub fn assemble_with(source: &str, chip: &str, options: &[&str]) -> Option<Vec<u8>> {
    let stem = format!("gfx-asm-{}-{:?}", std::process::id(), std::thread::current().id());
    let (from, to) = (std::env::temp_dir().join(format!("{stem}.s")), std::env::temp_dir().join(format!("{stem}.co")));
    std::fs::write(&from, source).expect("a temporary file");
    let out = Command::new("clang-19")
        .args(["--target=amdgcn-amd-amdhsa", &format!("-mcpu={chip}"), "-nogpulib"])
        .args(options)
        .args([from.as_os_str(), "-o".as_ref(), to.as_os_str()])
        .output();
    let Ok(out) = out else {
        skip("clang-19 is missing (apt-get install clang-19 lld-19)");
        return None;
    };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let file = std::fs::read(&to).expect("clang wrote its output");
    let _ = (std::fs::remove_file(&from), std::fs::remove_file(&to));
    Some(file)
}

/// A small seeded generator, so that tests need no dependency.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// In [-1, 1).
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
