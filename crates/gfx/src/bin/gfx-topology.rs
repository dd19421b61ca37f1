//! `gfx-topology CHIP DIR`: writes the folder for `HSA_MODEL_TOPOLOGY`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [chip, dir] = args.as_slice() else {
        eprintln!("usage: gfx-topology CHIP DIR   (chips: {})", gfx_model::chip::known());
        return ExitCode::from(2);
    };
    match gfx_model::chip::Chip::find(chip).and_then(|c| gfx_model::topology::write(c, Path::new(dir))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("gfx-topology: {e}");
            ExitCode::FAILURE
        }
    }
}
