//! Runs every public feature of the device layer on each GPU that is there, and prints a table.
//!
//! `selftest [rocm|cuda] [check...]`: exit code 0 when everything passed, 1 when something failed,
//! 2 when there is no GPU. With `--offline ARCH...` it only compiles the kernels, which needs no GPU.

use std::process::ExitCode;
use std::time::Instant;

use gpu::{Cache, Device, Vendor};

mod checks;

use checks::{Bench, Check, Failure, Outcome, compiling, faults, kernels, memory, products, working};

macro_rules! table {
    ($($name:ident = $function:path),* $(,)?) => {
        const CHECKS: &[(&str, Check)] = &[$((stringify!($name), $function)),*];
    };
}
for_each_check!(table);

fn main() -> ExitCode {
    gpu::discovery::answer_if_asked();
    checks::play_if_asked();
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "--offline") {
        return offline(&words[1..]);
    }
    let wanted: Vec<&str> = words.iter().map(String::as_str).filter(|word| Vendor::from_word(word).is_none()).collect();
    let vendors: Vec<Vendor> = words.iter().filter_map(|word| Vendor::from_word(word)).collect();
    let (mut n_devices, mut n_failed) = (0, 0);
    for vendor in Vendor::ALL.into_iter().filter(|vendor| vendors.is_empty() || vendors.contains(vendor)) {
        match Device::count(vendor) {
            Ok(0) => println!("{vendor}: no device"),
            Err(error) => println!("{vendor}: {error}"),
            Ok(count) => {
                for ordinal in 0..count {
                    n_devices += 1;
                    n_failed += run(vendor, ordinal, &wanted);
                }
            }
        }
    }
    match (n_devices, n_failed) {
        (0, _) => ExitCode::from(2),
        (_, 0) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// All checks on one device; how many failed.
fn run(vendor: Vendor, ordinal: u32, wanted: &[&str]) -> usize {
    let device = match Device::open(vendor, ordinal) {
        Ok(device) => device,
        Err(error) => {
            println!("{}:{ordinal}: {error}", vendor.word());
            return 1;
        }
    };
    println!("{device:?}");
    let program = std::env::current_exe().expect("this program has a path");
    let bench = Bench { device, cache: Cache::of_user(), child: (program, Vec::new()) };
    let (mut n_run, mut n_failed) = (0, 0);
    for (name, check) in CHECKS.iter().filter(|(name, _)| wanted.is_empty() || wanted.contains(name)) {
        n_run += 1;
        let began = Instant::now();
        let (verdict, words) = match check(&bench) {
            Ok(Outcome::Passed(what)) => ("ok", what),
            Ok(Outcome::Skipped(why)) => ("skip", why),
            Err(Failure(why)) => {
                n_failed += 1;
                ("FAILED", why)
            }
        };
        println!("  {name:<20} {verdict:<6} {:>7} ms  {words}", began.elapsed().as_millis());
    }
    println!("  {n_run} checks, {n_failed} failed");
    n_failed
}

/// Compile every kernel for architectures by name. For AMD a name its compiler does not know ends the
/// process: that is the caller's risk here.
fn offline(archs: &[String]) -> ExitCode {
    let mut n_failed = 0;
    for arch in archs {
        let vendor = if arch.starts_with("gfx") { Vendor::Amd } else { Vendor::Nvidia };
        let wave = if arch.starts_with("gfx9") || arch.starts_with("gfx8") { 64 } else { 32 };
        let target = gpu::Target::without_device(vendor, arch, wave);
        for program in [kernels::rmsnorm_program(), kernels::prelude_program(), kernels::small_program()] {
            match program.compile(&target, &Cache::off()) {
                Ok(code) => println!("{arch:<10} {:<14} {:>7} bytes", program.name(), code.bytes.len()),
                Err(error) => {
                    n_failed += 1;
                    println!("{arch:<10} {:<14} FAILED {error}", program.name());
                }
            }
        }
    }
    if n_failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
