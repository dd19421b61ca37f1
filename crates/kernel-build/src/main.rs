//! `roci-kernel-build FILE --out FOLDER [--bounds THREADS,BLOCKS] CHIP...`: the objects that a published crate ships.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: roci-kernel-build FILE --out FOLDER [--bounds THREADS,BLOCKS] CHIP...
  Compiles the kernels in FILE for each CHIP (gfx1100, gfx11-generic, sm_70, ...) into FOLDER.
  --bounds: NVIDIA's launch bounds, most threads of a block and blocks that are to fit a multiprocessor.
  example: roci-kernel-build src/kernels.rs --out objects gfx11-generic gfx9-4-generic sm_70";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [source, out, folder, chips @ ..] = args.as_slice() else { return usage() };
    let mut build = kernel_build::Build::new(PathBuf::from(source));
    let chips = match chips {
        [flag, bounds, chips @ ..] if flag == "--bounds" => {
            let parsed = bounds.split_once(',').and_then(|(t, b)| Some((t.parse().ok()?, b.parse().ok()?)));
            let Some((threads, blocks)) = parsed else { return usage() };
            build = build.launch_bounds(threads, blocks);
            chips
        }
        chips => chips,
    };
    if out != "--out" || chips.is_empty() {
        return usage();
    }
    let scratch = std::env::temp_dir().join("roci-kernel-build");
    match build.amd(chips).write(Path::new(folder), &scratch) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}
